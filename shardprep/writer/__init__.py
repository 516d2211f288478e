"""Write a dataset from a recipe: plan, chunks, shards, and the states of a build.

`build` and `repack` provide the images, and `run` makes a dataset of them: begin, plan, write the
shards, publish. `plan` decides split, order and shard of every item before anything is encoded.
`chunk_encoder` makes the records, `engine` runs the work in processes, and `workspace` owns the
files. Equal inputs, options and versions give equal bytes, with any engine or interruption.
"""
