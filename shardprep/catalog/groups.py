"""Groups of images (one patient, one scene, one burst). A group never spans two splits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from shardprep.catalog.patterns import Pattern
from shardprep.catalog.rules import check_regex, folder_depth
from shardprep.catalog.splits import is_cut
from shardprep.errors import RecipeError, SourceError
from shardprep.source.dictionary_column import Coded
from shardprep.source.string_column import Texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from shardprep.catalog.items import Items
    from shardprep.catalog.tables.row_matching import TableMatch


def group_keys(keys: Sequence[str], rule: str, match: TableMatch | None) -> Coded[str]:
    """Return the group of each key, "" for one on its own.

    `rule` is a column of the label table, folder:N (Nth above the image), or regex:PATTERN, whose
    first group, tried on the file name and then on the whole key, is the image's group.
    """
    kind, _, argument = rule.partition(":")
    if kind == "regex" and argument:
        groups = Coded.of(_by_regex(keys, argument))
    elif kind == "folder":
        depth = folder_depth(argument, "--group")
        above = depth - 1
        groups = Texts.of(keys).folders.map(
            lambda folder: "/".join(folder.split("/")[: -above or None])
        )
    elif match is None:
        what = "needs a label table with this column, and there is none"
        hint = "use --labels csv:FILE, --join FILE, or --group 'regex:PATTERN'"
        raise SourceError(f"--group {rule}", what, hint)
    else:
        groups = match.cells(rule)
    if not any(groups.firsts().values()):
        raise SourceError(f"--group {rule}", f"finds no group for any image, such as {keys[0]}")
    return groups


def group_findings(items: Items, rule: str, ratios: Mapping[str, float]) -> list[str]:
    """Return remarks on the groups, a line each; `ratios` are those of a cut, empty without one."""
    is_grouped = items.group.fit(bool)
    alone = int((~is_grouped).sum())
    number = len(np.unique(items.group.codes[is_grouped]))
    mixed = _num_mixed(items, is_grouped, ratios)
    lines = {
        f"{number:,} groups by {rule}": True,
        f"{alone:,} images belong to no group: each stands for itself": alone,
        f"{mixed:,} groups are in several of the given splits: --split RATIOS that name all of "
        "these cuts anew": mixed,
    }
    return [line for line, is_worth in lines.items() if is_worth]


def _num_mixed(items: Items, is_grouped: NDArray[np.bool_], ratios: Mapping[str, float]) -> int:
    """Return the number of groups in several of the given splits, those that are cut as one."""
    splits = items.split.codes
    if ratios:
        is_grouped = is_grouped & items.are_labelled
        splits = np.where(items.split.fit(lambda split: is_cut(split, ratios)), -1, splits)
    pairs = np.unique(np.stack((items.group.codes, splits))[:, is_grouped], axis=1)
    return int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())


def _by_regex(keys: Sequence[str], pattern: str) -> list[str]:
    check_regex(pattern, "", "--group")
    if not re.compile(pattern).groups:
        raise RecipeError("--group", f"regex:{pattern} has no group", r"write regex:^(\d+)_")
    searched = Pattern(pattern, "--group", f"regex:{pattern}", group=1)
    groups = searched.search([key.rpartition("/")[2] for key in keys])
    left = [i for i, group in enumerate(groups) if group is None]
    for i, group in zip(left, searched.search([keys[i] for i in left]), strict=True):
        groups[i] = group
    return [group or "" for group in groups]
