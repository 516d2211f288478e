"""The command line: a module for each command, their options, and the display of errors.

It imports every other package, and none imports it. Heavy modules are imported inside functions, so
that `shardprep --help` is fast.
"""
