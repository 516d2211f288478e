"""Texts about the rejected images of a build: how many, why, and what to do."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from shardprep.dataset import item_table
from shardprep.errors import OptionName, counted, shown

_REMEDY = "; give "
"""Begins the remedy in the reason of a rejection, which names options as flags."""
_FLAG = re.compile(r"--([a-z-]+)(?: ([A-Z,]+|[0-9]+x[0-9]+|recover))?")


def rejected_text(items: Path, again: str, limit: str = "", most: float = 0.0) -> tuple[str, str]:
    """Return the problem and what to do; two empty texts if at most a share `most` is rejected.

    `items` is the item table of a build that is not published, `again` the words for another run,
    and `limit` follows the counts. DatasetError if the table is damaged.
    """
    rows = item_table.read_items(items, ("key", "status", "kind", "reason"))
    statuses = Counter(rows["status"].cast("string").to_pylist())
    num_rejected, num_written = statuses[item_table.REJECTED], statuses[item_table.WRITTEN]
    if num_rejected <= most * (num_rejected + num_written):
        return "", ""
    rejected = item_table.with_status(rows, item_table.REJECTED).to_pylist()
    kinds = Counter(row["kind"] for row in rejected).most_common()
    first = next(row for row in rejected if row["kind"] == kinds[0][0])
    fault, _, remedy = (first["reason"] or "").partition(_REMEDY)
    remedy = _FLAG.sub(lambda m: str(OptionName(m[1].replace("-", "_"), m[2] or "")), remedy)
    total = counted(num_rejected + num_written, "image")
    what = (
        f"{num_rejected:,} of {total} are rejected{limit}: "
        f"{', '.join(f'{count:,} {kind}' for kind, count in kinds)}, "
        f"such as {shown(first['key'])}: {fault}"
    )
    more = f"{again} with a higher {OptionName('max_rejected')} to leave them out"
    ways = [more if remedy else f"the work is kept: {more}"] if num_written else []
    if remedy:
        ways = [f"build again with {remedy}, and {OptionName('overwrite')}", *ways]
    return what, ", or ".join(ways) or "correct the images, or give another source"
