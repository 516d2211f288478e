"""Choose the records to read: splits, selections, queries, folds and weights.

They use the manifest and the item table. Only `statistics` reads records.
"""
