"""Index TFRecord files of `tf.train.Example` from other tools, without copying their images."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from shardprep.catalog.arrays.array_file import ArrayFile, ImageColumn, reading
from shardprep.dataset.example import FeatureList, decode
from shardprep.dataset.tfrecord import (
    FOOTER_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    payload_bytes,
    unframe,
)
from shardprep.errors import OptionName, RecordError, SourceError
from shardprep.image.signatures import is_image
from shardprep.source.byte_range import PlainExtent
from shardprep.source.string_column import Texts
from shardprep.source.unpack import buffered

_MAX_CELL, _MAX_LIST = 4096, 1 << 17
"""Maximum number of characters of a cell from a feature, and from a list of objects."""
_OF_OBJECTS = "image/object/"
"""Start of the names of features that have a value for each object."""
_SHORT = 64
_AGAIN = "download or write it again"


def open_tfrecord(place: PlainExtent, name: str, most_bytes: int) -> ArrayFile:
    """Return the features of a TFRecord file, after reading all records once.

    A feature of bytes is a column of images if one of its values begins like an image. Other
    features are columns of cells: lists of numbers joined with spaces, lists of objects as JSON.
    SourceError for a record that fails a CRC or is larger than `most_bytes`.
    """
    found: dict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
    cells: dict[str, list[str]] = {}
    no_text: set[str] = set()
    number = 0
    with reading(name):
        for start, payload in _payloads(place, name, most_bytes):
            for feature, values in decode(payload).items():
                is_list = feature.startswith(_OF_OBJECTS)
                data = values[0] if len(values) == 1 and not is_list else None
                if isinstance(data, bytes) and (feature in found or is_image(data[:512])):
                    found[feature][number] = start + _place_of(data, payload), len(data)
                elif (cell := _cell(values, is_list=is_list)) is None:
                    no_text.add(feature)
                else:
                    column = cells.setdefault(feature, [])
                    column += [""] * (number - len(column))
                    column.append(cell)
            number += 1
    texts = {key: [*cells[key], *[""] * (number - len(cells[key]))] for key in sorted(cells)}
    images = {key: _placed(place.file, found[key], number) for key in sorted(found)}
    columns = {key: number for key in texts if key not in images and key not in no_text}
    left_out = tuple(f"{key} (neither images nor text)" for key in sorted(no_text - images.keys()))

    def read_cells(names: Sequence[str]) -> list[Texts]:
        return [Texts.of(texts[key]) for key in names]

    return ArrayFile(images, columns, read_cells, left_out)


def _place_of(data: bytes, payload: bytes) -> int:
    at = payload.find(data[:_SHORT])  # a search for all bytes takes ten times as long
    return at if payload.startswith(data, at) else payload.find(data)


def _placed(file: str, found: dict[int, tuple[int, int]], number: int) -> ImageColumn:
    places = np.full((2, number), -1, np.int64)
    places[:, [*found]] = np.array([*found.values()], np.int64).T
    return ImageColumn((number,), None, placed=(file, places[0], places[1]))


def _payloads(place: PlainExtent, name: str, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield offset in the file and bytes of each payload."""
    at = 0
    with buffered(place) as stream:
        while header := stream.read(HEADER_BYTES):
            length = payload_bytes(header)
            if length is None:
                what = f"is damaged at offset {at:,}: a length does not fit its CRC"
                raise SourceError(name, what, _AGAIN)
            if at + length + FRAME_BYTES > place.num_bytes:
                raise SourceError(name, f"is truncated inside the record at offset {at:,}", _AGAIN)
            if length > most_bytes:
                what = f"has a record of {length:,} bytes at offset {at:,}"
                hint = f"raise {OptionName('max_member_size')} above {most_bytes:,} bytes"
                raise SourceError(name, what, hint)
            try:
                payload = unframe(header + stream.read(length + FOOTER_BYTES), name, at)
            except RecordError as error:
                raise SourceError(
                    name, f"is damaged at offset {at:,}: {error.what}", _AGAIN
                ) from error
            yield place.offset + at + HEADER_BYTES, payload
            at += length + FRAME_BYTES


def _cell(values: FeatureList, *, is_list: bool) -> str | None:
    texts = []
    for value in values:
        if isinstance(value, bytes):
            try:
                texts.append(value.decode())
            except UnicodeDecodeError:
                return None
        else:
            texts.append(f"{value:.9g}" if isinstance(value, float) else str(value))
    cell = json.dumps(texts) if is_list else " ".join(texts)
    return cell if len(cell) <= (_MAX_LIST if is_list else _MAX_CELL) else None
