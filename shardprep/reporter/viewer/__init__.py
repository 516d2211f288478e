"""The viewer: browse all items of a dataset in a browser on this machine.

`server` handles HTTP and access, and passes valid requests to `viewer.Site`. Addresses select items
by number, never by file name, so no request can name another file.
"""
