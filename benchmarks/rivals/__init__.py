"""What people write today for the same job, written as they write it."""
