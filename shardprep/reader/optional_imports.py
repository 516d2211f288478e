"""Modules that come with an extra of the package, and the error that says which extra."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = {"tensorflow": "TensorFlow", "keras": "Keras"}


@contextmanager
def needing_tensorflow(where: str) -> Iterator[None]:
    """Turn a failed import of TensorFlow, or of its Keras, into an error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _NAMES:
            raise
        raise DatasetError(
            where,
            f"needs {_NAMES[error.name]}, which is not installed",
            "pip install 'shardprep[reader]'",
        ) from error
