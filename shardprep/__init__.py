"""shardprep: raw Kaggle images in, training-ready TFRecord shards and a matching reader out.

archives of raw images → a catalog of items → a plan of shards → chunks of encoded examples, in
parallel → shards of records → a manifest; the reader needs nothing but the folder.

    source/     bytes: members of folders and archives, to any depth; downloads from Kaggle
    catalog/    what the images are: labels, splits, groups, by paths and tables
    prepare     recipe → plan; `plan` is pure and decides split, order and shard of every item
    chunk       items → framed records; what a worker does: `image`, `schema`, `example`, `tfrecord`
    engine/     who writes the shards, and on what
    build       encode, commit shard by shard, publish; `begin`, `shard`, `complete`, `finish`
    outline     a plan without its items: with it and the parts of all shards a build can be ended
    place       where a dataset is being built: `storage/` is disks and object storage
    manifest    what a dataset folder holds; `items` is the table of every input
    commands/   a file a command
    report/     what people look at
    reader/     the tf.data reader, the only importer of TensorFlow

Three rules hold it together: a bad image is a value and a broken run is an exception; a shard
under its final name is complete; equal recipes give equal bytes.
"""

from importlib.metadata import version

__version__ = version("shardprep")
