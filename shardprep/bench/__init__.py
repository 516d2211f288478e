"""How fast the shards of a dataset are read, by this package and by others."""
