"""Changes of a source that a person would not mind: other words for the same things.

A change takes a row of the corpus and returns it with other files and equally changed facts, or
None if the row has nothing to change. `python -m tests.layouts --changed NAME` judges all rows.
"""

import csv
import functools
import io
import random
import re
from collections.abc import Callable
from dataclasses import replace

from tests.support.builders import jpeg
from tests.support.corpus import Fact, Row
from tests.support.layouts import Members

Change = Callable[[Row], Row | None]
Word = Callable[[str], str]
_TEXT = re.compile(r"\.(csv|tsv|txt|json|jsonl|xml|ya?ml|lst|md|names|data)$", re.IGNORECASE)
_TREES = "oak maple birch willow aspen cedar walnut hazel spruce larch poplar alder rowan linden"
_FILES, _LABELS = ("mask", "target"), ("label", "labels", "boxes", "shapes")


def _labels(row: Row) -> set[str]:
    facts = (row.facts or {}).values()
    return {x for one in facts for key in _LABELS for x in one.get(key, "").split(",") if x}


def _with(row: Row, files: Members) -> Row:
    return replace(row, members=lambda: files)


def _renamed(row: Row, path: Word, text: Word = str, label: Word = str) -> Row | None:
    of_key = {**dict.fromkeys(_FILES, path), **dict.fromkeys(_LABELS, label)}

    def fact(one: Fact) -> Fact:
        words = {key: sorted(map(word, one[key].split(",")))
                 for key, word in of_key.items() if key in one}  # fmt: skip
        return {**one, **{key: ",".join(several) for key, several in words.items()}}

    files = row.members()
    new = {path(name): text(data.decode()).encode() if _TEXT.search(name) else data
           for name, data in files.items()}  # fmt: skip
    facts = {path(key): fact(one) for key, one in (row.facts or {}).items()}
    free, flags = frozenset(map(path, row.free)), text(row.flags)
    changed = _with(replace(row, facts=facts, free=free, flags=flags), new)
    return None if new == files or len(new) < len(files) else changed


def _folders(word: Word) -> Change:
    """Return the change of names of folders, except names that are part of a label."""

    def change(row: Row) -> Row | None:
        names = {part for key in row.members() for part in key.split("/")[:-1]}
        labels = " ".join(_labels(row)).casefold()
        new = {x: word(x) for x in names if x.casefold() not in labels and word(x) != x}
        if not new or not names.isdisjoint(new.values()) or len({*new.values()}) < len(new):
            return None
        pattern = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, new))})(?=/)")
        text = functools.partial(pattern.sub, lambda match: new[match[1]])
        return _renamed(row, text, text)

    return change


def _classes(row: Row) -> Row | None:
    """Return the row with names of trees as classes, if their names are words that stand alone."""
    labels, files = sorted(_labels(row)), row.members()
    every = "\n".join([*files, *(x.decode() for name, x in files.items() if _TEXT.search(name))])
    words = [rf"(?<![A-Za-z0-9]){re.escape(one)}(?![A-Za-z])" for one in labels]
    are_words = all(re.fullmatch("[A-Za-z]{3,}", one) for one in labels)
    if not are_words or not 1 < len(labels) <= len(_TREES.split()):
        return None
    new = dict(zip(labels, random.Random(0).sample(_TREES.split(), len(labels)), strict=True))
    text = functools.partial(re.compile("|".join(words)).sub, lambda match: new[match[0]])
    is_clear = not re.search("|".join(labels), text(every), re.IGNORECASE)
    is_clear &= all(re.search(word, every) for word in words)
    return _renamed(row, text, text, lambda one: new.get(one, one)) if is_clear else None


def _tables(change: Callable[[list[list[str]]], list[list[str]]]) -> Change:
    """Return the change of all tables with a header; sample submissions say what is wanted."""

    def changed(row: Row) -> Row | None:
        new, files = dict[str, bytes](), row.members()
        stems = {name.rpartition("/")[2].partition(".")[0] for name in files}
        for name in (x for x in files if x.endswith(".csv") and "ubmission" not in x):
            rows = [*csv.reader(io.StringIO(files[name].decode()))] or [[""]]
            if len({*map(len, rows)}) == 1 < len(rows[0]) and stems.isdisjoint(rows[0]):
                lines = (",".join(f'"{cell}"' for cell in one) for one in change(rows))
                new[name] = "\n".join(lines).encode()
        return _with(row, {**files, **new}) if new else None

    return changed


def _beside(name: str, data: bytes = jpeg(48, 32)) -> Change:
    return lambda row: None if name in row.members() else _with(row, {**row.members(), name: data})


def _words(**new: str) -> Change:
    return _folders(lambda name: new.get(name, name))


CHANGES: dict[str, Change] = {
    "folders around": lambda row: _renamed(row, "set-master/set/{}".format),
    "capitals": _folders(str.upper),
    "splits": _words(train="training", val="valid", valid="validation", test="testing"),
    "images": _words(images="imgs", Images="JPEGImages", imgs="images", img="photos"),
    "masks": _words(masks="annotations", mask="labels", labels="ann", annotations="labels"),
    "classes": _classes,
    "columns": _tables(lambda rows: [one[::-1] for one in rows]),
    "one more column": _tables(lambda rows: [[*one, "source"] for one in rows]),
    "a logo": _beside("logo.jpg"),
    "a picture of the readme": _beside("docs/logo.jpg"),
    "a readme": _beside("README.md", b"# A data set\n\n![](logo.jpg)\n"),
    "files of a system": _beside("__MACOSX/._data", b"\0\5\26\7\0\2\0\0Mac OS X"),
}
