"""The tf.data reader, against plain TensorFlow, Pillow, Python's slices and TFDS."""

from __future__ import annotations

import functools
import io
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep import reader
from shardprep.dataset.manifest import Manifest, Shard, Split
from shardprep.errors import DatasetError
from shardprep.reader import ReadConfig
from shardprep.reader.records.records import Places
from shardprep.reader.selection.split_argument import split_ranges
from tests.reader.datasets import pets, refused, stored, written
from tests.support.builders import animals, build, jpeg, png, write, zip_bytes
from tests.support.examples import thorough

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Return small images, a few large ones among them, and one that is none."""
    return {
        **animals(36),
        **{f"train/dog.{i}.png": png(seed=i, height=400, width=600) for i in range(90, 101)},
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
    """Return a dataset folder to be damaged, `<out>/pets/1.0.0` with nothing else in `<out>`."""
    return shutil.copytree(sets["png"], tmp_path / "out" / "pets" / "1.0.0")


def keys(dataset: Any) -> list[str]:
    """Return the keys of one epoch of a dataset of feature dicts, single or in batches."""
    found = (np.atleast_1d(one["image/filename"]) for one in dataset.as_numpy_iterator())
    return [key.decode() for batch in found for key in batch]


def order(folder: Path, split: str = "train", **options: Any) -> list[str]:
    return keys(reader.load(folder, split, as_supervised=False, **options))


def epochs_of(found: list[str], size: int) -> list[list[str]]:
    """Return keys in runs of so many; the last run may be shorter."""
    return [found[at : at + size] for at in range(0, len(found), size)]


def one_by_one(dataset: Any, *, batched: bool) -> Any:
    """Return an iterator of what a dataset yields, batches taken apart."""
    return (dataset.unbatch() if batched else dataset).as_numpy_iterator()


def shards(folder: Path, split: str = "train") -> list[Path]:
    return sorted(folder.glob(f"*-{split}.tfrecord*"))


@functools.cache
def decoded(folder: Path, split: str = "train") -> dict[str, Any]:
    """Return the pixels of a split by key, in the order of the shards, as others read them."""
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
    """Return the images of whatever a dataset yields."""
    if isinstance(element, dict):
        return element["image"]
    return element[0] if isinstance(element, tuple) else element


# What comes out


@pytest.mark.parametrize(
    ("form", "options", "shape"),
    [  # of one size or of several; in batches, which raw images come in by another way
        thorough("jpeg", {}, (HEIGHT, WIDTH, 3)),
        ("own sizes", {}, (None, None, 3)),
        thorough("png", {"batch_size": 10}, (None, HEIGHT, WIDTH, 3)),
        thorough("raw", {}, (HEIGHT, WIDTH, 3)),
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
    """In the order of the shards, which is that of the items."""
    schema = json.loads((sets[form] / "schema.json").read_text())
    dataset = reader.load(sets[form], shuffle=False, batch_size=batch_size, as_supervised=False)
    expected = decoded(sets[form])
    assert list(expected) == stored(sets[form])
    assert len(expected) == NUM_TRAIN
    found = one_by_one(dataset, batched=batch_size is not None)
    for one, (key, pixels) in zip(found, expected.items(), strict=True):
        assert set(one) == set(schema["features"])
        assert one["image/filename"].decode() == key
        assert np.array_equal(one["image"], pixels), key
        assert (one["image/height"], one["image/width"]) == pixels.shape[:2]


def test_raw_equals_png_pixel_for_pixel(sets: Sets) -> None:
    """Another test compares what `load` gives with these pixels."""
    raw, same = decoded(sets["raw"]), decoded(sets["png"])
    assert raw.keys() == same.keys()
    assert all(np.array_equal(raw[key], same[key]) for key in raw)


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
    """Return a source whose train images have tags, weight and caption, its test images nothing."""
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
def test_targets_are_those_of_the_table(
    table: Path, tmp_path: Path, form: str, target: str, column: str, spec: Any, nothing: Any
) -> None:
    """Those of the test images, which stand in no row, are nothing."""

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
    if form == "raw":  # a record of it is parsed in another way where it comes alone
        single = reader.load(folder, "train+test", shuffle=False).as_numpy_iterator()
        np.testing.assert_array_equal([one for _, one in single], found)
    if target != "multilabel":
        return  # the columns are the same
    for features in reader.load(folder, "train[:6]", as_supervised=False).as_numpy_iterator():
        _, weight, caption = ROWS[features["image/filename"].decode()]
        assert (features["weight"], features["caption"].decode()) == (weight, caption)


# How many, and in which order


@pytest.mark.parametrize(
    ("form", "split", "options", "cardinality"),
    [  # by default what begins with train is shuffled
        ("png", "train", {}, NUM_TRAIN),
        ("raw", "train[:90%]", {"batch_size": 10}, 5),
        ("png", "train", {"batch_size": 10, "drop_remainder": True}, 4),
        ("raw", "train", {"repeat": True, "batch_size": 10}, INFINITE),
        ("png", "train", {"repeat": 3, "batch_size": 10}, 15),
        # Large images among small ones: a map that lets go of order would mix the epochs.
        ("keep", "train", {"repeat": 6}, 6 * NUM_TRAIN),
        ("png", "train[3:7]", {"shuffle": False}, 4),
        ("png", "train[5:]+validation", {"batch_size": 4}, 13),
        ("raw", "validation+train", {}, NUM_VALIDATION + NUM_TRAIN),
        ("png", "test", {"batch_size": 4}, 2),
        ("png", "train", {"shuffle": 1, "seed": 7, "repeat": 2}, 2 * NUM_TRAIN),
        ("raw", "train", {"shuffle": 5, "batch_size": 10, "repeat": 2}, 10),
        # More calls than shards.
        (
            "png",
            "validation",
            {
                "shuffle": True,
                "read_config": ReadConfig(
                    num_parallel_calls_for_interleave_files=4, num_parallel_calls_for_decode=4
                ),
            },
            NUM_VALIDATION,
        ),
    ],
)
def test_an_epoch_has_the_elements_it_is_said_to_have_each_record_once(
    sets: Sets, form: str, split: str, options: dict[str, Any], cardinality: int
) -> None:
    """No record comes again before all have come."""
    dataset = reader.load(sets[form], split, as_supervised=False, **options)
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
    is_shuffled = options.get("shuffle", split.startswith("train")) is not False
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
        ("png", {"split": "validation", "shuffle": 4}),
    ],
)
def test_a_seed_fixes_the_order_of_every_epoch(
    sets: Sets, form: str, options: dict[str, Any]
) -> None:
    """Where they are iterated one after the other, and where they repeat."""
    options = {**options, "as_supervised": False}
    one = reader.load(sets[form], seed=7, **options)
    epochs = [keys(one) for _ in range(2)]
    repeated = keys(reader.load(sets[form], seed=7, repeat=3, **options))
    first, second, third = epochs_of(repeated, len(epochs[0]))
    assert epochs == [first, second]
    assert first != second != third != first
    if "shuffle" in options:  # of no window, test_one_order says which order is that of a seed
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


@pytest.mark.parametrize(
    "window",
    [3, thorough(1), thorough(9)],
)
def test_a_number_shuffles_in_a_window(sets: Sets, window: int) -> None:
    unshuffled = stored(sets["png"], "validation")  # one shard
    found = order(sets["png"], "validation", shuffle=window, seed=7, repeat=6)
    assert len(found) == 6 * NUM_VALIDATION
    early = {
        unshuffled.index(key) - place
        for epoch in epochs_of(found, NUM_VALIDATION)
        for place, key in enumerate(epoch)
    }
    assert max(early) < window
    assert (max(early) > 0) == (window > 1)


@pytest.mark.parametrize(
    ("cycle_length", "block_length"),
    [
        (2, 3),
        thorough(1, 2),
        thorough(99, 2),
    ],
)
def test_shards_are_read_side_by_side(sets: Sets, cycle_length: int, block_length: int) -> None:
    """All 5 where more are asked for."""
    config = ReadConfig(
        interleave_cycle_length=cycle_length,
        interleave_block_length=block_length,
    )
    shard_of = {row["key"]: row["shard"] for row in written(sets["png"])}
    found = [shard_of[key] for key in order(sets["png"], shuffle=1, seed=7, read_config=config)]
    side_by_side = min(cycle_length, 5)
    blocks = [found[i * block_length] for i in range(side_by_side)]
    assert len(set(blocks)) == side_by_side
    expected = [shard for shard in blocks for _ in range(block_length)]
    assert found[: len(expected) * 2] == expected * 2


# Cache


@pytest.mark.parametrize(
    ("form", "cache", "options"),
    [  # each form in each cache, each kind of order
        ("raw", "memory", {"batch_size": 10, "shuffle": False}),
        thorough("png", "file", {"batch_size": 10, "shuffle": 5}),
        thorough("png", "memory", {"shuffle": 3}),
        thorough("raw", "file", {"batch_size": 10}),
        ("png", "file", {}),
    ],
)
def test_the_second_epoch_comes_from_the_cache(
    sets: Sets, tmp_path: Path, form: str, cache: str, options: dict[str, Any]
) -> None:
    """Its folder need not be there before."""
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


@pytest.mark.thorough
def test_a_cache_file_serves_only_what_it_was_made_of(sets: Sets, tmp_path: Path) -> None:
    """`tf.data` itself takes whatever it finds under the name."""
    cache = tmp_path / "cache"
    order(sets["png"], "train[:8]", batch_size=5, cache=cache)
    small: dict[str, Any] = {"read_config": ReadConfig(image_size=(6, 8))}
    resized = reader.load(sets["png"], "train[:8]", as_supervised=False, shuffle=False, **small)
    resized = {one["image/filename"].decode(): one["image"] for one in resized.as_numpy_iterator()}
    cases: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("png", "validation", {}, decoded(sets["png"], "validation")),
        ("png", "train[3:8]", {}, dict(list(decoded(sets["png"]).items())[3:8])),
        ("jpeg", "train[:8]", {}, dict(list(decoded(sets["jpeg"]).items())[:8])),
        ("unlabelled", "train[:8]", {}, dict(list(decoded(sets["unlabelled"]).items())[:8])),
        ("png", "train[:8]", small, resized),
        ("raw", "train[:8]", {"batch_size": 5}, dict(list(decoded(sets["raw"]).items())[:8])),
        ("raw", "train[:8]", {}, dict(list(decoded(sets["raw"]).items())[:8])),  # as it was made
    ]
    for form, split, options, expected in cases:
        dataset = reader.load(
            sets[form], split, cache=cache, as_supervised=False, shuffle=False, **options
        )
        found = one_by_one(dataset, batched="batch_size" in options)
        for one, (key, pixels) in zip(found, expected.items(), strict=True):
            assert one["image/filename"].decode() == key, (form, split)
            assert np.array_equal(one["image"], pixels), (form, split)


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
def test_augment_is_given_images_and_gives_images(
    sets: Sets, form: str, options: dict[str, Any]
) -> None:
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
    """Where epochs are iterated one after the other, and where they repeat."""
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


def test_a_callable_with_variables_need_not_know_of_training(sets: Sets) -> None:
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


@pytest.mark.parametrize(
    "form",
    [
        "keep",
        thorough("own sizes"),
        thorough("raw"),
    ],
)
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

EXPRESSIONS = (
    "train[:90%]",
    "train[33%:66%]",
    "train[-25%:]",
    "train[3:7]",
    "train[-2:]",
    "train[:-40]",
    "validation+train",
    "train[:50%]+validation",
    "train[:3]+train[:3]",
    " train[:3] + test ",
)


def test_a_split_expression_means_what_it_means_to_tfds(sets: Sets) -> None:
    """To `Dataset`, which reads the same records as `load`; TFDS says what it would read."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(sets["png"]))
    keys_of: dict[str, list[str]] = {}
    for row in written(sets["png"]):
        keys_of.setdefault(row["shard"], []).append(row["key"])
    for split in EXPRESSIONS:
        expected = [
            key
            for one in builder.info.splits[split.replace(" ", "")].file_instructions
            for key in keys_of[Path(one.filename).name][one.skip : one.skip + one.take]
        ]
        dataset = reader.Dataset(sets["png"], split, decode=False, as_supervised=False)
        assert [one["image/filename"] for one in dataset] == expected, split


@pytest.mark.parametrize(
    "split",
    [
        "train[:3]+train[:3]",
        thorough(" train[-25%:] + validation "),
    ],
)
def test_load_reads_what_tfds_reads(sets: Sets, split: str) -> None:
    import tensorflow_datasets as tfds

    config = tfds.ReadConfig(interleave_cycle_length=1)
    builder = tfds.builder_from_directory(str(sets["png"]))
    expected = keys(builder.as_dataset(split=split.replace(" ", ""), read_config=config))
    assert order(sets["png"], split, shuffle=False) == expected
    assert sorted(order(sets["raw"], split, shuffle=True, batch_size=4)) == sorted(expected)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        *(
            (malformed, 'is not a split; write "train", "train[:90%]" or "a+b"')
            for malformed in (
                " ", "train+", "train[", "train[5]", "train[::2]", "train[a:b]", "train[:90 %]",
                "train,test", "train[:5][:2]",
            )
        ),
        ("nosuch", "has no split 'nosuch'; it has train, validation, test"),
        ("train+Test", "has no split 'Test'; it has train, validation, test"),
        ("train[7:3]", "selects no record"),
        ("train[:0]", "selects no record"),
        ("train[47:]", "selects no record"),
        ("validation[:1%]+test[:1%]", "selects no record"),
    ],
)  # fmt: skip
def test_a_split_that_cannot_be_read_is_refused(sets: Sets, split: str, said: str) -> None:
    assert said in refused(lambda: reader.load(sets["png"], split))


def selected(sizes: list[int], text: str) -> list[tuple[str, int]]:
    """Return shard and number of the records that an expression selects from shards of a split."""
    shards = [
        Shard(name=f"shard{i}", num_records=n, num_bytes=0, sha256="0" * 64)
        for i, n in enumerate(sizes)
    ]
    split = Split(
        num_records=sum(sizes), num_bytes=0, label_counts={}, num_unlabelled=0, shards=(*shards,)
    )
    try:
        manifest = Manifest.model_construct(name="made", splits={"train": split})
        ranges = split_ranges(manifest, text)
    except DatasetError as error:
        if "selects no record" not in str(error):
            raise
        return []
    assert all(ranges)
    places = Places.of(manifest, np.array([number for one in ranges for number in one]))
    return [
        (places.shards[shard].name, record)
        for shard, record in zip(places.shard, places.record, strict=True)
    ]


SIZES = st.lists(st.integers(0, 7), min_size=1, max_size=5)
POSITIONS = st.sampled_from(["", "-0", *map(str, range(-40, 41))])


@given(SIZES, POSITIONS, POSITIONS)
def test_a_slice_is_that_of_a_python_list(sizes: list[int], start: str, stop: str) -> None:
    everything = [(f"shard{i}", n) for i, size in enumerate(sizes) for n in range(size)]
    wanted = everything[int(start) if start else None : int(stop) if stop else None]
    assert selected(sizes, f"train[{start}:{stop}]") == wanted


@given(SIZES, st.integers(-100, 100))
def test_a_percentage_cuts_a_split_in_two_at_the_nearest_record(
    sizes: list[int], percent: int
) -> None:
    before = selected(sizes, f"train[:{percent}%]")
    assert before + selected(sizes, f"train[{percent}%:]") == selected(sizes, "train")
    share = percent if percent >= 0 else 100 + percent
    assert abs(len(before) - sum(sizes) * share / 100) <= 0.5


# Folders that are not what they should be


def test_the_newest_version_below_a_folder_is_read(sets: Sets, copy: Path) -> None:
    newest = shutil.copytree(sets["unlabelled"], copy.with_name("1.10.0"))
    shutil.copytree(sets["raw"], copy.with_name("1.9.0"))
    for place in (newest, copy.parent, str(copy.parents[1])):
        assert not isinstance(reader.load(place).element_spec, tuple)
    assert isinstance(reader.load(copy).element_spec, tuple)


def unfinished(copy: Path) -> Path:
    (copy / "manifest.json").unlink()
    return copy.rename(copy.with_name("1.0.0.incomplete"))


def two_datasets(copy: Path) -> Path:
    shutil.copytree(copy, copy.parents[1] / "wild" / "1.0.0")
    return copy.parents[1]


def without(name: str) -> Callable[[Path], Path]:
    def remove(copy: Path) -> Path:
        (copy / name).unlink()
        return copy

    return remove


def index(copy: Path) -> Path:
    return copy / "index" / f"{shards(copy)[2].name}.idx"


def without_a_line(copy: Path) -> Path:
    lines = index(copy).read_text().splitlines(keepends=True)
    index(copy).write_text("".join(lines[:-1]))
    return copy


def a_number_more(copy: Path) -> Path:
    with index(copy).open("a") as file:
        file.write("7\n")
    return copy


def half_a_manifest(copy: Path) -> Path:
    os.truncate(copy / "manifest.json", 200)
    return copy


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (unfinished, "run the same `shardprep build` again"),
        (lambda copy: unfinished(copy).parents[1], "run the same `shardprep build` again"),
        (two_datasets, "name one of them"),
        (without("manifest.json"), "shardprep build"),
        (without("schema.json"), "schema.json"),
        (half_a_manifest, "manifest.json: cannot be read"),
        (without("index/pets-train.tfrecord-00002-of-00005.idx"), "idx: is missing; copy it again"),
        (without_a_line, "has 8 records, the manifest says 9; copy it again"),
        (a_number_more, "00002-of-00005.idx: is damaged: its records do not join"),
        (lambda copy: copy / "nowhere", "no such folder; give the folder or address"),
        (lambda copy: copy / "index", "holds no dataset; write one with `shardprep build`"),
    ],
)
def test_a_folder_that_is_no_dataset_is_refused(
    copy: Path, damage: Callable[[Path], Path], said: str
) -> None:
    assert said in refused(lambda: reader.load(damage(copy)))


def cut_between_two_records(shard: Path) -> None:
    index = (shard.parent / "index" / f"{shard.name}.idx").read_text()
    os.truncate(shard, int(index.splitlines()[-1].split()[0]))
    assert list(tf.data.TFRecordDataset(str(shard)))  # the checksums find nothing


def append_a_byte(shard: Path) -> None:
    with shard.open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("damage", [Path.unlink, cut_between_two_records, append_a_byte])
def test_a_shard_that_is_missing_or_of_another_size_is_refused(
    copy: Path, damage: Callable[[Path], None]
) -> None:
    shard = shards(copy)[2]
    damage(shard)
    assert str(shard) in refused(lambda: reader.load(copy))
    assert len(order(copy, "validation")) == NUM_VALIDATION  # its own shards are as they should be


@pytest.mark.parametrize("at", [3, 500])
def test_a_flipped_byte_is_found_when_it_is_read(copy: Path, at: int) -> None:
    shard = shards(copy)[2]
    data = bytearray(shard.read_bytes())
    data[at] ^= 1
    shard.write_bytes(data)
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


# With and without others


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
def test_keras_trains_evaluates_and_predicts(sets: Sets) -> None:
    import keras

    with tf.distribute.MirroredStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((HEIGHT, WIDTH, 3)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Flatten(),
                keras.layers.Dense(2, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    validation = reader.load(sets["raw"], "validation", batch_size=4)
    train = reader.load(sets["raw"], batch_size=10, cache="memory")
    history = model.fit(train, epochs=2, validation_data=validation, verbose=0).history
    assert len(history["val_accuracy"]) == 2
    endless = reader.load(sets["png"], batch_size=10, repeat=True)
    model.fit(endless, epochs=1, steps_per_epoch=7, verbose=0)
    assert 0 <= model.evaluate(validation, return_dict=True, verbose=0)["accuracy"] <= 1
    for form in ("png", "unlabelled"):
        test = reader.load(sets[form], "test", batch_size=4)
        assert model.predict(test, verbose=0).shape == (NUM_TEST, 2)
