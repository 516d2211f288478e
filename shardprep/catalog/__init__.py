"""The catalog: turn members and tables of a source into labelled items with splits and groups.

Images are not decoded here; some mask files are decoded to find out what their values mean. The
same members and options give the same items in the same order.
"""
