"""Selections: record numbers of one version of a dataset, used instead of a split.

Record numbers count from 0 through all shards of the dataset, in the order of the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardprep.dataset.manifest import Manifest
from shardprep.errors import DatasetError, counted, shown
from shardprep.reader.array_types import Ints
from shardprep.reader.order.permutation import key_of, random_numbers
from shardprep.reader.validators import Count, File, Seed, validated
from shardprep.storage.atomic_file import DurableFile

_MAX_NAME = 100
"""Maximum number of characters of a name. Longer names are shortened."""
_WRONG_FILE = "give a file that Selection.save has written"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Selection:
    """Some records of one version of a dataset, for readers to read instead of a split.

    `reader.select` and `reader.folds` return selections. `a | b`, `a & b` and `a - b` are union,
    intersection and difference. `len(a)` is the number of records. Each record occurs once, in the
    order of the shards. `a[positions]` selects by a slice, whole numbers or bools, like NumPy.
    """

    name: str
    """Description. Readers shuffle by default unless it names validation or test."""
    fingerprint: str
    """SHA-256 of the manifest of the dataset in hexadecimal."""
    numbers: Ints
    """int64[records], number of each record in the dataset, increasing."""
    labels: Ints
    """int64[records], class of each record, or −1 if the record has no class or several."""
    classes: Ints
    """int64[pairs, 2]: number of a record, and one of its classes. Sorted and unique. If images
    have no classes in this dataset, the classes of their objects count."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", shown(self.name, _MAX_NAME))
        for array in (self.numbers, self.labels, self.classes):
            array.setflags(write=False)

    def __repr__(self) -> str:
        return f"<reader.Selection {self.name!r}: {counted(len(self), 'record')}>"

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Selection):
            return NotImplemented
        return self.fingerprint == other.fingerprint and np.array_equal(self.numbers, other.numbers)

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.numbers.tobytes()))

    def __getitem__(self, positions: slice | Sequence[int] | Ints) -> Selection:
        """Return the records at `positions`, each once, in the order of the shards.

        Raises:
            DatasetError: a position is out of range or has another type.
        """
        try:
            chosen = sorted_unique(np.arange(len(self))[positions])
        except (IndexError, TypeError, ValueError) as error:
            hint = "use a slice, or an array of whole numbers or bools"
            raise DatasetError(self.name, f"{error}", hint) from None
        return self.at(chosen, self.name)

    def __or__(self, other: Selection) -> Selection:
        self._check_same(other)
        numbers, first = np.unique(np.concatenate([self.numbers, other.numbers]), return_index=True)
        labels = np.concatenate([self.labels, other.labels])[first]
        classes = np.unique(np.concatenate([self.classes, other.classes]), axis=0)
        name = f"{self.name} | {other.name}"
        return Selection(name, self.fingerprint, numbers, labels, classes)

    def __and__(self, other: Selection) -> Selection:
        return self.at(self._is_in(other), f"{self.name} & {other.name}")

    def __sub__(self, other: Selection) -> Selection:
        return self.at(~self._is_in(other), f"{self.name} - {other.name}")

    def at(self, positions: Any, name: str) -> Selection:
        """Return the records at `positions`, increasing or bool[records], as a selection `name`."""
        numbers = self.numbers[positions]
        classes = self.classes[np.isin(self.classes[:, 0], numbers)]
        return Selection(name, self.fingerprint, numbers, self.labels[positions], classes)

    @validated("Selection.sample")
    def sample(self, n: Count, seed: Seed = 0) -> Selection:
        """Return `n` records drawn at random without replacement; equal seeds draw equal records.

        Raises:
            DatasetError: the selection has fewer records.
        """
        if n > len(self):
            what = f"n={n:,}, but the selection has {counted(len(self), 'record')}"
            hint = f"use at most {len(self)}" if len(self) else "select other records"
            raise DatasetError("Selection.sample", what, hint)
        chosen = np.argsort(self._random(seed), kind="stable")[:n]
        return replace(self[chosen], name=f"{self.name}, {n:,} drawn")

    @validated("Selection.per_class")
    def per_class(self, n: Count, seed: Seed = 0) -> Selection:
        """Return `n` records of each class, drawn like `sample`; all records of a smaller class.

        A record with several classes may be drawn for each of them, so a class may have more than
        `n` records. Records without a class are left out.

        Raises:
            DatasetError: no record has a class.
        """
        if not len(self.classes):
            hint = "select by keys or columns, or take sample(n)"
            raise DatasetError("Selection.per_class", f"no record of {self.name} has a class", hint)
        numbers, labels = self.classes.T
        positions = np.searchsorted(self.numbers, numbers)
        order = np.lexsort((self._random(seed)[positions], labels))
        labels = labels[order]
        rank = np.arange(len(labels)) - np.searchsorted(labels, labels)
        chosen = positions[order[rank < n]]
        return replace(self[chosen], name=f"{self.name}, {n:,} a class")

    @validated("Selection.save")
    def save(self, path: File) -> Path:
        """Write a NumPy file (.npz) for `load`, and return its path. DatasetError on failure."""
        file = Path(path)
        try:
            with DurableFile(file) as out:
                np.savez_compressed(
                    out.stream,
                    name=np.array(self.name),
                    fingerprint=np.array(self.fingerprint),
                    numbers=self.numbers,
                    labels=self.labels,
                    classes=self.classes,
                )
                out.commit()
        except OSError as error:
            hint = "give another path"
            raise DatasetError(str(file), f"cannot be written ({error.strerror})", hint) from None
        return file

    @classmethod
    @validated("Selection.load")
    def load(cls, path: File) -> Selection:
        """Return the selection that `save` wrote. DatasetError if the file has no selection."""
        try:
            with np.load(path, allow_pickle=False) as file:
                numbers, labels = (file[key].astype(np.int64) for key in ("numbers", "labels"))
                own = np.stack([numbers, labels], axis=1)[labels >= 0]
                classes = file["classes"].astype(np.int64) if "classes" in file else own
                name, fingerprint = (str(file[key][()]) for key in ("name", "fingerprint"))
                selection = cls(name, fingerprint, numbers, labels, classes)
                is_sound = bool(np.isin(classes[:, 0], numbers).all()) and classes.shape[1:] == (2,)
        except FileNotFoundError:
            raise DatasetError(str(path), "no such file", _WRONG_FILE) from None
        except Exception:  # of zipfile, zlib or NumPy
            raise DatasetError(str(path), "cannot be read as a Selection", _WRONG_FILE) from None
        is_sound = is_sound and numbers.ndim == 1 and numbers.shape == labels.shape
        if not is_sound or (numbers[:1] < 0).any() or (np.diff(numbers) <= 0).any():
            raise DatasetError(str(path), "has no valid record numbers", _WRONG_FILE)
        return selection

    def check(self, manifest: Manifest) -> None:
        """Raise DatasetError if the selection is empty or is not of this version of the dataset."""
        if self.fingerprint != manifest.sha256:
            raise DatasetError(
                f"{manifest.name} {manifest.version}",
                f"the selection {self.name!r} is from another dataset or version: its manifest has "
                f"the SHA-256 {self.fingerprint[:12]}…, this one {manifest.sha256[:12]}…",
                "select records of this dataset with reader.select",
            )
        if not len(self):
            counts = ", ".join(f"{name} {s.num_records:,}" for name, s in manifest.splits.items())
            what = f"the selection {self.name!r} has no record"
            raise DatasetError(manifest.name, what, f"select other records of {counts}")
        total = sum(split.num_records for split in manifest.splits.values())
        if self.numbers[-1] >= total:
            what = f"the selection {self.name!r} has record {self.numbers[-1]:,} of only {total:,}"
            raise DatasetError(manifest.name, what, _WRONG_FILE)

    def _random(self, seed: int) -> Any:
        return random_numbers(key_of(seed), 0, len(self))

    def _is_in(self, other: Selection) -> Any:
        self._check_same(other)
        return np.isin(self.numbers, other.numbers, assume_unique=True)

    def _check_same(self, other: object) -> None:
        if not isinstance(other, Selection):
            what = f"{self.name!r} cannot be combined with an object of type {type(other).__name__}"
            raise DatasetError("reader.Selection", what, "use another Selection")
        if other.fingerprint != self.fingerprint:
            what = f"{self.name!r} and {other.name!r} are from different datasets or versions"
            raise DatasetError("reader.Selection", what, "select both from one dataset")


def sorted_unique(numbers: Ints) -> Ints:
    """Return the distinct numbers in ascending order, faster than `numpy.unique`."""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) > 0]
