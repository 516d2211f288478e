"""Outlines become the masks that COCO's own code makes of them, or a fault with its reason."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from shardprep.image.annotation_types import Counts, Polygons, RunOrder, Runs
from shardprep.image.masks import MaskError
from shardprep.image.rasterize import outline_mask
from tests.support.examples import examples

Mask = NDArray[np.uint8]

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # of pycocotools

SIDES = st.integers(1, 40)
SQUARE = np.array([[2.0, 2], [30, 2], [30, 20], [2, 20]])
MANY_CORNERS = np.random.default_rng(0).uniform(0, 1, (50_000, 2))


# --- helpers ------------------------------------------------------------------------------------


def by_coco(segmentation: Any, size: tuple[int, int], *, crowd: bool = False) -> Mask:
    """Return what COCO's API makes of the segmentation of an annotation."""
    height, width = size
    api = COCO()
    api.imgs = {1: {"id": 1, "height": height, "width": width}}
    annotation = {"image_id": 1, "segmentation": segmentation, "iscrowd": int(crowd)}
    return api.annToMask(annotation)  # type: ignore[no-any-return]


def counts_of(mask: Mask) -> tuple[int, ...]:
    counts = [0]
    value = 0
    for pixel in mask.T.ravel().tolist():
        if pixel != value:
            counts.append(0)
            value = pixel
        counts[-1] += 1
    return tuple(counts)


def runs_of(mask: Mask, order: RunOrder) -> Runs:
    flat = [0, *(mask if order == "row" else mask.T).ravel().tolist(), 0]
    starts = [i for i in range(1, len(flat)) if flat[i] and not flat[i - 1]]
    stops = [i for i in range(1, len(flat)) if flat[i - 1] and not flat[i]]
    words, end = [], 1
    for start, stop in zip(starts, stops, strict=True):
        words += [start - end if order == "relative" else start, stop - start]
        end = stop
    return Runs(" ".join(map(str, words)), order)


def random_mask(seed: int, height: int, width: int) -> Mask:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 2, (-(-height // 3), -(-width // 3)), np.uint8)
    return np.kron(coarse, np.ones((3, 3), np.uint8))[:height, :width]


def fault(outline: Polygons | Runs | Counts, size: tuple[int, int] = (20, 30)) -> str:
    with pytest.raises(MaskError) as found:
        outline_mask(outline, size)
    reason = str(found.value)
    assert reason
    assert len(reason.splitlines()) == 1
    return reason


# --- the same pixels ----------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), height=SIDES, width=SIDES)
def test_polygons_are_those_of_coco(seed: int, height: int, width: int) -> None:
    """Several parts, corners outside, edges that cross, fractions of pixels."""
    rng = np.random.default_rng(seed)
    rings = [
        rng.uniform(-0.3, 1.3, (int(rng.integers(3, 9)), 2)) * (width, height)
        for _ in range(int(rng.integers(1, 4)))
    ]
    rings = [np.round(ring, int(rng.integers(0, 3))) for ring in rings]
    mask = outline_mask(Polygons(tuple(rings)), (height, width))
    assert np.array_equal(mask, by_coco([r.ravel().tolist() for r in rings], (height, width)))


@given(seed=st.integers(0, 1000), height=SIDES, width=SIDES, crowd=st.booleans())
def test_counts_are_those_of_coco(seed: int, height: int, width: int, crowd: bool) -> None:  # noqa: FBT001
    mask = random_mask(seed, height, width)
    size = (height, width)
    compressed = coco_mask.encode(np.asfortranarray(mask))["counts"].decode()
    counts = counts_of(mask)
    expected = by_coco({"size": list(size), "counts": list(counts)}, size, crowd=crowd)
    assert np.array_equal(expected, mask)
    assert np.array_equal(outline_mask(Counts(counts, size), size), mask)
    assert np.array_equal(outline_mask(Counts(compressed, size), size), mask)


def test_compressed_counts_hold_large_numbers() -> None:
    """Negative differences and several characters a number."""
    size = (1000, 3000)
    mask = np.zeros(size, np.uint8)
    mask[3:990, 7:2900] = 1
    mask[500:502, 100:2000] = 0
    text = coco_mask.encode(np.asfortranarray(mask))["counts"].decode()
    assert np.array_equal(outline_mask(Counts(text, size), size), mask)


@given(
    seed=st.integers(0, 1000), height=SIDES, width=SIDES,
    order=st.sampled_from(["column", "row", "relative"]),
)  # fmt: skip
def test_runs_come_back(seed: int, height: int, width: int, order: RunOrder) -> None:
    mask = random_mask(seed, height, width)
    assert np.array_equal(outline_mask(runs_of(mask, order), (height, width)), mask)


def test_published_run_lengths() -> None:
    """'1 3 10 5' is pixels 1, 2, 3, 10 to 14, as the pages of Kaggle's competitions say."""
    pixels = [0, 1, 2, 9, 10, 11, 12, 13]
    by_column = outline_mask(Runs("1 3 10 5", "column"), (4, 5))
    assert np.flatnonzero(by_column.T).tolist() == pixels
    by_row = outline_mask(Runs("1 3 10 5", "row"), (4, 5))
    assert np.flatnonzero(by_row).tolist() == pixels
    # SIIM-ACR's own decoder adds each start to where the run before ended.
    relative = outline_mask(Runs("1 3 5 4", "relative"), (4, 5))
    assert np.flatnonzero(relative.T).tolist() == [1, 2, 3, 9, 10, 11, 12]


def test_runs_that_overlap_are_their_union() -> None:
    mask = outline_mask(Runs("2 4 3 5\n 20 1 ", "column"), (4, 5))
    assert np.flatnonzero(mask.T).tolist() == [1, 2, 3, 4, 5, 6, 19]


def test_an_outline_may_be_empty() -> None:
    """No run, and parts with less than three corners, which have no area."""
    two = np.array([[1.0, 2.0], [9.0, 12.0]])
    for outline in (Runs("", "row"), Counts((600,), (20, 30)), Polygons(()), Polygons((two,))):
        mask = outline_mask(outline, (20, 30))
        assert mask.shape == (20, 30)
        assert not mask.any()


# --- hostile outlines ---------------------------------------------------------------------------

HOSTILE: dict[str, tuple[Polygons | Runs | Counts, str]] = {
    "NaN": (Polygons((np.array([[0, 0], [np.nan, 5], [5, 5]]),)), "not a number"),
    "infinity": (Polygons((np.array([[0, 0], [np.inf, 5], [5, 5]]),)), "not a number"),
    "1e9": (Polygons((np.array([[0, 0], [1e9, 5], [5, 5]]),)), "10 times"),
    "odd polygon": (Polygons((np.zeros(7),)), "pairs"),
    "long edges": (Polygons((MANY_CORNERS * (300, 200),)), "edges"),
    "counts below": (Counts((100, 200), (20, 30)), "300 of 600"),
    "counts above": (Counts((100, 501), (20, 30)), "601 of 600"),
    "negative counts": (Counts((-1, 601), (20, 30)), "below 0"),
    "huge counts": (Counts((2**70, 1), (20, 30)), "whole numbers"),
    "overflowing counts": (Counts((2**62, 2**62, 600), (20, 30)), "above"),
    "no counts": (Counts((), (20, 30)), "0 of 600"),
    "no text": (Counts("", (20, 30)), "0 of 600"),
    "100,000 zero counts": (Counts((0,) * 100_000, (20, 30)), "more run lengths"),
    "size 0": (Counts((), (0, 10)), "10x0 pixels"),
    "size 100000": (Counts((10**10,), (100_000, 100_000)), "100000x100000"),
    "sides swapped": (Counts((600,), (30, 20)), "20x30 pixels"),
    "text that ends early": (Counts("a", (20, 30)), "end early"),
    "text of other characters": (Counts("0 é", (20, 30)), "whole numbers"),
    "text below its characters": (Counts("!!!", (20, 30)), "invalid characters"),
    "a count of many characters": (Counts("o" * 30 + "0", (20, 30)), "beyond"),
    "a text without end": (Counts("0" * 100_000, (20, 30)), "more run lengths"),
    "run from 0": (Runs("0 3", "column"), "starts at 0"),
    "run of 0": (Runs("5 0", "column"), "no pixels"),
    "run past the end": (Runs("590 12", "column"), "601 of 600"),
    "relative run past the end": (Runs("300 100 300 1", "relative"), "701 of 600"),
    "odd runs": (Runs("1 2 3", "row"), "not pairs"),
    "negative run": (Runs("-1 5", "row"), "whole numbers"),
    "words": (Runs("none", "row"), "whole numbers"),
    "fractions": (Runs("1.5 2", "row"), "whole numbers"),
    "huge runs": (Runs("1 99999999999999999999", "row"), "whole numbers"),
    "large runs": (Runs("1 999999999999 " * 200, "relative"), "up to"),
    "many runs": (Runs("1 1 " * 100_000, "row"), "more run lengths"),
    "runs over and over": (Runs("1 600 " * 10, "row"), "twice"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_outline_is_a_fault(name: str) -> None:
    outline, words = HOSTILE[name]
    assert words in fault(outline)


@pytest.mark.thorough
@pytest.mark.parametrize("outline", [
    Polygons((MANY_CORNERS[:3000] * (400, 300),)),
    Polygons((SQUARE * 9,) * 1000),
    Counts((0,) + (1,) * (3000 * 4000), (3000, 4000)),
    Runs("1 3 " * (3000 * 2000), "column"),
])  # fmt: skip
def test_the_worst_that_passes_takes_seconds_and_little_memory(
    outline: Polygons | Runs | Counts,
) -> None:
    """Memory of pycocotools is not seen here: its own bound is that of the edges."""
    size = (3000, 4000)
    start = time.process_time()
    tracemalloc.start()
    try:
        outline_mask(outline, size)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 300 << 20
    assert time.process_time() - start < 20


def test_the_longest_edges_take_little_memory() -> None:
    """In a process of its own, whose peak the system tells."""
    code = """
import resource
import numpy as np
from shardprep.image.annotation_types import Polygons
from shardprep.image.rasterize import outline_mask
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ring = np.tile([[0.0, 0.0], [3999.0, 2999.0]], (124, 1))
outline_mask(Polygons((ring,)), (3000, 4000))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(done.stdout) < 300


@examples(200)
@given(text=st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=60))
def test_any_text_is_a_mask_or_a_fault(text: str) -> None:
    outlines: list[Runs | Counts] = [
        Counts(text, (5, 4)),
        Runs(text, "row"),
        Runs(text, "relative"),
    ]
    for outline in outlines:
        try:
            mask = outline_mask(outline, (5, 4))
        except MaskError:
            continue
        assert mask.shape == (5, 4)
        assert mask.max() <= 1
