"""Columns of DICOM headers, such as dicom/PatientID: read where a recipe asks for them."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import numpy as np

from shardprep.catalog.tables.row_matching import TableMatch
from shardprep.catalog.tables.table import Table
from shardprep.errors import RecipeError, SourceError
from shardprep.source.byte_range import MemberError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.source.members import Member

PREFIX = "dicom/"
"""Start of the name of such a column; the rest is a keyword of the standard (PS3.6)."""
_HEAD_BYTES = 256 << 10
"""Bytes that are read of each image; ids stand in the first few thousand."""


def with_headers(
    match: TableMatch | None, members: Sequence[Member], names: Sequence[str]
) -> TableMatch | None:
    """Return the rows of the images, "" where there is none, with columns of their headers.

    A cell is "" where an image is no DICOM file or lacks the element.

    Raises:
        RecipeError: a name is no keyword of an element with a text or a number, or pydicom is not
            installed.
        SourceError: an image cannot be read.

    """
    asked = dict.fromkeys(name for name in names if name.startswith(PREFIX))
    if not asked:
        return match
    keywords = [name.removeprefix(PREFIX) for name in asked]
    try:
        from shardprep.image.dicom import header_texts, text_keywords
    except ModuleNotFoundError as error:
        hint = "pip install 'shardprep[dicom]'"
        raise RecipeError(
            next(iter(asked)), "needs pydicom, which is not installed", hint
        ) from error
    known = text_keywords()
    for keyword in keywords:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, 1)
            hint = f"is {PREFIX}{near[0]} meant?" if near else "such as dicom/PatientID"
            what = "is no element of DICOM with a text or a number"
            raise RecipeError(f"{PREFIX}{keyword}", what, hint)
    try:
        cells = [header_texts(one.extent.read_head(_HEAD_BYTES), keywords) for one in members]
    except MemberError as error:
        raise SourceError(next(iter(asked)), f"an image {error}") from error
    header: tuple[str, ...] = tuple(asked)
    name, rows = "DICOM headers", cells
    if match is not None:
        name, header = match.table.name, match.table.header + header
        nothing = [""] * len(match.table.header)
        own = (nothing if row < 0 else match.table.rows[row] for row in match.row_of.tolist())
        rows = [row + more for row, more in zip(own, cells, strict=True)]
    every = np.arange(len(rows))
    return TableMatch(Table(name, header, rows), every, every, "key", ())
