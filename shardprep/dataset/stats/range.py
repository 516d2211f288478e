"""Smallest, median and largest of a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest, median and largest of a number."""

    smallest: float
    median: float
    largest: float


def range_of(values: NDArray[Any]) -> Range | None:
    """Return the range of numbers, None where there are none; the median is one of them."""
    if not len(values):
        return None
    median = np.quantile(values, 0.5, method="inverted_cdf")
    return Range(values.min().item(), median.item(), values.max().item())
