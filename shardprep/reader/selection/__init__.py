"""Which records are read: splits, selections, queries, folds, weights and buckets.

The results are record numbers. They come from the manifest and the item table; only `statistics`,
which has the buckets, reads records.
"""
