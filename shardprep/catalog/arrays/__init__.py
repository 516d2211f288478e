"""Files of arrays and rows (Parquet, HDF5, NumPy, IDX, CSV of pixels, TFRecord) as sources.

Rows that hold encoded images become plain extents. Numbers become Netpbm images in one file of the
work folder, so that everything after the listing treats them like any other image file.
"""
