"""The catalog: turn members and tables of a source into labelled items with splits and groups.

Only a few pictures and masks are decoded, to find out what they are. The same members and options
give the same items in the same order.
"""
