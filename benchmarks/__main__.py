"""Run every measurement, and write docs/performance.md: python -m benchmarks.

Each group runs in a process of its own, and is written as soon as it is done.
"""

from __future__ import annotations

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from benchmarks.document import DOCUMENT, GROUPS, measured, written
from benchmarks.table import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, with commas")
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many counts")
    parser.add_argument(
        "--quick", action="store_true", help="only see that everything runs; nothing is written"
    )
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    if unknown := set(only) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    for group in only:
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as alone:
            rows = alone.submit(measured, group, arguments.rounds, quick=arguments.quick).result()
        print(f"\n{group}\n\n{table(rows)}", flush=True)
        if not arguments.quick:
            DOCUMENT.write_text(written(DOCUMENT.read_text(), group, rows))


if __name__ == "__main__":
    main()
