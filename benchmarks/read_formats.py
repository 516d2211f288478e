"""Other formats than JPEG, read beside hand-tuned tf.data: python -m benchmarks.read_formats.

Both sides read the same TFRecords, except for WebP: tf.data reads TFRecords of the WebP files, and
the dataset has the same pixels as PNG. A `DataLoader` of PyTorch with Pillow takes 1.3 to 1.7 times
the processor time of tf.data, so it has no row. Compare processor time if other programs run.
"""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from benchmarks import photos
from benchmarks.measure import Measure, Row, built, interleaved
from benchmarks.read import BATCH, SIDE, decoded, hand_tuned, load, of, ratio
from benchmarks.table import alone
from shardprep.dataset.example import encode

if TYPE_CHECKING:
    from pathlib import Path

PNG = Measure("PNG photos: `Dataset.batches` / hand-tuned `tf.data`", ">= 1.3")
PNG_LOAD = Measure("the same: `load` / hand-tuned `tf.data`", ">= 1.3")
WEBP = Measure("WebP photos, stored as PNG by `--format keep` / `tf.data` of WebP", ">= 1.2")
MASKS = Measure("JPEG, boxes and 5 instance masks: `Dataset.batches` / `tf.data`", ">= 1.2")
STACKS = Measure("stacks of 8 16-bit images: `Dataset.batches` / `tf.data`", ">= 1.2")
RATIOS = {
    PNG: ("png", "png, tf.data"),
    PNG_LOAD: ("png, load", "png, tf.data"),
    WEBP: ("webp", "webp, tf.data"),
    MASKS: ("masks", "masks, tf.data"),
    STACKS: ("stacks", "stacks, tf.data"),
}
MEASURES = tuple(RATIOS)
NUM_MASKS = 5
LENGTH = 8
"""Number of images in a stack."""
STACKS_A_BATCH = BATCH // LENGTH


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return a ratio for each kind of image."""
    batches = 2 if quick else 24
    number = batches // 2 * BATCH
    source = photos.write_folder(folder / "photos", number)
    png = built(folder / "png", source, "--shards", 8, "--format", "png")
    source = photos.write_folder(folder / "webp photos", number, data=_webp())
    webp = built(folder / "webp", source, "--shards", 8, "--format", "keep", "--size", SIDE)
    _write_records(folder / "own-train.tfrecord", source)
    source = _with_masks(folder / "objects", number)
    objects = ("--masks", "masks/{stem}.png", "--instances")
    masks = built(folder / "masks", source, "--shards", 8, "--labels", "none", *objects)
    source = _write_stacks(folder / "volumes", number // LENGTH)
    deep = ("--stack", "{id}/*.png", "--depth", "16")
    stacks = built(folder / "stacks", source, "--shards", 8, "--labels", "none", *deep)
    ways = {
        "png": partial(_batches, png),
        "png, load": partial(load, png),
        "png, tf.data": partial(hand_tuned, png, partial(decoded, form="png")),
        "webp": partial(_batches, webp),
        "webp, tf.data": partial(hand_tuned, folder, partial(decoded, form="webp")),
        "masks": partial(_batches, masks),
        "masks, tf.data": partial(hand_tuned, masks, _objects, batch="padded_batch"),
        "stacks": partial(_batches, stacks, STACKS_A_BATCH),
        "stacks, tf.data": partial(hand_tuned, stacks, _stack, size=STACKS_A_BATCH),
    }
    cost = interleaved({name: partial(of, make, batches) for name, make in ways.items()}, rounds)
    return [ratio(measure, cost, names, batches) for measure, names in RATIOS.items()]


def _batches(folder: Path, size: int = BATCH) -> Any:
    from shardprep import reader

    return reader.Dataset(folder, "train").batches(
        size, shuffle=True, epochs=None, drop_remainder=True
    )


def _objects(record: Any) -> Any:
    import tensorflow as tf

    spec = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "objects/bbox": tf.io.FixedLenSequenceFeature((4,), tf.float32, allow_missing=True),
        "objects/label": tf.io.FixedLenSequenceFeature((), tf.int64, allow_missing=True),
        "objects/mask": tf.io.FixedLenSequenceFeature((), tf.string, allow_missing=True),
    }
    found = tf.io.parse_single_example(record, spec)
    image = tf.io.decode_jpeg(found["image"], channels=3)
    masks = tf.map_fn(
        lambda data: tf.io.decode_png(data, channels=1)[..., 0],
        found["objects/mask"],
        fn_output_signature=tf.TensorSpec((SIDE, SIDE), tf.uint8),
    )
    return (
        tf.ensure_shape(image, (SIDE, SIDE, 3)),
        (found["objects/bbox"], found["objects/label"], masks),
    )


def _stack(record: Any) -> Any:
    import tensorflow as tf

    spec = {"images": tf.io.FixedLenFeature((LENGTH,), tf.string)}
    data = tf.io.parse_single_example(record, spec)["images"]
    images = [tf.io.decode_png(data[i], 1, tf.uint16) for i in range(LENGTH)]
    return tf.ensure_shape(tf.stack(images), (LENGTH, SIDE, SIDE, 1))


def _webp() -> list[bytes]:
    def small(photo: Image.Image) -> Image.Image:
        return ImageOps.fit(photo.convert("RGB"), (SIDE, SIDE))

    return photos.originals_as(small, "WEBP", {})


def _write_records(path: Path, source: Path) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, file in enumerate(sorted(source.glob("*/*"))):
            writer.write(encode({"image": [file.read_bytes()], "label": [number % 2]}))


def _with_masks(folder: Path, number: int) -> Path:
    """Write photos, and for each a PNG in which ellipses have the values 1 to 5."""
    rng = np.random.default_rng(0)
    (folder / "masks").mkdir(parents=True)
    data = photos.originals()
    for i in range(number):
        photo = data[i % len(data)]
        (folder / f"{i}.jpg").write_bytes(photo)
        mask = Image.new("L", Image.open(io.BytesIO(photo)).size)
        for value in range(1, 1 + NUM_MASKS):
            left, top, width, height = (rng.random(4) * 0.5 * (mask.size * 2)).tolist()
            box = (left, top, left + width + 20, top + height + 20)
            ImageDraw.Draw(mask).ellipse(box, fill=value)
        mask.save(folder / "masks" / f"{i}.png")
    return folder


def _write_stacks(folder: Path, number: int) -> Path:
    """Write folders with grey PNG files of 16 bits: photos with noise in the lower byte."""
    rng = np.random.default_rng(0)
    data = photos.originals()
    for i in range(number * LENGTH):
        grey = ImageOps.fit(Image.open(io.BytesIO(data[i % len(data)])).convert("L"), (SIDE, SIDE))
        pixels = np.asarray(grey).astype(np.uint16) * 256 + rng.integers(
            0, 64, (SIDE, SIDE), np.uint16
        )
        path = folder / f"{i // LENGTH:05d}" / f"{i % LENGTH}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


if __name__ == "__main__":
    alone(rows, __doc__)
