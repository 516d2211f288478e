"""The records of a shard as samples, in their order; every checksum is compared on the way.

A damaged record ends an export, and the error names all of its shard: what others train on would
silently lack it.
"""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from shardprep.dataset.example_decoder import ExampleDecoder
from shardprep.dataset.index import check_shard, way_out
from shardprep.dataset.remote import RemoteDataset
from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    FILENAME,
    HEIGHT,
    IMAGE,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    PROVIDED,
    TARGET,
    WIDTH,
)
from shardprep.dataset.tfrecord import unframe
from shardprep.errors import DatasetError, RecordError, some_of
from shardprep.storage import objects
from shardprep.storage.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from shardprep.dataset.manifest import Shard
    from shardprep.dataset.schema import Schema

Target = int | tuple[int, ...] | float | str | None
_BLOCK_BYTES = 1 << 20
_PRESENT = "/present"
_PNG = b"\x89PNG"
_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of an image: lists of equal length, in their order."""

    boxes: Sequence[tuple[float, float, float, float]] = ()
    """ymin, xmin, ymax, xmax; 0 to 1, of the stored image."""
    labels: Sequence[int] = ()
    crowds: Sequence[int] = ()
    """0 or 1; () where the dataset does not say it."""
    masks: Sequence[bytes] = ()
    """PNG of 0 and 1, as large as the image; () where the dataset has none."""


class Sample(NamedTuple):
    """One record, ready to be written somewhere else."""

    key: str
    name: str
    """File name without suffix, which no other of the split has."""
    image: bytes
    """File of JPEG or PNG: as it is stored, or PNG of raw pixels."""
    encoding: Literal["jpeg", "png"]
    size: tuple[int, int]
    """Height and width in pixels."""
    target: Target
    """Class index (−1: none), class indices, number (None: none) or text; None without a target."""
    objects: Objects | None
    mask: bytes | None
    """Grey PNG of classes."""
    columns: Mapping[str, int | float | str | None] = MappingProxyType({})
    """Columns of the label table by name; None where the cell was empty, but "" of a text."""

    @property
    def suffix(self) -> str:
        """Suffix of the image's file."""
        return "jpg" if self.encoding == "jpeg" else "png"


def table_columns(schema: Schema) -> dict[str, str]:
    """Return the dtypes of the columns of the label table that a dataset carries, by name."""
    named = {name: dtype for name, dtype in schema.dtypes.items() if name not in PROVIDED}
    return {
        name: dtype
        for name, dtype in named.items()
        if not (name.endswith(_PRESENT) and name.removesuffix(_PRESENT) in named)
    }


def read_samples(
    found: Path | RemoteDataset,
    shard: Shard,
    rows: pa.Table,
    schema: Schema,
    moved: Callable[[int], None],
) -> Iterator[Sample]:
    """Yield the records of a shard; memory holds one, and a block of the file.

    Args:
        found: the dataset.
        shard: the shard.
        rows: `key`, `name`, `offset` and `length` of all its records, in their order; those without
            a name are left out.
        schema: the dataset's.
        moved: called with each number of bytes read.

    Raises:
        DatasetError: the shard is missing, of another size, or not what the rows say.
        RecordError: records are damaged; raised behind the last of the shard.

    """
    where, hint = f"{found}/{shard.name}", f"run `shardprep verify {found}`"
    lengths = [length or 0 for length in rows["length"].to_pylist()]
    offsets = [0, *itertools.accumulate(lengths)]
    is_chain = offsets == [*rows["offset"].to_pylist(), shard.num_bytes]
    if len(rows) != shard.num_records or not is_chain or min(lengths, default=1) <= 0:
        raise DatasetError(where, "has other records than items.parquet says", hint)
    parse = _parser(schema)
    damaged: list[str] = []
    first: RecordError | None = None
    places = zip(rows["key"].to_pylist(), rows["name"].to_pylist(), offsets, strict=False)
    frames = _cut(_blocks(found, shard), lengths)
    for number, (framed, (key, name, offset)) in enumerate(zip(frames, places, strict=True)):
        moved(len(framed))
        if name is None:
            continue
        try:
            sample = parse(unframe(framed, "", offset), key, name)
        except RecordError as error:
            damaged.append(f"{number} ({key})")
            first = first or error
            continue
        if first is None:
            yield sample
    if first is not None:
        noun = "record" if len(damaged) == 1 else "records"
        raise RecordError(where, f"{noun} {some_of(damaged)} damaged: {first.what}", hint)


def _blocks(found: Path | RemoteDataset, shard: Shard) -> Iterator[bytes]:
    """Yield the bytes of a shard, which is of the manifest's size."""
    if isinstance(found, RemoteDataset):
        there = found.shard(shard)
        yield from objects.read_whole(there.url, there.etag)
        return
    check_shard(found, shard)
    try:
        with open_regular(found / shard.name) as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DatasetError(f"{found}/{shard.name}", what, way_out(found)) from error


def _cut(blocks: Iterator[bytes], lengths: Sequence[int]) -> Iterator[bytes]:
    """Yield the bytes of each frame, fewer where the file has ended."""
    data, at = b"", 0
    for length in lengths:
        if at + length > len(data):
            rest = [data[at:]]
            left = length - len(rest[0])
            while left > 0 and (block := next(blocks, b"")):
                rest.append(block)
                left -= len(block)
            data, at = b"".join(rest), 0
        yield data[at : at + length]
        at += length


def _parser(schema: Schema) -> Callable[[bytes, str, str], Sample]:
    known = {FILENAME} if schema.image_size is None else {FILENAME, HEIGHT, WIDTH}
    decoder = ExampleDecoder(schema.dtypes, {*schema.dtypes} - known)
    target, columns = schema.target, table_columns(schema)

    def parse(payload: bytes, key: str, name: str) -> Sample:
        """Return the sample of a payload; RecordError where it is not of the schema."""
        values: dict[str, Any] = dict(decoder.decode(payload))
        try:
            image, encoding, size = _image(values, schema)
            return Sample(
                key,
                name,
                image,
                encoding,
                size,
                _target(values, target, len(schema.labels)),
                _objects(values, schema),
                values[MASK][0] if MASK in schema.features else None,
                _columns(values, columns),
            )
        except (LookupError, ValueError, TypeError, OSError) as error:
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise RecordError("", f"is not what the schema says ({what})") from error

    return parse


def _image(
    values: dict[str, Any], schema: Schema
) -> tuple[bytes, Literal["jpeg", "png"], tuple[int, int]]:
    data: bytes = values[IMAGE][0]
    size = schema.image_size
    if size is None and HEIGHT in values and WIDTH in values:
        size = values[HEIGHT][0], values[WIDTH][0]
    if schema.image.encoding == "raw":
        if size is None:
            raise ValueError("raw pixels without a height and width")
        return _png_of(np.frombuffer(data, np.uint8).reshape(*size, 3)), "png", size
    if not data.startswith((_PNG, _JPEG)):
        raise ValueError("its image is neither JPEG nor PNG")
    if size is None:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            size = image.height, image.width
    return data, "png" if data.startswith(_PNG) else "jpeg", size


def _png_of(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def _target(values: dict[str, Any], name: str | None, num_classes: int) -> Target:
    if name is None:
        return None
    found = values[name]
    if name == LABELS:
        return tuple(_known(one, num_classes) for one in found)
    if name == LABEL:
        return -1 if found[0] == -1 else _known(found[0], num_classes)
    if name == TARGET:
        return None if math.isnan(found[0]) else float(found[0])
    return str(found[0].decode())


def _known(label: int, num_classes: int) -> int:
    if not 0 <= label < num_classes:
        raise ValueError(f"label {label} is no class, there are {num_classes:,}")
    return label


def _objects(values: dict[str, Any], schema: Schema) -> Objects | None:
    if BOX not in schema.features:
        return None
    flat, labels = values[BOX], values[BOX_LABEL]
    boxes = [(flat[i], flat[i + 1], flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4)]
    if not all(map(math.isfinite, flat)):
        raise ValueError("a box of it has no place")
    num_classes = len(schema.features[BOX_LABEL].labels)
    lists = [boxes, *(values[n] for n in (BOX_LABEL, CROWD, OBJECT_MASK) if n in schema.features)]
    if any(len(one) != len(labels) for one in lists):
        raise ValueError("its objects have lists of different lengths")
    return Objects(
        boxes,
        [_known(one, num_classes) for one in labels],
        values[CROWD] if CROWD in schema.features else (),
        values[OBJECT_MASK] if OBJECT_MASK in schema.features else (),
    )


def _columns(
    values: dict[str, Any], dtypes: Mapping[str, str]
) -> dict[str, int | float | str | None]:
    found: dict[str, int | float | str | None] = {}
    for name, dtype in dtypes.items():
        value = values[name][0]
        if dtype == "bytes":
            found[name] = value.decode()
        elif dtype == "int64":
            found[name] = value if values.get(name + _PRESENT, (1,))[0] else None
        else:
            found[name] = None if math.isnan(value) else value
    return found
