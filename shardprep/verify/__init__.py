"""Is a dataset folder what its manifest says? Reads everything, changes nothing."""
