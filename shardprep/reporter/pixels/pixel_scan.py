"""The pixel pass: every image of a dataset is decoded once at a reduced size, and measured.

The measures tell dark, blurred and empty pictures; they are computed from the same small squares as
the perceptual hashes, so that the values of two images are comparable. The result is kept in the
cache of this machine under the hash of the manifest, never in the dataset. A pass with damaged
records is not kept, as a repair does not change the manifest.
"""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from shardprep.errors import RecordError
from shardprep.image.phash import LEAST_SIDE, PHASH, TILE, grey_levels, phashes, tile
from shardprep.machine import usable_cores
from shardprep.progress import Watcher
from shardprep.reporter.pixels.stored_images import BOXES
from shardprep.storage.array_cache import array_file, keep_arrays, kept_arrays

if TYPE_CHECKING:
    Pixels = np.ndarray[Any, np.dtype[np.uint8]]
    Floats = np.ndarray[Any, np.dtype[np.float32]]
    from collections.abc import Callable
    from pathlib import Path

    from shardprep.reporter.pixels.stored_images import StoredImages

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Triple = tuple[float, float, float]


MEASURES = np.dtype(
    [
        *PHASH.descr,
        ("brightness", "<f4"),
        ("darkest", "<f4"),
        ("lightest", "<f4"),
        ("entropy", "<f4"),
        ("sharpness", "<f4"),
        ("colour", "<f4"),
    ]
)
"""Numbers of one image: those of a `PHASH`, and others. `brightness` (mean), `darkest` (5th
percentile) and `lightest` (99th) are perceived brightness in 0..1; `entropy` bits of the grey
levels; `sharpness` the strength of edges relative to contrast; `colour` the mean distance between
the channels, 0..1."""

_SQUARES = (np.square(np.arange(256) / 255)[None] * np.array([[0.241], [0.691], [0.068]])).astype(
    np.float32
)
"""Part of red, green and blue, by level, in the square of perceived brightness."""


def sharpness(pixels: Pixels) -> float:
    """Return the strength of the edges of an image uint8[height, width, 3] by its contrast.

    The standard deviation of the Laplacian of grey over that of grey, so that mist is not taken for
    blur. It depends on the resolution, so images are brought to one (`LEAST_SIDE`). 0 for an image
    without contrast.
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
    """Return the standard deviation of small whole numbers, faster than numpy does."""
    plain = values.astype(np.float32).ravel()
    mean = float(plain.mean())
    return math.sqrt(max(0.0, float(plain @ plain) / len(plain) - mean * mean))


def measured(tiles: Pixels) -> np.ndarray[Any, Any]:
    """Return the `MEASURES` of tiles, uint8[n, 56, 56, 3]; sharpness is left at 0."""
    found = np.zeros(len(tiles), MEASURES)
    if not len(tiles):
        return found
    grey = grey_levels(tiles)
    hashed = phashes(tiles, grey)
    for name in PHASH.names or ():
        found[name] = hashed[name]
    red, green, blue = (np.ascontiguousarray(tiles[..., i]) for i in range(3))
    perceived = _SQUARES[0][red] + _SQUARES[1][green] + _SQUARES[2][blue]
    perceived = np.sqrt(perceived, out=perceived)
    tones = _histograms((perceived * 255 + 0.5).astype(np.uint8))
    found["brightness"] = perceived.mean(axis=(1, 2), dtype=np.float64)
    found["darkest"] = _percentile(tones, 0.05)
    found["lightest"] = _percentile(tones, 0.99)
    shares = _histograms(grey) / TILE**2
    found["entropy"] = -(shares * np.log2(shares, where=shares > 0, out=shares * 0)).sum(axis=1)
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    found["colour"] = spread.mean(axis=(1, 2), dtype=np.float64) / 255
    return found


def _histograms(levels: Pixels) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return int64[n, 256]: how many values of each image are of each level."""
    return np.stack([np.bincount(one.ravel(), minlength=256) for one in levels])


def _percentile(histograms: np.ndarray[Any, Any], share: float) -> Floats:
    """Return the level, 0..1, up to which a share of the values of each row lies."""
    sums = histograms.cumsum(axis=1)
    levels: Floats = (sums >= share * sums[:, -1:]).argmax(axis=1).astype(np.float32)
    return levels / np.float32(255)


_VERSION = 3
"""Version of the measures: another one for other numbers of the same pixels."""
_AT_ONCE = 64
"""Records that a thread measures at a time."""
NUM_EXACT = 10_000
"""Images that are decoded whole for the mean and deviation of channels, at most."""
_KEPT = {"measures", "channels", "labels", "counts", "tiles", "boxes"}
"""Names of the arrays that a kept pass has."""


@dataclass(frozen=True, slots=True)
class Channels:
    """Sums over the pixels of some images, exact, per channel: int64[3] each."""

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
        """Return the mean and the standard deviation of red, green and blue, of pixels in 0..1."""
        mean = self.sums / self.num_pixels
        std = np.sqrt(np.maximum(self.squares / self.num_pixels - mean**2, 0))
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())

    @classmethod
    def of(cls, image: Pixels) -> Channels:
        """Return the sums of one image, uint8[height, width, 3]."""
        levels = np.arange(256)
        counts = [np.bincount(image[..., i].ravel(), minlength=256) for i in range(3)]
        sums = np.array([count @ levels for count in counts])
        squares = np.array([count @ levels**2 for count in counts])
        return cls(1, image.shape[0] * image.shape[1], sums, squares)


@dataclass(frozen=True, slots=True)
class Measured:
    """Findings of a pass."""

    numbers: Ints
    """Numbers of the records that were looked at, ascending."""
    measures: np.ndarray[Any, Any]
    """Their `pixels.MEASURES`, in the same order."""
    tiles: dict[int, Ints]
    """Class → sum over its images of their tiles, int64[56, 56, 3], for the classes asked for."""
    num_tiles: dict[int, int]
    """Class → images in that sum."""
    channels: Channels
    """Sums over a seeded sample of at most `NUM_EXACT` images, at their stored size."""
    boxes: np.ndarray[Any, Any]
    """`BOXES` of the records, in their order; none where the dataset has no such thing."""
    damaged: tuple[RecordError, ...] = ()
    damaged_numbers: tuple[int, ...] = ()
    """Records that gave no image, in the order of the errors."""


@dataclass(frozen=True, slots=True)
class PassPlan:
    """The records of a pass; a function of the dataset and the options alone."""

    mark: str
    """Hash of the manifest, hex, and of what tells the records from all of the dataset."""
    numbers: Ints
    exact: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether each is decoded whole."""
    classes: Ints
    """Class of each for which tiles are summed up, −1 for none."""

    @property
    def file(self) -> Path:
        """The file that keeps the result."""
        made = hashlib.sha256(f"{_VERSION} {self.mark}".encode())
        for one in (self.numbers, self.exact, self.classes):
            made.update(one.tobytes())
        return array_file("pixels", made.hexdigest()[:32])


def plan_pass(mark: str, classes: Ints, most: int, seed: int) -> PassPlan:
    """Return the plan to measure all records, or a seeded sample of them if they are too many.

    Args:
        mark: hash of the manifest, hex, and of what tells the records from all of the dataset.
        classes: class of every record whose tiles are wanted, −1 for none.
        most: records that are measured at most.
        seed: of the samples.

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


def measure(plan: PassPlan, images: Callable[[], StoredImages], watcher: Watcher) -> Measured:
    """Return the result of a pass, of the cache if it was made before."""
    found = kept(plan)
    if found is None:
        found = _pass(plan, images(), watcher)
        if not found.damaged:
            _keep(plan, found)
    return found


def _pass(plan: PassPlan, images: StoredImages, watcher: Watcher) -> Measured:
    measures = np.zeros(len(plan.numbers), MEASURES)
    tiles: dict[int, Ints] = {}
    num_tiles: dict[int, int] = {}
    channels = Channels()
    bad: dict[int, RecordError] = {}
    boxes: dict[int, np.ndarray[Any, Any]] = {}
    watcher.start("looking at pixels", len(plan.numbers), "images")
    starts = iter(range(0, len(plan.numbers), _AT_ONCE))
    num_threads = usable_cores()
    with ThreadPoolExecutor(num_threads, "shardprep-pixels") as pool:
        try:
            work = partial(_measure, plan, images)
            begun: set[Future[_Part]] = set()
            while True:
                for start in starts:
                    begun.add(pool.submit(work, start))
                    if len(begun) >= 2 * num_threads:
                        break
                if not begun:
                    break
                done, begun = wait(begun, return_when=FIRST_COMPLETED)
                for one in done:
                    part = one.result()
                    measures[part.start : part.start + len(part.measures)] = part.measures
                    channels += part.channels
                    boxes[part.start] = part.boxes
                    bad.update(part.damaged)
                    for label, (number, total) in part.tiles.items():
                        tiles[label] = tiles.get(label, 0) + total
                        num_tiles[label] = num_tiles.get(label, 0) + number
                    watcher.advance(len(part.measures))
        finally:
            pool.shutdown(cancel_futures=True)
    order = sorted(bad)
    return Measured(
        plan.numbers,
        measures,
        dict(sorted(tiles.items())),
        dict(sorted(num_tiles.items())),
        channels,
        np.concatenate([np.empty(0, BOXES), *(boxes[start] for start in sorted(boxes))]),
        tuple(bad[number] for number in order),
        tuple(order),
    )


@dataclass(slots=True)
class _Part:
    """Findings of one thread, of some records in a row."""

    start: int
    measures: np.ndarray[Any, Any]
    channels: Channels
    tiles: dict[int, tuple[int, Ints]]
    damaged: dict[int, RecordError]
    boxes: np.ndarray[Any, Any]


def _measure(plan: PassPlan, images: StoredImages, start: int) -> _Part:
    numbers = plan.numbers[start : start + _AT_ONCE].tolist()
    tiles = np.zeros((len(numbers), TILE, TILE, 3), np.uint8)
    sharpnesses = np.zeros(len(numbers), np.float32)
    part = _Part(start, np.zeros(0, MEASURES), Channels(), {}, {}, np.empty(0, BOXES))
    boxes = []
    for i, payload in enumerate(images.payloads(numbers)):
        if isinstance(payload, RecordError):
            part.damaged[numbers[i]] = payload
            continue
        try:
            data = images.image(payload)
            boxes.append(images.boxes(numbers[i], payload))
            small = images.pixels(data, LEAST_SIDE)
            tiles[i] = tile(small)
            sharpnesses[i] = sharpness(small)
            if plan.exact[start + i]:
                part.channels += Channels.of(images.pixels(data))
        except Exception as error:  # decoders raise anything
            part.damaged[numbers[i]] = images.damaged(numbers[i], error)
    part.boxes = np.concatenate([part.boxes, *boxes])
    part.boxes["corners"] = np.nan_to_num(part.boxes["corners"]).clip(-1, 2)
    part.measures = measured(tiles)
    part.measures["sharpness"] = sharpnesses
    for i, number in enumerate(numbers):
        if number in part.damaged:
            part.measures[i] = np.zeros((), MEASURES)
    classes = plan.classes[start : start + len(numbers)]
    for label in np.unique(classes[(classes >= 0) & part.measures["decoded"]]).tolist():
        own = tiles[(classes == label) & part.measures["decoded"]]
        part.tiles[label] = (len(own), own.sum(axis=0, dtype=np.int64))
    return part


def kept(plan: PassPlan) -> Measured | None:
    """Return the result of the same pass as it was kept, None where there is none that is whole."""
    found = kept_arrays(plan.file)
    if found is None or found.keys() != _KEPT:
        return None
    measures, channels, boxes = found["measures"], found["channels"], found["boxes"]
    if measures.dtype != MEASURES or measures.shape != plan.numbers.shape:
        return None
    if boxes.dtype != BOXES or boxes.ndim != 1:
        return None
    labels = found["labels"].tolist()
    return Measured(
        plan.numbers,
        measures,
        dict(zip(labels, found["tiles"], strict=True)),
        dict(zip(labels, found["counts"].tolist(), strict=True)),
        Channels(int(channels[0]), int(channels[1]), channels[2:5], channels[5:]),
        boxes,
    )


def _keep(plan: PassPlan, found: Measured) -> None:
    """Keep a result."""
    one = found.channels
    tiles = np.array(list(found.tiles.values()), np.int64).reshape(-1, TILE, TILE, 3)
    arrays = {
        "measures": found.measures,
        "channels": np.array([one.num_images, one.num_pixels, *one.sums, *one.squares]),
        "labels": np.array(list(found.tiles), np.int64),
        "counts": np.array(list(found.num_tiles.values()), np.int64),
        "tiles": tiles,
        "boxes": found.boxes,
    }
    keep_arrays(plan.file, arrays)
