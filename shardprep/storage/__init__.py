"""Files on a disk and objects in object storage, which are either complete or absent.

Callers give names and bytes. A committed write is durable. An object may be read with its ETag: if
it was replaced in the meantime, this is an error.
"""
