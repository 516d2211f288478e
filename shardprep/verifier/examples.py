"""Checks of one record against its schema and its row in `items.parquet`, without any file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg

from shardprep.dataset.example import ExampleDecoder, Features
from shardprep.dataset.item_table import WRITTEN, ShardRows, with_status
from shardprep.dataset.schema import (
    FILENAME,
    HEIGHT,
    IMAGE,
    LABEL,
    LABELS,
    TARGET,
    TEXT,
    UNLABELLED,
    WIDTH,
    Encoding,
    Feature,
    Schema,
)  # fmt: skip
from shardprep.dataset.stored_size import check_stored_size, open_stored
from shardprep.errors import RecordError
from shardprep.verifier.object_checks import (
    PNG,
    PNG_END,
    AnnotationCheck,
    AnnotationRow,
    type_fault,
)
from shardprep.verifier.problem import Fault

if TYPE_CHECKING:
    import pyarrow as pa

_JPEG = b"\xff\xd8\xff"
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


@dataclass(frozen=True, slots=True)
class RecordRows(ShardRows):
    """The expected records of a shard, from the item table."""

    targets: Sequence[object] = ()
    """Targets as in the records: class index, list of indices, float32 or UTF-8 bytes."""
    annotations: Sequence[AnnotationRow] = ()


def written_rows(table: pa.Table, target: str | None) -> RecordRows:
    """Return the written items among the rows of a shard; `target` is the target feature."""
    table = with_status(table, WRITTEN)
    rows = ShardRows.of(table)
    return RecordRows(
        rows.offsets,
        rows.lengths,
        rows.keys,
        _targets(table, target) if target else (),
        _annotations(table) if "object_labels" in table.schema.names else (),
    )


def index_rows(text: bytes) -> RecordRows | None:
    """Return the offsets and lengths in the text of an index, None if it is damaged."""
    try:
        places = [tuple(map(int, line.split(b" "))) for line in text.splitlines()]
        return RecordRows([offset for offset, _ in places], [length for _, length in places])
    except ValueError:
        return None


def _annotations(table: pa.Table) -> list[AnnotationRow]:
    labels, pixels = table["object_labels"].to_pylist(), table["mask_pixels"].to_pylist()
    return [
        AnnotationRow(one, None if counts is None else dict(counts))
        for one, counts in zip(labels, pixels, strict=True)
    ]


def _targets(table: pa.Table, target: str) -> Sequence[object]:
    values = table[target].to_pylist()
    if target == LABEL:
        return [UNLABELLED if value is None else value for value in values]
    if target == LABELS:
        return [value or [] for value in values]
    if target == TARGET:
        whole = [math.nan if value is None else value for value in values]
        return np.array(whole, np.float32).tolist()  # type: ignore[no-any-return]
    return [(value or "").encode() for value in values] if target == TEXT else ()


class ExampleCheck:
    """Checks records against the schema of a dataset."""

    def __init__(self, schema: Schema | None, *, decode: bool) -> None:
        """Without a schema, any Example is valid; `decode` also decodes images."""
        self.target = schema.target if schema else None
        self._decode = decode
        dtypes = schema.dtypes if schema else {}
        self._names = frozenset(dtypes)
        annotated = schema.annotations if schema else {}
        self._annotations = AnnotationCheck(annotated, decode)
        self._features = {
            name: one
            for name, one in (schema.features.items() if schema else ())
            if name not in annotated
        }
        self._size = schema.image_size if schema else None
        self._decoder = ExampleDecoder(dtypes, dtypes)
        self._num_classes = len(schema.labels) if schema else 0

    def read(self, payload: bytes) -> Features | Fault:
        """Return the features of a record, or the fault that it is not an Example."""
        try:
            return self._decoder.decode(payload)
        except RecordError as error:
            return Fault("example", error.what)

    def faults(
        self, features: Features, rows: RecordRows | None, record: int | None
    ) -> Iterator[Fault]:
        """Yield all faults of the features of record number `record`."""
        if not self._features:
            return
        sound: dict[str, object] = {}
        for name, feature in self._features.items():
            values = features.get(name)
            if values is None:
                yield Fault("example", f"has no feature {name!r}")
            elif fault := _fault(values, feature, self._num_classes):
                yield Fault(fault.kind, f"{name}: {fault.what}")
            else:
                sound[name] = values if feature.kind == "labels" else values[0]
        for name in sorted(features.keys() - self._names):
            yield Fault("example", f"has a feature {name!r} that the schema does not name")
        size = _size(sound)
        yield from self._image_faults(sound, size)
        row = None
        if rows is not None and record is not None and record < len(rows.keys):
            yield from _row_faults(sound, self.target, rows, record)
            row = rows.annotations[record] if rows.annotations else None
        if self._annotations.features:
            yield from self._annotations.faults(features, size or self._size, row)

    def _image_faults(
        self, sound: Mapping[str, object], size: tuple[int, int] | None
    ) -> Iterator[Fault]:
        image = self._features[IMAGE]
        for name, wanted in zip((HEIGHT, WIDTH), image.shape, strict=False):
            side = sound.get(name)
            if isinstance(side, int) and (side < 1 or wanted not in (None, side)):
                what = f"{name}: is {side}, the schema says {wanted or '1 or more'}"
                yield Fault("example", what)
        data = sound.get(IMAGE)
        if isinstance(data, bytes):
            what = _outer_fault(data, image, size)
            if not what and self._decode:
                what = _pixel_fault(data, image, size)
            if what:
                yield Fault("image", f"the image {what}")


def _size(sound: Mapping[str, object]) -> tuple[int, int] | None:
    """Return height and width in pixels that a record states."""
    height, width = sound.get(HEIGHT), sound.get(WIDTH)
    return (height, width) if isinstance(height, int) and isinstance(width, int) else None


def key_of(features: Features) -> str:
    """Return the key in a record, "" without one."""
    for value in features.get(FILENAME, ()):
        if isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


def _fault(values: Sequence[Any], feature: Feature, num_classes: int) -> Fault | None:
    if what := type_fault(values, feature):
        return Fault("example", what)
    if feature.kind == "labels":
        if values != sorted(set(values)):
            return Fault("example", f"{values} is not ascending")
    elif len(values) != 1:
        return Fault("example", f"has {len(values)} values, not 1")
    if feature.kind == "text":
        try:
            values[0].decode()
        except UnicodeDecodeError:
            return Fault("example", f"{values[0][:40]!r} is not UTF-8")
    elif feature.kind in ("label", "labels"):
        return _label_fault(values, UNLABELLED if feature.kind == "label" else 0, num_classes)
    return None


def _label_fault(labels: Sequence[int], lowest: int, num_classes: int) -> Fault | None:
    for label in labels:
        if not lowest <= label < num_classes:
            return Fault("label", f"{label} is not a class; there are {num_classes:,}")
    return None


def _row_faults(
    sound: Mapping[str, object], target: str | None, rows: RecordRows, record: int
) -> Iterator[Fault]:
    """Yield the differences between a record and its row in `items.parquet`."""
    key = sound.get(FILENAME)
    if isinstance(key, bytes) and key.decode() != rows.keys[record]:
        what = f"is of {key.decode()!r}, items.parquet says {rows.keys[record]!r}"
        yield Fault("items", what)
    if target is not None and target in sound and rows.targets:
        here, there = sound[target], rows.targets[record]
        if here != there and not (_is_nan(here) and _is_nan(there)):
            yield Fault("items", f"{target}: is {here!r}, items.parquet says {there!r}")


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _outer_fault(data: bytes, image: Feature, size: tuple[int, int] | None) -> str:
    """Return the fault of an image's length, first or last bytes, or "".

    `size` is the height and width in pixels that its record states.
    """
    if image.encoding == "raw":
        height, width = size or (0, 0)
        height, width = image.shape[0] or height, image.shape[1] or width
        expected = height * width * (image.shape[2] or 3)
        if len(data) == expected:
            return ""
        return f"has {len(data):,} bytes of pixels, {width}x{height} takes {expected:,}"
    if not data:
        return "is empty"
    codec = _codec(data)
    if not codec or image.encoding not in (codec, "any"):
        wanted = {"jpeg": "JPEG", "png": "PNG"}.get(image.encoding or "", "JPEG or PNG")
        return f"is not a {wanted} (it starts with {data[:8]!r})"
    if codec == "png" and not data.endswith(PNG_END):
        return "is a PNG without an end"
    return ""


def _pixel_fault(data: bytes, image: Feature, size: tuple[int, int] | None) -> str:
    """Return the fault found by decoding all of an image, or ""."""
    if image.encoding == "raw":
        return ""  # its length is all that can be wrong
    try:
        shape = _jpeg_shape(data) if _codec(data) == "jpeg" else _png_shape(data)
    except Exception as error:
        return f"does not decode ({' '.join(str(error).split())[:200] or type(error).__name__})"
    for side, wanted in zip(shape, image.shape, strict=True):
        if wanted not in (None, side):
            return f"is {_dimensions(shape)}, the schema says {_dimensions(image.shape)}"
    if size is not None and shape[:2] != size:
        return f"is {_dimensions(shape)}, its record says {_dimensions((*size, shape[2]))}"
    return ""


def _codec(data: bytes) -> Encoding | None:
    if data.startswith(_JPEG):
        return "jpeg"
    return "png" if data.startswith(PNG) else None


def _jpeg_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of a JPEG as TensorFlow reads it; raises if damaged."""
    height, width, space, _ = simplejpeg.decode_jpeg_header(data)
    check_stored_size(height, width)
    simplejpeg.decode_jpeg(data)
    return height, width, {"Gray": 1, "CMYK": 4, "YCCK": 4}.get(space, 3)


def _png_shape(data: bytes) -> tuple[int, int, int]:
    """Return height, width and channels of a PNG; all checksums and lines are checked."""
    with open_stored(data, "PNG") as image:
        image.verify()
    with open_stored(data, "PNG") as image:
        image.load()
        return image.height, image.width, _CHANNELS.get(image.mode, 0)


def _dimensions(shape: tuple[int | None, ...]) -> str:
    height, width, channels = (side or "any" for side in shape)
    return f"{width}x{height} pixels of {channels} channels"
