"""A small copy of a competition: its files, the command for it, and what must be stored.

Each copy has the names, columns and types of the real data page, a row without a file, an empty
cell, and an id that is there twice.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[Any]
Members = dict[str, bytes]
Values = dict[str, dict[str, Any]]
"""Key → feature → values of its record; classes as names, images and masks as arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    slug: str
    special: str
    members: Callable[[], Members]
    flags: str
    stored: str
    expected: Callable[[Members], Values]
    """Reads the files independently. These keys, and no others, have a record."""
    small: Mapping[str, str] = field(default_factory=dict)
    """Text of the flags → its replacement for the small copy."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of skipped members."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason → number of objects that are not stored."""
    rows_without_image: int = 0
    proposal: str = ""
    """The flags that `init` and the notes of a build propose."""
    missing: str = ""
    """The part of the target that is not stored."""


@dataclass(frozen=True, slots=True)
class Outside:
    slug: str
    special: str
    reason: str


def table(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def rows_of(members: Members, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(members[name].decode())))


def rgb(data: bytes) -> Array:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def f32(text: str) -> float:
    return float(np.float32(text)) if text else float("nan")


def windowed(values: Array, center: float, width: float, white: int) -> Array:
    """Return grey levels by the linear window of DICOM (PS3.3, C.11.2.1.2)."""
    low = center - 0.5 - (width - 1) / 2
    return np.clip(np.rint((values - low) / (width - 1) * white), 0, white)
