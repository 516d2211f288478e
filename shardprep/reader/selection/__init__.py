"""Choose the records to read: splits, selections, queries, folds, weights and buckets.

The choice follows from the manifest and the item table. Only `statistics`, which has the buckets,
reads records.
"""
