"""Behaviours that are promised, one file for each module or promise."""
