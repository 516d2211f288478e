"""An ordinary JPEG needs no Pillow, and no full decode to be kept: both change nothing but time."""

from __future__ import annotations

import io
import random
import struct
import tarfile
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image

from shardprep.image.decode import stored_pixels
from shardprep.image.jpeg_header import OrdinaryJpeg, ordinary_jpeg
from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.image.spec import ImageSpec
from tests.image.policy import POLICY
from tests.support.builders import SHARED_DATA, encoded, jpeg, pixels
from tests.support.jpeg_frames import LOSSLESS, READ, UNREAD
from tests.support.odd_images import (
    DISPLAY_P3,
    SRGB,
    gamma,
    grey_profile,
    oriented,
    rgb_profile,
    srgb_to_light,
)

KEPT = ImageSpec(size=None, fit="none", format="keep", max_pixels=1_000_000)
SPECS = (
    KEPT,
    ImageSpec(size=(8, 6), max_pixels=1_000_000),
    ImageSpec(size=(48, 64), format="keep", max_pixels=1_000_000),
    ImageSpec(size=(40, 50), fit="within", format="keep", truncated="recover"),
    ImageSpec(size=None, fit="none", format="raw", truncated="recover", max_pixels=1_000_000),
    ImageSpec(min_side=49),
)
PICTURE = Image.fromarray(pixels())
PROFILE = rgb_profile(SRGB, srgb_to_light)
ORDINARY = {
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
ODD = {
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
FAULTY = {
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


def by_pillow(data: bytes, spec: ImageSpec) -> ProcessedImage | Rejection:
    """Return the outcome without either of the short ways."""
    with ExitStack() as off:
        for name in ("_process_ordinary", "_is_kept"):
            off.enter_context(patch(f"shardprep.image.process.{name}", return_value=None))
        return process_image(data, spec)


def assert_equal_outcomes(files: Iterable[bytes]) -> None:
    for data in files:
        for spec in SPECS:
            assert process_image(data, spec) == by_pillow(data, spec)


@pytest.mark.parametrize("data", ORDINARY.values(), ids=ORDINARY)
def test_an_ordinary_jpeg_is_stored_alike_and_pillow_never_sees_it(data: bytes) -> None:
    assert_equal_outcomes([data])
    with patch("shardprep.image.process.open_image", side_effect=AssertionError):
        for spec in SPECS[:5]:
            assert isinstance(process_image(data, spec), ProcessedImage)


def test_the_header_says_what_pillow_says() -> None:
    for data in ORDINARY.values():
        image = Image.open(io.BytesIO(data))
        assert ordinary_jpeg(data) == OrdinaryJpeg(image.height, image.width, image.mode == "L")


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_what_is_odd_about_a_header_is_left_to_pillow(data: bytes) -> None:
    assert ordinary_jpeg(data) is None
    assert_equal_outcomes([data])


@pytest.mark.parametrize("data", FAULTY.values(), ids=FAULTY)
def test_a_fault_has_the_same_outcome(data: bytes) -> None:
    assert ordinary_jpeg(data)
    assert_equal_outcomes([data])


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


@pytest.mark.parametrize("name", LOSSLESS)
def test_a_lossless_jpeg_gives_the_pixels_of_a_png(name: str) -> None:
    picture = pixels()[..., 0] if "grey" in name else pixels()
    of_png = encoded(Image.fromarray(picture), "PNG")
    for spec in (SPECS[1], SPECS[4], ImageSpec(size=(48, 64), format="raw")):
        found, expected = process_image(LOSSLESS[name], spec), process_image(of_png, spec)
        assert isinstance(found, ProcessedImage)
        assert isinstance(expected, ProcessedImage)
        assert found.data == expected.data


@pytest.mark.parametrize("name", ["lossless", "lossless, grey"])
def test_a_lossless_jpeg_with_a_profile_is_sound(name: str) -> None:
    profile = grey_profile(gamma(1.0)) if "grey" in name else PROFILE
    lossless, icc = LOSSLESS[name], b"ICC_PROFILE\0\1\1" + profile
    data = lossless[:2] + segment(0xE2, icc) + lossless[2:]
    picture = Image.open(io.BytesIO(lossless))
    of_png = encoded(picture, "PNG", icc_profile=profile)
    spec = ImageSpec(size=None, fit="none", format="png")
    found, expected = process_image(data, spec), process_image(of_png, spec)
    assert isinstance(found, ProcessedImage)
    assert isinstance(expected, ProcessedImage)
    assert (found.data, found.damage) == (expected.data, "")


@pytest.mark.parametrize("data", LOSSLESS.values(), ids=LOSSLESS)
def test_a_stored_lossless_jpeg_is_decoded_whole(data: bytes) -> None:
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert (stored_pixels(data, None, 4) == expected).all()


def test_every_image_of_the_policy_has_the_same_outcome() -> None:
    assert_equal_outcomes(
        case.data
        for lines in POLICY.values()
        for line in lines
        for case in line.cases().values()
        if case.data.startswith(b"\xff\xd8")
    )


@pytest.mark.thorough
def test_damage_has_the_same_outcome() -> None:
    rng = random.Random(0)
    files = [*ORDINARY.values(), jpeg(exif=oriented(1)), jpeg(icc_profile=PROFILE)]

    def damaged() -> bytes:
        data = bytearray(rng.choice(files))
        at = rng.randrange(rng.choice((len(data), 640)))
        noise = rng.choice((rng.randbytes(1), rng.randbytes(4), b"\xff\xd9", b"\xff\xfe\0\4ab"))
        data[at : at + rng.choice((0, 1, 1, 50))] = noise
        return bytes(data[: rng.choice((None, None, None, at))])

    assert_equal_outcomes(damaged() for _ in range(400))


TORTURE = SHARED_DATA / "torture-images.tar"


@pytest.mark.skipif(not TORTURE.is_file(), reason="the shared images are not here")
def test_jpegs_of_others_have_the_same_outcome() -> None:
    def is_small_jpeg(member: tarfile.TarInfo) -> bool:
        name = member.name.lower()
        return member.isfile() and name.endswith((".jpg", ".jpeg")) and member.size < 40_000

    with tarfile.open(TORTURE) as tar:
        found: list[Any] = [tar.extractfile(member) for member in filter(is_small_jpeg, tar)]
        assert_equal_outcomes(file.read() for file in found)
