"""Verify that a dataset is what its manifest says, or what a source contains; repair it."""
