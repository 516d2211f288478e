"""From the bytes of an image to the stored bytes, with its boxes and masks.

All functions take values and return values; no file is opened here. A change of the stored bytes
needs a new version of the image code (see `writer/plan/fingerprint`).
"""
