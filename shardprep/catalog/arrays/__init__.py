"""Files of arrays and rows (Parquet, HDF5, NumPy, IDX, CSV of pixels, TFRecord) as sources.

Encoded images keep their bytes. Numbers are written as Netpbm images to one file of the work
folder. Later steps read both like any other image file.
"""
