"""shardprep: raw Kaggle images in, training-ready TFRecord shards and a matching reader out.

archives of raw images → a catalog of items → a plan of shards → chunks of encoded examples, in
parallel → shards of records → a manifest; the reader needs nothing but the folder.

    cli/        the commands, and what they print
    verifier/   is a dataset what its manifest says; repair
    reporter/   findings and pictures of a dataset, as one page
    exporter/   dataset → the layouts of other libraries
    benchmark/  the pipelines that `shardprep bench` compares
    writer/     recipe → dataset: plan, chunk, shard, workspace, engine
    catalog/    members and tables → labelled items
    reader/     dataset → batches, with TensorFlow (`tf/`) and without (`arrays/`)
    recipe/     every option of a build once
    source/     folders, archives, addresses, Kaggle → members
    dataset/    the format on disk
    image/      bytes → pixels → bytes
    storage/    files and objects: complete or absent
    errors, machine, profiling

A room imports only rooms below it in this list. Three rules hold them together: a bad image is a
value and a broken run is an exception; a shard under its final name is complete; equal recipes give
equal bytes. docs/architecture.md shows the ways and states.
"""

from importlib.metadata import version

__version__ = version("shardprep")
