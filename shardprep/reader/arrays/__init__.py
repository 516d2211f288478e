"""The reader without TensorFlow: `Dataset`, its batches, and `collate` for torch."""
