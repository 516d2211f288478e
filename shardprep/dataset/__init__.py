"""The format on disk, and the only room that knows it: documents, records, indexes, tables.

Both writer and readers use it, so a change here is a change of the format: what an older version
wrote must stay readable. `card` is how values of this room and of those above show themselves.
"""
