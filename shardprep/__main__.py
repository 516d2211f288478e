"""`python -m shardprep` and the installed command are the command line.

What is imported here before anything else is little, so that Ctrl-C has one line from then on.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line; Ctrl-C while its modules are imported counts once they are."""
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))

    from shardprep.cli.app import main as run  # noqa: PLC0415 - see above

    run(pressed)


if __name__ == "__main__":
    main()
