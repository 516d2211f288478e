"""Files and objects that are complete or absent, on a disk and in object storage.

This room does not know datasets. Callers give names and bytes. A write is durable when it returns.
Reading something that has changed since it was found is an error.
"""
