"""Read boxes of a table: their columns, form, classes and images; `box_cells` reads the numbers."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from operator import attrgetter
from pathlib import PurePath

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.objects.formats import box_format
from shardprep.catalog.objects.formats.annotated_source import (
    AnnotatedSource,
    Sign,
    coverage,
    named_as_images,
    of_own_documents,
    read_each,
    sampled,
)
from shardprep.catalog.objects.formats.box_cells import (
    NO_BOXES,
    NO_SHAPE,
    POLYGON,
    SAMPLE_ROWS,
    SPACES,
    CellBoxes,
    boxes_of_cells,
    boxes_of_columns,
    is_number,
    keypoints_of,
    tuple_size,
)
from shardprep.catalog.objects.formats.box_format import SizeOf
from shardprep.catalog.objects.formats.coco import outline_of
from shardprep.catalog.objects.object_table import (
    MALFORMED,
    ONE_CLASS,
    Found,
    ObjectTable,
    stated_size,
)
from shardprep.catalog.tables.key_index import origin_of
from shardprep.catalog.tables.object_lists import object_rows, unfolded
from shardprep.catalog.tables.row_matching import TableMatch, clear_ids, match_table, row_ids
from shardprep.catalog.tables.table import Table, table_of
from shardprep.catalog.tables.united_tables import united
from shardprep.errors import SourceError, shown
from shardprep.image.annotation_types import IS_CROWD, Floats, Skeleton
from shardprep.recipe.object_rules import (
    NUM_CORNERS,
    BoxColumns,
    BoxForm,
    FormatRule,
    letters,
    named_box_columns,
    parse_box_rule,
)
from shardprep.source.string_column import booleans

_BRACKETS = re.compile(r"\s*\[[\[(\s]*(-?[\d.]+\s*[,\s]\s*){3}-?[\d.]+\s*[\])]|\s*\[\s*\{.*:")
_MOST_SEEN = 100
_NUMBERS = re.compile(r"(\s-?\d[\d.]*){4}")
_LABELS = re.compile(
    r"class|label|categor|type|species|breed|target|\btag\b|(^|_)name", re.IGNORECASE
)
_OF_TENSORFLOW = frozenset(("filename", "class", "xmin", "ymin", "xmax", "ymax"))
"""Columns of a table of boxes from TensorFlow tools; each row is an object."""
_PATH = re.compile("[./]")
_FURTHER: dict[str, Callable[[AnnotatedSource], bool]] = {
    "iscrowd": attrgetter("keeps_crowds"),
    "segmentation": attrgetter("outlines"),
    "keypoints": attrgetter("keypoints"),
}
"""End of the title of a further column of objects, as in COCO → whether to read the column."""
_FORMS: dict[str, BoxForm] = {"parquet": "xywh", "webdataset": "yxyx"}
"""Layout of an export by shardprep → form of its boxes."""
_MOST_COMPARED = 100_000
_ROUNDING = 1.01
"""Maximum difference in pixels between a stated side and the distance of corners."""
_SIDES = ("height", "width"), ("imageheight", "imagewidth"), ("imgheight", "imgwidth")
_MOST_HEADS = 256


def read(rule: FormatRule, source: AnnotatedSource) -> Found:
    """Return the boxes of the table in row order; a row with an empty cell has no box.

    SourceError if no row has an image, or if the columns or the form of boxes are unclear.
    """
    columns, label, index = rule.table.boxes, rule.table.label_column, source.index
    wanted = [*(columns.names if columns else ()), *filter(None, [label])]
    further = [name for name, is_wanted in _FURTHER.items() if is_wanted(source)]
    table = source.documents.object_table(rule, further)
    columns = columns or _find_columns(table, rule.option)
    blank = _blank_keys(table, columns) if table.is_own else ()
    table, lists = unfolded(table, columns.names)
    if not wanted:
        label = _find_label(table, columns, rule.table.id_column, lists)
    match = match_table(index, table, rule.table.id_column)
    match.check(index.keys[0])
    places = [table.column(name) for name in columns.names]
    boxes = _boxes_of(table, places, source)
    values = boxes.array()
    if not len(values) and boxes.malformed:
        raise _unread(table, columns, boxes, rule)
    _check_order(table, columns, boxes, source)
    findings: list[str] = []
    sides = _side_columns(table, columns)
    if sides is not None and _are_of_boxes(table, boxes, match, sides):
        titles = " and ".join(table.header[place] for place in sides)
        findings.append(f"{titles} of {table.name} are sizes of boxes, not of images")
        sides = None
    is_relative = box_format.is_relative(values)
    if not is_relative:
        findings += _mixed_units(table, boxes, match, index.keys)
    form, told = columns.form or boxes.form, ""
    if form is None:
        sizes = _sizes(table, boxes.rows, sides, match, source.size_of)
        sizes = np.ones_like(sizes) if is_relative else sizes
        form, told = box_format.detected_form(values, sizes), ", detected from the data"
    are_either = bool(lists and told and form == "xyxy" and is_relative and len(places) == 1)
    if (form is None or are_either) and len(values):
        name, other = ",".join(columns.names), _FORMS["webdataset" if are_either else "parquet"]
        what = f"boxes in {name} could be {box_format.WORDS[other]}, or {box_format.WORDS['xyxy']}"
        hint = f"write {other}({name}) or xyxy({name}) instead of {name}"
        raise SourceError(table.name, what, hint)
    form = form or "xyxy"
    beside = {one: title for one in further for title in lists if letters(title).endswith(one)}
    objects, joints = _objects(table, boxes, match, form, {"": label} | beside)
    objects.is_relative = is_relative
    for row, image in enumerate(match.key_of.tolist()):
        if image >= 0 and index.keys[image] not in blank:
            objects.list_image(image, _side(table.rows[row], sides) if sides else None)
    if rule.kind != "column":  # rows of array files may belong to masks or left-out images
        objects.missing.update(_without_image(boxes, match))
    meaning = f"{box_format.WORDS[form]}{told}" if len(places) < NUM_CORNERS else "four corners"
    meaning += f", in {'shares of the sides' if is_relative else 'pixels'}"
    return objects.found(
        f"{table.name}, boxes in {', '.join(columns.names)}: {meaning}",
        table.file_names,
        findings=findings,
        notation=BoxColumns(columns.names, form) if len(places) < NUM_CORNERS else None,
        skeletons=dict.fromkeys(objects.classes, Skeleton(joints)) if source.keypoints else None,
        is_table=True,
        is_complete=table.is_own,
        has_rows=table.is_own,
    )


def _boxes_of(table: Table, places: Sequence[int], source: AnnotatedSource) -> CellBoxes:
    if len(places) > 1:
        return boxes_of_columns(table, places, source)
    return boxes_of_cells(table, places[0], source)


def _unread(table: Table, columns: BoxColumns, boxes: CellBoxes, rule: FormatRule) -> SourceError:
    row = min(boxes.malformed)
    cell = ", ".join(table.rows[row][table.column(name)] for name in columns.names)
    noun, hint = "boxes", table.naming(rule.option, "x,y,w,h")
    if rule.option == "masks":
        noun = "outlines"
        hint = "write outlines. For mask files, give a pattern, or items with a column mask"
    what = f"has no {noun} in {', '.join(columns.names)}, but {shown(cell)!r}"
    return SourceError(table.name, what, hint)


def _check_order(
    table: Table, columns: BoxColumns, boxes: CellBoxes, source: AnnotatedSource
) -> None:
    """Raise a SourceError if the columns of a form are in another order than their names state.

    No error if, by the names, right is before left or bottom above top in more boxes: then the
    names are wrong.
    """
    names, form = columns.names, columns.form
    named = named_box_columns(names) if form and len(names) > 1 else None
    if form is None or named is None or named.form != form or named.names == names:
        return
    by_names = _boxes_of(table, [*map(table.column, named.names)], source)
    if _num_turned(by_names, form) <= _num_turned(boxes, form):
        what = f"{form}({','.join(names)}) states another order than the names of the columns"
        hint = f"write {form}({','.join(named.names)}), or rename the columns if their names are"
        raise SourceError(table.name, what, f"{hint} wrong")


def _mixed_units(
    table: Table, boxes: CellBoxes, match: TableMatch, keys: Sequence[str]
) -> list[str]:
    """Return a note if a few boxes are in shares, but others in pixels; SourceError for many."""
    images = match.key_of[np.array(boxes.rows, np.int64)]
    are_here = np.flatnonzero(images >= 0)
    values, images = boxes.array()[are_here], images[are_here]

    def text(i: int) -> str:
        return f"{[float(f'{x:.6g}') for x in values[i].tolist()]} in {shown(keys[images[i]])}"

    return box_format.unit_notes(table.name, "{} boxes", box_format.are_shares(values), text)


def _blank_keys(table: Table, columns: BoxColumns) -> set[str]:
    """Return the keys of rows whose cells of boxes are empty; `[]` does not count as empty."""
    places = [table.column(name) for name in columns.names]
    are_blank = [booleans(pc.equal(table.cells(place).array, "")) for place in places]
    return {*table.cells(0).take(np.flatnonzero(np.all(are_blank, axis=0)))}


def _objects(
    table: Table, boxes: CellBoxes, match: TableMatch, form: BoxForm, columns: Mapping[str, str]
) -> tuple[ObjectTable, tuple[str, ...]]:
    """Return the objects and the names of their keypoints.

    `columns` maps keys of `_FURTHER`, and "" for the class, to columns.
    """
    objects, label = ObjectTable(len(match.row_of)), columns[""]
    place = table.column(label) if label else None
    if place is not None:
        table.check_quotes(table.header[place])
    rows = np.array(boxes.rows, np.int64)
    classes = repeat(ONE_CLASS) if place is None else table.cells(place).take(rows)
    names = [own or cell for own, cell in zip(boxes.labels, classes, strict=False)]
    corners = box_format.corners(boxes.array(), form)
    cells = {one: table.cells(table.column(columns[one])).take(rows) for one in columns if one}
    flags = cells.pop("iscrowd", None)
    crowds = {} if flags is None else {IS_CROWD: [cell in ("1", "1.0", "true") for cell in flags]}
    objects.extend(match.key_of[rows].tolist(), corners, objects.numbers_of(names), crowds)
    for number, points in boxes.polygons.items():
        objects.add_outline(number, outline_of(points))
    _add_outlines(objects, cells.get("segmentation", ()))
    joints = _add_keypoints(objects, cells.get("keypoints", ()), is_y_first=form == "yxyx")
    for row, count in boxes.malformed.items():
        image = int(match.key_of[row])
        if image >= 0:
            objects.drop(image, MALFORMED, count)
    return objects, joints


def _add_outlines(objects: ObjectTable, cells: Iterable[str]) -> None:
    """Add the outlines of all objects; cells not in COCO's form are ignored."""
    for row, cell in enumerate(cells):
        with contextlib.suppress(*NO_SHAPE):
            objects.add_outline(row, outline_of(json.loads(cell)))


def _add_keypoints(
    objects: ObjectTable, cells: Iterable[str], *, is_y_first: bool
) -> tuple[str, ...]:
    """Add the keypoints of all objects, and return the names that dicts give them, or ().

    Cells of another form are ignored.
    """
    order = [1, 0, 2] if is_y_first else [0, 1, 2]
    dicts = (_keypoints(cell)[1] for cell in cells if "{" in cell)
    places = {name: i for i, name in enumerate(dict.fromkeys(chain.from_iterable(dicts)))}
    for row, cell in enumerate(cells):
        points, own = _keypoints(cell)
        if own:
            every = np.zeros((len(places), 3))
            every[[places[name] for name in own]] = points
            points = every
        if len(points):
            objects.add_points(row, points[:, order].ravel().tolist())
    return tuple(places)


def _keypoints(cell: str) -> tuple[Floats, tuple[str, ...]]:
    with contextlib.suppress(*NO_SHAPE):
        return keypoints_of(cell)
    return np.empty((0, 3)), ()


def _without_image(boxes: CellBoxes, match: TableMatch) -> dict[str, int]:
    counts = Counter(boxes.rows)
    counts.update(boxes.malformed)
    found: dict[str, int] = {}
    rows = np.flatnonzero(match.key_of < 0).tolist()
    for row, text in zip(rows, match.rows_without_image, strict=True):
        found[text] = found.get(text, 0) + counts[row]
    return found


def _side_columns(table: Table, columns: BoxColumns) -> tuple[int, int] | None:
    names = {letters(t): i for i, t in enumerate(table.header) if t not in columns.names}
    for height, width in _SIDES:
        if height in names and width in names:
            return names[height], names[width]
    return None


def _are_of_boxes(
    table: Table, boxes: CellBoxes, match: TableMatch, sides: tuple[int, int]
) -> bool:
    """Return whether the columns `sides` have the sizes of boxes instead of images.

    Sizes of boxes mostly equal the distances of corners, or differ between the rows of an image.
    """
    num_distances = num_stated = 0
    sizes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    some = boxes.array()[:_MOST_COMPARED].tolist()
    for row, (x1, y1, x2, y2) in zip(boxes.rows, some, strict=False):
        if size := _side(table.rows[row], sides):
            sizes[int(match.key_of[row])].append(size)
            misses = abs(abs(y2 - y1) - size[0]), abs(abs(x2 - x1) - size[1])
            num_distances += max(misses) <= _ROUNDING
            num_stated += 1
    several = [len(set(one)) > 1 for one in sizes.values() if len(one) > 1]
    return 2 * num_distances > num_stated or 2 * sum(several) > len(several)


def _side(row: Sequence[str], sides: tuple[int, int]) -> tuple[int, int] | None:
    return stated_size(*(row[place] for place in sides))


def _sizes(
    table: Table,
    rows: Sequence[int],
    sides: tuple[int, int] | None,
    match: TableMatch,
    size_of: SizeOf,
) -> Floats:
    """Return height and width in pixels of the image of each row, float64[n, 2]; NaN if unknown.

    Without columns `sides`, only the heads of `_MOST_HEADS` images are read.
    """
    nothing = (np.nan, np.nan)
    if sides is not None:
        stated = [_side(table.rows[row], sides) or nothing for row in rows]
        return np.array(stated, np.float64).reshape(-1, 2)
    images = match.key_of[list(rows)].tolist()
    some = sorted({image for image in images if image >= 0})[:_MOST_HEADS]
    known = {image: size_of(image) or nothing for image in some}
    return np.array([known.get(image, nothing) for image in images], np.float64).reshape(-1, 2)


def _find_columns(table: Table, option: str = "boxes") -> BoxColumns:
    named = named_box_columns(table.header)
    if named is not None:
        return named
    sample = table.rows[:: max(1, len(table.rows) // SAMPLE_ROWS)]
    columns = zip(*sample, strict=True)  # none without rows
    for title, column in zip(table.header, columns, strict=False):
        cells = [cell for cell in column if cell not in NO_BOXES]
        words = [cell.translate(SPACES).split() for cell in cells]
        has_classes = bool(cells) and not any(is_number(one[0]) for one in words if one)
        if cells and (
            all(map(_BRACKETS.match, cells))
            or all(map(POLYGON.fullmatch, cells))
            or (has_classes and all(tuple_size(words)))
        ):
            return BoxColumns((title,))
    what = f"no columns are recognised as boxes (columns: {', '.join(table.header)})"
    raise SourceError(table.name, what, table.naming(option, "x,y,w,h"))


def _find_label(table: Table, columns: BoxColumns, id_column: str, lists: Sequence[str]) -> str:
    """Return the class column or "": first lists of texts, then other lists, then other columns."""
    others = [t for t in table.header if t not in (*columns.names, id_column)]
    titles = [title for title in others if _LABELS.search(_PATH.sub("_", title))]
    cells = {title: table.cells(table.column(title))[:_MOST_SEEN] for title in titles}
    fit = [one for one in titles if not any(map(_NUMBERS.search, cells[one]))]
    own = [one for one in fit if one in lists]
    texts = [one for one in own if not all(map(is_number, filter(None, cells[one])))]
    first = next(iter(texts or own or ([] if table.is_own and lists else fit)), "")
    return next((one for one in fit if first and _names(cells[one], cells[first])), first)


def _names(names: Sequence[str], numbers: Sequence[str]) -> bool:
    """Return whether words name two or more numbers of classes, each number with one word."""
    pairs = {*zip(names, numbers, strict=True)}
    are_words = not any(map(is_number, names)) and all(map(is_number, numbers))
    return are_words and 1 < len(pairs) == len({*names}) == len({*numbers})


def recognise(source: AnnotatedSource) -> list[Sign]:
    """Return the `Sign` of the first table with clear boxes, else with any boxes, or []."""
    unclear: list[Sign] = []
    for table in united(source.index, source.documents.tables):
        option, id_column, is_once = _rule_of(table, source)
        if option:
            others = [] if table.is_own else [*_of_other_splits(table, option, source)]
            option = option.replace(table.files, ",".join([table.files, *(x.name for x in others)]))
            ids = [row_ids(one, id_column)[1] for one in (table, *others)]
            named = coverage(source.index, {cell for cells in ids for cell in cells})
            name = " + ".join(one.name for one in (table, *others))
            how = f"{name}: boxes of {named}" + (", a row for each" if is_once else "")
            signs = named.signs(Sign("boxes", option, how, is_unclear=is_once))
            if not named.is_enough or is_once:
                unclear = unclear or signs
                continue
            place = parse_box_rule(option).table.boxes
            sides = [table.column(one) for one in place.names] if place else []
            are_all = all(row[sides[0]] not in NO_BOXES for row in table.rows)
            return signs if are_all else [replace(one, num_unlisted=0) for one in signs]
    return unclear


def _of_other_splits(table: Table, option: str, source: AnnotatedSource) -> Iterator[Table]:
    """Yield tables in folders of other splits that have the same name and the rule's columns."""
    rule, splits = parse_box_rule(option).table, {origin_of(table.name).split}
    wanted = {rule.id_column, *(rule.boxes.names if rule.boxes else ()), rule.label_column} - {""}
    for other in source.documents.tables:
        split, names = origin_of(other.name).split, {PurePath(x.name).name for x in (table, other)}
        is_other = len(names) == 1 and not table.parts and {split, *splits} > {*splits}
        is_other &= None not in {split, *splits} and other.header != table.header
        if is_other and wanted <= {*other.header}:
            splits.add(split)
            yield other


def recognise_documents(source: AnnotatedSource) -> list[Sign]:
    """Return a `Sign` if JSON documents of single images have lists of boxes; otherwise []."""
    members = named_as_images(source, ".json")
    named = coverage(source.index, [member.key for member in members])
    documents = of_own_documents(source, members)
    with contextlib.suppress(SourceError):
        texts = read_each(sampled(members))
        rows = [row for one in texts for row in object_rows(one.data, one.key)]
        if option := _rule_of(table_of(documents, rows), source, documents)[0]:
            how = f"{documents.partition(':')[0]}: boxes of {named}"
            return named.signs(Sign("boxes", option, how))
    return []


def _rule_of(table: Table, source: AnnotatedSource, documents: str = "") -> tuple[str, str, bool]:
    """Return the `--boxes` value of a table or "", its id column, and whether it is unclear.

    `documents` is FILE:ID of a table made from JSON documents, which must have lists of objects.
    Several columns of boxes are unclear if each id has one row.
    """
    try:
        columns = _find_columns(table)
        ids = "" if documents else clear_ids(source.index, table)
    except SourceError:
        return "", "", False
    start = "column:" if table.is_own else f"csv:{documents or f'{table.files}:{ids}'}:"
    table, lists = unfolded(table, columns.names)
    titles = {title.lower() for title in table.header}
    is_once = not (lists or documents) and len({*row_ids(table, ids)[1]}) == len(table.rows)
    is_once &= len(columns.names) > 1 and not titles >= _OF_TENSORFLOW
    sample = replace(table, rows=table.rows[:: max(1, len(table.rows) // SAMPLE_ROWS)])
    boxes = _boxes_of(sample, [*map(table.column, columns.names)], source)
    if (documents and not lists) or (boxes.malformed and not boxes.rows):
        return "", "", False
    names = ",".join(columns.names)
    if columns.form == "xyxy" and 2 * _num_turned(boxes, "xyxy") > len(boxes.rows):
        in_order = sorted(columns.names, key=table.column)
        others = _boxes_of(sample, [*map(table.column, in_order)], source)
        are_turned = 2 * _num_turned(others, "xyxy") > len(others.rows)
        names = names if are_turned else f"xyxy({','.join(in_order)})"
    label = _find_label(table, columns, ids, lists)
    if label and _says_whether(table, columns, label):
        label = ""
    form = _FORMS.get(source.documents.export_layout) if lists and not columns.form else None
    is_odd = ":" in names + label or (":" in ids and "{" not in ids)
    rule = start + ":".join(filter(None, [f"{form}({names})" if form else names, label]))
    return ("" if is_odd else rule, ids, is_once)


def _num_turned(boxes: CellBoxes, form: BoxForm) -> int:
    """Return how many boxes have a right side before the left, or a bottom above the top."""
    values = box_format.corners(boxes.array(), form)
    return int(np.count_nonzero((values[:, 2:] <= values[:, :2]).any(1)))


def _says_whether(table: Table, columns: BoxColumns, label: str) -> bool:
    """Return whether a class column is 1 in all rows with a box and 0 in all other rows."""
    place, side = table.column(label), table.column(columns.names[0])
    pairs = {(row[place], row[side] in NO_BOXES) for row in table.rows}
    return pairs == {("1", False), ("0", True)}
