"""List the members of a source (folder, archive, object storage, Kaggle), and read their bytes.

The content of a source is untrusted, so names, sizes and counts are checked here.
"""
