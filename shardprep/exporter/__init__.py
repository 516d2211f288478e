"""Export a dataset to layouts of other libraries: WebDataset, Parquet, folders, COCO and YOLO.

Stored images are copied byte for byte; only raw pixels are encoded, as PNG, because no other layout
supports them. `export` goes through the shards and manages the working folder, `samples` parses
records, `cells` makes their columns, annotations and file names, the others write layouts.
"""
