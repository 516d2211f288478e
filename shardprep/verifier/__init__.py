"""Verification: whether a dataset is what its manifest says, or of a source; and the repair."""
