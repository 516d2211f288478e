"""Texts in one buffer: a million of them cost their bytes and 8 more each, not 60 MB of objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.source.coded import Coded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_AT_ONCE = 1 << 12
"""Number of texts that are objects while they are iterated over."""


class Texts(Sequence[str]):
    """A sequence of texts; each is made an object when it is asked for."""

    __slots__ = ("_folders", "array")

    def __init__(self, array: Any) -> None:
        """Take an Arrow array of texts, none of them null."""
        self.array: Any = array.cast(pa.large_string())
        self._folders: Coded[str] | None = None

    @classmethod
    def of(cls, texts: Iterable[str]) -> Texts:
        """Return these texts; lone surrogates, which no buffer of UTF-8 can hold, as escapes."""
        if isinstance(texts, Texts):
            return texts
        listed = texts if isinstance(texts, list) else list(texts)
        try:
            return cls(pa.array(listed, pa.large_string()))
        except UnicodeEncodeError:
            plain = [text.encode(errors="backslashreplace").decode() for text in listed]
            return cls(pa.array(plain, pa.large_string()))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Return the texts of all parts, in their order."""
        if len(parts) == 1:
            return parts[0]
        return cls(pa.concat_arrays([pa.array([], pa.large_string()), *(p.array for p in parts)]))

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Texts: ...
    def __getitem__(self, at: int | slice) -> str | Texts:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return self.take(np.arange(start, stop, step))
            return Texts(self.array.slice(start, max(0, stop - start)))
        text: str = self.array[at].as_py()
        return text

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self.array.slice(start, _AT_ONCE).to_numpy(zero_copy_only=False)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return bool(self.array.equals(other.array))
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts.of({list(self)!r})"

    def lengths(self) -> Ints:
        """Return the number of characters of each."""
        lengths: Ints = pc.utf8_length(self.array).to_numpy()
        return lengths

    def take(self, rows: NDArray[Any]) -> Texts:
        """Return the texts at these positions."""
        return Texts(self.array.take(pa.array(rows)))

    def encoded(self) -> Iterable[bytes]:
        """Return each text as UTF-8, all of them objects."""
        found: Iterable[bytes] = self.array.cast(pa.large_binary()).to_numpy(zero_copy_only=False)
        return found

    def coded(self) -> Coded[str]:
        """Return the texts as a column in which each distinct one is there once."""
        return _coded(self.array)

    @property
    def folders(self) -> Coded[str]:
        """What stands before the last "/" of each, "" where there is none."""
        if self._folders is None:
            self._folders = _coded(pc.replace_substring_regex(self.array, r"(^|/)[^/]*$", ""))
        return self._folders

    def ends(self, depth: int) -> Texts:
        """Return the name at the end of each path, with so many folders before it, if it has so."""
        pattern = rf"^.*/((?:[^/]*/){{{depth}}}[^/]*)$"
        return Texts(pc.replace_substring_regex(self.array, pattern, r"\1"))

    def stems(self) -> Texts:
        """Return each path without the extension of its name, which must be more than that."""
        return Texts(pc.replace_substring_regex(self.array, r"([^/])\.[^./]*$", r"\1"))

    def after(self, prefix: str) -> Texts:
        """Return each text with a prefix before it."""
        before, nothing = (pa.scalar(text, pa.large_string()) for text in (prefix, ""))
        return Texts(pc.binary_join_element_wise(before, self.array, nothing))


def positions(texts: Texts, among: Texts) -> tuple[Ints, Ints]:
    """Return where each text is found first among others, −1 where it is not, and how often."""
    codes = pa.concat_arrays([among.array, texts.array]).dictionary_encode().indices.to_numpy()
    there, asked = codes[: len(among)], codes[len(among) :]
    number = int(codes.max(initial=-1)) + 1
    first = np.full(number, -1, np.int64)
    first[there[::-1]] = np.arange(len(there) - 1, -1, -1)
    return first[asked], np.bincount(there, minlength=number)[asked]


def _coded(array: Any) -> Coded[str]:
    found = array.dictionary_encode()
    return Coded(found.indices.to_numpy(), found.dictionary.to_pylist())
