"""Entry point of `python -m shardprep` and of the installed command.

This module imports little, so that it can handle Ctrl-C during the imports of the command line: the
program then ends with one line instead of a traceback.
"""

from __future__ import annotations

import gc
import signal

_ALLOCATIONS = 300_000
"""Threshold of the garbage collector, in allocations. The imports of any command allocate fewer
objects, and create no garbage."""


def main() -> None:
    """Run the command line. Ctrl-C during the imports takes effect after them."""
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))

    gc.set_threshold(_ALLOCATIONS)
    try:
        from shardprep.cli.app import main as run  # noqa: PLC0415 - see above

        run(pressed)
    finally:
        gc.freeze()  # otherwise the interpreter collects all modules before it exits


if __name__ == "__main__":
    main()
