"""Measure speeds as ratios to named alternatives in the same run: `make bench`."""
