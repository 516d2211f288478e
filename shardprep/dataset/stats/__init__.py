"""Statistics of a dataset: objects, masks, sizes."""
