"""Try datasets that were changed and signed anew, many of them: a part of `make soak`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> int:
    """Try all; return 1 where one ended otherwise than with a result or one line."""
    from tests.dataset.signed_mutations import KINDS, NUM_SOAK, bases, ends, mutated

    folder = Path(tempfile.mkdtemp(prefix="soak-datasets-"))
    os.environ["SHARDPREP_CACHE"] = str(folder / "cache")
    sets, total, wrong = bases(folder / "bases"), Counter[str](), 0
    for seed in range(NUM_SOAK):
        base, work = sets[seed // len(KINDS) % len(sets)], folder / str(seed)
        work.mkdir()
        try:
            found = ends(mutated(base, seed).write(work / "set"), base.folder, work)
        except Exception as error:
            sys.stderr.write(f"{work} ({KINDS[seed % len(KINDS)]}): {error!r}\n"[:2000])
            wrong += 1
            continue
        total.update(end for _, end in found)
        shutil.rmtree(work)
    ended = ", ".join(f"{number:,} with {end}" for end, number in total.items())
    sys.stderr.write(f"{NUM_SOAK} datasets signed anew: {ended}; {wrong} wrong\n")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
