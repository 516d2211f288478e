"""Build sources with mutated annotation documents: the second part of `make soak`.

python -m tests.soak.documents --write           a quarter of an hour; writes docs/trust.md
python -m tests.soak.documents --documents 500   less of it; only prints
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from shardprep.machine import usable_cores
from tests.catalog.mutated_documents import SEED, Tally, try_out
from tests.documents import trust
from tests.soak.record import DOCUMENTS, DocumentRecord
from tests.support.processes import skip_fsync

_AT_ONCE = 200


def _tried(numbers: range) -> Tally:
    skip_fsync()
    with tempfile.TemporaryDirectory() as folder:
        return try_out(numbers, Path(folder))


def main(given: list[str] | None = None) -> int:
    """Build the sources; return 1 if a build failed in another way than with a one-line error."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.documents", description=__doc__)
    parser.add_argument("--documents", type=int, default=8000, help="sources to build")
    parser.add_argument("--processes", type=int, default=usable_cores())
    parser.add_argument("--write", action="store_true", help="report them in docs/trust.md")
    asked = parser.parse_args(given)
    parts = [
        range(start, min(start + _AT_ONCE, asked.documents))
        for start in range(0, asked.documents, _AT_ONCE)
    ]
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        tallies = pool.map(_tried, parts, chunksize=1)
    tally = Tally(
        built=sum(one.built for one in tallies),
        refused=sum(one.refused for one in tallies),
        faults=[fault for one in tallies for fault in one.faults],
        slowest_s=max(one.slowest_s for one in tallies),
    )
    for fault in tally.faults:
        sys.stderr.write(f"{fault}\n")
    sys.stderr.write(
        f"{asked.documents:,} mutated documents: {tally.built:,} built, {tally.refused:,} refused "
        f"in one line, {len(tally.faults):,} faults; the slowest took {tally.slowest_s:.1f} s\n"
    )
    if tally.faults:
        return 1
    if asked.write:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        ends = tally.built, tally.refused, round(tally.slowest_s, 1)
        record = DocumentRecord(date, SEED, asked.documents, *ends)
        DOCUMENTS.write_text(json.dumps(asdict(record), indent=1) + "\n")
        trust.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
