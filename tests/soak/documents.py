"""Build sources with mutated annotation documents: the second part of `make soak`.

python -m tests.soak.documents --write           a quarter of an hour; writes docs/trust.md
python -m tests.soak.documents --documents 500   less of it; only prints
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tests.soak.record import DOCUMENTS, DocumentRecord
from tests.support import trust
from tests.support.disk import skip_fsync
from tests.support.mutated_documents import SEED, try_out


def main(given: list[str] | None = None) -> int:
    """Make the tries; return 1 where one ended neither as a sound dataset nor as one line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.documents", description=__doc__)
    parser.add_argument("--documents", type=int, default=8000, help="sources to build")
    parser.add_argument("--write", action="store_true", help="report them in docs/trust.md")
    asked = parser.parse_args(given)
    skip_fsync()
    with tempfile.TemporaryDirectory() as folder:
        tally = try_out(range(asked.documents), Path(folder))
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
