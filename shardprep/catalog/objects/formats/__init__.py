"""A module for each annotation format: document to boxes, masks and class names."""
