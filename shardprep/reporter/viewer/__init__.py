"""The viewer: any item of a dataset in a browser of this machine, page by page.

`server` speaks HTTP and keeps out whoever has not been given the address; `site` knows the pages.
Between them stand `Request` and `Answer`. What a page shows is chosen by whole numbers, which are
compared with the manifest: no text of an address ever names a file.
"""
