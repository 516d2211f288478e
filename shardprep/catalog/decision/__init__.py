"""Decide how to read a source whose recipe does not say it: splits, labels, masks and pairs."""
