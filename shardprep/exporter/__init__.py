"""Dataset → the layouts of other libraries: WebDataset, Parquet, folders of files, TFRecords of TF.

A stored image goes over byte by byte; only raw pixels are encoded, as PNG, for no other layout
knows them. `export` goes through the shards, and `output` owns the folder: aside, resumable, then
renamed. `records` reads a shard and `samples` its Examples, `names` makes file names of keys, and
each layout is a module that writes one shard at a time.
"""
