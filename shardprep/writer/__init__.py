"""Write a dataset from a recipe: plan, chunks, shards, and the states of a build.

`build` and `repack` provide the images, and `run` makes the dataset of them: begin, plan, make,
publish. `plan` decides split, order and shard of every item before anything is encoded,
`chunk_encoder` makes the records, `engine` runs the work in processes, and `workspace` owns the
files. Equal recipes give equal bytes, with any engine and after any interruption.
"""
