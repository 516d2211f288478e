"""Reading without TensorFlow: records by number, decoded into numpy arrays."""
