"""Where bytes lie, on a disk or in object storage: folders of files that are complete or absent."""
