"""The command line: what each command prints, its options, and the display of errors.

No other package imports this one. Heavy modules are imported inside functions, so that `shardprep
--help` is fast.
"""
