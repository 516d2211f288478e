"""The command line: what each command prints, its options, and the display of errors.

No other package imports this one. Functions import heavy modules, so that `--help` is fast.
"""
