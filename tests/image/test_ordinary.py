"""Ordinary JPEG, PNG and Netpbm files skip Pillow, and the stored bytes are equal."""

import io
import itertools
import random
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.image import png as png_module
from shardprep.image import resample
from shardprep.image.decode import stored_pixels
from shardprep.image.jpeg_header import OrdinaryJpeg, ordinary_jpeg
from shardprep.image.netpbm import ordinary_netpbm
from shardprep.image.png import OrdinaryPng, ordinary_png, stored_png
from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.image.resample import BACKEND, Pixels
from shardprep.image.spec import ImageSpec
from tests.image.policy import CASES
from tests.support.builders import SHARED_DATA, encoded, jpeg, pixels, png
from tests.support.examples import examples
from tests.support.jpeg_frames import LOSSLESS, READ, UNREAD
from tests.support.odd_images import (
    DISPLAY_P3,
    SRGB,
    gamma,
    grey_profile,
    oriented,
    png_by_hand,
    png_chunk,
    rgb_profile,
    srgb_to_light,
)

built = pytest.mark.skipif(
    BACKEND != "c", reason="the extension is not built: no compiler was found at installation"
)

KEPT = ImageSpec(size=None, fit="none", format="keep", max_pixels=1_000_000)
SPECS = (
    KEPT,
    ImageSpec(size=(8, 6), max_pixels=1_000_000),
    ImageSpec(size=(48, 64), format="keep", background=(1, 128, 254), max_pixels=1_000_000),
    ImageSpec(size=(40, 50), fit="within", format="keep", truncated="recover"),
    ImageSpec(size=None, fit="none", format="raw", truncated="recover", max_pixels=1_000_000),
    ImageSpec(size=(30, 20), fit="pad", format="png", background=(200, 0, 7)),
    ImageSpec(min_side=49),
)
PICTURE = Image.fromarray(pixels())

# --- JPEG files ---------------------------------------------------------------------------------

PROFILE = rgb_profile(SRGB, srgb_to_light)
ORDINARY_JPEGS = {
    "baseline": jpeg(),
    "grey": encoded(PICTURE.convert("L")),
    "progressive": jpeg(progressive=True),
    "restart markers": jpeg(restart_marker_blocks=2),
    "full colour": jpeg(subsampling=0),
    "stored as RGB": jpeg(keep_rgb=True),
    "comment": jpeg(comment=b"a comment"),
    "more behind it": jpeg() + b"behind the end",
}


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def with_segment(marker: int, body: bytes, at: int = 2) -> bytes:
    return jpeg()[:at] + segment(marker, body) + jpeg()[at:]


def with_frame(at: int, patch_: bytes) -> bytes:
    """Return a JPEG with other bytes at an offset of its frame header."""
    data = bytearray(jpeg())
    start = data.index(b"\xff\xc0") + at
    data[start : start + len(patch_)] = patch_
    return bytes(data)


FRAME = segment(0xC0, struct.pack(">BHHB", 8, 48, 64, 3) + bytes((1, 34, 0, 2, 17, 1, 3, 17, 1)))
ODD_JPEGS = {
    "turned": jpeg(exif=oriented(6)),
    "turned twice": jpeg(exif=oriented(6))[:2] + segment(0xE1, oriented(3)) + jpeg()[2:],
    "with a profile": jpeg(icc_profile=PROFILE),
    "with a profile of more colours": jpeg(icc_profile=rgb_profile(DISPLAY_P3, srgb_to_light)),
    "CMYK": encoded(PICTURE.convert("CMYK")),
    "of 12 bits": with_frame(4, b"\x0c"),
    "of no rows": with_frame(5, b"\0\0"),
    "of no columns": with_frame(7, b"\0\0"),
    "of two components": with_frame(9, b"\2"),
    "lossless": with_frame(1, b"\xc3"),
    "arithmetic": with_frame(1, b"\xc9"),
    "short JFIF": jpeg()[:2] + segment(0xE0, b"JFIF\0\1") + jpeg()[20:],
    "short Adobe": with_segment(0xEE, b"Adobe\0"),
    "JFXX": with_segment(0xE0, b"JFXX\0" + bytes(20)),
    "XMP": with_segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0tiff:Orientation='6'"),
    "two frames": jpeg()[:2] + FRAME + jpeg()[2:],
    "two frames, the first of 12 bits": jpeg()[:2]
    + FRAME.replace(b"\x08", b"\x0c", 1)
    + jpeg()[2:],
    "number of lines": with_segment(0xDC, b"\0\x30"),
    "padded marker": jpeg()[:2] + b"\xff\xff" + jpeg()[2:],
    "junk before a marker": jpeg()[:20] + b"junk" + jpeg()[20:],
    "cut in its header": jpeg()[:100],
    "only a start": jpeg()[:3],
    "no scan": jpeg()[: jpeg().index(b"\xff\xda")],
    "no frame": jpeg().replace(b"\xff\xc0", b"\xff\xfe"),
}
FAULTY_JPEGS = {
    "a quantization table too short": with_segment(0xDB, b"\0" + bytes(30)),
    "a quantization table of number 9": with_segment(0xDB, b"\x09" + bytes(64)),
    "a Huffman table too long": with_segment(0xC4, b"\0" + b"\xff" * 16),
    "fractional sampling": with_frame(11, b"\x32"),
    "a sampling of 0": with_frame(11, b"\x00"),
    "a table that is not there": with_frame(12, b"\3"),
    "other height": with_frame(5, b"\1\0"),
    "other width": with_frame(7, b"\1\0"),
    "a hole": jpeg()[:700] + b"\0\0" + jpeg()[702:],
    "a marker in the scan": jpeg()[:700] + b"\xff\xd9" + jpeg()[700:],
    "line ends translated": jpeg()[:660] + b"\r\n" + jpeg()[660:],
    "no end": jpeg()[:-2],
    "half of it": jpeg()[: len(jpeg()) // 2],
    "half of a progressive one": jpeg(progressive=True)[: len(jpeg()) // 2],
}


# --- PNG files ----------------------------------------------------------------------------------

START, HEADER_END, TAIL = 8, 33, png_chunk(b"IEND", b"")
CLEAR = Image.fromarray(np.arange(48 * 64, dtype=np.uint8).reshape(48, 64))


def with_alpha(mode: str) -> Image.Image:
    image = PICTURE.convert(mode)
    image.putalpha(CLEAR)
    return image


def text(key: bytes, value: bytes, kind: bytes = b"tEXt") -> bytes:
    return with_chunks(png(), (kind, key + b"\0" + value))


def pieces(data: bytes, number: int, between: bytes = b"") -> bytes:
    """Return a PNG of one IDAT with its pixels in several, and a chunk between two of them."""
    at = data.index(b"IDAT") - 4
    (num_bytes,) = struct.unpack_from(">I", data, at)
    body = data[at + 8 : at + 8 + num_bytes]
    cuts = [num_bytes * i // number for i in range(number + 1)]
    found = [png_chunk(b"IDAT", body[a:b]) for a, b in itertools.pairwise(cuts)]
    return data[:at] + found[0] + between + b"".join(found[1:]) + data[at + 12 + num_bytes :]


def with_chunks(data: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """Return a PNG with chunks of these kinds and contents after its header."""
    return data[:HEADER_END] + b"".join(itertools.starmap(png_chunk, chunks)) + data[HEADER_END:]


def with_byte(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def by_hand(width: int, height: int, colour: int, compressed: bytes) -> bytes:
    """Return a PNG of 8 bits whose pixels are compressed already."""
    return png_by_hand(width, height, 8, colour, b"", compressed)


def indexed(row: bytes) -> bytes:
    """Return a PNG with one row of palette indices, and no palette."""
    return by_hand(len(row) - 1, 1, 3, zlib.compress(row))


INDEXED = encoded(PICTURE.quantize(250), "PNG")
ORDINARY_PNGS = {
    "RGB": png(),
    "grey": encoded(PICTURE.convert("L"), "PNG"),
    "grey with alpha": encoded(with_alpha("L"), "PNG"),
    "RGBA": encoded(with_alpha("RGB"), "PNG"),
    "palette": INDEXED,
    "palette, one colour clear": encoded(PICTURE.quantize(250), "PNG", transparency=3),
    "palette with alphas": encoded(PICTURE.quantize(250), "PNG", transparency=bytes(range(200))),
    "one pixel": png(1, 1),
    "odd sides": encoded(Image.fromarray(pixels(47, 33)).convert("L"), "PNG"),
    "resolution and gamma": with_chunks(
        encoded(PICTURE, "PNG", dpi=(72, 72)), (b"gAMA", struct.pack(">I", 45455))
    ),
    "a suggested palette": with_chunks(png(), (b"PLTE", bytes(range(30)))),
    "time and text": text(b"Software", b"a camera"),
    "text behind the pixels": png().replace(TAIL, png_chunk(b"tEXt", b"Title\0x") + TAIL),
    "ten pieces": pieces(png(), 10),
    "an empty piece": pieces(png(), 2, png_chunk(b"IDAT", b"")),
}
XMP = b'<x tiff:Orientation="6"/>'
RAW_PROFILE = b"\nexif\n%8d\n" % len(oriented(6)) + oriented(6).hex().encode() + b"\n"
DOT = png_by_hand(1, 1, 8, 0, b"\0\7")
ODD_PNGS = {
    "interlaced": DOT[:START] + png_chunk(b"IHDR", DOT[16:28] + b"\1") + DOT[HEADER_END:],
    "of 16 bits": encoded(Image.fromarray(np.full((9, 9), 40_000, np.uint16)), "PNG"),
    "of 1 bit": encoded(PICTURE.convert("1"), "PNG"),
    "palette of 4 bits": encoded(PICTURE.quantize(9), "PNG"),
    "a clear colour": encoded(PICTURE, "PNG", transparency=(255, 0, 0)),
    "a clear grey": encoded(PICTURE.convert("L"), "PNG", transparency=7),
    "turned": encoded(PICTURE, "PNG", exif=oriented(6)),
    "turned behind its pixels": png().replace(TAIL, png_chunk(b"eXIf", oriented(8)[6:]) + TAIL),
    "turned by XMP": text(b"XML:com.adobe.xmp", b"\0\0\0\0" + XMP, b"iTXt"),
    "turned by XMP in a text": text(b"XML:com.adobe.xmp", XMP),
    "turned by a raw profile": text(b"Raw profile type exif", RAW_PROFILE),
    "a text with the name of a field of Pillow": text(b"transparency", b"abc"),
    "a profile": encoded(PICTURE, "PNG", icc_profile=rgb_profile(DISPLAY_P3, srgb_to_light)),
    "animated": encoded(PICTURE, "PNG", save_all=True, append_images=[with_alpha("RGB")]),
    "an unknown chunk": with_chunks(png(), (b"abCd", b"x")),
    "a short gAMA": with_chunks(png(), (b"gAMA", b"x")),
    "a chunk between its pieces": pieces(png(), 3, png_chunk(b"tEXt", b"Title\0x")),
    "a checksum of the header": with_byte(png(), 29, png()[29] ^ 1),
    "a checksum of a text": with_byte(text(b"Title", b"x"), HEADER_END + 16, 0),
    "two headers": png()[:HEADER_END] + png()[START:],
    "no header": png()[:START] + png()[HEADER_END:],
    "no pixels": png()[:HEADER_END] + TAIL,
    "no palette": indexed(b"\0\0"),
    "a palette of two bytes": with_chunks(indexed(b"\0\0"), (b"PLTE", b"ab")),
    "more alphas than colours": with_chunks(
        indexed(b"\0\0"), (b"PLTE", bytes(6)), (b"tRNS", bytes(300))
    ),
    "no rows": png_by_hand(9, 0, 8, 2, b""),
    "no end": png()[: -len(TAIL)],
    "more behind it": png() + b"behind the end",
    "a length beyond the end": with_byte(png(), png().index(b"IDAT") - 4, 1),
    "only a start": png()[:START],
    "a start and an end": png()[:START] + TAIL,
}
ROWS = b"".join(b"\0" + bytes(row) for row in pixels(9, 5).reshape(9, 15))
STREAMS = {
    "an unknown filter": zlib.compress(b"\5" + ROWS[1:]),
    "an unknown filter in the last row": zlib.compress(ROWS[:-16] + b"\x09" + ROWS[-15:]),
    "too few rows": zlib.compress(ROWS[:-16]),
    "a byte too few": zlib.compress(ROWS[:-1]),
    "too many rows": zlib.compress(ROWS + ROWS),
    "no checksum": zlib.compress(ROWS)[:-4],
    "a wrong checksum": zlib.compress(ROWS)[:-4] + b"abcd",
    "half a stream": zlib.compress(ROWS)[:60],
    "a garbled stream": zlib.compress(ROWS)[:40] + bytes(50),
    "no stream": b"",
}
FAULTY_PNGS = {
    **{name: by_hand(5, 9, 2, stream) for name, stream in STREAMS.items()},
    "a colour outside the palette": with_chunks(indexed(b"\0\1\2"), (b"PLTE", bytes(range(6)))),
}


# --- helpers ------------------------------------------------------------------------------------


def by_pillow(data: bytes, spec: ImageSpec) -> ProcessedImage | Rejection:
    """Return the outcome without the short paths."""
    short: dict[str, Any] = dict.fromkeys(("_process_ordinary", "_is_kept"), lambda *_: None)
    with patch.multiple("shardprep.image.process", **short):
        return process_image(data, spec)


def assert_equal_outcomes(files: Iterable[bytes], specs: Iterable[ImageSpec] = SPECS) -> None:
    for data in files:
        for spec in specs:
            assert process_image(data, spec) == by_pillow(data, spec)


def both(jpegs: Mapping[str, bytes], pngs: Mapping[str, bytes]) -> list[Any]:
    return [
        *[pytest.param(data, id=f"JPEG, {name}") for name, data in jpegs.items()],
        *[pytest.param(data, id=f"PNG, {name}", marks=built) for name, data in pngs.items()],
    ]


def seen(image: Image.Image, background: tuple[int, int, int]) -> Pixels:
    """Return the colours that Pillow shows over a background."""
    rgba = image.convert("RGBA")
    behind = Image.new("RGB", image.size, background)
    return np.asarray(Image.composite(rgba.convert("RGB"), behind, rgba.getchannel("A")))


# --- the same outcome ---------------------------------------------------------------------------


@pytest.mark.parametrize("data", both(ORDINARY_JPEGS, ORDINARY_PNGS))
def test_an_ordinary_file_is_stored_alike_without_pillow(data: bytes) -> None:
    assert_equal_outcomes([data])
    with patch("shardprep.image.process.open_image", side_effect=AssertionError):
        for spec in (ImageSpec(), *(SPECS[:5] if data in ORDINARY_JPEGS.values() else ())):
            assert isinstance(process_image(data, spec), ProcessedImage)


@pytest.mark.parametrize("data", both(ODD_JPEGS, ODD_PNGS))
def test_any_other_file_is_left_to_pillow(data: bytes) -> None:
    assert ordinary_jpeg(data) is None
    assert ordinary_png(data) is None
    assert_equal_outcomes([data])


@pytest.mark.parametrize("data", both(FAULTY_JPEGS, FAULTY_PNGS))
def test_a_fault_has_the_same_outcome(data: bytes) -> None:
    image = ordinary_jpeg(data) or ordinary_png(data)
    assert image is not None
    if isinstance(image, OrdinaryPng):
        with pytest.raises(Exception, match=r"."):
            image.pixels((0, 0, 0))
    assert_equal_outcomes([data])


@pytest.mark.parametrize(
    "start", [b"\xff\xd8", pytest.param(b"\x89PNG", marks=[built, pytest.mark.thorough])]
)
def test_every_file_of_the_policy_has_the_same_outcome(start: bytes) -> None:
    files = [case.data for _, case in CASES.values()]
    assert_equal_outcomes(data for data in files if data.startswith(start) and len(data) < 100_000)


@pytest.mark.thorough
def test_a_damaged_jpeg_has_the_same_outcome() -> None:
    rng = random.Random(0)
    files = [*ORDINARY_JPEGS.values(), jpeg(exif=oriented(1)), jpeg(icc_profile=PROFILE)]

    def damaged() -> bytes:
        data = bytearray(rng.choice(files))
        at = rng.randrange(rng.choice((len(data), 640)))
        noise = rng.choice((rng.randbytes(1), rng.randbytes(4), b"\xff\xd9", b"\xff\xfe\0\4ab"))
        data[at : at + rng.choice((0, 1, 1, 50))] = noise
        return bytes(data[: rng.choice((None, None, None, at))])

    assert_equal_outcomes(damaged() for _ in range(150))


@built
def test_a_damaged_or_truncated_png_has_the_same_outcome() -> None:
    rng = random.Random(0)
    files = [
        encoded(Image.open(io.BytesIO(d)).resize((9, 7)), "PNG") for d in ORDINARY_PNGS.values()
    ]

    def damaged() -> bytes:
        data = bytearray(rng.choice(files))
        at = rng.randrange(len(data))
        data[at : at + rng.choice((0, 1, 1, 8))] = rng.randbytes(rng.choice((0, 1, 1, 4)))
        return bytes(data)

    assert_equal_outcomes(damaged() for _ in range(80))
    assert_equal_outcomes(files[1][:stop] for stop in range(0, len(files[1]), 3))


TORTURE = SHARED_DATA / "torture-images.tar"


@pytest.mark.skipif(not TORTURE.is_file(), reason="the shared images are not here")
@pytest.mark.parametrize(
    ("suffixes", "num_bytes", "specs"),
    [
        ((".jpg", ".jpeg"), 40_000, SPECS),
        pytest.param((".png",), 10_000, SPECS[2:3], marks=[built, pytest.mark.thorough]),
    ],
)
def test_files_of_others_have_the_same_outcome(
    suffixes: tuple[str, ...], num_bytes: int, specs: tuple[ImageSpec, ...]
) -> None:
    def is_taken(member: tarfile.TarInfo) -> bool:
        name = member.name.lower()
        return member.isfile() and name.endswith(suffixes) and member.size < num_bytes

    with tarfile.open(TORTURE) as tar:
        found: list[Any] = [tar.extractfile(member) for member in tar if is_taken(member)]
        assert_equal_outcomes((file.read() for file in found), specs)


# --- JPEG alone ---------------------------------------------------------------------------------


def test_the_header_gives_the_size_and_mode_that_pillow_gives() -> None:
    for data in ORDINARY_JPEGS.values():
        image = Image.open(io.BytesIO(data))
        assert ordinary_jpeg(data) == OrdinaryJpeg(image.height, image.width, image.mode == "L")


@pytest.mark.parametrize("name", [*READ, *UNREAD])
@pytest.mark.parametrize("spec", SPECS[:5])
def test_every_kind_of_frame_is_stored_or_rejected(name: str, spec: ImageSpec) -> None:
    data = {**READ, **UNREAD}[name]
    found = process_image(data, spec)
    if name in UNREAD:
        assert isinstance(found, Rejection)
        assert found.kind == "undecodable"
        return
    assert isinstance(found, ProcessedImage)
    assert not found.damage
    if spec == KEPT or name in LOSSLESS:
        assert (found.data == data) == (name not in LOSSLESS)


def stored_alike(data: bytes, of_png: bytes, spec: ImageSpec) -> bool:
    """Return whether two files give the same stored bytes, without damage."""
    found, expected = process_image(data, spec), process_image(of_png, spec)
    assert isinstance(found, ProcessedImage)
    assert isinstance(expected, ProcessedImage)
    return (found.data, found.damage) == (expected.data, "")


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_lossless_jpeg_gives_the_pixels_of_a_png(name: str) -> None:
    picture = Image.fromarray(pixels()[..., 0] if "grey" in name else pixels())
    of_png = encoded(picture, "PNG")
    for spec in (SPECS[1], SPECS[4], ImageSpec(size=(48, 64), format="raw")):
        assert stored_alike(LOSSLESS[name], of_png, spec)
    assert (stored_pixels(LOSSLESS[name], None, 4) == np.asarray(picture.convert("RGB"))).all()


@pytest.mark.parametrize("name", ["lossless", "lossless, grey"])
def test_a_lossless_jpeg_with_a_profile_gives_the_pixels_of_a_png(name: str) -> None:
    profile = grey_profile(gamma(1.0)) if "grey" in name else PROFILE
    lossless = LOSSLESS[name]
    data = lossless[:2] + segment(0xE2, b"ICC_PROFILE\0\1\1" + profile) + lossless[2:]
    of_png = encoded(Image.open(io.BytesIO(lossless)), "PNG", icc_profile=profile)
    assert stored_alike(data, of_png, ImageSpec(size=None, fit="none", format="png"))


# --- PNG alone ----------------------------------------------------------------------------------


@built
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    colour=st.sampled_from([0, 2, 3, 4, 6]),
    seed=st.integers(0, 2**32 - 1),
    background=st.tuples(*[st.integers(0, 255)] * 3),
    filters=st.sampled_from([(0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4)]),
)
@examples(200)
def test_rows_of_any_filter_give_pillows_pixels(
    size: tuple[int, int],
    colour: int,
    seed: int,
    background: tuple[int, int, int],
    filters: tuple[int, ...],
) -> None:
    """Any bytes are pixels, whatever the filter says of them."""
    rng = np.random.default_rng(seed)
    height, width = size
    row_bytes = width * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    rows = rng.integers(0, 256, (height, 1 + row_bytes), np.uint8)
    if rng.integers(2):  # sums beyond a byte, and ties between the guesses of Paeth
        rows[:] = rng.choice(np.array([0, 1, 127, 128, 255], np.uint8), rows.shape)
    rows[:, 0] = rng.choice(np.array(filters, np.uint8), height)
    data = png_by_hand(width, height, 8, colour, rows.tobytes())
    if colour == 3:
        chunks = [(b"PLTE", rng.bytes(768)), (b"tRNS", rng.bytes(int(rng.integers(1, 257))))]
        data = with_chunks(data, *chunks[: rng.integers(1, 3)])
    image = ordinary_png(data)
    assert image is not None
    expected = seen(Image.open(io.BytesIO(data)), background)
    assert (image.pixels(background) == expected).all()


@built
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    mode=st.sampled_from(["L", "I;16", "RGB"]),
    seed=st.integers(0, 2**32 - 1),
    filters=st.sampled_from([(1,), (3,), (4,), (0, 1, 2, 3, 4)]),
)
@examples(150)
def test_a_png_is_decoded_into_given_memory_with_pillows_values(
    size: tuple[int, int], mode: str, seed: int, filters: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    height, width = size
    bits, colour, row_bytes = {"L": (8, 0, 1), "I;16": (16, 0, 2), "RGB": (8, 2, 3)}[mode]
    rows = rng.integers(0, 256, (height, 1 + width * row_bytes), np.uint8)
    rows[:, 0] = rng.choice(np.array(filters, np.uint8), height)
    data = png_by_hand(width, height, bits, colour, rows.tobytes())
    expected = np.atleast_3d(np.array(Image.open(io.BytesIO(data))))
    out = np.zeros_like(expected)
    assert stored_png(memoryview(data), mode, out) is out
    assert (out == expected).all()
    found = stored_png(data, mode, out[1:])
    assert found is not None
    assert (found == expected).all()
    assert all(stored_png(data, other) is None for other in {"L", "I;16", "RGB"} - {mode})


@built
def test_the_reader_leaves_any_other_png_to_pillow() -> None:
    decoded = []
    for name, data in (ODD_PNGS | FAULTY_PNGS).items():
        for mode in ("L", "I;16", "RGB"):
            found = stored_png(data, mode)
            if found is not None:
                assert (found[..., 0] == np.asarray(Image.open(io.BytesIO(data)))).all()
                decoded.append((name, mode))
    assert decoded == [("of 16 bits", "I;16")]
    with patch.object(OrdinaryPng, "values", side_effect=AssertionError) as decode:
        assert stored_png(png_by_hand(60_000, 60_000, 8, 2, b""), "RGB") is None
    assert not decode.called


@built
def test_a_png_with_a_wrong_checksum_of_pixels_is_stored_but_not_kept() -> None:
    """Pillow ignores the checksum, TensorFlow refuses the file."""
    at = png().index(TAIL) - 1
    broken = with_byte(png(), at, png()[at] ^ 1)
    assert ordinary_png(broken) is not None
    assert_equal_outcomes([broken])
    for data, is_kept in ((png(), True), (broken, False), (ORDINARY_PNGS["grey"], False)):
        stored = process_image(data, KEPT)
        assert isinstance(stored, ProcessedImage)
        assert (stored.data == data) is is_kept


@built
def test_no_more_is_inflated_than_the_header_and_the_limit_allow() -> None:
    image = ordinary_png(by_hand(2, 1, 0, zlib.compress(bytes(50_000_000))))
    assert image is not None
    with pytest.raises(ValueError, match=r"^expected 3 bytes of pixels, got more$"):
        image.pixels((0, 0, 0))
    with patch.object(OrdinaryPng, "pixels") as inflate:
        result = process_image(png_by_hand(60_000, 60_000, 8, 2, b""), ImageSpec())
    assert isinstance(result, Rejection)
    assert not inflate.called


@built
def test_without_the_extension_or_the_inflater_the_outcome_is_the_same() -> None:
    for data in ORDINARY_PNGS.values():
        with patch.object(png_module, "_inflater", zlib):
            assert ordinary_png(data) is not None
            assert_equal_outcomes([data])
        with patch.object(png_module, "_pixels", None):
            assert ordinary_png(data) is None


# --- the extension itself -----------------------------------------------------------------------


@built
def test_the_extension_refuses_buffers_that_do_not_fit() -> None:
    for rows, num_bytes, row_bytes, step in (
        (bytes(8), 6, 3, 4), (bytes(8), 6, 3, 0), (bytes(8), 6, 4, 3), (bytes(9), 6, 3, 3),
        (bytes(7), 6, 3, 3), (bytes(8), 7, 3, 3), (bytes(8), 6, -3, 3), (bytes(8), 6, 0, 1),
        (b"\5" + bytes(7), 6, 3, 3),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"fit each other|an unknown filter"):
            resample._pixels.unfilter(rows, bytearray(num_bytes), row_bytes, step)
    for indices, colours, num_bytes in ((2, 767, 6), (3, 768, 6), (2, 768, 7)):
        with pytest.raises(ValueError, match="do not fit"):
            resample._pixels.look_up(bytes(indices), bytes(colours), bytearray(num_bytes))
    for size, out in ((8, 7), (6, 6), (7, 6), (8, 0)):
        with pytest.raises(ValueError, match="do not fit"):
            resample._pixels.flatten(bytes(size), bytearray(out), (0, 0, 0))
    for background in ((0, 0, 256), (0, 0), (-1, 0, 0)):
        with pytest.raises((OverflowError, TypeError)):
            resample._pixels.flatten(bytes(8), bytearray(6), background)


# --- Netpbm files -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_plain_netpbm_gives_the_bytes_that_pillow_gives(mode: str) -> None:
    data = encoded(PICTURE.convert(mode), "PPM")
    for one in (data, data[:-1]):
        assert (ordinary_netpbm(one) is not None) == (one is data)
        for spec in SPECS:
            with patch("shardprep.image.process.ordinary_netpbm", return_value=None):
                expected = process_image(one, spec)
            assert process_image(one, spec) == expected
