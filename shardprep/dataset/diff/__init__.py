"""Differences between two datasets, or between a dataset and a source."""
