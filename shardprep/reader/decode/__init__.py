"""Decode payloads of records to NumPy arrays: images, crops, targets, boxes and masks.

`features` decodes an example by the schema. The other modules handle parts of the example.
"""
