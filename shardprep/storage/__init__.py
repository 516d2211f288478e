"""Files on a disk and objects in object storage, which are either complete or absent.

A committed write is durable. Reading an object with its ETag fails if the object was replaced.
"""
