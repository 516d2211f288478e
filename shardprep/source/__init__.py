"""Folders, archives, addresses and Kaggle: where members are, and their bytes.

Whatever lies in a source is hostile until it is read: names, sizes and counts are bounded here.
"""
