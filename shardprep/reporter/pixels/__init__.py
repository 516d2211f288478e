"""The pass over stored pixels, and the pictures of a report."""
