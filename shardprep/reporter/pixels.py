"""Stored images by record number, and the pixel pass that measures them.

The pass decodes each image at a reduced size, and a sample also in full. Most measures come from
tiles of one size, so that values of different images are comparable. The result is cached under the
hash of the manifest. A repair does not change that hash, so a result with damage is not cached.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from shardprep.dataset import example
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import BOX, BOX_LABEL, HEIGHT, MAX_SIDE, WIDTH, Schema
from shardprep.dataset.stored_size import check_stored
from shardprep.errors import RecordError, counted
from shardprep.image.decode import stored_pixels
from shardprep.image.near_pairs import METHOD, PAIR, near_pairs
from shardprep.image.thumbnail import LEAST_SIDE, LUMA, THUMBNAIL, thumbnail
from shardprep.machine import usable_cores
from shardprep.progress import Watch
from shardprep.reader.records.records import Records
from shardprep.reader.records.subset import open_subset
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.storage.cache import array_file, keep_arrays, kept_arrays

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Triple = tuple[float, float, float]
Payload = bytes | memoryview

BOXES = np.dtype(
    [("record", "<i8"), ("label", "<i8"), ("corners", "<f4", (4,)), ("size", "<i8", (2,))]
)
"""A box. `label` is −1 without a class. `corners` are ymin, xmin, ymax, xmax as shares (0..1) of
the stored image. `size` is the height and width of that image in pixels, 0 if unknown."""
TILE = 56
"""Side in pixels of the square to which an image is reduced for most measures."""
MEASURES = np.dtype(
    [
        *THUMBNAIL.descr,
        ("contrast", "<f4"),
        ("brightness", "<f4"),
        ("darkest", "<f4"),
        ("lightest", "<f4"),
        ("entropy", "<f4"),
        ("sharpness", "<f4"),
        ("colour", "<f4"),
    ]
)
"""Measures of one image: `THUMBNAIL` and more. `contrast` is the standard deviation of grey, 0 to
255. `brightness` (mean), `darkest` (5th percentile) and `lightest` (99th) are perceived
brightness in 0..1. `entropy` is the entropy of the grey levels in bits. `colour` is the mean over
the pixels of the difference between largest and smallest channel, 0..1. See `sharpness` below."""
_VERSION = 5
"""Version of the measures. Increase it when the same pixels give other values."""
_AT_ONCE = 64
_SMALL = 3 * 256**2
"""Maximum number of channel values of a small image; see `_measure`."""
NUM_EXACT = 10_000
"""Maximum number of images to decode in full, for the mean and deviation of channels."""
_CACHED = {"measures", "channels", "labels", "counts", "tiles", "boxes", "pairs"}
_SQUARES = (np.square(np.arange(256) / 255)[None] * np.array([[0.241], [0.691], [0.068]])).astype(
    np.float32
)
"""float32[3, 256]: part of each red, green and blue level in the squared perceived brightness."""


def open_images(dataset: OpenDataset, split: AnySplit | None = None) -> StoredImages:
    """Return the images of a split (None: of all splits); DatasetError if a shard is missing."""
    splits = "+".join(name for name, one in dataset.manifest.splits.items() if one.num_records)
    return StoredImages(open_subset(dataset, split or splits).records, dataset.schema)


class StoredImages:
    """The stored images of `records`. Numbers are indexes into `records`."""

    def __init__(self, records: Records, schema: Schema) -> None:
        self._records = records
        dtypes = schema.dtypes
        self._name = schema.image_name
        self._decoder = ExampleDecoder(dtypes, (self._name,))
        of_boxes = {BOX, BOX_LABEL, HEIGHT, WIDTH} & dtypes.keys() if BOX in dtypes else set()
        self._box_decoder = ExampleDecoder(dtypes, of_boxes) if of_boxes else None
        self._size = schema.image_size if schema.image.encoding == "raw" else None
        self.schema = schema

    def payloads(self, numbers: Sequence[int]) -> Sequence[Payload | RecordError]:
        return self._records.read(np.asarray(numbers))

    def image(self, payload: Payload) -> bytes:
        """Return a record's encoded image, the middle one of a stack; ValueError without images."""
        features = self._decoder.find(payload) or example.decode(bytes(payload))
        values = features.get(self._name, [])
        has_image = len(values) == 1 or (self.schema.is_stack and values)
        image = values[len(values) // 2] if has_image else None
        if image is None or isinstance(image, (int, float)):
            raise ValueError("the record has no image")
        return bytes(image)

    def boxes(self, number: int, payload: Payload) -> np.ndarray[Any, Any]:
        """Return the `BOXES` of a record; RecordError or ValueError if the record is damaged."""
        if self._box_decoder is None:
            return np.empty(0, BOXES)
        features: dict[str, Any] = dict(
            self._box_decoder.find(payload) or example.decode(bytes(payload))
        )
        sides = features.get(BOX, ())
        if len(sides) % 4:
            what = f"{BOX} has {counted(len(sides), 'value')}, which is not a multiple of 4"
            raise RecordError("", what)
        boxes = np.empty(len(sides) // 4, BOXES)
        boxes["record"] = number
        boxes["corners"] = np.array(sides, np.float32).reshape(-1, 4)
        boxes["label"] = features.get(BOX_LABEL, -1)
        height, width = features.get(HEIGHT) or (0,), features.get(WIDTH) or (0,)
        size = self.schema.image_size or (height[0], width[0])
        boxes["size"] = tuple(min(max(side, 0), MAX_SIDE) for side in size)
        return boxes

    def pixels(self, data: bytes, least_side: int = 0) -> Pixels:
        """Return an image as RGB, uint8[height, width, 3].

        A JPEG may be decoded smaller, to a shorter side of at least `least_side`; 0 keeps its size.
        """
        if self._size is None:
            check_stored(data)
        return stored_pixels(data, self._size, least_side)

    def damaged(self, number: int, error: Exception) -> RecordError:
        if isinstance(error, RecordError):
            return self._records.damaged(number, error.what)
        what = " ".join(str(error).split())[:200] or type(error).__name__
        return self._records.damaged(number, f"its image cannot be decoded ({what})")


def sharpness(pixels: Pixels) -> float:
    """Return the strength of edges of an image, uint8[height, width, 3]; 0 without contrast.

    The strength is the standard deviation of the Laplacian divided by the standard deviation of the
    grey levels. The division prevents low contrast from counting as blur. Sharpness depends on
    resolution, so larger images are first reduced to a shorter side of `LEAST_SIDE`.
    """
    image = Image.fromarray(pixels).convert("L")
    ratio = LEAST_SIDE / min(image.size)
    if ratio < 1:
        size = (round(image.width * ratio), round(image.height * ratio))
        image = image.resize(size, Image.Resampling.BOX)
    grey = np.asarray(image).astype(np.int16)
    if min(grey.shape) < 3:
        return 0.0
    edges = 4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1]
    edges -= grey[1:-1, :-2] + grey[1:-1, 2:]
    spread = _deviation(grey)
    return _deviation(edges) / spread if spread > 0.5 else 0.0


def _deviation(values: np.ndarray[Any, np.dtype[np.int16]]) -> float:
    """Return the standard deviation of small integers, faster than `np.std`."""
    plain = values.astype(np.float32).ravel()
    mean = float(plain.mean())
    return math.sqrt(max(0.0, float(plain @ plain) / len(plain) - mean * mean))


def tile(pixels: Pixels) -> Pixels:
    """Return an image, uint8[height, width, 3], as a tile of area means, uint8[56, 56, 3]."""
    image = Image.fromarray(pixels)
    if image.width % TILE == image.height % TILE == 0:  # takes a third of the time
        return np.asarray(image.reduce((image.width // TILE, image.height // TILE)))
    return np.asarray(image.resize((TILE, TILE), Image.Resampling.BOX))


def measured(tiles: Pixels) -> np.ndarray[Any, Any]:
    """Return the `MEASURES` of tiles, uint8[n, 56, 56, 3]; sharpness and thumbnail stay 0."""
    measures = np.zeros(len(tiles), MEASURES)
    if not len(tiles):
        return measures
    grey = ((tiles @ LUMA) >> 8).astype(np.uint8)
    levels = grey.reshape(len(grey), TILE**2).astype(np.float64)
    sums, squares = levels.sum(axis=1), np.square(levels).sum(axis=1)
    measures["contrast"] = np.sqrt(squares * TILE**2 - sums**2) / TILE**2
    red, green, blue = (np.ascontiguousarray(tiles[..., i]) for i in range(3))
    perceived = _SQUARES[0][red] + _SQUARES[1][green] + _SQUARES[2][blue]
    perceived = np.sqrt(perceived, out=perceived)
    tones = _histograms((perceived * 255 + 0.5).astype(np.uint8))
    measures["brightness"] = perceived.mean(axis=(1, 2), dtype=np.float64)
    measures["darkest"] = _percentile(tones, 0.05)
    measures["lightest"] = _percentile(tones, 0.99)
    shares = _histograms(grey) / TILE**2
    measures["entropy"] = -(shares * np.log2(shares, where=shares > 0, out=shares * 0)).sum(axis=1)
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    measures["colour"] = spread.mean(axis=(1, 2), dtype=np.float64) / 255
    return measures


def _histograms(levels: Pixels) -> Ints:
    return np.stack([np.bincount(one.ravel(), minlength=256) for one in levels])


def _percentile(histograms: Ints, share: float) -> Any:
    sums = histograms.cumsum(axis=1)
    return (sums >= share * sums[:, -1:]).argmax(axis=1).astype(np.float32) / np.float32(255)


@dataclass(frozen=True, slots=True)
class Channels:
    """Exact sums and sums of squares over the pixels of images, by channel (int64[3])."""

    num_images: int = 0
    num_pixels: int = 0
    sums: Ints = field(default_factory=lambda: np.zeros(3, np.int64))
    squares: Ints = field(default_factory=lambda: np.zeros(3, np.int64))

    def __add__(self, other: Channels) -> Channels:
        return Channels(
            self.num_images + other.num_images,
            self.num_pixels + other.num_pixels,
            self.sums + other.sums,
            self.squares + other.squares,
        )

    def mean_std(self) -> tuple[Triple, Triple]:
        """Return the means and standard deviations of red, green and blue, for pixels in 0..1."""
        mean = self.sums / self.num_pixels
        std = np.sqrt(np.maximum(self.squares / self.num_pixels - mean**2, 0))
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())

    @classmethod
    def of(cls, image: Pixels) -> Channels:
        levels = np.arange(256)
        counts = [np.bincount(image[..., i].ravel(), minlength=256) for i in range(3)]
        sums = np.array([count @ levels for count in counts])
        squares = np.array([count @ levels**2 for count in counts])
        return cls(1, image.shape[0] * image.shape[1], sums, squares)


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of a pixel pass, or of a part of it."""

    numbers: Ints
    """Numbers of the measured records, ascending."""
    measures: np.ndarray[Any, Any]
    """`MEASURES` of each record in `numbers`."""
    tiles: dict[int, tuple[int, Ints]]
    """Pictured class → number of its measured images, and sum of their tiles, int64[56, 56, 3]."""
    channels: Channels
    """Sums over a seeded sample of at most `NUM_EXACT` images, at their stored size."""
    boxes: np.ndarray[Any, Any]
    """`BOXES` in record order; empty in a dataset without boxes."""
    pairs: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, PAIR))
    """The `near_pairs` of all measures, as indexes into them; empty in a part of a pass."""
    damaged: dict[int, RecordError] = field(default_factory=dict)
    """Record number → its error."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The records that a pixel pass measures, and how. A plan identifies a cached result."""

    mark: str
    """Identity of the dataset and its scope, see `Contents.mark`."""
    numbers: Ints
    exact: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether each record is also decoded in full, for the channels."""
    classes: Ints
    """Class of each record, or −1 if the tiles of its class are not summed."""

    @property
    def file(self) -> Path:
        digest = hashlib.sha256(f"{_VERSION} {METHOD} {self.mark}".encode())
        for array in (self.numbers, self.exact, self.classes):
            digest.update(array.tobytes())
        return array_file("pixels", digest.hexdigest()[:32])


def plan_pass(mark: str, classes: Ints, most: int, seed: int) -> PassPlan:
    """Return the plan to measure all records, or a seeded sample of `most` records.

    `classes` is the class of each record of the dataset, or −1 if its tile is not summed.
    """
    draw = np.random.default_rng(seed)
    numbers = np.arange(len(classes))
    if len(numbers) > most:
        numbers = np.sort(draw.choice(numbers, most, replace=False))
    exact = np.ones(len(numbers), bool)
    if len(numbers) > NUM_EXACT:
        exact[:] = False
        exact[draw.choice(len(numbers), NUM_EXACT, replace=False)] = True
    return PassPlan(mark, numbers, exact, classes[numbers])


def measure(plan: PassPlan, images: Callable[[], StoredImages], watcher: Watch) -> ScanResult:
    """Return the result of a pixel pass, from the cache if possible. Cache it if undamaged."""
    result = kept(plan)
    if result is None:
        result = _pass(plan, images(), watcher)
        if not result.damaged:
            _keep(plan, result)
    return result


def _pass(plan: PassPlan, images: StoredImages, watcher: Watch) -> ScanResult:
    measures = np.zeros(len(plan.numbers), MEASURES)
    tiles: dict[int, tuple[int, Ints]] = {}
    channels = Channels()
    bad: dict[int, RecordError] = {}
    boxes = [np.empty(0, BOXES)]
    watcher.start("looking at pixels", len(plan.numbers), "images")
    starts = range(0, len(plan.numbers), _AT_ONCE)
    with ThreadPoolExecutor(usable_cores(), "shardprep-pixels") as pool:
        try:
            parts = pool.map(partial(_measure, plan, images, Lock()), starts)
            for start, part in zip(starts, parts, strict=True):
                measures[start : start + len(part.measures)] = part.measures
                channels += part.channels
                boxes.append(part.boxes)
                bad.update(part.damaged)
                for label, (number, total) in part.tiles.items():
                    before = tiles.get(label, (0, 0))
                    tiles[label] = before[0] + number, before[1] + total
                watcher.advance(len(part.measures))
        finally:
            pool.shutdown(cancel_futures=True)
    return ScanResult(
        plan.numbers,
        measures,
        dict(sorted(tiles.items())),
        channels,
        np.concatenate(boxes),
        near_pairs(measures),
        bad,
    )


def _measure(plan: PassPlan, images: StoredImages, lock: Lock, start: int) -> ScanResult:
    """Return the measures of `_AT_ONCE` images of the plan, from index `start`.

    Several threads decode images. The many short steps for a small image hold Python's GIL and are
    slower in several threads, so `lock` lets only one thread at a time run these steps.
    """
    numbers = plan.numbers[start : start + _AT_ONCE]
    tiles = np.zeros((len(numbers), TILE, TILE, 3), np.uint8)
    thumbnails = np.zeros(len(numbers), THUMBNAIL)
    sharpnesses = np.zeros(len(numbers), np.float32)
    channels, parts, bad = Channels(), [np.empty(0, BOXES)], dict[int, RecordError]()
    payloads = images.payloads(numbers.tolist())
    for i, (number, payload) in enumerate(zip(numbers.tolist(), payloads, strict=True)):
        if isinstance(payload, RecordError):
            bad[number] = payload
            continue
        try:
            data = images.image(payload)
            parts.append(images.boxes(number, payload))
            small = images.pixels(data, LEAST_SIDE)
            with lock if small.size <= _SMALL else nullcontext():
                tiles[i], thumbnails[i] = tile(small), thumbnail(small)
                sharpnesses[i] = sharpness(small)
            if plan.exact[start + i]:
                channels += Channels.of(images.pixels(data))
        except Exception as error:  # decoders raise any type of exception
            bad[number] = images.damaged(number, error)
    boxes = np.concatenate(parts)
    boxes["corners"] = np.nan_to_num(boxes["corners"]).clip(-1, 2)
    with lock:
        measures = measured(tiles)
    measures["sharpness"] = sharpnesses
    for name in THUMBNAIL.names or ():
        measures[name] = thumbnails[name]
    measures[np.isin(numbers, [*bad])] = np.zeros((), MEASURES)
    classes = plan.classes[start : start + len(numbers)]
    sums = {}
    for label in np.unique(classes[(classes >= 0) & measures["decoded"]]).tolist():
        own = tiles[(classes == label) & measures["decoded"]]
        sums[label] = (len(own), own.sum(axis=0, dtype=np.int64))
    return ScanResult(numbers, measures, sums, channels, boxes, damaged=bad)


def kept(plan: PassPlan) -> ScanResult | None:
    """Return the cached result of a pass, or None if it is missing or invalid."""
    arrays = kept_arrays(plan.file)
    if arrays is None or arrays.keys() != _CACHED:
        return None
    measures, boxes, pairs = arrays["measures"], arrays["boxes"], arrays["pairs"]
    if (measures.dtype, boxes.dtype, pairs.dtype) != (MEASURES, BOXES, PAIR):
        return None
    if measures.shape != plan.numbers.shape or boxes.ndim != 1 or pairs.ndim != 1:
        return None
    ends = np.concatenate([pairs["inner"], pairs["outer"]])
    if ((ends < 0) | (ends >= len(measures))).any():
        return None
    channels = arrays["channels"]
    sums = zip(arrays["counts"].tolist(), arrays["tiles"], strict=True)
    return ScanResult(
        plan.numbers,
        measures,
        dict(zip(arrays["labels"].tolist(), sums, strict=True)),
        Channels(int(channels[0]), int(channels[1]), channels[2:5], channels[5:]),
        boxes,
        pairs,
    )


def _keep(plan: PassPlan, result: ScanResult) -> None:
    channels, tiles = result.channels, [total for _, total in result.tiles.values()]
    sums = [channels.num_images, channels.num_pixels, *channels.sums, *channels.squares]
    arrays = {
        "measures": result.measures,
        "channels": np.array(sums),
        "labels": np.array(list(result.tiles), np.int64),
        "counts": np.array([number for number, _ in result.tiles.values()], np.int64),
        "tiles": np.array(tiles, np.int64).reshape(-1, TILE, TILE, 3),
        "boxes": result.boxes,
        "pairs": result.pairs,
    }
    keep_arrays(plan.file, arrays)
