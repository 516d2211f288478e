"""Diagnosis of an input pipeline: where the time of a batch goes, and what would change that."""
