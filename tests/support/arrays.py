"""Files of arrays, written by their libraries."""

import io
import json
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Array = NDArray[Any]


def npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def hdf5(arrays: dict[str, Any], **options: Any) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array, **options)
    return out.getvalue()


def parquet(columns: dict[str, Any], metadata: Any = None, **options: Any) -> bytes:
    table = pa.table(columns)
    if metadata is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()
