"""From a recipe to a dataset: plan, chunks, shards, and the states of a build.

`build` and `repack` give the images and `run` makes the dataset of them; `source_plan` decides
split, order and shard of every item before anything is encoded; `chunk_encoder` makes its record;
`workspace` owns what lies on the disk or in object storage; `engine` runs the chunks. Equal recipes
give equal bytes, whatever engine runs them and wherever a run was interrupted.
"""
