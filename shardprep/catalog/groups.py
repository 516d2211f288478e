"""Which images belong together: of one patient, one scene, one burst. A split never parts them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardprep.catalog.labels import check_regex
from shardprep.errors import RecipeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.catalog.labels import TableMatch


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
        depth = int(argument) if re.fullmatch("[1-9][0-9]*", argument) else 1
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
    search = re.compile(pattern).search
    if not re.compile(pattern).groups:
        raise RecipeError("--group", f"regex:{pattern} has no group", r"write regex:^(\d+)_")
    groups = []
    for key in keys:
        match = search(key.rpartition("/")[2]) or search(key)
        groups.append((match[1] or "") if match else "")
    return groups
