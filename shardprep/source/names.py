"""Names of members and archives. A key is a POSIX path without line breaks, in valid Unicode."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

from shardprep.image.signatures import IMAGE_SUFFIXES

MAX_KEY_LENGTH = 4096
"""Maximum length in characters. A path in Linux has at most 4,096 bytes."""
_JUNK_NAMES = frozenset((".DS_Store", "Thumbs.db", "desktop.ini"))
_PLAIN_PATH = re.compile(r"(?!\.?/|.*//|.*/\.(/|$)).*[^/]", re.DOTALL)
"""A path in its shortest form. Other paths are rare, so `clean_key` may be slow for them."""
_ARCHIVES = r"zip|7z|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz|7z)"
_ARCHIVE_NAME = re.compile(rf".+\.({_ARCHIVES})(\.001)?", re.IGNORECASE)
_PACKAGE_NAME = re.compile(
    r".+\.((doc|xls|ppt)[xm]?|xlsb|od[tsp]|epub|jar|apk|whl|pages|numbers|key"
    r"|pth?|keras)",
    re.IGNORECASE,
)
_ARRAYS = r"npy|npz|parquet|h5|hdf5|tfrec|tfrecords?|nii(\.gz)?|zarr"
_ARCHIVE_SUFFIX = re.compile(
    rf"\.({_ARCHIVES}|{_ARRAYS}|gz|bz2|xz)(\.\d{{3}})?(?=/|$)", re.IGNORECASE | re.ASCII
)
_TAR_SHARD = re.compile(r"[-_.]\d{3,}\.tar$", re.IGNORECASE)
_ARRAY_NAME = re.compile(
    rf".+(\.({_ARRAYS}|csv|tsv)|idx\d-ubyte)([-.]\d+[-_]of[-_]\d+)?(\.gz)?(:.*)?",
    re.IGNORECASE | re.DOTALL,
)
_SPLIT_WORD = re.compile(
    r"(?:^|[_\-. :])(train(?:ing)?|val(?:id(?:ation|ate)?)?|dev|test|t10k)"
    r"(?=[_\-. ]|\d|$|(?-i:[A-Z]))",
    re.IGNORECASE,
)
_DRIVE = re.compile("[A-Za-z]:")
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029]")
_NO = r"/\\:\x00-\x1f\x7f-\x9f\x{2028}\x{2029}"
_SUFFIX = "|".join(
    "".join(f"[{c}{c.upper()}]" if c.isalpha() else re.escape(c) for c in suffix)
    for suffix in sorted(IMAGE_SUFFIXES)
)
ORDINARY_IMAGE = rf"\A(?:[^.{_NO}][^{_NO}]*/)*[^.{_NO}][^{_NO}]*(?:{_SUFFIX})\z"
"""RE2 pattern for names of images that are valid keys and have no part that begins with a dot."""


def composed(text: str) -> str:
    """Return the text in Unicode form NFC: file names from macOS have separate accents."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def without_archive_suffix(path: str) -> str:
    """Return a path without archive suffixes, for example "train/a" for "train.tar.gz/a"."""
    return _ARCHIVE_SUFFIX.sub("", path)


def is_archive_name(name: str) -> bool:
    """Return True for the name of an archive or of the first volume of a split archive."""
    return _ARCHIVE_NAME.fullmatch(name) is not None


def is_package_name(name: str) -> bool:
    """Return True for documents and programs in zip format, whose images are not listed."""
    return _PACKAGE_NAME.fullmatch(name) is not None


def is_array_name(name: str) -> bool:
    """Return True for the name of a file of arrays, with or without ":" and a column."""
    return _ARRAY_NAME.fullmatch(name) is not None


def is_shard_name(name: str) -> bool:
    """Return True for the name of a file of arrays, or of a numbered tar, as in WebDataset."""
    return is_array_name(name) or _TAR_SHARD.search(name) is not None


def split_word(name: str) -> tuple[str | None, str]:
    """Return the split in a name, or None, and the rest: "x_train.npy" → "train", "x.npy"."""
    name = name.rpartition("/")[2]
    match = _SPLIT_WORD.search(name)
    if match is None:
        return None, name
    return match[1].lower(), (name[: match.start()] + name[match.end() :]).strip("_-. :")


def unsafe_name(name: str) -> str:
    """Return why a member's name is unsafe, or ""."""
    path = name.replace("\\", "/")
    if path.startswith("/") or _DRIVE.match(path):
        return "absolute path"
    if ".." in path and ".." in path.split("/"):
        return "path leads out of the archive"
    return "path too long" if len(path) > MAX_KEY_LENGTH else ""


def is_junk(key: str, name: str) -> bool:
    """Return True for a file that operating systems add. `name` is the last part of `key`."""
    if name in _JUNK_NAMES or name.startswith("._"):
        return True
    return "__MACOSX" in key and "__MACOSX" in key.split("/")


def clean_key(path: str) -> str:
    r"""Return the path as a key. Two paths may give the same key.

    "./" is dropped. Control characters and invalid UTF-8 become escapes (\x1b).
    """
    if not _PLAIN_PATH.fullmatch(path):
        path = PurePosixPath(path).as_posix()
    if not path.isascii():
        path = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), path)
