"""Convert images, boxes and masks to their stored form; also recognize, hash and draw images.

All functions take bytes or arrays and return them; no file is opened here. A change of the stored
bytes needs a new version of the image code (see `writer/plan/fingerprint`).
"""
