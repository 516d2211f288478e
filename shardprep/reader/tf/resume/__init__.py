"""Iterators whose place can be saved: state, checkpoint, Keras callback."""
