"""Public layouts of data sets, and what a build without flags makes of them."""
