"""What names of files and folders say: the split, the natural order, the name of an image."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardprep.source.names import composed, without_archive_suffix
from shardprep.source.string_column import Coded, Texts

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?v?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"(val(id(ation)?)?|dev){_OF}", re.IGNORECASE),
    "test": re.compile(rf"(test(ing)?|public_?test){_OF}", re.IGNORECASE),
}
_TABLE_NAME = re.compile(
    r"(^|[_\-. ])(train|val|valid|validation|test)([_\-. ]|\d|$)", re.IGNORECASE
)


def given_split(folders: Iterable[str]) -> str | None:
    """Return the split that the first of these folders is named after, or None.

    Give the folders of a key from the root down. An inner archive counts as a folder.
    """
    for folder in folders:
        name = without_archive_suffix(folder)
        for split, pattern in _SPLITS.items():
            if pattern.fullmatch(name):
                return split
    return None


def folder_splits(keys: Iterable[str]) -> Coded[str | None]:
    """Return the split that the folders of each key are named after, or None."""
    return Texts.of(keys).folders.map(lambda folder: given_split(folder.split("/")))


def document_split(name: str) -> str | None:
    """Return the split in the name of a document: "train_labels.csv" → train."""
    match = _TABLE_NAME.search(name.rpartition("/")[2].rpartition(".")[0])
    return given_split([match[2]]) if match else None


def natural_order(name: str) -> tuple[tuple[tuple[int, int, str], ...], str]:
    """Return a sort key that puts 2 before 10 and compares case last."""
    parts = re.split("([0-9]+)", name)
    folded = [
        (0, *_by_value(part)) if part[0] in "0123456789" else (1, 0, part.casefold())
        for part in parts
        if part
    ]
    return tuple(folded), name


def _by_value(digits: str) -> tuple[int, str]:
    """Return what sorts as the number does, however many digits it has."""
    stripped = digits.lstrip("0")
    return len(stripped), stripped


def stem(key: str) -> str:
    """Return the name of a file without folders and extension, in form NFC."""
    return composed(key.rpartition("/")[2].rpartition(".")[0])
