"""Outlines give the masks of COCO's own code, or an error with its reason."""

import contextlib
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
from tests.image.policy import TABLES
from tests.support.examples import examples

Mask = NDArray[np.uint8]

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # of pycocotools

SIDES = st.integers(1, 40)
SQUARE = np.array([[2.0, 2], [30, 2], [30, 20], [2, 20]])
SIZE = (20, 30)
MANY_CORNERS = np.random.default_rng(0).uniform(0, 1, (50_000, 2))


def by_coco(segmentation: Any, size: tuple[int, int], *, crowd: bool = False) -> Mask:
    """Return what COCO's API makes of the segmentation of an annotation."""
    height, width = size
    api = COCO()
    api.imgs = {1: {"id": 1, "height": height, "width": width}}
    annotation = {"image_id": 1, "segmentation": segmentation, "iscrowd": int(crowd)}
    return api.annToMask(annotation)  # type: ignore[no-any-return]


def counts_of(mask: Mask) -> tuple[int, ...]:
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return tuple([0, *counts] if flat[0] else counts)


def runs_of(mask: Mask, order: RunOrder) -> Runs:
    flat = np.pad((mask if order == "row" else mask.T).ravel(), 1)
    starts, stops = (np.flatnonzero(np.diff(flat.astype(int)) == step) for step in (1, -1))
    before = np.concatenate([[0], stops[:-1]]) if order == "relative" else -1
    return Runs(" ".join(map(str, np.stack([starts - before, stops - starts], 1).flat)), order)


def random_mask(seed: int, height: int, width: int) -> Mask:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 2, (-(-height // 3), -(-width // 3)), np.uint8)
    return np.kron(coarse, np.ones((3, 3), np.uint8))[:height, :width]


# --- the same pixels ----------------------------------------------------------------------------


@given(seed=st.integers(0, 1000), height=SIDES, width=SIDES)
def test_polygons_have_the_pixels_of_coco(seed: int, height: int, width: int) -> None:
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
def test_counts_have_the_pixels_of_coco(seed: int, height: int, width: int, crowd: bool) -> None:  # noqa: FBT001
    mask = random_mask(seed, height, width)
    size = (height, width)
    compressed = coco_mask.encode(np.asfortranarray(mask))["counts"].decode()
    counts = counts_of(mask)
    expected = by_coco({"size": list(size), "counts": list(counts)}, size, crowd=crowd)
    assert np.array_equal(expected, mask)
    assert np.array_equal(outline_mask(Counts(counts, size), size), mask)
    assert np.array_equal(outline_mask(Counts(compressed, size), size), mask)


def test_compressed_counts_may_have_large_numbers_and_negative_differences() -> None:
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
def test_runs_give_the_mask_that_they_were_made_of(
    seed: int, height: int, width: int, order: RunOrder
) -> None:
    mask = random_mask(seed, height, width)
    assert np.array_equal(outline_mask(runs_of(mask, order), (height, width)), mask)


@pytest.mark.parametrize(
    ("text", "order", "pixels"),
    [
        ("1 3 10 5", "column", [0, 1, 2, 9, 10, 11, 12, 13]),  # as on the pages of Kaggle
        ("1 3 10 5", "row", [0, 1, 2, 9, 10, 11, 12, 13]),
        # SIIM-ACR's own decoder adds each start to the end of the previous run.
        ("1 3 5 4", "relative", [1, 2, 3, 9, 10, 11, 12]),
        ("2 4 3 5\n 20 1 ", "column", [1, 2, 3, 4, 5, 6, 19]),  # their union, if runs overlap
    ],
)
def test_published_run_lengths(text: str, order: RunOrder, pixels: list[int]) -> None:
    mask = outline_mask(Runs(text, order), (4, 5))
    assert np.flatnonzero(mask if order == "row" else mask.T).tolist() == pixels


def test_an_outline_may_be_empty() -> None:
    """No run, or parts with fewer than three corners, which have no area."""
    two = np.array([[1.0, 2.0], [9.0, 12.0]])
    for outline in (Runs("", "row"), Counts((600,), SIZE), Polygons(()), Polygons((two,))):
        assert np.array_equal(outline_mask(outline, SIZE), np.zeros(SIZE))


# --- hostile outlines ---------------------------------------------------------------------------

HOSTILE: list[tuple[Polygons | Runs | Counts, str]] = [
    (Polygons((MANY_CORNERS * (300, 200),)), "edges"),
    (Counts((0,) * 100_000, SIZE), "more run lengths"),
    (Counts("0" * 100_000, SIZE), "more run lengths"),
    (Runs("1 999999999999 " * 200, "relative"), "up to"),
    (Runs("1 1 " * 100_000, "row"), "more run lengths"),
]


def outline_of(row: dict[str, Any]) -> Polygons | Runs | Counts:
    if "polygons" in row:
        return Polygons(tuple(np.array(ring, np.float64) for ring in row["polygons"]))
    if "runs" in row:
        return Runs(row["runs"], row["order"])
    counts, (height, width) = row["counts"], row.get("size", SIZE)
    return Counts(counts if isinstance(counts, str) else tuple(counts), (height, width))


@pytest.mark.parametrize(
    ("outline", "says"), [*HOSTILE, *((outline_of(row), row["says"]) for row in TABLES["outlines"])]
)
def test_a_hostile_outline_is_refused(outline: Polygons | Runs | Counts, says: str) -> None:
    with pytest.raises(MaskError) as found:
        outline_mask(outline, SIZE)
    assert says in str(found.value)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("outline", [
    Polygons((MANY_CORNERS[:3000] * (400, 300),)),
    Polygons((SQUARE * 9,) * 300),
    Counts((0,) + (1,) * (750 * 1000), (750, 1000)),
    Runs("1 3 " * (750 * 500), "column"),
])  # fmt: skip
def test_the_worst_that_passes_takes_seconds_and_little_memory(
    outline: Polygons | Runs | Counts,
) -> None:
    """The memory of pycocotools is not counted here; the limit of edges bounds it."""
    size = (750, 1000)
    start = time.process_time()
    tracemalloc.start()
    try:
        outline_mask(outline, size)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 25 * size[0] * size[1]
    assert time.process_time() - start < 5


def test_the_longest_edges_take_little_memory() -> None:
    """In a process of its own, to measure its peak."""
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


@examples(100)
@given(text=st.text(st.characters(min_codepoint=40, max_codepoint=120), max_size=60))
def test_any_text_is_a_mask_or_an_error(text: str) -> None:
    for outline in (Counts(text, (5, 4)), Runs(text, "row"), Runs(text, "relative")):
        with contextlib.suppress(MaskError):
            mask = outline_mask(outline, (5, 4))
            assert mask.shape == (5, 4)
            assert mask.max() <= 1
