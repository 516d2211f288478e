"""The command line: a command a file, the options, and what becomes of errors.

It knows every other room and none knows it. Heavy modules are imported inside the commands:
`shardprep --help` answers at once.
"""
