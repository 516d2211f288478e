"""Which records are read: splits, slices, queries, folds, weights, buckets."""
