"""Decide the split, order and shard of every item before the first image is stored."""
