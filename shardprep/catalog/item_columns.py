"""Find the roles of the columns of a table of items, such as `label` or `boxes`.

A column with a role sets an option that has its default (`options_stated`). Others become features.
`item_cells` checks the cells.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardprep.catalog.item_cells import NUMBER, checked, share
from shardprep.catalog.items_file import (
    LISTS,
    SINGLE,
    TARGET,
    GivenItems,
    cell_list,
    read_file,
)
from shardprep.catalog.labels import LABEL_COLUMNS, flags_in
from shardprep.catalog.names import given_split, natural_order, words_of
from shardprep.catalog.tables.columns import RESERVED, mixed_note
from shardprep.catalog.tables.row_matching import is_of_splits
from shardprep.catalog.target_values import DECIMAL_COMMA
from shardprep.dataset.item_table import OWN
from shardprep.dataset.schema import ROWS
from shardprep.errors import OptionName, SourceError, counted, some_of
from shardprep.image.signatures import IMAGE_SUFFIXES
from shardprep.recipe.object_rules import PATHS
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.recipe.recipe import Recipe
from shardprep.source.string_column import Texts
from shardprep.storage.text_file import INDEX

_IMAGE = (
    "image_path", "filepath", "file_path", "path", "image/filename", "filename", "file_name",
    "image_name", "image_id", "imageid", "img", "file", "key", "id",
)  # fmt: skip
"""Other titles of the column `image`, the most explicit first."""
_PICTURE = ("image", "img")
"""First words of titles, such as `Image Index`, of a column of file names."""
_TARGETS: dict[str, dict[str, str]] = {
    "label": {}, "labels": {"target": "multilabel"}, "text": {"target": "text"},
    "texts": {"target": "texts"},
}  # fmt: skip
"""Title of a column of targets → options that it sets in addition to `labels`."""
OF_FILES = {"mask": "masks", "target_image": "target_image"}
"""Title of a column of mask or target image paths → the option that it sets."""
_OF_OBJECTS = {"segmentation": "masks", "keypoints": "points"}
"""Title of a column of outlines or keypoints → the option that is set like `--boxes`."""
_ROLES = (*SINGLE, *LISTS)
_PARTNERS = {
    "box_labels": ("boxes", "segmentation"), "iscrowd": ("boxes", "segmentation"),
    "keypoints": ("boxes", "segmentation"), "box_format": ("boxes",),
}  # fmt: skip
"""Title of a column → columns of which it needs one."""
_SIZE = ("height", "width")
"""Titles of columns with the size of an image that has boxes."""
_FOLDS = ("fold", "folds", "kfold")
_IS_SPLIT = {"is_valid": "validation", "is_val": "validation", "is_test": "test"}
"""Title of a column of true and false → the split of images with true."""
_LABEL_WORDS = ("label", "labels", "class", "classes", "category", "breed", "species", "diagnosis")
_FORMS = ("xyxy", "xywh", "center", "yxyx")
_NUMBERS = rf"{NUMBER}(\s{NUMBER})+"
_FILE = f"(?i:.*({'|'.join(map(re.escape, sorted(IMAGE_SUFFIXES)))}))"
_RUNS = r"-1|(\d+ +\d+)( +\d+ +\d+)*"
_RUN_TITLE = re.compile("rle|encod", re.IGNORECASE)
_HALF, _MOST_OTHERS, _MOST_CELLS = 0.5, 8, 100
_ALIKE = 0.8
"""Minimum similarity, 0 to 1, of a title to a role to count as misspelt: "gruop" for "group"."""


def read_titled(recipe: Recipe) -> GivenItems:
    """Return the table of `--items` with roles as titles; its cells are not checked.

    SourceError if no column has the images, or if the role of a column is unclear.
    """
    return _named(read_file(recipe, is_last=False), recipe)


def read_items(recipe: Recipe, joined: dict[str, Texts]) -> GivenItems:
    """Return the table of `--items` with roles as titles; `points` becomes columns of x and y.

    `joined` are further columns, of tables of `--join`. `faults` has the rows with a cell that its
    column does not allow.
    """
    file = read_file(recipe, is_last=True)
    items = replace(file, columns=file.columns | joined, joined=joined.keys())
    return checked(_named(items, recipe), recipe)


def _check_runs(items: GivenItems, roles: Mapping[str, str], recipe: Recipe) -> None:
    """Raise a SourceError with the option to give if a column has run lengths of Kaggle."""
    for title, cells in items.columns.items():
        is_named = title == roles.get("segmentation") or _RUN_TITLE.search(title) is not None
        if title not in recipe.columns and _are_runs(cells, is_named=is_named):
            are_lists = next(filter(None, cells)).startswith("[")
            file = "runs.csv" if are_lists or items.is_frame else recipe.items
            parts = [file, roles["image"], title, *filter(None, [roles.get("label")])]
            flag = OptionName("masks", f"rle:{':'.join(parts)}")
            rows = f"frame.explode({title!r})" if are_lists else "the frame"
            save = "" if file == recipe.items else f"write {rows} to {file}, and "
            what = f"column {title!r} has run lengths of Kaggle, which items cannot have"
            hint = f"{save}give {flag} instead of {OptionName('items')}, or drop the column"
            raise SourceError(items.name, what, hint)


def _are_runs(cells: Texts, *, is_named: bool) -> bool:
    """Return whether most cells have run lengths.

    Unless `is_named`, a cell counts only if it has three or more runs in ascending order.
    """
    some = itertools.islice(filter(None, cells), _MOST_CELLS)
    texts = [x for cell in some for x in (cell_list(cell) if cell.startswith("[") else [cell])]
    fit = [x for x in texts if isinstance(x, str) and re.fullmatch(_RUNS, x)]
    if not is_named:
        runs = ((x, np.array(x.split(), np.float64)) for x in fit if x.count(" ") > 4)
        fit = [x for x, n in runs if (n[:-2:2] + n[1:-2:2] <= n[2::2]).all() and n[1::2].all()]
    return len(fit) > _HALF * len(texts)


def _named(items: GivenItems, recipe: Recipe) -> GivenItems:
    """Return the items with roles as titles of the columns, such as `label`."""
    roles = _roles(items, recipe)
    if not recipe.rules.masks.is_given:
        _check_runs(items, roles, recipe)
    new = {title: role for role, title in roles.items()}
    names = [new.get(title, title).removeprefix(TARGET) for title in items.columns]
    if twice := next((one for one in names if names.count(one) > 1), ""):
        raise SourceError(items.name, f"has two columns for {twice!r}", "rename or drop one")
    said = [
        f"column {title!r} of {items.name} {'has' if role[-1] == 's' else 'is'} the {role}"
        for role, title in roles.items()
        if title.lower() != role
    ]
    columns = dict(zip(names, items.columns.values(), strict=True))
    _check_partners(items, roles, recipe)
    if columns["image"].matching(r"\x00").any():
        what = f"column {roles['image']!r} has bytes, not paths"
        raise SourceError(items.name, what, "give the paths of the images")
    targets = [one.removeprefix(TARGET) for one in items.columns if one.startswith(TARGET)]
    others, left_out = _others(columns, targets, recipe)
    lists = {one for one in others if one in columns and _are_lists(columns[one])}
    rows = {one: f"{ROWS}{one.removeprefix(ROWS)}" for one in lists}
    if twice := next((one for one, row in rows.items() if one != row in columns), ""):
        raise SourceError(items.name, f"has two columns for '{ROWS}{twice}'", "rename or drop one")
    columns = {rows.get(title, title): cells for title, cells in columns.items()}
    notes = [
        *said,
        *_folds(columns, recipe),
        *_mixed_labels(columns, roles, recipe),
        *_without_meaning(items.name, columns, targets, recipe),
        *([] if recipe.columns else _stored(others, rows, left_out, roles)),
        *_not_chosen(columns, targets, others, recipe),
    ]
    others = [one for one in others if one not in lists]
    named = replace(items, columns=columns, targets=targets, others=others, notes=notes)
    return replace(named, titles=roles | {one: f"{TARGET}{one}" for one in targets})


def _check_partners(items: GivenItems, roles: Mapping[str, str], recipe: Recipe) -> None:
    """Raise a SourceError for a column that is of no use without another, such as `box_labels`."""
    if any(getattr(recipe, x) != BUILD_DEFAULTS[x] for x in ("boxes", "masks", "points")):
        return
    for role, partners in _PARTNERS.items():
        if role not in roles or roles.keys() & {*partners}:
            continue
        near = [one for one in items.columns if {*_like(one)} & {*partners} - roles.keys()]
        what = f"has a column {roles[role]!r}, but no column {' or '.join(partners)}"
        hint = f"call the column {near[0]!r} {_like(near[0])[0]}" if near else f"add {partners[0]}"
        raise SourceError(items.name, what, f"{hint}, or drop or rename {roles[role]!r}")


def _others(
    columns: Mapping[str, Texts], targets: Sequence[str], recipe: Recipe
) -> tuple[list[str], dict[str, str]]:
    """Return the columns to store as features, and unused column → reason not to store it."""
    if recipe.columns:
        names = [(one, one.removeprefix(TARGET)) for one in recipe.columns]
        return [own if own in targets else one for one, own in names], {}
    used = {*_ROLES, *targets, *recipe.labels.removeprefix("column:").split(",")}
    used -= set() if "sample" in columns else {"order"}
    used |= {*_SIZE} if {"boxes", "segmentation"} & columns.keys() else set()
    others = [one for one in columns if one not in used and not INDEX.fullmatch(one)]
    why = {title: _unfit(title, columns[title]) for title in others}
    left_out = {title: reason for title, reason in why.items() if reason}
    return [one for one in others if one not in left_out], left_out


def _unfit(title: str, cells: Texts) -> str:
    """Return why a column is not stored; "" for texts, single numbers and flat JSON lists."""
    if title.partition("/")[0] in RESERVED and not title.startswith(ROWS):
        return "the name of a feature: rename it"
    if not cells.are_filled.any():
        return "all cells are empty"
    if _are_lists(cells):
        return ""
    are_nested = cells.matching(r"^[\[{]").any()
    if are_nested and any(isinstance(cell_list(x), tuple) for x in cells if x.startswith("[")):
        return "lists that are not JSON"
    if are_nested and not cells.matching(r"^\[").any():
        return "JSON objects"
    return "lists" if are_nested or share(_NUMBERS, cells) > _HALF else ""


def _are_lists(cells: Texts) -> bool:
    """Return whether all cells with text are lists of texts, numbers and nulls."""
    found = (cell_list(cell) for cell in cells if cell)
    return any(cells) and all(
        isinstance(one, list) and all(isinstance(x, str | int | float | None) for x in one)
        for one in found
    )


def _not_chosen(
    columns: Mapping[str, Texts], targets: Sequence[str], others: Sequence[str], recipe: Recipe
) -> list[str]:
    """Return a note on targets that `--labels` leaves out and `--columns` does not store."""
    if recipe.labels == BUILD_DEFAULTS["labels"]:
        return []
    chosen = recipe.labels.lower().removeprefix("column:").split(",")
    used = {*others, *(one.removeprefix(TARGET) for one in chosen)}
    own = [one for one in targets if not used & {one, one.lower()}]
    lost = [one for one in _TARGETS if one in columns and one not in used] + own
    if not lost:
        return []
    flag = OptionName("columns", ",".join([*others, *own]))
    what = f"{counted(len(lost), 'target', 'is', 'are')} not stored: {some_of(lost)}"
    return [f"{what}; {flag} stores {some_of(own)} too" if own else what]


def _like(title: str) -> list[str]:
    """Return the one role that a misspelt title probably means, as [`group`] for `gruop`; or []."""
    name = _root(title)
    same = [role for role in (*OF_FILES, *_ROLES) if _root(role) == name]
    of_file = [role for role in OF_FILES if re.fullmatch(f"{_root(role)}_?(path|file)", name)]
    return (difflib.get_close_matches(title.lower(), _ROLES, 1, _ALIKE) or same or of_file)[:1]


def _root(title: str) -> str:
    """Return a title in the singular, without the words between `bounding` and `box`."""
    name = re.sub(r"[-_ .]+", "_", title.lower())
    return re.sub(r"(?<=x)es(?=_|$)|s(?=_|$)", "", re.sub(r"b(ounding_?)?(?=box)", "", name))


def _stored(
    others: Sequence[str],
    rows: Mapping[str, str],
    left_out: Mapping[str, str],
    used: Collection[str],
) -> list[str]:
    """Return notes on the columns without a role.

    `rows` maps a column of lists to its feature; `used` are the roles that other columns have.
    """
    notes = []
    if others:
        flag = OptionName("columns", others[0])
        stored = counted(len(others), "column", "is stored", "are stored")
        features = [rows.get(x) or (f"column/{x}" if x in OWN else x) for x in others]
        both = zip(features, others, strict=True)
        features = [f"{x} ({meant})" if (meant := _meant(one, used)) else x for x, one in both]
        names = some_of(features, _MOST_OTHERS)
        alone = f"; {flag} stores {others[0]!r} alone" if len(others) > 1 else ""
        notes.append(f"{stored}: {names}{alone}")
    if left_out:
        why = [
            f"{title} ({'; '.join(filter(None, [reason, _meant(title, used)]))})"
            for title, reason in left_out.items()
        ]
        notes.append(f"not stored: {some_of(why)}")
    return notes


def _meant(title: str, used: Collection[str]) -> str:
    return "".join(f"is {role} meant?" for role in _like(title) if role not in (title, *used))


def _without_meaning(
    name: str, columns: Mapping[str, Texts], targets: Sequence[str], recipe: Recipe
) -> list[str]:
    """Return a note if no column is a target, boxes or files; SourceError for a misspelt title."""
    known = {*_TARGETS, *OF_FILES, "boxes", "segmentation", "points"}
    if targets or known & columns.keys() or not recipe.may_be_annotated:
        return []
    others = [one for one in columns if one not in _ROLES]
    for title in others:
        if meant := next(filter(known.__contains__, _like(title)), ""):
            what, none = f"states no {meant}: is {title!r} meant?", OptionName("labels", "none")
            raise SourceError(name, what, f"call it {meant}, or give {none} to store it unchanged")
    what = "the table states no labels, boxes, masks or target images"
    fit = [one for one in others if not _unfit(one, columns[one])]
    others = [one for one in fit if not columns[one].matching(r"^[\[{(]").any()]
    if flags := flags_in({one: columns[one] for one in others}):
        flag = OptionName("labels", f"column:{','.join(flags)}")
        return [f"{what}; {flag} uses {counted(len(flags), 'column')} of 1 and 0"]
    for title in filter(_may_be_label, others):
        flag, none = OptionName("labels", f"column:{title}"), OptionName("labels", "none")
        said, hint = f"states no label: is {title!r} meant?", f"give {flag}, or {none} to store it"
        raise SourceError(name, said, f"{hint} unchanged")
    flag = OptionName("labels", f"column:{others[0]}") if others else OptionName("labels")
    return [f"{what}; {flag} uses the first of {some_of(others)}" if others else what]


def _may_be_label(title: str) -> bool:
    """Return whether a title resembles a usual title of labels, or ends in its word: dog_breed."""
    last = words_of(title)[-1:]
    near = difflib.get_close_matches(title.lower(), LABEL_COLUMNS, 1, _ALIKE)
    return bool(near) or (bool(last) and last[0] in _LABEL_WORDS)


def _title_of_images(items: GivenItems, titles: Mapping[str, str]) -> str:
    """Return the title of the column of images, by titles, then by cells; or SourceError."""
    if known := [titles[one] for one in _IMAGE if one in titles]:
        return known[0]
    named = [one for one in titles if words_of(one)[:1] and words_of(one)[0] in _PICTURE]
    if len(named) == 1 and share(_FILE, items.columns[titles[named[0]]]) > _HALF:
        return titles[named[0]]
    are_numbers = all(map(str.isdecimal, titles))
    if not are_numbers and "1" in titles and share(_FILE, items.columns["1"]) > _HALF:
        return "1"
    what = f"has no column of images: its columns are {some_of([*items.columns], 8)}"
    hint = "give the column of image paths the title image"
    if items.is_frame:
        hint = "give the column or index of image paths the name image"
    elif titles and are_numbers:
        flag = OptionName("labels", f"csv:{items.name}:1:2")
        hint = f"add a line of titles, such as image,label, or give {flag} instead"
    raise SourceError(items.name, what, hint)


def _roles(items: GivenItems, recipe: Recipe) -> dict[str, str]:
    """Return role → title of each column with a role; SourceError if two may be the label."""
    titles = {title.lower(): title for title in reversed(items.columns)}
    roles = {role: titles[role] for role in _ROLES if role in titles}
    if "sample" not in roles:
        roles.pop("order", None)  # perhaps the order of a taxonomy
    if "image" not in roles:
        own = {
            title.lower(): title for title in reversed(items.columns) if title not in items.joined
        }
        roles["image"] = _title_of_images(items, own)
    has_target = any(one in _TARGETS or one.startswith(TARGET) for one in titles)
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
    """Return a note on how to split by a column of folds; [] if splits are already stated."""
    title = next((one for one in columns if one.lower() in {*_FOLDS, *_IS_SPLIT}), "")
    if not title or "split" in columns or recipe.split:
        return []
    cells = [*filter(None, columns[title].coded().counts())]
    first = min(cells, key=natural_order, default="0")
    if split := _IS_SPLIT.get(title.lower()):
        first = next((one for one in cells if one.lower() in ("true", "1")), "")
    if not first or (split and len(cells) > 2):
        return []
    flag = OptionName("split", f"column:{title}:{first}={split or 'validation'},*=train")
    return [f"column {title!r} makes no splits; {flag} divides the images by it"]


def _mixed_labels(
    columns: Mapping[str, Texts], roles: Mapping[str, str], recipe: Recipe
) -> list[str]:
    if "label" not in columns or recipe.target != BUILD_DEFAULTS["target"]:
        return []
    cells = columns["label"].coded().map(lambda cell: "" if cell in recipe.null else cell)
    note = mixed_note(f"the numbers in column {roles['label']!r} are classes", cells)
    return [note] if note else []


def options_stated(items: GivenItems, recipe: Recipe) -> dict[str, Any]:
    """Return the options that columns state, if the recipe has them at their defaults.

    `columns` is always among them. SourceError for several targets or several formats of boxes.
    """
    columns, stated = items.columns, dict[str, Any]()
    targets = [one for one in _TARGETS if one in columns]
    targets += [",".join(items.targets)] if items.targets else []
    if len(targets) > 1 and recipe.labels == BUILD_DEFAULTS["labels"]:
        what = f"has several targets: {' and '.join(targets)}"
        flag = OptionName("labels", f"column:{targets[0]}")
        columns_ = OptionName("columns", ",".join([*items.others, *items.targets]))
        others = f"store others with {columns_}" if items.targets else "rename others to store them"
        hint = f"drop one of them, or use {flag}, and {others}"
        raise SourceError(items.name, what, hint)
    stated["labels"] = f"column:{targets[0]}" if targets else "none"
    if targets and recipe.labels == BUILD_DEFAULTS["labels"]:
        if cells := columns.get(targets[0]) if items.targets else None:
            stated |= {"target": "regression"} if share(NUMBER, cells) > _HALF else {}
            stated |= {"target": "vector"} if share(_NUMBERS, cells) else {}
        stated |= _TARGETS.get(targets[0], {})
        cells = columns.get("label") if targets[0] == "label" and not recipe.separator else None
        if cells and max(share(NUMBER, cells), share(DECIMAL_COMMA.pattern, cells)) < _HALF:
            stated["target"] = "class"  # "auto" would look for several classes in each cell
            if not recipe.class_map:
                stated["classes"] = tuple(items.orders.get(items.titled("label"), ()))
    if "split" in columns:
        stated["split"] = "column:split"
    if "group" in columns:
        stated["group"] = "group"
    if "boxes" in columns:
        boxes = f"column:{_form(items)}(boxes)"
        boxes += ":box_labels" if "box_labels" in columns else ""
        of_objects = {option: boxes for name, option in _OF_OBJECTS.items() if name in columns}
        stated |= of_objects | ({"boxes": boxes} if items.has_boxes else {})
    if items.points:
        stated["points"] = f"column:{','.join(items.points)}"
    stated |= {option: f"{PATHS}{name}" for name, option in OF_FILES.items() if name in columns}
    free = {k: one for k, one in stated.items() if getattr(recipe, k) == BUILD_DEFAULTS[k]}
    return free | {"columns": tuple(items.others)}


def _form(items: GivenItems) -> str:
    stated = items.columns.get("box_format", Texts.of([])).coded().counts()
    if len(stated) > 1 or not stated.keys() <= {*_FORMS}:
        what = f"has boxes of the formats {some_of([*stated])}"
        raise SourceError(items.name, what, f"give all rows the same format: {' or '.join(_FORMS)}")
    return next(iter(stated), _FORMS[0])
