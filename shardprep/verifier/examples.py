"""Checks of a record against the schema and against its row of `items.parquet`, without I/O."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import simplejpeg

from shardprep.dataset.example import ExampleDecoder, Features
from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import (
    ALL_POINTS,
    BOX_LABEL,
    FILENAME,
    HEIGHT,
    IMAGE,
    IMAGES,
    LABELS,
    MASK,
    NUM_IMAGES,
    TARGET_IMAGE,
    TARGETS,
    TEXTS,
    UNLABELLED,
    WIDTH,
    Feature,
    Schema,
)
from shardprep.dataset.stored_size import check_stored_size, open_stored, stored_codec
from shardprep.errors import RecordError, counted
from shardprep.verifier.problem import Fault
from shardprep.verifier.record_rows import RecordRows

_PNG_END = b"IEND\xaeB`\x82"
_PNG_HEADER = struct.Struct(">8xI4sIIBB")
"""Start of a PNG: length and name of its first chunk, width, height, bits, colour type."""
_COLOUR_TYPES = {0: "grey", 2: "colours", 3: "a palette", 4: "grey and alpha", 6: "colours"}
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
_SIDES = 4
_TYPES = {"bytes": bytes, "int64": int, "float32": float}
_Size = tuple[int, int]
"""Height and width in pixels."""


class ExampleCheck:
    """A check of records against the schema of a dataset, and against their item rows."""

    def __init__(self, schema: Schema | None, *, decode: bool) -> None:
        """Create a check by `schema`. Without a schema, any Example is valid.

        With `decode`, images and masks are decoded too.
        """
        features = schema.features if schema else {}
        dtypes = schema.dtypes if schema else {}
        names = (schema.target, *schema.class_features) if schema else ()
        self.targets = {name: features[name] for name in names if name is not None}
        self._decode = decode
        self._decoder = ExampleDecoder(dtypes, dtypes)
        self._annotated = schema.annotations if schema else {}
        self._rows = schema.rows if schema else {}
        self._plain = {name: features[name] for name in features if name not in self._annotated}
        self._size = schema.image_size if schema else None
        self._num_classes = len(schema.labels) if schema else 0

    def read(self, payload: bytes) -> Features | Fault:
        """Return the features of a record, or a fault if the record is not an Example."""
        try:
            return self._decoder.decode(payload)
        except RecordError as error:
            return Fault("example", error.what)

    def faults(self, features: Features, rows: RecordRows | None, record: int) -> Iterator[Fault]:
        """Yield the faults of a record; with `rows`, also its differences from row `record`."""
        if not self._plain:
            return
        sound: dict[str, Sequence[Any]] = {}
        yield from self._feature_faults(self._plain, features, None, sound)
        for name in sorted(features.keys() - self._plain.keys() - self._annotated.keys()):
            yield Fault("example", f"has a feature {name!r} that the schema does not name")
        yield from _count_faults(self._rows, sound, "rows")
        size = None
        if HEIGHT in sound and WIDTH in sound:
            size = sound[HEIGHT][0], sound[WIDTH][0]
        yield from self._image_faults(sound, size)
        if rows is not None and record >= len(rows.keys):
            rows = None
        if rows is not None:
            yield from _row_faults(sound, self.targets, rows, record)
        if self._annotated:
            yield from self._feature_faults(self._annotated, features, size or self._size, sound)
            images = {name: one for name, one in self._plain.items() if name == IMAGES}
            of = "stacks" if images else "objects"
            yield from _count_faults({**images, **self._annotated}, features, of)
            yield from _unseen_faults(sound)
            if rows is not None and rows.annotations:
                yield from self._annotation_faults(sound, rows.annotations[record])

    def _feature_faults(
        self,
        expected: Mapping[str, Feature],
        features: Features,
        size: _Size | None,
        sound: dict[str, Sequence[Any]],
    ) -> Iterator[Fault]:
        """Yield the faults of the `expected` features. Add the values of intact ones to `sound`."""
        for name, feature in expected.items():
            values = features.get(name)
            if values is None:
                yield Fault("example", f"has no feature {name!r}")
            elif fault := self._fault(name, feature, values, size):
                yield fault
            else:
                sound[name] = values

    def _fault(
        self, name: str, feature: Feature, values: Sequence[Any], size: _Size | None
    ) -> Fault | None:
        if what := _form_fault(values, feature):
            return Fault("example", f"{name}: {what}")
        if feature.kind == "mask":
            for number, data in enumerate(values):
                if what := self._mask_fault(data, feature, size):
                    which = f"{name} {number}" if feature.repeated else name
                    return Fault("mask", f"{which} {what}")
            return None
        if name == TARGET_IMAGE:
            what = self._picture_fault(values[0], feature, None)
            return Fault("image", f"{name} {what}") if what else None
        fault = _value_fault(values, feature, self._num_classes)
        return fault and Fault(fault.kind, f"{name}: {fault.what}")

    def _picture_fault(self, data: bytes, image: Feature, size: _Size | None) -> str:
        what = _outer_fault(data, image, size)
        return what or (_pixel_fault(data, image, size) if self._decode else "")

    def _mask_fault(self, data: bytes, feature: Feature, size: _Size | None) -> str:
        if (what := _mask_header_fault(data, feature, size)) or not self._decode:
            return what
        try:
            values = _pixel_counts(data)
        except Exception as error:
            return _not_decoded(error)
        if not feature.labels:  # a mask of one object
            return _first(
                [one for one in values if one > 1], "is neither 0 nor 1", "has pixels of "
            )
        most = len(feature.labels)
        wrong = [one for one in values if one >= most and one != feature.ignored]
        return _first(wrong, f"which is not a class; there are {most:,}", "has pixels of ")

    def _image_faults(
        self, sound: Mapping[str, Sequence[Any]], size: _Size | None
    ) -> Iterator[Fault]:
        is_stack = IMAGE not in self._plain
        pictures = IMAGES if is_stack else IMAGE
        image = self._plain[pictures]
        for name, wanted in zip((HEIGHT, WIDTH), image.shape, strict=False):
            for side in sound.get(name, ()):
                if side < 1 or wanted not in (None, side):
                    what = f"{name}: is {side}, but the schema says {wanted or '1 or more'}"
                    yield Fault("example", what)
        for number, data in enumerate(sound.get(pictures, ())):
            if what := self._picture_fault(data, image, size):
                which = f"image {number} of the stack" if is_stack else "the image"
                yield Fault("image", f"{which} {what}")
                break
        if is_stack and IMAGES in sound:
            yield from _stack_faults(image, len(sound[IMAGES]), sound.get(NUM_IMAGES, ()))

    def _annotation_faults(
        self, sound: Mapping[str, Sequence[Any]], row: Mapping[str, Any]
    ) -> Iterator[Fault]:
        labels, said = row["object_labels"], dict(row["mask_pixels"] or ())
        if BOX_LABEL in sound and list(labels or ()) != sound[BOX_LABEL]:
            here = _some(sound[BOX_LABEL])
            yield Fault("items", f"{BOX_LABEL}: is {here}, but items.parquet says {_some(labels)}")
        labelled, there = self._labelled(sound), row.get("labelled_points")
        if labelled is not None and labelled != list(there or ()):
            what = f"labelled keypoints: {_some(labelled)}, but items.parquet says {_some(there)}"
            yield Fault("items", what)
        if MASK in sound and self._decode:
            pixels = sum((Counter(_pixel_counts(one)) for one in sound[MASK]), Counter[int]())
            if pixels != said:
                what = f"{MASK}: has {_some(dict(pixels))}, but items.parquet says {_some(said)}"
                yield Fault("items", what)

    def _labelled(self, sound: Mapping[str, Sequence[Any]]) -> list[int] | None:
        """Return the number of labelled keypoints per object, then of the image, or None."""
        names = [name for name in ALL_POINTS.values() if name in self._annotated]
        if not names or not sound.keys() >= {*names}:
            return None
        counts: list[int] = []
        for name in names:
            visible = np.reshape(sound[name], (-1, self._annotated[name].num_values))
            counts += np.count_nonzero(visible, axis=1).tolist()
        return counts


def key_of(features: Features) -> str:
    """Return the key in a record, or "" if it has none."""
    for value in features.get(FILENAME, ()):
        if isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


def _form_fault(values: Sequence[Any], feature: Feature) -> str:
    kind = _TYPES[feature.dtype]
    for value in values:
        if type(value) is not kind:
            return f"holds {type(value).__name__}, but the schema says {feature.dtype}"
    number = feature.num_values
    if feature.kind == "texts":
        return f"has {len(values)} texts, not up to {number}" if len(values) > number else ""
    if feature.repeated or KINDS[feature.kind].is_list:
        return ""
    if len(values) == number:
        return ""
    return f"has {counted(len(values), 'value')}, not {number}"


def _value_fault(values: Sequence[Any], feature: Feature, num_classes: int) -> Fault | None:
    """Return the fault of values whose type and number have been checked, or None."""
    if feature.dtype == "bytes" and not KINDS[feature.kind].moves:
        for value in values:
            try:
                value.decode()
            except UnicodeDecodeError:
                return Fault("example", f"{value[:40]!r} is not UTF-8")
    if feature.kind == "labels" and values != sorted(set(values)):
        return Fault("example", f"{values} is not ascending")
    if feature.repeated and len(values) % max(feature.num_values, 1):
        what = f"which is not {feature.num_values} for each object"
        return Fault("objects", f"has {counted(len(values), 'value')}, {what}")
    if feature.kind in ("label", "labels"):
        return _class_fault(values, feature, num_classes)
    return _box_fault(values) if feature.kind == "bbox" else _bounds_fault(values, feature)


def _class_fault(values: Sequence[int], feature: Feature, num_classes: int) -> Fault | None:
    most = len(feature.labels) if feature.repeated or feature.labels else num_classes
    least = UNLABELLED if feature.kind == "label" and not feature.repeated else 0
    wrong = [value for value in values if not least <= value < most]
    return Fault("label", _first(wrong, f"is not a class; there are {most:,}")) if wrong else None


def _bounds_fault(values: Sequence[float], feature: Feature) -> Fault | None:
    bounds = KINDS[feature.kind].bounds
    if bounds is None:
        return None
    low, high = bounds
    wrong = [value for value in values if not low <= value <= high]
    allowed = f"from {low} to {high}"
    if feature.dtype == "int64":
        allowed = f"{', '.join(map(str, range(low, high)))} or {high}"
    return Fault("objects", _first(wrong, f"is not {allowed}")) if wrong else None


def _box_fault(values: Sequence[float]) -> Fault | None:
    boxes = np.array(values).reshape(-1, _SIDES)
    low, high = boxes[:, :2], boxes[:, 2:]
    # Also False for NaN and infinities.
    is_box = ((low >= 0) & (low < high) & (high <= 1)).all(axis=1)
    if is_box.all():
        return None
    wrong = np.flatnonzero(~is_box)
    sides = ", ".join(f"{side:.6g}" for side in boxes[wrong[0]])
    more = f", nor are {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    return Fault("objects", f"box {wrong[0]} ({sides}) is not 0 ≤ min < max ≤ 1{more}")


def _stack_faults(images: Feature, number: int, stated: Sequence[int]) -> Iterator[Fault]:
    for wanted in {*stated, len(images.channels) or number or 1} - {number}:
        yield Fault("image", f"the stack has {number:,} images, not {wanted:,}")


def _unseen_faults(features: Mapping[str, Sequence[Any]]) -> Iterator[Fault]:
    """Yield a fault if keypoints of visibility 0 have coordinates other than 0."""
    for name, of_visible in ALL_POINTS.items():
        if name in features and of_visible in features:
            places = np.array(features[name], np.float64).reshape(-1, 2)
            visible = np.array(features[of_visible])
            if len(places) != len(visible):
                yield Fault("objects", f"{name}: has {len(places):,} points, not {len(visible):,}")
            elif places[visible == 0].any():
                yield Fault("objects", f"{name}: has coordinates for a keypoint of visibility 0")


def _count_faults(
    expected: Mapping[str, Feature], features: Mapping[str, Sequence[Any]], of: str
) -> Iterator[Fault]:
    """Yield one fault if the features of a record have values for different numbers of objects."""
    counts = {
        name: len(features[name]) // max(feature.num_values, 1)
        for name, feature in expected.items()
        if name in features and (feature.repeated or feature.kind == "rows")
    }
    if len({*counts.values()}) > 1:
        said = ", ".join(f"{name} of {count:,}" for name, count in counts.items())
        what = f"the features of {of} have different lengths: {said}"
        yield Fault("example" if of == "rows" else "objects", what)


def _row_faults(
    sound: Mapping[str, Sequence[Any]],
    targets: Mapping[str, Feature],
    rows: RecordRows,
    record: int,
) -> Iterator[Fault]:
    for key in sound.get(FILENAME, ()):
        if key.decode() != rows.keys[record]:
            what = f"has the key {key.decode()!r}, but items.parquet says {rows.keys[record]!r}"
            yield Fault("items", what)
    for target in [one for one in targets if one in sound and one in rows.targets]:
        here = sound[target] if target in (LABELS, TARGETS, TEXTS) else sound[target][0]
        there = rows.targets[target][record]
        if here != there and repr(here) != repr(there):  # NaN is not equal to NaN
            yield Fault("items", f"{target}: is {here!r}, but items.parquet says {there!r}")


def _outer_fault(data: bytes, image: Feature, size: _Size | None) -> str:
    """Return the fault of an image's length, first bytes or last bytes, or "". Do not decode."""
    if image.encoding == "raw":
        height, width = size or (0, 0)
        height, width = image.shape[0] or height, image.shape[1] or width
        expected = height * width * (image.shape[2] or 3)
        if len(data) == expected:
            return ""
        return f"has {len(data):,} bytes of pixels, {width}x{height} takes {expected:,}"
    if not data:
        return "is empty"
    codec = stored_codec(data)
    if not codec or image.encoding not in (codec, "any"):
        wanted = {"jpeg": "JPEG", "png": "PNG"}.get(image.encoding or "", "JPEG or PNG")
        return f"is not a {wanted} (it starts with {data[:8]!r})"
    if codec == "png" and not data.endswith(_PNG_END):
        return "is a PNG without an end"
    return ""


def _pixel_fault(data: bytes, image: Feature, size: _Size | None) -> str:
    """Return the fault of an image's pixels or size, or "". Decode the whole image."""
    if image.encoding == "raw":
        return ""  # `_outer_fault` has checked the length, and any pixels are valid
    try:
        is_png = stored_codec(data) == "png"
        shape = _png_shape(data, is_deep=image.is_deep) if is_png else _jpeg_shape(data)
    except Exception as error:
        return _not_decoded(error)
    for side, wanted in zip(shape, image.shape, strict=True):
        if wanted not in (None, side):
            return f"is {_dimensions(shape)}, but the schema says {_dimensions(image.shape)}"
    if size is not None and shape[:2] != size:
        return f"is {_dimensions(shape)}, but its record says {_dimensions((*size, shape[2]))}"
    return ""


def _not_decoded(error: Exception) -> str:
    return f"does not decode ({' '.join(str(error).split())[:200] or type(error).__name__})"


def _jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of a JPEG as in TensorFlow; any exception if damaged."""
    height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    check_stored_size(height, width)
    simplejpeg.decode_jpeg(data)
    return height, width, {"Gray": 1, "CMYK": 4, "YCCK": 4}.get(space, 3)


def _png_shape(data: bytes, *, is_deep: bool) -> tuple[int, int, int]:
    """Return height, width and channels of a PNG; any exception if damaged.

    Channels are 0 unless the pixels are 8-bit grey, RGB or RGBA, or with `is_deep`, 16-bit grey.
    """
    with open_stored(data, "PNG") as image:
        image.verify()
    with open_stored(data, "PNG") as image:
        image.load()
        channels = {"I;16": 1} if is_deep else _CHANNELS
        return image.height, image.width, channels.get(image.mode, 0)


def _dimensions(shape: tuple[int | None, ...]) -> str:
    height, width, channels = (side or "any" for side in shape)
    return f"{width}x{height} pixels of {channels} channels"


def _mask_header_fault(data: bytes, feature: Feature, size: _Size | None) -> str:
    """Return the fault of a mask's header or last bytes, or "". Do not decode."""
    if stored_codec(data) != "png" or len(data) < _PNG_HEADER.size:
        return f"is not a PNG (it starts with {data[:8]!r})"
    _, chunk, width, height, bits, colours = _PNG_HEADER.unpack_from(data)
    wanted = 8 if feature.pixel_dtype == "uint8" else 16
    if chunk != b"IHDR" or colours != 0:
        return f"is a PNG of {_COLOUR_TYPES.get(colours, 'no known form')}, not of grey"
    if bits != wanted:
        return f"has {bits} bits a pixel, not {wanted}"
    if size is not None and (height, width) != size:
        return f"is {width}x{height} pixels, its image {size[1]}x{size[0]}"
    return "" if data.endswith(_PNG_END) else "is a PNG without an end"


def _pixel_counts(data: bytes) -> dict[int, int]:
    with open_stored(data, "PNG") as image:
        values, counts = np.unique(np.asarray(image), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _first(wrong: Sequence[float], what: str, begin: str = "") -> str:
    """Return a text with the first wrong value and the number of others; "" if none is wrong."""
    if not wrong:
        return ""
    more = f", and so are {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
    return f"{begin}{wrong[0]} {what}{more}"


def _some(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
