"""Groups of images (one patient, one scene, one burst). A group never spans two splits."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from shardprep.catalog.patterns import Pattern
from shardprep.catalog.rules import check_regex, folder_depth
from shardprep.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardprep.catalog.catalog import Item
    from shardprep.catalog.lookup import TableMatch


def group_keys(keys: Sequence[str], rule: str, match: TableMatch | None) -> list[str]:
    """Return the group of each key, "" for one on its own.

    `rule` is a column of the label table, folder:N (Nth above the image), or regex:PATTERN, whose
    first group, tried on the file name and then on the whole key, is the image's group.
    """
    kind, _, argument = rule.partition(":")
    if kind == "regex" and argument:
        groups = _by_regex(keys, argument)
    elif kind == "folder":
        depth = folder_depth(argument, "--group")
        groups = ["/".join(key.split("/")[:-depth]) for key in keys]
    elif match is None:
        what = "needs a label table with this column, and there is none"
        hint = "use --labels csv:FILE, --join FILE, or --group 'regex:PATTERN'"
        raise SourceError(f"--group {rule}", what, hint)
    else:
        groups = match.cells(rule)
    if not any(groups):
        raise SourceError(f"--group {rule}", f"finds no group for any image, such as {keys[0]}")
    return groups


def group_findings(items: Iterable[Item], rule: str, *, is_cut: bool) -> list[str]:
    """Return remarks on the groups, a line each; `is_cut`: ratios cut the given splits anew."""
    splits: defaultdict[str, set[str]] = defaultdict(set)
    alone = 0
    for item in items:
        if item.group:
            splits[item.group].add(item.split)
        else:
            alone += 1
    mixed = 0 if is_cut else sum(len(found) > 1 for found in splits.values())
    lines = {
        f"{len(splits):,} groups by {rule}": True,
        f"{alone:,} images belong to no group: each stands for itself": alone,
        f"{mixed:,} groups are in several of the given splits: --split RATIOS cuts anew": mixed,
    }
    return [line for line, is_worth in lines.items() if is_worth]


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
