"""Find splits that the source states: texts that list the images of a split, columns of tables."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.decision.view import Options, Reading, View, head_of
from shardprep.catalog.labels import ENOUGH
from shardprep.catalog.names import (
    document_split,
    given_split,
    natural_order,
    split_folders,
    split_of_cell,
    stem,
    words_of_split,
)
from shardprep.catalog.splits import REST
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex, origin_of
from shardprep.catalog.tables.metadata_files import lists_of_names
from shardprep.catalog.tables.row_matching import (
    is_of_splits,
    joined_title,
    match_ids,
)
from shardprep.catalog.tables.table import Table
from shardprep.dataset.documents import NAME
from shardprep.errors import SourceError, counted, printable, some_of
from shardprep.recipe.rules import TABLE_SUFFIXES
from shardprep.source.string_column import Coded, Texts

_NEARLY_ALL = 0.9
_MOST_GROUPS, _MOST_BYTES, _MOST_NAMES, _MOST_TABLES = 8, 1 << 26, 1_000, 16
PARTITION = re.compile("partition|split", re.IGNORECASE)
"""Matches a word in the name of a text with the split of each image."""
_DOCUMENTED = "train_test_split.txt"
_A_PAIR = 2
_NUMBER = re.compile(r"\d+")
_LISTS = (".txt", ".lst")
_ORDER = ("train", "validation", "test")
_PARTITIONS = {"0": "train", "1": "validation", "2": "test"}
_MOST_OTHERS = 4
"""Maximum number of different values that are not splits in a column of splits."""
_FIRST_KEY = re.compile(r'\s*\{\s*"([^"]+)"\s*:\s*\[\s*["\d]')
"""Matches the start of a JSON object whose first value is a list of texts or numbers."""
_PLAIN = re.compile(r"[^,:=]+")
_ODD_SIGNS = frozenset(",=:")
"""Characters that have a meaning in `--split`; the keys of lists must not have them."""
LEFT_OUT = "the rest is left out"
_Lists = tuple[Mapping[str, str], NDArray[np.int64]]
"""Split → its list, and the positions of the images in all these lists."""


def splits(view: View) -> Sequence[Reading]:
    """Return the readings of splits from lists of images or from tables of boxes.

    If folders are splits, only search for a class with the name of a split.
    """
    if not view.is_open("split") or view.members.are_stacks.any():
        return []
    if _has_split_folders(view):
        return _class_or_split(view)
    return _without_header(view) or listed_splits(view) or _by_boxes(view)


def _without_header(view: View) -> list[Reading]:
    """Return the readings of CSV lists without header, whose first line names an image; or []."""
    tables = view.documents.tables if view.decided and view.is_open("header") else ()
    tables = [one for one in tables if not one.has_numbers]
    bare = {one.name for one in tables if view.index.are_found(Texts.of(one.header)).any()}
    if not any(bare.intersection(lists.values()) for lists in (_lists(view) if bare else ())):
        return []
    options = {"header": False}
    several = listed_splits(view.read_as(Reading(options, "")))
    return [Reading({**one.options, **options}, one.why) for one in several if one.options]


def _has_split_folders(view: View) -> bool:
    return bool({*view.index.splits.counts()} - {"train"})


def listed_splits(view: View) -> list[Reading]:
    """Return readings of lists that state splits; [] if folders are splits."""
    if not view.is_open("split") or view.members.are_stacks.any() or _has_split_folders(view):
        return []
    whole, parts = list[Reading](), list[Reading]()
    found = list[_Lists]()
    index, out = _targeted(view)
    for lists in _lists(view)[:_MOST_GROUPS]:
        rows, num_ids, fault = _rows_of(view, index, lists)
        if fault:
            why = f"{some_of([*lists.values()])} not used as splits: {fault}"
            parts.append(Reading({}, why))
        if not rows:
            continue
        images = np.concatenate([*rows.values()])
        found.append((lists, images))
        whole += _of_pairs(found, len(index.keys))
        number = len(images)
        covers = number >= _NEARLY_ALL * len(index.keys)
        if not covers and number < _NEARLY_ALL * num_ids:
            continue
        shown = ", ".join(f"{len(own):,} {split}" for split, own in rows.items())
        why = f"lists name {number:,} of {counted(len(index.keys), 'image')}: {shown}"
        if covers and len(lists) > 1:
            whole.append(Reading({"split": _rule(lists)}, why))
        elif not covers and "train" not in lists:
            rest = Reading({"split": _rule({"train": REST, **lists})}, f"{why}; train is the rest")
            parts.append(rest)
        elif not covers:
            parts += (
                Reading({"split": _rule({**lists, split: REST})}, f"{why}; {split} is the rest")
                for split in ("test", "validation")
                if split not in lists
            )
            parts.append(Reading({"split": _rule(lists)}, f"{why}; {LEFT_OUT}"))
    are_alike = len(found) >= _A_PAIR and len({frozenset(lists) for lists, _ in found}) == 1
    whole = whole or ([*_together(found, len(index.keys))] if are_alike else [])
    whole = whole or [*_cover(view, index)]
    if len(whole) > 1:  # folds
        whole.append(_without_lists(index, np.concatenate([images for _, images in found])))
    return [Reading({**one.options, **out}, one.why) for one in whole or parts]


def _cover(view: View, index: KeyIndex) -> Iterator[Reading]:
    """Yield the reading of all lists that are not part of a longer list of the same split.

    They must name nearly all images, each once, as `test_10000` and its `test_10000_query` beside
    the shorter `test_3000`.
    """
    texts = view.documents.members(*_LISTS)
    found, longest = list[tuple[str, str, NDArray[np.int64]]](), list[Any]()
    for one in texts if len(texts) <= _MOST_TABLES else ():
        named, _ = words_of_split(stem(one.key))
        named = named & {"query", "gallery"} or named
        is_small = one.extent.num_bytes <= _MOST_BYTES and _ODD_SIGNS.isdisjoint(one.key)
        for split in named if is_small and len(named) == 1 else ():
            lists = _rows_of(view, index, {split: one.key})[0]
            found += [(split, one.key, own) for own in lists.values()]
    for split, file, own in sorted(found, key=lambda one: -len(one[2])):
        if not any(x == split and np.isin(own, images).all() for x, _, images in longest):
            longest.append((split, file, own))
    splits = {split for split, *_ in longest}
    images = np.concatenate([own for *_, own in longest]) if "train" in splits else np.array([])
    if len(splits) > 1 and len(np.unique(images)) == len(images) >= _NEARLY_ALL * len(index.keys):
        shown = ", ".join(f"{len(own):,} {split}" for split, _, own in longest)
        why = f"lists name {len(images):,} of {counted(len(index.keys), 'image')}: {shown}"
        pairs = ",".join(f"{split}={file}" for split, file, _ in longest)
        yield Reading({"split": printable(f"list:{pairs}")}, why)


def _without_lists(index: KeyIndex, images: NDArray[np.int64]) -> Reading:
    """Return the reading with all images in train, except folders without an image on a list."""
    codes, paths = index.keys.folders.codes, index.keys.folders.values
    lost = {*codes.tolist()} - {*codes[images].tolist()}
    out = tuple(f"{glob.escape(paths[code])}/*" for code in sorted(lost))
    options = {"split": "train=1", **({"exclude": out} if out and len(out) <= _MOST_GROUPS else {})}
    return Reading(options, "no list is used: all images are in train")


def _by_boxes(view: View) -> list[Reading]:
    """Return the reading of splits from the file names of box tables; [] if they state none."""
    rule = view.recipe.rules.boxes.table
    table = view.documents.box_rows(rule) if rule.files else None
    if table is None or rule.id_column not in table.header:
        return []
    splits = table.parts_of_rows().map(lambda name: document_split(name) or "train")
    ids = table.cells(table.column(rule.id_column)).coded()
    pairs = {*zip(ids.codes.tolist(), splits, strict=True)}
    if len({split for _, split in pairs}) < 2 or len({one for one, _ in pairs}) < len(pairs):
        return []
    return [Reading({"split": "tables"}, "tables of boxes are named for splits")]


def _targeted(view: View) -> tuple[KeyIndex, dict[str, tuple[str, ...]]]:
    """Return the images that have a target image, and the options that exclude all others.

    If both are the same pictures in two formats, an id of a list would name two images.
    """
    files = view.beside.files if view.recipe.target_image else None
    if files is None or len(files.of_image) == len(view.members):
        return view.index, {}
    used = {part for key in files.of_image for part in key.split("/")[:-1]}
    left = [key for key in view.members.keys if key not in files.of_image]
    own = {next((part for part in key.split("/")[:-1] if part not in used), "") for key in left}
    is_clear = "" not in own and len(own) <= _MOST_GROUPS
    out = tuple(f"{glob.escape(part)}/*" for part in sorted(own)) if is_clear else ()
    return KeyIndex([*files.of_image]), {"exclude": out} if out else {}


def _class_or_split(view: View) -> Sequence[Reading]:
    """Return two readings of `test` next to class folders with equal file names: class or split."""
    counts = view.folders
    named = [*split_folders(counts).items()]
    if len(named) != 1 or named[0][0] not in counts or not view.is_open("labels"):
        return []
    (path, split), parent = named[0], named[0][0].rpartition("/")[0]
    beside = [one for one in counts if one != path and one.rpartition("/")[0] == parent]
    if split == "train" or len(beside) < 2 or len(beside) + 1 < len(counts):
        return []
    folders = view.members.keys.folders
    own, *others = (
        {
            key.rpartition("/")[2]
            for key in view.members.keys.take(np.flatnonzero(fits)[:_MOST_NAMES])
        }
        for fits in (folders.fit(one.__eq__) for one in (path, *beside[:1]))
    )
    if counts[path] > 2 * max(counts[one] for one in beside) or not own <= others[0]:
        return []
    start = f"{re.escape(parent)}/" if parent else ""
    every = {"labels": f"regex:^{start}(?P<label>[^/]+)/", "split": f"roots:train={parent or '*'}"}
    name = printable(path.rpartition("/")[2])
    return [
        Reading(every, f"{name} is a class, with images named like images of the others"),
        Reading({"labels": "folder"}, f"{name} is a split without labels"),
    ]


def _lists(view: View) -> list[dict[str, str]]:
    """Return groups of lists (split → file) that differ only in the split, largest group first."""
    # Tables count if the annotations are in other files: their boxes or labels are not read.
    groups: dict[tuple[str, str], dict[str, str]] = {}
    of_both: dict[tuple[str, str], str] = {}
    has_tables = (
        view.decided & {"boxes", "masks", "points"} and not view.recipe.rules.boxes.table.files
    )
    for member in view.documents.members(*_LISTS, *(TABLE_SUFFIXES if has_tables else ())):
        folder, _, name = member.key.rpartition("/")
        named, rest = words_of_split(name.rpartition(".")[0].replace("trainval", "train_val"))
        split = "".join(named)
        if member.extent.num_bytes > _MOST_BYTES or not _ODD_SIGNS.isdisjoint(member.key):
            continue
        if named == {"train", "validation"}:
            of_both[folder, rest] = member.key
        elif split in _ORDER:
            group = groups.setdefault((folder, rest), {})
            group[split] = "" if split in group else member.key  # two lists of a split: which?
    for place, key in of_both.items():
        group = groups.setdefault(place, {})
        if not {"train", "validation"} <= group.keys():  # otherwise it is the sum of two lists
            group["train"] = "" if {"train", "validation"} & group.keys() else key
    whole = [one for one in groups.values() if all(one.values())] + [*_lists_by_key(view)]
    several = [{split: one[split] for split in _ORDER if split in one} for one in whole]

    def order(one: Mapping[str, str]) -> tuple[Any, ...]:
        names = " ".join(one.values())
        return -len(one), [*map(int, _NUMBER.findall(names))], natural_order(names)

    return sorted(several, key=order)


def _lists_by_key(view: View) -> Iterator[dict[str, str]]:
    """Yield split → file for JSON objects of lists of names, whose keys are splits."""
    for member in view.documents.members(".json"):
        first = _FIRST_KEY.match(head_of(member, _MOST_NAMES))
        is_small = member.extent.num_bytes <= _MOST_BYTES and _ODD_SIGNS.isdisjoint(member.key)
        if first and is_small and given_split([first[1]]):
            with contextlib.suppress(SourceError):
                lists = lists_of_names(view.documents.read(member.key))
                yield from [dict.fromkeys(lists, member.key)] * (len({*lists} & {*_ORDER}) > 1)


def _of_pairs(found: Sequence[_Lists], total: int) -> Iterator[Reading]:
    """Yield the splits of the last group joined with a group of equal numbers: `rgb_1`, `ir_1`."""
    numbers = [[_NUMBER.findall(one.get(s, "")) for s in found[-1][0]] for one, _ in found]
    for others, own in zip(found[:-1], numbers, strict=False):
        if own == numbers[-1]:
            yield from _together((others, found[-1]), total)


def _together(found: Sequence[_Lists], total: int) -> Iterator[Reading]:
    """Yield the splits of several groups as one, if their lists name almost all images once."""
    images = np.concatenate([own for _, own in found])
    if len(np.unique(images)) == len(images) >= _NEARLY_ALL * total:
        rules = [_rule(lists).removeprefix("list:") for lists, _ in found]
        why = f"{len(found)} lists for each split name {len(images):,} images"
        yield Reading({"split": f"list:{','.join(rules)}"}, why)


def _rows_of(
    view: View, index: KeyIndex, lists: Mapping[str, str]
) -> tuple[dict[str, NDArray[np.int64]], int, str]:
    """Return split → images of its list, number of ids, and why lists of images are not splits.

    The splits are {} if there is a reason, or if most ids of a list match no image.
    """
    found, num_ids = dict[str, NDArray[np.int64]](), 0
    for split, file in lists.items():
        try:
            ids = view.documents.ids(file, index, split)
            origin = origin_of(file, is_firm=False)._replace(split=split)
            places = index.find_all(Texts.of(ids), file, Coded.constant(origin, len(ids)))
        except AmbiguousIdError as error:
            return {}, 0, error.what
        except SourceError:
            return {}, 0, ""
        found[split] = np.unique(places[places >= 0])
        num_ids += len(ids)
        if not ids or 2 * (places >= 0).sum() < len(ids):
            return {}, 0, ""
    images, counts = np.unique(np.concatenate([*found.values()]), return_counts=True)
    both = [index.keys[at] for at in images[counts > 1].tolist()]
    if both:
        return {}, 0, f"{some_of(both, 2)} {'is' if len(both) == 1 else 'are'} in several lists"
    return found, num_ids, ""


def _rule(lists: Mapping[str, str]) -> str:
    pairs = ",".join(f"{split}={lists[split]}" for split in _ORDER if split in lists)
    return printable(f"list:{pairs}")


def splits_by_tables(view: View) -> Sequence[Reading]:
    """Return the readings of splits in a table, if the images have labels from elsewhere."""
    is_labelled = view.automatic.rule != "none" or view.recipe.is_annotated
    is_open = view.is_open("split", "join") and not view.index.splits.are_there.any()
    has_labels = view.automatic.match is not None and not view.recipe.is_annotated
    is_open = is_open and not view.members.are_stacks.any() and not has_labels
    is_open = is_open and is_labelled and not view.recipe.labels.startswith("csv:")
    for table in (*view.tables, *text_tables(view, of_splits=True)) if is_open else ():
        column = split_column(table)
        with contextlib.suppress(SourceError):
            number = int((match_ids(view.index, table).row_of >= 0).sum()) if column else 0
            if column and number >= ENOUGH * _num_annotated(view):
                why = f"{column.why} for {counted(number, 'image')}"
                return [replace(column, options={"join": (table.name,), **column.options}, why=why)]
    numbered = next(numbered_splits(view), None) if is_open else None
    if numbered is None or not (numbered.is_certain or view.is_open("labels")):
        return []
    if numbered.is_certain:
        return [numbered]
    own = {"labels": view.automatic.rule}
    split = replace(numbered, options={**own, **numbered.options}, is_certain=True)
    return [split, Reading(own, "all images are in train")]


def _num_annotated(view: View) -> int:
    """Return the number of images in the table of boxes, or of all images that may be stored."""
    rule, number = view.recipe.rules.boxes.table, len(view.index.keys)
    takes_others = view.recipe.unlisted not in ("auto", "skip")
    table = None if takes_others or not rule.files else view.documents.box_rows(rule)
    if table is None or rule.id_column not in table.header:
        return number
    return min(number, len(table.cells(table.column(rule.id_column)).coded().counts()))


def text_tables(view: View, *, of_splits: bool = False) -> Iterator[Table]:
    """Yield tables among the first texts that have (`of_splits`) or lack a word for splits."""
    texts = [one for one in view.documents.members(".txt") if one.extent.num_bytes <= _MOST_BYTES]
    fit = [x for x in texts if bool(PARTITION.search(x.key.rpartition("/")[2])) is of_splits]
    for one in fit[:_MOST_TABLES]:
        with contextlib.suppress(SourceError):
            yield view.documents.table([one.key])


def partition(view: View, table: Table, ids: str) -> Options:
    """Return the options for a column of splits in another table with the column `ids`; or {}.

    It states splits by words, or by 0, 1 and 2 (train, validation and test) if it is called
    "partition" or its file has no titles and a name like `list_eval_partition.txt`.
    """
    for other in (*view.documents.tables, *text_tables(view, of_splits=True)):
        own = split_column(other) if ids in other.header and other is not table else None
        if own and own.is_certain:
            return {"join": (f"{other.name}:{ids}",), **own.options}
        is_bare = other.header == ("1", "2") and "partition" in stem(other.name).lower()
        for title in [one for one in other.header if one.lower() == "partition" or is_bare][-1:]:
            cells = set(other.cells(other.column(title)).coded().values)
            if cells <= _PARTITIONS.keys() and "0" in cells and ids in other.header:
                is_there = title in table.header and not is_bare
                join = {} if is_there else {"join": (f"{other.name}:{ids}",)}
                pairs = ",".join(f"{cell}={_PARTITIONS[cell]}" for cell in sorted(cells))
                column = title if is_there else joined_title(table, other, title)
                return {**join, "split": f"column:{column}:{pairs}"}
    return {}


def numbered_splits(view: View, own: Sequence[Table] = ()) -> Iterator[Reading]:
    """Yield readings of a text with image numbers and 1 (training) or 0 (test).

    A table of `own`, or of all texts, has number and name of each image. The user must confirm
    what 1 means, except for `train_test_split.txt`, whose form CUB-200-2011 and NABirds document.
    """
    for other in text_tables(view, of_splits=True):
        words, cells = words_of_split(stem(other.name))[0], other.cells(len(other.header) - 1)
        if other.header != ("1", "2") or words != {"train", "test"} or {*cells} != {"0", "1"}:
            continue
        for table in own or text_tables(view):
            with contextlib.suppress(SourceError):
                match = match_ids(view.index, table)
                if table.header[0] == "1" and (match.row_of >= 0).mean() >= ENOUGH:
                    split = f"column:{joined_title(table, other, '2')}:1=train,0=test"
                    why = f"{other.name} has the number of each image of {table.name}"
                    options = {"join": (table.name, f"{other.name}:1"), "split": split}
                    is_known = other.name.rpartition("/")[2] == _DOCUMENTED
                    yield Reading(options, why, is_certain=is_known)


def title_of_splits(table: Table) -> str:
    """Return the title of the column that states splits, or ""."""
    own = split_column(table)
    return str(own.options["split"]).split(":")[1] if own else ""


def split_column(table: Table) -> Reading | None:
    """Return the reading of the column that states splits, or None.

    Its title is usual, or all its cells are words of splits, with `train` among them. A cell with
    a further word, such as `id_val`, is a split of its own. With other cells, which are in train,
    the reading is uncertain.
    """
    titles = [one for one in enumerate(table.header) if table.rows and ":" not in one[1]]
    for place, title in sorted(titles, key=lambda one: not is_of_splits(one[1])):
        cells, why = table.cells(place), f"column {title!r} of {table.name}"
        is_usual = is_of_splits(title)
        if not is_usual and not all(map(split_of_cell, cells[:_MOST_NAMES])):
            continue
        split_of = {cell: split_of_cell(cell) for cell in cells.coded().values}
        others = [cell for cell, split in split_of.items() if split is None]
        splits = {*split_of.values()} - {None}
        is_fit = is_usual or ("train" in splits and not others and len(split_of) <= _MOST_OTHERS)
        if all(given_split([cell]) for cell in split_of):
            if is_fit and len(splits) > 1:
                return Reading({"split": f"column:{title}"}, why)
            continue
        are_plain = len(others) <= _MOST_OTHERS and _PLAIN.fullmatch("".join(split_of))
        if not (splits and is_fit and are_plain):
            continue
        are_own = all(NAME.fullmatch(one) and words_of_split(one)[0] for one in others)
        is_certain = are_own and "train" in splits
        meant = {
            cell: split or (cell if is_certain else "train") for cell, split in split_of.items()
        }
        if len({*meant.values()}) < 2:
            continue
        pairs = ",".join(f"{cell}={split}" for cell, split in meant.items() if cell)
        shown = some_of([one or "an empty cell" for one in others])
        why += "" if is_certain else f"; {shown} as train"
        return Reading({"split": f"column:{title}:{pairs}"}, why, is_certain=is_certain)
    return None
