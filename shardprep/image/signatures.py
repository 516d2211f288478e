"""Types of files by their first bytes."""

from __future__ import annotations

import re

HEAD_BYTES = 512
"""How many bytes `image_type` and `archive_type` want to see."""

_IMAGE_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"\xff\x4f\xff\x51",
    b"qoif",
    b"8BPS",
)
_ISO_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1")
_BITMAP_HEADERS = frozenset((12, 16, 40, 52, 56, 64, 108, 124))
_BZIP2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
_ARCHIVE_STARTS = {
    b"PK\3\4": "zip",
    b"PK\5\6": "zip",
    b"PK\7\x08PK\3\4": "zip",
    b"\x1f\x8b\x08": "gz",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}
_TAR_MAGIC = slice(257, 262)
_TAR_CHECKSUM = slice(148, 156)

IMAGE_SUFFIXES = frozenset(
    (
        ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff",
        ".avif", ".heic", ".jp2", ".j2k", ".ppm", ".pgm", ".pbm", ".ico", ".tga", ".pcx", ".psd",
    ),
)  # fmt: skip
"""A member named so is meant to be an image: it becomes an item, and is rejected if it is none."""


def is_image(head: bytes) -> bool:
    """Tell whether the bytes start as an image does."""
    if head.startswith(_IMAGE_STARTS):
        return True
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return True
    if head[:2] == b"BM":
        return int.from_bytes(head[14:18], "little") in _BITMAP_HEADERS
    return head[4:8] == b"ftyp" and head[8:12] in _ISO_BRANDS


def archive_type(head: bytes) -> str | None:
    """Return "zip", "tar", "gz", "bz2", "xz", "7z", "rar", or None."""
    for start, name in _ARCHIVE_STARTS.items():
        if head.startswith(start):
            return name
    if _BZIP2.match(head):
        return "bz2"
    return "tar" if _is_tar(head) else None


def _is_tar(head: bytes) -> bool:
    """Tell a tar by its mark, or by its first header's checksum: the oldest form has no mark."""
    if head[_TAR_MAGIC] == b"ustar":
        return True
    if len(head) < HEAD_BYTES or head[:1] == b"\0":
        return False
    try:
        stored = int(head[_TAR_CHECKSUM].strip(b" \0"), 8)
    except ValueError:
        return False
    start, stop = _TAR_CHECKSUM.start, _TAR_CHECKSUM.stop
    return stored == sum(head[:start]) + 8 * ord(" ") + sum(head[stop:HEAD_BYTES])
