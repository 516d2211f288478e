"""Where images come from: archives and folders in, a catalog of labelled items out."""
