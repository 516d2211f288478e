"""Tables and documents beside the images, and the rows that belong to an image."""
