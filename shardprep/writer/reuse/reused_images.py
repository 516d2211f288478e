"""Images that another dataset has stored, taken out of its records where a build would make them.

A stored image follows from the bytes of its original, the options of images and the versions of
what reads and writes them. Where all of these are as they were, the rest of a new record is made
as always around the old image, so that the record is that of a fresh build. Whatever is not as it
must be, such as a damaged record, is encoded from its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.labels.targets import Target
from shardprep.dataset.item_table import ANNOTATION_COLUMNS
from shardprep.dataset.open_dataset import ManifestMark, OpenDataset
from shardprep.dataset.schema import FILENAME, HEIGHT, IMAGE, TARGET_FEATURES, WIDTH, Schema
from shardprep.writer.encode.chunk import ObjectCounts, OldImage, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLED = frozenset({IMAGE, FILENAME, HEIGHT, WIDTH, *TARGET_FEATURES.values()})
"""Features of the image, and those whose value the item table has."""

_FACTS: dict[str, str | int] = {
    "kind": "", "reason": "", "length": 0, "original_height": 0, "original_width": 0,
    "original_format": "", "original_bytes": 0, "original_sha256": "",
}  # fmt: skip
"""Columns of the first fields of an `Outcome`, and what these hold where a column is null."""


class OldImages(Sequence[OldImage | None]):
    """The old image of each item, None where it has none, as rows of an item table.

    In place of the shard they have its `file`; of the other columns they may lack those of boxes
    and masks, and the kind of a rejection. A row of nulls is that of an item without an old image.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: pa.Table) -> None:
        """Take the rows."""
        self._rows = rows

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel without the rows that a slice leaves out."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._rows.schema) as stream:
            stream.write_table(self._rows)
        return _received, (sink.getvalue().to_pybytes(),)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> OldImage | None: ...
    @overload
    def __getitem__(self, at: slice) -> OldImages: ...
    def __getitem__(self, at: int | slice) -> OldImage | OldImages | None:
        """Return the image of an item, or those of several that follow each other."""
        rows = range(len(self))[at]
        if isinstance(rows, range):
            return OldImages(self._rows.slice(rows.start, len(rows)))
        return next(_listed(self._rows.slice(rows, 1)))

    def __iter__(self) -> Iterator[OldImage | None]:
        return _listed(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class OldRecords:
    """The records of a dataset that images are copied from; every worker is given this."""

    mark: ManifestMark
    """Used to detect that the dataset was replaced."""
    dtypes: tuple[tuple[str, str], ...]
    """Name and dtype of each feature."""
    is_tabled: bool = False
    """Whether new records have the same features, all of which follow from the image and what its
    item table says: then a record whose item has not changed is the same."""

    def for_records_of(self, schema: Schema) -> OldRecords:
        """Return these for a build whose records are of a schema."""
        own = dict(self.dtypes)
        return replace(self, is_tabled=own == schema.dtypes and _TABLED.issuperset(own))

    @property
    def have_keys(self) -> bool:
        """Whether each record holds the key of its item."""
        return any(name == FILENAME for name, _ in self.dtypes)


def with_files(rows: pa.Table, dataset: OpenDataset) -> pa.Table:
    """Return rows with the path or address of the shard, `file`, in place of its name."""
    shards = rows["shard"].cast("string").combine_chunks().dictionary_encode()
    files = pa.array(
        [dataset.files.location(name) for name in shards.dictionary.to_pylist()], pa.string()
    )
    place = rows.schema.get_field_index("shard")
    file = pa.DictionaryArray.from_arrays(shards.indices, files)
    return rows.set_column(place, "file", file)


def _received(data: bytes) -> OldImages:
    return OldImages(pa.ipc.open_stream(data).read_all())


def _listed(rows: pa.Table) -> Iterator[OldImage | None]:
    objects: list[Any] = [None] * len(rows)
    if ANNOTATION_COLUMNS.names[0] in rows.column_names:
        counts = (rows[name].to_pylist() for name in ANNOTATION_COLUMNS.names)
        objects = [_objects(*one) for one in zip(*counts, strict=True)]
    values = [_values(rows, *one) for one in _FACTS.items()]
    is_dark, is_copied = [False] * len(rows), [not kind for kind in values[0]]
    outcomes = map(Outcome._make, zip(*values, is_dark, objects, is_copied, strict=True))
    places = zip(
        _values(rows, "file", ""),
        _values(rows, "offset", 0),
        rows["key"].to_pylist(),
        targets_of(rows),
        strict=True,
    )
    for place, outcome in zip(places, outcomes, strict=True):
        yield None if place[2] is None else OldImage(*place, outcome)


def _values(rows: pa.Table, name: str, nothing: str | int) -> list[Any]:
    """Return the values of a column, `nothing` in place of nulls, or of the whole column."""
    if name not in rows.column_names:
        return [nothing] * len(rows)
    column = rows[name].cast("string") if isinstance(nothing, str) else rows[name]
    found: list[Any] = pc.fill_null(column, nothing).to_pylist()
    return found


def targets_of(rows: pa.Table) -> list[Target]:
    """Return the target of each row: the values of that column of the four which has some."""
    for name in ("label", "labels", "target", "text"):
        column = rows[name]
        if column.null_count < len(column):
            values: list[Any] = column.to_pylist()
            return [tuple(one) if isinstance(one, list) else one for one in values]
    return [None] * len(rows)


def _objects(
    _number: int | None,
    labels: list[int] | None,
    num_dropped: int | None,
    dropped: list[tuple[str, int]] | None,
    num_clipped: int | None,
    _mask: str | None,
    pixels: list[tuple[int, int]] | None,
) -> ObjectCounts | None:
    """Return the counts in the values of `ANNOTATION_COLUMNS`; None of an item without a record."""
    if num_dropped is None:
        return None
    return ObjectCounts(
        None if labels is None else tuple(labels),
        num_clipped or 0,
        dict(dropped or ()),
        None if pixels is None else dict(pixels),
    )
