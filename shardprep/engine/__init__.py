"""Who runs the chunks. Every engine takes tasks and yields their results in the same order."""
