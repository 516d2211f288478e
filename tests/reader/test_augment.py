import colorsys
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from tests.reader.datasets import refused
from tests.support.builders import build, jpeg, pixels, write
from tests.support.examples import examples
from tests.support.paths import DATA

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from shardprep import reader  # noqa: E402
from shardprep.reader import augment  # noqa: E402 - it imports TensorFlow
from shardprep.reader.augment import color, geometry, mixup, op  # noqa: E402

ROOT = Path(__file__).parents[2]
NUM = 8
HEIGHT, WIDTH = 24, 32
SEED = (1, 2)
ERRORS = tomllib.loads((DATA / "augment_errors.toml").read_text())

IMAGE_OPS: list[Any] = [
    augment.Flip(0.5, 0.5),
    augment.RandomResizedCrop((20, 28)),
    augment.Color(0.4, 0.4, 0.4, 0.2),
]
MIXES: list[Any] = [augment.MixUp(0.4, num_classes=3), augment.CutMix(1.0, num_classes=3)]


def name(op: Any) -> str:
    return type(op).__name__


def batch(num: int = NUM, height: int = HEIGHT, width: int = WIDTH) -> Any:
    """Return different images, uint8[num, height, width, 3]."""
    return np.stack([pixels(height, width, seed) for seed in range(num)])


def row(value: float, num: int = NUM) -> Any:
    return tf.fill([num], tf.constant(value, tf.float32))


# What every op keeps


@pytest.mark.parametrize("op", IMAGE_OPS, ids=name)
def test_draws_depend_on_the_seed_and_the_place_in_the_batch_alone(op: Any) -> None:
    images = batch()
    first, again, other = (op(images, seed=seed).numpy() for seed in (SEED, SEED, (1, 3)))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(op(images[:5], seed=SEED).numpy(), first[:5])
    assert np.array_equal(op(images[0], seed=SEED).numpy(), first[0])
    kinds = {one.tobytes() for one in op(np.repeat(images[:1], 64, 0), seed=SEED).numpy()}
    assert len(kinds) == (4 if isinstance(op, augment.Flip) else 64)


@pytest.mark.parametrize("op", IMAGE_OPS, ids=name)
@pytest.mark.parametrize(("dtype", "error"), [("uint8", 0), ("float32", 0.51), ("float16", 1.5)])
def test_floats_change_as_uint8_does_and_keep_their_dtype_and_range(
    op: Any, dtype: str, error: float
) -> None:
    images, white = batch(), 255 if dtype == "uint8" else 1
    out = op((images / (255 // white)).astype(dtype), seed=SEED)
    assert out.dtype == dtype
    assert out.shape == (NUM, *getattr(op, "size", (HEIGHT, WIDTH)), 3)
    found = out.numpy().astype(float)
    assert 0 <= found.min() <= found.max() <= white
    expected = op(images, seed=SEED).numpy()
    assert np.abs(found * (255 // white) - expected).max() <= error


@pytest.mark.thorough
@pytest.mark.parametrize("op", [*IMAGE_OPS, *MIXES], ids=name)
def test_xla_compiles_every_op_to_the_same_result(op: Any) -> None:
    """Within one of 255: a sum in another order may round another way."""
    given = (batch(),) if op in IMAGE_OPS else (batch(), np.arange(NUM) % 3)
    plain = tf.nest.flatten(op(*given, seed=SEED))
    # The seed is an argument: a constant one would be drawn from before XLA sees it.
    program = tf.function(lambda given, seed: op(*given, seed=seed), jit_compile=True)
    compiled = program(given, tf.constant(SEED))
    for one, other in zip(plain, tf.nest.flatten(compiled), strict=True):
        difference = np.abs(one.numpy().astype(float) - other.numpy().astype(float))
        assert difference.max() <= (1 if one.dtype == "uint8" else 1e-6)
        assert (difference > 0.5).mean() < 0.001


@pytest.mark.thorough
def test_images_of_unknown_size_are_augmented_too() -> None:
    """Without a batch, `load` can yield images that differ in size."""
    flip, crop, colour = IMAGE_OPS
    ops = (crop, flip, colour)  # the size is known after the first op
    recipe, plain = augment.Compose(ops), augment.Compose(ops, jit_compile=False)
    spec = tf.TensorSpec((None, None, 3), tf.uint8)
    one = tf.function(lambda image: recipe(image, seed=SEED), input_signature=[spec])
    for height, width in ((24, 32), (60, 50)):
        image = pixels(height, width)
        known = plain(image, seed=SEED).numpy().astype(int)
        assert np.abs(one(image).numpy() - known).max() <= 1


# Flips


@examples(20)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5))
def test_flips_mirror_exactly_those_images_that_are_drawn(flips: list[tuple[bool, bool]]) -> None:
    images = batch(len(flips), 5, 6)
    down, across = (tf.constant([flip[i] for flip in flips]) for i in (0, 1))
    out = geometry.mirror(geometry.mirror(images, down, axis=1), across, axis=2).numpy()
    for image, source, (vertical, horizontal) in zip(out, images, flips, strict=True):
        expected = source[:: -1 if vertical else 1, :: -1 if horizontal else 1]
        assert np.array_equal(image, expected)


@pytest.mark.parametrize(("horizontal", "vertical"), [(0.5, 0.0), (0.2, 0.7), (1.0, 1.0)])
def test_flips_come_as_often_as_asked(horizontal: float, vertical: float) -> None:
    corners = np.zeros((4000, 2, 2, 3), np.uint8)
    corners[:, 0, 0] = 255
    out = augment.Flip(horizontal, vertical)(corners, seed=SEED).numpy()[..., 0] > 0
    assert out.reshape(4000, 4).sum(axis=1).tolist() == [1] * 4000
    assert abs(out[:, :, 1].any(axis=1).mean() - horizontal) < 0.03
    assert abs(out[:, 1].any(axis=1).mean() - vertical) < 0.03


# Crops


@pytest.mark.parametrize("size", [(24, 32), (50, 40), (7, 9)], ids=str)
def test_a_box_is_resampled_as_pillow_does(size: tuple[int, int]) -> None:
    images = batch(5)
    boxes = np.array(
        [[0, 0, 1, 1], [0.1, 0.2, 0.9, 0.8], [0.33, 0, 0.5, 1], [0, 0.6, 1, 0.7], [0.5, 0.5, 1, 1]],
        np.float32,
    )
    out = op.resample(images, tf.constant(boxes), size).numpy()
    for image, source, (top, left, bottom, right) in zip(out, images, boxes, strict=True):
        box = (left * WIDTH, top * HEIGHT, right * WIDTH, bottom * HEIGHT)
        expected = Image.fromarray(source).resize(size[::-1], Image.Resampling.BILINEAR, box)
        assert np.abs(image.astype(int) - np.asarray(expected).astype(int)).max() <= 1


def test_the_whole_image_in_its_own_size_is_itself() -> None:
    images = batch()
    crop = augment.RandomResizedCrop((HEIGHT, WIDTH), (1.0, 1.0), (4 / 3, 4 / 3))
    assert np.array_equal(crop(images, seed=SEED).numpy(), images)


@examples(30)
@given(
    shape=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted).map(tuple),
    seed=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
)
def test_boxes_lie_in_the_image_and_have_the_aspect_and_area_asked_for(
    shape: tuple[int, int], scale: Any, ratio: Any, seed: tuple[int, int]
) -> None:
    height, width = shape
    crop = augment.RandomResizedCrop((8, 8), scale, ratio)
    top, left, bottom, right = crop.boxes(np.zeros((16, *shape, 3), np.uint8), seed).numpy().T
    assert min(top.min(), left.min()) >= 0
    assert max(bottom.max(), right.max()) <= 1 + 1e-6
    aspect = (right - left) * width / ((bottom - top) * height)
    assert aspect.min() >= ratio[0] * 0.999
    assert aspect.max() <= ratio[1] * 1.001
    area = (bottom - top) * (right - left)
    assert area.max() <= scale[1] * 1.001
    fits = (bottom - top < 0.999) & (right - left < 0.999)
    assert area[fits].min(initial=1) >= scale[0] * 0.999


def test_shares_and_aspects_are_drawn_evenly() -> None:
    crop = augment.RandomResizedCrop((8, 8), (0.1, 0.5), (0.5, 2.0))
    top, left, bottom, right = crop.boxes(np.zeros((4000, 9, 9, 3), np.uint8), SEED).numpy().T
    area, aspect = (bottom - top) * (right - left), np.log2((right - left) / (bottom - top))
    places = top / (1 - (bottom - top)), left / (1 - (right - left))
    for drawn, low, high in ((area, 0.1, 0.5), (aspect, -1, 1), *((p, 0, 1) for p in places)):
        shares = np.histogram(drawn, bins=5, range=(low, high))[0] / 4000
        assert np.abs(shares - 0.2).max() < 0.03


# Colours


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.5])
@pytest.mark.parametrize(
    ("place", "enhance", "tolerance"),
    [
        (0, ImageEnhance.Brightness, 1),
        (1, ImageEnhance.Contrast, 2),  # Pillow rounds the mean as well
        (2, ImageEnhance.Color, 2),  # and the grey image
    ],
    ids=["brightness", "contrast", "saturation"],
)
def test_a_factor_enhances_as_pillow_does(
    place: int, enhance: Callable[[Any], Any], tolerance: int, factor: float
) -> None:
    images = batch(3)
    changes: list[Any] = [row(factor, 3) if i == place else None for i in range(4)]
    out = color.adjust(images, *changes).numpy().astype(int)
    for image, source in zip(out, images, strict=True):
        expected = np.asarray(enhance(Image.fromarray(source)).enhance(factor)).astype(int)
        assert np.abs(image - expected).max() <= tolerance


@pytest.mark.parametrize("hue", [-0.5, -0.1, 0.05, 1 / 3])
def test_hue_turns_colours_in_yiq(hue: float) -> None:
    """By the matrices of `tf.image` and of `colorsys`, whose coefficients have two digits."""
    images = tf.constant(batch(2, 6, 6) / 255 * 0.3 + 0.35, tf.float32)  # nothing is clipped
    out = color.adjust(images, row(1, 2), row(1, 2), row(1, 2), row(hue, 2)).numpy()
    angle = -2 * np.pi * hue
    turn = np.array(
        [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    )
    yiq = tf.image.rgb_to_yiq(images).numpy() @ turn.T
    assert np.abs(tf.image.yiq_to_rgb(yiq.astype(np.float32)).numpy() - out).max() < 0.001
    for source, got in zip(images.numpy().reshape(-1, 3), out.reshape(-1, 3), strict=True):
        expected = colorsys.yiq_to_rgb(*(turn @ colorsys.rgb_to_yiq(*source.tolist())))
        assert np.abs(np.array(expected) - got).max() < 0.01


@pytest.mark.parametrize("hue", [-0.1, 0.05, 0.1])
def test_hue_turns_about_as_far_as_in_hsv(hue: float) -> None:
    """YIQ and HSV differ. The direction is the same, and the angle about the same."""
    circle = np.array([colorsys.hsv_to_rgb(h, 0.4, 0.6) for h in np.linspace(0, 1, 60)])
    images = tf.constant(circle[None, :, None], tf.float32)
    out = color.adjust(images, row(1, 1), row(1, 1), row(1, 1), row(hue, 1))
    before, after = (tf.image.rgb_to_hsv(one).numpy()[..., 0] for one in (images, out))
    turned = (after - before + 0.5) % 1 - 0.5
    assert abs(turned.mean() - hue) < 0.01
    assert np.abs(turned - hue).max() < 0.05


def test_the_four_changes_of_colour_commute_and_none_is_the_neutral_value() -> None:
    images = tf.constant(batch(2) / 255 * 0.2 + 0.4, tf.float32)  # nothing is clipped
    factors, neutral = (0.9, 1.2, 0.7, 0.1), (1.0, 1.0, 1.0, 0.0)
    once = color.adjust(images, *(row(f, 2) for f in factors)).numpy()
    orders: list[Any] = [
        [[0], [1], [2], [3]],
        [[3, 1], [0], [2]],
        [[2], [3, 1, 0]],
        [[0, 2], [1, 3]],
    ]
    for order in orders:
        out = explicit = images
        for places in order:
            out = color.adjust(
                out, *(row(factors[i], 2) if i in places else None for i in range(4))
            )
            explicit = color.adjust(
                explicit, *(row((factors if i in places else neutral)[i], 2) for i in range(4))
            )
        assert np.abs(out.numpy() - once).max() < 1e-5
        assert np.abs(explicit.numpy() - once).max() < 1e-5


@pytest.mark.parametrize(
    ("op", "low", "high"),
    [
        (augment.Color(brightness=0.5), 0.5, 1.5),
        (augment.Color(brightness=1.5), 0.0, 2.5),
        (augment.Color(contrast=0.4), 0.6, 1.4),
    ],
)
def test_factors_are_drawn_evenly_about_one(op: Any, low: float, high: float) -> None:
    images = np.zeros((4000, 1, 2, 3), np.float32)
    images[:, :, 0], images[:, :, 1] = 0.15, 0.25
    out = op(images, seed=SEED).numpy()[:, 0, :, 0]
    factors = out[:, 1] / 0.25 if op.brightness else (out[:, 1] - out[:, 0]) / 0.1
    shares = np.histogram(factors, bins=5, range=(low, high))[0] / 4000
    assert np.abs(shares - 0.2).max() < 0.03


# Mixing


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 1.0, 2.0, 30.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    drawn = np.sort(mixup.beta(tf.random.stateless_uniform([20000], SEED), alpha).numpy())
    expected = np.sort(np.random.default_rng(0).beta(alpha, alpha, 400_000))
    points = np.linspace(0.01, 0.99, 99)
    below = [np.searchsorted(one, points) / len(one) for one in (drawn, expected)]
    assert np.abs(below[0] - below[1]).max() < 0.015


def test_mixup_blends_pixels_and_labels_by_the_same_share() -> None:
    images = np.zeros((NUM, 4, 4, 3), np.float32)
    images[::2] = 1.0
    out, labels = augment.MixUp(1.0, num_classes=2)(images, np.arange(NUM) % 2, seed=SEED)
    white = out.numpy()[:, 0, 0, 0]  # even images, class 0, are white
    assert np.array_equal(out.numpy(), np.broadcast_to(white[:, None, None, None], out.shape))
    assert np.abs(labels.numpy()[:, 0] - white).max() < 1e-6
    assert np.abs(labels.numpy().sum(axis=1) - 1).max() < 1e-6
    assert len(set(white.tolist())) == NUM


@examples(20)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
)
def test_cutmix_labels_count_the_pixels(shape: tuple[int, int], seed: tuple[int, int]) -> None:
    images = np.broadcast_to(np.arange(NUM, dtype=np.uint8)[:, None, None, None], (NUM, *shape, 3))
    out, labels = augment.CutMix(1.0, num_classes=NUM)(images, np.arange(NUM), seed=seed)
    for place, (image, label) in enumerate(zip(out.numpy(), labels.numpy(), strict=True)):
        expected = [(image[..., 0] == other).mean() for other in range(NUM)]
        assert np.abs(label - expected).max() < 1e-6
        pasted = np.argwhere(image[..., 0] != place)
        if len(pasted):  # the neighbour's pixels are one box, where they are in the neighbour
            assert np.prod(np.ptp(pasted, axis=0) + 1) == len(pasted)
            assert set(image[tuple(pasted.T)].ravel().tolist()) == {(place - 1) % NUM}


@pytest.mark.parametrize("op", [augment.MixUp, augment.CutMix], ids=lambda op: op.__name__)
@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_the_probability_is_the_share_of_mixed_images(op: Any, probability: float) -> None:
    images = np.zeros((2000, 32, 32, 3), np.uint8)
    images[::2] = 255
    labels = (np.arange(2000) % 2).astype(np.float32)[:, None]
    mixed, soft = op(2.0, probability=probability)(images, labels, seed=SEED)
    share = (np.abs(soft.numpy() - labels) > 0).mean()
    assert abs(share - probability) < 0.04
    assert abs((mixed.numpy() != images).any(axis=(1, 2, 3)).mean() - probability) < 0.04


@pytest.mark.parametrize(
    "labels",
    [np.array([0.0, 10.0], np.float32), np.array([[0, 1, 1], [1, 0, 0]], np.int64)],
    ids=["numbers", "several classes"],
)
def test_numeric_labels_are_mixed_without_one_hot(labels: Any) -> None:
    images = np.stack([np.zeros((4, 4, 3)), np.ones((4, 4, 3))]).astype(np.float32)
    out, soft = augment.MixUp(1.0)(images, labels, seed=SEED)
    for i in (0, 1):
        own = 1 - abs(i - out.numpy()[i, 0, 0, 0])
        assert soft.numpy()[i] == pytest.approx(own * labels[i] + (1 - own) * labels[1 - i])


def test_an_image_without_a_label_has_a_row_of_zeros() -> None:
    _, soft = augment.MixUp(1.0, num_classes=2, probability=0.0)(batch(2), [-1, 1], seed=SEED)
    assert soft.numpy().tolist() == [[0, 0], [0, 1]]


# Recipes


def test_ops_run_in_their_order_each_with_a_seed_of_its_own() -> None:
    seeds = []

    def look(images: Any, *, seed: Any) -> Any:
        seeds.append(tuple(seed.numpy().tolist()))
        return images

    def invert(images: Any, labels: Any, *, seed: Any) -> Any:
        del seed
        return 255 - images, labels + 1

    images = batch()
    darken = augment.Color(brightness=0.5)
    recipe = augment.Compose((look, look, invert, darken), jit_compile=False)
    out, labels = recipe(images, np.arange(NUM), seed=SEED)
    assert len(set(seeds)) == 2
    assert labels.tolist() == list(range(1, NUM + 1))
    last = tf.random.experimental.stateless_fold_in(tf.constant(SEED), 3, alg="philox")
    assert np.array_equal(out.numpy(), darken(255 - images, seed=last).numpy())


def test_a_function_of_the_user_may_branch_on_tensors(shapes: Path) -> None:
    def darken(images: Any, *, seed: Any) -> Any:
        del seed
        if tf.reduce_max(images) > 0:
            images //= 2
        return images

    path = shapes / "tfrecords"
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False}
    images, _ = next(iter(reader.load(path, **options)))
    recipe = augment.Compose([augment.Compose([darken], jit_compile=False)])
    for own in (darken, recipe):
        found, _ = next(iter(reader.load(path, augment=own, **options)))
        assert np.array_equal(found.numpy(), images.numpy() // 2)


def test_a_recipe_within_a_recipe_gets_the_labels_if_any() -> None:
    flips = augment.Compose([augment.Compose([augment.Flip()]), augment.Flip()])
    images, labels = batch(), np.array([str(i) for i in range(NUM)])
    alone = flips(images, seed=SEED)
    out, same = flips(images, labels, seed=SEED)
    assert np.array_equal(alone.numpy(), out.numpy())
    assert same is labels


def test_the_classic_recipe_crops_and_mixes() -> None:
    images, labels = batch(), np.arange(NUM) % 3
    plain, mixing = (
        replace(augment.classic((20, 28), num_classes), jit_compile=False)
        for num_classes in (None, 3)
    )
    mixed, soft = mixing(images, labels, seed=SEED)
    for out in (plain(images, seed=SEED), mixed):
        assert (out.shape, out.dtype) == ((NUM, 20, 28, 3), tf.uint8)
    assert np.abs(soft.numpy().sum(axis=1) - 1).max() < 1e-6
    assert not np.array_equal(soft.numpy(), np.eye(3)[labels])


# Models


def model(recipe: Any, **options: Any) -> Any:
    """Return a model with an augmentation alone."""
    layer = augment.Layer(recipe, **options)
    return keras.Sequential([keras.Input((HEIGHT, WIDTH, 3), dtype="uint8"), layer])


def test_a_layer_augments_in_training_and_does_nothing_in_inference() -> None:
    images = batch()
    layers = model(augment.Compose(IMAGE_OPS[::2]), seed=3)
    assert np.array_equal(layers(images, training=False), images)
    assert np.array_equal(layers.predict(images, verbose=0), images)
    first, second = (np.array(layers(images, training=True)) for _ in range(2))
    assert not np.array_equal(first, images)
    assert not np.array_equal(first, second)
    again = model(augment.Compose(IMAGE_OPS[::2]), seed=3)(images, training=True)
    assert np.array_equal(first, again)


def test_in_inference_a_layer_with_a_crop_resizes_the_whole_image() -> None:
    images = batch()
    layers = model(augment.RandomResizedCrop((12, 10)))
    assert layers.output_shape == (None, 12, 10, 3)
    for out, source in zip(layers.predict(images, verbose=0), images, strict=True):
        expected = Image.fromarray(source).resize((10, 12), Image.Resampling.BILINEAR)
        assert np.abs(out.astype(int) - np.asarray(expected).astype(int)).max() <= 1


@pytest.mark.thorough
def test_a_layer_mixes_labels_that_it_is_given() -> None:
    recipe = replace(augment.classic((20, 28), num_classes=3), jit_compile=False)
    layer = augment.Layer(recipe, seed=1)
    images, labels = tf.constant(batch()), tf.range(NUM) % 3
    out, soft = layer(images, labels, training=True)
    assert (out.shape, soft.shape) == ((NUM, 20, 28, 3), (NUM, 3))
    with pytest.raises(ValueError, match="MixUp: there are no labels to mix; leave this op out"):
        layer(images, training=True)


@pytest.mark.thorough
def test_a_saved_model_loads_with_its_recipe(tmp_path: Path) -> None:
    recipe = augment.classic((20, 28), num_classes=3)
    saved = model(recipe, seed=5)
    saved.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].recipe == recipe
    assert loaded.layers[0].seed == 5
    images = batch()
    assert np.array_equal(loaded.predict(images, verbose=0), saved.predict(images, verbose=0))


# Errors


@pytest.mark.parametrize(("call", "message"), ERRORS.items())
def test_wrong_arguments_are_refused_in_one_line(call: str, message: str) -> None:
    assert message in refused(lambda: eval(call, {"augment": augment, "images": batch()}))


# The document


@pytest.mark.thorough
def test_the_document_s_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(16):
        write(tmp_path / "raw" / "ab"[i % 2] / f"{i}.jpg", jpeg(256, 256, i))
    build(tmp_path / "raw", tmp_path / "tfrecords", name="pets", shards=1, split="train=1")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "augment.md").read_text(), re.DOTALL
    )
    assert len(blocks) >= 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
