"""Figures of reading by cores, and of training on a GPU, for the photos of a user.

The program starts a process for each figure, so that no figure inherits threads, memory or CUDA
state from another one. Modules of figures are imported in these processes only.
"""
