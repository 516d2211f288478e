"""The catalog: members and tables to labelled items, in splits and groups.

Only names and tables are read here, never pixels. The same members give the same items in the
same order.
"""
