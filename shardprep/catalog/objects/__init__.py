"""Annotations: documents, tables and mask files to the objects of each image.

The size of a document is limited before it is parsed. A bad object is counted with a reason, a bad
document of one image is a fault of that image, and other faults are one error with file and place.
"""
