"""A module for each annotation format, which reads boxes, masks and class names from documents."""
