"""Files and objects: each is complete or absent, on a disk and in object storage.

Nothing here knows what a dataset is. Callers give names and bytes; a write is durable when it
returns, and a read of what changed meanwhile is an error.
"""
