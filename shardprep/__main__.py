"""`python -m shardprep` and the installed command are the command line.

What is imported here before anything else is little, so that Ctrl-C has one line from then on.
"""

from __future__ import annotations

import gc
import signal

_ALLOCATIONS = 100_000
"""Number of new objects after which Python looks for garbage: modules are none, and by its own
number, 700, they are walked again and again while others are imported."""


def main() -> None:
    """Run the command line; Ctrl-C while its modules are imported counts once they are."""
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))

    gc.set_threshold(_ALLOCATIONS)
    try:
        from shardprep.cli.app import main as run  # noqa: PLC0415 - see above

        run(pressed)
    finally:
        gc.freeze()  # the interpreter would look for garbage in all modules before it ends


if __name__ == "__main__":
    main()
