"""What people look at: progress while a build runs, its summary, and `inspect`."""
