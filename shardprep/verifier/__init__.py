"""Verify a dataset against its manifest or against a source, and repair it."""
