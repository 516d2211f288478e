"""The pixels: bytes of an image to pixels, to the bytes that are stored, its objects with them.

Everything here takes values and returns values; no file is touched. The stored bytes are part of
what a dataset promises: a change in them needs a new version of the image code (`process`).
"""
