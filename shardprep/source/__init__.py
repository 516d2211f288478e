"""Sources (folders, archives, object storage, Kaggle): list their members and read their bytes.

The content of a source is untrusted, so names, sizes and counts are checked here.
"""
