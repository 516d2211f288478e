"""The format on disk: documents, records, indexes and tables. No other room knows it.

`open_dataset` opens a dataset, local or remote, as one value for all other rooms. The writer and
the readers share this room, so a change here is a change of the format: datasets of older versions
must stay readable. `card` shows results of this room and of the rooms above it.
"""
