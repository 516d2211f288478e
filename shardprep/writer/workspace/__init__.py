"""The states of a build, and every transition between them."""
