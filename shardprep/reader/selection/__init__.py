"""Choose the records to read: splits, selections, queries, folds and weights.

The choice follows from the manifest and the item table. Only `statistics` reads
records.
"""
