"""Speeds as ratios against named alternatives, in one run: `make bench`."""
