"""Measure one figure on some cores: python -m benchmarks.training_machine.child RESULT TASK."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.training_machine.figures import Figure, Settings


def main() -> None:
    """Write the rate of the task's figure to a file, and end without waiting for workers."""
    result, task = sys.argv[1:]
    shared, own = json.loads(task)
    settings = Settings(**{**shared, "folder": Path(shared["folder"])})
    figure = Figure(**own)
    # Before numpy and torch are imported, which count the cores for their threads.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: figure.cores])
    if figure.model:
        from benchmarks.training_machine.training import rate
    else:
        from benchmarks.training_machine.reading import rate
    Path(result).write_text(json.dumps(asdict(rate(settings, figure))))
    os._exit(0)


if __name__ == "__main__":
    main()
