"""Groups of images (one patient, one scene, one burst). A group never spans two splits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardprep.catalog.patterns import Pattern
from shardprep.catalog.rules import check_regex, folder_depth
from shardprep.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.lookup import TableMatch


def group_keys(keys: Sequence[str], rule: str, match: TableMatch | None) -> list[str]:
    """Return the group of each key, "" for one on its own.

    `rule` is a column of the label table, folder:N (Nth above the image), or regex:PATTERN, whose
    first group, tried on the file name and then on the whole key, is the image's group.

    Raises:
        SourceError: there is no table, no such column, or no key has a group.
        RecipeError: the pattern is not valid.

    """
    kind, _, argument = rule.partition(":")
    if kind == "regex" and argument:
        groups = _by_regex(keys, argument)
    elif kind == "folder":
        depth = folder_depth(argument, "--group")
        groups = ["/".join(key.split("/")[:-depth]) for key in keys]
    elif match is None:
        raise SourceError(
            f"--group {rule}",
            "needs a label table with this column, and there is none",
            "use --labels csv:FILE, --join FILE, or --group 'regex:PATTERN'",
        )
    else:
        groups = match.cells(rule)
    if not any(groups):
        raise SourceError(f"--group {rule}", f"finds no group for any image, such as {keys[0]}")
    return groups


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
