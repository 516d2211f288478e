"""Keypoints in tables: columns of x and y, of one keypoint or of several in a row."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource, Sign, coverage
from shardprep.catalog.objects.formats.box_cells import is_number
from shardprep.catalog.objects.formats.box_format import unit_notes
from shardprep.catalog.objects.image_points import NOT_A_NUMBER, REPEATED, FoundPoints, PointList
from shardprep.catalog.tables.row_matching import find_ids, match_table
from shardprep.catalog.tables.table import Table
from shardprep.errors import OptionName, SourceError, shown
from shardprep.recipe.object_rules import PointRule, named_box_columns

_AXIS = re.compile(r"(?<![A-Za-z])x(?![A-Za-z])", re.IGNORECASE)
"""Matches the axis in titles of columns: nose_x, x_3, x1, "left eye x"."""
_SCALE = re.compile("spacing|resolution|scale|dpi|(pixel|image|voxel)[-_ ]?size", re.IGNORECASE)
"""Matches titles with x and y that are not coordinates, but a scale or size of the image."""
_LIST = re.compile(r"(?<=.)\.0$")
_ONLY = "point"
"""Name of the keypoint if its columns are just x and y."""
_MOST_SHOWN = 60


def read(rule: PointRule, source: AnnotatedSource) -> FoundPoints:
    """Return the keypoints of the table; an empty cell means that a keypoint is not labelled.

    A row with one keypoint adds it to its image. A row with several keypoints has all keypoints of
    its image, and further rows of the image are left out. SourceError without keypoints.
    """
    documents, index = source.documents, source.index
    wanted = (rule.id_column, *rule.columns, *rule.name_columns)
    files = rule.files
    table = documents.table(files, wanted) if files else documents.only_table("points")
    match = match_table(index, table, rule.id_column)
    match.check(index.keys[0])
    pairs = _pairs_of(rule, table)
    places = {name: (table.column(x), table.column(y)) for name, (x, y) in pairs.items()}
    named_by = [table.column(name) for name in rule.name_columns]
    is_whole = len(pairs) > 1
    points = PointList([*pairs] if is_whole and not named_by else ())
    texts = iter(match.rows_without_image)
    for row, image in zip(table.rows, match.key_of.tolist(), strict=True):
        words = [row[place] for place in named_by]
        cells = {
            " ".join([*filter(None, words), *([name] if is_whole or not words else [])]): (
                row[x],
                row[y],
            )
            for name, (x, y) in places.items()
        }
        number = sum(any(pair) for pair in cells.values())
        if image < 0:
            if not table.is_own:  # rows of arrays may belong to masks; of items are counted
                points.missing[next(texts)] += number
        elif is_whole and not words and image in points.listed:
            points.lose(image, REPEATED, number)
        else:
            points.listed.add(image)
            _add(points, image, cells)
    if not len(points):
        columns = ", ".join(name for pair in pairs.values() for name in pair)
        what = f"has no keypoints in {shown(columns, _MOST_SHOWN)}"
        raise SourceError(table.name, what, table.naming("points", "x,y"))
    findings = _depths(table, pairs)
    if not points.are_shares:
        images, are_shares = points.units()
        nouns = "the keypoints of {} images"
        findings += unit_notes(
            table.name, nouns, are_shares, lambda i: shown(index.keys[int(images[i])])
        )
    unit = "shares of the sides" if points.are_shares else "pixels"
    return points.found(
        f"{table.name}, keypoints in {unit}",
        table.file_names,
        table.name,
        is_relative=points.are_shares,
        findings=findings,
    )


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of the first table with x and y of enough images, or []."""
    for table in source.documents.tables:
        pairs = _named_pairs(table.header)
        if not pairs or named_box_columns(table.header) is not None:
            continue
        try:
            ids = find_ids(source.index, table)
        except SourceError:
            continue
        place = table.column(ids)
        named = coverage(source.index, {row[place] for row in table.rows})
        cells = (cell for x, _ in pairs.values() for cell in table.cells(table.column(x)))
        has_numbers = any(map(is_number, cells))
        if named.is_enough and has_numbers and not any(ids in x for x in pairs.values()):
            how = f"{table.name}: {2 * len(pairs):,} columns of x and y for {named}"
            option = "column" if table.is_own else f"csv:{table.name}:{ids}"
            return [Sign("points", option, how)]
    return []


def _add(points: PointList, image: int, cells: Mapping[str, tuple[str, str]]) -> None:
    for name, pair in cells.items():
        if not any(pair):
            continue
        try:
            x, y = map(float, pair)
        except ValueError:
            x = y = math.nan
        if (x, y) == (-1.0, -1.0):  # means "not labelled" in some tables
            continue
        if math.isfinite(x) and math.isfinite(y):
            points.add(image, name, (x, y))
        else:
            points.lose(image, NOT_A_NUMBER)


def _pairs_of(rule: PointRule, table: Table) -> dict[str, tuple[str, str]]:
    """Return name of a keypoint → titles of its columns of x and y."""
    pairs = _named_pairs(table.header)
    if rule.columns:
        known = {pair: name for name, pair in pairs.items()}
        given = [*zip(rule.columns[::2], rule.columns[1::2], strict=True)]
        # x and y of a list of numbers in JSON, such as landmarks.nose.0 and landmarks.nose.1
        known |= {pair: pair[0][:-2] for pair in given if _LIST.sub(".1", pair[0]) == pair[1]}
        named = {pair: table.titles.get(pair[0]) for pair in given}
        return {name or known.get(pair, pair[0]): pair for pair, name in named.items()}
    if not pairs:
        what = f"it is not clear which columns are x and y: {', '.join(table.header)}"
        raise SourceError(table.name, what, table.naming("points", "x,y"))
    return pairs


def _named_pairs(header: Sequence[str]) -> dict[str, tuple[str, str]]:
    pairs: dict[str, tuple[str, str]] = {}
    for title in header:
        other = _other(title, "y")
        if other in header and not _SCALE.search(title):
            name = _AXIS.sub("", title, count=1).strip(" _-.")
            pairs[name or _ONLY] = title, other
    return pairs


def _other(title: str, axis: str) -> str:
    found = _AXIS.sub(lambda match: axis.upper() if match[0] == "X" else axis, title, count=1)
    return "" if found == title else found


def _depths(table: Table, pairs: Mapping[str, tuple[str, str]]) -> list[str]:
    depths = [one for x, _ in pairs.values() if (one := _other(x, "z")) in table.header]
    if not depths:
        return []
    flags = f"{OptionName('join', table.name)} {OptionName('columns', ','.join(depths))}"
    what = f"{shown(', '.join(depths), _MOST_SHOWN)} of {table.name}: z is not stored with the"
    return [f"{what} keypoints; {flags} stores it as a number"]
