"""Choose the records to read: splits, selections, queries, folds and weights.

These modules use the manifest and the item table. Only `statistics` reads records.
"""
