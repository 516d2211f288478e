"""The pipelines that `shardprep bench` compares, and their traces."""
