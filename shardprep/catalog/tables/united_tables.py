"""Stack tables whose rows are of different images, such as the tables of two splits."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.tables.key_index import SUBMISSION, KeyIndex, origin_of, paths_of
from shardprep.catalog.tables.row_matching import SAMPLE_ROWS, find_ids
from shardprep.catalog.tables.table import MANY_PARTS, Rows, Table, stacked
from shardprep.errors import SourceError
from shardprep.source.string_column import Texts, positions

_NUMBER = re.compile(r"\d+")
_MOST_COPIES = 64
_MOST_NESTED = 16
"""Maximum number of tables to search in `_is_within`."""


def united(index: KeyIndex, tables: Sequence[Table]) -> list[Table]:
    """Return the tables, with tables of equal headers stacked if they are of different images.

    Such tables are of different splits (`train.csv`, `test.csv`), or have no common id. If equal
    tables have the same name, only the uppermost is kept, unless others have images of their own.
    """
    key = "united", *map(id, tables)
    if key not in index.known:
        index.known[key] = tuple(tables), _united(index, tables)
    return [*index.known[key][1]]


def _united(index: KeyIndex, tables: Sequence[Table]) -> list[Table]:
    tables = _without_copies(index, tables)
    groups = [*_series(index, tables)]
    known = {id(one) for group in groups for one in group}
    others = [one for one in tables if id(one) not in known]
    for table in sorted(others, key=lambda one: _is_within(one, tables)):
        alike = [one for one in groups if _are_parts(index, [*one, table])]
        if alike:
            alike[0].append(table)
        else:
            groups.append([table])
    found = [stacked(group) for group in groups]
    for whole, group in zip(found, groups, strict=True):
        start = 0
        for table in group if len(group) > 1 else ():  # the parts share the cells of the whole
            stop = start + len(table.rows)
            if isinstance(table.rows, Rows) and isinstance(whole.rows, Rows):
                table.rows.columns = whole.rows[start:stop].columns
            start = stop
    return found


def _series(index: KeyIndex, tables: Sequence[Table]) -> Iterator[list[Table]]:
    """Yield the tables of each folder that has many of one header, if no two share an id.

    A comparison of each with all before it would take a minute for a table of each of 4,000 images.
    """
    of_folder = defaultdict[tuple[str, tuple[str, ...]], list[Table]](list)
    for table in tables:
        of_folder[table.name.rpartition("/")[0], table.header].append(table)
    for group in of_folder.values():
        if len(group) <= MANY_PARTS or any(map(_is_odd, group)):
            continue
        with contextlib.suppress(SourceError):
            place = group[0].column(find_ids(index, group[0]))
            ids = [paths_of(one.cells(place)) for one in group]
            of_row = np.repeat(np.arange(len(group)), [*map(len, ids)])
            every = Texts.joined(ids)
            if (of_row[positions(every, every)[0]] == of_row).all():
                yield group


def _without_copies(index: KeyIndex, tables: Sequence[Table]) -> list[Table]:
    groups = defaultdict[tuple[object, ...], list[Table]](list)
    for table in tables:
        groups[table.name.rpartition("/")[2], table.header, len(table.rows)].append(table)
    copies = set[int]()
    for group in groups.values():
        kept: list[Table] = []
        some = group if 1 < len(group) <= _MOST_COPIES else []  # more: a table for each folder
        for table in sorted(some, key=lambda one: one.name.count("/")):
            twin = next((one for one in kept if _have_equal_cells(one, table)), None)
            if twin is None or _num_below(index, table) not in (0, _num_below(index, twin)):
                kept.append(table)
            else:
                copies.add(id(table))
    return [one for one in tables if id(one) not in copies]


def _have_equal_cells(one: Table, two: Table) -> bool:
    places = range(len(one.header))
    return all(one.cells(at).array.equals(two.cells(at).array) for at in places)


def _num_below(index: KeyIndex, table: Table) -> int:
    """Return the number of images below the folder of a table."""
    start = table.name[: table.name.rfind("/") + 1]
    counts = index.keys.folders.counts().items()
    return sum(number for path, number in counts if f"{path}/".startswith(start))


def _is_within(table: Table, tables: Sequence[Table]) -> bool:
    """Return whether a larger table, named alike except for numbers, has the sampled ids."""
    larger = (one for one in tables[:_MOST_NESTED] if len(one.rows) > len(table.rows) > 0)
    larger = (one for one in larger if _NUMBER.sub("", one.name) == _NUMBER.sub("", table.name))
    pairs = ((table.cells(0)[:SAMPLE_ROWS], one.cells(0)) for one in larger if one.header)
    return any((positions(*pair)[0] >= 0).all() for pair in pairs)


def _are_parts(index: KeyIndex, tables: Sequence[Table]) -> bool:
    *others, last = tables
    first = others[0]
    if any(map(_is_odd, tables)) or last.header != first.header:
        return False
    splits = [origin_of(one.name).split for one in tables]
    if None not in splits and splits[-1] not in splits[:-1]:
        return True
    try:
        place = first.column(find_ids(index, first))
    except SourceError:
        return False
    ids, own = Texts.joined([one.cells(place) for one in others]), last.cells(place)
    if last.has_numbers and not index.num_found(own):  # equal titles 1, 2, … prove nothing
        return False
    if _are_ends(own, ids) or _are_ends(ids, own):
        return False
    return bool((positions(paths_of(own), paths_of(ids))[0] < 0).all())


def _is_odd(table: Table) -> bool:
    """Return whether a table is a submission, has a comma in its name, or has a row as header."""
    is_submission = SUBMISSION.search(table.name) is not None
    return is_submission or "," in table.name or len({*table.header}) < len(table.header)


def _are_ends(names: Texts, paths: Texts) -> bool:
    """Return whether `names` lack folders, and most are the file names in `paths`."""
    has_slash = [pc.any(pc.match_substring(x.array, "/")).as_py() for x in (names, paths)]
    if has_slash != [False, True]:
        return False
    ends = Texts(pc.replace_substring_regex(paths.array, r"^.*/", ""))
    return bool((positions(names, ends)[0] >= 0).mean() > 1 / 2)
