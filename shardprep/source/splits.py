"""Which split the names of folders and inner archives give: train/, val/, test1.zip/."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_OF = r"([-_ ]?(set|data|images?|imgs?))?[-_]?\d*"
_SPLITS = {
    "train": re.compile(rf"train(ing)?{_OF}", re.IGNORECASE),
    "validation": re.compile(rf"val(id(ation)?)?{_OF}", re.IGNORECASE),
    "test": re.compile(rf"test(ing)?{_OF}", re.IGNORECASE),
}
_ARCHIVE_SUFFIX = re.compile(
    r"\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz)|gz|bz2|xz)$", re.IGNORECASE
)


def without_archive_suffix(name: str) -> str:
    """Return "train" for "train.zip" and "train.tar.gz", other names unchanged."""
    return _ARCHIVE_SUFFIX.sub("", name)


def given_split(folders: Iterable[str]) -> str | None:
    """Return the split that the first telling name among the folders gives, None where none does.

    Folders of a key run from the root down; an inner archive counts as a folder.
    """
    for folder in folders:
        name = without_archive_suffix(folder)
        for split, pattern in _SPLITS.items():
            if pattern.fullmatch(name):
                return split
    return None
