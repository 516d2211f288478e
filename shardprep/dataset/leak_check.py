"""Leaks, which are copies of an image in different splits, and the certificate of their search.

A build that searched for near copies writes the certificate into the manifest. `records` is a hash
of the keys, splits and originals of all records, in any order. Somebody who changes a dataset can
change this hash as well, so `shardprep verify --leaks` also repeats the search.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardprep.dataset.card import Card
from shardprep.dataset.documents import Count, Document, Sha256
from shardprep.errors import counted

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ("key", "split", "original_sha256")


class LeakCheck(Document):
    """Certificate of a build: how near copies were searched for, and how many were found."""

    method: str
    """Name, version and thresholds of the search; other values may find other copies."""
    kept_together: tuple[str, ...]
    """What `--split` ratios keep in one split: near copies, and groups by the rule of `--group`."""
    num_images: Count
    """Number of images that were compared."""
    num_groups: Count
    """Number of groups of near copies among these images."""
    num_left_out: Count
    """Number of near copies that were left out."""
    num_across: Count
    """Number of groups of near copies that the source itself has in several splits."""
    records: Sha256 = "0" * 64
    """Sum of the SHA-256 of key, split and original of each record, modulo 2^256."""

    def __str__(self) -> str:
        return (
            f"{counted(self.num_groups, 'group')} of near copies among "
            f"{counted(self.num_images, 'image')}: {self.num_left_out:,} left out, "
            f"{self.num_across:,} in several splits"
        )

    @property
    def details(self) -> str:
        """The certificate in words, with `kept_together` and `method`."""
        kept = f"; undivided by ratios: {', '.join(self.kept_together)}" * bool(self.kept_together)
        return f"{self}{kept}; found by {self.method}"

    def contradictions(self, method: str, records: str, num_across: int) -> Iterator[str]:
        """Yield, in words, why the certificate contradicts these results of a new search."""
        if self.method != method:
            yield f"was made by another search ({self.method}); this version has {method}"
        if self.records != records:
            yield "is about other records: some were added, removed, moved or changed"
        if num_across and not self.num_across:
            yield f"says that no near copies are in several splits; {num_across:,} are found"


def leak_check_differences(before: LeakCheck | None, after: LeakCheck | None) -> list[str]:
    """Return the differences between two certificates, in words."""
    if before is None or after is None:
        was, now = (f"{one}" if one else "none" for one in (before, after))
        return [] if was == now else [f"search for near copies ({was}, now {now})"]
    names = [name for name in LeakCheck.model_fields if name != "records"]
    values = [[_words(getattr(one, name)) for name in names] for one in (before, after)]
    return [
        f"search for near copies: {name} ({was}, now {now})"
        for name, was, now in zip(names, *values, strict=True)
        if was != now
    ]


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return "none" if value is None else str(value)


class RecordsSum:
    """Running sum for `LeakCheck.records` over the rows of item tables, added in any order."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows of an item table. All of them must have the status `written`."""
        for some in rows.select(_COLUMNS).to_batches(max_chunksize=1 << 16):
            for row in zip(*(column.to_pylist() for column in some.columns), strict=True):
                digest = hashlib.sha256("\0".join(value or "" for value in row).encode()).digest()
                self._sum += int.from_bytes(digest)

    @property
    def text(self) -> str:
        return f"{self._sum % (1 << 256):064x}"


def kept_rank(split: str) -> int:
    """Return the rank of a split in deduplication, which keeps the copy of lowest rank."""
    return {"validation": 1, "train": 2}.get(split, 0)


class Leak(NamedTuple):
    """Copies of one image in several splits."""

    kind: Literal["exact", "near"]
    """`exact`: equal byte for byte; `near`: similar pictures."""
    keys: tuple[str, ...]
    """Keys of the images; the first image is the one that `--dedup` keeps."""
    splits: tuple[str, ...]
    """Split of each image."""
    changes: tuple[str, ...]
    """How each image differs from the first image, in words; "" without a difference."""


@dataclass(frozen=True, slots=True, repr=False)
class LeakSearch(Card):
    """The leaks of a dataset, and whether its certificate holds."""

    num_images: int
    """Number of images that were compared."""
    num_unread: int
    """Number of images that could not be decoded."""
    leaks: tuple[Leak, ...]
    """All leaks: exact copies, then near copies."""
    num_scenes: int
    """Number of groups of images in several splits that show one scene; they are not copies."""
    has_certificate: bool
    """Whether the build searched for near copies and recorded it in the manifest."""
    contradictions: tuple[str, ...]
    """Why the certificate does not hold; empty if it holds or is missing."""

    @property
    def is_clean(self) -> bool:
        return not self.leaks and not self.contradictions

    def facts(self) -> dict[str, Any]:
        certificate = "holds" if self.has_certificate else "none"
        return {
            "images": self.num_images,
            "leaks": [" and ".join(one.keys) for one in self.leaks] or "none",
            "certificate": list(self.contradictions) or certificate,
        }


def ratios_like(counts: Mapping[str, int]) -> str:
    """Return ratios that give splits about these numbers of images, as `split` takes them."""
    others = [split for split in counts if split != "train"] or [*counts]
    total = max(1, sum(counts.values()))
    shares = {split: max(0.01, round(counts[split] / total, 2)) for split in others}
    if "train" not in counts:
        shares[others[0]] = round(1 - sum(shares[split] for split in others[1:]), 2)
    return ",".join(f"{split}={share:g}" for split, share in shares.items())
