"""Augmentation of boxes and masks, which follow the pixels."""

import functools
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardprep
from shardprep import reader
from shardprep.dataset.schema import (
    ANNOTATIONS,
    BOX,
    BOX_LABEL,
    CROWD,
    IMAGE,
    MASK,
    OBJECT_MASK,
)
from shardprep.errors import DatasetError
from shardprep.reader.decode.targets import KEYS
from tests.reader.datasets import refused
from tests.support.annotated import Marked, annotated
from tests.support.builders import jpeg, pixels, write_folder
from tests.support.examples import examples, thorough

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from shardprep.reader import augment  # noqa: E402 - it imports TensorFlow

SIDE = 64
SEED = (1, 2)
BACKGROUND = 7
OPS: list[Any] = [
    augment.Flip(0.5, 0.5),
    augment.QuarterTurn(),
    augment.RandomResizedCrop((48, 56)),
    augment.RandomResizedCrop((96, 80), scale=(0.1, 0.6), min_visible=0.5),
    augment.Zoom((0.4, 2.5)),
    augment.Letterbox((40, 90)),
    augment.Letterbox((90, 40)),
    augment.Mosaic(),
    augment.Mosaic(probability=0.5, min_visible=0.4),
]
Rectangle = tuple[int, int, int, int]
FOUR: list[Rectangle] = [(4, 8, 30, 60), (0, 0, 64, 64), (20, 20, 26, 27), (50, 40, 60, 64)]


def name(op: Any) -> str:
    return repr(op)[:60]


@st.composite
def rectangles(draw: st.DrawFn) -> Rectangle:
    """Return top, left, bottom, right in pixels."""
    top, left = (draw(st.integers(0, SIDE - 6)) for _ in range(2))
    bottom, right = (draw(st.integers(low + 5, SIDE)) for low in (top, left))
    return top, left, bottom, right


def drawn(rows: list[Rectangle]) -> tuple[Any, dict[str, Any]]:
    """Return one image for each rectangle, white on black, with its box, mask and class."""
    images = np.zeros((len(rows), SIDE, SIDE, 3), np.uint8)
    for image, (top, left, bottom, right) in zip(images, rows, strict=True):
        image[top:bottom, left:right] = 255
    boxes = np.full((len(rows), 3, 4), -1, np.float32)
    boxes[:, 0] = np.array(rows, np.float32) / SIDE
    labels = np.full((len(rows), 3), -1, np.int64)
    labels[:, 0] = np.arange(len(rows))
    masks = np.zeros((len(rows), 3, SIDE, SIDE), np.uint8)
    masks[:, 0] = images[..., 0] // 255
    crowds = labels == 1
    classes = np.where(images[..., :1] > 0, 1, BACKGROUND).astype(np.uint8)
    target = {"boxes": boxes, "labels": labels, "masks": masks, "crowds": crowds}
    return images, {**target, "segmentation_mask": classes}


def extent(mask: Any) -> tuple[int, ...] | None:
    """Return top, left, bottom, right of the nonzero pixels, or None."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return (rows[0], columns[0], rows[-1] + 1, columns[-1] + 1) if len(rows) else None


def arrays(structure: Any) -> Any:
    return tf.nest.map_structure(lambda one: one.numpy(), structure)


@examples(25)
@given(
    st.lists(rectangles(), min_size=4, max_size=4),
    st.sampled_from([augment.Flip(0.5, 0.5, (), ()), *OPS[1:]]),
    st.integers(0, 99),
)
def test_keypoints_stay_in_the_corners_of_their_boxes(
    rows: list[Rectangle], op: Any, seed: int
) -> None:
    images, target = drawn(rows)
    corners = target["boxes"].reshape(4, 3, 2, 2)
    visible = np.repeat(np.where(target["labels"] >= 0, 2, 0)[..., np.newaxis], 2, axis=-1)
    target |= {"keypoints": corners, "keypoints_visible": visible}
    if not isinstance(op, augment.Mosaic):
        target |= {"points": corners[:, 0], "points_visible": visible[:, 0]}
    images, moved = arrays(op(images, target, seed=(seed, 1)))
    there, size = moved["labels"] >= 0, np.array(images.shape[1:3])
    assert (moved["keypoints"][~there] == -1).all()
    assert not moved["keypoints_visible"][~there].any()
    for box, points, seen in zip(
        *(moved[key][there] for key in ("boxes", "keypoints", "keypoints_visible")), strict=True
    ):
        sides = box.reshape(2, 2)
        for point, is_seen in zip(points, seen, strict=True):
            away = np.abs(sides - point) * size
            assert away.min(axis=0).max() < 0.01 if is_seen else not point.any()
        if (sides > 1e-3).all() and (sides < 1 - 1e-3).all() and "points" in moved:
            assert seen.tolist() == [2, 2]  # nothing of the object is cut
            np.testing.assert_allclose(np.sort(points, axis=0), sides, atol=1e-5)
    if "points" in moved:  # of images, they move like those of the first object
        has_object = there[:, 0]
        for name in ("", "_visible"):
            of_image, of_object = moved[f"points{name}"], moved[f"keypoints{name}"][:, 0]
            np.testing.assert_array_equal(of_image[has_object], of_object[has_object])


def test_flips_exchange_the_keypoints_of_the_sides(tmp_path: Path) -> None:
    """`load` takes the pairs from the schema, also for flips inside of other recipes."""
    path = annotated(tmp_path, *ANNOTATIONS)
    recipe = augment.Compose([augment.Compose([augment.Flip(1.0)], jit_compile=False)])
    num_objects = 0
    for _, found in reader.load(path, shuffle=False, augment=recipe).as_numpy_iterator():
        left, right, top = np.moveaxis(found["keypoints"], 1, 0)
        np.testing.assert_allclose(left[:, 1], found["boxes"][:, 1], atol=1e-6)
        np.testing.assert_allclose(right[:, 1], found["boxes"][:, 3], atol=1e-6)
        assert not top.any()
        assert found["keypoints_visible"].tolist() == [[1, 2, 0]] * len(left)
        assert found["points"].tolist() == [[0.5, 0.75], [0, 0]]  # no pair has sides
        num_objects += len(left)
    assert num_objects == 7
    images, target = drawn(FOUR)
    target |= {"keypoints": np.zeros((4, 3, 2, 2)), "keypoints_visible": np.zeros((4, 3, 2), int)}
    with pytest.raises(DatasetError, match=r"swap left and right 'keypoints', .*Flip\(mirrored=…"):
        augment.Flip(1.0)(images, target, seed=SEED)


def _flipped(path: Path, **options: Any) -> Any:
    (batch,) = reader.load(path, batch_size=1, **options)
    return batch[1]["points"].numpy()[0].round(4).tolist()


def test_flips_of_points_without_names_advise_names_or_pairs(tmp_path: Path) -> None:
    write_folder(tmp_path / "set", {"0.jpg": jpeg()})
    pairs: list[Any] = [{"left_eye": [16, 24], "right_eye": [48, 24]}, [[16, 24], [48, 24]]]
    named, numbered = (
        shardprep.build(
            tmp_path / "set", tmp_path / name, items=[{"image": "0.jpg", "points": points}],
            size="64x48", workers=1,
        ).path
        for name, points in zip(("named", "numbered"), pairs, strict=True)
    )  # fmt: skip
    flip = {"augment": augment.Compose([augment.Flip(1.0)])}
    crop = {"random_resized_crop": reader.RandomResizedCrop((48, 64), (1, 1), (4 / 3, 1.34))}
    flipped = {"random_resized_crop": replace(crop["random_resized_crop"], flip=1.0)}
    given = {"augment": augment.Flip(1.0, mirrored_points=(1, 0))}
    kept = [[0.5, 0.25], [0.5, 0.75]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path, options in ((named, flip), (named, flipped), (numbered, crop), (numbered, given)):
            assert _flipped(path, **options) == kept
        none = augment.Flip(1.0, mirrored_points=())
        assert _flipped(numbered, augment=none) == kept[::-1]
    what = "does not swap left and right of 'points', which has numbers and no names; build with"
    for options in (flip, flipped):
        with pytest.warns(reader.Advice, match=rf"{what} .*Flip\(mirrored_points=…\)"):
            assert _flipped(numbered, **options) == kept[::-1]
    with pytest.warns(reader.Advice, match=what):
        next(
            reader.Dataset(numbered).batches(1, random_resized_crop=flipped["random_resized_crop"])
        )


@examples(25)
@given(st.lists(rectangles(), min_size=4, max_size=4), st.sampled_from(OPS), st.integers(0, 99))
def test_boxes_and_masks_end_where_the_drawn_pixels_do(
    rows: list[Rectangle], op: Any, seed: int
) -> None:
    images, target = drawn(rows)
    found, moved = arrays(op(images, target, seed=(seed, 1)))
    height, width = found.shape[1:3]
    assert moved["masks"].shape[2:] == moved["segmentation_mask"].shape[1:3] == (height, width)
    for row in range(len(rows)):
        seen = found[row, ..., 0] > 127
        there = moved["labels"][row] >= 0
        # Visible objects come first, padding rows last.
        assert there.tolist() == sorted(there.tolist(), reverse=True)
        assert (moved["boxes"][row][~there] == -1).all()
        assert not moved["masks"][row][~there].any()
        assert not moved["crowds"][row][~there].any()
        sides = moved["boxes"][row][there] * [height, width, height, width]
        for box, mask, label, crowd in zip(
            sides, *(moved[key][row][there] for key in ("masks", "labels", "crowds")), strict=True
        ):
            assert crowd == (label == 1)
            end = extent(mask)
            if end is None:  # less than a pixel of it is left
                assert min(box[2] - box[0], box[3] - box[1]) < 2
                continue
            assert np.abs(box - end).max() <= 1
            alone = np.zeros_like(seen)
            top, left, bottom, right = np.round(box).astype(int)
            alone[max(top - 1, 0) : bottom + 1, max(left - 1, 0) : right + 1] = True
            if isinstance(op, augment.Mosaic):
                continue  # another rectangle may be next to it
            assert not (seen & ~alone).any()
            visible = extent(seen)
            assert visible is None or np.abs(box - visible).max() <= 1.01
        # Except at edges, masks follow the pixels, also where no box is left.
        shown = moved["segmentation_mask"][row, ..., 0]
        agrees = (shown == 1) == seen
        assert agrees.mean() > 0.9
        assert set(np.unique(shown)) <= {1, BACKGROUND, 255}


class Turned(augment.Color):
    """An op that a user makes of one of the package."""

    def __call__(self, images: Any, *, seed: Any = (0, 0)) -> Any:
        del seed
        return images[:, :, ::-1]


def test_a_function_of_images_alone_is_refused_where_boxes_or_masks_would_stay(
    tmp_path: Path,
) -> None:
    path = annotated(tmp_path, *ANNOTATIONS)
    for alone in (lambda images: images[:, :, ::-1], keras.layers.RandomFlip("horizontal")):
        with pytest.raises(DatasetError, match=r"gets images alone, so .* would not move"):
            reader.load(path, batch_size=1, augment=alone)
    own = augment.Compose([augment.Flip(0.5), lambda images, *, seed: images + seed[0] * 0])
    turned = augment.Compose([Turned()])
    kept = augment.Compose([lambda images, labels, *, seed: images])  # noqa: ARG005
    for op in (lambda images, labels: images, own, turned, kept):  # noqa: ARG005 - what it returns
        with pytest.raises(DatasetError, match=r"images alone, so .* would not move"):
            reader.load(path, batch_size=1, augment=op)
    assert len(list(reader.load(path, batch_size=1, augment=augment.Color(brightness=0.1)))) > 0
    both = reader.load(path, batch_size=1, augment=lambda images, labels: (images, labels))
    assert len(list(both)) > 0


@pytest.mark.parametrize("op", OPS, ids=name)
def test_pixels_boxes_and_masks_depend_on_the_seed_alone(op: Any) -> None:
    """Pixels are the same without boxes, a mask alone is moved alike, and so is a single image."""
    images, target = drawn(FOUR)
    images += np.stack([pixels(SIDE, SIDE, seed) // 8 for seed in range(4)])
    first, again = (arrays(op(images, target, seed=SEED)) for _ in range(2))
    assert np.array_equal(first[0], op(images, seed=SEED).numpy())
    for one, other in zip(tf.nest.flatten(first), tf.nest.flatten(again), strict=True):
        assert np.array_equal(one, other)
    assert list(first[1]) == list(target)
    assert {key: one.dtype for key, one in first[1].items()} == {
        key: one.dtype for key, one in target.items()
    }

    mask = target["segmentation_mask"]
    moved = op(images, mask, seed=SEED)[1].numpy()
    assert np.array_equal(moved, first[1]["segmentation_mask"])
    wide = op(images, mask.astype(np.uint16), seed=SEED)[1].numpy()
    assert np.array_equal(wide, np.where(moved == 255, 65535, moved.astype(int)))
    if not isinstance(op, augment.Mosaic):
        one = op(images[0], {key: value[0] for key, value in target.items()}, seed=SEED)
        for single, every in zip(tf.nest.flatten(arrays(one)), tf.nest.flatten(first), strict=True):
            assert np.array_equal(single, every[0])


@pytest.mark.parametrize("op", [thorough(augment.Zoom((0.4, 2.5))), augment.Mosaic()], ids=name)
def test_images_of_unknown_size_give_the_same_result(op: Any) -> None:
    images, target = drawn([(3, 5, 40, 44), (20, 10, 60, 30)])
    unknown = {"masks": (2, 3, None, None), "segmentation_mask": (2, None, None, 1)}
    specs = {k: tf.TensorSpec(unknown.get(k, one.shape), one.dtype) for k, one in target.items()}
    spec = tf.TensorSpec((2, None, None, 3), tf.uint8), specs
    traced = tf.function(lambda *given: op(*given, seed=SEED), input_signature=spec)
    found, moved = arrays(traced(images, target))
    expected, placed = arrays(op(images, target, seed=SEED))
    assert np.abs(found.astype(int) - expected).max() <= 1
    for key, one in placed.items():
        np.testing.assert_allclose(moved[key], one, atol=1e-6, err_msg=key)


def test_objects_less_visible_than_min_visible_are_cut_away() -> None:
    """The crop is the upper left quarter. A known share of each box is inside."""
    from shardprep.reader.augment import op

    _, target = drawn([(0, 0, 32, 40), (0, 0, 32, 64), (0, 31, 20, 64), (32, 32, 64, 64)])
    windows = tf.constant([[0.0, 0.0, 0.5, 0.5]] * 4)
    shares = [32 / 40, 0.5, 1 / 33, 0.0]
    for least in (0.0, 0.02, 0.04, 0.5, 0.51, 0.9):
        left = op.follow(target, windows, (SIDE, SIDE), least)["labels"].numpy()[:, 0] >= 0
        assert left.tolist() == [share >= least and share > 0 for share in shares]
    boxes = op.follow(target, windows, (SIDE, SIDE), 0.1)["boxes"].numpy()[:, 0]
    assert boxes[0].tolist() == boxes[1].tolist() == [0, 0, 1, 1]


@pytest.mark.thorough
def test_a_recipe_is_compiled_to_the_same_boxes() -> None:
    """Each op alone is compiled in `test_augment`; labels are moved outside of what is compiled."""
    images, target = drawn(FOUR)
    ops = augment.RandomResizedCrop((48, 56)), augment.Mosaic()
    target["label"] = np.arange(4)
    with pytest.raises(DatasetError, match="labels of whole images cannot be joined"):
        augment.Compose(ops)(images, target, seed=SEED)
    del target["label"]
    compiled = arrays(augment.Compose(ops)(images, target, seed=SEED))
    plain = arrays(augment.Compose(ops, jit_compile=False)(images, target, seed=SEED))
    assert np.array_equal(compiled[1]["labels"], plain[1]["labels"])
    assert np.allclose(compiled[1]["boxes"], plain[1]["boxes"], atol=1e-5)
    assert (compiled[1]["masks"] != plain[1]["masks"]).mean() < 1e-3
    assert np.abs(compiled[0].astype(int) - plain[0]).max() <= 2


@pytest.mark.thorough
def test_texts_and_labels_of_whole_images_pass_through() -> None:
    images, target = drawn([(4, 8, 30, 60), (20, 20, 26, 27)])
    recipe = augment.Compose([augment.Flip(), augment.Color(0.2)])
    for more in (np.array([b"one", b"two"], object), np.array([1, 0])):
        _, found = recipe(images, {**target, "label": more}, seed=SEED)
        assert np.array_equal(found["label"], more)
        _, alone = recipe(images, more, seed=SEED)
        assert np.array_equal(alone, more)


@pytest.mark.parametrize("op", [augment.MixUp(num_classes=3), augment.CutMix(num_classes=3)])
def test_mixing_refuses_boxes_and_masks_in_one_line(op: Any) -> None:
    images, target = drawn([(4, 8, 30, 60), (20, 20, 26, 27)])
    for labels in (target, target["segmentation_mask"]):
        for called in (op, augment.Compose([op])):
            said = refused(functools.partial(called, images, labels, seed=SEED))
            assert "boxes and masks cannot be mixed" in said


def test_a_layer_moves_boxes_in_training_and_letterboxes_in_inference(tmp_path: Path) -> None:
    images, target = drawn([(4, 8, 30, 60), (20, 20, 26, 27)])
    recipe = augment.Compose(
        [augment.Flip(1.0), augment.Letterbox((32, 64), fill=0.5)], jit_compile=False
    )
    layer = augment.Layer(recipe, seed=1)
    framed, moved = arrays(layer(images, target, training=False))
    assert framed.shape == (2, 32, 64, 3)
    assert np.allclose(moved["boxes"][0, 0], [4 / 64, 0.25 + 8 / 128, 30 / 64, 0.25 + 60 / 128])
    assert (framed[:, :, :16] == 128).all()
    _, moved = arrays(layer(images, target, training=True))
    assert np.allclose(moved["boxes"][0, 0], [4 / 64, 0.25 + 4 / 128, 30 / 64, 0.25 + 56 / 128])
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.layers[0].recipe == recipe


MANY = {
    f"train/{i}.png": Marked(
        ((4, 4 + i % 9, 30, 40), (20, 10, 40, 30 + i))[: i % 3], (0, 1)[: i % 3]
    )
    for i in range(22)
}


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    features = (BOX, BOX_LABEL, CROWD, OBJECT_MASK, MASK)
    return annotated(tmp_path_factory.mktemp("set"), *features, marked=MANY)


RECIPE = augment.Compose(
    [
        augment.Mosaic(probability=0.5),
        augment.RandomResizedCrop((32, 40), scale=(0.3, 1.0)),
        augment.Flip(),
        augment.Color(0.2),
    ],
    jit_compile=False,
)


@pytest.mark.thorough
def test_load_augments_boxes_and_masks_by_seed(folder: Path) -> None:
    """A dict of features has the same values. A cache has images before augmentation."""
    options: dict[str, Any] = {"batch_size": 8, "seed": 5, "augment": RECIPE}
    other: dict[str, Any] = {
        "as_supervised": False,
        "box_format": "yxyx",
        "max_boxes": 3,
        "cache": "memory",
    }
    found, features = (
        list(reader.load(folder, **options, **more).as_numpy_iterator()) for more in ({}, other)
    )
    assert any((target["labels"] >= 0).any() for _, target in found)
    for (images, target), as_features in zip(found, features, strict=True):
        assert images.shape[1:] == (32, 40, 3)
        most = int((target["labels"] >= 0).sum(1).max())
        assert target["boxes"].shape == (len(images), most, 4)
        assert target["masks"].shape == (len(images), most, 32, 40)
        assert np.array_equal(as_features[IMAGE], images)
        short = {KEYS[name]: as_features[name] for name in (BOX, BOX_LABEL, CROWD, OBJECT_MASK)}
        assert np.array_equal(as_features[MASK], target[KEYS[MASK]])
        assert short["boxes"].shape == (len(images), 3, 4)
        there = short["labels"] >= 0
        assert (there.sum(1) == np.minimum((target["labels"] >= 0).sum(1), 3)).all()
        assert (short["boxes"][~there] == -1).all()
        for row in np.flatnonzero((target["labels"] >= 0).sum(1) <= 3):
            for key in ("boxes", "labels", "crowds", "masks"):
                values = target[key][row, : there[row].sum()]
                scale = [32, 40, 32, 40] if key == "boxes" else 1
                assert np.allclose(short[key][row][there[row]], values * scale, atol=1e-4)


@pytest.mark.thorough
def test_a_custom_augmentation_gets_relative_boxes(folder: Path) -> None:
    """Keras layers get the box format once, independent of the format that `load` yields."""
    flip = keras.layers.RandomFlip("horizontal", bounding_box_format="rel_yxyx", seed=1)
    seen = []

    def augmented(images: Any, labels: Any) -> Any:
        seen.append(sorted(labels))
        boxes = {"boxes": labels["boxes"], "labels": labels["labels"]}
        found = flip({"images": images, "bounding_boxes": boxes}, training=True)
        return found["images"], {**labels, **found["bounding_boxes"]}

    train = reader.load(
        folder, batch_size=8, shuffle=False, augment=augmented, box_format="xyxy", max_boxes=4
    )
    for _, target in train.as_numpy_iterator():
        assert target["boxes"].shape == (len(target["labels"]), 4, 4)
        assert target["boxes"].max() <= 64.01
    assert seen[0] == ["boxes", "crowds", "labels", "masks", "segmentation_mask"]
