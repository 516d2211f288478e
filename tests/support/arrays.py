"""Files of arrays, written by their libraries, and the pixels of images."""

import io
import json
from typing import Any

import h5py
import nibabel
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
from numpy.typing import NDArray
from PIL import Image

from tests.support.builders import encoded

Array = NDArray[Any]


def npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def nifti(array: Array, kind: Any = nibabel.Nifti1Image) -> bytes:
    """Return a NIfTI file of an array x, y, z, …, without directions."""
    data: bytes = kind(array, np.eye(4)).to_bytes()
    return data


def tiff(pages: Array, **options: Any) -> bytes:
    """Return a TIFF of grey pages, which tifffile writes as one series."""
    out = io.BytesIO()
    tifffile.imwrite(out, pages, photometric="minisblack", **options)
    return out.getvalue()


def paged_tiff(pages: Array, **options: Any) -> bytes:
    """Return a TIFF with a directory for each page, which Pillow writes."""
    first, *others = map(Image.fromarray, pages)
    return encoded(first, "TIFF", save_all=True, append_images=others, **options)


def decoded(data: bytes) -> Array:
    """Return the pixels of an encoded image."""
    with Image.open(io.BytesIO(data)) as image:
        return np.array(image)


def hdf5(arrays: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return out.getvalue()


def parquet(columns: Any, metadata: Any = None, **options: Any) -> bytes:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()
