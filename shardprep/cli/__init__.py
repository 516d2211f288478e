"""The command line: a module for each command, their options, and how errors are shown.

It imports every other room, and none imports it. Heavy modules are imported inside the commands:
`shardprep --help` answers at once.
"""
