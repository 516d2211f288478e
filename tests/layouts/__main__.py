"""Print what a build without flags makes of each row of the corpus: python -m tests.layouts.

Arguments are parts of names of rows; without them, all rows are built. `--json FILE` also writes
the results, `--write` updates tests/layouts/results.toml. `--changed NAME` builds the rows after a
change of `tests.layouts.changes`.
"""

import argparse
import functools
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.layouts.changes import CHANGES
from tests.support.corpus import Row, rows
from tests.support.first_contact import RESULTS, STATUSES, judged, stored_statuses, wanted_facts

_WIDTH = 150


def _judged(number: int, change: str = "") -> tuple[str, str]:
    """Return the status of a row and a detail; ("", "") if the change does not apply to it."""
    row: Row | None = rows()[number]
    if change:
        row = None if row is None or row.facts is None else CHANGES[change](row)
    if row is None:
        return "", ""
    with tempfile.TemporaryDirectory() as folder:
        source = row.write_source(Path(folder))
        status, detail = judged(row, source, *wanted_facts(row, source))
        return status, detail.replace(folder, "…")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.layouts", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of rows, such as segmentation/")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--changed", choices=CHANGES, default="", metavar="NAME")
    given = parser.parse_args()
    start, before = time.monotonic(), stored_statuses()
    found: dict[str, tuple[str, str]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    every = enumerate(rows())
    some = [i for i, row in every if any(name in row.id for name in given.names or [""])]
    judge = functools.partial(_judged, change=given.changed)
    with multiprocessing.Pool() as pool:
        for i, (status, detail) in zip(some, pool.imap(judge, some), strict=True):
            row = rows()[i]
            if not status:
                continue
            found[row.id] = status, detail
            totals.update([(row.family, status), ("all", status)])
            was = before.get(row.id, status)
            changed = "" if was == status else f" (was {was})"
            sys.stdout.write(f"{status:9}{row.id}{changed}  {detail}"[:_WIDTH] + "\n")
    families = [*dict.fromkeys(rows()[i].family for i in some), "all"]
    lines = [[name, *(str(totals[name, one]) for one in STATUSES)] for name in families]
    for name, *numbers in (["", *STATUSES], *lines):
        sys.stdout.write(f"{name:16}" + "".join(f"{one:>10}" for one in numbers) + "\n")
    sys.stdout.write(f"{len(found)} rows in {time.monotonic() - start:.1f} s\n")
    if given.json:
        data = [{"row": name, "status": one, "detail": why} for name, (one, why) in found.items()]
        given.json.write_text(json.dumps(data, indent=1), encoding="utf-8")
    if given.write:
        statuses = before | {name: status for name, (status, _) in found.items()}
        text = "# Status of each row without flags: python -m tests.layouts --write\n"
        text += "".join(f'"{row.id}" = "{statuses[row.id]}"\n' for row in rows())
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
