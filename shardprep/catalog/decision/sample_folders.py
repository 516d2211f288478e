"""Find folders that are samples, such as patients, series, clips and tomograms, and not classes.

Folders of classes may also have codes as names and equal file names. So samples need more evidence:
names that are ids in a table or UIDs, series of DICOM files, a word such as `patient`, or the same
kinds of pictures in every folder.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from posixpath import splitext
from typing import Any

import numpy as np

from shardprep.catalog.candidates import stack_candidates
from shardprep.catalog.decision.name_evidence import numbers_of_names
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.label_rules import ids_of_samples
from shardprep.catalog.names import MASK_ENDING, given_split, natural_order, stated_split
from shardprep.catalog.stacks import id_column, series_pattern, stack_patterns
from shardprep.catalog.tables.key_index import SUBMISSION
from shardprep.catalog.tables.row_matching import find_ids, match_table
from shardprep.catalog.tables.table import Table
from shardprep.errors import SourceError
from shardprep.source.string_column import Texts

_MOST = 0.9
"""Minimum share of folders, names or files that must agree."""
_MOST_FOLDERS, _MOST_FILES = 1_000, 4_000
_MOST_TABLES, _MOST_KINDS, _MOST_PROPOSED = 8, 8, 3
_DIGIT = re.compile(r"\d")
_SAMPLE = re.compile(
    r"(patient|subject|case|study|series|scan|slide|tomo(gram)?|clip|video|seq(uence)?|scene"
    r"|session|exam|vol(ume)?)[-_ ]*(?=[a-f]*\d)[0-9a-f]+|\d+(\.\d+){4,}",
    re.IGNORECASE,
)
"""Matches a word for a sample with its number or code, or a UID."""
_TAKES = re.compile(r"(?P<lead>[a-z]_)?(?P<word>.*[A-Za-z]{2,})(?P<numbers>([-_][A-Za-z]?\d+){2,})")
"""Matches a word and several numbers, as in `v_Archery_g01_c02`: a take of a class."""
_SERIES = re.compile(r"clip|video|frame|slice|tomo|series|volume", re.IGNORECASE)
"""Matches a word for images whose order has a meaning."""
_LEAST_SLICES = 3
_CLASS_TITLE = re.compile(r"class|label|categ|species|identity|breed|name$", re.IGNORECASE)

Folders = Mapping[str, Sequence[str]]
"""Path of a folder → names of its images."""


def samples(view: View) -> list[Reading]:
    """Return the readings of a source whose folders seem to be samples, otherwise []."""
    options = "labels", "stack", "rows", "boxes", "points", "target_image"
    if not view.is_open(*options):
        return []
    files = _files_of_folders(Texts.of(view.members.keys))
    levels = [_names(files, depth) for depth in (1, 2, 3)]
    if not any(len(names) > 1 and _share(_DIGIT.search, names) > 0.5 for names in levels):
        return []
    if found := _kinds(view, files) or _volumes(files):
        return found
    if not view.recipe.may_be_annotated or _names_each(view, files):
        return []
    if found := _takes(files):
        return found
    evidence = _evidence(files, view.tables)
    return [] if evidence is None else _readings(view, files, *evidence)


def _files_of_folders(keys: Texts) -> dict[str, list[str]]:
    """Return folder → names of its images, for a sample; {} if over a tenth are in no folder."""
    codes = keys.folders.codes
    step = -(-len(keys.folders.values) // _MOST_FOLDERS)
    rows = np.flatnonzero(codes % max(1, step) == 0)
    step *= max(1, -(-len(rows) // _MOST_FILES))
    rows = rows[codes[rows] % max(1, step) == 0][:_MOST_FILES]
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys.take(rows):
        folder, _, name = key.rpartition("/")
        found[folder].append(name)
    return {} if len(found.pop("", ())) > (1 - _MOST) * len(rows) else dict(found)


def _names(files: Collection[str], depth: int) -> set[str]:
    """Return folder names outside of test splits, for `depth` 1 of the folder, 2 of its parent."""
    paths = {tuple(folder.split("/")) for folder in files}
    known = {path for path in paths if given_split(path) != "test"} or paths
    return {path[-depth] for path in known if len(path) >= depth}


def _share(fits: Callable[[str], Any], names: Collection[str]) -> float:
    return sum(bool(fits(name)) for name in names) / max(1, len(names))


def _suffix(files: Folders) -> str:
    counts = Counter(splitext(name)[1] for several in files.values() for name in several)
    return counts.most_common(1)[0][0]


def _ending(files: Folders) -> str:
    """Return the suffix that nearly all names have, else ".*"."""
    suffix = _suffix(files)
    names = [name for several in files.values() for name in several]
    return suffix if _share(re.compile(rf"{re.escape(suffix)}$").search, names) >= _MOST else ".*"


def _kinds(view: View, files: Folders) -> list[Reading]:
    """Return the readings of folders that all have the same kinds of pictures: t1, t2, flair."""
    names, suffix, mask = _names(files, 1), _suffix(files), PurePosixPath(view.recipe.masks).name
    counts = Counter[str]()
    for folder, several in files.items():
        leads = tuple(folder.rpartition("/")[2] + sign for sign in "-_")
        cut = len(leads[0]) - 1
        counts.update("{id}" + x[cut:] if x.startswith(leads) else x for x in several)
    kinds = sorted((k for k, n in counts.items() if n >= _MOST * len(files)), key=natural_order)
    masks = [*filter(_is_mask, kinds)] or [mask] * (mask in counts and "{" not in mask)
    own = [name for name in kinds if name not in masks and name.endswith(suffix)]
    is_numbered = len({_DIGIT.sub("", name) for name in own}) < 2
    is_other = counts.total() * _MOST > len(kinds) * len(files)
    if is_numbered or is_other or len(own) > _MOST_KINDS:
        return []
    if _share(_DIGIT.search, names) < _MOST or len(names) < _MOST * len(files):
        return []
    lead = own[0][:5] if all(name[:5] == own[0][:5] and name[0] == "{" for name in own) else ""
    channels = ",".join(name.removeprefix(lead).removesuffix(suffix) for name in own)
    why = f"{len(files):,} folders have the same {len(kinds)} kinds of pictures"
    masks = [name.replace("{id}", "*") for name in masks]
    stacks = _stacks(f"{{id}}/{lead}{{{channels}}}{suffix}", masks, why)
    single = {"exclude": tuple(f"*/{one}" for one in masks)} if masks else {}
    return [
        *stacks,
        *numbers_of_names(view)[: 0 if masks else _MOST_PROPOSED],
        Reading({**single, "labels": "none"}, "each picture alone"),
        Reading({"labels": "folder"}, f"{len(names):,} folders as classes"),
    ]


def _is_mask(name: str) -> bool:
    return bool(MASK_ENDING.search(f"_{splitext(name)[0]}"))


def _stacks(pattern: str, masks: Sequence[str], why: str) -> list[Reading]:
    """Return a reading of stacks for each name of masks; with no name, a reading without labels."""
    stated = [{"masks": f"{{id}}/{name}"} for name in masks] or [{"labels": "none"}]
    return [Reading({"stack": pattern, **one}, why) for one in stated]


def _volumes(files: Folders) -> list[Reading]:
    """Return the readings of samples that have a folder of slices, with other images next to it."""
    slices = {one: names for one, names in files.items() if one.rpartition("/")[0] in files}
    inner, number = _names(slices, 1), len(slices)
    counts = Counter(name for one in slices for name in files[one.rpartition("/")[0]])
    are_kinds = len({_DIGIT.sub("", name) for name in counts}) == len(counts) <= _MOST_KINDS
    if len(inner) != 1 or not are_kinds or max(counts.values()) < max(2, _MOST * number):
        return []
    (name,) = inner
    masks = [*filter(_is_mask, counts)][:_MOST_PROPOSED]
    why = f"{number:,} folders have a folder {name!r} and the same images beside it"
    return [
        *_stacks(f"{{id}}/{name}/*{_suffix(slices)}", masks, why),
        Reading({"include": (f"*/{name}/*",), "labels": "none"}, "each slice alone"),
    ]


def _takes(files: Folders) -> list[Reading]:
    """Return the readings of folders that are takes of a class, such as `v_Archery_g01_c02`."""
    names = _names(files, 1)
    fits = [match for match in map(_TAKES.fullmatch, names) if match]
    counts = Counter(match["word"] for match in fits)
    forms = {(match["lead"] or "", _DIGIT.sub("0", match["numbers"])) for match in fits}
    several = sum(number for number in counts.values() if number > 1)
    if len(counts) < 2 or len(forms) > 1 or several < _MOST * len(names):
        return []
    (lead, numbers), pattern = forms.pop(), _pattern(files, 1)
    regex = f"regex:/{lead}(?P<label>[^/]+?)" + re.sub("0+", r"\\d+", numbers)
    why = f"{len(names):,} folders are named by {len(counts):,} words, and numbers"
    stack = [Reading({"stack": pattern, "labels": regex}, "the folders are stacks")]
    return [
        Reading({"labels": regex}, why),
        *(stack if pattern else []),
        Reading({"labels": "folder"}, "folders as classes"),
    ]


def _names_each(view: View, files: Folders) -> bool:
    """Return whether a table has a row or a path for single images, so folders are not samples."""
    tables = view.tables[:_MOST_TABLES]
    folders = [one for one in files if given_split(one.split("/")) != "test"]
    names = [splitext(name)[0] for one in folders for name in files[one]]
    some = {*names[:: -(-len(names) // 500) or 1]}
    return any(id_column(table, some) or _has_paths(view, table) for table in tables)


def _has_paths(view: View, table: Table) -> bool:
    with contextlib.suppress(SourceError):
        title = find_ids(view.index, table)
        is_path = "/" in "".join(table.cells(table.column(title))[:1])
        return is_path and bool((match_table(view.index, table, title).row_of >= 0).mean() >= _MOST)
    return False


def _evidence(files: Folders, tables: Sequence[Table]) -> tuple[str, int] | None:
    """Return why folders are samples, and their level (1 is the lowest), or None."""
    every = [name.lower() for several in files.values() for name in several]
    is_dicom = _share(lambda name: name.endswith((".dcm", ".dicom")), every) >= _MOST
    series = None
    for depth in (1, 2, 3):
        paths = {folder.rsplit("/", depth - 1)[0] for folder in files}
        names = {name for name in _names(files, depth) if not stated_split(name)}
        if len(names) < 2 or (len(paths) < len(files) and not is_dicom):
            continue
        such = f"{len(names):,} folders such as {min(names)}"
        if place := ids_of_samples(names, tables) or _ids_in(names, tables):
            return f"{such} are ids in {place}", depth
        if depth == 1 and _share(_SAMPLE.fullmatch, names) >= _MOST:
            return f"{such} are named like samples", depth
        if is_dicom and len(every) > len(files) and _share(_DIGIT.search, names) >= _MOST:
            series = series or (f"{such} have series of DICOM files", depth)
    return series


def _ids_in(names: Collection[str], tables: Sequence[Table]) -> str:
    """Return a text with the table and column that has the names as ids, or "".

    The table needs another column with repeats. A title such as `ClassId`, or a column of distinct
    words, means a list of classes instead.
    """
    for table in tables[:_MOST_TABLES]:
        title = id_column(table, names)
        others = [table.cells(at)[:1_000] for at, one in enumerate(table.header) if one != title]
        repeat = [len({*cells}) < len(cells) for cells in others[:_MOST_KINDS]]
        are_named = any(
            not is_repeated and _share(_DIGIT.search, cells) == 0
            for cells, is_repeated in zip(others, repeat, strict=False)
        )
        if title and any(repeat) and not are_named and not _CLASS_TITLE.search(title):
            return f"{table.name}, column {title!r}"
    return ""


def _pattern(files: Folders, depth: int) -> str:
    """Return the value of `--stack` for folders of images, or their parents; "" if none fits."""
    folders, names = [PurePosixPath(folder) for folder in files], f"*{_ending(files)}"
    if depth == 2 and len(inner := _names(files, 1)) == 1:
        folders, names = [folder.parent for folder in folders], f"{inner.pop()}/{names}"
    return series_pattern(folders, names)


def _readings(view: View, files: Folders, why: str, depth: int) -> list[Reading]:
    """Return the readings: samples with or without labels, single images, or folders as classes."""
    tables = view.documents.tables
    keys = [f"{folder}/{name}" for folder, several in files.items() for name in several]
    patterns = stack_patterns(keys, tables) or [*filter(None, [_pattern(files, depth)])]
    if depth == 2 and 1 < len(inner := _names(files, 1)) <= _MOST_KINDS:
        patterns += [f"{{id}}/{name}/*{_ending(files)}" for name in sorted(inner)]
    several = stack_candidates(keys, tables, patterns)
    several = [one for one in several if _is_of_submission(one, tables)] or several
    is_dicom = _suffix(files).lower() in (".dcm", ".dicom")
    is_numbered = len({_DIGIT.sub("", key.rpartition("/")[2]) for key in keys}) == 1
    if len(patterns) == 1 and (is_dicom or (is_numbered and _SERIES.search(f"{why} {keys[0]}"))):
        if len(several) == 1:
            return [replace(several[0], why=f"{why}; {several[0].why}")]
        if is_dicom and not several and len(keys) >= _LEAST_SLICES * len(files):
            return [Reading({"stack": patterns[0], "labels": "none"}, why)]
    several = several[:_MOST_PROPOSED]
    stacks = [{"stack": patterns[0], "labels": "none"}] if patterns else []
    return [
        *(replace(one, why=f"{why}; {one.why}") for one in several),
        *(Reading(one, f"{why}; without labels") for one in stacks),
        *numbers_of_names(view)[:_MOST_PROPOSED],
        Reading({"labels": "none"}, "each image alone"),
        Reading({"labels": "folder"}, "folders as classes"),
    ]


def _is_of_submission(one: Reading, tables: Sequence[Table]) -> bool:
    """Return whether a sample submission has the target columns of a reading."""
    titles = {*one.options.get("rows", one.options["labels"]).rpartition(":")[2].split(",")}
    return any(titles <= {*x.header[1:]} for x in tables if SUBMISSION.search(x.name))
