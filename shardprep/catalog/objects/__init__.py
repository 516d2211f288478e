"""Annotations: documents, tables and mask files to the objects of each image.

Documents have a maximum size or are parsed as a stream. An invalid object is counted by reason, an
invalid document of one image becomes the fault of that image. Other problems are errors.
"""
