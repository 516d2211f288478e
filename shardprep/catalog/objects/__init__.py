"""Annotations: documents, tables and mask files to the objects of each image.

Documents of strangers are bounded before they are parsed; what is bad in one is a count with a
reason, a fault of one image, or one error with file and place.
"""
