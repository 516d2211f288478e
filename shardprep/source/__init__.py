"""Folders, archives, addresses and Kaggle: list the members and read their bytes.

The content of a source is untrusted. Names, sizes and counts are limited here.
"""
