"""Export a dataset to layouts of other libraries: WebDataset, Parquet, folders, COCO and YOLO.

JPEG and PNG images are copied byte for byte. Raw pixels become PNG: no layout supports raw pixels.
`export` reads the shards and manages the working folder. `samples` parses records. `cells` makes
columns, annotations and file names. The other modules write the layouts and their descriptions.
"""
