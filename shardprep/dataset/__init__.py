"""The format on disk: documents, records, indexes and tables. No other room defines a part of it.

`open_dataset` opens a local or remote dataset and returns an `OpenDataset`, which other rooms use.
The writer and the readers share this room, so a change here is a change of the format. Datasets of
older versions must stay readable. `card` shows results of this room and of the rooms above it.
"""
