"""Crops of both readers: pixels as of Pillow, boxes as of torchvision, decided by the seed."""

import io
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import tensorflow as tf
from PIL import Image

from shardprep import reader
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, IMAGE, MASK, OBJECT_MASK
from shardprep.reader.config import CenterCrop, CropWindow, RandomResizedCrop
from shardprep.reader.decode import crop as crops
from tests.reader.datasets import put, refused
from tests.reader.worker_processes import all_same
from tests.support.annotated import CLASSES, HEIGHT, WIDTH, Marked, annotated
from tests.support.builders import build, encoded, jpeg, png, write, zip_bytes
from tests.support.object_store import Bucket

SIZE = (24, 40)
ALL = (BOX, BOX_LABEL, CROWD, OBJECT_MASK, MASK)
CROP = RandomResizedCrop((40, 56), scale=(0.2, 0.9), min_visible=0.3)
NUM_TRAIN = 14


def large(seed: int) -> bytes:
    """Return a JPEG of 480x360 with edges and grain, like a photo."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8))
    smooth = np.asarray(coarse.resize((480, 360), Image.Resampling.BICUBIC)).astype(float)
    smooth[100:220, 130:300] = rng.integers(0, 256, 3)
    grain = smooth + rng.normal(0, 6, smooth.shape)
    return encoded(Image.fromarray(grain.clip(0, 255).astype(np.uint8)), quality=92)


@pytest.fixture(scope="module", name="photos")
def _photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of JPEG and PNG of mixed sizes, large and small."""
    root = tmp_path_factory.mktemp("photos")
    members = {f"train/{'ab'[i % 2]}/{i}.jpg": large(i) for i in range(6)}
    members |= {
        "train/a/s.jpg": jpeg(30, 70),
        "train/a/p.png": png(60, 50),
        "train/b/t.jpg": jpeg(),
    }
    source = write(root / "photos.zip", zip_bytes(members))
    return build(source, root / "out", size="none", format="keep", labels="folder").path


@pytest.fixture(scope="module", name="marked")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of PNG images of one size, with boxes and masks that do not overlap."""
    rng = np.random.default_rng(3)
    found: dict[str, Marked] = {"train/x/none.png": Marked()}
    for i in range(NUM_TRAIN - 1):
        places = [(0, 0, 20, 28), (4, 34, 22, 62), (24, 2, 46, 30), (25, 33, 47, 64)]
        chosen = tuple(places[k] for k in sorted(rng.choice(4, 1 + i % 4, replace=False)))
        labels = tuple(rng.integers(0, len(CLASSES), len(chosen)).tolist())
        found[f"train/x/{i}.png"] = Marked(chosen, labels)
    return annotated(tmp_path_factory.mktemp("marked"), *ALL, marked=found)


def cropped(
    data: bytes, crop: RandomResizedCrop | CenterCrop, key: int, out: Any
) -> tuple[CropWindow, tuple[int, int]]:
    """Fill `out` with the crop of a JPEG; return its window and the size of the image."""
    part = crops.jpeg_crop(data, crop, key)
    assert part is not None
    assert crops.fill_jpeg(data, part, out)
    return part.window, part.size


def arrays(batches: Any) -> list[list[Any]]:
    return [[np.asarray(one) for one in tf.nest.flatten(batch)] for batch in batches]


def torchvisions(rng: Any, height: int, width: int, scale: Any, ratio: Any) -> Any:
    """Draw like `RandomResizedCrop.get_params` of torchvision 0.28: top, left, height, width."""
    area = height * width
    for _ in range(10):
        target = area * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(*map(math.log, ratio)))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w
    if width / height < min(ratio):
        w, h = width, round(width / min(ratio))
    elif width / height > max(ratio):
        h, w = height, round(height * max(ratio))
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize("size", [(375, 500), (300, 90)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 1.0)])
def test_boxes_are_distributed_like_those_of_torchvision(
    size: tuple[int, int], scale: tuple[float, float]
) -> None:
    """A Kolmogorov-Smirnov test of each side, at a level of 0.001 with fixed seeds."""
    number, crop = 3000, RandomResizedCrop((8, 8), scale)
    keys = crops.crop_keys(12345, np.arange(number) * 37)
    ours = np.array([crop.window(*size, crops.draws(key))[:4] for key in keys])
    rng = np.random.default_rng(0)
    theirs = np.array([torchvisions(rng, *size, scale, crop.ratio) for _ in range(number)])
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= size).all()
    assert (ours[:, 2:] > 0).all()
    for one, other in zip(ours.T, theirs.T, strict=True):
        grid = np.unique(np.concatenate([one, other]))
        shares = [np.searchsorted(np.sort(x), grid, "right") / number for x in (one, other)]
        assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(2 / number)
    # The boxes of neighbouring records are independent.
    varied = ours[:, ours.std(axis=0) > 0].T
    pairs = np.corrcoef(varied[:, :-1], varied[:, 1:])[: len(varied), len(varied) :]
    assert np.abs(pairs).max(initial=0) < 4.5 / math.sqrt(number)


@pytest.mark.parametrize(
    ("size", "fraction", "window"),
    [
        ((100, 100), 1.0, (0, 62, 375, 375)),
        ((224, 224), 0.875, (23, 86, 328, 328)),
        ((50, 200), 1.0, (125, 0, 125, 500)),
        ((200, 50), 1.0, (0, 203, 375, 94)),
    ],
)
def test_a_center_crop_is_the_middle_in_the_aspect_of_the_result(
    size: tuple[int, int], fraction: float, window: tuple[int, ...]
) -> None:
    assert CenterCrop(size, fraction).window(375, 500, iter(())) == (*window, False)


def test_a_crop_has_the_pixels_that_pillow_cuts_and_resizes(photos: Path) -> None:
    """They are equal if the image is decoded at its size, else they differ by a few levels."""
    crop = CenterCrop(SIZE)
    batches = reader.Dataset(photos).batches(4, as_supervised=False, center_crop=SIZE)
    found = {
        name: image
        for batch in batches
        for name, image in zip(batch["image/filename"], batch[IMAGE], strict=True)
    }
    stored = reader.Dataset(photos, decode=False, as_supervised=False)
    assert len(found) == len(stored) == 9
    for item in stored:
        name, image = item["image/filename"], Image.open(io.BytesIO(item[IMAGE])).convert("RGB")
        window = crop.window(image.height, image.width, iter(()))
        top, left, height, width, _ = window
        box = (left, top, left + width, top + height)
        wanted = image.resize(SIZE[::-1], Image.Resampling.BICUBIC, box=box)
        off = np.abs(np.asarray(wanted).astype(int) - found[name])
        if crops.scale_of(window, SIZE) == 1:
            assert off.max() == 0, name
        else:
            assert off.mean() < 2, name
            assert np.quantile(off, 0.99) <= 12, name


def test_a_crop_has_the_pixels_that_tensorflow_decodes() -> None:
    data, crop, key = large(1), RandomResizedCrop((180, 200), scale=(0.3, 0.9)), 77
    out = np.empty((*crop.size, 3), np.uint8)
    window, size = cropped(data, crop, key, out)
    assert size == (360, 480)
    region = tf.image.decode_and_crop_jpeg(
        data, window[:4], channels=3, dct_method="INTEGER_ACCURATE"
    ).numpy()
    wanted = Image.fromarray(region).resize(crop.size[::-1], Image.Resampling.BICUBIC)
    inner = (slice(3, -3), slice(3, -3))  # at its edges, ours also reads pixels beyond
    assert np.abs(np.asarray(wanted)[inner].astype(int) - out[inner]).max() <= 2


def test_a_jpeg_is_decoded_as_small_as_the_crop_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes, decode = [], simplejpeg.decode_jpeg

    def noted(*args: Any, **options: Any) -> Any:
        pixels = decode(*args, **options)
        shapes.append(pixels.shape[:2])
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    for side in (360, 181, 180, 91, 90, 45, 12):
        cropped(large(0), CenterCrop((side, side)), 0, np.empty((side, side, 3), np.uint8))
    half, quarter, eighth = (180, 240), (90, 120), (45, 60)
    assert shapes == [(360, 480)] * 2 + [half] * 2 + [quarter] + [eighth] * 2


def test_crops_of_images_of_different_sizes_are_batched(photos: Path) -> None:
    options: dict[str, Any] = {"seed": 5, "random_resized_crop": SIZE}
    batches = list(reader.Dataset(photos).batches(4, **options))
    assert [images.shape for images, _ in batches] == [(4, *SIZE, 3), (4, *SIZE, 3), (1, *SIZE, 3)]
    assert all_same(batches, reader.load(photos, batch_size=4, **options))
    assert all_same(batches, reader.load(photos, **options).batch(4))
    # A cache has whole images. They differ from images that were decoded at a smaller scale.
    cached = arrays(reader.load(photos, batch_size=4, cache="memory", **options))
    for (images, labels), (others, same_labels) in zip(arrays(batches), cached, strict=True):
        assert np.array_equal(labels, same_labels)
        assert np.abs(images.astype(int) - others).mean() < 2


def test_one_number_is_the_side_of_a_square(photos: Path) -> None:
    """As in `size=224` of a build."""
    dataset, square = reader.Dataset(photos), np.int64(9)
    for name, crop in (("random_resized_crop", reader.RandomResizedCrop), ("center_crop", None)):
        options: tuple[dict[str, Any], ...] = {name: (9, 9)}, {name: square}
        one, two = (list(dataset.batches(4, seed=5, **given)) for given in options)
        assert all_same(one, two)
        made: Any = crop
        assert made is None or made(9) == made((9, 9))
    whole: Any = reader.ReadConfig
    assert whole(image_size=9) == whole(image_size=(9, 9))


@pytest.mark.thorough
def test_the_seed_decides_the_crops_in_every_reader_and_cache(marked: Path, tmp_path: Path) -> None:
    """With boxes and masks: in batches and single items, resumed, and with bad records skipped."""
    crop: dict[str, Any] = {"random_resized_crop": CROP, "max_boxes": 3}
    options: dict[str, Any] = {"seed": 2, **crop}
    epochs = list(reader.Dataset(marked).batches(4, epochs=2, **options))
    first, second = epochs[:4], epochs[4:]
    assert not all_same(first, second)
    load = {"batch_size": 4, **options}
    one_by_one = reader.load(marked, repeat=2, **options).batch(NUM_TRAIN).take(1)
    for others in (
        reader.load(marked, **load),
        reader.load(marked, cache="memory", **load),
        reader.load(marked, cache=tmp_path / "cache", **load),
        reader.load(marked, read_config=reader.ReadConfig(on_error="skip"), **load),
    ):
        assert all_same(first, others)
        assert all_same(second, others)  # the next epoch
    hosts = [
        reader.Dataset(marked).batches(2, num_shards=2, shard_index=host, **options)
        for host in range(2)
    ]
    for (images, _), *parts in zip(first, *hosts, strict=True):
        assert np.array_equal(images, np.concatenate([own for own, _ in parts]))
    single = arrays(one_by_one)[0]
    for place, column in enumerate(single):
        assert np.array_equal(column, np.concatenate([one[place] for one in arrays(first)]))
    begun = reader.Dataset(marked).batches(4, epochs=None, **options)
    list(islice(begun, 2))
    for again in (
        reader.iterate(marked, batch_size=4, **crop),
        reader.Dataset(marked).batches(4, **crop),
    ):
        again.load_state_dict(begun.state_dict())
        assert all_same(first[2:], again)


@pytest.mark.thorough
def test_crops_in_object_storage_are_the_same_as_in_a_folder(marked: Path, bucket: Bucket) -> None:
    options: dict[str, Any] = {"seed": 2, "random_resized_crop": CROP}
    here = list(reader.Dataset(marked).batches(4, **options))
    there = put(bucket, marked)
    assert all_same(here, reader.Dataset(there).batches(4, **options))
    assert all_same(here, reader.load(there, batch_size=4, **options))


def test_a_record_that_is_drawn_again_has_another_crop(marked: Path) -> None:
    weights = np.eye(NUM_TRAIN)[0]
    options: dict[str, Any] = {"seed": 1, "weights": weights, "random_resized_crop": (9, 9)}
    (batch,) = reader.Dataset(marked).batches(NUM_TRAIN, **options)
    assert len({image.tobytes() for image in batch[0]}) > NUM_TRAIN // 2
    assert all_same([batch], reader.load(marked, batch_size=NUM_TRAIN, **options))


@pytest.mark.parametrize(
    "crop",
    [CROP, replace(CROP, flip=0.5), CenterCrop((30, 30), 0.9)],
    ids=["random", "flipped", "center"],
)
def test_boxes_and_masks_fit_the_pixels_of_a_crop(marked: Path, crop: Any) -> None:
    is_random = isinstance(crop, RandomResizedCrop)
    name = "random_resized_crop" if is_random else "center_crop"
    seen = cut_away = 0
    whole = {one["image/filename"]: one for one in reader.Dataset(marked, as_supervised=False)}
    options: dict[str, Any] = {"seed": 4, "epochs": 3, "as_supervised": False, name: crop}
    for batch in reader.Dataset(marked).batches(NUM_TRAIN, **options):
        sides = np.array(crop.size * 2, np.float32)
        for i, image in enumerate(batch[IMAGE].astype(int)):
            there = batch[BOX_LABEL][i] >= 0
            assert there.tolist() == sorted(there.tolist(), reverse=True)
            assert (batch[BOX][i][~there] == -1).all()
            assert not batch[OBJECT_MASK][i][~there].any()
            red, _, blue = (image[..., k] for k in range(3))
            classes = batch[MASK][i, ..., 0]
            strong = (np.abs(red - blue) > 150) & (classes != 255)
            agrees = classes[strong] == np.where(red > blue, 1, 2)[strong]
            assert agrees.sum() >= 0.9 * agrees.size
            of = whole[batch["image/filename"][i]]
            cut_away += len(of[BOX_LABEL]) - there.sum()
            for box, mask in zip(batch[BOX][i][there], batch[OBJECT_MASK][i][there], strict=True):
                top, left, bottom, right = box * sides
                rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
                ends = np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1])
                assert np.abs(ends - [top, left, bottom, right]).max() <= 1
                assert (bottom - top >= 0.99) & (right - left >= 0.99)
                seen += 1
    assert seen > NUM_TRAIN
    assert cut_away or not is_random


@pytest.mark.parametrize("form", ["jpeg", "raw", "deep"])
def test_a_flip_mirrors_the_pixels_of_the_same_boxes(form: str) -> None:
    """A JPEG is decoded, raw pixels are a view of the record, deep ones have 16 bits."""
    data, key, mirrored = large(1), 77, 0
    pixels: Any = np.asarray(Image.open(io.BytesIO(data)))
    pixels = pixels[..., :1].astype(np.uint16) * 257 if form == "deep" else pixels
    for number in range(60):
        outs = []
        for flip in (0.0, 0.25, 1.0):
            crop = RandomResizedCrop((40, 56), flip=flip)
            out: Any = np.empty((*crop.size, pixels.shape[2]), pixels.dtype)
            if form == "jpeg":
                found = cropped(data, crop, key + number, out)
            else:
                found = crops.crop_pixels(pixels, crop, key + number, out)
            outs.append((found[0], out))
        (window, plain), (maybe, either), (always, flipped) = outs
        assert window[:4] == maybe[:4] == always[:4]
        assert not window.mirrored
        assert always.mirrored
        assert np.array_equal(flipped, plain[:, ::-1])
        assert np.array_equal(either, flipped if maybe.mirrored else plain)
        mirrored += maybe.mirrored
    assert 5 <= mirrored <= 25  # of 60, with a probability of a quarter


def test_a_flip_is_the_same_in_both_readers_and_from_a_cache(marked: Path, tmp_path: Path) -> None:
    crop = replace(CROP, flip=0.5)
    options: dict[str, Any] = {"seed": 2, "max_boxes": 3, "random_resized_crop": crop}
    batches = list(reader.Dataset(marked).batches(4, **options))
    assert all_same(batches, reader.load(marked, batch_size=4, **options))
    assert all_same(batches, reader.load(marked, batch_size=4, cache=tmp_path / "cache", **options))
    plain = list(reader.Dataset(marked).batches(4, **{**options, "random_resized_crop": CROP}))
    one, other = (np.concatenate([images for images, _ in some]) for some in (batches, plain))
    is_mirrored = (one != other).any((1, 2, 3))
    assert 2 <= is_mirrored.sum() <= NUM_TRAIN - 2
    assert np.array_equal(one[is_mirrored], other[is_mirrored][:, :, ::-1])


def test_keypoints_of_a_mirrored_crop_change_their_sides() -> None:
    window = CropWindow(2, 10, 8, 20, mirrored=True)  # of an image of 12x40
    points = np.array([[2 / 12, 10 / 40], [6 / 12, 25 / 40], [10 / 12, 31 / 40]])
    places, visible = crops.moved_points(points, np.array([1, 2, 2]), window, (12, 40), (1, 0, 2))
    assert places == pytest.approx(np.array([[0.5, 0.25], [0.0, 1.0], [0.0, 0.0]]))
    assert visible.tolist() == [2, 1, 0]  # the last is outside


def test_a_box_that_is_not_visible_enough_is_dropped(tmp_path: Path) -> None:
    """The crop is the middle 48 of 64 columns."""
    boxes = ((0, 0, 48, 16), (0, 60, 48, 64), (4, 0, 8, 10), (10, 20, 20, 30))
    marked = {"train/a.png": Marked(boxes, (0, 1, 0, 1))}
    path = annotated(tmp_path, *ALL, marked=marked, shards=1)

    def labels(min_visible: float) -> Any:
        crop = CenterCrop((HEIGHT, HEIGHT), min_visible=min_visible)
        ((_, target),) = reader.Dataset(path).batches(1, center_crop=crop)
        return target["labels"][0].tolist(), target["boxes"][0]

    assert WIDTH - HEIGHT == 16
    kept, moved = labels(0.1)
    assert kept == [0, 0, 1]
    assert moved == pytest.approx(
        np.array(
            [[0, 0, 1, 8 / 48], [4 / 48, 0, 8 / 48, 2 / 48], [10 / 48, 12 / 48, 20 / 48, 22 / 48]]
        )
    )
    assert labels(0.5)[0] == [0, 1]
    assert labels(0.51)[0] == [1]


def test_options_that_contradict_a_crop_are_an_error(photos: Path) -> None:
    crop: dict[str, Any] = {"random_resized_crop": (8, 8)}

    def load(**options: Any) -> str:
        return refused(lambda: reader.load(photos, batch_size=2, **crop, **options))

    def batches(decode: bool = True, **options: Any) -> str:  # noqa: FBT001 - as Dataset's
        dataset = reader.Dataset(photos, decode=decode)
        return refused(lambda: dataset.batches(2, **crop, **options))

    both = "random_resized_crop and center_crop"
    assert both in load(center_crop=(8, 8))
    assert "a crop has its own size" in load(read_config=reader.ReadConfig(image_size=(8, 8)))
    assert both in batches(center_crop=(8, 8))
    assert "decode=False" in batches(decode=False)
    assert "scale=" in refused(lambda: RandomResizedCrop((8, 8), scale=(0.9, 0.1)))
