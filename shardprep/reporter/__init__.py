"""Findings and pictures of a dataset, as one HTML page or in a local viewer.

`report.make_report` returns a `Report`: columns from the dataset's documents, measures from a pass
over the pixels, and ranked findings. The page, the JSON and the key lists are rendered from it.
This package never changes a dataset and uses neither the time nor the dataset's path, so equal
datasets and options give equal pages.
"""
