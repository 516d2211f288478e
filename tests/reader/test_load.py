"""The tf.data reader, against plain TensorFlow, Pillow, Python's slices and TFDS."""

import functools
import io
import itertools
import json
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep import reader
from shardprep.dataset.manifest import Manifest, Split
from shardprep.errors import DatasetError
from shardprep.reader import ReadConfig
from shardprep.reader.selection.split_argument import split_ranges
from tests.reader.datasets import flip, pets, refused, stored, written
from tests.support.builders import animals, build, jpeg, png, write, zip_bytes
from tests.support.examples import thorough
from tests.support.paths import DATA
from tests.support.processes import Program

HEIGHT, WIDTH = 12, 16
NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 47, 9, 7
FORMS: dict[str, dict[str, str]] = {
    "jpeg": {"size": "16x12"},
    "png": {"size": "16x12", "format": "png"},
    "raw": {"size": "16x12", "format": "raw"},
    "keep": {"format": "keep"},
    "own sizes": {"size": "none", "format": "png"},
    "unlabelled": {"size": "16x12", "format": "png", "labels": "none"},
}
INFINITE = tf.data.INFINITE_CARDINALITY
Sets = dict[str, Path]


def members() -> dict[str, bytes]:
    """Return small images, three large ones, and a file that is not an image."""
    return {
        **animals(44),
        **{f"train/dog.{i}.png": png(seed=i, height=400, width=600) for i in range(90, 93)},
        "train/cat.99.jpg": b"rejected",
        **animals(NUM_VALIDATION, folder="val/"),
        **{f"test/{i}.jpg": jpeg(seed=200 + i) for i in range(NUM_TEST)},
    }


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Return a dataset of each form, all of one source; train has 5 shards, others have 1."""
    return {
        form: pets(tmp_path_factory, members(), **{"shards": 5, **keys})
        for form, keys in FORMS.items()
    }


@pytest.fixture(name="copy")
def _copy(sets: Sets, tmp_path: Path) -> Path:
    """Return a dataset folder to be damaged."""
    return shutil.copytree(sets["png"], tmp_path / "out" / "pets" / "1.0.0")


def keys(dataset: Any) -> list[str]:
    """Return the keys of one epoch of a dataset of feature dicts, single or in batches."""
    found = (np.atleast_1d(one["image/filename"]) for one in dataset.as_numpy_iterator())
    return [key.decode() for batch in found for key in batch]


def order(folder: Path, split: str = "train", **options: Any) -> list[str]:
    return keys(reader.load(folder, split, as_supervised=False, **options))


def epochs_of(found: list[str], size: int) -> list[list[str]]:
    """Return keys in lists of `size`; the last one may be shorter."""
    return [found[at : at + size] for at in range(0, len(found), size)]


def one_by_one(dataset: Any, *, batched: bool) -> Any:
    """Return an iterator of single elements."""
    return (dataset.unbatch() if batched else dataset).as_numpy_iterator()


def shards(folder: Path, split: str = "train") -> list[Path]:
    return sorted(folder.glob(f"*-{split}.tfrecord*"))


@functools.cache
def decoded(folder: Path, split: str = "train") -> dict[str, Any]:
    """Return the pixels of a split by key, in the order of the shards, read by TF and Pillow."""
    features = dict.fromkeys(("image", "image/filename"), tf.io.FixedLenFeature((), tf.string))
    found = {}
    for record in tf.data.TFRecordDataset([str(shard) for shard in shards(folder, split)]):
        example = tf.io.parse_single_example(record, features)
        data = example["image"].numpy()
        if len(data) == HEIGHT * WIDTH * 3:
            pixels = np.frombuffer(data, np.uint8).reshape(HEIGHT, WIDTH, 3)
        else:
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        found[example["image/filename"].numpy().decode()] = pixels
    return found


def images(element: Any) -> Any:
    """Return the images of an element."""
    if isinstance(element, dict):
        return element["image"]
    return element[0] if isinstance(element, tuple) else element


# Elements


@pytest.mark.parametrize(
    ("form", "options", "shape"),
    [  # one size or several; batches of raw images are decoded in another way
        ("own sizes", {}, (None, None, 3)),
        thorough("png", {"batch_size": 10}, (None, HEIGHT, WIDTH, 3)),
        ("raw", {"batch_size": 10, "drop_remainder": True}, (10, HEIGHT, WIDTH, 3)),
    ],
)
def test_images_are_uint8_and_labels_int64(
    sets: Sets, form: str, options: dict[str, Any], shape: tuple[int | None, ...]
) -> None:
    """A label is an index into the names of classes, or −1."""
    names = (sets[form] / "label.labels.txt").read_text().split()
    pixels = {**decoded(sets[form], "test"), **decoded(sets[form])}
    dataset = reader.load(sets[form], "test+train", shuffle=False, **options)
    assert dataset.element_spec == (
        tf.TensorSpec(shape, tf.uint8),
        tf.TensorSpec(shape[:-3], tf.int64),
    )
    found = list(dataset.as_numpy_iterator())
    for batch, labels in found:
        assert (batch.dtype, labels.dtype) == (np.uint8, np.int64)
        assert tf.TensorShape(shape).is_compatible_with(batch.shape)
        assert tf.TensorShape(shape[:-3]).is_compatible_with(labels.shape)
    every = [
        (image, label)
        for batch, labels in found
        for image, label in (zip(batch, labels, strict=True) if options else [(batch, labels)])
    ]
    is_cut = "drop_remainder" in options
    assert len(every) == (50 if is_cut else NUM_TEST + NUM_TRAIN)
    for (image, label), (key, expected) in zip(every, pixels.items(), strict=not is_cut):
        assert np.array_equal(image, expected), key
        if key.startswith("test/"):
            assert label == -1
        else:
            assert f"train/{names[label]}." in key


@pytest.mark.parametrize(
    ("form", "batch_size"),
    [("raw", 4), *((form, None) for form in FORMS), ("png", 4)],
)
def test_unsupervised_yields_every_feature_of_the_records(
    sets: Sets, form: str, batch_size: int | None
) -> None:
    """Records come in the order of the items. Pixels of raw and PNG datasets are equal."""
    schema = json.loads((sets[form] / "schema.json").read_text())
    dataset = reader.load(sets[form], shuffle=False, batch_size=batch_size, as_supervised=False)
    expected = decoded(sets[form])
    assert list(expected) == stored(sets[form])
    assert len(expected) == NUM_TRAIN
    if form == "raw":
        assert all(np.array_equal(expected[k], v) for k, v in decoded(sets["png"]).items())
    found = one_by_one(dataset, batched=batch_size is not None)
    for one, (key, pixels) in zip(found, expected.items(), strict=True):
        assert set(one) == set(schema["features"])
        assert one["image/filename"].decode() == key
        assert np.array_equal(one["image"], pixels), key
        assert (one["image/height"], one["image/width"]) == pixels.shape[:2]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("png", {"batch_size": 4, "as_supervised": False}),
        ("raw", {"batch_size": 4}),
        ("unlabelled", {}),
    ],
)
def test_float32_is_0_to_1(sets: Sets, form: str, options: dict[str, Any]) -> None:
    dataset = reader.load(sets[form], "validation", dtype="float32", shuffle=False, **options)
    assert form != "unlabelled" or isinstance(dataset.element_spec, tf.TensorSpec)
    found = one_by_one(dataset, batched="batch_size" in options)
    for one, expected in zip(found, decoded(sets[form], "validation").values(), strict=True):
        assert images(one).dtype == np.float32
        np.testing.assert_allclose(images(one), expected / 255, rtol=0, atol=1e-7)
        assert images(one).max() <= 1


# Other targets than classes

TAGS = ("indoor", "indoor|wet", "big|indoor|wet")
ROWS = {f"train/{i}.jpg": (TAGS[i % 3], i / 8, f"café {i}") for i in range(12)}


@pytest.fixture(scope="module", name="table")
def _table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source with a table of tags, weights and captions of its train images."""
    lines = [f"{key},{tags},{weight},{text}" for key, (tags, weight, text) in ROWS.items()]
    files = {key: jpeg(seed=i) for i, key in enumerate([*ROWS, "test/1.jpg", "test/2.jpg"])}
    table = "\n".join(["id,tags,weight,caption", *lines]).encode()
    root = tmp_path_factory.mktemp("table")
    return write(root / "pets.zip", zip_bytes({**files, "train.csv": table}))


@pytest.mark.parametrize("form", ["png", "raw"])
@pytest.mark.parametrize(
    ("target", "column", "spec", "nothing"),
    [
        ("multilabel", "tags", tf.TensorSpec((None, 3), tf.float32), [0, 0, 0]),
        ("regression", "weight", tf.TensorSpec((None,), tf.float32), np.nan),
        ("text", "caption", tf.TensorSpec((None,), tf.string), b""),
    ],
)
def test_targets_come_from_the_table(
    table: Path, tmp_path: Path, form: str, target: str, column: str, spec: Any, nothing: Any
) -> None:
    """Test images have no row in the table, so their target is missing."""

    def wanted(key: str) -> Any:
        if key not in ROWS:
            return nothing
        tags, weight, caption = ROWS[key]
        several = [float(name in tags.split("|")) for name in ("big", "indoor", "wet")]
        return {"tags": several, "weight": weight, "caption": caption.encode()}[column]

    rule = f"csv:train.csv:id:{column}"
    keys_: dict[str, Any] = {
        "size": "16x12",
        "format": form,
        "columns": "weight,caption",
        "separator": "|",
    }
    folder = build(table, tmp_path / "out", labels=rule, target=target, **keys_).path
    dataset = reader.load(folder, "train+test", batch_size=5, shuffle=False)
    assert dataset.element_spec[1] == spec
    found = [one for _, batch in dataset.as_numpy_iterator() for one in batch]
    every = [*stored(folder), *stored(folder, "test")]
    assert len(every) == len(ROWS) + 2
    np.testing.assert_array_equal(found, [wanted(key) for key in every])
    if form == "raw":  # a single record is parsed in another way than a batch
        single = reader.load(folder, "train+test", shuffle=False).as_numpy_iterator()
        np.testing.assert_array_equal([one for _, one in single], found)
    if target != "multilabel":
        return  # the columns are the same
    for features in reader.load(folder, "train[:6]", as_supervised=False).as_numpy_iterator():
        _, weight, caption = ROWS[features["image/filename"].decode()]
        assert (features["weight"], features["caption"].decode()) == (weight, caption)


# Number and order


@pytest.mark.parametrize(
    "case", tomllib.loads((DATA / "epochs.toml").read_text())["epochs"], ids=str
)
def test_an_epoch_has_each_record_once_and_the_elements_of_its_cardinality(
    sets: Sets, case: dict[str, Any]
) -> None:
    """No record comes again before all have come."""
    form, split, cardinality, calls, options = (
        case["form"], case["split"], case["elements"], case.get("calls"),
        {name: case[name] for name in case.keys() - {"form", "split", "elements", "calls"}},
    )  # fmt: skip
    config = ReadConfig(
        num_parallel_calls_for_interleave_files=calls, num_parallel_calls_for_decode=calls
    )
    dataset = reader.load(sets[form], split, as_supervised=False, read_config=config, **options)
    assert dataset.cardinality() == cardinality
    every = selection(sets[form], split)
    size = options.get("batch_size", 1)
    if cardinality == INFINITE:
        dataset = dataset.take(2 * len(every) // size)
    batches = [np.atleast_1d(one["image/filename"]) for one in dataset.as_numpy_iterator()]
    assert cardinality == INFINITE or len(batches) == cardinality
    found = [key.decode() for batch in batches for key in batch]
    if cardinality != INFINITE:
        num_epochs = options.get("repeat", 1)
        left_out = len(every) % size if "drop_remainder" in options else 0
        assert len(found) == num_epochs * len(every) - left_out
    for epoch in epochs_of(found, len(every)):
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(every)
    is_shuffled = options.get("shuffle", "train" in split) is not False
    assert (found == every * (len(found) // len(every))) == (not is_shuffled)


def selection(folder: Path, split: str) -> list[str]:
    """Return the keys of a split expression in the order of items.parquet."""
    train, validation = stored(folder, "train"), stored(folder, "validation")
    return {
        "train": train,
        "validation": validation,
        "test": stored(folder, "test"),
        "train[:90%]": train[: round(0.9 * NUM_TRAIN)],
        "train[3:7]": train[3:7],
        "train[5:]+validation": train[5:] + validation,
        "validation+train": validation + train,
    }[split]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        thorough("keep", {}),
        thorough("png", {"cache": "memory"}),
        ("png", {"split": "validation", "shuffle": True}),
    ],
)
def test_a_seed_fixes_the_order_of_every_epoch(
    sets: Sets, form: str, options: dict[str, Any]
) -> None:
    """In one loop after the other, and with `repeat`."""
    options = {**options, "as_supervised": False}
    one = reader.load(sets[form], seed=7, **options)
    epochs = [keys(one) for _ in range(2)]
    repeated = keys(reader.load(sets[form], seed=7, repeat=3, **options))
    first, second, third = epochs_of(repeated, len(epochs[0]))
    assert epochs == [first, second]
    assert first != second != third != first
    if "shuffle" in options:  # test_one_order checks the order
        other = reader.load(sets[form], seed=8, **options)
        assert keys(other) not in (first, second, third)


def test_without_a_seed_every_load_has_its_own_order(sets: Sets) -> None:
    assert order(sets["png"]) != order(sets["png"])


@pytest.mark.parametrize(
    "options",
    [{}, thorough({"seed": 7, "cache": "memory", "repeat": 2})],
)
def test_reshuffling_can_be_turned_off(sets: Sets, options: dict[str, Any]) -> None:
    config = ReadConfig(shuffle_reshuffle_each_iteration=False)
    dataset = reader.load(sets["keep"], as_supervised=False, read_config=config, **options)
    found = keys(dataset) + keys(dataset)
    assert found[:NUM_TRAIN] != stored(sets["keep"])
    assert found == found[:NUM_TRAIN] * (len(found) // NUM_TRAIN)


# Cache


@pytest.mark.parametrize(
    ("form", "cache", "options"),
    [  # each kind of order
        ("raw", "memory", {"batch_size": 10, "shuffle": False}),
        thorough("png", "memory", {}),
        thorough("raw", "file", {"batch_size": 10}),
        ("png", "file", {}),
    ],
)
def test_the_second_epoch_comes_from_the_cache(
    sets: Sets, tmp_path: Path, form: str, cache: str, options: dict[str, Any]
) -> None:
    """The folder of the cache is created."""
    copy = shutil.copytree(sets[form], tmp_path / "copy")
    place = tmp_path / "new" / "folder" / "cache" if cache == "file" else "memory"
    dataset = reader.load(copy, "train[:15]", cache=place, as_supervised=False, **options)
    every = stored(sets[form])[:15]
    assert dataset.cardinality() == -(-15 // options.get("batch_size", 1))
    first = keys(dataset)
    assert sorted(first) == sorted(every)
    assert (first == every) == (options.get("shuffle") is False)
    for shard in shards(copy):
        os.truncate(shard, 0)  # one that is removed may still be open
    pixels = decoded(sets[form])
    second = []
    for one in one_by_one(dataset, batched="batch_size" in options):
        second.append(one["image/filename"].decode())
        assert np.array_equal(one["image"], pixels[second[-1]])
    assert sorted(second) == sorted(every)
    assert (first == second) == (options.get("shuffle") is False)


# Augmentation


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("raw", {"batch_size": 4, "cache": "memory"}),
        ("png", {}),
        thorough("png", {"batch_size": 4, "as_supervised": False}),
        thorough("unlabelled", {"batch_size": 4}),
    ],
)
def test_augment_changes_images(sets: Sets, form: str, options: dict[str, Any]) -> None:
    dataset = reader.load(sets[form], "validation", augment=lambda images: 255 - images, **options)
    shape = (None,) * len(options.keys() & {"batch_size"}) + (HEIGHT, WIDTH, 3)
    assert images(dataset.element_spec) == tf.TensorSpec(shape, tf.uint8)
    found = one_by_one(dataset, batched="batch_size" in options)
    for one, expected in zip(found, decoded(sets[form], "validation").values(), strict=True):
        assert np.array_equal(images(one), 255 - expected)
        assert isinstance(one, dict) == ("as_supervised" in options)
        assert isinstance(one, tuple) == (form != "unlabelled" and not isinstance(one, dict))


def test_augment_is_called_with_a_batch_after_dtype(sets: Sets) -> None:
    seen = []

    def look(images: Any) -> Any:
        seen.append((images.dtype, images.shape.rank))
        return images

    reader.load(sets["png"], batch_size=4, dtype="float32", augment=look)
    assert set(seen) == {(tf.float32, 4)}


@pytest.mark.parametrize(("cache", "repeat"), [(False, 4), thorough("memory", 8)])
def test_a_keras_layer_augments_as_in_training_and_anew_each_epoch(
    sets: Sets, cache: Any, repeat: int
) -> None:
    """In one loop after the other, and with `repeat`."""
    import keras

    flip = keras.layers.RandomFlip("horizontal")
    dataset = reader.load(
        sets["png"], "validation", batch_size=4, augment=flip, as_supervised=False, cache=cache,
        repeat=repeat,
    )  # fmt: skip
    straight = decoded(sets["png"], "validation")
    seen: dict[str, set[bool]] = {key: set() for key in straight}
    for _ in range(8 // repeat):
        for one in dataset.unbatch().as_numpy_iterator():
            key = one["image/filename"].decode()
            flipped = not np.array_equal(one["image"], straight[key])
            assert not flipped or np.array_equal(one["image"], straight[key][:, ::-1])
            seen[key].add(flipped)
    assert sum(flips == {True, False} for flips in seen.values()) > NUM_VALIDATION / 2


def test_a_callable_with_variables_needs_no_training_argument(sets: Sets) -> None:
    class Negative(tf.Module):  # type: ignore[misc]
        def __call__(self, images: Any) -> Any:
            return 255 - images

    dataset = reader.load(sets["png"], "validation", batch_size=4, augment=Negative())
    assert sum(1 for _ in dataset) == 3


# Images of different sizes


@pytest.mark.parametrize("form", ["keep", "own sizes"])
def test_images_of_different_sizes_are_not_batched(sets: Sets, form: str) -> None:
    said = refused(lambda: reader.load(sets[form], batch_size=4))
    assert "pets" in said
    assert "ReadConfig(image_size=(height, width))" in said


@pytest.mark.parametrize("form", ["keep", thorough("raw")])
def test_image_size_resizes(sets: Sets, form: str) -> None:
    options: dict[str, Any] = {"shuffle": False, "read_config": ReadConfig(image_size=(9, 11))}
    batched = reader.load(sets[form], batch_size=4, **options)
    assert batched.element_spec[0] == tf.TensorSpec((None, 9, 11, 3), tf.uint8)
    found = [image for batch, _ in batched.as_numpy_iterator() for image in batch]
    for one, pixels in zip(found, decoded(sets[form]).values(), strict=True):
        expected = Image.fromarray(pixels).resize((11, 9), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(one, np.asarray(expected), rtol=0, atol=1)
    single = reader.load(sets[form], "train[:20]", **options)
    for one, (other, _) in zip(found, single.as_numpy_iterator(), strict=False):
        assert np.array_equal(one, other)


# Split expressions

SPLITS = tomllib.loads((DATA / "splits.toml").read_text())


def test_split_expressions_select_the_records_that_tfds_selects(sets: Sets) -> None:
    """`Dataset` reads the same records as `load`. TFDS lists the files and records to read."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(sets["png"]))
    keys_of: dict[str, list[str]] = {}
    for row in written(sets["png"]):
        keys_of.setdefault(row["shard"], []).append(row["key"])
    for split in SPLITS["expressions"]:
        expected = [
            key
            for one in builder.info.splits[split.replace(" ", "")].file_instructions
            for key in keys_of[Path(one.filename).name][one.skip : one.skip + one.take]
        ]
        dataset = reader.Dataset(sets["png"], split, decode=False, as_supervised=False)
        assert [one["image/filename"] for one in dataset] == expected, split
        if "+train" in split:  # `load` too, in the order of TFDS
            config = tfds.ReadConfig(interleave_cycle_length=1)
            assert keys(builder.as_dataset(split=split, read_config=config)) == expected
            assert order(sets["png"], split, shuffle=False) == expected
            assert sorted(order(sets["raw"], split, shuffle=True, batch_size=4)) == sorted(expected)


@pytest.mark.parametrize(("split", "said"), SPLITS["refused"].items())
def test_a_split_that_cannot_be_read_is_refused(sets: Sets, split: str, said: str) -> None:
    assert said in refused(lambda: reader.load(sets["png"], split))


def selected(number: int, text: str) -> list[int]:
    """Return the records that an expression selects from a split of `number` records."""
    splits = {"train": Split.model_construct(num_records=number)}
    manifest = Manifest.model_construct(name="made", splits=splits)
    try:
        ranges = split_ranges(manifest, text)
    except DatasetError as error:
        if "selects no record" not in str(error):
            raise
        return []
    assert all(ranges)
    return list(itertools.chain.from_iterable(ranges))


POSITIONS = st.sampled_from(["", "-0", *map(str, range(-40, 41))])


@given(st.integers(0, 35), POSITIONS, POSITIONS)
def test_a_slice_means_what_it_means_for_a_python_list(number: int, start: str, stop: str) -> None:
    wanted = list(range(number))[int(start) if start else None : int(stop) if stop else None]
    assert selected(number, f"train[{start}:{stop}]") == wanted


@given(st.integers(0, 35), st.integers(-100, 100))
def test_a_percentage_divides_a_split_at_the_nearest_record(number: int, percent: int) -> None:
    before = selected(number, f"train[:{percent}%]")
    assert before + selected(number, f"train[{percent}%:]") == selected(number, "train")
    share = percent if percent >= 0 else 100 + percent
    assert abs(len(before) - number * share / 100) <= 0.5


# Damaged folders


def index(copy: Path) -> Path:
    return copy / "index" / f"{shards(copy)[2].name}.idx"


def without_a_line(copy: Path) -> None:
    lines = index(copy).read_text().splitlines(keepends=True)
    index(copy).write_text("".join(lines[:-1]))


def cut_between_two_records(copy: Path) -> None:
    shard = shards(copy)[2]
    os.truncate(shard, int(index(copy).read_text().splitlines()[-1].split()[0]))
    assert list(tf.data.TFRecordDataset(str(shard)))  # the checksums find nothing


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda copy: (copy / "manifest.json").unlink(), "shardprep build"),
        (lambda copy: (copy / "schema.json").unlink(), "schema.json"),
        (lambda copy: os.truncate(copy / "manifest.json", 200), "manifest.json: cannot be read"),
        (lambda copy: index(copy).unlink(), "00002-of-00005.idx: is missing; copy it again"),
        (without_a_line, "has {} records, the manifest says {}; copy it again"),
        (
            lambda copy: index(copy).write_text(index(copy).read_text() + "7\n"),
            "00002-of-00005.idx: is damaged: its records have gaps or overlap",
        ),
    ],
)
def test_a_folder_with_a_damaged_document_is_refused(
    copy: Path, damage: Callable[[Path], None], said: str
) -> None:
    number = len(index(copy).read_text().splitlines())
    damage(copy)
    assert said.format(number - 1, number) in refused(lambda: reader.load(copy))


@pytest.mark.parametrize(
    "damage",
    [
        lambda copy: shards(copy)[2].unlink(),
        cut_between_two_records,
        lambda copy: shards(copy)[2].write_bytes(shards(copy)[2].read_bytes() + b"\0"),
    ],
)
def test_a_shard_that_is_missing_or_has_another_size_is_refused(
    copy: Path, damage: Callable[[Path], None]
) -> None:
    """Other splits, whose shards are whole, can be read."""
    shard = shards(copy)[2]
    damage(copy)
    assert str(shard) in refused(lambda: reader.load(copy))
    assert len(order(copy, "validation")) == NUM_VALIDATION


@pytest.mark.parametrize("at", [3, 500])
def test_a_flipped_byte_is_found_when_it_is_read(copy: Path, at: int) -> None:
    shard = shards(copy)[2]
    flip(shard, at)
    dataset = reader.load(copy, batch_size=4)
    with pytest.raises(tf.errors.UnknownError, match=rf"{shard}, record \d+: offset [\d,]+: "):
        list(dataset)


# ReadConfig


def test_the_cardinality_need_not_be_asserted(sets: Sets) -> None:
    dataset = reader.load(sets["png"], read_config=ReadConfig(assert_cardinality=False))
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert sum(1 for _ in dataset) == NUM_TRAIN


def test_options_are_applied_last(sets: Sets) -> None:
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 3
    options.threading.private_threadpool_size = 2
    found = reader.load(sets["png"], read_config=ReadConfig(options=options)).options()
    assert found.threading.max_intra_op_parallelism == 3
    assert found.threading.private_threadpool_size == 2


# Keras


def test_fit_gives_no_warning_about_an_order_that_the_reader_has_made(sets: Sets) -> None:
    """In a separate process: pytest resets the filters of warnings."""
    program = """
        import sys
        import keras
        from shardprep import reader
        train = reader.load(sys.argv[1], batch_size=16)
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
        model.fit(train, verbose=0)
    """
    done = Program(program, sets["png"]).wait()
    assert done.returncode == 0, done.stderr
    assert "shuffle=True" not in done.stderr


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
def test_a_small_network_learns_the_sample(shapes: Path, sets: Sets) -> None:
    """From the archive to a trained model: the labels say what the images show.

    The model also trains on an endless dataset, evaluates, and predicts unlabelled images.
    """
    import keras
    from keras import layers

    folder = shapes / "tfrecords" / "shapes"
    keras.utils.set_random_seed(0)
    options: dict[str, Any] = {"cache": "memory", "read_config": ReadConfig(image_size=(32, 32))}
    # Batches of one size: Keras traces the model for each size, which takes longer than an epoch.
    full: dict[str, Any] = {"batch_size": 16, "drop_remainder": True, **options}
    train = reader.load(folder, "train[:85%]", seed=0, **full)
    validation = reader.load(folder, "train[85%:]", batch_size=64, shuffle=False, **options)
    model = keras.Sequential([layers.Rescaling(1 / 127.5, -1), layers.RandomFlip("horizontal")])
    for filters in (8, 16, 32):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalMaxPooling2D())
    model.add(layers.Dropout(0.2))
    model.add(layers.Dense(3, activation="softmax"))
    adam = keras.optimizers.Adam(4e-3)
    loss = "sparse_categorical_crossentropy"
    model.compile(adam, loss, metrics=["accuracy"], jit_compile=False)
    history = model.fit(train, epochs=5, validation_data=validation, verbose=0).history
    assert history["val_accuracy"][-1] > 0.9, history["val_accuracy"]
    endless = reader.load(folder, repeat=True, **full)
    model.fit(endless, epochs=1, steps_per_epoch=7, verbose=0)
    assert 0 <= model.evaluate(validation, return_dict=True, verbose=0)["accuracy"] <= 1
    for form in ("png", "unlabelled"):
        test = reader.load(sets[form], "test", batch_size=4)
        assert model.predict(test, verbose=0).shape == (NUM_TEST, 3)
