"""TFRecord framing of bytes and streams; no file is opened here.

Format (https://www.tensorflow.org/tutorials/load_data/tfrecord): per record a little-endian uint64
length, the masked CRC-32C of those 8 bytes, the payload, the masked CRC-32C of the payload.
Checksums cannot detect a file that was cut exactly between two records, so counts and sizes in the
manifest are part of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from shardprep.errors import RecordError

Bytes = bytes | np.ndarray[Any, np.dtype[np.uint8]]
_Bytes = TypeVar("_Bytes", bytes, np.ndarray[Any, np.dtype[np.uint8]])

HEADER_BYTES = 12
FOOTER_BYTES = 4
FRAME_BYTES = HEADER_BYTES + FOOTER_BYTES
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_BLOCK_BYTES = 16 << 20


class Record(NamedTuple):
    """The payload of a record, with the offset and length of its frame."""

    offset: int
    """Start of the frame in bytes, counted from where reading began."""
    length: int
    """Size in bytes of the whole frame: payload and `FRAME_BYTES`."""
    payload: bytes


def _masked_crc(data: Bytes) -> int:
    return int(_masked(google_crc32c.value(data)))


def _masked(crc: Any) -> Any:
    """Return a CRC-32C, or each CRC-32C of a uint64 array, in TFRecord's masked form."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Return the frame of a record: header, payload and footer."""
    return b"".join((_header(len(payload)), payload, _CRC.pack(_masked_crc(payload))))


def _header(num_bytes: int) -> bytes:
    length = _LENGTH.pack(num_bytes)
    return length + _CRC.pack(_masked_crc(length))


def payload_bytes(header: bytes) -> int | None:
    """Return the payload length in a record's header, in bytes, or None for a damaged header."""
    if len(header) < HEADER_BYTES:
        return None
    length, crc = struct.unpack("<QI", header)
    return int(length) if _masked_crc(header[:8]) == crc else None


def read_records(stream: BinaryIO, name: str) -> Iterator[Record]:
    """Yield the records of a stream from its current position to its end.

    Offsets count from that position. RecordError, with `name`, if a record is cut or damaged.
    """
    offset = 0
    while header := stream.read(HEADER_BYTES):
        if len(header) < HEADER_BYTES:
            raise _damaged(name, offset, f"cut inside a record header ({len(header)} of 12 bytes)")
        length, length_crc = struct.unpack("<QI", header)
        _check_crc(name, offset, "length", header[:8], length_crc)
        body = _read(stream, length + FOOTER_BYTES)
        if len(body) < length + FOOTER_BYTES:
            raise _damaged(
                name, offset, f"cut inside a record ({len(body):,} of {length + 4:,} bytes)"
            )
        payload = body[:-FOOTER_BYTES]
        _check_crc(name, offset, "data", payload, struct.unpack("<I", body[-FOOTER_BYTES:])[0])
        yield Record(offset, length + FRAME_BYTES, payload)
        offset += length + FRAME_BYTES


def unframe(framed: _Bytes, name: str, offset: int) -> _Bytes:
    """Return the payload of one framed record; for a uint8 array, a view into it.

    RecordError, with the file `name` and the `offset` of the frame, if the frame is damaged.
    """
    num_bytes = len(framed) - FRAME_BYTES
    if num_bytes < 0:
        raise _damaged(name, offset, f"cut inside a record header ({len(framed)} bytes)")
    header, footer = bytes(framed[:HEADER_BYTES]), bytes(framed[-FOOTER_BYTES:])
    if header != _header(num_bytes):
        length, length_crc = struct.unpack("<QI", header)
        _check_crc(name, offset, "length", header[:8], length_crc)
        raise _damaged(name, offset, f"holds {length:,} bytes where the index says {num_bytes:,}")
    payload = framed[HEADER_BYTES:-FOOTER_BYTES]
    if footer != _CRC.pack(_masked_crc(payload)):
        _check_crc(name, offset, "data", payload, _CRC.unpack(footer)[0])
    return payload


def are_sound(
    block: np.ndarray[Any, np.dtype[np.uint8]], lengths: np.ndarray[Any, np.dtype[np.int64]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each frame in `block` whether it is intact, bool[n].

    The frames follow each other from the start of the block; `lengths` are their sizes in bytes.
    """
    is_sound = lengths >= FRAME_BYTES
    num_bytes = lengths[is_sound]
    ends = np.cumsum(lengths)[is_sound]
    starts = ends - num_bytes
    heads = block[starts[:, np.newaxis] + np.arange(HEADER_BYTES)]
    tails = block[ends[:, np.newaxis] - np.arange(FOOTER_BYTES, 0, -1)]
    value = google_crc32c.value
    payloads = zip((starts + HEADER_BYTES).tolist(), (ends - FOOTER_BYTES).tolist(), strict=True)
    crcs = np.array(
        [[value(head) for head in heads[:, :8]], [value(block[at:end]) for at, end in payloads]],
        np.uint64,
    )
    stored = np.ascontiguousarray(heads[:, :8]).view("<u8")[:, 0]
    length_crc = np.ascontiguousarray(heads[:, 8:]).view("<u4")[:, 0]
    is_sound[is_sound] = (
        (stored == (num_bytes - FRAME_BYTES).astype(np.uint64))
        & (_masked(crcs[0]) == length_crc)
        & (_masked(crcs[1]) == tails.view("<u4")[:, 0])
    )
    return is_sound


def _read(stream: BinaryIO, num_bytes: int) -> bytes:
    """Return at most `num_bytes`. Blocks limit the memory that a false length can allocate."""
    if num_bytes <= _BLOCK_BYTES:
        return stream.read(num_bytes)
    blocks = []
    while num_bytes and (block := stream.read(min(num_bytes, _BLOCK_BYTES))):
        blocks.append(block)
        num_bytes -= len(block)
    return b"".join(blocks)


def _check_crc(name: str, offset: int, part: str, data: Bytes, stored: int) -> None:
    actual = _masked_crc(data)
    if actual != stored:
        raise _damaged(name, offset, f"{part} CRC is {actual:#010x}, stored {stored:#010x}")


def _damaged(name: str, offset: int, what: str) -> RecordError:
    return RecordError(
        name, what, "copy this file again, or build the dataset again", offset=offset
    )
