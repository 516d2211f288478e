"""Arrays and rows as sources: Parquet, HDF5, zarr, NumPy, IDX, NIfTI, TFRecord, CSV of pixels.

Encoded images keep their bytes. Numbers are written as Netpbm images to one file of the work
folder. Later steps read both like any other image file.
"""
