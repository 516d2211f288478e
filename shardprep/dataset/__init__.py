"""The dataset format: documents, records, indexes and tables. Only this package defines it.

`open_dataset` opens a local or remote dataset and returns an `OpenDataset`, which other packages
use. The writer and the readers share this code, so a change here can change the format. Datasets of
older versions must stay readable. `card` shows results in terminals and notebooks.
"""
