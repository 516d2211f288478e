"""A resized image equals Pillow's byte by byte, with and without the extension."""

import ctypes
import mmap
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.image.resample import BACKEND, Box, Pixels, down_first, resize, resize_by_pillow
from tests.image.policy import TABLES
from tests.support.examples import examples

Path_ = Callable[[Pixels, tuple[int, int], Box], Pixels]

built = pytest.mark.skipif(
    BACKEND != "c", reason="the extension is not built: no compiler was found at installation"
)

PICTURES: dict[str, Callable[[tuple[int, int, int]], Pixels]] = {
    "noise": lambda shape: noise(*shape),
    "black and white": lambda shape: np.random.default_rng(1).integers(0, 2, shape, np.uint8) * 255,
    "white": lambda shape: np.full(shape, 255, np.uint8),
}
"""Noise finds wrong weights; the others reach the limits at which sums are clipped."""


def with_vectors(
    pixels: Pixels, size: tuple[int, int], box: Box, *, simd: bool = True, mirrored: bool = False
) -> Pixels:
    from shardprep.image import _resample

    out = np.full((*size, pixels.shape[2]), 77, np.uint8)
    _resample.resize(pixels, out, box, down_first(pixels, size), simd, mirrored)
    return out


def portably(pixels: Pixels, size: tuple[int, int], box: Box, *, mirrored: bool = False) -> Pixels:
    return with_vectors(pixels, size, box, simd=False, mirrored=mirrored)


def fill(pixels: Any, out: Any, box: Box) -> None:
    """Call the extension without the checks of `resize`."""
    from shardprep.image import _resample

    down = False
    _resample.resize(pixels, out, box, down)


def pillows(pixels: Pixels, size: tuple[int, int], box: Box) -> Pixels:
    """Return what Pillow 13 makes of each channel in one call."""
    height, width = size
    channels = [Image.fromarray(pixels[:, :, i]) for i in range(pixels.shape[2])]
    return np.stack(
        [np.asarray(c.resize((width, height), Image.Resampling.BICUBIC, box)) for c in channels],
        axis=2,
    )


def whole(pixels: Pixels) -> Box:
    return 0.0, 0.0, float(pixels.shape[1]), float(pixels.shape[0])


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@pytest.fixture(
    params=[
        pytest.param(with_vectors, marks=built),
        pytest.param(portably, marks=built),
        resize_by_pillow,
        resize,
    ],
    ids=lambda path: path.__name__,
)
def path(request: pytest.FixtureRequest) -> Any:
    """A function that resizes."""
    return request.param


@st.composite
def cases(draw: st.DrawFn) -> tuple[Pixels, tuple[int, int], Box]:
    side = st.integers(1, 20) | st.integers(1, 300)
    height, width = draw(side), draw(side)
    picture = PICTURES[draw(st.sampled_from(sorted(PICTURES)))]
    pixels = picture((height, width, draw(st.integers(1, 4))))
    edges = [
        sorted(draw(st.tuples(*[st.floats(0, most, width=32) | st.integers(0, most)] * 2)))
        for most in (width, height)
    ]
    (left, right), (top, bottom) = edges
    box = draw(st.sampled_from([whole(pixels), (left, top, right, bottom)]))
    return pixels, (draw(side), draw(side)), box


# --- the same bytes -----------------------------------------------------------------------------


@examples(200)
@given(cases())
def test_any_box_of_any_image_becomes_any_size(
    case: tuple[Pixels, tuple[int, int], Box],
) -> None:
    expected = pillows(*case)
    ways = (with_vectors, portably) if BACKEND == "c" else ()
    for way in (*ways, resize_by_pillow, resize):
        assert np.array_equal(way(*case), expected), way.__name__
    for way in (*ways, resize):
        assert np.array_equal(way(*case, mirrored=True), expected[:, ::-1]), way.__name__


@pytest.mark.parametrize(("before", "after"), TABLES["resized"]["crops"])
def test_a_central_crop_of_a_photo(path: Path_, before: list[int], after: list[int]) -> None:
    height = min(before[0], before[1] * after[0] / after[1])
    width = min(before[1], before[0] * after[1] / after[0])
    left, top = (before[1] - width) / 2, (before[0] - height) / 2
    box, size = (left, top, left + width, top + height), (after[0], after[1])
    for picture in PICTURES.values():
        pixels = picture((before[0], before[1], 3))
        assert np.array_equal(path(pixels, size, box), pillows(pixels, size, box))


@pytest.mark.parametrize(("before", "after"), TABLES["resized"]["long_sides"])
def test_sides_of_the_greatest_length_in_a_jpeg(
    path: Path_, before: list[int], after: list[int]
) -> None:
    pixels, size = noise(*before, 2), (after[0], after[1])
    assert np.array_equal(path(pixels, size, whole(pixels)), pillows(pixels, size, whole(pixels)))


@pytest.mark.parametrize(
    "box", [(5.0, 5.0, 5.0, 5.0), (20.0, 30.0, 20.0, 30.0), (19.99, 0.0, 20.0, 1e-6)]
)
def test_a_box_without_extent_gives_the_pixels_at_its_place(path: Path_, box: Box) -> None:
    pixels = noise(30, 20, 3)
    assert np.array_equal(path(pixels, (7, 9), box), pillows(pixels, (7, 9), box))


def test_a_resize_to_the_same_size_is_a_copy(path: Path_) -> None:
    pixels = noise(30, 20, 3)
    same = path(pixels, (30, 20), whole(pixels))
    assert np.array_equal(same, pixels)
    assert not np.shares_memory(same, pixels)
    assert np.array_equal(path(pixels, (12, 8), (5.0, 3.0, 13.0, 15.0)), pixels[3:15, 5:13])
    assert np.array_equal(resize(pixels, (30, 20), mirrored=True), pixels[:, ::-1])
    assert np.array_equal(resize(pixels, (9, 20), mirrored=True), resize(pixels, (9, 20))[:, ::-1])


def test_the_height_is_reduced_first_if_it_shrinks_more_with_any_pillow(path: Path_) -> None:
    pixels = noise(39, 8, 1)
    image = Image.fromarray(pixels[:, :, 0])
    down_then_across = image.resize((8, 20)).resize((6, 20))
    across_then_down = image.resize((6, 39)).resize((6, 20))
    assert down_then_across.tobytes() != across_then_down.tobytes()
    assert path(pixels, (20, 6), whole(pixels)).tobytes() == down_then_across.tobytes()


def test_strides_a_missing_box_and_rounding_at_the_edge_change_nothing() -> None:
    pixels = noise(90, 80, 4)
    for view in (pixels[::-2, ::3], pixels.transpose(1, 0, 2), pixels[5:40, 7:50, 1:3]):
        result = resize(view, (21, 34))
        assert np.array_equal(result, pillows(view.copy(), (21, 34), whole(view)))
        assert result.flags.c_contiguous
        assert result.flags.writeable
    expected = resize(pixels, (9, 9))
    assert np.array_equal(resize(pixels, (9, 9), (0.0, 0.0, 80.0 + 1e-9, 90.0)), expected)
    pixels[:, :, 3] = 0  # transparent colours stay
    colours = np.ascontiguousarray(pixels[:, :, :3])
    assert np.array_equal(resize(pixels, (9, 9))[:, :, :3], resize(colours, (9, 9)))


# --- the machine --------------------------------------------------------------------------------


def test_the_extension_is_built_where_there_is_a_compiler() -> None:
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not compiler or not header.exists():
        pytest.skip("no C compiler, or no Python.h")
    assert BACKEND == "c", "`pip install --editable .` builds it, and says why not with --verbose"


@pytest.mark.thorough
def test_without_the_extension_pillow_does_the_same() -> None:
    program = """
import hashlib, sys
import numpy as np
if sys.argv[1] == "without":
    sys.modules["shardprep.image._resample"] = None
from shardprep.image.resample import BACKEND, resize
pixels = np.random.default_rng(2).integers(0, 256, (361, 405, 3), np.uint8)
result = resize(pixels, (224, 224), (22, 0, 383, 361), mirrored=True)
print(BACKEND, hashlib.sha256(result.tobytes()).hexdigest())
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, way], check=True, capture_output=True, text=True
        ).stdout.split()
        for way in ("with", "without")
    ]
    assert [backend for backend, _ in outputs] == [BACKEND, "pillow"]
    assert outputs[0][1] == outputs[1][1]


@built
def test_threads_do_not_disturb_one_another() -> None:
    images = [noise(200 + i, 300 - i, 3) for i in range(16)]
    alone = [resize(image, (224, 224)) for image in images]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            together = list(pool.map(lambda image: resize(image, (224, 224)), images))
            assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@built
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_memory_is_given_back() -> None:
    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    pixels = noise(64, 20_000, 1)  # wide: what is kept for each column is 240 kB and more
    for _ in range(5):
        resize(pixels, (48, 15_000))
    before = resident_pages()
    for _ in range(100):
        resize(pixels, (48, 15_000))
    assert (resident_pages() - before) * mmap.PAGESIZE < 10_000_000


@built
@pytest.mark.skipif(sys.platform != "linux", reason="the guard is Linux's")
def test_no_byte_after_the_image_is_read() -> None:
    """Reading the page after the pixels ends the process."""
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    page = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + 2 * mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    try:
        for shape in ((40, 40, 3), (33, 20, 4), (17, 5, 1), (7, 31, 1), (1, 1, 1)):
            count = shape[0] * shape[1] * shape[2]
            pixels = np.frombuffer(memory, np.uint8, count, 2 * mmap.PAGESIZE - count)
            pixels = pixels.reshape(shape)
            for size in ((11, shape[1]), (shape[0], 11), (9, 13), (60, 70)):
                for way in (with_vectors, portably):
                    assert not way(pixels, size, whole(pixels)).any()
    finally:
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, mmap.PROT_READ)


@built
def test_too_little_memory_is_an_error_without_a_crash() -> None:
    program = """
import resource
import numpy as np
from shardprep.image import _resample
pixels, out = np.zeros((30_000, 1, 1), np.uint8), np.zeros((1, 30_000, 1), np.uint8)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000,) * 2)
for down_first in (True, False, True):
    try:
        _resample.resize(pixels, out, (0, 0, 1, 30_000), down_first)
        print("done")
    except MemoryError:
        print("MemoryError")
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert run.stdout.split() == [b"done", b"MemoryError", b"done"]


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 3), np.int8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 0), np.uint8),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
    ids=lambda pixels: f"{pixels.dtype}{list(pixels.shape)}",
)
def test_arrays_that_are_not_pixels_are_refused(pixels: Any) -> None:
    with pytest.raises(ValueError, match=r"is not uint8|cannot become"):
        resize(pixels, (2, 2))
    if BACKEND == "c":
        with pytest.raises(ValueError, match="pixels"):
            fill(pixels, np.zeros((2, 2, 3), np.uint8), (0, 0, 1, 1))


def test_sizes_below_1_and_boxes_outside_the_image_are_refused() -> None:
    pixels = noise(4, 4, 3)
    for size in ((0, 4), (4, 0), (-1, 4), (4, -(2**40))):
        with pytest.raises(ValueError, match="cannot become"):
            resize(pixels, size)
    for left, top, right, bottom in TABLES["resized"]["outside"]:
        box = (left, top, right, bottom)
        with pytest.raises(ValueError, match="not within"):
            resize(pixels, (2, 2), box)
        if BACKEND == "c":
            with pytest.raises(ValueError, match="not within"):
                fill(pixels, np.zeros((2, 2, 3), np.uint8), box)


@built
def test_the_extension_writes_only_into_a_buffer_that_fits() -> None:
    pixels, box = noise(4, 4, 3), (0, 0, 4, 4)
    read_only = np.zeros((2, 2, 3), np.uint8)
    read_only.flags.writeable = False
    for out in (
        read_only,
        np.zeros((2, 2, 4), np.uint8),
        np.zeros((2, 2), np.uint8),
        np.zeros((2, 4, 3), np.uint8)[:, ::2],
        np.zeros((2, 2, 3), np.uint16),
        b"no array",
        np.broadcast_to(np.uint8(0), (2**25, 1, 3)),
        None,
    ):
        with pytest.raises((ValueError, BufferError, TypeError)):
            fill(pixels, out, box)
