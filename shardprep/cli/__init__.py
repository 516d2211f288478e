"""The command line: what each command prints, its options, and the display of errors.

It imports every other package, and none imports it. Heavy modules are imported inside functions, so
that `shardprep --help` is fast.
"""
