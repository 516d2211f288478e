"""The tf.data reader of a dataset folder. TensorFlow comes with the first `load`."""
