"""A file a command: parse, call, print. No decisions about data."""
