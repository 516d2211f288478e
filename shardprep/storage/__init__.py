"""Files on a disk and objects in object storage, which are either complete or absent.

This package does not know datasets: callers give names and bytes. A write is durable when it
returns. Reading a file or object that was replaced in the meantime is an error.
"""
