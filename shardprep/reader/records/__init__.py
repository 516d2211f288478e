"""Record numbers to record bytes, on a disk or in object storage."""
