"""The pass over stored pixels, and the pictures that a report shows."""
