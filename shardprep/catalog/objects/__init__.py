"""Annotations: read the objects of each image from documents, tables and mask files.

Documents have a maximum size or are parsed as a stream. An invalid object is dropped and counted by
reason. If the document of one image is invalid, the image is rejected (`Annotation.fault`). Other
problems are errors.
"""
