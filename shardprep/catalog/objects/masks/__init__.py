"""Masks that are image files: found, recognised and read."""
