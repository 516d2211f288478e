"""Programs for the same job as people write them today."""
