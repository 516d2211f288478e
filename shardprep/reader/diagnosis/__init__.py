"""`reader.diagnose` and `StallMeter`: what limits the speed of training, and how to raise it."""
