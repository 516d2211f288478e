"""Payloads of records by number, from shards in a folder or in object storage.

`subset` checks a dataset and opens the records of one host, and compares the datasets of a mix;
`records` locates and reads records; `shards` reads ranges of bytes.
"""
