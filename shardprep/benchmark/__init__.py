"""`shardprep bench`: compares how fast several input pipelines read the same dataset.

`run` starts a process for each pipeline of `pipelines`, and is what that process runs.
"""
