"""The content of a file of arrays: columns of images, and columns of cells (texts or numbers)."""

from __future__ import annotations

import contextlib
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardprep.catalog.arrays.layout import Layout
from shardprep.errors import SourceError, shown
from shardprep.source.byte_range import UNPACK_ERRORS, MemberError, PlainExtent
from shardprep.source.string_column import Texts
from shardprep.source.unpack import buffered
from shardprep.storage.url import is_url

BLOCK_BYTES = 8 << 20
UNKNOWN = -1
"""Number of rows of a column if the file does not state it and has not been read."""
_SHOWN_ERROR = 140
_DAMAGE = (
    *UNPACK_ERRORS, MemberError, pa.ArrowException, KeyError, TypeError, IndexError, RuntimeError,
    SyntaxError, tokenize.TokenError, AttributeError, AssertionError, ArithmeticError,
)  # fmt: skip
_EXTRAS = {"h5py": "hdf5", "pydicom": "dicom", "tifffile": "tiff", "zarr": "zarr"}
"""Module → extra of shardprep that installs it."""
_NO_CODEC = re.compile(r"requires the '(\w+)' package|filter .* is not registered|lib/plugin")
"""Matches errors for data whose codec is not installed; the group is its package, if known."""
Block = Any
"""Some rows of a column: an Arrow array of encoded images, an array of numbers with the rows first,
or a list of encoded images and arrays of single images. None means a row without an image."""


@dataclass(frozen=True, slots=True)
class ImageColumn:
    """A column, array or feature that holds images."""

    shape: tuple[int, ...]
    """Shape of an array of numbers; (number of rows,) for encoded images."""
    dtype: np.dtype[Any] | None
    """Type of the numbers; None if each row is an encoded image."""
    blocks: Callable[[int], Iterator[Block]] = lambda _: iter(())
    """Yields all rows in blocks, unless they are `placed`. The argument is the axis of the rows, or
    −1 for a single image."""
    has_rows: bool = True
    """Whether the first axis counts images for sure."""
    names: Sequence[str] = ()
    """Names of the rows; () to number them."""
    layouts: tuple[Layout, ...] = ()
    """Layouts that the format states; () to derive them from the shape."""
    is_truncated: bool = False
    """Whether the file is shorter than its header states, which makes reading the rows an error."""
    spacing: tuple[float, ...] = ()
    """Distance between neighbours along each axis, in the unit of the file; () if unknown."""
    directions: tuple[str, ...] = ()
    """Direction of each spatial axis, a letter of LRPAIS (left, right, posterior, …), and a blank
    for each other axis; () if unknown."""
    placed: tuple[str, NDArray[np.int64], NDArray[np.int64]] | None = None
    """File, byte offsets and byte sizes of encoded images; None if the images must be copied."""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """The columns of one file."""

    images: Mapping[str, ImageColumn]
    cells: Mapping[str, int] = field(default_factory=dict)
    """Name of each column of texts or numbers → number of rows."""
    read_cells: Callable[[Sequence[str]], list[Texts]] = lambda _: []
    left_out: tuple[str, ...] = ()
    """Columns that are neither images nor cells, each with the reason."""
    matrix: ImageColumn | None = None
    """All columns of numbers as one image, if the file is a table."""

    def check_sample(self, name: str) -> None:
        """Raise DamagedFileError if no column has an image: all are empty or were left out."""
        shapes = [one.shape for one in self.images.values()]
        if all(0 in one for one in shapes) and (shapes or self.left_out):
            why = f"its shape is {shapes[0]}" if shapes else self.left_out[0]
            raise DamagedFileError(name, f"has no image: {why}", "write the file again with images")


class DamagedFileError(SourceError):
    """A file of arrays cannot be read. The caller rejects it if it is a single sample."""


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """Convert exceptions of the libraries that read array files to a SourceError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries warn of odd metadata
            yield
    except ModuleNotFoundError as error:
        hint = f"pip install 'shardprep[{_EXTRAS.get(error.name or '', 'test')}]'"
        raise SourceError(name, f"needs {error.name}, which is not installed", hint) from error
    except _DAMAGE as error:
        why = shown(" ".join(str(error).split()) or type(error).__name__, _SHOWN_ERROR)
        what = f"cannot be read ({why})"
        if codec := _NO_CODEC.search(str(error)):
            raise DamagedFileError(name, what, f"pip install {codec[1] or 'hdf5plugin'}") from error
        raise DamagedFileError(name, what, "download or write it again") from error


@contextlib.contextmanager
def opened_file(place: PlainExtent) -> Iterator[str | BinaryIO]:
    """Yield the path of a local file, or a stream of a remote file or of a part of a file."""
    if place.offset == 0 and not is_url(place.file):
        yield place.file
        return
    with buffered(place) as stream:
        yield stream


def rows_at_once(row_bytes: int) -> int:
    """Return the number of rows in a block of about `BLOCK_BYTES`."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def number_texts(values: NDArray[Any]) -> Texts:
    """Return numbers, booleans or byte strings of one axis as texts; NaN becomes ""."""
    if values.dtype.kind == "b":
        return Texts.of("true" if one else "false" for one in values.tolist())
    if values.dtype.kind in "OSV":
        return Texts.of(
            one if isinstance(one, str) else bytes(one).rstrip(b"\0").decode(errors="replace")
            for one in values.tolist()
        )
    return Texts.of("" if one == "nan" else one for one in values.astype(str).tolist())
