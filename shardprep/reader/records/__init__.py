"""Payloads of records by number, from shards in a folder or in object storage.

`open` checks a dataset and returns the records of one host; `records` reads them, remote ones
through `remote` and `prefetch`; `positions` says where they are.
"""
