"""Decide split, order and shard of every item before an image is stored."""
