"""Selections: record numbers of one version of a dataset, in place of a split.

A record's number counts through the shards of the dataset, in the order of the manifest, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.manifest import Manifest
from shardprep.errors import DatasetError, shown
from shardprep.reader.array_types import Ints
from shardprep.reader.order.permutation import key_of, random_numbers
from shardprep.reader.validators import Count, File, Seed, validated
from shardprep.storage.atomic_file import DurableFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_NAME = 100
"""Characters of a name; that of a long expression is shortened."""
_NO_FILE = "give a file that Selection.save has written"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Selection:
    """Some records of one version of a dataset; it stands wherever a split does in the readers.

    `reader.select` and `reader.folds` make it. `a | b`, `a & b` and `a - b` are its union,
    intersection and difference with another one; `len(a)` its records; `a[positions]` some of them,
    by a slice, whole numbers or an array of bools, as of NumPy. Each record is in it once, in the
    order of the shards.
    """

    name: str
    """For people; one that starts with "train" is shuffled by default, as such a split is."""
    fingerprint: str
    """SHA-256 of the manifest of the dataset, hex."""
    numbers: Ints
    """int64[records], numbers of the records in the dataset, rising."""
    labels: Ints
    """int64[records], class of each record, −1 where it has none or not one."""
    classes: Ints
    """int64[pairs, 2], number of a record and one of its classes, sorted, each pair once: its own
    class or classes, else those of its objects."""

    def __post_init__(self) -> None:
        """Shorten the name; nobody may write to the arrays."""
        object.__setattr__(self, "name", shown(self.name, _MOST_NAME))
        for array in (self.numbers, self.labels, self.classes):
            array.setflags(write=False)

    def __repr__(self) -> str:
        return f"<reader.Selection {self.name!r}: {len(self):,} records>"

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
        """Return the records at some positions, from 0, in the order of the shards.

        Raises:
            DatasetError: there is no such position, or it is no slice or array of them.

        """
        try:
            chosen = sorted_unique(np.arange(len(self))[positions])
        except (IndexError, TypeError, ValueError) as error:
            hint = "use a slice, an array of whole numbers or one of bools"
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

    def at(self, places: Any, name: str) -> Selection:
        """Return the records at some places, rising, or where an array of bools is true."""
        numbers = self.numbers[places]
        classes = self.classes[np.isin(self.classes[:, 0], numbers)]
        return Selection(name, self.fingerprint, numbers, self.labels[places], classes)

    @validated("Selection.sample")
    def sample(self, n: Count, seed: Seed = 0) -> Selection:
        """Return `n` of the records, each as likely as another; the same for the same seed.

        Raises:
            DatasetError: it has not so many.

        """
        if n > len(self):
            hint = "use a number up to that"
            raise DatasetError("Selection.sample", f"n={n:,} of {len(self):,} records", hint)
        chosen = np.argsort(self._random(seed), kind="stable")[:n]
        return replace(self[chosen], name=f"{self.name}, {n:,} drawn")

    @validated("Selection.per_class")
    def per_class(self, n: Count, seed: Seed = 0) -> Selection:
        """Return `n` records of each class, drawn as by `sample`; all of a class with fewer.

        A record with several classes, or with objects of several, counts for each of them: it may
        be drawn for one, and is then one more of the others. Records without a class are left out.

        Raises:
            DatasetError: no record has a class.

        """
        if not len(self.classes):
            hint = "select by keys or columns, or take sample(n)"
            raise DatasetError("Selection.per_class", f"no record of {self.name} has a class", hint)
        numbers, labels = self.classes.T
        places = np.searchsorted(self.numbers, numbers)
        order = np.lexsort((self._random(seed)[places], labels))
        labels = labels[order]
        rank = np.arange(len(labels)) - np.searchsorted(labels, labels)
        chosen = places[order[rank < n]]
        return replace(self[chosen], name=f"{self.name}, {n:,} a class")

    @validated("Selection.save")
    def save(self, path: File) -> Path:
        """Write it to a file of NumPy's (.npz), which `load` reads; return its path."""
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
        """Return what `save` has written; DatasetError where the file is missing or another."""
        try:
            with np.load(path, allow_pickle=False) as file:
                numbers, labels = (file[key].astype(np.int64) for key in ("numbers", "labels"))
                own = np.stack([numbers, labels], axis=1)[labels >= 0]
                classes = file["classes"].astype(np.int64) if "classes" in file else own
                name, fingerprint = (str(file[key][()]) for key in ("name", "fingerprint"))
                found = cls(name, fingerprint, numbers, labels, classes)
                is_sound = bool(np.isin(classes[:, 0], numbers).all()) and classes.shape[1:] == (2,)
        except FileNotFoundError:
            raise DatasetError(str(path), "no such file", _NO_FILE) from None
        except Exception:  # those of zipfile, zlib and NumPy
            raise DatasetError(str(path), "cannot be read as a Selection", _NO_FILE) from None
        is_sound = is_sound and numbers.ndim == 1 and numbers.shape == labels.shape
        if not is_sound or (numbers[:1] < 0).any() or (np.diff(numbers) <= 0).any():
            raise DatasetError(str(path), "holds no record numbers", _NO_FILE)
        return found

    def check(self, manifest: Manifest) -> None:
        """Raise DatasetError where this is of another dataset, or has no record."""
        if self.fingerprint != manifest.sha256:
            raise DatasetError(
                f"{manifest.name} {manifest.version}",
                f"the selection {self.name!r} is of another dataset or version: its manifest has "
                f"the SHA-256 {self.fingerprint[:12]}…, this one {manifest.sha256[:12]}…",
                "make it again with reader.select of this one",
            )
        if not len(self):
            counts = ", ".join(f"{name} {s.num_records:,}" for name, s in manifest.splits.items())
            what = f"the selection {self.name!r} has no record"
            raise DatasetError(manifest.name, what, f"the dataset has {counts}")
        total = sum(one.num_records for one in manifest.splits.values())
        if self.numbers[-1] >= total:
            what = f"the selection {self.name!r} has a record {self.numbers[-1]:,} of {total:,}"
            raise DatasetError(manifest.name, what, _NO_FILE)

    def _random(self, seed: int) -> Any:
        return random_numbers(key_of(seed), 0, len(self))

    def _is_in(self, other: Selection) -> Any:
        self._check_same(other)
        return np.isin(self.numbers, other.numbers, assume_unique=True)

    def _check_same(self, other: object) -> None:
        if not isinstance(other, Selection):
            what = f"{self.name!r} with a {type(other).__name__}"
            raise DatasetError("reader.Selection", what, "combine it with another Selection")
        if other.fingerprint != self.fingerprint:
            what = f"{self.name!r} and {other.name!r} are of different datasets or versions"
            raise DatasetError("reader.Selection", what, "select both from one dataset")


def sorted_unique(numbers: Ints) -> Ints:
    """Return numbers sorted, each once. `numpy.unique` of a million takes a second."""
    ordered = np.sort(numbers)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) > 0]
