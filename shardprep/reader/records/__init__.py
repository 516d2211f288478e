"""Payloads of records by number, from shards in a folder or in object storage.

`open` checks a dataset and returns the records of one host; `records` says where they are and reads
them; `shards` has the bytes.
"""
