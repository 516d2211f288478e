"""The findings of a report, about copies, labels, objects and image quality."""
