"""Verify a dataset against its manifest, and repair it."""
