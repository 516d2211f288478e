"""Find options that have no effect on a source, and report each with a remark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np

from shardprep.catalog.objects.combine import Annotated
from shardprep.catalog.source_images import SourceImages
from shardprep.catalog.tables.row_matching import TableMatch
from shardprep.catalog.target_values import OF_COLUMNS, Targets
from shardprep.catalog.targets import find_separator
from shardprep.errors import OptionName, some_of
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.source.file_listing import LEADS_OUTSIDE, find_files
from shardprep.source.members import Members, StackExtent

_SHALLOW = (".jpg", ".jpeg", ".webp", ".bmp", ".gif")
"""Suffixes of images of at most 8 bits."""
_NO_DICOM = (*_SHALLOW, ".png", ".tif", ".tiff")
_NETPBM = b"P5", b"P6", b"Py"
"""First bytes of the images that arrays become."""

_DIVIDED = ("multilabel", *OF_COLUMNS)
"""Kinds of targets whose cells a separator divides."""


class Affected(NamedTuple):
    """The images, rows, targets and annotations that options may affect."""

    wanted: SourceImages
    match: TableMatch | None
    """The rows of the label table, or of the joined tables."""
    targets: Targets
    annotated: Annotated | None


def idle_options(found: Affected) -> list[str]:
    """Return remarks on options without effect, and on classes or a separator that no label has."""
    recipe, labelling, targets = found.wanted.recipe, found.wanted.labelling, found.targets
    findings = [
        f"{OptionName(option)} has no effect: {what}"
        for option, (has_effect, what) in _NEEDS.items()
        if getattr(recipe, option) != BUILD_DEFAULTS[option] and not has_effect(found)
    ]
    cells = [*labelling.names.counts(), *chain(*labelling.cells.values())]
    is_divided = recipe.separator and targets.kind in _DIVIDED
    if is_divided and not any(recipe.separator in str(cell) for cell in cells):
        other = find_separator([cell for cell in cells if isinstance(cell, str)])
        meant = f", but {other!r} separates words that recur" if other else ""
        findings.append(f"{OptionName('separator')}: no label has {recipe.separator!r}{meant}")
    if targets.kind in ("none", "class", "multilabel") and found.annotated is None:
        codes = (one if isinstance(one, tuple) else (one,) for one in targets.values.counts())
        used = {targets.names[i] for i in chain(*codes)}
        if unused := [name for name in recipe.classes if name not in used]:
            findings.append(f"{OptionName('classes')}: no image is of class {some_of(unused)}")
    return findings


def _has_boxes(found: Affected) -> bool:
    every = [] if found.annotated is None else found.annotated.annotations
    return any(one is not None and len(one.boxes) for one in every)


def _has_objects(found: Affected) -> bool:
    return found.annotated is not None and found.annotated.facts.spec.has_objects


def _uses_join(found: Affected) -> bool:
    """Return whether options, or automatic labels, may use a column of a joined table."""
    rules, labelling = found.wanted.recipe.rules, found.wanted.labelling
    own = labelling.match.table if labelling.match is not None else None
    joined = found.match.table if found.match is not None else None
    if joined is None or rules.split.kind == "tables" or rules.labels.kind == "auto":
        return True
    titles = joined.header if own is None else own.header[len(own.header) - own.num_joined :]
    used = {*labelling.columns, *found.wanted.recipe.columns, found.wanted.recipe.pivot}
    used |= {rules.group.text, rules.split.column}
    ids = rules.labels.table.id_column
    return any(title in used or f"{{{title}" in ids for title in titles)


def _has_links(found: Affected) -> bool:
    source = found.wanted.recipe.source
    return source != "/" and any(one.problem == LEADS_OUTSIDE for one in find_files(source))


def _has_foreign_names(found: Affected) -> bool:
    listing = found.wanted.listing
    others, skipped = ([one.key for one in some] for some in (listing.others, listing.skipped))
    return not all(map(str.isascii, chain(listing.images.keys, others, skipped)))


def _files(found: Affected) -> Iterator[Members]:
    """Yield the image files that are not in stacks, then the files of each stack."""
    images = found.wanted.listing.images
    yield images.take(np.flatnonzero(~images.are_stacks))
    stacks = (one.extent for one in images.take(np.flatnonzero(images.are_stacks)))
    yield from (one.members for one in stacks if isinstance(one, StackExtent))


def _may_be_deep(found: Affected) -> bool:
    return any(not key.lower().endswith(_SHALLOW) for some in _files(found) for key in some.keys)


def _may_be_dicom(found: Affected) -> bool:
    """Return whether an image may be DICOM, by its name or, as in arrays, by its first bytes."""
    for some in _files(found):
        folders = set[str]()  # images of an array, or of a folder of unusual files, are alike
        for row, key in enumerate(some.keys):
            folder = key.rpartition("/")[0]
            if not key.lower().endswith(_NO_DICOM) and folder not in folders:
                folders.add(folder)
                if not some[row].extent.read_head(len(_NETPBM[0])).startswith(_NETPBM):
                    return True
    return False


def _is_annotated(found: Affected) -> bool:
    return found.annotated is not None


_ANNOTATED = _is_annotated, "no boxes, masks or keypoints are stored"
_BOXES = _has_boxes, "no boxes or outlines are read"
_TABLES: tuple[Callable[[Affected], bool], str] = (
    lambda found: found.wanted.documents.are_read, "no table is read",
)  # fmt: skip
_NEEDS: dict[str, tuple[Callable[[Affected], bool], str]] = {
    "mask_values": _ANNOTATED, "instances": _ANNOTATED, "crowds": _ANNOTATED, "rle": _ANNOTATED,
    "annotated": _ANNOTATED, "max_dropped": _ANNOTATED, "unlisted": _ANNOTATED,
    "annotated_size": _BOXES, "max_clipped": _BOXES,
    "min_visible": (_has_objects, "no objects are stored"),
    "separator": (lambda found: found.targets.kind in _DIVIDED, "targets are not several classes"),
    "target": (lambda found: found.targets.kind != "none", "no image has a label"),
    "header": _TABLES, "null": _TABLES,
    "join": (_uses_join, "no option names a column of its table"),
    "depth_range": (_may_be_deep, "no image can have more than 8 bits"),
    "window": (_may_be_dicom, "no image is a DICOM file"),
    "follow_links": (_has_links, "no link leads outside"),
    "zip_encoding": (_has_foreign_names, "all names are ASCII"),
}  # fmt: skip
"""Option → test whether it has an effect, and the remark if it has none."""
