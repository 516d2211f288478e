"""Verify a dataset against its manifest, compare it with a source, and repair it."""
