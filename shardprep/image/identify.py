"""Names for bytes that no image decoder takes: an HTML page, an archive, a text, zeros."""

from __future__ import annotations

import re

from shardprep.image.signatures import archive_type, is_image

_HEAD_BYTES = 1024
_STARTS = {
    b"version https://git-lfs.github.com/spec/": "a Git LFS pointer, not the file it points to: "
    "run `git lfs pull`",
    b"%PDF-": "a PDF document",
    b"%!PS": "a PostScript drawing",
    b"\xc5\xd0\xd3\xc6": "a PostScript drawing",
    b"\0\0\1\0": "an icon",
    b"icns": "an icon",
    b"\x93NUMPY": "a NumPy array",
    b"\x89HDF\r\n\x1a\n": "an HDF5 file",
    b"SIMPLE  =": "a FITS image, which is not read",
    b"\x76\x2f\x31\x01": "an OpenEXR image, which is not read",
    b"\xff\x0a": "a JPEG XL image, which is not read",
    b"\0\0\0\x0cJXL ": "a JPEG XL image, which is not read",
    b"RIFF": "sound or video",
    b"OggS": "sound or video",
    b"\x1aE\xdf\xa3": "a video",
    b"\xd0\xcf\x11\xe0": "an Office document, or Windows' cache of thumbnails",
    b"SQLite format 3\0": "a database",
    b"\x7fELF": "a program",
}
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_DICOM = slice(128, 132)
_HTML = re.compile(rb"<!doctype html|<html|<head|<body", re.IGNORECASE)
_MARKUP = re.compile(rb"\s*(<\?xml|<svg|<!doctype svg|<[a-z]+[\s>])", re.IGNORECASE)
_CONTROLS = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


def is_broken_image(data: bytes) -> bool:
    """Tell whether bytes that cannot be opened start as one of the images that can."""
    return is_image(data[:_HEAD_BYTES]) and data[8:12] not in _HEIF_BRANDS


def description(data: bytes) -> str:
    """Return one line that names the bytes by their first ones."""
    if not data:
        return "the file is empty"
    return f"{_kind(data[:_HEAD_BYTES], data)} (starts with {data[:16]!r})"


def _kind(head: bytes, data: bytes) -> str:
    for start, words in _STARTS.items():
        if head.startswith(start):
            return words
    if head[4:8] == b"ftyp":
        is_heif = head[8:12] in _HEIF_BRANDS
        return "a HEIC image, which is not read: convert it to JPEG" if is_heif else "a video"
    if head[_DICOM] == b"DICM":
        return "a DICOM image, which is not read"
    if archive := archive_type(head):
        return f"an archive ({archive})"
    if not data.strip(b"\0"):
        return f"nothing but {len(data):,} zero bytes, as a broken download leaves them"
    return _text_kind(head) or "no image that is known"


def _text_kind(head: bytes) -> str:
    """Return the kind of text, "" for no text."""
    if _CONTROLS.search(head) or not _is_utf8(head):
        return ""
    if _HTML.search(head):
        return "an HTML page, as a failed download leaves it"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _MARKUP.match(text):
        return "an SVG drawing" if b"<svg" in head.lower() else "an XML document"
    return "JSON" if text[:1] in (b"{", b"[") else "a text"


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.end == len(head) and error.start >= len(head) - 3  # cut in a character
    return True
