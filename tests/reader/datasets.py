"""Small datasets that tests of the reader share, built once in a run of the suite."""

import functools
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shardprep import reader
from shardprep.dataset import example
from shardprep.dataset.tfrecord import frame, read_records
from shardprep.errors import DatasetError
from tests.support.builders import animals, build, jpeg, png, tree, write, zip_bytes
from tests.support.object_store import Bucket
from tests.support.paths import shared_folder


def pets(factory: pytest.TempPathFactory, members: Mapping[str, bytes], **options: Any) -> Path:
    """Return a read-only dataset of some files, built once for equal files and options.

    By default, labels are prefixes of file names.
    """
    data, options = zip_bytes(members), {"labels": "prefix", **options}
    name = hashlib.sha256(data + repr(sorted(options.items())).encode()).hexdigest()[:16]

    def make(root: Path) -> None:
        build(write(root / "pets.zip", data), root / "out", **options)

    folder: Path = shared_folder(factory, f"pets-{name}", make) / "out" / "pets" / "1.0.0"
    return folder


def numbered(factory: pytest.TempPathFactory, number: int) -> Path:
    """Return a dataset of `number` images of 4x4 pixels that show their numbers as red."""

    def image(number: int) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (4, 4), (number, 7 * number % 256, 255)).save(stream, "PNG")
        return stream.getvalue()

    members = {f"train/{('cat', 'dog')[i % 2]}.{i}.png": image(i) for i in range(number)}
    return pets(factory, members, size="4x4", format="png", shards=3)


HEIGHT, WIDTH = 12, 16
NUM_TRAIN, NUM_TEST = 43, 5
FORMS: dict[str, dict[str, Any]] = {
    "jpeg": {"size": "16x12"},
    "png": {"size": "16x12", "format": "png"},
    "raw": {"size": "16x12", "format": "raw"},
    "keep": {"format": "keep"},
    "keep, one size": {"size": "16x12", "format": "keep"},
    "own sizes": {"size": "none", "format": "png"},
    "unlabelled": {"size": "16x12", "labels": "none"},
    "multilabel": {"size": "16x12", "labels": "csv:t.csv:id:tags", "target": "multilabel"},
    "regression": {"size": "16x12", "labels": "csv:t.csv:id:weight", "target": "regression"},
    "text": {"size": "16x12", "labels": "csv:t.csv:id:weight", "target": "text"},
    "raw multilabel": {
        "size": "16x12", "format": "raw", "labels": "csv:t.csv:id:tags", "target": "multilabel",
    },
    "raw text": {
        "size": "16x12", "format": "raw", "labels": "csv:t.csv:id:weight", "target": "text",
    },
}  # fmt: skip


@functools.cache
def mixed_images() -> dict[str, bytes]:
    """Return JPEG and PNG files of several sizes, and a table with targets of the train images."""
    train = {
        **animals(36),
        **{f"train/dog.{i}.png": png(seed=i) for i in range(90, 95)},
        "train/cat.77.jpg": jpeg(HEIGHT, WIDTH, seed=77),
        "train/cat.78.png": png(HEIGHT, WIDTH, seed=78),
    }
    rows = [f"{key},{('a', 'a|b', 'b')[i % 3]},{i}.5" for i, key in enumerate(train)]
    test = {f"test/{i}.jpg": jpeg(seed=200 + i) for i in range(NUM_TEST)}
    return {**train, **test, "t.csv": "\n".join(["id,tags,weight", *rows]).encode()}


def of_form(factory: pytest.TempPathFactory, form: str) -> Path:
    """Return a dataset of `mixed_images` in one of `FORMS`; train has 3 shards."""
    return pets(factory, mixed_images(), **{"shards": 3, "separator": "|", **FORMS[form]})


def refused(call: Callable[[], object]) -> str:
    """Return the text of the DatasetError of a call: one line, with a hint."""
    with pytest.raises(DatasetError) as error:
        call()
    assert error.value.hint
    assert "\n" not in str(error.value)
    return str(error.value)


@functools.cache
def written(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of items.parquet that are written images, in its order."""
    table = pq.read_table(folder / "items.parquet").to_pylist()
    return [row for row in table if row["status"] == "written"]


def stored(folder: Path, split: str = "train") -> list[str]:
    """Return the keys of a split, in the order of the shards."""
    return [row["key"] for row in written(folder) if row["split"] == split]


def keys_of(place: Path | str, split: Any = "train") -> list[str]:
    """Return the keys of the items that `Dataset` reads, in its order."""
    items = reader.Dataset(place, split, decode=False, as_supervised=False)
    return [item["image/filename"] for item in items]


def saved(batches: Any) -> dict[str, Any]:
    """Return the state of batches, stored as JSON and read again."""
    state: dict[str, Any] = json.loads(json.dumps(batches.state_dict()))
    return state


def put(bucket: Bucket, folder: Path, key: str = "sets/pets/1.0.0") -> str:
    """Upload a dataset folder; return its address."""
    for name, data in tree(folder).items():
        bucket.put(f"{key}/{name}", data)
    return f"{bucket.url}/{key}"


def batch_keys(batches: Any) -> list[list[str]]:
    """Return the keys of batches of either reader, which are dicts."""
    columns = (np.asarray(batch["image/filename"]).tolist() for batch in batches)
    return [[key if isinstance(key, str) else key.decode() for key in column] for column in columns]


def epoch_keys(dataset: Any) -> list[str]:
    """Return the keys of an epoch of a `tf.data.Dataset` of feature dicts, single or in batches."""
    found = (np.atleast_1d(one["image/filename"]) for one in dataset.as_numpy_iterator())
    return [key.decode() for batch in found for key in batch]


def by_load(
    place: Any, split: Any = "train", *, part: tuple[int, int] = (0, 1), **options: Any
) -> Any:
    """Return the batches of `reader.iterate` for a host: its number, and the number of hosts."""
    config = reader.ReadConfig(shard_index=part[0], num_shards=part[1])
    options = {"batch_size": 10, "as_supervised": False, "read_config": config, **options}
    return reader.iterate(place, split, **options)


def by_dataset(
    place: Any, split: Any = "train", *, part: tuple[int, int] = (0, 1), **options: Any
) -> Any:
    """Return the batches of `Dataset.batches` for a host, like `by_load`."""
    options = {"batch_size": 10, "as_supervised": False, **options}
    return reader.Dataset(place, split).batches(shard_index=part[0], num_shards=part[1], **options)


def merged(hosts: Sequence[list[list[str]]]) -> list[list[str]]:
    """Return the global batches of which each host has read its part."""
    parts = itertools.zip_longest(*hosts, fillvalue=[])
    return [list(itertools.chain.from_iterable(part)) for part in parts]


def damage(folder: Path, *numbers: int) -> list[str]:
    """Change a byte of some records of train; return their names in errors."""
    rows = [row for row in written(folder) if row["split"] == "train"]
    for row in (rows[number] for number in numbers):
        flip(folder / row["shard"], row["offset"] + 100)
    return [f"{rows[number]['shard']}, record {rows[number]['record']}:" for number in numbers]


def change_record(folder: Path, number: int, change: Callable[[bytes], bytes]) -> tuple[Path, int]:
    """Replace the payload of a record of train by one of equal length, with correct checksums.

    Return the shard and the offset of the record.
    """
    row = [row for row in written(folder) if row["split"] == "train"][number]
    path, at = folder / row["shard"], row["offset"]
    data = path.read_bytes()
    (read,) = read_records(io.BytesIO(data[at : at + row["length"]]), "")
    framed = frame(change(bytes(read.payload)))
    assert len(framed) == row["length"]
    path.write_bytes(data[:at] + framed + data[at + len(framed) :])
    return path, at


def change_image(folder: Path, number: int, change: Callable[[bytes], bytes]) -> tuple[Path, int]:
    """Replace the image of a record of train by one of equal length, like `change_record`."""

    def changed(payload: bytes) -> bytes:
        values = example.decode(payload)
        (image,) = values["image"]
        assert isinstance(image, bytes)
        return example.encode({**values, "image": [change(image)]})

    return change_record(folder, number, changed)


def flip(file: Path, at: int) -> None:
    """Change a bit of the byte at an offset of a file."""
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes((byte ^ 0x10,)))
