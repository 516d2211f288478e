"""The reader without TensorFlow: `Dataset`, its batches, and their use with torch."""
