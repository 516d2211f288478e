"""Find the files that a table of items names, and match its rows to the images of a source.

The result has the form of a table of array files (`Table.is_own`), so the same code reads labels,
splits, groups, boxes and features from tables of items and of array files.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.arrays.array_images import ImageListing
from shardprep.catalog.item_columns import OF_FILES, options_stated, read_items, read_titled
from shardprep.catalog.items_file import LISTS, SINGLE, GivenItems, cell_paths, read_file
from shardprep.catalog.names import natural_order
from shardprep.catalog.objects.mask_files import MaskFiles, skipped
from shardprep.catalog.selection import MOST_SHOWN, NOT_LISTED
from shardprep.catalog.stacks import stack_of
from shardprep.catalog.tables.key_index import (
    AmbiguousIdError,
    KeyIndex,
    Origin,
    other_case,
    padded_keys,
)
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.table import Rows, Table
from shardprep.errors import OptionName, RecipeError, SourceError, shown, some_of
from shardprep.recipe.recipe import Recipe, make_recipe
from shardprep.source.listing import Skipped, in_order
from shardprep.source.members import Member, Members
from shardprep.source.string_column import Coded, Lookup, Texts, release
from shardprep.storage.url import is_url

Ints = NDArray[np.int64]

_LACKS = "an image of the sample is missing"
_ODD = r"^/|^[A-Za-z]:/|\\|(^|/)\.\.?/"
"""Matches an absolute path, or a path with `.`, `..` or backslashes."""
_DRIVE = re.compile("[A-Za-z]:/")
_ELSEWHERE = r"^(~\w*/|\$\w+/|[A-Za-z]\w*:/|[A-Za-z]:\\|\\\\|\.\.\\)"
"""Matches a path that needs a shell, another machine or a download to be a file."""
_ARCHIVE = "/archive:"
"""Root of paths if the source is an archive: no path of this machine is below it."""
_Files = dict[int, list[int]]
"""Row → positions of its files in the source."""
_MOST_FOLDERS = 1_000
_is_file = os.path.isfile  # Path.is_file is slow for a million paths
_OF_ROWS = ("image", "order")
"""Columns that may differ between the rows of a sample."""


def source_of(file: str) -> str:
    """Return the table's folder if all paths are relative and below it, else their common folder.

    `file` is the value of `--items`. RecipeError for a mix of absolute and relative paths, and for
    paths such as `~/a.jpg`, `file:///a.jpg` or `C:/a.jpg`. SourceError if the folder is missing.
    """
    items = read_titled(make_recipe({"source": ".", "items": file}, ""))
    folder = _common_folder(items)
    if not os.path.exists(folder):  # noqa: PTH110 - it may be a path of any machine
        first = shown(next(iter(items.columns["image"]), ""), MOST_SHOWN)
        what = f"no path of {items.name} exists, such as {first!r}: there is no folder {folder!r}"
        raise SourceError(OptionName("items"), what, "correct the paths")
    return folder


def _common_folder(items: GivenItems) -> str:
    cells = items.columns["image"]
    if odd := next(iter(cells.where(cells.matching(_ELSEWHERE))), ""):
        what = f"{items.name}: {shown(odd, MOST_SHOWN)!r} is neither relative nor starts with /"
        hint = f"name the folder of the images as {OptionName('SOURCE')}, or write paths of files"
        raise RecipeError(OptionName("items"), what, hint)
    table = Path(items.name).parent
    folders = [one for one in items.columns["image"].folders.counts() if one]
    if folders and folders[0].startswith("/"):  # absolute paths of masks count, too
        folders += filter(os.path.isabs, Texts.of(_path_cells(items)).folders.counts())
    are_absolute = {*map(os.path.isabs, folders)}
    if len(are_absolute) > 1:
        what = f"{items.name} mixes absolute and relative paths"
        hint = f"name the folder of all images as {OptionName('SOURCE')}"
        raise RecipeError(OptionName("items"), what, hint)
    own = os.path.abspath(table)  # noqa: PTH100 - links stay
    common = os.path.commonpath([os.path.normpath(os.path.join(own, x)) for x in folders] or [own])  # noqa: PTH118
    return str(table) if True not in are_absolute and f"{common}/".startswith(f"{own}/") else common


def are_files(recipe: Recipe) -> bool:
    """Return whether all paths of `--items` are files below the source, not in archives."""
    below = f"{os.path.abspath(recipe.source)}/"  # noqa: PTH100
    there = (any(x.startswith(below) and _is_file(x) for x in two) for two in _paths(recipe))
    return all(there)


def listed_files(recipe: Recipe) -> tuple[str, ...] | None:
    """Return the existing files that `--items` names, sorted, without the leading "/".

    None unless the source is "/" and the recipe has no `root`. SourceError if no file exists.
    """
    if recipe.source != "/" or not recipe.items or recipe.root:
        return None
    every = sorted({path for two in _paths(recipe) for path in two})
    if not (files := tuple(path[1:] for path in every if _is_file(path))):
        what = "none of the paths exists on this machine"
        what = f"{what}; the first is {every[0]!r}" if every else "the table names no path"
        raise SourceError(OptionName("items"), what, "correct the paths")
    return files


def listed_folders(recipe: Recipe) -> dict[str, bool]:
    """Return folder below the source → True if it has files of `--items`, False if only folders.

    {} means all folders: a path is relative, or the source is not the common folder of all paths.
    """
    items = read_titled(recipe)
    cells = [items.columns["image"], Texts.of(_path_cells(items, OF_FILES))]
    folders = {one for texts in cells for one in texts.folders.counts()}
    source = Path(recipe.source)
    if not all(map(os.path.isabs, folders)) or Path(_common_folder(items)) != source.absolute():
        return {}
    tops = {os.path.join(one, "") for one in (source.absolute(), source.resolve())}  # noqa: PTH118
    both = {f"{form(one)}/" for one in folders for form in (os.path.normpath, os.path.realpath)}
    held = {one[len(top) : -1] for one in both for top in tops if one.startswith(top)}
    parts = (itertools.accumulate(one.split("/"), "{}/{}".format) for one in held)
    return {"": "" in held} | {one: one in held for one in itertools.chain.from_iterable(parts)}


def _paths(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """Yield each path of `--items` joined to the source, and joined to the table's folder."""
    items = read_titled(recipe)
    both = [os.path.abspath(one) for one in (recipe.source, Path(items.name).parent)]  # noqa: PTH100
    for path in _path_cells(items):
        yield tuple(os.path.normpath(os.path.join(folder, path)) for folder in both)  # noqa: PTH118


def _path_cells(items: GivenItems, titles: Iterable[str] = ("image", *OF_FILES)) -> Iterator[str]:
    cells = itertools.chain.from_iterable(items.columns.get(one, ()) for one in titles)
    return (path for cell in cells for path in cell_paths(cell))


def mask_paths(recipe: Recipe) -> Iterator[str]:
    """Yield the paths in the column `mask` of `--items`."""
    return _path_cells(read_titled(recipe), ("mask",))


def with_items(recipe: Recipe, listing: ImageListing) -> tuple[Recipe, ImageListing]:
    """Return the recipe with options from columns, and the images that the table `--items` lists.

    Images without a row are skipped. SourceError for rows with faults, naming the first rows, or if
    no image or no whole sample is listed.
    """
    items = read_items(recipe, _joined(recipe, listing))
    documents = Documents(listing.others, recipe).named()
    recipe = recipe.with_rules(**options_stated(items, recipe), join=())
    every, finder = listing.images, _Finder(recipe, listing.images.keys, items)
    found, rules = finder.images(), recipe.rules
    column = rules.target_image.column if rules.target_image else rules.masks.pattern.column
    beside = finder.files(column, found) if column else {}
    remarks = finder.remarks
    del finder  # its indexes of a million keys are large
    release()
    matched = (_stacks if "sample" in items.columns else _single)(items, every, found, beside)
    _check_zeros(items, found, every.keys)
    uses = np.bincount(found + 1, minlength=len(every) + 1)[1:]
    by = "frame.groupby" if items.is_frame else "JSON"
    lists = f"give each image one row, with lists of its boxes or labels ({by})"
    lists += f"; {OptionName('boxes', 'csv:FILE:ID:BOX:LABEL')} reads a row for each box"
    if _are_equal(items, found, uses):
        lists = "the rows of an image are equal: write each row once"
        if items.is_frame:
            lists += f" (frame.drop_duplicates({items.titled('image')!r}))"
    items.check(lists if (uses > 1).any() else "correct these rows, or leave them out")
    if not uses.any():
        raise _no_image(items, every.keys)
    if not len(matched.images):
        what = f"every sample has a missing image, such as {matched.lost[0].detail}"
        raise SourceError(items.name, what, "correct the paths")
    of_rows = _OF_ROWS if "sample" in items.columns else _OF_ROWS[:1]
    others = {one: cells for one, cells in items.columns.items() if one not in of_rows}
    others |= {one: items.columns["image"] for one in [items.titled("image")] if one != "image"}
    is_whole = np.array_equal(matched.rows, np.arange(len(items)))  # taking all would copy them
    columns = [one if is_whole else one.take(matched.rows) for one in others.values()]
    rows = Rows([matched.keys, *columns], len(matched.rows))
    files = np.unique([at for several in matched.files.values() for at in several]).astype(int)
    images = matched.images
    if len(files):
        images = in_order(Members.joined([images, every.take(files)]))
    is_used = uses > 0
    is_used[files] = True
    of_join = documents - Documents(listing.others, recipe).named()
    noun = "mask" if rules.masks.pattern.column else "target image"
    names = {key: [every.keys[at] for at in several] for key, several in matched.files.items()}
    return recipe, replace(
        listing,
        images=images,
        others=[one for one in listing.others if one.key not in of_join],
        skipped=[
            *listing.skipped,
            *matched.lost,
            *(skipped(one, NOT_LISTED) for one in every.take(np.flatnonzero(~is_used))),
        ],
        columns=Table(items.name, ("image", *others), rows, is_own=True, titles=items.titles),
        files=MaskFiles(names, [], noun=noun) if column else None,
        notes=(*listing.notes, *items.notes, *remarks),
    )


def _joined(recipe: Recipe, listing: ImageListing) -> dict[str, Texts]:
    """Return the columns of the tables of `--join`, with a cell for each row of `--items`."""
    if not recipe.join:
        return {}
    items = read_titled(recipe)
    found = _Finder(recipe, listing.images.keys, items).images()
    keys = {items.titled("image"): _keys_of_rows(items, listing.images, found)}
    columns = read_file(recipe, is_last=False).columns
    rows = Rows([*columns.values()], len(items))
    own = Table(items.name, tuple(columns), rows, is_own=True, keys=keys)
    wanted = (*SINGLE, *LISTS) if recipe.columns else None
    table = cast("Table", Documents(listing.others, recipe, own).joined_table(wanted))
    titles = table.header[len(columns) :]
    table.check_quotes(*titles)
    return {title: table.cells(at) for at, title in enumerate(titles, len(columns))}


def _keys_of_rows(items: GivenItems, every: Members, found: Ints) -> Texts:
    """Return the key of the image of each row; without such an image, the text of the cell."""
    is_lost = np.flatnonzero(found < 0)
    keys = every.keys.take(np.maximum(found, 0))
    return keys.replaced(is_lost, items.columns["image"].take(is_lost)) if len(is_lost) else keys


class _Matched(NamedTuple):
    keys: Texts
    """Key of the image of each row; without such an image, the text of the cell."""
    rows: Ints
    """Rows to use: all; with samples, the first row of a whole sample, or rows without an image."""
    images: Members
    files: dict[str, list[int]]
    """Key of an image → positions of its mask files or of its target image."""
    lost: Sequence[Skipped] = ()
    """Samples without all of their images."""


def _single(items: GivenItems, every: Members, found: Ints, beside: _Files) -> _Matched:
    keys = _keys_of_rows(items, every, found)
    files = {keys[row]: several for row, several in beside.items()}
    used = np.flatnonzero(np.bincount(found + 1, minlength=len(every) + 1)[1:])
    images = every if len(used) == len(every) else every.take(used)
    return _Matched(keys, np.arange(len(items)), images, files)


def _stacks(items: GivenItems, every: Members, found: Ints, beside: _Files) -> _Matched:
    is_ordered, cells = "order" in items.columns, items.columns["image"]
    made, files, lost = list[Member](), dict[str, list[int]](), list[Skipped]()
    row_of = dict[str, int]()
    for sample, rows in _samples(items).items():
        there = [at for at in found[rows].tolist() if at >= 0]
        stack = stack_of(every, there, is_ordered=is_ordered) if there else None
        missing = {f"{sample}: {cells[row]}": row for row in rows if found[row] < 0}
        row_of |= missing or {sample: rows[0]}
        if not missing and stack:
            made.append(Member(sample, stack))
            files[sample] = [*dict.fromkeys(at for row in rows for at in beside.get(row, ()))]
        elif stack:
            lost.append(skipped(Member(sample, stack), _LACKS, ", ".join(missing)))
    places = np.array([*row_of.values()], np.int64)
    return _Matched(Texts.of(row_of), places, in_order(Members.of(made)), files, lost)


def _are_equal(items: GivenItems, found: Ints, uses: Ints) -> bool:
    """Return whether all rows of each image with several rows are equal."""
    rows = np.flatnonzero((found >= 0) & (uses[found] > 1))
    others = (cells.take(rows) for title, cells in items.columns.items() if title != "image")
    different = {*zip(found[rows].tolist(), *others, strict=True)}
    return len(different) == len({*found[rows].tolist()})


def _check_zeros(items: GivenItems, found: Ints, keys: Texts) -> None:
    """Record a fault for rows with a number that lacks leading zeros: 7 for 007.jpg."""
    cells = items.columns["image"]
    lost = [row for row in np.flatnonzero(found < 0).tolist() if cells[row].isdecimal()]
    if not lost:
        return
    padded = padded_keys(keys)
    for row in lost:
        if key := padded.get(cells[row].lstrip("0")):
            what = f"lacks the zeros of {key}: read the table as texts (pandas: dtype=str)"
            items.refuse(row, "image", what)


def _no_image(items: GivenItems, keys: Texts) -> SourceError:
    first = next(iter(items.columns["image"]), "")
    if not len(items):
        return SourceError(items.name, "has no rows", "give a row for each image")
    such = f"; the first is {shown(first, MOST_SHOWN)!r}{other_case(first, keys)}" if first else ""
    hint = f"write paths such as {shown(keys[0], MOST_SHOWN)}"
    if first.endswith(".0") and first[:-2].isdecimal():
        hint += ", and read the column as texts (pandas: dtype=str)"
    return SourceError(items.name, f"no row names an image of the source{such}", hint)


def _samples(items: GivenItems) -> dict[str, list[int]]:
    """Return sample → its rows in order; rows that repeat or contradict others become faults."""
    columns, rows_of = items.columns, defaultdict[str, list[int]](list)
    for row, sample in enumerate(columns["sample"]):
        rows_of[sample].append(row)
    by = "order" if "order" in columns else "image"
    try:
        places: list[Any] = [*map(float if by == "order" else natural_order, columns[by])]
    except ValueError:  # a place is not a number
        places = [*map(natural_order, columns[by])]
    shared = [one for one in columns if one not in _OF_ROWS and one not in OF_FILES]
    for rows in rows_of.values():
        rows.sort(key=places.__getitem__)
        if again := next((b for a, b in itertools.pairwise(rows) if places[a] == places[b]), 0):
            items.refuse(again, by, "occurs twice in its sample")
        for title in shared:
            cells = columns[title].take(np.array(rows))
            odd = next((i for i, cell in enumerate(cells) if cell != cells[0]), 0)
            if odd:
                items.refuse(rows[odd], title, f"differs from row {rows[0] + 1:,} of its sample")
    return dict(rows_of)


class _Finder:
    """Finds the files that the cells of a table of items name.

    A cell is a key of the source, the end of a key, or the path of a file below the source:
    absolute, or relative to the folder of the table.
    """

    def __init__(self, recipe: Recipe, keys: Texts, items: GivenItems) -> None:
        self._keys, self._items, self._index = keys, items, KeyIndex(keys)
        self._depths = {*np.unique(keys.num_folders()).tolist()}
        targets = recipe.rules.target_image
        self._column_of_targets = targets.column if targets else ""
        source = recipe.source
        is_folder = not is_url(source) and Path(source).is_dir()
        both = (os.path.abspath(source), os.path.realpath(source))  # noqa: PTH100
        self._roots = [*dict.fromkeys(one.rstrip("/") for one in both)] if is_folder else []
        own = os.path.abspath(Path(items.name).parent)  # noqa: PTH100 - links stay
        self._folder = own if is_folder else _ARCHIVE

    @property
    def remarks(self) -> Iterable[str]:
        return self._index.remarks

    def images(self) -> Ints:
        """Return the position of each row's image, or −1. Empty cells and repeats are faults."""
        cells, items = self._items.columns["image"], self._items
        for row in np.flatnonzero(~cells.are_filled).tolist():
            items.refuse(row, "image", "is empty")
        found = self._find(cells, np.arange(len(cells)), "image")
        rows = np.flatnonzero(found >= 0)
        if np.bincount(found[rows], minlength=1).max() > 1:
            _, firsts, codes = np.unique(found[rows], return_index=True, return_inverse=True)
            for at in np.flatnonzero(firsts[codes] != np.arange(len(rows))).tolist():
                first = int(rows[firsts[codes[at]]])
                items.refuse(int(rows[at]), "image", f"is in row {first + 1:,} too")
        return found

    def files(self, title: str, images: Ints) -> _Files:
        """Return row → positions of the files in column `title`; SourceError without this column.

        A file that is missing, or that is the image of a row, is a fault.
        """
        items, rows, paths = self._items, list[int](), list[str]()
        if title not in items.columns:
            hint = f"use one of {some_of([*map(items.titled, items.columns)], 8)}"
            raise SourceError(items.name, f"has no column {title!r}", hint)
        for row, cell in enumerate(items.columns[title]):
            several = cell_paths(cell)
            if title == self._column_of_targets and len(several) > 1:
                items.refuse(row, title, "names several target images: write one")
            paths += several
            rows += [row] * len(several)
        found = self._find(Texts.of(paths), np.array(rows, np.int64), title)
        of_row, known = defaultdict[int, list[int]](list), {*images.tolist()}
        for row, path, at in zip(rows, paths, found.tolist(), strict=True):
            of_row[row].append(at)
            if at < 0 or at in known:
                what = "is not an image of the source" if at < 0 else "is also the image of a row"
                items.refuse(row, title, what, path)
        return dict(of_row)

    @cached_property
    def _whole(self) -> Lookup:
        return Lookup(self._keys)

    def _equal(self, paths: Texts) -> Ints:
        """Return the position of the key that equals each path, or −1."""
        if self._depths.isdisjoint(np.unique(paths.num_folders()).tolist()):
            return np.full(len(paths), -1, np.int64)  # names need no index of whole keys
        return self._whole.positions(paths)[0]

    def _find(self, cells: Texts, rows: Ints, title: str) -> Ints:
        found = self._equal(cells)
        left = np.flatnonzero(found < 0)
        if not len(left):
            return found
        lost = cells.where(found < 0)
        paths = self._relative(lost, rows[left], title)
        if paths is not lost:
            found[left] = self._equal(paths)
        is_left = found[left] < 0
        left, paths = left[is_left], paths.where(is_left)
        if (real := self._without_links(paths)) is not paths:
            found[left] = self._equal(real)
            is_left = found[left] < 0
            left, paths = left[is_left], paths.where(is_left)
        origin = Origin(self._below(self._folder) or "")
        whole = [origin] if (found >= 0).any() else []
        try:
            origins = Coded.constant(origin, len(paths))
            found[left] = self._index.find_all(paths, self._items.name, origins, fitting=whole)
        except AmbiguousIdError:
            several = [(row, self._index.find(path)) for row, path in zip(left, paths, strict=True)]
            for row, at in several:
                if len(at) > 1:
                    fits = f"fits {self._keys[at[0]]} and {self._keys[at[1]]}: write a longer path"
                    self._items.refuse(int(rows[row]), title, fits, cells[int(row)])
            if not self._items.faults:
                raise
        return found

    def _relative(self, cells: Texts, rows: Ints, title: str) -> Texts:
        """Return paths as keys of the source; a path outside the source is a fault."""
        folder = os.path.relpath(self._roots[0] or "/", self._folder) if self._roots else ".."
        given = cells
        for start in [*self._roots, *([folder] if folder[:1] not in "./" else [])]:
            prefix = f"{start}/"  # most tables have one prefix: no loop over cells
            is_below = pc.starts_with(cells.array, prefix)
            if pc.any(is_below).as_py():
                shorter = pc.utf8_slice_codeunits(cells.array, len(prefix))
                cells = Texts(pc.if_else(is_below, shorter, cells.array))
        odd = np.flatnonzero(cells.matching(_ODD))
        keys = list[str]()
        for at in odd.tolist():
            path = given[at].replace("\\", "/")
            key: str | None = posixpath.normpath(path)
            if path.startswith(("/", "../")) or "/../" in path:
                key = self._below(posixpath.normpath(posixpath.join(self._folder, path)))
            if key is None or _DRIVE.match(path):
                inner = self._inside(path) if at == odd[0] else ""
                self._items.refuse(
                    int(rows[at]), title, f"leads out of the source{inner}", cells[at]
                )
            keys.append(key or "")
        return cells.replaced(odd, Texts.of(keys)) if len(odd) else cells

    def _inside(self, path: str) -> str:
        """Return a hint with the only key that has the folder and name of `path`, or ""."""
        parts = path.split("/")
        found = (self._index.find("/".join(parts[i:])) for i in range(len(parts)))
        several = next(filter(None, map(list, found)), [])
        if len(several) == 1:
            key = self._keys[several[0]]
            if "/".join([*self._roots[:1], key]).split("/")[-2:] == parts[-2:]:
                return f": write {shown(key)}"
        source = OptionName("SOURCE")
        is_file = _is_file(os.path.join(self._folder, path))  # noqa: PTH118
        return f": name the {source} that holds it, or no {source}" * is_file

    def _without_links(self, paths: Texts) -> Texts:
        """Return the paths with linked folders replaced by folders that the source lists."""
        folders, of_link = paths.folders, dict[str, str]()
        for folder in folders.values[:_MOST_FOLDERS] if self._roots else ():
            there = self._below(os.path.realpath(os.path.join(self._roots[0], folder)))  # noqa: PTH118
            if there is not None and there != folder:
                of_link[folder] = there
        rows = np.flatnonzero(folders.fit(of_link.__contains__))
        pairs = (paths[row].rpartition("/") for row in rows.tolist())
        real = Texts.of(f"{of_link[a]}/{b}" for a, _, b in pairs)
        return paths.replaced(rows, real) if len(rows) else paths

    def _below(self, path: str) -> str | None:
        """Return an absolute path relative to the source; None if it is not below the source."""
        roots = self._roots or [_ARCHIVE]
        root = next((one for one in roots if f"{path}/".startswith(f"{one}/")), None)
        return None if root is None else path[len(root) + 1 :]
