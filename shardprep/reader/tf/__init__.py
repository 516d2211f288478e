"""The tf.data reader; TensorFlow is imported in this room."""
