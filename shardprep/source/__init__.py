"""Where bytes come from: folders, archives in archives, Kaggle; members in, their bytes out."""
