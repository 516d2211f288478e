"""Decode ordinary PNG files faster than Pillow, which decodes all others; encode arrays as PNG.

An ordinary file is not interlaced and has nothing that changes its pixels: no EXIF, no profile, no
animation. It has 8 bits per value, or 16 in the stacks and masks that a dataset stores. ISA-L
inflates two to three times as fast as zlib, and the extension `_pixels` undoes the filters. Without
this extension, no file counts as ordinary.
"""

from __future__ import annotations

import contextlib
import io
import re
import struct
import sys
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shardprep.image.resample import Pixels, _pixels, flattened
from shardprep.image.spec import MAX_STORED_PIXELS
from shardprep.profiling import stage

_inflater: Any
try:
    from isal import isal_zlib as _inflater
except ImportError:  # wheels exist for x86-64 and ARM; elsewhere zlib gives the same result
    import zlib as _inflater

_START = b"\x89PNG\r\n\x1a\n"
_END = b"\0\0\0\0IEND\xaeB`\x82"
_HEADER = struct.Struct(">IIBBBBB")
"""Width, height, bits, colour type, compression, filters, interlacing (PNG, 11.2.1)."""
_CHUNK = struct.Struct(">I4s")
_CRC = struct.Struct(">I")
_HEADER_KINDS = (b"IHDR", b"PLTE", b"tRNS")
_GREY, _RGB, _PALETTE = 0, 2, 3
_NUM_COLOURS = 256
_CHANNELS = {_GREY: 1, _RGB: 3, _PALETTE: 1, 4: 2, 6: 4}
"""Colour type → values of a pixel; types 4 and 6 are grey and RGB with alpha."""
_STORED = {"L": (_GREY, 8), "I;16": (_GREY, 16), "RGB": (_RGB, 8)}
"""Mode in Pillow of the PNG files in datasets → colour type and bits."""
_PASSED_OVER = {
    b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"pHYs": 9, b"tIME": 0, b"bKGD": 0, b"sBIT": 0,
    b"hIST": 0, b"sPLT": 0, b"cICP": 0,
}  # fmt: skip
"""Chunk that does not change the picture → least number of bytes that Pillow requires."""
_PLAIN_TEXT = re.compile(rb"(?!Raw profile|XML)([A-Z]|date:)[^\0]*\0")
"""Matches texts to ignore; others may contain EXIF or XMP, which can rotate an image."""


class _Chunk(NamedTuple):
    kind: bytes
    data: memoryview
    checksum: int

    @property
    def is_sound(self) -> bool:
        return crc32(self.data, crc32(self.kind)) == self.checksum


class OrdinaryPng(NamedTuple):
    """Size, compressed pixels and palette of an ordinary PNG."""

    height: int
    width: int
    bits: int
    colour_type: int
    compressed: list[_Chunk]
    palette: bytes
    """Red, green and blue of each colour; b"" if the file has no palette."""
    alphas: bytes
    """Alpha of the first colours of the palette; all further colours are opaque."""

    @property
    def is_plain(self) -> bool:
        """Whether every reader, even a strict one, decodes the file to the same pixels."""
        # Pillow ignores wrong checksums of pixels, TensorFlow does not.
        return self.colour_type == _RGB and all(chunk.is_sound for chunk in self.compressed)

    @stage("decode")
    def pixels(self, background: tuple[int, int, int]) -> Pixels:
        """Return pixels on a background, uint8[height, width, 3], or [height, width, 1] for grey.

        ValueError for a wrong size, filter or palette index; errors of the inflater pass unchanged.
        """
        stored = self.values()
        if self.colour_type in (_GREY, _RGB):
            return stored
        if self.colour_type != _PALETTE:
            return flattened(stored, background)
        if int(stored.max()) * 3 >= len(self.palette):
            raise ValueError("a colour that is not in the palette")
        pixels = np.empty((self.height, self.width, 3), np.uint8)
        _pixels.look_up(stored, self._colours(background), pixels)
        return pixels

    def values(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the stored values, [height, width, channels], in `out` if it has this shape.

        Then `out` must have the type of the values: uint8, or uint16 for 16 bits.
        """
        shape = (self.height, self.width, _CHANNELS[self.colour_type])
        step = shape[2] * self.bits // 8
        rows = _inflated(self.compressed, self.height * (self.width * step + 1))
        if out is None or out.shape != shape:
            out = np.empty(shape, f"u{self.bits // 8}")
        _pixels.unfilter(rows, out, self.width * step, step)
        if self.bits == 16:
            out[:] = out.view(">u2")
        return out

    def _colours(self, background: tuple[int, int, int]) -> bytes:
        colours = np.full((1, 256, 4), 255, np.uint8)
        found = np.frombuffer(self.palette, np.uint8).reshape(-1, 3)
        colours[0, : len(found), :3] = found
        colours[0, : len(self.alphas), 3] = np.frombuffer(self.alphas, np.uint8)
        return flattened(colours, background).tobytes()


def stored_png(
    data: bytes | memoryview, mode: str, out: NDArray[Any] | None = None
) -> NDArray[Any] | None:
    """Return the values of a PNG that has `mode` in Pillow: L, I;16 or RGB.

    The result is uint8 or uint16[height, width, channels], in `out` if it has this shape. None
    for another mode, or if Pillow must decode the file or describe its fault.
    """
    colour_type, bits = _STORED[mode]
    with contextlib.suppress(Exception):  # Pillow finds the damage again and describes it
        image = ordinary_png(data, bits)
        if image is None or image.colour_type != colour_type:
            return None
        if image.height * image.width <= MAX_STORED_PIXELS:
            return image.values(out)
    return None


def ordinary_png(data: bytes | memoryview, bits: int = 8) -> OrdinaryPng | None:
    """Return an ordinary PNG of `bits` bits per value with pixels still compressed, or None.

    Pillow accepts every file that is accepted here, if its pixels can be decoded.
    """
    if _pixels is None or data[: len(_START)] != _START or data[-len(_END) :] != _END:
        return None
    chunks = _chunks(memoryview(data))
    kinds = [chunk.kind for chunk in chunks]
    num = kinds.count(b"IDAT")
    first = kinds.index(b"IDAT") if num else 0
    header: dict[bytes, bytes] = {}
    for i, chunk in enumerate(chunks):
        if first <= i < first + num:
            if chunk.kind != b"IDAT":
                return None
        elif not chunk.is_sound:
            return None
        elif i < first and chunk.kind in _HEADER_KINDS and chunk.kind not in header:
            header[chunk.kind] = bytes(chunk.data)
        elif not _says_nothing(chunk):
            return None
    if not num or kinds[0] != b"IHDR":
        return None
    return _image(header, chunks[first : first + num], bits)


def _image(
    header: dict[bytes, bytes], compressed: list[_Chunk], wanted_bits: int
) -> OrdinaryPng | None:
    if len(header[b"IHDR"]) != _HEADER.size:
        return None
    width, height, bits, colour_type, *form = _HEADER.unpack(header[b"IHDR"])
    palette, alphas = header.get(b"PLTE", b""), header.get(b"tRNS", b"")
    if bits != wanted_bits or colour_type not in _CHANNELS or any(form) or not (height and width):
        return None
    if colour_type == _PALETTE:
        if not palette or len(palette) % 3 or max(len(palette) // 3, len(alphas)) > _NUM_COLOURS:
            return None
    elif b"tRNS" in header:  # one colour is transparent
        return None
    return OrdinaryPng(height, width, bits, colour_type, compressed, palette, alphas)


def _chunks(data: memoryview) -> list[_Chunk]:
    """Return the chunks before IEND; [] if their lengths do not fit the file."""
    chunks: list[_Chunk] = []
    at, end = len(_START), len(data) - len(_END)
    while at < end:
        num_bytes, kind = _CHUNK.unpack_from(data, at)
        stop = at + _CHUNK.size + num_bytes
        if stop + _CRC.size > end:
            return []
        (checksum,) = _CRC.unpack_from(data, stop)
        chunks.append(_Chunk(kind, data[at + _CHUNK.size : stop], checksum))
        at = stop + _CRC.size
    return chunks


def _says_nothing(chunk: _Chunk) -> bool:
    """Return whether a chunk does not change the picture and is accepted by Pillow."""
    if chunk.kind == b"tEXt":
        return _PLAIN_TEXT.match(chunk.data) is not None
    return len(chunk.data) >= _PASSED_OVER.get(chunk.kind, sys.maxsize)


def _inflated(compressed: list[_Chunk], num_bytes: int) -> bytes:
    pieces = [chunk.data for chunk in compressed]
    unpacker = _inflater.decompressobj()
    whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    data: bytes = unpacker.decompress(whole, num_bytes + 1)  # one byte more reveals a surplus
    if len(data) != num_bytes or not unpacker.eof:
        size = "more" if len(data) > num_bytes else f"{len(data):,}"
        raise ValueError(f"expected {num_bytes:,} bytes of pixels, got {size}")
    return data


def encoded_png(pixels: NDArray[Any], **options: Any) -> bytes:
    """Return RGB, or grey of 8 or 16 bits, as a PNG; `options` are for Pillow's encoder."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(out, "PNG", **options)
    return out.getvalue()
