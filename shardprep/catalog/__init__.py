"""The catalog: from members and tables of a source to labelled items with splits and groups.

Images are not decoded here. Some mask files are, to find out what their values mean. The same
members and options give the same items in the same order.
"""
