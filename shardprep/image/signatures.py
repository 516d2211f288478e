"""The kinds of files: images and archives by their first bytes, images by their suffix as well."""

from __future__ import annotations

import re

HEAD_BYTES = 512
"""Number of first bytes that `is_image` and `archive_type` look at."""

_IMAGES = {
    ".jpg .jpeg .jpe .jfif": rb"\xff\xd8\xff",
    ".png": rb"\x89PNG\r\n\x1a\n",
    ".gif": rb"GIF8[79]a",
    ".bmp": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0",  # bytes of its second header
    ".webp": rb"RIFF.{4}WEBP",
    ".tif .tiff": rb"II\*\0|MM\0\*",
    ".avif .heic": rb".{4}ftyp(avif|avis|heic|heix|mif1)",
    ".jp2 .j2k": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    ".qoi": rb"qoif",
    ".psd": rb"8BPS",
    ".dds": rb"DDS ",
    ".sgi": rb"\x01\xda[\0\1][\1\2]\0[\1-\3]",  # storage, bytes a value, dimensions
    ".pcx": rb"\x0a[\0\2\3\5]\x01[\1\2\4\x08]",  # version, run lengths, bits a value
    ".ppm .pgm .pbm .pnm .pfm": rb"P[1-6f]\s+(#[^\n]*\n\s*)*\d+\s+\d+\s",
    ".xbm": rb"\s*#define[ \t]+\S+_width[ \t]+\d+\s+#define[ \t]+\S+_height[ \t]+\d+",
    ".xpm": rb"/\* XPM \*/",
    ".ico .tga": rb"(?!)",  # an icon is never read, and nothing marks a TGA
}
"""Suffixes of each image format, and a pattern of its first bytes."""
_IMAGE_START = re.compile(b"|".join(b"(?:%s)" % start for start in _IMAGES.values()), re.DOTALL)
IMAGE_SUFFIXES = frozenset(" ".join(_IMAGES).split())
"""A member named so is meant to be an image: it becomes an item, and is rejected if it is none."""

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


def is_image(head: bytes) -> bool:
    """Tell whether the bytes start as an image does."""
    return _IMAGE_START.match(head) is not None


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
