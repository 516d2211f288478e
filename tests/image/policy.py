"""Odd and broken images, and what becomes of them: files for each row of `tests/data/images.toml`.

`python -m tests.image.policy` writes the tables of docs/images.md; `test_policy` processes every
file and compares the tables.
"""

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
from tests.support import odd_images as odd
from tests.support.builders import encoded, jpeg, pixels, png, tar_bytes, zip_bytes
from tests.support.dicom import SHIPPED, deflated_bomb, dicom, sequence, without_pixels
from tests.support.odd_images import Array
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
BEST: dict[str, Any] = {"quality": 100, "subsampling": 0}
RED = PICTURE[..., 0]
CLEAR = Image.fromarray(np.dstack([PICTURE, ALPHA]))
INDEXED = Image.fromarray(PICTURE).quantize(16)
INDICES = np.asarray(INDEXED)
PALETTE = np.array(INDEXED.getpalette(), np.uint8).reshape(-1, 3)
COLOURS = PALETTE[INDICES]
TWELVE = RAMP16 >> 4
TWO_BITS = odd.png_by_hand(2, 2, 2, 0, b"\0\x10\0\xb0")
HOLES = [(0,) * 3, (0,) * 3, (255,) * 3]
"""Colours of NaN, -∞ and ∞."""
TABLES = tomllib.loads((DATA / "images.toml").read_text(encoding="utf-8"))
ENCODERS = TABLES["encoders"]
LOSSLESS, CUT, RECOVERED = ENCODERS["lossless"], ENCODERS["cut"], TABLES["recovered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    data: bytes
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the `ImageSpec`, for raw pixels of the image's own size over `BACKGROUND`."""
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
    """Return a file that is stored as a picture."""
    return Case(data=data, expected=picture, keys=keys)


def alike(picture: Array, files: Mapping[str, bytes], **keys: Any) -> Cases:
    """Return files that are stored as the same picture."""
    return {name: shown(picture, data, **keys) for name, data in files.items()}


def rejected(data: bytes, kind: str, says: str = "", **keys: Any) -> Case:
    return Case(data=data, kind=kind, says=says, keys=keys)


image = Image.fromarray


def file(values: Array | Image.Image, form: str = "PNG", **options: Any) -> bytes:
    return encoded(image(values) if isinstance(values, np.ndarray) else values, form, **options)


def rows(values: Array) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in values)


def png16(values: Array) -> bytes:
    """Return a PNG of 16-bit greys or colours, 24x32."""
    return odd.png_by_hand(32, 24, 16, 0 if values.ndim == 2 else 2, rows(values.astype(">u2")))


def with_holes(values: Array) -> Array:
    holed = values.astype(np.float32)
    holed[0, :3] = (np.nan, -np.inf, np.inf)
    return holed


def shipped(name: str) -> bytes:
    return (SHIPPED / f"{name}.dcm").read_bytes()


@cache
def profiles() -> dict[str, bytes]:
    return {
        "P3": odd.rgb_profile(odd.DISPLAY_P3, odd.srgb_to_light),
        "Adobe": odd.rgb_profile(odd.ADOBE_RGB, odd.gamma(563 / 256)),
        "sRGB": odd.rgb_profile(odd.SRGB, odd.srgb_to_light),
        "light": odd.grey_profile(odd.gamma(1.0)),
        "inks": odd.cmyk_profile(_overprints()),
    }


def in_p3(picture: Array) -> Array:
    return odd.seen_in_srgb(picture, odd.DISPLAY_P3, odd.srgb_to_light)


# --- colours ------------------------------------------------------------------------------------


def _plain() -> Cases:
    one = np.asarray(image(PICTURE).convert("1"))
    bits = {"1-bit PNG": file(one), "1-bit TIFF": file(one, "TIFF", compression="group4")}
    palettes = {f"palette {form}": file(INDEXED, form) for form in ("PNG", "GIF", "BMP")}
    return {
        "RGB PNG": shown(PICTURE, file(PICTURE)),
        "grey PNG": shown(odd.grey(RED), file(RED)),
        "2-bit PNG": shown(odd.grey(np.array([[0, 85], [170, 255]])), TWO_BITS),
        **alike(odd.grey(one * 255), bits),
        **alike(COLOURS, palettes),
    }


def _transparent() -> Cases:
    premultiplied = np.rint(PICTURE * (ALPHA[..., None] / 255)).astype(np.uint8)
    by_hand = odd.tiff_by_hand(np.dstack([premultiplied, ALPHA]), 2, extra=1)
    key = PICTURE.copy()
    key[3:9, 4:11] = (1, 2, 3)
    keyed = key.copy()
    keyed[3:9, 4:11] = BACKGROUND
    merged = Image.merge("LA", [image(c) for c in (RED, ALPHA)])
    grey_alpha = np.dstack([RED, ALPHA]).astype(">u2") * 257
    wide = png16((key.astype(np.uint16) << 8) | 7)
    seen16 = odd.grey(RAMP16 / 257)
    seen16[RAMP16[5, 5] == RAMP16] = BACKGROUND
    two_bits = np.array([[(0, 0, 0), BACKGROUND], [(170,) * 3, (255,) * 3]])
    indexed = odd.over(COLOURS, np.where(INDICES == 2, 0, 255), BACKGROUND)
    half = odd.over(COLOURS, np.where(INDICES == 0, 128, 255), BACKGROUND)
    grey_key = odd.over(odd.grey(RED), np.where(RED[5, 5] == RED, 0, 255), BACKGROUND)
    clear = {
        "RGBA PNG": file(CLEAR),
        "RGBA WebP": file(CLEAR, "WEBP", lossless=True, exact=True),
        "RGBA TIFF": file(CLEAR, "TIFF"),
    }
    greys = {
        "grey and alpha PNG": file(merged),
        "16-bit grey and alpha PNG": odd.png_by_hand(32, 24, 16, 4, rows(grey_alpha)),
    }
    keys = {
        "colour key": file(key, transparency=(1, 2, 3)),
        "16-bit colour key": odd.with_png_chunk(wide, b"tRNS", struct.pack(">3H", 263, 519, 775)),
    }
    clear_colours = {
        "palette with a clear colour": file(INDEXED, transparency=2),
        "GIF with a clear colour": file(INDEXED, "GIF", transparency=2),
    }
    clear_grey = odd.with_png_chunk(png16(RAMP16), b"tRNS", struct.pack(">H", RAMP16[5, 5]))
    return {
        **alike(odd.over(PICTURE, ALPHA, BACKGROUND), clear),
        "RGBA TIFF, alpha multiplied in": shown(
            premultiplied + odd.over(np.zeros((24, 32, 3)), ALPHA, BACKGROUND), by_hand
        ),
        **alike(odd.over(odd.grey(RED), ALPHA, BACKGROUND), greys),
        **alike(indexed, clear_colours),
        "palette with a half clear colour": shown(half, file(INDEXED, transparency=b"\x80")),
        "grey key": shown(grey_key, file(RED, transparency=int(RED[5, 5]))),
        **alike(keyed, keys),
        "16-bit grey key": shown(seen16, clear_grey),
        "2-bit grey key": shown(two_bits, odd.with_png_chunk(TWO_BITS, b"tRNS", b"\0\1")),
    }


def _dicom_grey() -> Cases:
    units = {"RescaleSlope": "1", "RescaleIntercept": "-1024"}
    window: dict[str, Any] = {"WindowCenter": ["0.5", "0"], "WindowWidth": ["2049", "80"]}
    seen = odd.grey((TWELVE - 0.0).clip(0, 2048) / 2048 * 255)
    curve = np.rint(np.linspace(0, 1, 4096) ** 2 * 4095)
    table = sequence(LUTDescriptor=[4096, 0, 12], LUTData=curve.astype("<u2").tobytes())
    low, high = np.quantile(TWELVE, (0.005, 0.995))
    between = ((TWELVE - low) / (high - low)).clip(0, 1) * 255
    return {
        "its first window": shown(seen, dicom(TWELVE, **units, **window)),
        "its table": shown(
            odd.grey(curve[TWELVE] / 4095 * 255), dicom(TWELVE, VOILUTSequence=table)
        ),
        "no window": shown(odd.grey(between), dicom(TWELVE, **units)),
        "8 bits": shown(odd.grey(RED), dicom(RED)),
    }


def _dicom_window() -> Cases:
    signed = TWELVE.astype(np.int16) - 1024
    units = {"RescaleSlope": "2", "RescaleIntercept": "8", "WindowCenter": "0", "WindowWidth": "9"}
    elements: dict[str, Any] = {"BitsStored": 12, "HighBit": 11, **units}
    share = ((signed * 2.0 + 8 - 39.5) / 399 + 0.5).clip(0, 1)
    clipped = signed.clip(-2048, 2047)
    full, with_sign = TWELVE / 4095 * 255, (clipped + 2048.0) / 4095 * 255
    return {
        "CENTER,WIDTH": shown(odd.grey(share * 255), dicom(signed, **units), window=(40.0, 400.0)),
        "full": shown(odd.grey(full), dicom(TWELVE, **elements), window="full"),
        "full, with a sign": shown(odd.grey(with_sign), dicom(clipped, **elements), window="full"),
        "colours": shown(PICTURE, dicom(PICTURE), window=(40.0, 400.0)),
    }


def _dicom_inverted() -> Cases:
    inverted = {"PhotometricInterpretation": "MONOCHROME1"}
    windowed = dicom(TWELVE, **inverted, WindowCenter="1024.5", WindowWidth="2049")
    return {
        "8 bits": shown(odd.grey(255 - RED), dicom(RED, **inverted)),
        "a window": shown(odd.grey(255 - TWELVE.clip(0, 2048) / 2048 * 255), windowed),
    }


def _dicom_colours() -> Cases:
    ycc = np.asarray(image(PICTURE).convert("YCbCr"))
    tables: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for i, name in enumerate(("Red", "Green", "Blue")):
        values = PALETTE[:, i].astype("<u2") * 257
        tables[f"{name}PaletteColorLookupTableDescriptor"] = [len(values), 0, 16]
        tables[f"{name}PaletteColorLookupTableData"] = values.tobytes()
    planes = np.ascontiguousarray(PICTURE.transpose(2, 0, 1)).tobytes()
    same = {
        "RGB": dicom(PICTURE),
        "planes": dicom(PICTURE, PlanarConfiguration=1, PixelData=planes),
        "16 bits": dicom(PICTURE.astype(np.uint16) * 257),
        "YBR_FULL": dicom(ycc, PhotometricInterpretation="YBR_FULL"),
    }
    return {
        **alike(PICTURE, same),
        "palette": shown(COLOURS, dicom(INDICES, **tables)),
        "profile": shown(in_p3(PICTURE), dicom(PICTURE, ICCProfile=profiles()["P3"])),
    }


def _dicom_frames() -> Cases:
    several = np.stack(FRAMES)
    return {
        "colours": shown(FRAMES[0], dicom(several)),
        "grey": shown(odd.grey(FRAMES[1][..., 1]), dicom(several[1:, ..., 1])),
    }


def _dicom_forms() -> Cases:
    """Return pydicom's files: the same picture in each encoding."""
    values = pydicom.dcmread(SHIPPED / "MR_small.dcm").pixel_array
    slice_ = odd.grey(((values - 599.5) / 1599 + 0.5).clip(0, 1) * 255)
    bars = pydicom.dcmread(SHIPPED / "SC_rgb_gdcm_KY.dcm").pixel_array
    greys = ("", "_implicit", "_bigendian", "_RLE", "_jp2klossless", "_jpeg_ls_lossless")
    of_bars = {form: shipped(f"SC_rgb_{form}") for form in ("rle", "jpeg_gdcm", "rle_16bit")}
    return {
        "deflated": shown(odd.grey(RED), dicom(RED, "1.2.840.10008.1.2.1.99")),
        **alike(
            slice_, {f"grey{f}": shipped(f"MR_small{f}") for f in greys}, window=(600.0, 1600.0)
        ),
        **alike(bars, {f"bars_{form}": data for form, data in of_bars.items()}),
    }


def _heic() -> Cases:
    avif = file(PICTURE, "AVIF", **ENCODERS["turned"]["AVIF"])
    turned = {
        turn: odd.heic(image(odd.as_stored(PICTURE, turn)), exif=odd.oriented(turn))
        for turn in (3, 6)
    }
    same = {
        "RGB": odd.heic(image(PICTURE)),
        **{f"orientation {turn}": data for turn, data in turned.items()},
        "several": odd.heic(image(PICTURE), append_images=[image(255 - PICTURE)]),
        "AVIF of a general brand": avif[:8] + b"mif1" + avif[12:],
    }
    with_profile = odd.heic(image(PICTURE), icc_profile=profiles()["P3"])
    return {
        **alike(PICTURE, same),
        "grey": shown(odd.grey(RED), odd.heic(image(RED))),
        "alpha": shown(odd.over(PICTURE, ALPHA, BACKGROUND), odd.heic(CLEAR)),
        "Display P3": shown(in_p3(PICTURE), with_profile),
    }


def _deep_grey() -> Cases:
    ramp = odd.grey(RAMP16 / 257)
    same = {
        "PNG": png16(RAMP16),
        "TIFF": odd.tiff_by_hand(RAMP16),
        "big-endian TIFF": odd.tiff_by_hand(RAMP16.astype(">u2")),
        "PGM": b"P5 32 24 65535\n" + RAMP16.astype(">u2").tobytes(),
        "JPEG 2000": file(RAMP16, "JPEG2000"),
    }
    return {
        **alike(ramp, same),
        "TIFF, white is 0": shown(255 - ramp, odd.tiff_by_hand(RAMP16, 0)),
        "12-bit TIFF": shown(odd.grey(TWELVE / 4095 * 255), odd.tiff_by_hand(TWELVE, bits=12)),
    }


def _deep_grey_in_range() -> Cases:
    data = png16(TWELVE + 1000)
    signed = (RAMP16.astype(np.int32) >> 4) - 1000
    ramp = odd.grey(TWELVE / 4095 * 255)
    between = odd.grey((TWELVE.clip(1000, 2000) - 1000.0) / 1000 * 255)
    holed, seen = with_holes(TWELVE), ramp.copy()
    seen[0, :3] = HOLES
    small = odd.tiff_by_hand((TWELVE / 4095 * 0.1).astype(np.float32))
    flat = odd.tiff_by_hand(np.full((24, 32), 7, np.uint16))
    return {
        "PNG": shown(ramp, data, depth_range=(1000, 5095)),
        "its own range": shown(ramp, data, depth_range="auto"),
        "values beyond": shown(between, odd.tiff_by_hand(TWELVE), depth_range=(1000, 2000)),
        "TIFF, white is 0": shown(255 - ramp, odd.tiff_by_hand(TWELVE, 0), depth_range=(0, 4095)),
        "32 bits with a sign": shown(ramp, odd.tiff_by_hand(signed), depth_range=(-1000, 3095)),
        "floats": shown(seen, odd.tiff_by_hand(holed), depth_range=(0, 4095)),
        "floats, their own range": shown(ramp, small, depth_range="auto"),
        "all alike": shown(odd.grey(np.zeros((24, 32))), flat, depth_range="auto"),
        "8 bits": shown(PICTURE, file(PICTURE), depth_range=(0, 10)),
    }


def _deep_colour() -> Cases:
    wide = PICTURE.astype(np.uint16) * 257 + (PICTURE < 255).astype(np.uint16) * 100
    rgba = np.dstack([wide, ALPHA.astype(np.uint16) * 257])
    expected = wide / 257
    opaque = {
        "RGB PNG": png16(wide),
        "RGB TIFF": odd.tiff_by_hand(wide, 2),
        "big-endian RGB TIFF": odd.tiff_by_hand(wide.astype(">u2"), 2),
        "PPM": b"P6 32 24 65535\n" + wide.astype(">u2").tobytes(),
    }
    clear = {
        "RGBA PNG": odd.png_by_hand(32, 24, 16, 6, rows(rgba.astype(">u2"))),
        "RGBA TIFF": odd.tiff_by_hand(rgba, 2, extra=2),
    }
    return {**alike(expected, opaque), **alike(odd.over(expected, ALPHA, BACKGROUND), clear)}


def _integers() -> Cases:
    signed = RAMP16.astype(np.int32) - 1000
    short = signed.clip(-999, 32_767).astype("<i2")
    same = {
        "values of 16 bits": odd.tiff_by_hand(RAMP16.astype(np.int32)),
        "their whole range": odd.tiff_by_hand(RAMP16.astype(np.int32) * 32_767),
        "unsigned, whole range": odd.tiff_by_hand(RAMP16.astype(np.uint32) * 65_537),
    }
    return {
        **alike(odd.grey(RAMP16 / 257), same),
        "some negative": shown(odd.grey(signed.clip(0) / 257), odd.tiff_by_hand(signed)),
        "16 bits with a sign": shown(
            odd.grey(signed.clip(0, 32_767) / 257), odd.tiff_by_hand(short)
        ),
    }


def _floats() -> Cases:
    ramp = odd.grey(RAMP16 / 257)
    values = RAMP16 / 65_535
    seen = ramp.copy()
    seen[0, :3] = HOLES
    flat = odd.tiff_by_hand(np.full((24, 32), 0.5, np.float32))
    same = {"0 to 1": values, "0 to 255": values * 255, "-5 to 5": values * 10 - 5}
    return {
        **alike(ramp, {n: odd.tiff_by_hand(v.astype(np.float32)) for n, v in same.items()}),
        "0 to a half": shown(ramp / 2, odd.tiff_by_hand((values / 2).astype(np.float32))),
        "no numbers": shown(seen, odd.tiff_by_hand(with_holes(values))),
        "all alike": shown(odd.grey(np.full((24, 32), 127.5)), flat),
    }


def _inks() -> Cases:
    plain, plain_rgb = odd.cmyk(PICTURE, 0)
    dark, dark_rgb = odd.cmyk(PICTURE, 100)
    ycck, ycck_rgb = odd.ycck_jpeg(PICTURE, 100)
    adobe = file(dark, "JPEG", **BEST)
    with_black = {
        "CMYK JPEG with black": adobe,
        "CMYK JPEG without Adobe's mark": odd.without_segment(adobe, 0xEE),
        "CMYK TIFF": file(dark, "TIFF"),
        "16-bit CMYK TIFF": odd.tiff_by_hand(np.asarray(dark).astype(np.uint16) * 257, 5),
    }
    return {
        "CMYK JPEG": shown(plain_rgb, file(plain, "JPEG", **BEST)),
        **alike(dark_rgb, with_black),
        "YCCK JPEG": shown(ycck_rgb, ycck),
    }


def _other_spaces() -> Cases:
    lab = np.stack(np.meshgrid([30, 60, 80], [-10, 0, 15], [-10, 0, 15]), -1).reshape(3, 9, 3)
    stored = np.dstack([np.rint(lab[..., 0] * 2.55), lab[..., 1] & 255, lab[..., 2] & 255])
    return {
        "YCbCr TIFF": shown(PICTURE, file(image(PICTURE).convert("YCbCr"), "TIFF")),
        "Lab TIFF": shown(odd.lab_in_srgb(lab), odd.tiff_by_hand(stored.astype(np.uint8), 8)),
    }


def _overprints() -> Array:
    """Return L, a, b of 16 mixtures of inks: duller than any formula makes them."""
    bits = np.array([[i >> k & 1 for k in (3, 2, 1, 0)] for i in range(16)])
    inks = np.array([[-30, -25, -30], [-35, 40, -5], [-4, -4, 40]])
    lab = np.array([100.0, 0, 0]) + bits[:, :3] @ inks
    lab[:, 1:] = lab[:, 1:].clip(-40, 40) * 0.8
    lab[bits[:, 3] == 1] = 0
    lightness = np.rint(lab[:, :1].clip(0, 100) * 2.55) / 2.55
    return np.hstack([lightness, np.rint(lab[:, 1:])])


def _with_profile() -> Cases:
    p3 = in_p3(PICTURE)
    bits = np.array([[i >> k & 1 for k in (3, 2, 1, 0)] for i in range(16)], np.uint8)
    inks = np.repeat(np.repeat((bits * 255).reshape(4, 4, 4), 8, axis=0), 8, axis=1)
    mixed = odd.lab_in_srgb(np.repeat(np.repeat(_overprints().reshape(4, 4, 3), 8, 0), 8, 1))
    cmyk_image = Image.frombytes("CMYK", (32, 32), np.ascontiguousarray(inks).tobytes())
    of_adobe = {
        f"Adobe RGB {form}": file(PICTURE, form, icc_profile=profiles()["Adobe"])
        for form in ("PNG", "TIFF")
    }
    of_p3 = {
        "Display P3 PNG": file(PICTURE, icc_profile=profiles()["P3"]),
        "Display P3 WebP": file(PICTURE, "WEBP", lossless=True, icc_profile=profiles()["P3"]),
    }
    linear = {
        "linear grey PNG": file(RED, icc_profile=profiles()["light"]),
        "linear 16-bit grey PNG": file(
            RED.astype(np.uint16) * 257, icc_profile=profiles()["light"]
        ),
    }
    clear = file(CLEAR, icc_profile=profiles()["P3"])
    indexed = file(INDEXED, icc_profile=profiles()["P3"])
    return {
        **alike(p3, of_p3),
        **alike(odd.seen_in_srgb(PICTURE, odd.ADOBE_RGB, odd.gamma(563 / 256)), of_adobe),
        "Display P3 with alpha": shown(odd.over(p3, ALPHA, BACKGROUND), clear),
        "Display P3 with a palette": shown(in_p3(COLOURS), indexed),
        **alike(odd.light_to_srgb(odd.grey(RED) / 255) * 255, linear),
        "CMYK TIFF": shown(mixed, file(cmyk_image, "TIFF", icc_profile=profiles()["inks"])),
    }


def _with_profile_jpeg() -> Cases:
    light = PICTURE[..., 0] // 2 + 100
    p3: dict[str, Any] = {"icc_profile": profiles()["P3"], **BEST}
    colours = {
        "RGB": file(PICTURE, "JPEG", **p3),
        "turned": file(odd.as_stored(PICTURE, 6), "JPEG", exif=odd.oriented(6), **p3),
    }
    linear = file(light, "JPEG", icc_profile=profiles()["light"], quality=100)
    return {
        **alike(in_p3(PICTURE), colours),
        "grey": shown(odd.light_to_srgb(odd.grey(light) / 255) * 255, linear),
    }


def _srgb_profile() -> Cases:
    of_grey = file(RED, icc_profile=odd.grey_profile(odd.srgb_to_light))
    return {
        "PNG": shown(PICTURE, file(PICTURE, icc_profile=profiles()["sRGB"])),
        "grey PNG": shown(odd.grey(RED), of_grey),
    }


def _unfit_profile() -> Cases:
    broken = {
        "empty": b"\0",
        "garbage": b"no profile at all" * 20,
        "cut": profiles()["P3"][:200],
        "of inks": profiles()["inks"],
        "of grey": profiles()["light"],
    }
    return alike(PICTURE, {name: file(PICTURE, icc_profile=one) for name, one in broken.items()})


def _other_colour_tags() -> Cases:
    data = file(PICTURE)
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA001] = 0xFFFF  # ColorSpace: uncalibrated
    places = struct.pack(">8I", 31270, 32900, 68000, 32000, 26500, 69000, 15000, 6000)
    files = {
        "gAMA": odd.with_png_chunk(data, b"gAMA", struct.pack(">I", 100_000)),
        "cHRM": odd.with_png_chunk(data, b"cHRM", places),
        "cICP": odd.with_png_chunk(data, b"cICP", bytes([12, 13, 0, 1])),
        "EXIF": file(PICTURE, exif=exif.tobytes()),
    }
    return alike(PICTURE, files)


# --- turning and frames -------------------------------------------------------------------------


def _turned() -> Cases:
    files = {
        f"{form} {turn}": file(
            odd.as_stored(PICTURE, turn), form, exif=odd.oriented(turn), **options
        )
        for form, options in ENCODERS["turned"].items()
        for turn in range(1, 9)
    }
    return alike(PICTURE, files)


def _badly_turned() -> Cases:
    blocks = {
        **{f"orientation {turn}": odd.oriented(turn) for turn in (0, 9, 65_535)},
        "orientation in letters": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\2\0\2\0\0\0006" + bytes(7),
        "no directory": b"Exif\0\0",
        "garbage": b"Exif\0\0garbage" * 9,
        "cut": b"Exif\0\0II*\0\x08\0\0\0\x05\0",
    }
    files = {name: file(PICTURE, "JPEG", exif=block, **BEST) for name, block in blocks.items()}
    return alike(PICTURE, files)


FRAMES = [
    np.full((8, 12, 3), colour, np.uint8) for colour in ((200, 9, 0), (0, 200, 9), (9, 0, 99))
]


def _frames(form: str, **options: Any) -> Case:
    first, *others = map(image, FRAMES)
    return shown(FRAMES[0], file(first, form, save_all=True, append_images=others, **options))


def _animations() -> Cases:
    return {"GIF": _frames("GIF"), "WebP": _frames("WEBP", lossless=True), "APNG": _frames("PNG")}


def _pages() -> Cases:
    return {"TIFF": _frames("TIFF"), "MPO": _frames("MPO", quality=95)}


# --- formats ------------------------------------------------------------------------------------


def _formats() -> Cases:
    picture = pixels(128, 128)
    return alike(picture, {form: file(picture, form, **how) for form, how in LOSSLESS.items()})


def _jpegs() -> Cases:
    kinds = ENCODERS["jpeg"]
    arithmetic = {
        "arithmetic": odd.ARITHMETIC_JPEG,
        "arithmetic, progressive": jpeg_frames.PROGRESSIVE_ARITHMETIC_JPEG,
    }
    files = {name: file(PICTURE, **{"form": "JPEG", **how}) for name, how in kinds.items()}
    return {**alike(PICTURE, files), **alike(odd.ARITHMETIC_PICTURE, arithmetic)}


def _lossless_jpegs() -> Cases:
    return {
        name: shown(odd.grey(pixels()[..., 0]) if "grey" in name else pixels(), data)
        for name, data in jpeg_frames.LOSSLESS.items()
    }


def _unread_jpegs() -> Cases:
    return {name: rejected(data, "undecodable") for name, data in jpeg_frames.UNREAD.items()}


def _other_data() -> Cases:
    made = {
        "start of a JPEG": (jpeg()[:2], "not a known kind"),
        "zeros": (bytes(5000), "nothing but 5,000 zero bytes"),
        "text of other letters": (("x" + "Ж" * 900).encode(), "a text"),
        "zip": (zip_bytes({"a.jpg": jpeg()}), "an archive (zip)"),
        "tar": (tar_bytes({"a.txt": b"a"}), "an archive (tar)"),
        "DICOM without pixels": (without_pixels(), "a DICOM file without an image (Basic Text SR"),
        "DICOMDIR": ((SHIPPED / "dicomdirtests" / "DICOMDIR").read_bytes(), "a DICOM directory"),
        "EPS": (file(PICTURE, "EPS"), "a PostScript drawing"),
        "icon": (file(PICTURE, "ICO"), "an icon"),
        "noise": (np.random.default_rng(0).bytes(300), "not a known kind of image"),
        **{name: (text.encode("latin-1"), says) for name, (text, says) in TABLES["data"].items()},
    }
    return {name: rejected(data, "not_an_image", says) for name, (data, says) in made.items()}


# --- damage -------------------------------------------------------------------------------------


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
        ("DICOM, compressed", shipped("JPEG2000"), 20),
        ("HEIC", odd.heic(image(NOISY)), 20),
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
    files = {
        "bytes gone wrong": data[:700] + b"\xff\xd0" + data[702:],
        "end set too early": data[: len(data) // 2] + b"\xff\xd9",
        "bytes between the segments": data[:20] + b"\0" * 9 + data[20:],
    }
    return {name: Case(data=one, says="damaged: ") for name, one in files.items()}


def _garbage() -> Cases:
    at = png().index(b"IDAT") + 4
    film = dicom(PICTURE, PixelData=b"").replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.77")
    files = {
        "PNG": (png()[:at] + b"\xee" * 20 + png()[at + 20 :], ""),
        "PNG of no size": (odd.png_by_hand(0, 9, 8, 2, b""), ""),
        "JPEG": (jpeg()[:20] + b"\xff\xc0\0\x0b" + bytes(99), ""),
        "TIFF": (odd.tiff_by_hand(RAMP16, 77), "broken or not supported"),
        "a film in DICOM": (film, ""),
        "gigabytes deflated": (deflated_bomb(300 << 20), "unpack to more than 256 MiB"),
        "WebP": (b"RIFF\x20\0\0\0WEBPVP8 " + bytes(99), ""),
    }
    return {name: rejected(data, "undecodable", says) for name, (data, says) in files.items()}


def _junk() -> Cases:
    data, junk = file(PICTURE), b"\0garbage" * 99
    files = {
        "PNG": data + b"behind the end" * 9,
        "PNG without its end": data[: data.index(b"IEND") - 4],
        "BMP": file(PICTURE, "BMP") + junk,
    }
    return {
        "JPEG": Case(data=jpeg() + junk, expected=np.asarray(Image.open(io.BytesIO(jpeg())))),
        **alike(PICTURE, files),
        "GIF": shown(FRAMES[0], file(FRAMES[0], "GIF") + junk),
    }


# --- limits -------------------------------------------------------------------------------------


def forged_jpeg(width: int, height: int) -> bytes:
    """Return a JPEG whose header claims a size that its data do not have."""
    data = bytearray(jpeg())
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def _bombs() -> Cases:
    said = "60000x60000 pixels, above the limit of 100,000,000 pixels"
    files = {
        "PNG": odd.png_by_hand(60_000, 60_000, 8, 2, bytes(99)),
        "JPEG": forged_jpeg(60_000, 60_000),
        "DICOM": dicom(RED, Rows=60_000, Columns=60_000),
    }
    return {
        **{name: rejected(data, "too_many_pixels", said) for name, data in files.items()},
        "one pixel more": rejected(png(24, 32), "too_many_pixels", max_pixels=24 * 32 - 1),
        "the limit itself": Case(data=png(24, 32), keys={"max_pixels": 24 * 32}),
    }


def _small() -> Cases:
    says = "31x40 pixels, but each side must have at least 32"
    return {
        "narrow": rejected(png(40, 31), "too_small", says, min_side=32),
        "low": rejected(png(31, 40), "too_small", min_side=32),
        "the limit itself": Case(data=png(32, 40), keys={"min_side": 32}),
        "one pixel": shown(PICTURE[:1, :1], file(PICTURE[:1, :1])),
    }


def _elongated() -> Cases:
    says = "41x10 pixels, but a side may be at most 4 times the other"
    return {
        "wide": rejected(png(10, 41), "too_elongated", says, max_aspect=4.0),
        "high": rejected(png(41, 10), "too_elongated", max_aspect=4.0),
        "the limit itself": Case(data=png(10, 40), keys={"max_aspect": 4.0}),
    }


def _lines_of_pixels() -> Cases:
    cases = {}
    for height, width in ((1, 60_000), (60_000, 1)):
        data = file(Image.new("RGB", (width, height), (200, 9, 0)))
        for fit in ("crop", "pad", "stretch", "within"):
            keys = {"size": (16, 20), "fit": fit, "background": (200, 9, 0)}
            line = (1, 20) if width > height else (16, 1)
            stored = np.full((*(line if fit == "within" else (16, 20)), 3), (200, 9, 0))
            cases[f"{width}x{height}, {fit}"] = shown(stored, data, **keys)
    return cases


# --- the policy ---------------------------------------------------------------------------------

POLICY: dict[str, list[Line]] = {
    title: [Line(**{**row, "cases": globals()[f"_{row['cases']}"]}) for row in rows]
    for title, rows in TABLES["policy"].items()
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
