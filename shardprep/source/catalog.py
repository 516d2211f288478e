"""The catalog: every image found in a source, with the label and the split that the source gives.

Nothing of a source is dropped here without a `Skipped` that says why.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.errors import SourceError
from shardprep.source.archive import Skipped, list_source
from shardprep.source.extent import MemberError
from shardprep.source.labels import (
    Labelling,
    LabelRule,
    label_keys,
    natural_order,
    split_csv_argument,
)
from shardprep.source.splits import given_split
from shardprep.source.table import Table, parse_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardprep.source.archive import Listing, Member
    from shardprep.source.extent import Extent

UNLABELLED = -1
_TABLE_SUFFIXES = (".csv", ".tsv")


@dataclass(frozen=True, slots=True)
class Item:
    """One image found, not yet read."""

    key: str
    """Its unique POSIX path in the source."""
    extent: Extent
    split: str
    label: int
    """Index into the label names, −1 where it has none."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """All items of a source, in the order of their keys."""

    items: list[Item]
    skipped: list[Skipped]
    label_names: tuple[str, ...]
    labels_from: str
    """Where the labels come from, in one line for the user."""
    rows_without_image: tuple[str, ...]
    """Ids in the label table for which the source has no image."""


def make_catalog(
    source: Path,
    rule: LabelRule,
    classes: Sequence[str],
    work_dir: Path,
    notice: Callable[[str], None],
) -> Catalog:
    """Return the catalog of a folder or an archive.

    Args:
        source: a folder or an archive.
        rule: where labels come from.
        classes: class names in the wished order; empty for those found, in natural order.
        work_dir: where compressed inner archives are unpacked; must live as long as the items.
        notice: told, in one line, of work that takes long.

    Raises:
        SourceError: the source cannot be read, holds no image, or its labels contradict the rule.

    """
    listing = list_source(source, work_dir, notice)
    if not listing.images:
        raise SourceError(
            str(source), f"holds no image ({_what_instead(listing)})", "is it the right archive?"
        )
    keys = [member.key for member in listing.images]
    labelling = label_keys(keys, rule, _tables(listing, rule))
    names = _label_names(keys, labelling, classes, rule)
    items, unlabelled = _items(listing.images, labelling, names)
    others = [
        Skipped(member.key, "not an image", member.extent.num_bytes) for member in listing.others
    ]
    return Catalog(
        items,
        listing.skipped + others + unlabelled,
        names,
        labelling.how,
        labelling.rows_without_image,
    )


def _what_instead(listing: Listing) -> str:
    suffixes = Counter(Path(member.key).suffix or "no suffix" for member in listing.others)
    found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(4))
    return found or "it is empty"


def _tables(listing: Listing, rule: LabelRule) -> list[Table]:
    if rule.kind == "auto":
        tables = []
        for member in listing.others:
            if member.key.lower().endswith(_TABLE_SUFFIXES):
                try:
                    tables.append(parse_table(_read(member), member.key))
                except SourceError:
                    continue  # not a table after all: it stays listed as skipped
        return tables
    if rule.kind != "csv":
        return []
    file, _, _ = split_csv_argument(rule.argument)
    found = [m for m in listing.others if ("/" + m.key).endswith("/" + file)]
    if len(found) == 1:
        return [parse_table(_read(found[0]), found[0].key)]
    if found:
        raise SourceError(
            file,
            f"the source has several: {', '.join(member.key for member in found[:3])}",
            "give the whole path",
        )
    try:
        return [parse_table(Path(file).read_bytes(), file)]
    except OSError as error:
        there = [m.key for m in listing.others if m.key.lower().endswith(_TABLE_SUFFIXES)]
        raise SourceError(
            file,
            "no such label table, neither in the source nor on disk",
            f"the source has {', '.join(there[:5])}" if there else "the source has no CSV",
        ) from error


def _read(member: Member) -> bytes:
    try:
        return member.extent.read()
    except MemberError as error:
        raise SourceError(member.key, str(error), "download or pack it again") from error


def _label_names(
    keys: Sequence[str], labelling: Labelling, classes: Sequence[str], rule: LabelRule
) -> tuple[str, ...]:
    counts = Counter(name for name in labelling.names if name is not None)
    if not counts and rule.kind not in ("auto", "none"):
        raise SourceError(
            f"--labels {rule.kind}",
            f"finds no label for any of {len(keys):,} images, such as {keys[0]}",
            "try --labels auto",
        )
    if not classes:
        return tuple(sorted(counts.keys() | labelling.table_names, key=natural_order))
    unknown = [name for name in counts if name not in classes]
    if unknown:
        example = keys[labelling.names.index(unknown[0])]
        raise SourceError(
            example,
            f"label {unknown[0]!r} ({counts[unknown[0]]:,} images) is not among --classes",
            f"known are {', '.join(list(classes)[:10])}",
        )
    return tuple(classes)


def _items(
    members: Sequence[Member], labelling: Labelling, names: Sequence[str]
) -> tuple[list[Item], list[Skipped]]:
    """Join members and labels. A split without a single label is kept, as unlabelled.

    Where a split has labels, an image without one would be a wrong answer in training: skipped.
    """
    number = {name: i for i, name in enumerate(names)}
    splits = [given_split(member.key.split("/")[:-1]) or "train" for member in members]
    labelled = {
        split for split, name in zip(splits, labelling.names, strict=True) if name is not None
    }
    items: list[Item] = []
    skipped: list[Skipped] = []
    for member, split, name in zip(members, splits, labelling.names, strict=True):
        if name is None and split in labelled:
            skipped.append(Skipped(member.key, "no label", member.extent.num_bytes))
        else:
            label = UNLABELLED if name is None else number[name]
            items.append(Item(member.key, member.extent, split, label))
    return items, skipped
