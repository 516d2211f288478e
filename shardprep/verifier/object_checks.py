"""Checks of the boxes and masks of one record against the schema and its row in `items.parquet`."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from shardprep.dataset.example import Features
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, Feature
from shardprep.dataset.stored_size import open_stored
from shardprep.verifier.problem import Fault

_SIDES = 4
"""Values of a box: ymin, xmin, ymax, xmax."""
PNG, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
_HEADER = struct.Struct(">8xI4sIIBB")
"""Start of a PNG: length and name of its first chunk, width, height, bits, colour type."""
_COLOUR_TYPES = {0: "grey", 2: "colours", 3: "a palette", 4: "grey and alpha", 6: "colours"}
_TYPES = {"bytes": bytes, "int64": int, "float32": float}


class AnnotationRow(NamedTuple):
    """The objects and masks of a record, from its row."""

    object_labels: Sequence[int] | None = None
    mask_pixels: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class AnnotationCheck:
    """Checks the boxes and masks of records."""

    features: Mapping[str, Feature]
    """Features of boxes and masks by name."""
    decode: bool
    """Whether to decode masks too."""

    def faults(
        self, features: Features, size: tuple[int, int] | None, row: AnnotationRow | None
    ) -> Iterator[Fault]:
        """Yield the faults of a record; `size` is the height and width that it states.

        At most one fault per feature: a record may have a million boxes.
        """
        sound: dict[str, list[Any]] = {}
        for name, feature in self.features.items():
            values = features.get(name)
            if values is None:
                yield Fault("example", f"has no feature {name!r}")
            elif fault := self._fault(name, feature, values, size):
                yield fault
            else:
                sound[name] = values
        yield from _count_faults(
            {name: features[name] for name in self.features if name in features}
        )
        if row is not None:
            yield from self._row_faults(sound, row)

    def _fault(
        self, name: str, feature: Feature, values: list[Any], size: tuple[int, int] | None
    ) -> Fault | None:
        if what := type_fault(values, feature):
            return Fault("example", f"{name}: {what}")
        if not feature.repeated and len(values) != 1:
            return Fault("example", f"{name}: has {len(values)} values, not 1")
        if name == BOX:
            return _box_fault(values)
        if feature.kind == "mask":
            return self._mask_fault(name, feature, values, size)
        return _number_fault(name, values, len(feature.labels))

    def _mask_fault(
        self, name: str, feature: Feature, values: list[bytes], size: tuple[int, int] | None
    ) -> Fault | None:
        for number, data in enumerate(values):
            if what := _header_fault(data, feature, size) or self._pixel_fault(data, feature):
                which = f"{name} {number}" if feature.repeated else name
                return Fault("mask", f"{which} {what}")
        return None

    def _pixel_fault(self, data: bytes, feature: Feature) -> str:
        """Return the fault found by decoding a mask, or ""."""
        if not self.decode:
            return ""
        try:
            values = _pixels(data)
        except Exception as error:
            return f"does not decode ({' '.join(str(error).split())[:200] or type(error).__name__})"
        if feature.repeated:
            wrong = [value for value in values if value > 1]
            return _first(wrong, "is neither 0 nor 1", "has pixels of ") if wrong else ""
        most = len(feature.labels)
        wrong = [value for value in values if value >= most and value != feature.ignored]
        what = f"which is not a class; there are {most:,}"
        return _first(wrong, what, "has pixels of ") if wrong else ""

    def _row_faults(self, sound: Mapping[str, list[Any]], row: AnnotationRow) -> Iterator[Fault]:
        if BOX_LABEL in sound and list(row.object_labels or ()) != sound[BOX_LABEL]:
            here = _some(sound[BOX_LABEL])
            what = f"{BOX_LABEL}: is {here}, items.parquet says {_some(row.object_labels)}"
            yield Fault("items", what)
        if MASK in sound and self.decode:
            pixels, said = _pixels(sound[MASK][0]), dict(row.mask_pixels or ())
            if pixels != said:
                what = f"{MASK}: has pixels {_some(pixels)}, items.parquet says {_some(said)}"
                yield Fault("items", what)


def type_fault(values: Sequence[Any], feature: Feature) -> str:
    """Return the fault of values with another type than a feature has, or ""."""
    kind = _TYPES[feature.dtype]
    wrong = next((value for value in values if type(value) is not kind), None)
    if wrong is None:
        return ""
    return f"holds {type(wrong).__name__}, the schema says {feature.dtype}"


def _count_faults(features: Mapping[str, Sequence[Any]]) -> Iterator[Fault]:
    """Yield the object features with another number of objects than the first."""
    counts = {
        name: len(values) // (_SIDES if name == BOX else 1)
        for name, values in features.items()
        if name != MASK
    }
    if len({*counts.values()}) > 1:
        said = ", ".join(f"{name} of {count:,}" for name, count in counts.items())
        yield Fault("objects", f"the features of objects have different lengths: {said}")


def _box_fault(values: list[float]) -> Fault | None:
    if len(values) % _SIDES:
        return Fault("objects", f"{BOX}: has {len(values):,} values, which is not 4 for each box")
    boxes = np.array(values).reshape(-1, _SIDES)
    low, high = boxes[:, :2], boxes[:, 2:]
    # False for values that are not finite, too.
    is_box = ((low >= 0) & (low < high) & (high <= 1)).all(axis=1)
    if is_box.all():
        return None
    wrong = np.flatnonzero(~is_box)
    sides = ", ".join(f"{side:.6g}" for side in boxes[wrong[0]])
    more = f", nor are {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    what = f"{BOX}: box {wrong[0]} ({sides}) has not 0 ≤ min < max ≤ 1{more}"
    return Fault("objects", what)


def _number_fault(name: str, values: list[int], num_classes: int) -> Fault | None:
    """Return the fault of labels or flags, if any."""
    most = num_classes if name == BOX_LABEL else 2
    wrong = [one for one in values if not 0 <= one < most]
    if not wrong:
        return None
    if name == CROWD:
        return Fault("objects", f"{name}: {_first(wrong, 'is not 0 or 1')}")
    return Fault("label", f"{name}: {_first(wrong, f'is not a class; there are {most:,}')}")


def _header_fault(data: bytes, feature: Feature, size: tuple[int, int] | None) -> str:
    """Return the fault of a mask's first and last bytes, or ""; nothing is decoded."""
    if not data.startswith(PNG) or len(data) < _HEADER.size:
        return f"is not a PNG (it starts with {data[:8]!r})"
    _, chunk, width, height, bits, colours = _HEADER.unpack_from(data)
    wanted = 8 if feature.mask_dtype == "uint8" else 16
    if chunk != b"IHDR" or colours != 0:
        return f"is a PNG of {_COLOUR_TYPES.get(colours, 'no known form')}, not of grey"
    if bits != wanted:
        return f"has {bits} bits a pixel, not {wanted}"
    if size is not None and (height, width) != size:
        return f"is {width}x{height} pixels, its image {size[1]}x{size[0]}"
    return "" if data.endswith(PNG_END) else "is a PNG without an end"


def _pixels(data: bytes) -> dict[int, int]:
    """Return the number of pixels of each value in a mask."""
    with open_stored(data, "PNG") as image:
        values, counts = np.unique(np.asarray(image), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _first(wrong: Sequence[int], what: str, begin: str = "") -> str:
    more = f", and so are {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    return f"{begin}{wrong[0]} {what}{more}"


def _some(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
