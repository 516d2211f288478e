"""The pipelines that `shardprep bench` compares, and their timelines.

`run` starts a process for each pipeline of `pipelines`; `measure` and `trace` are these processes.
"""
