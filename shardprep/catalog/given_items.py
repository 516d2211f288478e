"""The table of items that a user gives: a row for each image, in place of rules for a layout.

Its rows are matched to the images of the source. Then its columns are those of a file of arrays
(`Table.is_own`), so that labels, splits, groups, boxes and features have one way for both.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from shardprep.catalog.arrays.array_file import reading
from shardprep.catalog.arrays.array_images import ImageListing
from shardprep.catalog.labels import LABEL_COLUMNS
from shardprep.catalog.names import given_split, natural_order, stem
from shardprep.catalog.objects.mask_files import MaskFiles, skipped
from shardprep.catalog.selection import MOST_SHOWN
from shardprep.catalog.stacks import stack_of
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex, Origin
from shardprep.catalog.tables.metadata_files import read_table
from shardprep.catalog.tables.row_matching import is_of_splits
from shardprep.catalog.tables.table import Rows, Table, parse_table
from shardprep.errors import OptionName, RecipeError, SourceError, shown, some_of
from shardprep.recipe.object_rules import PATHS
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.recipe.recipe import Recipe, make_recipe
from shardprep.source.listing import in_order
from shardprep.source.members import Member, Members
from shardprep.source.string_column import Coded, Texts, booleans, positions
from shardprep.storage.atomic_file import write_durably
from shardprep.storage.cache import cache_root, make_cache
from shardprep.storage.text_file import decoded
from shardprep.storage.url import is_url

Ints = NDArray[np.int64]

CACHE = "items"
"""Folder of the cache for tables that are values of Python."""
NOT_LISTED = "not in the table of items"
_IMAGE = (
    "image_path", "filepath", "file_path", "path", "image/filename", "filename", "file_name",
    "image_name", "image_id", "img", "file", "key", "id",
)  # fmt: skip
"""Other names of the column `image`, the clearest first."""
_TARGET = "target/"
_TARGETS: dict[str, dict[str, str]] = {
    "label": {}, "labels": {"target": "multilabel"}, "text": {"target": "text"},
    "texts": {"target": "texts"},
}  # fmt: skip
"""Column of a target → the options that it needs besides its name."""
_FILES = {"mask": "masks", "target_image": "target_image"}
"""Column of paths of other files of an image → its option."""
_OF_OBJECTS = {"segmentation": "masks", "keypoints": "points"}
"""Column beside `boxes` → its option, which takes the value of `--boxes`."""
_OTHERS = ("split", "group", "boxes", "box_labels", "box_format", "iscrowd", "sample", "order")
_ROLES = ("image", *_TARGETS, *_FILES, *_OF_OBJECTS, *_OTHERS)
_TEXTS = ("labels", "texts", "box_labels")
_LISTS = (*_TEXTS, *_FILES, *_OF_OBJECTS, "boxes", "iscrowd")
"""Columns whose lists are JSON; other lists of numbers are vectors."""
_FOLDS = ("fold", "folds", "kfold")
_FORMS = ("xyxy", "xywh", "center", "yxyx")
_ODD = r"^/|^[A-Za-z]:/|\\|(^|/)\.\.?/"
"""A path that is absolute, that has steps, or that has the separators of Windows."""
_JSON = (".json", ".jsonl", ".ndjson")
_NUMBER = r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*"
_NUMBERS = rf"{_NUMBER}(\s{_NUMBER})+"
_DRIVE = re.compile("[A-Za-z]:/")
_ARCHIVE = "/archive:"
"""Stands for the folder of an archive, so that no other path leads into it."""
_POINTS = "points"
_OF_ROWS = ("image", "order")
"""Columns that differ between the rows of a sample, and that no option names."""
_FEW = 5


@dataclass(frozen=True)
class _Items:
    """The rows of a table of items, and what is wrong with them."""

    name: str
    columns: dict[str, Texts]
    targets: Sequence[str] = ()
    points: Sequence[str] = ()
    """Columns of x and y of each point in turn."""
    notes: Sequence[str] = ()
    faults: dict[int, str] = field(default_factory=dict)
    """Row → its first fault."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def refuse(self, row: int, title: str, what: str, cell: str | None = None) -> None:
        cell = shown(self.columns[title][row] if cell is None else cell, MOST_SHOWN)
        self.faults.setdefault(row, f"row {row + 1:,}: {title} {cell!r} {what}")

    def check(self, hint: str) -> None:
        """Raise a SourceError that names the first rows with a fault."""
        if self.faults:
            rows = [self.faults[row] for row in sorted(self.faults)]
            more = f"; and {len(rows) - _FEW:,} more rows" if len(rows) > _FEW else ""
            raise SourceError(self.name, "; ".join(rows[:_FEW]) + more, hint)


def kept(items: Any) -> str:
    """Return the path of a table; a data frame or a list of dicts is written into the cache.

    The name of the file is the hash of its rows, so the same rows continue an interrupted build.
    """
    if isinstance(items, str | os.PathLike):
        return os.fspath(items)
    try:
        table = pa.table(items) if not isinstance(items, list) else None
    except (pa.ArrowException, TypeError, ValueError):  # a column of paths, or of several types
        table = None
    stream = io.BytesIO()
    if table is not None:
        pq.write_table(table, stream)
    else:
        rows = items if isinstance(items, list) else _records(items)
        lines = (json.dumps(row, default=_plain) for row in rows)
        stream.write("\n".join(lines).encode())
    data = stream.getvalue()
    suffix = "parquet" if table is not None else "jsonl"
    path = make_cache(cache_root() / CACHE) / f"{hashlib.sha256(data).hexdigest()}.{suffix}"
    write_durably(path, data)
    return str(path)


def _records(items: Any) -> list[Any]:
    if isinstance(items, Mapping):
        columns = [list(column) for column in items.values()]
        return [dict(zip(items, row, strict=True)) for row in zip(*columns, strict=True)]
    if hasattr(items, "to_dict"):
        return list(items.to_dict("records"))
    what = f"a value of the type {type(items).__name__} is not a table"
    raise RecipeError(OptionName("items"), what, "give a data frame, a list of dicts or a file")


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def source_of(file: str) -> str:
    """Return the folder of the images in a table whose paths are absolute, or else of the table."""
    recipe = make_recipe({"source": ".", "items": file}, "")
    items = _named(_read(recipe), recipe)
    images = items.columns["image"]
    if not (len(images) and images[0].startswith("/")):
        return "." if items.name != file else os.path.dirname(file) or "."  # noqa: PTH120
    folder = os.path.commonpath([*images.folders.counts()])
    if folder == "/":
        what = "the images have no common folder"
        raise RecipeError(OptionName("items"), what, "name the folder of all: SOURCE")
    return folder


def with_items(recipe: Recipe, listing: ImageListing) -> tuple[Recipe, ImageListing]:
    """Return the recipe, and the images of a source that the table of `--items` lists.

    A column whose name has a meaning, such as `label` or `boxes`, is the value of its option if the
    recipe leaves that open. Images without a row are skipped; rows without an image are counted as
    for every table. SourceError names the rows that are wrong.
    """
    items = _with_points(_named(_read(recipe), recipe))
    recipe = recipe.with_rules(**_options(recipe, items))
    every, finder = listing.images, _Finder(recipe, listing.images.keys, items)
    found, column = finder.images(), _column_of_files(recipe)
    beside = finder.files(column) if column else {}
    samples = _samples(items, found) if "sample" in items.columns else None
    items.check(finder.hint)
    if not (found >= 0).any():
        such = f", such as {items.columns['image'][0]!r}" if len(items) else ""
        key = every.keys[0]
        hint = f"a key looks like {shown(key, MOST_SHOWN)}"
        if such and items.columns["image"][0].isdigit() and stem(key).startswith("0"):
            hint += "; a table that is read as numbers loses the zeros in front (pandas: dtype=str)"
        raise SourceError(items.name, f"no row names an image of the source{such}", hint)
    if samples is None:
        rows, images = np.arange(len(items)), every.take(np.unique(found[found >= 0]))
        is_lost = np.flatnonzero(found < 0)
        keys = every.keys.take(np.maximum(found, 0))
        keys = keys.replaced(is_lost, items.columns["image"].take(is_lost))
        of_key = {keys[row]: several for row, several in beside.items()}
    else:
        rows, keys = np.array([own[0] for own in samples.values()]), Texts.of(samples)
        is_fixed = "order" in items.columns
        stacks = [
            stack_of(every, found[own].tolist(), is_ordered=is_fixed) for own in samples.values()
        ]
        images = Members.of(map(Member, samples, stacks))
        of_key = {
            key: [at for row in own for at in beside.get(row, ())] for key, own in samples.items()
        }
    others = {one: cells for one, cells in items.columns.items() if one not in _OF_ROWS}
    table = Rows([keys, *(cells.take(rows) for cells in others.values())], len(rows))
    others_of = np.array([*itertools.chain(*beside.values())], np.int64)
    used = np.union1d(found[found >= 0], others_of)
    left = every.take(np.delete(np.arange(len(every)), used))
    masks = np.setdiff1d(used, found)
    files = None
    if column:
        noun = "mask" if recipe.rules.masks.pattern.column else "target image"
        names = {key: [every.keys[at] for at in several] for key, several in of_key.items()}
        files = MaskFiles(names, [], noun=noun)
    return recipe, replace(
        listing,
        images=in_order(Members.joined([images, every.take(masks)])),
        skipped=[*listing.skipped, *(skipped(one, NOT_LISTED) for one in left)],
        columns=Table(items.name, ("image", *others), table, is_own=True),
        files=files,
        notes=(*listing.notes, *items.notes),
    )


def _read(recipe: Recipe) -> _Items:
    file = Path(recipe.items)
    name = "items" if file.is_relative_to(cache_root() / CACHE) else recipe.items
    suffix = file.suffix.lower()
    if not file.is_file():
        what = "is no file on this machine"
        raise SourceError(OptionName("items", recipe.items), what, "name a CSV, Parquet or JSON")
    if suffix == ".parquet":
        with reading(name):
            return _Items(name, _of_arrow(pq.read_table(file, use_threads=False)))
    data = read_table(recipe.items, recipe.max_member_size)
    if suffix in _JSON:
        return _Items(name, _of_objects(_json_objects(data, name)))
    table = parse_table(data, name, has_header=recipe.header, null=recipe.null)
    table.check_quotes(*table.header)
    return _Items(name, {title: table.cells(i) for i, title in enumerate(table.header)})


def _json_objects(data: bytes, name: str) -> list[Mapping[str, Any]]:
    text = decoded(data)
    lines = [text] if text.lstrip().startswith("[") else filter(str.strip, text.splitlines())
    try:
        rows = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        what = f"is neither JSON lines nor a list of JSON objects ({error})"
        raise SourceError(name, what, "write an object for each image") from None
    rows = rows[0] if rows and isinstance(rows[0], list) else rows
    if wrong := next((i for i, row in enumerate(rows, 1) if not isinstance(row, dict)), 0):
        raise SourceError(name, f"row {wrong:,} is no object", "write an object for each image")
    return rows


def _of_objects(rows: Sequence[Mapping[str, Any]]) -> dict[str, Texts]:
    titles = dict.fromkeys(title for row in rows for title in row)
    return {one: Texts.of(_text(row.get(one), one.lower()) for row in rows) for one in titles}


def _of_arrow(table: Any) -> dict[str, Texts]:
    """Return the columns of a table as texts, except bytes and the unnamed index of pandas."""
    found = dict[str, Texts]()
    for title, column in zip(table.column_names, table.columns, strict=True):
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
            column = column.cast(kind)  # noqa: PLW2901
        if title.startswith("__index_level_") or pa.types.is_binary(kind):
            continue
        if pa.types.is_nested(kind):
            found[title] = Texts.of(_text(one, title.lower()) for one in column.to_pylist())
            continue
        texts = column.cast(pa.large_string())
        if pa.types.is_floating(kind):
            texts = pc.if_else(pc.is_nan(column), "", texts)
        found[title] = Texts(texts.fill_null("").combine_chunks())
    return found


def _text(value: Any, title: str) -> str:
    """Return a value as a table has it: lists of numbers as numbers, other lists as JSON."""
    if value is None or value != value:  # noqa: PLR0124 - NaN
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, list | dict):
        return str(value)
    if title in _TEXTS and isinstance(value, list):
        return json.dumps([str(one) for one in value])
    is_vector = title not in _LISTS and all(isinstance(one, int | float) for one in value)
    return " ".join(map(str, value)) if is_vector else json.dumps(value, default=str)


def _named(items: _Items, recipe: Recipe) -> _Items:
    """Return the items with our names for the columns that have a meaning."""
    roles = _roles(items, recipe)
    new = {title: role for role, title in roles.items()}
    names = [new.get(title, title).removeprefix(_TARGET) for title in items.columns]
    if twice := next((one for one in names if names.count(one) > 1), ""):
        raise SourceError(items.name, f"has two columns for {twice!r}", "rename or drop one")
    said = [
        f"column {title!r} of {items.name} is the {role}"
        for role, title in roles.items()
        if title.lower() != role
    ]
    columns = dict(zip(names, items.columns.values(), strict=True))
    targets = [one.removeprefix(_TARGET) for one in items.columns if one.startswith(_TARGET)]
    return replace(items, columns=columns, targets=targets, notes=said + _folds(columns, recipe))


def _roles(items: _Items, recipe: Recipe) -> dict[str, str]:
    """Return our name of each column with a meaning, and its title in the table."""
    titles = {title.lower(): title for title in reversed(items.columns)}
    roles = {role: titles[role] for role in _ROLES if role in titles}
    if "image" not in roles:
        if not (known := [one for one in _IMAGE if one in titles]):
            what = f"has no column of images: its columns are {some_of([*items.columns], 8)}"
            raise SourceError(items.name, what, "call the column of their paths image")
        roles["image"] = titles[known[0]]
    has_target = any(one in _TARGETS or one.startswith(_TARGET) for one in titles)
    if not has_target and recipe.labels == BUILD_DEFAULTS["labels"]:
        usual = [titles[one] for one in LABEL_COLUMNS if one in titles]
        if len(usual) > 1:
            what = f"columns {usual[0]!r} and {usual[1]!r} may both be the label"
            hint = f"call one of them label, or give {OptionName('labels', f'column:{usual[0]}')}"
            raise SourceError(items.name, what, hint)
        for title in usual:
            is_list = next(iter(items.columns[title]), "").startswith("[")
            roles["labels" if is_list else "label"] = title
    if "split" not in roles and not recipe.split:
        for title in filter(is_of_splits, items.columns):
            if all(given_split([cell]) for cell in items.columns[title].coded().counts()):
                roles["split"] = title
    return roles


def _folds(columns: Mapping[str, Texts], recipe: Recipe) -> list[str]:
    """Return how a column of folds makes splits, if the table has one and no splits."""
    title = next((one for one in columns if one.lower() in _FOLDS), "")
    if not title or "split" in columns or recipe.split:
        return []
    first, *rest = sorted(columns[title].coded().counts(), key=natural_order)
    places = ",".join([f"{first}=validation", *(f"{one}=train" for one in rest)])
    return [f"{OptionName('split', f'column:{title}:{places}')} makes splits of its folds"]


def _with_points(items: _Items) -> _Items:
    """Return the items with columns of x and y for each of the `points`, instead of lists."""
    if _POINTS not in items.columns:
        return items
    rows = list[list[Any]]()
    for row, cell in enumerate(items.columns[_POINTS]):
        try:
            points = [
                tuple(map(float, one)) if one else ("", "") for one in json.loads(cell or "[]")
            ]
            rows.append(points)
            if {*map(len, points)} - {2}:
                raise ValueError
        except (ValueError, TypeError):
            rows[row:] = [[]]
            items.refuse(row, _POINTS, "is no list of [x, y]")
    number = max(map(len, rows), default=0)
    columns = {title: cells for title, cells in items.columns.items() if title != _POINTS}
    for i, axis in itertools.product(range(number), (0, 1)):
        cells = (str(one[i][axis]) if i < len(one) else "" for one in rows)
        columns[f"{i} {'xy'[axis]}"] = Texts.of(cells)
    titles = [f"{i} {axis}" for i in range(number) for axis in "xy"]
    return replace(items, columns=columns, points=titles)


def _options(recipe: Recipe, items: _Items) -> dict[str, Any]:
    """Return the options that the columns state, and that the recipe leaves open."""
    columns, stated = items.columns, dict[str, Any]()
    targets = [one for one in _TARGETS if one in columns]
    targets += [",".join(items.targets)] if items.targets else []
    if len(targets) > 1 and recipe.labels == BUILD_DEFAULTS["labels"]:
        what = f"has several targets: {' and '.join(targets)}"
        hint = f"drop one, or choose one with {OptionName('labels', f'column:{targets[0]}')}"
        raise SourceError(items.name, what, hint)
    stated["labels"] = f"column:{targets[0]}" if targets else "none"
    if targets and recipe.labels == BUILD_DEFAULTS["labels"]:
        if cells := columns.get(targets[0]) if items.targets else None:
            stated |= {"target": "vector"} if _are(_NUMBERS, cells) else {}
            stated |= {"target": "regression"} if _are(_NUMBER, cells) else {}
        stated |= _TARGETS.get(targets[0], {})
    if "split" in columns:
        stated["split"] = "column:split"
    if "group" in columns:
        stated["group"] = "group"
    if "boxes" in columns:
        boxes = f"column:{_form(items)}(boxes)"
        boxes += ":box_labels" if "box_labels" in columns else ""
        of_objects = {option: boxes for name, option in _OF_OBJECTS.items() if name in columns}
        stated |= {"boxes": boxes, **of_objects}
    if items.points:
        stated["points"] = f"column:{','.join(items.points)}"
    stated |= {option: f"{PATHS}{name}" for name, option in _FILES.items() if name in columns}
    return {k: one for k, one in stated.items() if getattr(recipe, k) == BUILD_DEFAULTS[k]}


def _are(pattern: str, cells: Texts) -> bool:
    """Return whether all cells fit a regular expression, or are empty."""
    fit = pc.match_substring_regex(cells.array, rf"^({pattern})?$")
    return bool(pc.all(fit).as_py())


def _form(items: _Items) -> str:
    stated = items.columns.get("box_format", Texts.of([])).coded().counts()
    if len(stated) > 1 or not stated.keys() <= {*_FORMS}:
        what = f"has boxes of the formats {some_of([*stated])}"
        raise SourceError(items.name, what, f"give all rows one of {', '.join(_FORMS)}")
    return next(iter(stated), _FORMS[0])


def _column_of_files(recipe: Recipe) -> str:
    rules = recipe.rules
    return rules.target_image.column if rules.target_image else rules.masks.pattern.column


def _samples(items: _Items, found: Ints) -> dict[str, list[int]]:
    """Return sample → its rows, in order; a sample whose files are not all there is a fault."""
    columns, rows_of = items.columns, defaultdict[str, list[int]](list)
    for row, sample in enumerate(columns["sample"]):
        rows_of[sample].append(row)
        if found[row] < 0:
            items.refuse(row, "image", "is no image of the source, but a part of a sample")
    places = (
        _places(columns["order"]) if "order" in columns else [*map(natural_order, columns["image"])]
    )
    shared = [one for one in columns if one not in _OF_ROWS and one not in _FILES]
    for rows in rows_of.values():
        rows.sort(key=places.__getitem__)
        if again := next((b for a, b in itertools.pairwise(rows) if places[a] == places[b]), 0):
            items.refuse(
                again, "order" if "order" in columns else "image", "is twice in its sample"
            )
        for title in shared:
            cells = columns[title].take(np.array(rows))
            odd = next((i for i, cell in enumerate(cells) if cell != cells[0]), 0)
            if odd:
                items.refuse(rows[odd], title, f"is not that of row {rows[0] + 1:,}, of its sample")
    return dict(rows_of)


def _places(order: Texts) -> list[Any]:
    """Return what to sort by: numbers, or texts in natural order."""
    try:
        return [*map(float, order)]
    except ValueError:
        return [*map(natural_order, order)]


class _Finder:
    """Finds the files that the cells of a table mean.

    A cell is a key of the source, or an end of one as in every table; or a path of a file below the
    source, absolute or from the folder of the table.
    """

    def __init__(self, recipe: Recipe, keys: Texts, items: _Items) -> None:
        self._keys, self._items, self._index = keys, items, KeyIndex(keys)
        source, table = recipe.source, Path(recipe.items)
        is_folder = not is_url(source) and Path(source).is_dir()
        both = (os.path.abspath(source), os.path.realpath(source))  # noqa: PTH100
        self._roots = [*dict.fromkeys(both)] if is_folder else []
        own = Path() if items.name != recipe.items else table.parent
        self._folder = os.path.abspath(own) if is_folder else _ARCHIVE  # noqa: PTH100
        self.hint = f"a path leads to a file of {source}, and each image has one row"

    def images(self) -> Ints:
        """Return the position of the image of each row, or −1; two rows of one are a fault."""
        cells, items = self._items.columns["image"], self._items
        for row in np.flatnonzero(booleans(pc.equal(cells.array, ""))).tolist():
            items.refuse(row, "image", "names no image")
        found = self._find(cells, np.arange(len(cells)), "image")
        rows = np.flatnonzero(found >= 0)
        _, firsts, codes = np.unique(found[rows], return_index=True, return_inverse=True)
        for at in np.flatnonzero(firsts[codes] != np.arange(len(rows))).tolist():
            items.refuse(int(rows[at]), "image", f"is in row {rows[firsts[codes[at]]] + 1:,} too")
        return found

    def files(self, title: str) -> dict[int, list[int]]:
        """Return row → positions of the files that its cell names: a path, or a list of paths."""
        items, rows, paths = self._items, list[int](), list[str]()
        place = title if title in items.columns else ""
        if not place:
            what = f"has no column {title!r}: its columns are {some_of([*items.columns], 8)}"
            raise SourceError(items.name, what)
        for row, cell in enumerate(items.columns[title]):
            several = json.loads(cell) if cell.startswith("[") else [cell] if cell else []
            paths += several
            rows += [row] * len(several)
        found = self._find(Texts.of(paths), np.array(rows, np.int64), title)
        of_row = defaultdict[int, list[int]](list)
        for row, path, at in zip(rows, paths, found.tolist(), strict=True):
            of_row[row].append(at)
            if at < 0:
                items.refuse(row, title, "is no image of the source", path)
        return dict(of_row)

    def _find(self, cells: Texts, rows: Ints, title: str) -> Ints:
        found, _ = positions(cells, self._keys)
        left = np.flatnonzero(found < 0)
        if not len(left):
            return found
        paths = self._relative(cells.take(left), rows[left], title)
        found[left], _ = positions(paths, self._keys)
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
                    fits = f"fits {self._keys[at[0]]} and {self._keys[at[1]]}"
                    self._items.refuse(int(rows[row]), title, fits, cells[int(row)])
            if not self._items.faults:
                raise
        return found

    def _relative(self, cells: Texts, rows: Ints, title: str) -> Texts:
        """Return paths as keys of the source; a path that leads out of it is a fault."""
        folder = os.path.relpath(self._roots[0], self._folder) if self._roots else ".."
        for start in [*self._roots, *([folder] if folder[:1] not in "./" else [])]:
            prefix = f"{start}/"  # most tables have one, so they need no loop
            shorter = pc.utf8_slice_codeunits(cells.array, len(prefix))
            is_below = pc.starts_with(cells.array, prefix)
            cells = Texts(pc.if_else(is_below, shorter, cells.array))
        odd = np.flatnonzero(booleans(pc.match_substring_regex(cells.array, _ODD)))
        keys = list[str]()
        for at in odd.tolist():
            path = cells[at].replace("\\", "/")
            key: str | None = posixpath.normpath(path)
            if path.startswith("/") or path.startswith("../") or "/../" in path:
                key = self._below(posixpath.normpath(posixpath.join(self._folder, path)))
            if key is None or _DRIVE.match(path):
                self._items.refuse(int(rows[at]), title, "leads out of the source", cells[at])
            keys.append(key or "")
        return cells.replaced(odd, Texts.of(keys)) if len(odd) else cells

    def _below(self, path: str) -> str | None:
        """Return the path from the source to an absolute path; None if it is not below it."""
        roots = self._roots or [_ARCHIVE]
        root = next((one for one in roots if f"{path}/".startswith(f"{one}/")), None)
        return None if root is None else path[len(root) + 1 :]
