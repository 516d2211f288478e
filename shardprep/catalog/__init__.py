"""The catalog: turn members and tables of a source into labelled items with splits and groups.

Only samples of pictures and masks are decoded, to recognise their roles. The same members and
options give the same items in the same order.
"""
