"""The order of an epoch, and the place of an iterator in it."""
