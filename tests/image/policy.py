"""Odd and broken images, and what becomes of them: files for each row of `tests/data/images.toml`.

`python -m tests.image.policy` writes the tables of docs/images.md; `test_policy` processes every
file and compares the tables.
"""

from __future__ import annotations

import io
import struct
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pydicom
from PIL import Image

from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.image.spec import ImageSpec
from tests.support import jpeg_frames
from tests.support.builders import encoded, jpeg, pixels, png, tar_bytes, zip_bytes
from tests.support.dicom import SHIPPED, deflated_bomb, dicom, sequence, without_pixels
from tests.support.odd_images import (
    ADOBE_RGB,
    ARITHMETIC_JPEG,
    ARITHMETIC_PICTURE,
    DISPLAY_P3,
    SRGB,
    Array,
    as_stored,
    cmyk,
    cmyk_profile,
    gamma,
    grey,
    grey_profile,
    heic,
    lab_in_srgb,
    light_to_srgb,
    oriented,
    over,
    png_by_hand,
    rgb_profile,
    seen_in_srgb,
    srgb_to_light,
    tiff_by_hand,
    with_png_chunk,
    without_segment,
    ycck_jpeg,
)
from tests.support.paths import DATA, ROOT, with_part

PAGE = ROOT / "docs" / "images.md"
MARKS = "<!-- policy -->\n", "<!-- end of policy -->\n"
MIN_WRITTEN_OF_OTHERS = 1000
STARVED_MEGABYTES = (40, 150)
"""Megabytes of memory, too few for a large image."""
BACKGROUND = (10, 200, 30)
PICTURE = pixels(24, 32, seed=5)
ALPHA = np.linspace(0, 255, 24 * 32).astype(np.uint8).reshape(24, 32)
RAMP16 = np.linspace(0, 65_535, 24 * 32).astype(np.uint16).reshape(24, 32)
NOISY = (
    (pixels(96, 128).astype(int) + np.random.default_rng(0).integers(-20, 20, (96, 128, 3)))
    .clip(0, 255)
    .astype(np.uint8)
)
JPEG_PIXELS = np.asarray(Image.open(io.BytesIO(jpeg())))
"""As Pillow alone decodes them."""
BEST: dict[str, Any] = {"quality": 100, "subsampling": 0}
RED = PICTURE[..., 0]
CLEAR = Image.fromarray(np.dstack([PICTURE, ALPHA]))
INDEXED = Image.fromarray(PICTURE).quantize(16)
INDICES = np.asarray(INDEXED)
PALETTE = np.array(INDEXED.getpalette(), np.uint8).reshape(-1, 3)
COLOURS = PALETTE[INDICES]
TWELVE = RAMP16 >> 4
TWO_BITS = png_by_hand(2, 2, 2, 0, b"\0\x10\0\xb0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    data: bytes
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the `ImageSpec`, beside raw pixels of the image's own size over `BACKGROUND`."""
    expected: Array | None = None
    """The colours that are stored, [height, width, 3]."""
    kind: str = ""
    """Kind of its rejection; "" if it is written."""
    says: str = ""
    """Part of the reason."""


Cases = dict[str, Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the policy; `tests/data/images.toml` says what each field is."""

    what: str
    result: str
    why: str = ""
    within: int | None = None
    cases: Callable[[], Cases]


def shown(picture: Array, data: bytes, **keys: Any) -> Case:
    """Return a file that comes out as a picture."""
    return Case(data=data, expected=picture, keys=keys)


def rejected(data: bytes, kind: str, says: str = "", **keys: Any) -> Case:
    return Case(data=data, kind=kind, says=says, keys=keys)


def image(values: Array) -> Image.Image:
    return Image.fromarray(values)


def file(values: Array | Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    return encoded(image(values) if isinstance(values, np.ndarray) else values, form, **options)


# --- colours ------------------------------------------------------------------------------------


def _plain() -> Cases:
    one = np.asarray(image(PICTURE).convert("1"))
    return {
        "RGB PNG": shown(PICTURE, file(PICTURE, "PNG")),
        "grey PNG": shown(grey(RED), file(RED, "PNG")),
        "2-bit PNG": shown(grey(np.array([[0, 85], [170, 255]])), TWO_BITS),
        "1-bit PNG": shown(grey(one * 255), file(one, "PNG")),
        "1-bit TIFF": shown(grey(one * 255), file(one, "TIFF", compression="group4")),
        "palette PNG": shown(COLOURS, file(INDEXED, "PNG")),
        "palette GIF": shown(COLOURS, file(INDEXED, "GIF")),
        "palette BMP": shown(COLOURS, file(INDEXED, "BMP")),
    }


def _transparent() -> Cases:
    blended = over(PICTURE, ALPHA, BACKGROUND)
    premultiplied = np.rint(PICTURE * (ALPHA[..., None] / 255)).astype(np.uint8)
    key = PICTURE.copy()
    key[3:9, 4:11] = (1, 2, 3)
    keyed = key.copy()
    keyed[3:9, 4:11] = BACKGROUND
    grey_alpha = np.dstack([RED, ALPHA])
    wide = ((key.astype(np.uint16) << 8) | 7).astype(">u2")
    sixteen = png_by_hand(32, 24, 16, 0, _rows(RAMP16.astype(">u2")))
    seen16 = grey(RAMP16 / 257)
    seen16[RAMP16[5, 5] == RAMP16] = BACKGROUND
    return {
        "RGBA PNG": shown(blended, file(CLEAR, "PNG")),
        "RGBA WebP": shown(blended, file(CLEAR, "WEBP", lossless=True, exact=True)),
        "RGBA TIFF": shown(blended, file(CLEAR, "TIFF")),
        "RGBA TIFF, alpha multiplied in": shown(
            premultiplied + over(np.zeros((24, 32, 3)), ALPHA, BACKGROUND),
            tiff_by_hand(np.dstack([premultiplied, ALPHA]), 2, extra=1),
        ),
        "grey and alpha PNG": shown(
            over(grey(RED), ALPHA, BACKGROUND),
            encoded(Image.merge("LA", [image(c) for c in (RED, ALPHA)]), "PNG"),
        ),
        "16-bit grey and alpha PNG": shown(
            over(grey(RED), ALPHA, BACKGROUND),
            png_by_hand(32, 24, 16, 4, _rows(grey_alpha.astype(">u2") * 257)),
        ),
        "palette with a clear colour": shown(
            over(COLOURS, np.where(INDICES == 2, 0, 255), BACKGROUND),
            file(INDEXED, "PNG", transparency=2),
        ),
        "palette with a half clear colour": shown(
            over(COLOURS, np.where(INDICES == 0, 128, 255), BACKGROUND),
            file(INDEXED, "PNG", transparency=b"\x80"),
        ),
        "GIF with a clear colour": shown(
            over(COLOURS, np.where(INDICES == 2, 0, 255), BACKGROUND),
            file(INDEXED, "GIF", transparency=2),
        ),
        "grey key": shown(
            over(grey(RED), np.where(RED[5, 5] == RED, 0, 255), BACKGROUND),
            file(RED, "PNG", transparency=int(RED[5, 5])),
        ),
        "colour key": shown(keyed, file(key, "PNG", transparency=(1, 2, 3))),
        "16-bit colour key": shown(
            keyed,
            with_png_chunk(
                png_by_hand(32, 24, 16, 2, _rows(wide)), b"tRNS", struct.pack(">3H", 263, 519, 775)
            ),
        ),
        "16-bit grey key": shown(
            seen16, with_png_chunk(sixteen, b"tRNS", struct.pack(">H", RAMP16[5, 5]))
        ),
        "2-bit grey key": shown(
            np.array([[(0, 0, 0), BACKGROUND], [(170,) * 3, (255,) * 3]]),
            with_png_chunk(TWO_BITS, b"tRNS", b"\0\1"),
        ),
    }


def _rows(values: Array) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in values)


def _dicom_grey() -> Cases:
    units = {"RescaleSlope": "1", "RescaleIntercept": "-1024"}
    window: dict[str, Any] = {"WindowCenter": ["0.5", "0"], "WindowWidth": ["2049", "80"]}
    seen = grey((TWELVE - 0.0).clip(0, 2048) / 2048 * 255)
    curve = np.rint(np.linspace(0, 1, 4096) ** 2 * 4095)
    table = sequence(LUTDescriptor=[4096, 0, 12], LUTData=curve.astype("<u2").tobytes())
    low, high = np.quantile(TWELVE, (0.005, 0.995))
    between = ((TWELVE - low) / (high - low)).clip(0, 1) * 255
    return {
        "its first window": shown(seen, dicom(TWELVE, **units, **window)),
        "its table": shown(grey(curve[TWELVE] / 4095 * 255), dicom(TWELVE, VOILUTSequence=table)),
        "no window": shown(grey(between), dicom(TWELVE, **units)),
        "8 bits": shown(grey(RED), dicom(RED)),
    }


def _dicom_window() -> Cases:
    signed = TWELVE.astype(np.int16) - 1024
    units = {"RescaleSlope": "2", "RescaleIntercept": "8", "WindowCenter": "0", "WindowWidth": "9"}
    depth: dict[str, Any] = {"BitsStored": 12, "HighBit": 11}
    share = ((signed * 2.0 + 8 - 39.5) / 399 + 0.5).clip(0, 1)
    clipped = signed.clip(-2048, 2047)
    return {
        "CENTER,WIDTH": shown(grey(share * 255), dicom(signed, **units), window=(40.0, 400.0)),
        "full": shown(grey(TWELVE / 4095 * 255), dicom(TWELVE, **depth, **units), window="full"),
        "full, with a sign": shown(
            grey((clipped + 2048.0) / 4095 * 255), dicom(clipped, **depth, **units), window="full"
        ),
        "colours": shown(PICTURE, dicom(PICTURE), window=(40.0, 400.0)),
    }


def _dicom_inverted() -> Cases:
    inverted = {"PhotometricInterpretation": "MONOCHROME1"}
    window = {"WindowCenter": "1024.5", "WindowWidth": "2049"}
    return {
        "8 bits": shown(grey(255 - RED), dicom(RED, **inverted)),
        "a window": shown(
            grey(255 - TWELVE.clip(0, 2048) / 2048 * 255), dicom(TWELVE, **inverted, **window)
        ),
    }


def _dicom_colours() -> Cases:
    ycc = np.asarray(image(PICTURE).convert("YCbCr"))
    tables: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for i, name in enumerate(("Red", "Green", "Blue")):
        values = PALETTE[:, i].astype("<u2") * 257
        tables[f"{name}PaletteColorLookupTableDescriptor"] = [len(values), 0, 16]
        tables[f"{name}PaletteColorLookupTableData"] = values.tobytes()
    planes = np.ascontiguousarray(PICTURE.transpose(2, 0, 1)).tobytes()
    p3 = seen_in_srgb(PICTURE, DISPLAY_P3, srgb_to_light)
    return {
        "RGB": shown(PICTURE, dicom(PICTURE)),
        "planes": shown(PICTURE, dicom(PICTURE, PlanarConfiguration=1, PixelData=planes)),
        "16 bits": shown(PICTURE, dicom(PICTURE.astype(np.uint16) * 257)),
        "YBR_FULL": shown(PICTURE, dicom(ycc, PhotometricInterpretation="YBR_FULL")),
        "palette": shown(COLOURS, dicom(INDICES, **tables)),
        "profile": shown(p3, dicom(PICTURE, ICCProfile=_profiles()["P3"])),
    }


def _dicom_frames() -> Cases:
    several = np.stack(FRAMES)
    return {
        "colours": shown(FRAMES[0], dicom(several)),
        "grey": shown(grey(FRAMES[1][..., 1]), dicom(several[1:, ..., 1])),
    }


def _dicom_forms() -> Cases:
    """Return pydicom's files: the same picture in each encoding."""
    values = pydicom.dcmread(SHIPPED / "MR_small.dcm").pixel_array
    slice_ = grey(((values - 599.5) / 1599 + 0.5).clip(0, 1) * 255)
    bars = pydicom.dcmread(SHIPPED / "SC_rgb_gdcm_KY.dcm").pixel_array
    plain = dicom(RED, "1.2.840.10008.1.2.1.99")
    cases = {"deflated": shown(grey(RED), plain)}
    for form in ("", "_implicit", "_bigendian", "_RLE", "_jp2klossless", "_jpeg_ls_lossless"):
        data = (SHIPPED / f"MR_small{form}.dcm").read_bytes()
        cases[f"grey{form}"] = shown(slice_, data, window=(600.0, 1600.0))
    for form in ("rle", "jpeg_gdcm", "rle_16bit"):
        cases[f"bars_{form}"] = shown(bars, (SHIPPED / f"SC_rgb_{form}.dcm").read_bytes())
    return cases


def _heic() -> Cases:
    p3 = seen_in_srgb(PICTURE, DISPLAY_P3, srgb_to_light)
    turned = {turn: heic(image(as_stored(PICTURE, turn)), exif=oriented(turn)) for turn in (3, 6)}
    avif = file(PICTURE, "AVIF", quality=100, subsampling="4:4:4")
    return {
        "RGB": shown(PICTURE, heic(image(PICTURE))),
        "grey": shown(grey(RED), heic(image(RED))),
        "alpha": shown(over(PICTURE, ALPHA, BACKGROUND), heic(CLEAR)),
        "Display P3": shown(p3, heic(image(PICTURE), icc_profile=_profiles()["P3"])),
        **{f"orientation {turn}": shown(PICTURE, data) for turn, data in turned.items()},
        "several": shown(PICTURE, heic(image(PICTURE), append_images=[image(255 - PICTURE)])),
        "AVIF of a general brand": shown(PICTURE, avif[:8] + b"mif1" + avif[12:]),
    }


def _deep_grey() -> Cases:
    ramp = grey(RAMP16 / 257)
    j2k = file(RAMP16, "JPEG2000")
    return {
        "PNG": shown(ramp, png_by_hand(32, 24, 16, 0, _rows(RAMP16.astype(">u2")))),
        "TIFF": shown(ramp, tiff_by_hand(RAMP16)),
        "big-endian TIFF": shown(ramp, tiff_by_hand(RAMP16.astype(">u2"))),
        "TIFF, white is 0": shown(255 - ramp, tiff_by_hand(RAMP16, 0)),
        "12-bit TIFF": shown(grey(TWELVE / 4095 * 255), tiff_by_hand(TWELVE, bits=12)),
        "PGM": shown(ramp, b"P5 32 24 65535\n" + RAMP16.astype(">u2").tobytes()),
        "JPEG 2000": shown(ramp, j2k),
    }


def _deep_grey_in_range() -> Cases:
    data = png_by_hand(32, 24, 16, 0, _rows((TWELVE + 1000).astype(">u2")))
    signed = (RAMP16.astype(np.int32) >> 4) - 1000
    ramp = grey(TWELVE / 4095 * 255)
    holed = TWELVE.astype(np.float32)
    holed[0, :3] = (np.nan, -np.inf, np.inf)
    seen = ramp.copy()
    seen[0, :3] = [(0,) * 3, (0,) * 3, (255,) * 3]
    return {
        "PNG": shown(ramp, data, depth_range=(1000, 5095)),
        "its own range": shown(ramp, data, depth_range="auto"),
        "values beyond": shown(
            grey((TWELVE.clip(1000, 2000) - 1000.0) / 1000 * 255),
            tiff_by_hand(TWELVE),
            depth_range=(1000, 2000),
        ),
        "TIFF, white is 0": shown(255 - ramp, tiff_by_hand(TWELVE, 0), depth_range=(0, 4095)),
        "32 bits with a sign": shown(ramp, tiff_by_hand(signed), depth_range=(-1000, 3095)),
        "floats": shown(seen, tiff_by_hand(holed), depth_range=(0, 4095)),
        "floats, their own range": shown(
            ramp, tiff_by_hand((TWELVE / 4095 * 0.1).astype(np.float32)), depth_range="auto"
        ),
        "all alike": shown(
            grey(np.zeros((24, 32))),
            tiff_by_hand(np.full((24, 32), 7, np.uint16)),
            depth_range="auto",
        ),
        "8 bits": shown(PICTURE, file(PICTURE, "PNG"), depth_range=(0, 10)),
    }


def _deep_colour() -> Cases:
    wide = PICTURE.astype(np.uint16) * 257 + (PICTURE < 255).astype(np.uint16) * 100
    rgba = np.dstack([wide, ALPHA.astype(np.uint16) * 257])
    expected = wide / 257
    return {
        "RGB PNG": shown(expected, png_by_hand(32, 24, 16, 2, _rows(wide.astype(">u2")))),
        "RGB TIFF": shown(expected, tiff_by_hand(wide, 2)),
        "big-endian RGB TIFF": shown(expected, tiff_by_hand(wide.astype(">u2"), 2)),
        "PPM": shown(expected, b"P6 32 24 65535\n" + wide.astype(">u2").tobytes()),
        "RGBA PNG": shown(
            over(expected, ALPHA, BACKGROUND), png_by_hand(32, 24, 16, 6, _rows(rgba.astype(">u2")))
        ),
        "RGBA TIFF": shown(over(expected, ALPHA, BACKGROUND), tiff_by_hand(rgba, 2, extra=2)),
    }


def _integers() -> Cases:
    ramp = grey(RAMP16 / 257)
    signed = RAMP16.astype(np.int32) - 1000
    return {
        "values of 16 bits": shown(ramp, tiff_by_hand(RAMP16.astype(np.int32))),
        "their whole range": shown(ramp, tiff_by_hand(RAMP16.astype(np.int32) * 32_767)),
        "unsigned, whole range": shown(ramp, tiff_by_hand(RAMP16.astype(np.uint32) * 65_537)),
        "some negative": shown(grey(signed.clip(0) / 257), tiff_by_hand(signed)),
        "16 bits with a sign": shown(
            grey(signed.clip(0, 32_767) / 257),
            tiff_by_hand(signed.clip(-999, 32_767).astype("<i2")),
        ),
    }


def _floats() -> Cases:
    ramp = grey(RAMP16 / 257)
    odd = (RAMP16 / 65_535).astype(np.float32)
    odd[0, :3] = (np.nan, -np.inf, np.inf)
    seen = ramp.copy()
    seen[0, :3] = [(0,) * 3, (0,) * 3, (255,) * 3]
    values = RAMP16 / 65_535
    return {
        "0 to 1": shown(ramp, tiff_by_hand(values.astype(np.float32))),
        "0 to a half": shown(ramp / 2, tiff_by_hand((values / 2).astype(np.float32))),
        "0 to 255": shown(ramp, tiff_by_hand((values * 255).astype(np.float32))),
        "-5 to 5": shown(ramp, tiff_by_hand((values * 10 - 5).astype(np.float32))),
        "no numbers": shown(seen, tiff_by_hand(odd)),
        "all alike": shown(
            grey(np.full((24, 32), 127.5)), tiff_by_hand(np.full((24, 32), 0.5, np.float32))
        ),
    }


def _inks() -> Cases:
    plain, plain_rgb = cmyk(PICTURE, 0)
    dark, dark_rgb = cmyk(PICTURE, 100)
    ycck, ycck_rgb = ycck_jpeg(PICTURE, 100)
    adobe = encoded(dark, **BEST)
    inks16 = np.asarray(dark).astype(np.uint16) * 257
    return {
        "CMYK JPEG": shown(plain_rgb, encoded(plain, **BEST)),
        "CMYK JPEG with black": shown(dark_rgb, adobe),
        "CMYK JPEG without Adobe's mark": shown(dark_rgb, without_segment(adobe, 0xEE)),
        "YCCK JPEG": shown(ycck_rgb, ycck),
        "CMYK TIFF": shown(dark_rgb, encoded(dark, "TIFF")),
        "16-bit CMYK TIFF": shown(dark_rgb, tiff_by_hand(inks16, 5)),
    }


def _other_spaces() -> Cases:
    ycc = encoded(image(PICTURE).convert("YCbCr"), "TIFF")
    lab = np.stack(np.meshgrid([30, 60, 80], [-10, 0, 15], [-10, 0, 15]), -1).reshape(3, 9, 3)
    stored = np.dstack([np.rint(lab[..., 0] * 2.55), lab[..., 1] & 255, lab[..., 2] & 255])
    return {
        "YCbCr TIFF": shown(PICTURE, ycc),
        "Lab TIFF": shown(lab_in_srgb(lab), tiff_by_hand(stored.astype(np.uint8), 8)),
    }


@cache
def _profiles() -> dict[str, bytes]:
    return {
        "P3": rgb_profile(DISPLAY_P3, srgb_to_light),
        "Adobe": rgb_profile(ADOBE_RGB, gamma(563 / 256)),
        "sRGB": rgb_profile(SRGB, srgb_to_light),
        "light": grey_profile(gamma(1.0)),
        "inks": cmyk_profile(_overprints()),
    }


def _overprints() -> Array:
    """Return L, a, b of 16 mixtures of inks: duller than any formula makes them."""
    bits = np.array([[i >> k & 1 for k in (3, 2, 1, 0)] for i in range(16)])
    lab = np.array([100.0, 0, 0]) + bits[:, :3] @ np.array(
        [[-30, -25, -30], [-35, 40, -5], [-4, -4, 40]]
    )
    lab[:, 1:] = lab[:, 1:].clip(-40, 40) * 0.8
    lab[bits[:, 3] == 1] = 0
    lightness = np.rint(lab[:, :1].clip(0, 100) * 2.55) / 2.55
    return np.hstack([lightness, np.rint(lab[:, 1:])])


def _with_profile() -> Cases:
    profiles = _profiles()
    p3 = seen_in_srgb(PICTURE, DISPLAY_P3, srgb_to_light)
    adobe = seen_in_srgb(PICTURE, ADOBE_RGB, gamma(563 / 256))
    light = light_to_srgb(grey(RED) / 255) * 255
    bits = np.array([[i >> k & 1 for k in (3, 2, 1, 0)] for i in range(16)], np.uint8)
    inks = np.repeat(np.repeat((bits * 255).reshape(4, 4, 4), 8, axis=0), 8, axis=1)
    mixed = lab_in_srgb(np.repeat(np.repeat(_overprints().reshape(4, 4, 3), 8, 0), 8, 1))
    cmyk_image = Image.frombytes("CMYK", (32, 32), np.ascontiguousarray(inks).tobytes())
    return {
        "Display P3 PNG": shown(p3, file(PICTURE, "PNG", icc_profile=profiles["P3"])),
        "Adobe RGB PNG": shown(adobe, file(PICTURE, "PNG", icc_profile=profiles["Adobe"])),
        "Adobe RGB TIFF": shown(adobe, file(PICTURE, "TIFF", icc_profile=profiles["Adobe"])),
        "Display P3 WebP": shown(
            p3, file(PICTURE, "WEBP", lossless=True, icc_profile=profiles["P3"])
        ),
        "Display P3 with alpha": shown(
            over(p3, ALPHA, BACKGROUND), file(CLEAR, "PNG", icc_profile=profiles["P3"])
        ),
        "Display P3 with a palette": shown(
            seen_in_srgb(COLOURS, DISPLAY_P3, srgb_to_light),
            file(INDEXED, "PNG", icc_profile=profiles["P3"]),
        ),
        "linear grey PNG": shown(light, file(RED, "PNG", icc_profile=profiles["light"])),
        "linear 16-bit grey PNG": shown(
            light, file(RED.astype(np.uint16) * 257, "PNG", icc_profile=profiles["light"])
        ),
        "CMYK TIFF": shown(mixed, encoded(cmyk_image, "TIFF", icc_profile=profiles["inks"])),
    }


def _with_profile_jpeg() -> Cases:
    profiles = _profiles()
    p3 = seen_in_srgb(PICTURE, DISPLAY_P3, srgb_to_light)
    light = PICTURE[..., 0] // 2 + 100
    turned = as_stored(PICTURE, 6)
    return {
        "RGB": shown(p3, file(PICTURE, icc_profile=profiles["P3"], **BEST)),
        "turned": shown(p3, file(turned, icc_profile=profiles["P3"], exif=oriented(6), **BEST)),
        "grey": shown(
            light_to_srgb(grey(light) / 255) * 255,
            file(light, icc_profile=profiles["light"], quality=100),
        ),
    }


def _srgb_profile() -> Cases:
    profile = _profiles()["sRGB"]
    return {
        "PNG": shown(PICTURE, file(PICTURE, "PNG", icc_profile=profile)),
        "grey PNG": shown(grey(RED), file(RED, "PNG", icc_profile=grey_profile(srgb_to_light))),
    }


def _unfit_profile() -> Cases:
    profiles = _profiles()
    broken = {
        "empty": b"\0",
        "garbage": b"no profile at all" * 20,
        "cut": profiles["P3"][:200],
        "of inks": profiles["inks"],
        "of grey": profiles["light"],
    }
    return {
        name: shown(PICTURE, file(PICTURE, "PNG", icc_profile=profile))
        for name, profile in broken.items()
    }


def _other_colour_tags() -> Cases:
    data = file(PICTURE, "PNG")
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA001] = 0xFFFF  # ColorSpace: uncalibrated
    return {
        "gAMA": shown(PICTURE, with_png_chunk(data, b"gAMA", struct.pack(">I", 100_000))),
        "cHRM": shown(
            PICTURE,
            with_png_chunk(
                data,
                b"cHRM",
                struct.pack(">8I", 31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000),
            ),
        ),
        "cICP": shown(PICTURE, with_png_chunk(data, b"cICP", bytes([12, 13, 0, 1]))),
        "EXIF": shown(PICTURE, file(PICTURE, "PNG", exif=exif.tobytes())),
    }


# --- turning and frames -------------------------------------------------------------------------

EXIF_FORMS: dict[str, dict[str, Any]] = {
    "JPEG": BEST,
    "PNG": {},
    "TIFF": {},
    "WEBP": {"lossless": True},
    "AVIF": {"quality": 100, "subsampling": "4:4:4"},
    "MPO": BEST,
}


def _turned() -> Cases:
    return {
        f"{form} {turn}": shown(
            PICTURE, file(as_stored(PICTURE, turn), form, exif=oriented(turn), **options)
        )
        for form, options in EXIF_FORMS.items()
        for turn in range(1, 9)
    }


def _badly_turned() -> Cases:
    word = b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\2\0\2\0\0\0006\0\0\0\0\0\0\0"
    blocks = {
        **{f"orientation {turn}": oriented(turn) for turn in (0, 9, 65_535)},
        "orientation in letters": word,
        "no directory": b"Exif\0\0",
        "garbage": b"Exif\0\0garbage" * 9,
        "cut": b"Exif\0\0II*\0\x08\0\0\0\x05\0",
    }
    return {
        name: shown(PICTURE, file(PICTURE, exif=block, **BEST)) for name, block in blocks.items()
    }


FRAMES = [
    np.full((8, 12, 3), colour, np.uint8) for colour in ((200, 9, 0), (0, 200, 9), (9, 0, 99))
]


def _frames(form: str, **options: Any) -> Case:
    first, *others = map(image, FRAMES)
    data = encoded(first, form, save_all=True, append_images=others, **options)
    return shown(FRAMES[0], data)


def _animations() -> Cases:
    return {"GIF": _frames("GIF"), "WebP": _frames("WEBP", lossless=True), "APNG": _frames("PNG")}


def _pages() -> Cases:
    return {"TIFF": _frames("TIFF"), "MPO": _frames("MPO", quality=95)}


# --- formats ------------------------------------------------------------------------------------

LOSSLESS: dict[str, dict[str, Any]] = {
    **{form: {} for form in ("BMP", "DIB", "DDS", "PCX", "PPM", "QOI", "SGI", "TGA", "JPEG2000")},
    "TIFF": {"compression": "tiff_lzw"},
    "WEBP": {"lossless": True},
}


def _formats() -> Cases:
    picture = pixels(128, 128)
    return {
        form: shown(picture, file(picture, form, **options)) for form, options in LOSSLESS.items()
    }


def _jpegs() -> Cases:
    smooth = pixels(24, 32, seed=5)
    kinds: dict[str, dict[str, Any]] = {
        "progressive": {**BEST, "progressive": True},
        "restart markers": {**BEST, "restart_marker_blocks": 2},
        "stored as RGB": {"quality": 100, "keep_rgb": True},
    }
    return {
        **{name: shown(smooth, file(smooth, **how)) for name, how in kinds.items()},
        "arithmetic": shown(ARITHMETIC_PICTURE, ARITHMETIC_JPEG),
        "arithmetic, progressive": shown(
            ARITHMETIC_PICTURE, jpeg_frames.PROGRESSIVE_ARITHMETIC_JPEG
        ),
        "AVIF": shown(smooth, file(smooth, "AVIF", quality=100, subsampling="4:4:4")),
        "JPEG 2000, lossy": shown(
            smooth, file(smooth, "JPEG2000", irreversible=True, quality_layers=[2])
        ),
    }


def _lossless_jpegs() -> Cases:
    return {
        name: shown(grey(pixels()[..., 0]) if "grey" in name else pixels(), data)
        for name, data in jpeg_frames.LOSSLESS.items()
    }


def _unread_jpegs() -> Cases:
    return {name: rejected(data, "undecodable") for name, data in jpeg_frames.UNREAD.items()}


def _other_data() -> Cases:
    found = {
        "empty": (b"", "the file is empty"),
        "one byte": (b"\xff", "not a known kind"),
        "start of a JPEG": (jpeg()[:2], "not a known kind"),
        "zeros": (bytes(5000), "nothing but 5,000 zero bytes"),
        "HTML": (
            b"\n<!DOCTYPE html>\n<html><body>404",
            "leaves it (starts with b'\\n<!DOCTYPE html>",
        ),
        "Git LFS pointer": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
            "run `git lfs pull`",
        ),
        "text": (b"no image at all\nbut two lines\n", "a text"),
        "text of other letters": (("x" + "Ж" * 900).encode(), "a text"),
        "JSON": (b'{"error": "too many requests"}', "JSON"),
        "SVG": (
            b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
            "an SVG drawing",
        ),
        "PDF": (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "a PDF document"),
        "zip": (zip_bytes({"a.jpg": jpeg()}), "an archive (zip)"),
        "tar": (tar_bytes({"a.txt": b"a"}), "an archive (tar)"),
        "DICOM without pixels": (without_pixels(), "a DICOM file without an image (Basic Text SR"),
        "DICOMDIR": ((SHIPPED / "dicomdirtests" / "DICOMDIR").read_bytes(), "a DICOM directory"),
        "video": (b"\0\0\0\x18ftypisom" + bytes(12), "a video"),
        "JPEG XL": (b"\xff\x0a" + bytes(9), "a JPEG XL image"),
        "EPS": (file(PICTURE, "EPS"), "a PostScript drawing"),
        "NumPy": (b"\x93NUMPY\1\0" + bytes(60), "a NumPy array"),
        "icon": (file(PICTURE, "ICO"), "an icon"),
        "noise": (np.random.default_rng(0).bytes(300), "not a known kind of image"),
    }
    return {name: rejected(data, "not_an_image", says) for name, (data, says) in found.items()}


# --- damage -------------------------------------------------------------------------------------

CUT: dict[str, dict[str, Any]] = {
    **{form: {} for form in ("JPEG", "PNG", "BMP", "PPM", "TGA", "PCX", "SGI", "TIFF")},
    **{form: {} for form in ("WEBP", "AVIF", "JPEG2000", "DDS")},
    "GIF": {"interlace": 0},
    "TIFF, LZW": {"compression": "tiff_lzw"},
    "JPEG, progressive": {"progressive": True},
}
"""Formats whose cut files are told from garbage → how to write them."""
RECOVERED = ("JPEG", "JPEG, progressive", "PNG", "GIF", "BMP", "PPM", "TGA", "PCX", "SGI", "TIFF")
"""Those of which the beginning can be decoded."""


@cache
def whole(name: str) -> bytes:
    """Return the noisy picture in one of the formats that are cut."""
    return file(NOISY, name.partition(",")[0], **CUT[name])


def cut(data: bytes, percent: int) -> bytes:
    return data[: len(data) * percent // 100]


def _cut() -> Cases:
    files = [(name, whole(name), 10) for name in CUT]
    files += [
        ("DICOM", dicom(NOISY), 20),
        ("DICOM, compressed", (SHIPPED / "JPEG2000.dcm").read_bytes(), 20),
        ("HEIC", heic(image(NOISY)), 20),
    ]
    cases = {
        f"{name}, {percent}%": rejected(cut(data, percent), "truncated", "ends before its image")
        for name, data, least in files
        for percent in (least, 60)
    }
    header = rejected(jpeg()[:200], "truncated", "ends before its image begins")
    return {**cases, "a JPEG in its header": header}


def _recovered() -> Cases:
    recover = {"truncated": "recover"}
    parts = {name: cut(whole(name), 60) for name in CUT}
    return {
        name: Case(data=part, keys=recover)
        if name in RECOVERED
        else rejected(part, "truncated", **recover)
        for name, part in parts.items()
    }


def _nothing_recovered() -> Cases:
    return {
        "a JPEG in its header": rejected(jpeg()[:200], "truncated", truncated="recover"),
        "a PNG in its header": rejected(png()[:40], "truncated", truncated="recover"),
    }


def _forgiven() -> Cases:
    data = jpeg()
    return {
        "bytes gone wrong": Case(data=data[:700] + b"\xff\xd0" + data[702:], says="damaged: "),
        "end set too early": Case(data=data[: len(data) // 2] + b"\xff\xd9", says="damaged: "),
        "bytes between the segments": Case(
            data=data[:20] + b"\0" * 9 + data[20:], says="damaged: "
        ),
    }


def _garbage() -> Cases:
    at = png().index(b"IDAT") + 4
    return {
        "PNG": rejected(png()[:at] + b"\xee" * 20 + png()[at + 20 :], "undecodable"),
        "PNG of no size": rejected(png_by_hand(0, 9, 8, 2, b""), "undecodable"),
        "JPEG": rejected(jpeg()[:20] + b"\xff\xc0\0\x0b" + bytes(99), "undecodable"),
        "TIFF": rejected(tiff_by_hand(RAMP16, 77), "undecodable", "of a kind not read"),
        "a film in DICOM": rejected(
            dicom(PICTURE, PixelData=b"").replace(
                b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.77"
            ),
            "undecodable",
        ),
        "gigabytes deflated": rejected(
            deflated_bomb(300 << 20), "undecodable", "unpack to more than 256 MiB"
        ),
        "WebP": rejected(b"RIFF\x20\0\0\0WEBPVP8 " + bytes(99), "undecodable"),
    }


def _junk() -> Cases:
    plain = file(PICTURE, "PNG")
    return {
        "JPEG": Case(data=jpeg() + b"\0garbage" * 99, expected=JPEG_PIXELS),
        "PNG": shown(PICTURE, plain + b"behind the end" * 9),
        "PNG without its end": shown(PICTURE, plain[: plain.index(b"IEND") - 4]),
        "GIF": shown(FRAMES[0], file(FRAMES[0], "GIF") + b"\0garbage" * 99),
        "BMP": shown(PICTURE, file(PICTURE, "BMP") + b"\0garbage" * 99),
    }


# --- limits -------------------------------------------------------------------------------------


def forged_jpeg(width: int, height: int) -> bytes:
    """Return a JPEG whose header claims a size that its data do not have."""
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def _bombs() -> Cases:
    bomb = png_by_hand(60_000, 60_000, 8, 2, bytes(99))
    said = "60000x60000 pixels, the limit is 100,000,000 pixels"
    return {
        "PNG": rejected(bomb, "too_many_pixels", said),
        "JPEG": rejected(forged_jpeg(60_000, 60_000), "too_many_pixels", said),
        "DICOM": rejected(dicom(RED, Rows=60_000, Columns=60_000), "too_many_pixels", said),
        "one pixel more": rejected(png(24, 32), "too_many_pixels", max_pixels=24 * 32 - 1),
        "the limit itself": Case(data=png(24, 32), keys={"max_pixels": 24 * 32}),
    }


def _small() -> Cases:
    return {
        "narrow": rejected(
            png(40, 31), "too_small", "31x40 pixels, a side must have 32 pixels", min_side=32
        ),
        "low": rejected(png(31, 40), "too_small", min_side=32),
        "the limit itself": Case(data=png(32, 40), keys={"min_side": 32}),
        "one pixel": shown(PICTURE[:1, :1], file(PICTURE[:1, :1], "PNG")),
    }


def _elongated() -> Cases:
    return {
        "wide": rejected(
            png(10, 41),
            "too_elongated",
            "41x10 pixels, a side may be 4 times the other",
            max_aspect=4.0,
        ),
        "high": rejected(png(41, 10), "too_elongated", max_aspect=4.0),
        "the limit itself": Case(data=png(10, 40), keys={"max_aspect": 4.0}),
    }


def _lines_of_pixels() -> Cases:
    cases = {}
    for height, width in ((1, 60_000), (60_000, 1)):
        data = encoded(Image.new("RGB", (width, height), (200, 9, 0)), "PNG")
        for fit in ("crop", "pad", "stretch", "within"):
            keys = {"size": (16, 20), "fit": fit, "background": (200, 9, 0)}
            side = 20 if width > height else 16
            size = {"within": (1, side) if width > height else (side, 1)}.get(fit, (16, 20))
            cases[f"{width}x{height}, {fit}"] = shown(
                np.full((*size, 3), (200, 9, 0)), data, **keys
            )
    return cases


# --- the policy ---------------------------------------------------------------------------------

_ROWS = tomllib.loads((DATA / "images.toml").read_text(encoding="utf-8"))
POLICY: dict[str, list[Line]] = {
    title: [Line(**{**row, "cases": globals()[f"_{row['cases']}"]}) for row in rows]
    for title, rows in _ROWS.items()
}
CASES = {
    f"{line.what[:30]}: {name}": (line, case)
    for lines in POLICY.values()
    for line in lines
    for name, case in line.cases().items()
}


def outcome(case: Case) -> ProcessedImage | Rejection:
    keys: dict[str, Any] = {"background": BACKGROUND, "format": "raw", **case.keys}
    if "size" not in keys:
        keys.update(size=None, fit="none")
    return process_image(case.data, ImageSpec(**keys))


def table_text() -> str:
    parts = []
    for title, lines in POLICY.items():
        rows = [f"### {title}", "", "| input | what happens | within | why |", "|---|---|---|---|"]
        for line in lines:
            within = "" if line.within is None else str(line.within)
            rows.append(f"| {line.what} | {line.result} | {within} | {line.why} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def page_text(page: str) -> str:
    """Return a page with the tables between its two markers made anew."""
    return with_part(page, MARKS, f"{table_text()}\n")


if __name__ == "__main__":
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
