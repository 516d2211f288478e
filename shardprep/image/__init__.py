"""Convert images, boxes and masks to their stored form; also recognize, compare and draw images.

Functions take bytes, arrays or open files, and open no file by name. A change of the stored bytes
needs a new version of the image code (see `writer/plan/fingerprint`).
"""
