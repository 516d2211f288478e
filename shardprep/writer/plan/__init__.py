"""Decide split, order and shard of every item before an image is stored.

A plan is a function of items, options and seed, so the bytes of a build depend on nothing else.
"""
