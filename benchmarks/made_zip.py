"""Zip files with any number of members, to measure listing and planning.

The directory and a label table are real. The images are a hole in the file, so they cannot be read.
Ten million members take seconds to write, and little more disk space than their names.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_LOCAL_BYTES = 30
_ENTRY = [
    ("signature", "S4"), ("made_by", "<u2"), ("version", "<u2"), ("flags", "<u2"),
    ("method", "<u2"), ("time", "<u2"), ("date", "<u2"), ("crc32", "<u4"), ("packed", "<u4"),
    ("unpacked", "<u4"), ("name_bytes", "<u2"), ("extra_bytes", "<u2"), ("comment_bytes", "<u2"),
    ("disk", "<u2"), ("internal", "<u2"), ("external", "<u4"), ("offset", "<u4"),
]  # fmt: skip
"""Fields of an entry of the directory before its name (APPNOTE 4.3.12)."""
_EXTRA = [("extra_id", "<u2"), ("extra_size", "<u2"), ("offset64", "<u8")]
"""The extra field of an entry whose offset does not fit 32 bits (APPNOTE 4.5.3)."""
_AT_ONCE = 1 << 18
_FULL = 0xFFFFFFFF


def write_made_zip(path: Path, members: int, image_bytes: int = 60) -> Path:
    """Write a zip of `members` PNG names, and a `labels.csv` in it with a class for each name.

    The names are `images/<i mod 1000>/<i>.png`. The sizes of the images are `image_bytes` to
    `image_bytes` + 6. If an offset needs more than 32 bits, all entries have the field for 64 bits.
    """
    name_bytes = len(_name(0))
    rows = b"".join(b"%08d,class_%d\n" % (i, i * 7919 % 100) for i in range(members))
    table = b"id,label\n" + rows
    is_wide = members * (_LOCAL_BYTES + name_bytes + image_bytes + 6) > _FULL
    fields = np.dtype([*_ENTRY, ("name", f"S{name_bytes}"), *(_EXTRA if is_wide else [])])
    offset = size = 0
    with path.open("wb") as file:
        directory = path.with_suffix(".directory")
        with directory.open("wb+") as entries:
            for start in range(0, members, _AT_ONCE):
                numbers = np.arange(start, min(start + _AT_ONCE, members))
                block, offset = _entries(numbers, offset, image_bytes, fields)
                block.tofile(entries)
                size += block.nbytes
            file.seek(offset)
            head, entry = _table(table, offset)
            file.write(head + table)
            entries.write(entry)
            size += len(entry)
            entries.seek(0)
            start = file.tell()
            while data := entries.read(1 << 20):
                file.write(data)
        directory.unlink()
        file.write(_end(members + 1, size, start))
    return path


def _name(number: int) -> bytes:
    return b"images/%03d/%08d.png" % (number % 1000, number)


def _entries(
    numbers: np.ndarray, offset: int, image_bytes: int, fields: np.dtype
) -> tuple[np.ndarray, int]:
    """Return the entries of consecutive members, and the end of the last member in the file.

    The first member begins at `offset`.
    """
    block = np.zeros(len(numbers), fields)
    block["signature"] = b"PK\1\2"
    block["made_by"], block["version"] = 0x031E, 20
    block["external"] = 0o100644 << 16
    block["crc32"] = numbers * 2654435761 & _FULL
    block["packed"] = block["unpacked"] = image_bytes + numbers % 7
    block["name"] = [_name(number) for number in numbers.tolist()]
    block["name_bytes"] = fields["name"].itemsize
    sizes = _LOCAL_BYTES + fields["name"].itemsize + block["packed"].astype(np.int64)
    ends = offset + np.cumsum(sizes)
    offsets = ends - sizes
    if "offset64" in (fields.names or ()):
        block["version"], block["offset"] = 45, _FULL
        block["extra_bytes"], block["extra_id"], block["extra_size"] = 12, 1, 8
        block["offset64"] = offsets
    else:
        block["offset"] = offsets
    return block, int(ends[-1])


def _table(data: bytes, offset: int) -> tuple[bytes, bytes]:
    """Return the local header of `labels.csv`, and its entry in the directory."""
    name = b"labels.csv"
    is_wide = offset >= _FULL
    block = np.zeros(1, _ENTRY)
    block["signature"], block["made_by"], block["version"] = b"PK\1\2", 0x031E, 45
    block["crc32"], block["packed"], block["unpacked"] = zlib.crc32(data), len(data), len(data)
    block["name_bytes"], block["external"] = len(name), 0o100644 << 16
    block["offset"] = _FULL if is_wide else offset
    extra = np.zeros(1, _EXTRA)
    extra["extra_id"], extra["extra_size"], extra["offset64"] = 1, 8, offset
    block["extra_bytes"] = extra.nbytes if is_wide else 0
    local = b"PK\3\4" + block.tobytes()[6:30] + b"\0\0"
    return local + name, block.tobytes() + name + (extra.tobytes() if is_wide else b"")


def _end(members: int, size: int, start: int) -> bytes:
    """Return the records at the end of a zip (APPNOTE 4.3.14 to 4.3.16), 64-bit records first."""
    at = start + size
    end64 = b"PK\6\6" + np.array([44], "<u8").tobytes() + np.array([45, 45], "<u2").tobytes()
    end64 += bytes(8) + np.array([members, members, size, start], "<u8").tobytes()
    locator = b"PK\6\7" + bytes(4) + np.array([at], "<u8").tobytes() + b"\1\0\0\0"
    end = b"PK\5\6" + bytes(4) + b"\xff" * 12 + b"\0\0"
    return end64 + locator + end
