"""Findings and pictures of a dataset, as one HTML page or in a local viewer.

`report.make_report` returns a `Report`: columns from the dataset's documents, measures from a pass
over the pixels, and ranked findings. Equal datasets and options give equal HTML pages, because they
contain neither the time nor the dataset's path. This package never changes a dataset.
"""
