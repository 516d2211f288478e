"""What the images of a source are: their labels, splits and groups, by paths and tables."""
