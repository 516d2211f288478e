"""Copy stored images and records of finished datasets, for `build --reuse` and `repack`."""
