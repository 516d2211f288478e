"""Decoded images kept in memory or in a folder between epochs."""
