"""Turn keys into file names: safe on any file system, readable if possible, unique in a split.

A name is the last part of a key without its suffix. If two names of one split would be equal or any
name too long, all names are whole keys. Names that are still equal or too long end in `~` and a
hash of the key. No other name contains `~`, so no key can be made to get the name of another.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

_UNSAFE = re.compile(r"[^\w+=@,.-]|^[.-]")
"""Characters that become `_`: special in shells or on Windows, or a leading dot or hyphen."""
_MOST_BYTES = 120
"""Maximum bytes of a name without hash and suffix; file systems allow 255 in total."""
_HASH_DIGITS = 32


def file_names(keys: Sequence[str], scopes: Sequence[str], *, dots: bool = True) -> list[str]:
    """Return a file name without suffix for each key, unique in its scope, ignoring case."""
    stems = [_without_suffix(key) for key in keys]
    names = [_readable(stem.rpartition("/")[2], dots=dots) for stem in stems]
    if not _repeated(names, scopes) and not any(_is_long(name) for name in names):
        return names
    names = [_readable(stem.replace("/", "__"), dots=dots) for stem in stems]
    return _distinct(names, keys, scopes)


def folder_names(texts: Sequence[str]) -> list[str]:
    """Return a unique folder name for each text, such as a class name. The texts must differ."""
    return _distinct([_readable(text, dots=True) for text in texts], texts, [""] * len(texts))


def _without_suffix(key: str) -> str:
    start = key.rfind("/") + 1
    dot = key.rfind(".", start)
    return key[:dot] if start < dot < len(key) - 1 else key


def _readable(text: str, *, dots: bool) -> str:
    if text.isascii() and text.isalnum():  # such as a number: three times as fast
        return text
    name = _UNSAFE.sub("_", unicodedata.normalize("NFC", text)) or "_"
    return name if dots else name.replace(".", "_")


def _is_long(name: str) -> bool:
    return len(name.encode()) > _MOST_BYTES


def _repeated(names: Iterable[str], scopes: Sequence[str]) -> set[int]:
    """Return the hash of each pair of scope and name that occurs twice, ignoring case."""
    counts = Counter(
        hash((scope, name.casefold())) for name, scope in zip(names, scopes, strict=True)
    )
    return {one for one, count in counts.items() if count > 1}


def _distinct(names: Sequence[str], texts: Sequence[str], scopes: Sequence[str]) -> list[str]:
    """Return the names; repeated and too long ones end in a hash of their text."""
    repeated = _repeated(names, scopes)
    distinct = []
    for name, text, scope in zip(names, texts, scopes, strict=True):
        if hash((scope, name.casefold())) in repeated or _is_long(name):
            digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
            short = name.encode()[:_MOST_BYTES].decode(errors="ignore")
            distinct.append(f"{short}~{digest[:_HASH_DIGITS]}")
        else:
            distinct.append(name)
    return distinct
