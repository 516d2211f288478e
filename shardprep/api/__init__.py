"""The Python API: one function for each command, such as `shardprep.build`.

The functions return values, report to `progress` and never end the process. They print nothing
except a progress bar with `progress=True`; the command line prints their results. `arguments` finds
the recipe, the source and the dataset that a caller names.
"""

COMMANDS = {
    "build": "builds",
    "finalize": "builds",
    "init": "builds",
    "inspect": "reports",
    "report": "reports",
    "view": "reports",
    "bench": "reports",
    "verify": "checks",
    "leaks": "checks",
    "diff": "checks",
    "repack": "transfers",
    "export": "transfers",
    "sample": "builds",
    "download": "transfers",
    "upload": "transfers",
    "fetch": "transfers",
}
"""Command → module that has its function, here and in `shardprep.cli`; ordered as in `--help`."""
