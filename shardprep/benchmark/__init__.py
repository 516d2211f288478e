"""`shardprep bench`: compares how fast several input pipelines read the same dataset.

`run` starts a process for each pipeline in `pipelines`, and contains the code of that process.
"""
