"""Dataset → the layouts of other libraries: WebDataset, Parquet, folders of files, TFRecords of TF.

Stored images are copied byte for byte; only raw pixels are encoded, as PNG, because no other layout
supports them. `export` goes through the shards and manages the working folder, `samples` parses the
records of a shard, `file_names` makes file names of keys, and each other module writes layouts.
"""
