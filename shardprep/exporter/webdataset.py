"""WebDataset: a tar for each shard, with the files of each record.

Files of a record have equal names up to the first dot (https://github.com/webdataset/webdataset).
`.cls` is a class index, `.txt` a text, and `.json` has all values. The tars contain no times, so
equal exports have equal bytes.
"""

from __future__ import annotations

import functools
import json
import math
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from json.encoder import encode_basestring
from typing import Any

from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    KEYPOINTS,
    LABEL,
    OBJECT_MASK,
    POINTS,
    TEXT,
    Schema,
)
from shardprep.exporter.cells import TAKEN, cells_of, run_lengths, titles
from shardprep.exporter.samples import Buffer, Export, ExportSample, Layout, ShardPlace, Target
from shardprep.storage.atomic_file import DurableFile

_BATCH_BYTES = 128 << 10
"""Minimum bytes of images in a write call. Smaller calls take twice as much system time."""
_BLOCK = 512
_PADDING, _END = bytes(_BLOCK), bytes(2 * _BLOCK)
_EMPTY = tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT)
_NAME_BYTES = 100
_LARGEST = 8**11 - 1
"""Maximum size in bytes of a file with a plain header."""
_MODE_TO_GROUP, _TIME, _REST = _EMPTY[100:124], _EMPTY[135:148], _EMPTY[154:]
"""Constant parts of a header: mode to group, time, and all after the digits of the checksum."""
_SUM = sum(_EMPTY[:124] + _EMPTY[135:148] + 8 * b" " + _EMPTY[156:])
"""Checksum of a header without name and size; the checksum field counts as blanks."""


def _name(export: Export, place: ShardPlace) -> str:
    return f"{export.manifest.name}-{place.split}-{place.index:06d}.tar"


def _write(
    export: Export, place: ShardPlace, samples: Iterable[ExportSample]
) -> Callable[[], None]:
    with DurableFile(export.work / _name(export, place)) as file:
        describe, target = _described(export.schema), export.schema.target
        pieces: list[Buffer] = []
        num_bytes = 0
        for sample in samples:
            for suffix, data in _files(sample, target, describe):
                size = len(data)
                pieces += (
                    _header(f"{sample.name}.{suffix}", size),
                    data,
                    _PADDING[: -size % _BLOCK],
                )
                num_bytes += size
            if num_bytes >= _BATCH_BYTES:
                file.write(b"".join(pieces))
                pieces, num_bytes = [], 0
        file.write(b"".join((*pieces, _END)))
        return file.hand_over()


def _header(name: str, num_bytes: int) -> bytes:
    """Return the tar header of a file; `tarfile` takes ten times as long for the same bytes."""
    raw = name.encode()
    if len(raw) > _NAME_BYTES or not raw.isascii() or num_bytes > _LARGEST:
        info = tarfile.TarInfo(name)
        info.size = num_bytes
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    behind, checksum = _behind_name(num_bytes)
    checksum += zlib.adler32(raw, 0) & 0xFFFF  # its low half is the sum of up to 100 bytes
    return b"%b%b%06o%b" % (raw.ljust(_NAME_BYTES, b"\0"), behind, checksum, _REST)


@functools.lru_cache(1024)
def _behind_name(num_bytes: int) -> tuple[bytes, int]:
    """Return the header between name and checksum, and the checksum of all but the name."""
    size = b"%011o" % num_bytes
    return _MODE_TO_GROUP + size + _TIME, _SUM + sum(size)


def _files(
    sample: ExportSample, target: str | None, describe: Callable[[ExportSample], str]
) -> Iterator[tuple[str, Buffer]]:
    yield sample.suffix, sample.image
    if target in (LABEL, TEXT):
        yield "cls" if target == LABEL else "txt", str(sample.target).encode()
    if sample.class_masks:
        yield "segmentation_mask.png", sample.class_masks[0]
    yield "json", describe(sample).encode()


def _described(schema: Schema) -> Callable[[ExportSample], str]:
    names = [title for title, _ in titles(schema, TAKEN["webdataset"])]
    is_annotated = bool({BOX, POINTS} & schema.features.keys())

    @functools.lru_cache(1024)
    def plain(size: tuple[int, int], value: Target) -> str:
        """Return the JSON of records that have this size and target, and no objects or columns."""
        return _text(_facts(ExportSample("", "", (b"",), "jpeg", size, value), schema, names))

    def describe(sample: ExportSample) -> str:
        # Floats are not cached: 0.0 and -0.0 are the same cache key, but differ in JSON.
        is_plain = not (is_annotated or sample.columns or sample.classes)
        if not is_plain or isinstance(sample.target, float | list):
            rest = _text(_facts(sample, schema, names))
        else:
            rest = plain(sample.size, sample.target)
        return f'{{"key": {encode_basestring(sample.key)}, {rest[1:]}'

    return describe


_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _facts(sample: ExportSample, schema: Schema, names: Sequence[str]) -> dict[str, Any]:
    """Return the JSON fields of a record, without its key. All records have the same fields."""
    height, width = sample.size
    facts: dict[str, Any] = {"height": height, "width": width}
    facts |= zip(names, map(_number, cells_of(sample, schema)), strict=True)
    if BOX in schema.features:
        facts["objects"] = _objects(sample, schema)
    return facts


def _objects(sample: ExportSample, schema: Schema) -> dict[str, Any]:
    objects = sample.objects
    names = schema.features[BOX_LABEL].labels
    facts: dict[str, Any] = {"bbox": objects.boxes, "label": objects.labels}
    facts["class"] = [names[one] for one in objects.labels]
    facts |= objects.more
    if OBJECT_MASK in schema.features:
        facts["segmentation"] = run_lengths(sample)
    if KEYPOINTS in schema.features:
        facts["keypoints"] = objects.keypoints
    return facts


def _number(value: object) -> object:
    return None if isinstance(value, float) and math.isinf(value) else value


WRITERS = {"webdataset": Layout(_write, _name, None, record_bytes=5 * 1024, dots=False, version=4)}
