"""Odd images, made by hand where no library writes them."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import ExifTags, Image
from pillow_heif import register_heif_opener

from tests.support.builders import encoded
from tests.support.paths import DATA

register_heif_opener()
Array = np.ndarray[Any, np.dtype[Any]]


def furthest(left: Array, right: Array) -> int:
    """Return the largest difference of two pictures, in grey levels."""
    assert left.shape == right.shape
    return int(np.abs(left.astype(int) - right.astype(int)).max())


def grey(values: Array) -> Array:
    return np.repeat(np.rint(values)[..., None], 3, axis=2).astype(np.uint8)


def over(colour: Array, alpha: Array, background: tuple[int, int, int]) -> Array:
    """Return colours (0..255) seen over a background, alpha 0..255."""
    share = alpha[..., None] / 255
    return np.asarray(colour * share + np.array(background) * (1 - share))


def oriented(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif.tobytes()


def heic(image: Image.Image, **options: Any) -> bytes:
    """Return a lossless HEIC, except for the conversion of colours."""
    out = io.BytesIO()
    image.save(out, "HEIF", quality=-1, chroma=444, save_all="append_images" in options, **options)
    return out.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    crc = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def png_by_hand(
    width: int, height: int, depth: int, colour: int, rows: bytes, stream: bytes | None = None
) -> bytes:
    """Return a PNG of any kind; `rows` are the scan lines, each after its filter byte.

    `stream` replaces them by compressed ones.
    """
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", header)
        + png_chunk(b"IDAT", zlib.compress(rows) if stream is None else stream)
        + png_chunk(b"IEND", b"")
    )


def as_stored(picture: Array, orientation: int) -> Array:
    """Return upright pixels as a camera stores them (EXIF 2.32, tag 0x0112)."""
    turned = {
        1: picture,
        2: picture[:, ::-1],
        3: picture[::-1, ::-1],
        4: picture[::-1],
        5: picture.transpose(1, 0, 2),
        6: np.rot90(picture),
        7: picture[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(picture, -1),
    }
    return np.ascontiguousarray(turned[orientation])


def cmyk(picture: Array, black: int) -> tuple[Image.Image, Array]:
    """Return inks (0 is none), and their colours on white paper."""
    inks = np.dstack([255 - picture, np.full(picture.shape[:2], black, np.uint8)])
    image = Image.frombytes("CMYK", (picture.shape[1], picture.shape[0]), inks.tobytes())
    return image, picture * ((255 - black) / 255)


def ycck_jpeg(picture: Array, black: int) -> tuple[bytes, Array]:
    """Return a JPEG as Photoshop writes it, and its colours: YCbCr of inverted inks, and black."""
    ycc = np.asarray(Image.fromarray(255 - picture).convert("YCbCr"))
    components = np.dstack([ycc, np.full(picture.shape[:2], 255 - black, np.uint8)])
    size = (picture.shape[1], picture.shape[0])
    image = Image.frombytes("CMYK", size, (255 - components).tobytes())  # Pillow inverts it
    data = bytearray(encoded(image, quality=100))
    data[data.index(b"Adobe") + 11] = 2  # the transform in APP14 says YCCK
    return bytes(data), picture * ((255 - black) / 255)


def tiff_by_hand(values: Array, photometric: int = 1, *, bits: int = 0, extra: int = -1) -> bytes:
    """Return an uncompressed TIFF of numbers of any type, [height, width] or [height, width, n].

    Args:
        values: in the byte order that the file is to have.
        photometric: 1 grey, 2 RGB, 5 CMYK.
        bits: of a sample; by default those of the type. 12 are packed, two samples in 3 bytes.
        extra: what the last channel is: 1 alpha, multiplied in; 2 alpha.
    """
    order = ">" if values.dtype.byteorder == ">" else "<"
    channels = values.shape[2] if values.ndim == 3 else 1
    data = values.tobytes()
    if bits == 12:
        one, two = (values.reshape(-1, 2)[:, i].astype(np.uint32) for i in (0, 1))
        whole = (one << 12 | two)[:, None] >> np.array([16, 8, 0]) & 255
        data = whole.astype(np.uint8).tobytes()
    depth = bits or values.dtype.itemsize * 8
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    entries = {
        256: [values.shape[1]], 257: [values.shape[0]], 258: [depth] * channels, 259: [1],
        262: [photometric], 273: [8], 277: [channels], 278: [values.shape[0]], 279: [len(data)],
        **({338: [extra]} if extra >= 0 else {}), 339: [kind] * channels,
    }  # fmt: skip
    behind = 8 + len(data) + 2 + 12 * len(entries) + 4
    table, tail = b"", b""
    for tag, numbers in entries.items():
        wide = tag in (273, 279)
        packed = struct.pack(f"{order}{len(numbers)}{'I' if wide else 'H'}", *numbers)
        if len(packed) > 4:
            place = struct.pack(f"{order}I", behind + len(tail))
            tail += packed
        else:
            place = packed.ljust(4, b"\0")
        table += struct.pack(f"{order}HHI", tag, 4 if wide else 3, len(numbers)) + place
    mark = b"II*\0" if order == "<" else b"MM\0*"
    start = struct.pack(f"{order}I", 8 + len(data))
    return mark + start + data + struct.pack(f"{order}H", len(entries)) + table + bytes(4) + tail


def without_segment(data: bytes, marker: int) -> bytes:
    """Return a JPEG without its first segment of a marker: 0xEE is Adobe's."""
    at = data.index(bytes([0xFF, marker]))
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def with_png_chunk(data: bytes, kind: bytes, content: bytes) -> bytes:
    """Return a PNG with one more chunk, right after its header."""
    return data[:33] + png_chunk(kind, content) + data[33:]


# --- colour -------------------------------------------------------------------------------------

SRGB = ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06))
DISPLAY_P3 = ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06))
ADOBE_RGB = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06))
"""Chromaticities x, y of red, green and blue; the white of all three is D65."""
_D65 = (0.3127, 0.3290)
_D50 = np.array([0.9642, 1.0, 0.8249])
_BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)

Primaries = tuple[tuple[float, float], ...]


def srgb_to_light(values: Array) -> Array:
    """Return linear light of sRGB, both 0..1 (IEC 61966-2-1)."""
    return np.asarray(
        np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    )


def light_to_srgb(light: Array) -> Array:
    """Return sRGB of linear light, both 0..1."""
    light = light.clip(0, 1)
    return np.asarray(
        np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)
    )


def gamma(power: float) -> Callable[[Array], Array]:
    return lambda values: values**power


def to_xyz(primaries: Primaries) -> Array:
    columns = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    x, y = _D65
    white = np.array([x / y, 1, (1 - x - y) / y])
    return np.asarray(columns * np.linalg.solve(columns, white))


def seen_in_srgb(picture: Array, primaries: Primaries, curve: Callable[[Array], Array]) -> Array:
    """Return the sRGB of a picture in another RGB, 0..255, by the formulas alone."""
    light = curve(picture / 255) @ (np.linalg.inv(to_xyz(SRGB)) @ to_xyz(primaries)).T
    return light_to_srgb(light) * 255


def _numbers(values: Array) -> bytes:
    fixed = np.rint(np.asarray(values) * 65536).astype(">i4")
    return b"".join((b"XYZ \0\0\0\0", fixed.tobytes()))


def _curve(curve: Callable[[Array], Array]) -> bytes:
    table = np.rint(curve(np.linspace(0, 1, 4096)) * 65535).astype(">u2")
    return b"".join((b"curv\0\0\0\0", struct.pack(">I", len(table)), table.tobytes()))


def _profile(space: bytes, pcs: bytes, kind: bytes, tags: dict[bytes, bytes]) -> bytes:
    """Return an ICC profile of version 2 (ICC.1:2001-04, section 6)."""
    table, content = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        table += struct.pack(">4sII", name, start + len(content), len(data))
        content += data + bytes(-len(data) % 4)
    white = np.rint(_D50 * 65536).astype(">i4").tobytes()
    header = struct.pack(
        ">I4sI4s4s4s12s4s28s12s48s",
        start + len(content), b"", 0x02400000, kind, space, pcs,
        struct.pack(">6H", 2020, 1, 1, 0, 0, 0), b"acsp", b"", white, b"",
    )  # fmt: skip
    return header + table + content


def rgb_profile(primaries: Primaries, curve: Callable[[Array], Array]) -> bytes:
    """Return the ICC profile of an RGB whose white is D65."""
    x, y = _D65
    cones = _BRADFORD @ np.array([x / y, 1, (1 - x - y) / y])
    adapted = np.linalg.inv(_BRADFORD) @ np.diag(_BRADFORD @ _D50 / cones) @ _BRADFORD
    columns = (adapted @ to_xyz(primaries)).T
    curves = dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), _curve(curve))
    places = dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), map(_numbers, columns), strict=True))
    return _profile(b"RGB ", b"XYZ ", b"mntr", {b"wtpt": _numbers(_D50), **places, **curves})


def grey_profile(curve: Callable[[Array], Array]) -> bytes:
    tags = {b"wtpt": _numbers(_D50), b"kTRC": _curve(curve)}
    return _profile(b"GRAY", b"XYZ ", b"mntr", tags)


def cmyk_profile(corners: Array) -> bytes:
    """Return the ICC profile of inks, given the L, a, b of their 16 overprints, C the slowest."""
    ramp = bytes(range(256))
    grid = np.column_stack([corners[:, 0] * 255 / 100, corners[:, 1:] + 128])
    unit = np.eye(3).reshape(-1) * 65536
    table = (
        b"mft1\0\0\0\0"
        + bytes([4, 3, 2, 0])
        + unit.astype(">i4").tobytes()
        + ramp * 4
        + np.rint(grid).astype(np.uint8).tobytes()
        + ramp * 3
    )
    return _profile(b"CMYK", b"Lab ", b"prtr", {b"wtpt": _numbers(_D50), b"A2B0": table})


def lab_in_srgb(lab: Array) -> Array:
    """Return sRGB, 0..255, of L, a, b under D50 (CIE 15)."""
    lightness = (lab[..., 0] + 16) / 116
    parts = np.stack([lightness + lab[..., 1] / 500, lightness, lightness - lab[..., 2] / 200], -1)
    xyz = np.where(parts > 6 / 29, parts**3, 3 * (6 / 29) ** 2 * (parts - 4 / 29)) * _D50
    x, y = _D65
    cones = _BRADFORD @ np.array([x / y, 1, (1 - x - y) / y])
    adapted = np.linalg.inv(_BRADFORD) @ np.diag(cones / (_BRADFORD @ _D50)) @ _BRADFORD
    return light_to_srgb(xyz @ (np.linalg.inv(to_xyz(SRGB)) @ adapted).T) * 255


# --- files that no Python library writes --------------------------------------------------------

ARITHMETIC_JPEG = (DATA / "arithmetic.jpg").read_bytes()
"""Made by libjpeg-turbo's jpegtran of a JPEG of the picture below, quality 95, 4:4:4."""
_ROWS, _COLUMNS = np.mgrid[0:16, 0:24]
ARITHMETIC_PICTURE = np.dstack([_COLUMNS * 10, _ROWS * 15, (_COLUMNS + _ROWS) * 5]).astype(np.uint8)
