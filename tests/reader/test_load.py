"""The tf.data reader, against plain TensorFlow, Pillow, Python's slices and TFDS."""

from __future__ import annotations

import io
import json
import os
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep import reader
from shardprep.dataset.manifest import Manifest, Shard, Split
from shardprep.errors import DatasetError
from shardprep.reader import ReadConfig
from shardprep.reader.splits import select
from tests.support.builders import animals, build, jpeg, png, write, zip_bytes

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
MEMBERS = {
    **animals(36),
    **{f"train/dog.{i}.png": png(seed=i, height=400, width=600) for i in range(90, 101)},
    "train/cat.99.jpg": b"rejected",
    **animals(NUM_VALIDATION, folder="val/"),
    **{f"test/{i}.jpg": jpeg(seed=200 + i) for i in range(NUM_TEST)},
}


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a dataset of each form, all of one source; train has 5 shards, others have 1."""
    root = tmp_path_factory.mktemp("sets")
    source = write(root / "pets.zip", zip_bytes(MEMBERS))
    common: dict[str, Any] = {"labels": "prefix", "shards": 5}
    return {
        form: build(source, root / form, **{**common, **keys}).path for form, keys in FORMS.items()
    }


@pytest.fixture(name="copy")
def _copy(sets: dict[str, Path], tmp_path: Path) -> Path:
    """Return a dataset folder to be damaged, `<out>/pets/1.0.0` with nothing else in `<out>`."""
    return shutil.copytree(sets["png"], tmp_path / "out" / "pets" / "1.0.0")


def keys(dataset: Any) -> list[str]:
    """Return the keys of one epoch of a dataset of feature dicts, single or in batches."""
    found = (np.atleast_1d(one["image/filename"]) for one in dataset.as_numpy_iterator())
    return [key.decode() for batch in found for key in batch]


def order(folder: Path, split: str = "train", **options: Any) -> list[str]:
    return keys(reader.load(folder, split, as_supervised=False, **options))


def stored(folder: Path, split: str = "train") -> list[str]:
    """Return the keys of a split in the order of items.parquet."""
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    return [row["key"] for row in rows if (row["status"], row["split"]) == ("written", split)]


def shards(folder: Path, split: str = "train") -> list[Path]:
    return sorted(folder.glob(f"*-{split}.tfrecord*"))


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


def refused(path: Path, split: str = "train", **options: Any) -> str:
    """Return the line with which `load` refuses; it must say what to do."""
    with pytest.raises(DatasetError) as error:
        reader.load(path, split, **options)
    assert error.value.hint
    assert "\n" not in str(error.value)
    return str(error.value)


# What comes out


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("form", "options", "shape"),
    [
        ("jpeg", {}, (HEIGHT, WIDTH, 3)),
        ("raw", {}, (HEIGHT, WIDTH, 3)),
        ("keep", {}, (None, None, 3)),
        ("own sizes", {}, (None, None, 3)),
        ("png", {"batch_size": 10}, (None, HEIGHT, WIDTH, 3)),
        ("raw", {"batch_size": 10}, (None, HEIGHT, WIDTH, 3)),
        ("png", {"batch_size": 10, "drop_remainder": True}, (10, HEIGHT, WIDTH, 3)),
        ("raw", {"batch_size": 10, "drop_remainder": True}, (10, HEIGHT, WIDTH, 3)),
    ],
)
def test_images_are_uint8_and_labels_int64(
    sets: dict[str, Path], form: str, options: dict[str, Any], shape: tuple[int | None, ...]
) -> None:
    dataset = reader.load(sets[form], **options)
    assert dataset.element_spec == (
        tf.TensorSpec(shape, tf.uint8),
        tf.TensorSpec(shape[:-3], tf.int64),
    )
    pixels, labels = next(dataset.as_numpy_iterator())
    assert (pixels.dtype, labels.dtype) == (np.uint8, np.int64)
    assert tf.TensorShape(shape).is_compatible_with(pixels.shape)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("form", "batch_size"), [*((form, None) for form in FORMS), ("jpeg", 4), ("png", 4), ("raw", 4)]
)
def test_images_are_those_of_the_records(
    sets: dict[str, Path], form: str, batch_size: int | None
) -> None:
    dataset = reader.load(sets[form], shuffle=False, batch_size=batch_size, as_supervised=False)
    if batch_size is not None:
        dataset = dataset.unbatch()
    expected = decoded(sets[form])
    assert len(expected) == NUM_TRAIN
    for one, (key, pixels) in zip(dataset.as_numpy_iterator(), expected.items(), strict=True):
        assert one["image/filename"].decode() == key
        assert np.array_equal(one["image"], pixels), key


@pytest.mark.parametrize("batch_size", [None, 8])
def test_raw_equals_png_pixel_for_pixel(sets: dict[str, Path], batch_size: int | None) -> None:
    both = [
        reader.load(sets[form], shuffle=False, batch_size=batch_size).as_numpy_iterator()
        for form in ("raw", "png")
    ]
    for (raw, raw_labels), (pixels, labels) in zip(*both, strict=True):
        assert np.array_equal(raw, pixels)
        assert np.array_equal(raw_labels, labels)


@pytest.mark.parametrize("form", ["png", "raw"])
def test_a_label_is_an_index_into_the_class_names(sets: dict[str, Path], form: str) -> None:
    names = (sets[form] / "label.labels.txt").read_text().split()
    for one in reader.load(sets[form], as_supervised=False).as_numpy_iterator():
        assert f"train/{names[one['label']]}." in one["image/filename"].decode()


@pytest.mark.parametrize("form", ["png", "raw"])
def test_labels_are_minus_one_where_there_are_none(sets: dict[str, Path], form: str) -> None:
    _, labels = next(reader.load(sets[form], "test", batch_size=100).as_numpy_iterator())
    assert labels.tolist() == [-1] * NUM_TEST


def test_a_set_without_labels_yields_images_alone(sets: dict[str, Path]) -> None:
    dataset = reader.load(sets["unlabelled"], batch_size=10)
    assert dataset.element_spec == tf.TensorSpec((None, HEIGHT, WIDTH, 3), tf.uint8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("form", ["png", "raw", "unlabelled"])
def test_unsupervised_yields_every_feature_of_the_schema(
    sets: dict[str, Path], form: str, batch_size: int | None
) -> None:
    schema = json.loads((sets[form] / "schema.json").read_text())
    dataset = reader.load(sets[form], batch_size=batch_size, as_supervised=False)
    one = next(dataset.as_numpy_iterator())
    assert set(one) == set(schema["features"])
    assert set(np.atleast_1d(one["image/height"])) == {HEIGHT}
    assert set(np.atleast_1d(one["image/width"])) == {WIDTH}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("png", {}),
        ("png", {"batch_size": 4, "as_supervised": False}),
        ("raw", {"batch_size": 4}),
        ("unlabelled", {}),
    ],
)
def test_float32_is_0_to_1(sets: dict[str, Path], form: str, options: dict[str, Any]) -> None:
    options = {**options, "split": "validation", "shuffle": False}
    floats = reader.load(sets[form], dtype="float32", **options).as_numpy_iterator()
    bytes_ = reader.load(sets[form], **options).as_numpy_iterator()
    for one, other in zip(floats, bytes_, strict=True):
        assert images(one).dtype == np.float32
        np.testing.assert_allclose(images(one), images(other) / 255, rtol=0, atol=1e-7)
        assert images(one).max() <= 1


# Other targets than classes

TAGS = ("indoor", "indoor|wet", "big|indoor|wet")
ROWS = {f"train/{i}.jpg": (TAGS[i % 3], i / 8, f"café {i}") for i in range(12)}


@pytest.fixture(scope="module", name="table")
def _table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source whose train images have tags, weight and caption, its test images nothing."""
    lines = [f"{key},{tags},{weight},{text}" for key, (tags, weight, text) in ROWS.items()]
    members = {key: jpeg(seed=i) for i, key in enumerate([*ROWS, "test/1.jpg", "test/2.jpg"])}
    table = "\n".join(["id,tags,weight,caption", *lines]).encode()
    root = tmp_path_factory.mktemp("table")
    return write(root / "pets.zip", zip_bytes({**members, "train.csv": table}))


@pytest.mark.sampled(4)
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
    def wanted(key: str) -> Any:
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
    train = reader.load(folder, batch_size=5, shuffle=False)
    assert train.element_spec[1] == spec
    found = [one for _, batch in train.as_numpy_iterator() for one in batch]
    np.testing.assert_array_equal(found, [wanted(key) for key in stored(folder)])
    single = [one for _, one in reader.load(folder, shuffle=False).as_numpy_iterator()]
    np.testing.assert_array_equal(single, found)
    for _, one in reader.load(folder, "test").as_numpy_iterator():
        np.testing.assert_array_equal(one, nothing)
    for features in reader.load(folder, as_supervised=False).as_numpy_iterator():
        _, weight, caption = ROWS[features["image/filename"].decode()]
        assert (features["weight"], features["caption"].decode()) == (weight, caption)


# How many


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("split", "options", "cardinality"),
    [
        ("train", {}, NUM_TRAIN),
        ("validation", {}, NUM_VALIDATION),
        ("train", {"batch_size": 10}, 5),
        ("train", {"batch_size": 10, "drop_remainder": True}, 4),
        ("train", {"repeat": True}, tf.data.INFINITE_CARDINALITY),
        ("train", {"repeat": True, "batch_size": 10}, tf.data.INFINITE_CARDINALITY),
        ("train", {"repeat": 3}, 3 * NUM_TRAIN),
        ("train", {"repeat": 3, "batch_size": 10}, 15),
        ("train", {"cache": "memory", "batch_size": 10}, 5),
        ("train[:90%]", {}, 42),
        ("train[3:7]", {"shuffle": False}, 4),
        ("train[-2:]+validation", {"batch_size": 4}, 3),
    ],
)
def test_the_cardinality_is_known_and_right(
    sets: dict[str, Path], split: str, options: dict[str, Any], cardinality: int
) -> None:
    for form in ("png", "raw"):
        dataset = reader.load(sets[form], split, **options)
        assert dataset.cardinality() == cardinality
        if cardinality >= 0:
            assert sum(1 for _ in dataset) == cardinality


# In which order


@pytest.mark.sampled(3)
@pytest.mark.parametrize("split", ["train", "train[5:]", "train+validation"])
def test_train_is_shuffled_by_default(sets: dict[str, Path], split: str) -> None:
    assert order(sets["png"], split) != order(sets["png"], split, shuffle=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("split", ["validation", "validation+train", "test"])
def test_what_starts_with_another_split_is_not_shuffled_by_default(
    sets: dict[str, Path], split: str
) -> None:
    assert order(sets["png"], split) == order(sets["png"], split, shuffle=False)


@pytest.mark.parametrize("form", ["png", "raw"])
def test_unshuffled_is_the_order_of_the_shards_and_of_the_items(
    sets: dict[str, Path], form: str
) -> None:
    found = order(sets[form], shuffle=False)
    assert found == list(decoded(sets[form])) == stored(sets[form])
    assert found == order(sets[form], shuffle=False, batch_size=10, cache="memory")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("cache", [False, "memory", "file"])
@pytest.mark.parametrize(
    ("form", "shuffle"), [("png", True), ("raw", True), ("png", 1), ("raw", 5)]
)
def test_each_epoch_has_every_record_once(
    sets: dict[str, Path], tmp_path: Path, form: str, shuffle: int, cache: Any
) -> None:
    dataset = reader.load(
        sets[form],
        batch_size=10,
        shuffle=shuffle,
        cache=tmp_path / "cache" if cache == "file" else cache,
        as_supervised=False,
    )
    for _ in range(2):
        assert Counter(keys(dataset)) == Counter(stored(sets[form]))


def test_no_record_comes_again_before_all_have_come(sets: dict[str, Path]) -> None:
    """Large images among small ones: a parallel map that lets go of order mixes the epochs."""
    found = order(sets["keep"], repeat=6)
    for start in range(0, len(found), NUM_TRAIN):
        assert len(set(found[start : start + NUM_TRAIN])) == NUM_TRAIN


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("keep", {}),
        ("png", {"cache": "memory"}),
        ("raw", {"batch_size": 10, "split": "train[3:40]"}),
        ("png", {"split": "validation", "shuffle": 4}),
    ],
)
def test_a_seed_fixes_the_order_of_every_epoch(
    sets: dict[str, Path], form: str, options: dict[str, Any]
) -> None:
    options = {**options, "as_supervised": False}
    one, same, other = (reader.load(sets[form], seed=seed, **options) for seed in (7, 7, 8))
    epochs = [keys(one) for _ in range(3)]
    assert epochs == [keys(same) for _ in range(3)]
    assert all(epochs[i] != epochs[j] for i in range(3) for j in range(i))
    assert keys(other) not in epochs
    repeated = reader.load(sets[form], seed=7, repeat=3, **options)
    assert keys(repeated) == [key for epoch in epochs for key in epoch]


def test_without_a_seed_every_load_has_its_own_order(sets: dict[str, Path]) -> None:
    assert order(sets["png"]) != order(sets["png"])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("options", [{}, {"seed": 7}, {"cache": "memory"}, {"repeat": 2}])
def test_reshuffling_can_be_turned_off(sets: dict[str, Path], options: dict[str, Any]) -> None:
    config = ReadConfig(shuffle_reshuffle_each_iteration=False)
    dataset = reader.load(sets["keep"], as_supervised=False, read_config=config, **options)
    found = keys(dataset) + keys(dataset)
    assert found[:NUM_TRAIN] != stored(sets["keep"])
    assert found == found[:NUM_TRAIN] * (len(found) // NUM_TRAIN)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("window", [1, 3, 9])
def test_a_number_shuffles_in_a_window(sets: dict[str, Path], window: int) -> None:
    unshuffled = stored(sets["png"], "validation")  # one shard
    dataset = reader.load(sets["png"], "validation", shuffle=window, seed=7, as_supervised=False)
    early: set[int] = set()
    for _ in range(6):
        found = keys(dataset)
        early.update(unshuffled.index(key) - place for place, key in enumerate(found))
    assert max(early) < window
    assert (max(early) > 0) == (window > 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("cycle_length", "block_length"), [(1, 2), (2, 3), (5, 1), (99, 2)])
def test_shards_are_read_side_by_side(
    sets: dict[str, Path], cycle_length: int, block_length: int
) -> None:
    config = ReadConfig(
        interleave_cycle_length=cycle_length,
        interleave_block_length=block_length,
    )
    rows = pq.read_table(sets["png"] / "items.parquet").to_pylist()
    shard_of = {row["key"]: row["shard"] for row in rows}
    found = [shard_of[key] for key in order(sets["png"], shuffle=1, seed=7, read_config=config)]
    side_by_side = min(cycle_length, 5)
    blocks = [found[i * block_length] for i in range(side_by_side)]
    assert len(set(blocks)) == side_by_side
    expected = [shard for shard in blocks for _ in range(block_length)]
    assert found[: len(expected) * 2] == expected * 2


def test_fewer_shards_than_parallel_calls_do_no_harm(sets: dict[str, Path]) -> None:
    config = ReadConfig(num_parallel_calls_for_interleave_files=4, num_parallel_calls_for_decode=4)
    found = order(sets["png"], "validation", shuffle=True, read_config=config)
    assert sorted(found) == sorted(stored(sets["png"], "validation"))


# Cache


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("form", "cache", "options"),
    [
        ("png", "memory", {}),
        ("png", "file", {"batch_size": 10}),
        ("raw", "memory", {"batch_size": 10}),
        ("raw", "file", {}),
        ("png", "memory", {"shuffle": False}),
        ("raw", "file", {"batch_size": 10, "shuffle": False}),
    ],
)
def test_the_second_epoch_comes_from_the_cache(
    sets: dict[str, Path], tmp_path: Path, form: str, cache: str, options: dict[str, Any]
) -> None:
    copy = shutil.copytree(sets[form], tmp_path / "copy")
    place = tmp_path / "cache" if cache == "file" else "memory"
    dataset = reader.load(copy, cache=place, as_supervised=False, **options)
    first = keys(dataset)
    for shard in shards(copy):
        shard.unlink()
    second = keys(dataset)
    assert sorted(first) == sorted(second)
    assert (first == second) == ("shuffle" in options)
    pixels = decoded(sets[form])
    for one in (dataset.unbatch() if "batch_size" in options else dataset).as_numpy_iterator():
        assert np.array_equal(one["image"], pixels[one["image/filename"].decode()])


def test_a_cache_may_stand_in_a_folder_yet_to_be_made(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    cached = order(sets["png"], "validation", cache=tmp_path / "new" / "folder" / "cache")
    assert cached == stored(sets["png"], "validation")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("first", "form", "options"),
    [
        ("png", "png", {"split": "validation"}),
        ("png", "png", {"split": "train[5:]"}),
        ("png", "jpeg", {}),
        ("png", "unlabelled", {}),
        ("png", "png", {"read_config": ReadConfig(image_size=(6, 8))}),
        ("raw", "raw", {"batch_size": 10}),
    ],
)
def test_a_cache_file_serves_only_what_it_was_made_of(
    sets: dict[str, Path], tmp_path: Path, first: str, form: str, options: dict[str, Any]
) -> None:
    """`tf.data` itself takes whatever it finds under the name."""
    cache = tmp_path / "cache"
    order(sets[first], cache=cache)
    options = {"as_supervised": False, "shuffle": False, **options}
    plain = reader.load(sets[form], **options).as_numpy_iterator()
    cached = reader.load(sets[form], cache=cache, **options).as_numpy_iterator()
    for one, other in zip(cached, plain, strict=True):
        assert np.array_equal(one["image/filename"], other["image/filename"])
        assert np.array_equal(one["image"], other["image"])


def test_a_cache_that_is_just_true_leaves_no_file_of_that_name(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(DatasetError):
        order(sets["png"], cache=True)
    assert not list(tmp_path.iterdir())


# Augmentation


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("png", {}),
        ("png", {"batch_size": 4}),
        ("png", {"as_supervised": False}),
        ("raw", {"batch_size": 4, "cache": "memory"}),
        ("unlabelled", {"batch_size": 4}),
    ],
)
def test_augment_is_given_images_and_gives_images(
    sets: dict[str, Path], form: str, options: dict[str, Any]
) -> None:
    options = {**options, "split": "validation"}
    plain = reader.load(sets[form], **options)
    negative = reader.load(sets[form], augment=lambda images: 255 - images, **options)
    assert negative.element_spec == plain.element_spec
    both = zip(negative.as_numpy_iterator(), plain.as_numpy_iterator(), strict=True)
    for one, other in both:
        assert np.array_equal(images(one), 255 - images(other))


def test_augment_is_called_with_a_batch_after_dtype(sets: dict[str, Path]) -> None:
    seen = []

    def look(images: Any) -> Any:
        seen.append((images.dtype, images.shape.rank))
        return images

    reader.load(sets["png"], batch_size=4, dtype="float32", augment=look)
    assert set(seen) == {(tf.float32, 4)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cache", [False, "memory"])
def test_a_keras_layer_augments_as_in_training_and_anew_each_epoch(
    sets: dict[str, Path], cache: Any
) -> None:
    import keras

    flip = keras.layers.RandomFlip("horizontal")
    dataset = reader.load(
        sets["png"], "validation", batch_size=4, augment=flip, as_supervised=False, cache=cache
    )
    straight = decoded(sets["png"], "validation")
    seen: dict[str, set[bool]] = {key: set() for key in straight}
    for _ in range(8):
        for one in dataset.unbatch().as_numpy_iterator():
            key = one["image/filename"].decode()
            flipped = not np.array_equal(one["image"], straight[key])
            assert not flipped or np.array_equal(one["image"], straight[key][:, ::-1])
            seen[key].add(flipped)
    assert sum(flips == {True, False} for flips in seen.values()) > NUM_VALIDATION / 2


def test_a_callable_with_variables_need_not_know_of_training(sets: dict[str, Path]) -> None:
    class Negative(tf.Module):  # type: ignore[misc]
        def __call__(self, images: Any) -> Any:
            return 255 - images

    dataset = reader.load(sets["png"], "validation", batch_size=4, augment=Negative())
    assert sum(1 for _ in dataset) == 3


# Images of different sizes


@pytest.mark.parametrize("form", ["keep", "own sizes"])
def test_images_of_different_sizes_are_not_batched(sets: dict[str, Path], form: str) -> None:
    said = refused(sets[form], batch_size=4)
    assert "pets" in said
    assert "ReadConfig(image_size=(height, width))" in said


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", ["keep", "own sizes", "raw"])
def test_image_size_resizes(sets: dict[str, Path], form: str) -> None:
    options: dict[str, Any] = {"shuffle": False, "read_config": ReadConfig(image_size=(9, 11))}
    batched = reader.load(sets[form], batch_size=4, **options)
    assert batched.element_spec[0] == tf.TensorSpec((None, 9, 11, 3), tf.uint8)
    single = reader.load(sets[form], **options)
    every = zip(
        batched.unbatch().as_numpy_iterator(),
        single.as_numpy_iterator(),
        decoded(sets[form]).values(),
        strict=True,
    )
    for (one, _), (other, _), pixels in every:
        assert np.array_equal(one, other)
        expected = Image.fromarray(pixels).resize((11, 9), Image.Resampling.BILINEAR)
        np.testing.assert_allclose(one, np.asarray(expected), rtol=0, atol=1)


# Split expressions


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "split",
    [
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
    ],
)
def test_a_split_expression_means_what_it_means_to_tfds(sets: dict[str, Path], split: str) -> None:
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
            (malformed, 'is no split; write "train", "train[:90%]" or "a+b"')
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
def test_a_split_that_cannot_be_read_is_refused(
    sets: dict[str, Path], split: str, said: str
) -> None:
    assert said in refused(sets["png"], split)


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
        slices = select(Manifest.model_construct(name="made", splits={"train": split}), text)
    except DatasetError as error:
        if "selects no record" not in str(error):
            raise
        return []
    assert all(one.take > 0 for one in slices)
    return [(one.shard, one.skip + i) for one in slices for i in range(one.take)]


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


def test_the_newest_version_below_a_folder_is_read(sets: dict[str, Path], copy: Path) -> None:
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
    assert said in refused(damage(copy))


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
    assert str(shard) in refused(copy)
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


def test_the_cardinality_need_not_be_asserted(sets: dict[str, Path]) -> None:
    dataset = reader.load(sets["png"], read_config=ReadConfig(assert_cardinality=False))
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert sum(1 for _ in dataset) == NUM_TRAIN


def test_options_are_applied_last(sets: dict[str, Path]) -> None:
    options = tf.data.Options()
    options.threading.max_intra_op_parallelism = 3
    options.threading.private_threadpool_size = 2
    found = reader.load(sets["png"], read_config=ReadConfig(options=options)).options()
    assert found.threading.max_intra_op_parallelism == 3
    assert found.threading.private_threadpool_size == 2


# With and without others


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed")  # by Keras itself
def test_keras_trains_evaluates_and_predicts(sets: dict[str, Path]) -> None:
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
    history = model.fit(train, epochs=3, validation_data=validation, verbose=0).history
    assert len(history["val_accuracy"]) == 3
    endless = reader.load(sets["png"], batch_size=10, repeat=True)
    model.fit(endless, epochs=2, steps_per_epoch=7, verbose=0)
    assert 0 <= model.evaluate(validation, return_dict=True, verbose=0)["accuracy"] <= 1
    for form in ("png", "unlabelled"):
        test = reader.load(sets[form], "test", batch_size=4)
        assert model.predict(test, verbose=0).shape == (NUM_TEST, 2)
