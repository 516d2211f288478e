"""From names and table cells to the label of an image."""
