"""Items: images of a source that are not read yet. Catalogs and plans store items as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from shardprep.dataset.schema import UNLABELLED
from shardprep.image.annotation_types import Annotation
from shardprep.source.members import Extent, Member, Members
from shardprep.source.string_column import Coded, ColumnView

if TYPE_CHECKING:
    from shardprep.catalog.tables.columns import Value
    from shardprep.catalog.targets import Target

_AT_ONCE = 1 << 12


class Item(NamedTuple):
    """One image or stack of images of the source, not yet read."""

    key: str
    extent: Extent
    split: str
    target: Target = None
    """Class index, tuple of class indices, number, text or several values; None if unlabelled."""
    strata: tuple[int, ...] = ()
    """Classes of the image, or the bin of its number; ratios spread them evenly over splits."""
    group: str = ""
    """Group of the image; ratios put all images of a group into one split. "" without a group."""
    columns: tuple[Value, ...] = ()
    """Values of the features in `Catalog.columns`, in that order."""
    annotation: Annotation | None = None
    """Objects of the image; None if no annotation lists the image."""
    companions: tuple[Member, ...] = ()
    """Mask files of the image, or its target image."""

    @property
    def label(self) -> int:
        """The class index, or −1 if the target is not a class index."""
        return self.target if isinstance(self.target, int) else UNLABELLED


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Items(ColumnView[Item]):
    """Items as columns; `members` has keys and extents. Indexing creates an item."""

    members: Members
    split: Coded[str]
    target: Coded[Target]
    strata: Coded[tuple[int, ...]]
    group: Coded[str]
    columns: tuple[Coded[Value], ...] = ()
    annotation: Coded[Annotation | None]
    companions: Coded[tuple[Member, ...]]

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        if isinstance(items, Items):
            return items
        listed = list(items)
        width = max((len(one.columns) for one in listed), default=0)
        return cls(
            members=Members.of(Member(one.key, one.extent) for one in listed),
            split=Coded.of(one.split for one in listed),
            target=Coded.apart(one.target for one in listed),
            strata=Coded.of(one.strata for one in listed),
            group=Coded.of(one.group for one in listed),
            columns=tuple(Coded.apart(one.columns[i] for one in listed) for i in range(width)),
            annotation=Coded.apart(one.annotation for one in listed),
            companions=Coded.apart(one.companions for one in listed),
        )

    def __len__(self) -> int:
        return len(self.members)

    @overload
    def __getitem__(self, at: int) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, at: int | slice) -> Item | tuple[Item, ...]:
        if isinstance(at, slice):
            return self.listed(np.arange(*at.indices(len(self))))
        return self.listed(np.array([range(len(self))[at]]))[0]

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]

    @property
    def are_labelled(self) -> NDArray[np.bool_]:
        return self.target.are_there | self.annotation.are_there

    def listed(self, rows: NDArray[Any]) -> tuple[Item, ...]:
        some = self.take(rows)
        cells = zip(*some.columns, strict=True) if some.columns else iter([()] * len(rows))
        columns = some.split, some.target, some.strata, some.group, cells, some.annotation
        made = zip(some.members.listed(), *columns, some.companions, strict=True)
        return tuple(Item(*member, *facts) for member, *facts in made)

    def take(self, rows: NDArray[Any]) -> Items:
        made: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        columns = tuple(column.take(rows) for column in made.pop("columns"))
        return Items(columns=columns, **{name: one.take(rows) for name, one in made.items()})
