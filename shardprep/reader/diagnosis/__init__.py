"""`reader.diagnose` and `StallMeter`: what bounds training, and which changes help."""
