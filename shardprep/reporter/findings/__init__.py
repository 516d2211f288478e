"""What a report finds: copies, quality, imbalance, objects."""
