"""The Python API: one function for each command, such as `shardprep.build`.

The functions return values and report progress to `progress`. They do not print and do not end the
process; the command line prints their results. `arguments` resolves what callers name: the recipe,
the source and the dataset.
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
    "diff": "checks",
    "repack": "builds",
    "export": "transfers",
    "sample": "builds",
    "download": "transfers",
    "upload": "transfers",
    "fetch": "transfers",
}
"""Command → module of its function here and in `shardprep.cli`, in the order of `--help`."""
