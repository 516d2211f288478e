"""Both readers give equal boxes, masks and keypoints: padded, limited and in any format."""

import functools
import os
import sys
import typing
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from shardprep import reader
from shardprep.dataset.schema import (
    ANNOTATIONS,
    BOX,
    BOX_LABEL,
    CROWD,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    POINTS,
)
from shardprep.errors import DatasetError, RecordError
from shardprep.image.resample import BACKEND
from shardprep.reader.config import BoxFormat
from tests.reader.datasets import refused
from tests.reader.worker_processes import all_same
from tests.support import annotated as support
from tests.support.annotated import CLASSES, HEIGHT, MASK_CLASSES, WIDTH, Marked, annotated
from tests.support.examples import thorough

INSTANCES = (BOX, BOX_LABEL, CROWD, OBJECT_MASK)
FORMATS = typing.get_args(BoxFormat)
Sets = dict[str, "Path"]


def many() -> dict[str, Marked]:
    """Return 26 images with 0 to 6 rectangles each."""
    rng = np.random.default_rng(0)
    found = {}
    for i in range(26):
        number = int(rng.integers(0, 7)) if i else 0
        top, left = rng.integers(0, HEIGHT - 4, number), rng.integers(0, WIDTH - 4, number)
        bottom, right = rng.integers(top + 2, HEIGHT + 1), rng.integers(left + 2, WIDTH + 1)
        boxes = np.stack([top, left, bottom, right], axis=1).tolist()
        labels = tuple(rng.integers(0, 2, number).tolist())
        found[f"train/{'xy'[i % 2]}/{i}.png"] = Marked(tuple(map(tuple, boxes)), labels)
    return found


MANY = many()


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    options = {"raw": {"format": "raw"}, "labelled": {"labels": "folder"}}
    return {
        kind: annotated(
            tmp_path_factory.mktemp(kind), *features, marked=MANY, **options.get(kind, {})
        )
        for kind, features in KINDS.items()
    }


KINDS: dict[str, tuple[Any, ...]] = {
    "boxes": (BOX, BOX_LABEL),
    "masks": (MASK,),
    "all": ANNOTATIONS,
    "raw": ANNOTATIONS,
    "labelled": INSTANCES,
}


def by_load(path: Path, **options: Any) -> list[Any]:
    return list(reader.load(path, **options).as_numpy_iterator())


def by_dataset(path: Path, size: int, **options: Any) -> list[Any]:
    return list(reader.Dataset(path).batches(size, **options))


@pytest.mark.parametrize("kind", ["boxes", "masks", "labelled"])
def test_a_transform_gets_image_and_target_and_returns_the_item(sets: Sets, kind: str) -> None:
    def mirrored(image: Any, target: Any) -> Any:
        return image[:, ::-1], {"boxes of": target}

    plain_items = reader.Dataset(sets[kind])
    changed = reader.Dataset(sets[kind], transform=mirrored)
    assert len(plain_items) == len(changed) == len(MANY)
    for (image, target), (other, found) in zip(plain_items, changed, strict=True):
        assert np.array_equal(other[:, ::-1], image)
        assert all_same([found["boxes of"]], [target])


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_a_transform_of_the_image_alone_is_an_error_with_annotations(sets: Sets, kind: str) -> None:
    dataset = functools.partial(reader.Dataset, sets[kind])
    for one in (lambda image: image, np.flipud):
        said = refused(functools.partial(dataset, transform=one))
        assert "must take image and target, which <function" in said
    both = functools.partial(dataset, transform=lambda *pair: pair, as_supervised=False)
    assert "as_supervised=False has no target" in refused(both)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_supervised", [True, False])
def test_both_readers_give_the_same_batches_and_single_elements(
    kind: str, as_supervised: bool, sets: Sets  # noqa: FBT001
) -> None:  # fmt: skip
    options: dict[str, Any] = {"shuffle": False, "as_supervised": as_supervised}
    if kind != "masks":
        options["box_format"] = "xywh"
    loaded = by_load(sets[kind], batch_size=4, **options)
    assert all_same(loaded, by_dataset(sets[kind], 4, **options))
    assert len(loaded) == 7
    if kind != "masks":
        options["max_boxes"] = 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", reader.Advice)
        alone = [
            tf.nest.map_structure(
                lambda one: np.array([one], object) if isinstance(one, bytes) else one[None], found
            )
            for found in by_load(sets[kind], **options)
        ]
        assert all_same(alone, by_dataset(sets[kind], 1, **options))


@pytest.mark.skipif(BACKEND != "c", reason="the extension is not built")
def test_pillow_decodes_no_image_or_mask_that_a_build_stores(
    sets: Sets, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_dataset(sets["all"], 4, seed=3)
    for module in ("features", "annotations"):
        place = f"shardprep.reader.decode.{module}.open_stored"
        monkeypatch.setattr(place, lambda *_: pytest.fail("Pillow decodes"))
    assert all_same(by_dataset(sets["all"], 4, seed=3), expected)


def test_each_image_has_its_own_annotations_followed_by_padding(sets: Sets) -> None:
    for batch in by_load(sets["all"], batch_size=4, as_supervised=False, seed=1):
        of = [MANY[name.decode()] for name in batch["image/filename"]]
        most = max(len(one.labels) for one in of)
        assert batch[BOX].shape == (len(of), most, 4)
        assert batch[OBJECT_MASK].shape == (len(of), most, HEIGHT, WIDTH)
        for row, one in enumerate(of):
            number = len(one.labels)
            boxes = batch[BOX][row] * [HEIGHT, WIDTH, HEIGHT, WIDTH]
            assert np.allclose(boxes[:number], np.reshape(one.rectangles, (-1, 4)), atol=1e-4)
            assert batch[BOX_LABEL][row].tolist() == [*one.labels] + [-1] * (most - number)
            assert batch[CROWD][row, :number].tolist() == [label == 1 for label in one.labels]
            places = np.reshape(one.keypoints, (-1, 3, 2))
            np.testing.assert_array_equal(batch[KEYPOINTS][row, :number], places)
            assert batch[KEYPOINTS_VISIBLE][row].tolist() == (
                [[2, 1, 0]] * number + [[0, 0, 0]] * (most - number)
            )
            assert (batch[KEYPOINTS][row, number:] == -1).all()
            assert batch[POINTS][row].tolist() == [[0.5, 0.25], [0, 0]]
            masks = batch[OBJECT_MASK][row]
            assert np.array_equal(masks[:number], np.reshape(one.masks(), (-1, HEIGHT, WIDTH)))
            assert np.array_equal(batch[MASK][row, ..., 0], one.classes())
            assert (batch[BOX][row, number:] == -1).all()
            assert not batch[CROWD][row, number:].any()
            assert not masks[number:].any()


def test_targets_have_the_documented_names_and_types(sets: Sets) -> None:
    images, mask = by_load(sets["masks"], batch_size=4)[0]
    assert (images.dtype, mask.dtype, mask.shape) == (np.uint8, np.uint8, (4, HEIGHT, WIDTH, 1))
    dtypes = {"boxes": np.float32, "labels": np.int64}
    assert {k: v.dtype for k, v in by_load(sets["boxes"], batch_size=4)[0][1].items()} == dtypes
    more = {"crowds": np.bool_, "masks": np.uint8, "label": np.int64}
    target = by_load(sets["labelled"], batch_size=4, shuffle=False)[0][1]
    assert {name: one.dtype for name, one in target.items()} == dtypes | more
    assert target["label"].shape == (4,)
    every = by_load(sets["all"], batch_size=4)[0][1]
    of_points: dict[str, Any] = {"keypoints": np.float32, "points": np.float32}
    of_points |= {"keypoints_visible": np.int64, "points_visible": np.int64}
    assert set(every) == {*dtypes, "crowds", "masks", "segmentation_mask", *of_points}
    assert {name: every[name].dtype for name in of_points} == of_points


def test_class_names_and_element_specs_describe_objects_and_masks(sets: Sets) -> None:
    for kind, names in (("boxes", CLASSES), ("masks", MASK_CLASSES)):
        assert tuple(reader.load(sets[kind]).class_names) == names
        assert tuple(reader.Dataset(sets[kind]).class_names) == names
    _, target = reader.load(sets["all"], batch_size=4, drop_remainder=True).element_spec
    assert target["boxes"].shape.as_list() == [4, None, 4]
    assert target["masks"].shape.as_list() == [4, None, HEIGHT, WIDTH]
    assert target["keypoints"].shape.as_list() == [4, None, 3, 2]
    assert target["points"].shape.as_list() == [4, 2, 2]
    assert target["segmentation_mask"].shape.as_list() == [4, HEIGHT, WIDTH, 1]
    options: dict[str, Any] = {"batch_size": 4, "drop_remainder": True, "max_boxes": 9}
    _, target = reader.load(sets["all"], **options).element_spec
    assert target["boxes"].shape.as_list() == [4, 9, 4]
    assert target["masks"].shape.as_list() == [4, 9, HEIGHT, WIDTH]
    for max_boxes in (None, 8):
        _, one = reader.load(sets["boxes"], max_boxes=max_boxes).element_spec
        assert one["boxes"].shape.as_list() == [max_boxes, 4]


def test_max_boxes_keeps_the_largest_and_warns_once(sets: Sets) -> None:
    whole = by_dataset(sets["all"], 4, seed=3)
    with pytest.warns(reader.Advice, match="max_boxes=3 keeps the largest") as warned:
        cut = by_load(sets["all"], batch_size=4, seed=3, max_boxes=3)
    assert len(warned) == 1
    with pytest.warns(reader.Advice, match="max_boxes=3 keeps the largest") as warned:
        assert all_same(cut, by_dataset(sets["all"], 4, seed=3, max_boxes=3))
    assert len(warned) == 1
    assert any(target["boxes"].shape[1] > 3 for _, target in whole)
    for (_, short), (_, long) in zip(cut, whole, strict=True):
        assert short["boxes"].shape[1:] == (3, 4)
        for row, padded in enumerate(long["boxes"]):
            boxes = padded[long["labels"][row] >= 0]
            areas = [(b - t) * (r - l) for t, l, b, r in boxes.tolist()]  # noqa: E741
            by_area = sorted(range(len(areas)), key=lambda at: -areas[at])
            kept = sorted(by_area[:3])
            number = len(kept)
            assert np.array_equal(short["boxes"][row, :number], boxes[kept])
            assert np.array_equal(short["masks"][row, :number], long["masks"][row][kept])
            assert np.array_equal(short["labels"][row, :number], long["labels"][row][kept])
            assert (short["labels"][row, number:] == -1).all()
    with warnings.catch_warnings():  # nothing is left out
        warnings.simplefilter("error")
        by_load(sets["boxes"], batch_size=4, max_boxes=6)
        by_dataset(sets["boxes"], 4, max_boxes=6)


@pytest.mark.parametrize("box_format", FORMATS)
def test_boxes_and_keypoints_are_converted_to_every_format_of_keras(
    box_format: str, sets: Sets
) -> None:
    from keras.src.layers.preprocessing.image_preprocessing.bounding_boxes import converters

    options = {"seed": 3, "box_format": box_format}
    loaded = by_load(sets["all"], batch_size=4, **options)
    assert all_same(loaded, by_dataset(sets["all"], 4, **options))
    stored = by_dataset(sets["all"], 4, seed=3)
    for (_, found), (_, target) in zip(loaded, stored, strict=True):
        wanted = np.asarray(
            converters.convert_format(
                target["boxes"], "rel_yxyx", box_format, HEIGHT, WIDTH, dtype="float32"
            )
        )
        there = target["labels"] >= 0
        assert np.allclose(found["boxes"][there], wanted[there], atol=1e-4)
        assert (found["boxes"][~there] == -1).all()
        check_keypoints(found, box_format)


def check_keypoints(target: dict[str, Any], box_format: str) -> None:
    """Check that keypoints have the unit and order of the boxes.

    Keypoint 0 is the middle of the left edge of its box, keypoint 1 of the right edge.
    """
    there = target["labels"] >= 0
    first, second, third, fourth = np.moveaxis(target["boxes"][there], -1, 0)
    sides = {
        "yxyx": ((first + third) / 2, second, (first + third) / 2, fourth),
        "xyxy": (first, (second + fourth) / 2, third, (second + fourth) / 2),
        "xywh": (first, second + fourth / 2, first + third, second + fourth / 2),
        "center_xywh": (first - third / 2, second, first + third / 2, second),
        "center_yxhw": (first, second - fourth / 2, first, second + fourth / 2),
    }[box_format.removeprefix("rel_")]
    edges = target["keypoints"][there][:, :2].reshape(-1, 4)
    np.testing.assert_allclose(edges, np.stack(sides, -1), atol=1e-4)
    assert (target["keypoints"][~there] == -1).all()
    height, width = (1, 1) if box_format.startswith("rel_") else (HEIGHT, WIDTH)
    centre = [0.5 * height, 0.25 * width]
    is_x_first = box_format.removeprefix("rel_") in ("xyxy", "xywh", "center_xywh")
    assert target["points"][0, 0].tolist() == (centre[::-1] if is_x_first else centre)


def test_boxes_in_pixels_fit_resized_images(sets: Sets) -> None:
    config = reader.ReadConfig(image_size=(24, 96))
    options: dict[str, Any] = {"batch_size": 4, "seed": 3}
    found = by_load(sets["boxes"], box_format="yxyx", read_config=config, **options)
    whole = by_dataset(sets["boxes"], 4, seed=3)
    for (images, one), (_, stored) in zip(found, whole, strict=True):
        there = stored["labels"] >= 0
        assert images.shape[1:3] == (24, 96)
        assert np.allclose(one["boxes"][there], stored["boxes"][there] * [24, 96, 24, 96])


def _flat(masks: Any) -> Any:
    """Return masks of classes or of objects, [number, height, width]."""
    masks = masks[..., 0] if masks.shape[-1] == 1 else masks
    return masks.reshape(-1, *masks.shape[-2:])


@pytest.mark.parametrize("size", [(31, 90), thorough((100, 20))])
def test_masks_are_resized_like_by_pillow_with_nearest(size: tuple[int, int], sets: Sets) -> None:
    config = reader.ReadConfig(image_size=size)
    found = by_load(sets["all"], batch_size=4, seed=3, read_config=config)
    # On the border of two pixels, Pillow's sum of floats may fall to either side.
    sure = np.ix_(*(
        [i for i in range(wanted) if (2 * i + 1) * length % (2 * wanted)]
        for length, wanted in zip((HEIGHT, WIDTH), size, strict=True)
    ))  # fmt: skip
    stored = by_dataset(sets["all"], 4, seed=3)
    for (_, one), (_, other) in zip(found, stored, strict=True):
        pairs = [
            pair
            for name in ("segmentation_mask", "masks")
            for pair in zip(*(_flat(target[name]) for target in (one, other)), strict=True)
        ]
        for small, large in pairs:
            wanted = Image.fromarray(large).resize(size[::-1], Image.Resampling.NEAREST)
            assert np.array_equal(small[sure], np.asarray(wanted)[sure])


OPTIONS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "two boxes": {"max_boxes": 2},
    "smaller": {"read_config": reader.ReadConfig(image_size=(24, 32))},
}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("labelled", "two boxes"),
        thorough("masks", "as they are"),
        thorough("raw", "smaller"),
    ],
)
def test_no_cache_changes_a_batch_or_an_item(
    kind: str, more: str, sets: Sets, tmp_path: Path
) -> None:
    """Batches are compared with the other reader, if it has the option."""
    path, options = sets[kind], OPTIONS[more]
    folder = tmp_path / "cache"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", reader.Advice)
        if more == "smaller":
            uncached = by_load(path, batch_size=4, seed=3, **options)
        else:
            uncached = by_dataset(path, 4, seed=3, **options)
        # "auto" becomes "memory" before other options are read.
        memory: tuple[Any, ...] = ("memory",) if options else ("memory", "auto")
        for cache in (*memory, folder, folder):  # the first use of the folder fills it
            assert all_same(by_load(path, batch_size=4, seed=3, cache=cache, **options), uncached)
        items = by_load(path, shuffle=False, **options)
        for cache in ("memory", folder):
            assert all_same(by_load(path, shuffle=False, cache=cache, **options), items)


def test_boxes_of_lists_have_the_format_of_padded_boxes(sets: Sets) -> None:
    options: dict[str, Any] = {"seed": 3, "box_format": "xyxy"}
    (_, lists), *_ = by_dataset(sets["boxes"], 4, ragged=True, **options)
    (_, padded), *_ = by_dataset(sets["boxes"], 4, **options)
    assert isinstance(lists["boxes"], list)
    for own, rows in zip(lists["boxes"], padded["boxes"], strict=True):
        assert np.array_equal(own, rows[: len(own)])


def test_images_of_many_sizes_are_read_as_items_and_lists(tmp_path: Path) -> None:
    path = annotated(tmp_path, *INSTANCES, MASK, marked=MANY, size="none")
    dataset = reader.Dataset(path, as_supervised=True)
    assert all_same(by_load(path, shuffle=False), [*dataset])
    with pytest.raises(DatasetError, match="ragged=True"):
        dataset.batches(4)
    images, target = next(dataset.batches(4, shuffle=False, ragged=True, box_format="yxyx"))
    assert isinstance(images, list)
    for row, (image, one) in enumerate(list(dataset)[:4]):
        size = [*image.shape[:2], *image.shape[:2]]
        assert np.allclose(target["boxes"][row], one["boxes"] * np.array(size))


def test_padding_rows_of_batches_have_no_objects(sets: Sets) -> None:
    config = reader.ReadConfig(pad_batches=True, num_shards=3, shard_index=0)
    for kind in ("labelled", "masks"):
        *_, (images, target, weights) = by_load(
            sets[kind], batch_size=8, shuffle=False, read_config=config
        )
        assert len(images) == 8
        empty = weights == 0
        assert empty.any()
        if kind == "masks":
            assert target.shape == (8, HEIGHT, WIDTH, 1)
        else:
            assert (target["labels"][empty] == -1).all()
            assert (target["boxes"][empty] == -1).all()
            assert not target["masks"][empty].any()


@pytest.mark.thorough
def test_two_replicas_share_the_batches(sets: Sets) -> None:
    devices = tf.config.list_logical_devices("CPU")
    strategy = tf.distribute.MirroredStrategy([devices[0].name])
    for max_boxes in (None, 9):
        options: dict[str, Any] = {"seed": 3, "max_boxes": max_boxes}
        batches = reader.distribute(strategy, sets["all"], batch_size=4, **options)
        found = [tf.nest.map_structure(lambda one: one.numpy(), batch) for batch in batches]
        assert all_same(found, by_dataset(sets["all"], 4, drop_remainder=True, **options))


@pytest.mark.parametrize("option", [{"max_boxes": 3}, {"box_format": "xyxy"}], ids=str)
def test_options_for_boxes_are_an_error_without_boxes(option: dict[str, Any], sets: Sets) -> None:
    for call in (
        functools.partial(reader.load, sets["masks"], batch_size=4, **option),
        functools.partial(reader.Dataset(sets["masks"]).batches, 4, **option),
    ):
        assert "no boxes" in refused(call)


@pytest.fixture(scope="module", name="damaged")
def _damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with a truncated mask, a mask of another size and a label too many."""
    some = [one for one in MANY.values() if one.labels]

    def values_of(one: Marked) -> dict[str, Any]:
        found = of(one)
        if one is some[3]:
            found[MASK] = found[MASK][:50]
        if one is some[5]:
            found[OBJECT_MASK] = (support.grey_png(np.zeros((9, 9), np.uint8)),) * len(one.labels)
        if one is some[7]:
            found[BOX_LABEL] = (*one.labels, 1)
        return found

    of = support.values_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "values_of", values_of)
        return annotated(tmp_path_factory.mktemp("damaged"), *INSTANCES, MASK, marked=MANY)


@pytest.mark.thorough
def test_a_record_with_a_bad_mask_or_box_is_skipped(damaged: Path, tmp_path: Path) -> None:
    bad: list[reader.BadRecord] = []
    config = reader.ReadConfig(on_error=bad.append)
    options: dict[str, Any] = {"batch_size": 4, "seed": 3, "as_supervised": False}
    found = by_load(damaged, read_config=config, **options)
    assert len(bad) == 3
    batches = reader.Dataset(damaged).batches(4, seed=3, as_supervised=False, on_error="skip")
    with pytest.warns(RuntimeWarning, match="skipped"):
        plain = list(batches)
    assert len(batches.skipped) == 3
    assert all_same(found, plain)
    cached = by_load(damaged, read_config=config, cache=tmp_path / "cache", **options)
    assert all_same(cached, plain)


def test_a_bad_mask_or_box_is_an_error_by_default(damaged: Path, tmp_path: Path) -> None:
    place = r"tfrecord-\d+-of-\d+, record \d+: offset .*(mask|'objects/label' holds)"
    with pytest.raises(tf.errors.UnknownError, match=place):
        by_load(damaged, batch_size=4, shuffle=False)
    texts = []
    for i in range(len(MANY)):
        try:
            reader.Dataset(damaged)[i]
        except RecordError as error:
            texts.append(error.what)
    assert len(texts) == 3
    assert any("mask of 'segmentation_mask' cannot be decoded" in text for text in texts)
    assert any("'objects/mask' is 9x9 (height x width), not 48x64" in text for text in texts)
    assert any("'objects/label' holds" in text for text in texts)
    config = reader.ReadConfig(image_size=(24, 32))
    with pytest.raises(RecordError, match="mask cannot be decoded"):
        by_load(damaged, batch_size=4, cache=tmp_path / "cache", read_config=config)


@pytest.mark.parametrize("num_workers", [0, thorough(1)])
def test_a_loader_of_torch_yields_the_input_of_torchvision(num_workers: int, sets: Sets) -> None:
    torch = pytest.importorskip("torch")
    dataset = reader.Dataset(sets["labelled"], as_supervised=True)
    context = "forkserver" if num_workers else None
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=4,
        collate_fn=functools.partial(reader.collate, first_label=1),
        num_workers=num_workers,
        multiprocessing_context=context,
    )
    batches = list(loader)
    found = [pair for batch in batches for pair in zip(*batch, strict=True)]
    assert len(found) == len(dataset)
    for (image, target), (pixels, stored) in zip(found, dataset, strict=True):
        assert np.array_equal(image.numpy(), pixels.transpose(2, 0, 1))
        assert (target["boxes"].dtype, target["labels"].dtype) == (torch.float32, torch.int64)
        sides = stored["boxes"][:, [1, 0, 3, 2]] * [WIDTH, HEIGHT, WIDTH, HEIGHT]
        assert np.allclose(target["boxes"].numpy(), sides, atol=1e-4)
        assert (target["labels"].numpy() == stored["labels"] + 1).all()
        assert np.array_equal(target["masks"].numpy(), stored["masks"])
        assert (target["iscrowd"].numpy() == stored["crowds"]).all()
        assert target["label"] == stored["label"]
        assert set(target) == {"boxes", "labels", "masks", "iscrowd", "label"}
    for images, targets in batches if num_workers else ():
        storages = [
            {one.untyped_storage().data_ptr() for one in tensors}
            for tensors in (
                images,
                [target["masks"] for target in targets],
                [target[name] for target in targets for name in target if name != "masks"],
            )
        ]
        assert [len(one) for one in storages] == [1, 1, 1]
        assert len(set.union(*storages)) == 3, "boxes that are kept do not keep images in memory"


@pytest.mark.parametrize("has_memory_files", [True, False])
@pytest.mark.parametrize("kind", ["boxes", "all"])
def test_a_worker_collates_the_same_values_to_shared_memory(
    sets: Sets, kind: str, monkeypatch: pytest.MonkeyPatch, *, has_memory_files: bool
) -> None:
    torch = pytest.importorskip("torch")
    items = [*reader.Dataset(sets[kind])]
    items += [(pixels[:, ::-1], target) for pixels, target in items]
    wanted, empty = reader.collate(items), reader.collate([])
    if not has_memory_files:  # as on macOS
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker")
    assert reader.collate([]) == empty
    found = reader.collate(items)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    for tensor in (*found[0], *(one for target in found[1] for one in target.values())):
        assert tensor.is_shared()
        descriptor, _ = tensor.untyped_storage()._share_fd_cpu_()
        if sys.platform == "linux":  # containers limit /dev/shm
            in_memory_file = "memfd:" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
            assert in_memory_file == has_memory_files


@pytest.mark.parametrize("kind", ["boxes", "all"])
def test_collating_copies_no_pixel(sets: Sets, kind: str) -> None:
    pytest.importorskip("torch")
    items = [*reader.Dataset(sets[kind])]
    images, targets = reader.collate(items)
    for (pixels, stored), image, target in zip(items, images, targets, strict=True):
        assert np.shares_memory(image.numpy(), pixels)
        for name in target.keys() & {"masks", "segmentation_mask"}:
            assert np.array_equal(target[name].numpy(), stored[name])
            assert np.shares_memory(target[name].numpy(), stored[name]) or not target[name].numel()
    mirrored, _ = reader.collate([(pixels[:, ::-1], target) for pixels, target in items])
    assert np.array_equal(mirrored[3].numpy(), images[3].numpy()[:, :, ::-1])


def test_items_without_boxes_are_not_collated(sets: Sets) -> None:
    pytest.importorskip("torch")
    for kind, as_supervised in (("boxes", False), ("masks", True)):
        item = reader.Dataset(sets[kind], as_supervised=as_supervised)[0]
        assert "item 0 is not a pair of an image" in refused(
            functools.partial(reader.collate, [item])
        )
