"""The tf.data reader. Most modules of this package import TensorFlow."""
