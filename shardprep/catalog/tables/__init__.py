"""Tables and documents of a source, and the rows that belong to an image."""
