"""The test modules with rewritten assertions, which the processes of a suite share out.

pytest rewrites a module when it is imported, and keeps the result for later runs. The processes of
a suite import all modules at the same time, so in a new clone each would rewrite all of them.
"""

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

_TESTS = Path(__file__).parents[1]


def rewrite_part(config: pytest.Config, part: int, num_parts: int) -> None:
    """Rewrite the modules of one part, unless the results are kept or cannot be."""
    if sys.dont_write_bytecode:
        return
    paths = sorted(_TESTS.rglob("test_*.py"), key=lambda path: (path.stat().st_size, path))
    for path in sorted(paths[part::num_parts]):  # in the order of the imports that follow
        kept = rewrite.get_cache_dir(path) / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, kept) is None:
            stat, code = rewrite._rewrite_test(path, config)
            if rewrite.try_makedirs(kept.parent):
                state = config.stash[rewrite.assertstate_key]
                rewrite._write_pyc(state, code, stat, kept)
