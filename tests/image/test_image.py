"""Any bytes end in the right picture or in a rejection with a reason."""

import io
import struct
import time
import tracemalloc
import zipfile
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import simplejpeg
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image, ImageOps, _imaging

from shardprep.image.decode import decode_jpeg, open_image, scalable_size
from shardprep.image.process import (
    Original,
    ProcessedImage,
    Rejection,
    RejectionKind,
    _dct_scale,
    encode,
    process_image,
    words_of,
)
from shardprep.image.spec import Fit, Format, ImageSpec, estimated_bytes, fitted_size
from tests.image.policy import (
    CLEAR,
    ENCODERS,
    INDEXED,
    LOSSLESS,
    PICTURE,
    RAMP16,
    TABLES,
    file,
    forged_jpeg,
    png16,
)
from tests.support.builders import SHARED_DATA, encoded, jpeg, pixels, png
from tests.support.examples import examples
from tests.support.odd_images import (
    Array,
    as_stored,
    cmyk,
    furthest,
    oriented,
    png_by_hand,
    tiff_by_hand,
)

ANY_SIZE: dict[str, Any] = {"size": None, "fit": "none"}
GREEN = (10, 200, 30)
UPRIGHT = pixels(40, 56, seed=3)


def processed(data: bytes, **spec: Any) -> ProcessedImage:
    result = process_image(data, ImageSpec(**spec))
    assert isinstance(result, ProcessedImage), result
    return result


def rejected(data: bytes, **spec: Any) -> Rejection:
    """Process an image that must be rejected, with a reason that fits a line."""
    result = process_image(data, ImageSpec(**spec))
    assert isinstance(result, Rejection)
    assert result.kind in get_args(RejectionKind)
    assert result.reason.strip()
    assert len(result.reason.splitlines()) == 1
    return result


def opened(data: bytes) -> Array:
    """Return the pixels of a file as Pillow alone sees them."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def seen(data: bytes, **spec: Any) -> Array:
    """Return the pixels that are stored of an image, by default at its own size."""
    fitting = {} if "size" in spec else ANY_SIZE
    result = processed(data, **fitting, **spec, format="raw")
    return np.frombuffer(result.data, np.uint8).reshape(result.height, result.width, 3)


def mean_distance(left: Array, right: Array) -> float:
    assert left.shape == right.shape
    return float(np.abs(left.astype(int) - right.astype(int)).mean())


@cache
def photo(height: int, width: int, seed: int = 0) -> Array:
    """Return noise with the spectrum of photographs, which is what codecs and filters feel."""
    rng = np.random.default_rng(seed)
    picture = np.full((height, width, 3), 118.0)
    side = 2
    while side <= max(height, width):
        layer = rng.normal(0, 1, (side, side, 1)) + 0.25 * rng.normal(0, 1, (side, side, 3))
        for channel in range(3):
            plane = Image.fromarray(layer[..., channel].astype(np.float32))
            resized = plane.resize((width, height), Image.Resampling.BICUBIC)
            picture[..., channel] += 90 / (side / 2) ** 0.62 * np.asarray(resized)
        side *= 2
    return picture.clip(0, 255).astype(np.uint8)


@cache
def camera_jpeg(height: int, width: int) -> bytes:
    """Return a camera's photo, several megapixels large, with detail down to the pixel."""
    coarse = Image.fromarray(photo(600, 800)).resize((width, height), Image.Resampling.BICUBIC)
    noise = np.random.default_rng(1).normal(0, 8, (512, 512, 3)).astype(np.int16)
    tiled = np.tile(noise, (-(-height // 512), -(-width // 512), 1))[:height, :width]
    picture = (np.asarray(coarse).astype(np.int16) + tiled).clip(0, 255).astype(np.uint8)
    return encoded(Image.fromarray(picture), quality=90)


# --- formats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_an_image_without_a_finite_number_has_an_outcome(odd: float) -> None:
    data = tiff_by_hand(np.full((4, 4), odd, np.float32))
    assert isinstance(process_image(data, ImageSpec(size=(4, 4))), ProcessedImage)


def test_the_original_has_the_size_and_the_format_of_the_file() -> None:
    for form, options in LOSSLESS.items():
        found = processed(file(PICTURE, form, **options), **ANY_SIZE).original
        assert found == Original(24, 32, form.lower())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("depth", [8, 16])
def test_the_size_of_an_original_is_that_of_the_upright_image(orientation: int, depth: int) -> None:
    """So a wide photo is one that viewers show as wide."""
    image = Image.fromarray(as_stored(UPRIGHT, orientation))  # 40 pixels high, 56 wide
    for form in ("JPEG", "PNG", "TIFF", "WEBP"):
        data = encoded(image, form, exif=oriented(orientation))
        found = processed(data, **ANY_SIZE, depth=depth, **({"format": "png"} if depth > 8 else {}))
        assert found.original == Original(40, 56, form.lower())


# --- the fast JPEG path -------------------------------------------------------------------------

SIZES = [(1, 1), (7, 9), (16, 16), (33, 50), (120, 161)]


def assert_fast_and_equal_to_pillow(data: bytes) -> None:
    image = Image.open(io.BytesIO(data))
    assert decode_jpeg(data, image.height, image.width, 1) is not None
    assert furthest(seen(data), opened(data)) == 0


@pytest.mark.parametrize("options", ENCODERS["libjpeg"].values(), ids=ENCODERS["libjpeg"])
def test_the_fast_jpeg_path_gives_pillows_pixels(options: dict[str, Any]) -> None:
    options = {"quality": 85, **options}
    mode = options.pop("mode", "RGB")
    for height, width in SIZES:
        picture = Image.fromarray(photo(120, 161)[:height, :width]).convert(mode)
        assert_fast_and_equal_to_pillow(encoded(picture, **options))


def test_the_fast_jpeg_path_gives_pillows_pixels_of_rare_samplings() -> None:
    picture = np.ascontiguousarray(photo(120, 161))
    for sampling in ("440", "411"):
        data = simplejpeg.encode_jpeg(picture, quality=85, colorsubsampling=sampling)
        assert_fast_and_equal_to_pillow(data)


# --- decoding at a smaller scale ----------------------------------------------------------------


@pytest.mark.parametrize(("height", "width", "size", "fit", "scale"), TABLES["scales"]["rows"])
def test_a_jpeg_is_decoded_at_the_smallest_scale_that_has_the_pixels(
    height: int, width: int, size: list[int], fit: Fit, scale: int
) -> None:
    assert _dct_scale((height, width), ImageSpec(size=(size[0], size[1]), fit=fit)) == scale
    assert _dct_scale((height, width), ImageSpec(**ANY_SIZE)) == 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_only_a_jpeg_is_decoded_smaller_by_its_upright_size(orientation: int) -> None:
    image = Image.fromarray(as_stored(UPRIGHT, orientation))
    exif = oriented(orientation)
    data = encoded(image, exif=exif)
    assert scalable_size(open_image(data)) == UPRIGHT.shape[:2]
    assert scalable_size(open_image(encoded(image, "PNG", exif=exif))) is None


@given(
    st.tuples(st.integers(1, 300), st.integers(1, 300)),
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.sampled_from(["crop", "pad", "stretch", "within"]),
)
def test_a_scaled_decode_never_has_fewer_pixels_than_the_result_needs(
    size: tuple[int, int], to_size: tuple[int, int], fit: Fit
) -> None:
    spec = ImageSpec(size=to_size, fit=fit)
    data = encoded(Image.new("L", size[::-1]))
    decoded = decode_jpeg(data, *size, _dct_scale(size, spec))
    assert decoded is not None
    height, width = decoded.shape[:2]
    need_height, need_width = fitted_size(*size, spec)
    assert (height, width) == size or (height >= need_height and width >= need_width)


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_a_scaled_decode_looks_like_a_full_one_by_pillow(fit: Fit) -> None:
    data = camera_jpeg(2100, 2800)
    full = Image.open(io.BytesIO(data))
    size, bicubic = (224, 224), Image.Resampling.BICUBIC
    by_pillow = {
        "crop": lambda: ImageOps.fit(full, size, bicubic),
        "pad": lambda: ImageOps.pad(full, size, bicubic, color="white"),
        "stretch": lambda: full.resize(size, bicubic),
    }
    assert _dct_scale((2100, 2800), ImageSpec(size=size, fit=fit)) == 8
    result = processed(data, size=size, fit=fit, format="png")
    assert mean_distance(opened(result.data), np.asarray(by_pillow[fit]())) <= 3


# --- fits ---------------------------------------------------------------------------------------

SIDES = st.tuples(st.integers(1, 300), st.integers(1, 300))


@given(SIDES, SIDES, st.sampled_from(["crop", "pad", "stretch"]))
def test_crop_pad_and_stretch_give_the_requested_size(
    size: tuple[int, int], to_size: tuple[int, int], fit: Fit
) -> None:
    data = encoded(Image.new("L", size[::-1], 99), "PPM")
    result = processed(data, size=to_size, fit=fit, format="raw")
    assert (result.height, result.width) == to_size
    assert len(result.data) == to_size[0] * to_size[1] * 3


@given(
    st.tuples(st.integers(1, 3000), st.integers(1, 300)),
    st.tuples(st.integers(1, 400), st.integers(1, 400)),
    st.sampled_from([1, 6]),
    st.sampled_from(["PPM", "JPEG"]),
)
@example((2589, 17), (356, 2), 1, "JPEG")
@example((2589, 17), (356, 2), 6, "JPEG")
def test_within_keeps_the_aspect_and_never_enlarges(
    size: tuple[int, int], to_size: tuple[int, int], turn: int, form: str
) -> None:
    exif = {"exif": oriented(turn)} if form == "JPEG" else {}
    data = encoded(Image.new("L", size[::-1]), form, **exif)
    if form == "JPEG" and turn == 6:
        size = size[::-1]
    result = seen(data, size=to_size, fit="within")
    ratio = min(1, to_size[0] / size[0], to_size[1] / size[1])
    for side, before, most in zip(result.shape[:2], size, to_size, strict=True):
        assert side <= min(before, most)
        assert abs(side - before * ratio) <= 1
    assert ratio < 1 or result.shape[:2] == size


@given(SIDES)
def test_fit_none_changes_no_size_and_no_pixel(size: tuple[int, int]) -> None:
    picture = photo(300, 300)[: size[0], : size[1]]
    assert furthest(seen(encoded(Image.fromarray(picture), "PPM")), picture) == 0


def across(height: int, width: int) -> Array:
    """Return a picture whose red grows from left to right, and green from top to bottom."""
    rows, columns = np.linspace(0, 255, height)[:, None], np.linspace(0, 255, width)
    return np.stack(np.broadcast_arrays(columns, rows, 0.0), axis=2).astype(np.uint8)


@pytest.mark.parametrize(
    ("size", "red", "green"),
    [
        ((100, 200), (64, 191), (0, 255)),
        ((200, 100), (0, 255), (64, 191)),
        ((100, 100), (0, 255), (0, 255)),
        ((30, 90), (85, 170), (0, 255)),
    ],
)
def test_crop_keeps_the_centre(
    size: tuple[int, int], red: tuple[int, int], green: tuple[int, int]
) -> None:
    result = seen(encoded(Image.fromarray(across(*size)), "PNG"), size=(50, 50), fit="crop")
    found = [result[25, 0, 0], result[25, -1, 0], result[0, 25, 1], result[-1, 25, 1]]
    assert np.abs(np.array(found, int) - (*red, *green)).max() <= 5


@pytest.mark.parametrize(
    ("size", "rows", "columns"),
    [
        ((50, 100), slice(25, 75), slice(0, 100)),
        ((100, 25), slice(0, 100), slice(37, 62)),
        ((300, 100), slice(0, 100), slice(33, 66)),
        ((10, 10), slice(0, 100), slice(0, 100)),
    ],
)
def test_pad_keeps_the_aspect_and_fills_with_the_background(
    size: tuple[int, int], rows: slice, columns: slice
) -> None:
    data = encoded(Image.new("RGB", size[::-1], (200, 0, 0)), "PNG")
    expected = np.full((100, 100, 3), GREEN, np.uint8)
    expected[rows, columns] = (200, 0, 0)
    assert furthest(seen(data, size=(100, 100), fit="pad", background=GREEN), expected) == 0


# --- what is stored -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(64, 48), None])
@pytest.mark.parametrize(("form", "tolerance"), [("png", 0.0), ("keep", 2.0), ("jpeg", 2.0)])
def test_every_format_stores_the_same_picture(
    form: str, tolerance: float, size: tuple[int, int] | None
) -> None:
    spec: dict[str, Any] = {"size": size, "fit": "crop" if size else "none"}
    picture = encoded(Image.fromarray(pixels(150, 200)), "PNG")
    result = processed(picture, format=form, quality=95, **spec)
    assert (result.height, result.width) == opened(result.data).shape[:2]
    assert mean_distance(opened(result.data), seen(picture, **spec)) <= tolerance


@pytest.mark.parametrize(("form", "name"), [("jpeg", "JPEG"), ("png", "PNG")])
def test_stored_images_are_plain_rgb_files(form: str, name: str) -> None:
    image = Image.open(io.BytesIO(processed(jpeg(exif=oriented(6)), format=form).data))
    assert (image.format, image.mode, image.size) == (name, "RGB", (224, 224))
    assert not image.getexif()


def test_quality_sets_the_number_of_bytes_and_equal_input_gives_equal_bytes() -> None:
    sizes = [len(processed(png(99, 99), quality=quality).data) for quality in (10, 50, 90, 100)]
    assert sizes == sorted(set(sizes))
    assert processed(jpeg()) == processed(jpeg())


KEPT: dict[str, tuple[bytes, dict[str, Any]]] = {
    "JPEG": (jpeg(), ANY_SIZE),
    "progressive JPEG": (jpeg(progressive=True), ANY_SIZE),
    "PNG": (png(), ANY_SIZE),
    "upright JPEG": (jpeg(exif=oriented(1)), ANY_SIZE),
    "JPEG of the size asked for": (jpeg(48, 64), {"size": (48, 64)}),
    "PNG of the size asked for": (png(48, 64), {"size": (48, 64), "fit": "stretch"}),
    "JPEG within the size asked for": (jpeg(48, 64), {"size": (50, 70), "fit": "within"}),
}


@pytest.mark.parametrize(("data", "spec"), KEPT.values(), ids=KEPT)
def test_keep_returns_the_bytes_of_the_file(data: bytes, spec: dict[str, Any]) -> None:
    result = processed(data, format="keep", **spec)
    assert result.data == data
    assert (result.height, result.width) == (48, 64)


ENCODED_ANEW: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "CMYK JPEG": (file(cmyk(PICTURE, 9)[0], "JPEG"), ANY_SIZE, "JPEG"),
    "grey JPEG": (file(PICTURE[..., 0], "JPEG"), ANY_SIZE, "JPEG"),
    "turned JPEG": (jpeg(exif=oriented(6)), ANY_SIZE, "JPEG"),
    "mirrored JPEG": (jpeg(exif=oriented(2)), ANY_SIZE, "JPEG"),
    "turned PNG": (file(PICTURE, exif=oriented(3)), ANY_SIZE, "PNG"),
    "RGBA PNG": (file(CLEAR), ANY_SIZE, "PNG"),
    "palette PNG": (file(INDEXED), ANY_SIZE, "PNG"),
    "colour key PNG": (file(PICTURE, transparency=tuple(PICTURE[5, 5].tolist())), ANY_SIZE, "PNG"),
    "16 bit PNG": (file(RAMP16), ANY_SIZE, "PNG"),
    "WebP": (file(PICTURE, "WEBP"), ANY_SIZE, "PNG"),
    "GIF": (file(INDEXED, "GIF"), ANY_SIZE, "PNG"),
    "TIFF": (file(PICTURE, "TIFF"), ANY_SIZE, "PNG"),
    "larger JPEG": (jpeg(50, 70), {"size": (32, 32)}, "JPEG"),
    "smaller JPEG": (jpeg(20, 20), {"size": (32, 32)}, "JPEG"),
    "larger PNG": (png(50, 70), {"size": (32, 32), "fit": "pad"}, "PNG"),
    "JPEG of twice the size": (jpeg(64, 64), {"size": (32, 32)}, "JPEG"),
    "JPEG of eight times the size": (jpeg(256, 256), {"size": (32, 32), "fit": "within"}, "JPEG"),
}


@pytest.mark.parametrize(("data", "spec", "form"), ENCODED_ANEW.values(), ids=ENCODED_ANEW)
def test_keep_encodes_files_again_that_readers_would_show_differently(
    data: bytes, spec: dict[str, Any], form: str
) -> None:
    result = processed(data, format="keep", quality=95, **spec)
    image = Image.open(io.BytesIO(result.data))
    assert (image.format, image.mode) == (form, "RGB")
    assert (image.height, image.width) == (result.height, result.width)
    assert mean_distance(np.asarray(image), seen(data, **spec)) <= 3


SOUND, PNG_SUM = png(), png().index(b"IEND") - 8
UNSOUND = {
    "PNG without its end": SOUND[: PNG_SUM + 4],
    "PNG with a wrong checksum": SOUND[:PNG_SUM] + bytes(4) + SOUND[PNG_SUM + 4 :],
    "PNG with more behind it": SOUND + b"behind the end",
    "JPEG with more behind it": jpeg() + b"behind the end",
    "JPEG with a hole": jpeg()[:700] + b"\0\0" + jpeg()[702:],
    "JPEG whose line ends were translated": jpeg()[:600] + b"\r\n" + jpeg()[600:],
    "JPEG without its end": jpeg()[:-2] + b"\0\0",
    "16 bit RGB PNG": png16(PICTURE.astype(np.uint16) * 257),
}


@pytest.mark.parametrize("data", UNSOUND.values(), ids=UNSOUND)
def test_tensorflow_reads_images_that_keep_stores(data: bytes) -> None:
    import tensorflow as tf

    result = process_image(data, ImageSpec(format="keep", size=None, fit="none"))
    if isinstance(result, ProcessedImage):
        picture = tf.io.decode_image(result.data, channels=3).numpy()
        assert mean_distance(picture, seen(data)) <= 3


# --- grey, one channel until it is encoded ------------------------------------------------------

GREY = Image.fromarray(pixels(47, 64)).convert("L")
GREYS = {
    "JPEG": encoded(GREY),
    "PNG": encoded(GREY, "PNG"),
    "TIFF": encoded(GREY, "TIFF"),
    "BMP": encoded(GREY, "BMP"),
    "of 1 bit": encoded(GREY.convert("1"), "PNG"),
    "of 16 bits": encoded(Image.fromarray(np.asarray(GREY, np.uint16) * 257), "PNG"),
}
FITS: dict[str, dict[str, Any]] = {
    "crop": {},
    "pad": {"size": (31, 33), "fit": "pad", "background": (9, 99, 199)},
    "none": {"size": None, "fit": "none"},
}


@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    quality=st.integers(1, 100),
    form=st.sampled_from(["jpeg", "png", "raw", "keep"]),
    seed=st.integers(0, 2**32 - 1),
)
@examples(200)
def test_one_channel_is_stored_as_three_equal_ones(
    size: tuple[int, int], quality: int, form: Format, seed: int
) -> None:
    spec = ImageSpec(size=None, fit="none", format=form, quality=quality)
    one = np.random.default_rng(seed).integers(0, 256, (*size, 1), np.uint8)
    three = np.repeat(one, 3, axis=2)
    for original in ("jpeg", "png"):
        assert encode(one, original, spec) == encode(three, original, spec)


@pytest.mark.parametrize("name", GREYS)
@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_a_grey_file_is_stored_as_an_rgb_file_of_its_pixels(
    name: str, options: dict[str, Any]
) -> None:
    picture = GREY if name == "of 16 bits" else Image.open(io.BytesIO(GREYS[name]))
    colours = encoded(picture.convert("RGB"), "PNG")
    for form in ("jpeg", "raw", "png"):
        spec = ImageSpec(format=form, **options)
        grey, rgb = process_image(GREYS[name], spec), process_image(colours, spec)
        assert isinstance(grey, ProcessedImage)
        assert isinstance(rgb, ProcessedImage)
        assert (grey.data, grey.is_dark) == (rgb.data, rgb.is_dark)


# --- the limit on pixels ------------------------------------------------------------------------


def icon(inner: bytes) -> bytes:
    """Return an icon that says it is 16x16 and holds a PNG."""
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + inner


def mac_icon(inner: bytes) -> bytes:
    """Return an icon that says it is 256x256 and holds a PNG."""
    chunk = b"ic08" + struct.pack(">I", 8 + len(inner)) + inner
    return b"icns" + struct.pack(">I", 8 + len(chunk)) + chunk


GIF, BMP, TIFF = file(INDEXED, "GIF"), file(PICTURE, "BMP"), tiff_by_hand(PICTURE, 2)
SIDES_OF_TIFF = [struct.pack("<HHIH", tag, 3, 1, side) for tag, side in ((256, 32), (257, 24))]
FORGED = {
    "PNG": png_by_hand(60_000, 60_000, 8, 2, bytes(99)),
    "JPEG": forged_jpeg(60_000, 60_000),
    "BMP": BMP[:18] + struct.pack("<ii", 60_000, 60_000) + BMP[26:],
    "GIF": GIF[:6] + b"\xff" * 4 + GIF[10:],
    "TIFF": TIFF.replace(SIDES_OF_TIFF[0], struct.pack("<HHIH", 256, 3, 1, 60_000)).replace(
        SIDES_OF_TIFF[1], struct.pack("<HHIH", 257, 3, 1, 60_000)
    ),
}


def num_bytes_touched(data: bytes, **spec: Any) -> tuple[ProcessedImage | Rejection, int]:
    """Return the outcome, and the peak bytes that Python, NumPy and Pillow allocated for it."""
    blocks_before = _imaging.get_stats()["allocated_blocks"]
    tracemalloc.start()
    try:
        result = process_image(data, ImageSpec(**spec))
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    blocks = _imaging.get_stats()["allocated_blocks"] - blocks_before
    return result, traced + blocks * _imaging.get_block_size()


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_header_with_too_many_pixels_is_rejected_before_memory_is_allocated(data: bytes) -> None:
    start = time.process_time()
    result, num_bytes = num_bytes_touched(data)
    assert time.process_time() - start < 1
    assert isinstance(result, Rejection)
    assert result.kind == "too_many_pixels"
    assert f"{result.original.width}x{result.original.height} pixels" in result.reason
    assert result.original.width * result.original.height > 3_000_000_000
    assert num_bytes < 20_000_000


@pytest.mark.parametrize("wrapped", [icon, mac_icon])
def test_an_image_inside_an_icon_has_the_same_limit(wrapped: Any) -> None:
    inner = png_by_hand(4000, 4000, 8, 2, bytes(4000 * 12_001))
    result, num_bytes = num_bytes_touched(wrapped(inner), max_pixels=1_000_000)
    assert isinstance(result, Rejection)
    assert num_bytes < 20_000_000


# --- bad bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["keep", "jpeg", "raw"])
@pytest.mark.parametrize(
    ("data", "name"),
    [(jpeg()[:900], "jpeg"), (jpeg()[:-40], "jpeg"), (png()[:700], "png"), (png()[:-60], "png")],
)
def test_a_truncated_image_is_rejected_with_the_facts_of_its_header(
    data: bytes, name: str, form: str
) -> None:
    result = rejected(data, format=form, size=(48, 64))
    assert (result.kind, result.original) == ("truncated", Original(48, 64, name))


def test_an_error_without_a_message_still_gives_a_reason() -> None:
    for error in (OSError(), SyntaxError(), EOFError(), ValueError("two\nlines")):
        reason = words_of(error)
        assert reason.strip(" :")
        assert "\n" not in reason


SPECS = (
    ImageSpec(size=(8, 6), format="raw", max_pixels=1_000_000),
    ImageSpec(size=(8, 6), fit="pad", format="png", max_pixels=1_000_000),
    ImageSpec(size=(8, 6), fit="within", max_pixels=1_000_000),
    ImageSpec(size=None, fit="none", format="keep", max_pixels=1_000_000),
    ImageSpec(size=(8, 6), truncated="recover", max_pixels=1_000_000),
)
VICTIMS = (
    file(PICTURE, "JPEG"),
    file(PICTURE, "JPEG", exif=oriented(6), progressive=True),
    file(CLEAR),
    file(INDEXED, transparency=2),
    file(RAMP16),
    file(INDEXED, "GIF"),
    file(PICTURE, "TIFF"),
    file(PICTURE, "WEBP", lossless=True),
    file(PICTURE, "BMP"),
    tiff_by_hand((RAMP16 / 65_535).astype(np.float32)),
    file(cmyk(PICTURE, 9)[0], "JPEG"),
)


def assert_has_an_outcome(data: bytes, spec: ImageSpec) -> None:
    """Check that bytes end in an image of the right size or in a rejection that says why."""
    result = process_image(data, spec)
    if isinstance(result, Rejection):
        assert rejected(data, **{name: getattr(spec, name) for name in spec.__slots__}) == result
        return
    if spec.fixed_size is not None:
        assert (result.height, result.width) == spec.fixed_size
    if spec.format == "raw":
        assert len(result.data) == result.height * result.width * 3
    else:
        assert Image.open(io.BytesIO(result.data)).size == (result.width, result.height)


@given(
    st.sampled_from(VICTIMS),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=4)), max_size=4),
    st.floats(0.3, 1),
    st.sampled_from(SPECS),
)
def test_damaged_images_have_an_outcome(
    data: bytes, patches: list[tuple[float, bytes]], kept: float, spec: ImageSpec
) -> None:
    damaged = bytearray(data)
    for place, patch in patches:
        at = int(place**2 * (len(data) - 1))  # headers are hit more often
        damaged[at : at + len(patch)] = patch
    assert_has_an_outcome(bytes(damaged[: int(len(damaged) * kept)]), spec)
    assert_has_an_outcome(bytes(damaged), spec)


# --- the estimate -------------------------------------------------------------------------------


@cache
def photos() -> list[list[bytes]]:
    """Return drawn photos, and real ones if they are here."""
    found = [[encoded(Image.fromarray(photo(480, 640, seed)), quality=95) for seed in range(2)]]
    if SHARED_DATA.is_dir():
        with zipfile.ZipFile(SHARED_DATA / "bccd.zip") as archive:
            names = [name for name in archive.namelist() if name.endswith(".jpg")][:8]
            found.append([archive.read(name) for name in names])
    return found


@pytest.mark.parametrize("side", [224, 400])
@pytest.mark.parametrize(
    ("form", "quality"),
    [("jpeg", 75), ("jpeg", 90), ("jpeg", 95), ("jpeg", 100), ("png", 90), ("raw", 90)],
)
def test_the_estimate_is_near_for_photos(side: int, form: Format, quality: int) -> None:
    keys: dict[str, Any] = {"size": (side, side), "format": form, "quality": quality}
    for files in photos():
        actual = sum(len(processed(data, **keys).data) for data in files)
        estimate = sum(estimated_bytes(ImageSpec(**keys), len(data)) for data in files)
        assert estimate / 2.5 <= actual <= estimate * 2.5
    assert estimated_bytes(ImageSpec(size=None, fit="none", format="keep"), 1234) == 1234
