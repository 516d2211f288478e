"""The differences between two records of an item: objects, masks, image and further features.

Records with equal bytes are decoded only if the datasets number their classes differently, because
classes are compared by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.kinds import KINDS
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import (
    ANNOTATIONS,
    BOX,
    BOX_LABEL,
    CROWD,
    FILENAME,
    HEIGHT,
    IMAGE,
    IMAGES,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    OBJECTS,
    OF_OBJECTS,
    PROVIDED,
    TARGET_FEATURES,
    TARGET_IMAGE,
    WIDTH,
    Schema,
)
from shardprep.dataset.tfrecord import unframe
from shardprep.errors import RecordError, command_line, counted, some_of

if TYPE_CHECKING:
    import pyarrow as pa

Values = dict[str, list[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Pixels = np.ndarray[Any, np.dtype[np.uint16]]

MASK_PIXELS, FEATURE, RECORD = "mask", "feature", "record"

_IMAGE_FEATURES = (IMAGE, IMAGES, HEIGHT, WIDTH)
_IN_THE_TABLE = {FILENAME, *TARGET_FEATURES.values()}
_IN_WORDS = {BOX, CROWD, OBJECT_MASK, KEYPOINTS, KEYPOINTS_VISIBLE}
"""Features of objects that `words_with_details` does not list as name and values."""
_ON_THE_GRID = {
    name for name in ANNOTATIONS if KINDS[PROVIDED[name].kind].moves in ("box", "points", "pixels")
}
"""Features with positions in the image: their values are rounded differently at another size."""
_HALF = 0.501
"""Maximum distance in pixels of equal points in images of different sizes: 1/2, with rounding."""
_BATCH_RECORDS = 256
_BATCH_BYTES = 16 << 20
_READS_AT_ONCE = 16
_SHOWN = 3
_SHOWN_TEXT = 60


class ComparedSide(NamedTuple):
    """One of the two compared datasets, with a table of its compared items or records."""

    dataset: OpenDataset
    table: pa.Table

    @property
    def names(self) -> frozenset[str]:
        schema = self.dataset.schema
        return frozenset(schema.features) - _IN_THE_TABLE - {*schema.class_features}


class RecordChange(NamedTuple):
    """A difference between two records."""

    number: int
    """Row of both records in the tables of the compared sides."""
    kind: str
    """`OBJECTS`, `MASK_PIXELS`, `FEATURE` or `RECORD`."""
    before: str
    after: str


def has_only_images(one: ComparedSide, two: ComparedSide) -> bool:
    """Return whether the image is the only feature to compare record by record."""
    return not (one.names & two.names) - {*_IMAGE_FEATURES}


def has_other_classes(one: ComparedSide, two: ComparedSide) -> bool:
    """Return whether equal class numbers of objects or masks may mean different classes."""
    features = one.dataset.schema.features, two.dataset.schema.features
    return any(
        features[0][name].labels != features[1][name].labels
        for name in (BOX_LABEL, MASK)
        if name in features[0] and name in features[1]
    )


def record_changes(one: ComparedSide, two: ComparedSide) -> Iterator[RecordChange]:
    """Read all records of two sides and yield their differences, in the order of the rows.

    Equal row numbers of the two tables must belong to one item. RecordError if a record is damaged.
    """
    lengths = np.maximum(*(np.asarray(side.table["length"]) for side in (one, two)))
    compared, is_any_decoded = _Comparison(one, two), has_other_classes(one, two)
    with ThreadPoolExecutor(_READS_AT_ONCE, "shardprep-diff") as pool:
        for rows in _batches(lengths):
            payloads, others = (_payloads(side, rows, pool) for side in (one, two))
            for number, pair in zip(rows, zip(payloads, others, strict=True), strict=True):
                if is_any_decoded or pair[0] != pair[1]:
                    yield from compared.changes(number, *pair)


def _batches(lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[range]:
    """Yield ranges of at most `_BATCH_RECORDS` rows and `_BATCH_BYTES`, but at least one row."""
    start, num_bytes = 0, 0
    for stop, length in enumerate(lengths.tolist()):
        if stop > start and (stop - start == _BATCH_RECORDS or num_bytes + length > _BATCH_BYTES):
            yield range(start, stop)
            start, num_bytes = stop, 0
        num_bytes += length
    if start < len(lengths):
        yield range(start, len(lengths))


class _AdjacentRecords(NamedTuple):
    shard: str
    offset: int
    lengths: list[int]


def _payloads(side: ComparedSide, rows: range, pool: ThreadPoolExecutor) -> list[bytes]:
    runs: list[_AdjacentRecords] = []
    part = side.table.slice(rows.start, len(rows))
    for shard, offset, length in zip(*(column.to_pylist() for column in part.columns), strict=True):
        last = runs[-1] if runs else None
        if last and last.shard == shard and last.offset + sum(last.lengths) == offset:
            last.lengths.append(length)
        else:
            runs.append(_AdjacentRecords(shard, offset, [length]))
    return [one for read in pool.map(lambda run: _read(side.dataset, run), runs) for one in read]


def _read(dataset: OpenDataset, run: _AdjacentRecords) -> list[bytes]:
    data = dataset.files.read(run.shard, run.offset, sum(run.lengths))
    where, at, payloads = f"{dataset}/{run.shard}", 0, []
    for length in run.lengths:
        payloads.append(unframe(data[at : at + length], where, run.offset + at))
        at += length
    return payloads


class _Comparison:
    def __init__(self, one: ComparedSide, two: ComparedSide) -> None:
        self._sides = one, two
        self._decoders = [
            ExampleDecoder(side.dataset.schema.dtypes, side.dataset.schema.features)
            for side in self._sides
        ]
        self._common = names = one.names & two.names
        self._further = sorted(names - {*OF_OBJECTS, *_IMAGE_FEATURES, MASK})
        self._has_objects, self._has_mask = BOX in names or OBJECT_MASK in names, MASK in names

    def changes(self, number: int, *payloads: bytes) -> Iterator[RecordChange]:
        one, two = (self._values(side, number, payload) for side, payload in enumerate(payloads))
        try:
            yield from self._changes(number, one, two)
        except (ArithmeticError, IndexError, KeyError, TypeError, ValueError) as error:
            what = f"cannot be compared ({str(error)[:200] or type(error).__name__})"
            raise self._damaged(0, number, what) from error

    def _values(self, side: int, number: int, payload: bytes) -> Values:
        try:
            return dict(self._decoders[side].decode(payload))
        except RecordError as error:
            raise self._damaged(side, number, error.what) from error

    def _damaged(self, side: int, number: int, what: str) -> RecordError:
        dataset, table = self._sides[side]
        row = table.slice(number, 1).to_pylist()[0]
        hint = f"run {command_line('verify', dataset)} for details"
        return RecordError(f"{dataset}/{row['shard']}", what, hint, offset=row["offset"])

    def _changes(self, number: int, one: Values, two: Values) -> Iterator[RecordChange]:
        size, other = map(_size, (one, two), (side.dataset.schema for side in self._sides))
        for name in self._common & _ON_THE_GRID if size != other else ():
            two = two | {name: _snapped(one[name], two[name], np.minimum(size, other))}
        if self._has_objects and (words := self._objects(size, one, two)):
            yield RecordChange(number, OBJECTS, *words)
        if self._has_mask and (words := self._masks(one, two)):
            yield RecordChange(number, MASK_PIXELS, *words)
        for name in self._further:
            # NaN is not equal to itself, but its text is.
            if one[name] != two[name] and repr(one[name]) != repr(two[name]):
                values = (
                    [f"of {len(side[name][0]):,} bytes"] if name == TARGET_IMAGE else side[name]
                    for side in (one, two)
                )
                yield RecordChange(number, FEATURE, *(f"{name} {_text(one)}" for one in values))
        if any(one.get(name) != two.get(name) for name in _IMAGE_FEATURES):
            yield RecordChange(number, RECORD, "", "")

    def _objects(self, size: Sequence[int], *values: Values) -> tuple[str, str] | None:
        """Return, for each record, the objects that only it has, in words; None if equal."""
        lists = [
            _objects(one, side.dataset.schema, self._common, size)
            for one, side in zip(values, self._sides, strict=True)
        ]
        if lists[0] == lists[1]:
            return None
        counts = [Counter(one) for one in lists]
        apart = [[*(counts[i] - counts[1 - i]).elements()] for i in (0, 1)]
        if not any(apart):
            return counted(len(lists[0]), "object"), "the same in another order"
        words = [[one.words for one in side] for side in apart]
        if words[0] == words[1]:
            words = [[one.words_with_details() for one in side] for side in apart]
        before, after = (some_of(side, _SHOWN) for side in words)
        return before, after

    def _masks(self, *values: Values) -> tuple[str, str] | None:
        """Return each record's pixel counts of the differing classes, in words; None if equal."""
        names = [side.dataset.schema.features[MASK].labels for side in self._sides]
        if names[0] == names[1] and values[0][MASK] == values[1][MASK]:
            return None
        common = {name: i for i, name in enumerate(dict.fromkeys((*names[0], *names[1])))}
        pixels = []
        for record, own in zip(values, names, strict=True):
            masks = [*map(_mask_pixels, record[MASK])]
            mask = (np.concatenate(masks) if masks else np.empty(0)).astype(np.int64)
            places = np.array([common[name] for name in own] or [0], np.int64)
            is_class = mask < len(own)
            pixels.append(np.where(is_class, places[np.where(is_class, mask, 0)], -1))
        if np.array_equal(pixels[0], pixels[1]):
            return None
        counts = [Counter(record.ravel().tolist()) for record in pixels]
        shown = [*common, "no class"]
        other = [i for i in sorted({*counts[0], *counts[1]}) if counts[0][i] != counts[1][i]]
        before, after = (
            some_of([f"{shown[i]} {count[i]:,}" for i in other], _SHOWN) for count in counts
        )
        if pixels[0].shape == pixels[1].shape:
            after = f"{after} ({np.count_nonzero(pixels[0] != pixels[1]):,} pixels differ)".strip()
        return before, after


class _ComparedObject(NamedTuple):
    words: str
    values: tuple[tuple[str, tuple[Any, ...]], ...]
    """The values of each feature except the class, which is compared by its name in `words`."""

    def words_with_details(self) -> str:
        values, details = dict(self.values), list[str]()
        if mask := values.get(OBJECT_MASK):
            details.append(f"{np.count_nonzero(_mask_pixels(mask[0])):,} pixels")
        if KEYPOINTS in values:
            labelled = sum(value > 0 for value in values.get(KEYPOINTS_VISIBLE, ()))
            details.append(f"{counted(labelled, 'keypoint')} at {_text(values[KEYPOINTS])}")
        for name in sorted(values.keys() - _IN_WORDS):
            details.append(f"{name.removeprefix(f'{OBJECTS}/')} {_text(values[name])}")
        return f"{self.words} with {' with '.join(details)}" if details else self.words


def _size(values: Values, schema: Schema) -> Sequence[int]:
    return schema.image_size or [values.get(name, (0,))[0] for name in (HEIGHT, WIDTH)]


def _snapped(one: list[Any], two: list[Any], coarse: Any) -> list[Any]:
    """Return the points or masks `two`, with the values of `one` where both have equal values.

    Points are equal if they differ by at most half a pixel in an image of height and width
    `coarse`. Masks are equal if each pixel of the smaller mask has an equal pixel among the 3 x 3
    pixels around its position in the resized larger mask.
    """
    if len(one) != len(two) or not one:
        return two
    if isinstance(one[0], bytes):
        pairs = zip(one, two, strict=True)
        return [a if a and b and _are_close(*map(_mask_pixels, (a, b))) else b for a, b in pairs]
    was, now = (np.array(side).reshape(-1, 2) for side in (one, two))
    is_near = (np.abs(was - now) * coarse <= _HALF).all(axis=1, keepdims=True)
    return list(np.where(is_near, was, now).ravel().tolist())


def _are_close(one: Pixels, two: Pixels) -> bool:
    fine, coarse = (one, two) if one.size > two.size else (two, one)
    sides = zip(coarse.shape, fine.shape, strict=True)
    near = np.ix_(*(((np.arange(n) + 0.5) * number / n).astype(int) for n, number in sides))
    wide, (height, width) = np.pad(fine[near], 1, mode="edge"), coarse.shape
    moved = (wide[y : y + height, x : x + width] == coarse for y, x in np.ndindex(3, 3))
    return bool(np.any([*moved], axis=0).all())


def _objects(
    values: Values, schema: Schema, common: frozenset[str], size: Sequence[int]
) -> list[_ComparedObject]:
    names = [name for name in OF_OBJECTS if name in common]
    number = max(len(values[name]) // max(schema.features[name].num_values, 1) for name in names)
    labels, crowds = (
        values[name] if name in common else [0] * number for name in (BOX_LABEL, CROWD)
    )
    classes = schema.features[BOX_LABEL].labels if BOX_LABEL in common else ()
    height, width = size
    objects = []
    for i in range(number):
        name = classes[labels[i]] if 0 <= labels[i] < len(classes) else str(labels[i])
        words = f"{name}{' (crowd)' if crowds[i] else ''}"
        of_object = {one: _of_object(values, one, schema, i) for one in names if one != BOX_LABEL}
        if box := of_object.get(BOX):
            sides = np.array((height, width, height, width))
            ymin, xmin, ymax, xmax = (np.array(box) * sides).round(2).tolist()
            words += f" {xmin:g},{ymin:g} {xmax - xmin:g}x{ymax - ymin:g}"
        objects.append(_ComparedObject(words, tuple(of_object.items())))
    return objects


def _of_object(values: Values, name: str, schema: Schema, i: int) -> tuple[Any, ...]:
    number = schema.features[name].num_values
    return tuple(values[name][i * number : (i + 1) * number])


def _mask_pixels(data: bytes) -> Pixels:
    from shardprep.image.masks import decode_mask  # imports Pillow

    return decode_mask(data).pixels


def _text(values: Sequence[Any]) -> str:
    texts = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in values]
    return ", ".join(texts)[:_SHOWN_TEXT] or "nothing"
