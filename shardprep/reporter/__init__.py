"""Findings and pictures of a dataset, as one HTML page or in a local viewer.

`report.make_report` returns a `Report`: columns from the dataset's documents, measures from a pass
over the pixels, and ranked findings. Equal datasets and options give equal HTML pages: a page has
neither the time nor the path of the dataset. This package never changes a dataset.
"""
