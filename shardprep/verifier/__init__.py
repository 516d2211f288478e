"""Verification: whether a dataset is what its manifest says, and the repair of what is not."""
