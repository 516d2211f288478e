"""The viewer: browse all items of a dataset in a browser on this machine.

`server` handles HTTP and access: it passes each valid `PageRequest` to `viewer.Site`, which returns
an `Answer`. Addresses select items by number, and numbers are checked against the manifest. No text
of an address is ever used as a file name.
"""
