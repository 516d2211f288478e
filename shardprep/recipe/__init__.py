"""The recipe: the options of a build, their checks and rules, and the file `shardprep.toml`."""
