"""Payloads of records to NumPy arrays: images, crops, targets, boxes and masks.

`features` decodes an example by the schema; the other modules decode parts of it.
"""
