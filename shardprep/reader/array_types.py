"""Names of the NumPy array types that the reader's signatures use."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Pixels: TypeAlias = Bytes
"""uint8[height, width, 3] of an image, or uint8[batch, height, width, 3]."""
Columns: TypeAlias = dict[str, Array]
"""Feature → array of its values in a batch, one row per example."""
