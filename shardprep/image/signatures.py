"""Recognize images, archives and arrays by first bytes or suffix, and describe other files."""

from __future__ import annotations

import codecs
import re


class NotAnImageError(Exception):
    """No installed decoder reads the bytes as an image; the message describes them."""


HEAD_BYTES = 512
"""Number of first bytes that `is_image`, `archive_type` and `array_type` need."""

_IMAGES = {
    ".jpg .jpeg .jpe .jfif": rb"\xff\xd8\xff",
    ".png": rb"\x89PNG\r\n\x1a\n",
    ".gif": rb"GIF8[79]a",
    ".bmp": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0",  # size of its second header
    ".webp": rb"RIFF.{4}WEBP",
    ".tif .tiff": rb"II[*+]\0|MM\0[*+]",
    ".avif .heic .heif": rb".{4}ftyp(avi[fs]|he[iv][cx]|hei[ms]|m[is]f1)",
    ".jp2 .j2k": rb"\0\0\0\x0cjP  \r\n\x87\n|\xff\x4f\xff\x51",
    ".qoi": rb"qoif",
    ".dcm .dicom": rb".{128}DICM(?!.{,160}1\.2\.840\.10008\.1\.3\.10(?![.0-9]))",
    ".psd": rb"8BPS",
    ".dds": rb"DDS ",
    ".sgi": rb"\x01\xda[\0\1][\1\2]\0[\1-\3]",  # storage, bytes per value, dimensions
    ".pcx": rb"\x0a[\0\2\3\5]\x01[\1\2\4\x08]",  # version, run lengths, bits per value
    ".ppm .pgm .pbm .pnm .pfm": rb"P[1-6f]\s+(#[^\n]*\n\s*)*\d+\s+\d+\s",
    ".xbm": rb"\s*#define[ \t]+\S+_width[ \t]+\d+\s+#define[ \t]+\S+_height[ \t]+\d+",
    ".xpm": rb"/\* XPM \*/",
    ".ico .tga": rb"(?!)",  # icons are never read, and a TGA has no signature
}
"""Suffixes of each image format, and a pattern of its first bytes."""
_IMAGE_START = re.compile(b"|".join(b"(?:%s)" % start for start in _IMAGES.values()), re.DOTALL)
IMAGE_SUFFIXES = frozenset(" ".join(_IMAGES).split())
"""A member with one of these suffixes is an item, and is rejected if it is not an image."""

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
_ARRAYS = {
    "parquet": rb"PAR1",
    "hdf5": rb"\x89HDF\r\n\x1a\n",
    "npy": rb"\x93NUMPY",
    "idx": rb"\0\0[\x08\x09\x0b-\x0e][\1-\4]",  # type, number of axes
    "nifti": rb"(?:\x5c\x01\0\0|\0\0\x01\x5c).{340}n\+1\0|(?:\x1c\x02\0\0|\0\0\x02\x1c)n\+2\0",
    "tfrecord": rb".{4}\0{4}.{4}\x0a",  # length, its CRC, first tag of an Example
    "pickle": rb"\x80[\2-\5][]}(c\x95]",  # protocol, first operation; never read
}
_ARRAY_START = re.compile(
    b"|".join(b"(?P<%s>%s)" % (name.encode(), start) for name, start in _ARRAYS.items()), re.DOTALL
)
TEXT_BYTES = 1024
"""Number of first bytes used to describe a file that is not an image."""
_TAR_MAGIC = slice(257, 262)
_TAR_CHECKSUM = slice(148, 156)

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
_HEIF = re.compile(rb"(?!.{8}avi[fs])(?!.{16,60}avif)" + _IMAGES[".avif .heic .heif"], re.DOTALL)
_DICOM_MARK = slice(128, 132)
_DICOM = re.compile(_IMAGES[".dcm .dicom"], re.DOTALL)
_HTML = re.compile(rb"<!doctype html|<html|<head|<body", re.IGNORECASE)
_MARKUP = re.compile(rb"\s*(<\?xml|<svg|<!doctype svg|<[a-z]+[\s>])", re.IGNORECASE)
_CONTROLS = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")


def is_image(head: bytes) -> bool:
    """Return whether a file begins like an image; `head` has its first `HEAD_BYTES`."""
    return _IMAGE_START.match(head) is not None


def is_page(head: bytes) -> bool:
    """Return whether a file begins like a web page: servers may send one instead of an archive."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html"))


def is_dicom(data: bytes) -> bool:
    """Return whether the bytes are a DICOM file, perhaps also a TIFF; False for a DICOMDIR."""
    return _DICOM.match(data) is not None


def is_heif(data: bytes) -> bool:
    """Return whether the bytes are HEIC or HEIF; False for AVIF, which has its own brands."""
    return _HEIF.match(data) is not None


def archive_type(head: bytes) -> str | None:
    """Return "zip", "tar", "gz", "bz2", "xz", "7z" or "rar"; None if it is not an archive."""
    for start, name in _ARCHIVE_STARTS.items():
        if head.startswith(start):
            return name
    if _BZIP2.match(head):
        return "bz2"
    return "tar" if _is_tar(head) else None


def array_type(head: bytes) -> str | None:
    """Return a name in `_ARRAYS`, such as "npy"; None if it is not a file of arrays.

    The signatures of "idx" and "tfrecord" are weak: their readers must check more.
    """
    match = _ARRAY_START.match(head)
    return match.lastgroup if match else None


def _is_tar(head: bytes) -> bool:
    """Return whether a file begins like a tar; the oldest form has no magic, only a checksum."""
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


def description(data: bytes) -> str:
    """Return one line that describes a file that is not an image, with its first 16 bytes."""
    if not data:
        return "the file is empty"
    return f"{_kind(data[:TEXT_BYTES], data)} (starts with {data[:16]!r})"


def _kind(head: bytes, data: bytes) -> str:
    for start, words in _STARTS.items():
        if head.startswith(start):
            return words
    if head[4:8] == b"ftyp":
        return "a video"
    if head[_DICOM_MARK] == b"DICM":
        return "a DICOM directory, which lists other files"
    if archive := archive_type(head):
        return f"an archive ({archive})"
    if not data.strip(b"\0"):
        return f"nothing but {len(data):,} zero bytes, as a broken download leaves them"
    return _text_kind(head) or "not a known kind of image"


def _text_kind(head: bytes) -> str:
    if _CONTROLS.search(head):
        return ""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end in a character
    except UnicodeDecodeError:
        return ""
    if _HTML.search(head):
        return "an HTML page, as a failed download leaves it"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _MARKUP.match(text):
        return "an SVG drawing" if b"<svg" in head.lower() else "an XML document"
    return "JSON" if text[:1] in (b"{", b"[") else "a text"
