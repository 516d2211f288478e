"""`Dataset.loader`: batches as torch tensors, also transformed, and on a device."""

from __future__ import annotations

from shardprep.errors import DatasetError

try:
    import torch  # noqa: F401 - the modules of this package need it
except ModuleNotFoundError as error:
    what = "needs torch, which is not installed"
    raise DatasetError("Dataset.loader", what, "install torch") from error
