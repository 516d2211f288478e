"""What bytes are, told by how they start; a name never decides."""

from __future__ import annotations

HEAD_BYTES = 512
"""How many bytes `image_type` and `archive_type` want to see."""

_IMAGE_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"BM",
    b"II*\0",
    b"MM\0*",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"\xff\x4f\xff\x51",
    b"qoif",
    b"8BPS",
)
_ISO_BRANDS = (b"avif", b"avis", b"heic", b"heix", b"mif1")
_ARCHIVE_STARTS = {
    b"PK\3\4": "zip",
    b"PK\5\6": "zip",
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}
_TAR_MAGIC = slice(257, 262)

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
    return head[4:8] == b"ftyp" and head[8:12] in _ISO_BRANDS


def archive_type(head: bytes) -> str | None:
    """Return "zip", "tar", "gz", "bz2", "xz", "7z", "rar", or None."""
    for start, name in _ARCHIVE_STARTS.items():
        if head.startswith(start):
            return name
    return "tar" if head[_TAR_MAGIC] == b"ustar" else None
