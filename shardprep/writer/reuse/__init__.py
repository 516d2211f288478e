"""Stored images of finished datasets, copied into a new one by reuse and by repack."""
