"""The Python API: one function for each command, such as `shardprep.build`.

The functions return values and report progress to `progress`. They do not print and do not end the
process; the command line prints their results. `arguments` resolves what callers name: the recipe,
the source and the dataset.
"""
