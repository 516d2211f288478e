"""Decode the class or object numbers in mask files, and combine the files of an image.

Profile, gamma and alpha are ignored, because they would change numbers. A palette is used only for
colours.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from shardprep.image.annotation_types import IGNORE, IGNORE_16, AnnotationSpec, Frame
from shardprep.image.placement import Labels, Placement

MAX_PIXELS = 1 << 25
"""Maximum number of pixels of a mask file; a mask may always be as large as its image."""

_DECODERS = ("PNG", "GIF", "JPEG", "TIFF", "BMP", "WEBP", "PPM", "TGA", "PCX")
_STRETCHED = re.compile(r"L;([24])")
"""Raw modes of 2 and 4 bits, whose values Pillow spreads over 0 to 255."""
_NAMED = 3
_OTHERS = "but other masks of the source are black and white: save it with the values 0 and 255"


class MaskError(ValueError):
    """A mask cannot be used; the text is the reason."""


class MaskFile(NamedTuple):
    """The decoded pixels of a mask file."""

    pixels: Labels
    """[height, width] of values or palette indices, or uint8[height, width, 3] of RGB colours."""
    is_lossy: bool = False
    """Whether the format (JPEG) changes values a little."""
    palette: NDArray[np.uint8] | None = None
    """RGB of each palette index, uint8[256, 3]; None without a palette."""


def decode_mask(data: bytes, max_pixels: int = MAX_PIXELS) -> MaskFile:
    """Return the values, palette indices or colours of a mask file.

    An image with three equal channels is read as values. Only the first frame is read. MaskError if
    the file is unreadable or has over `max_pixels` pixels, for 16-bit colours or transparency, and
    for values that are not whole numbers from 0 to 65535.
    """
    image, pixels = _decoded(data, max_pixels, _values)
    return MaskFile(pixels, image.format == "JPEG", _palette(image))


def decode_ids(data: bytes, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint32]:
    """Return the segment id of each pixel, R + 256 G + 65536 B, [height, width].

    Without colours, the values are the ids. MaskError as in `decode_mask`, and for a JPEG.
    """
    image, ids = _decoded(data, max_pixels, _ids)
    if image.format == "JPEG":
        raise MaskError("is a JPEG, which does not keep exact segment ids: export it as PNG")
    return ids


def decode_numbers(data: bytes, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint32]:
    """Return the object number of each pixel, [height, width]; `NO_NUMBERS` mean no object.

    Values are numbers. Colours are read by Pascal VOC's palette (VOClabelcolormap.m): the bits of a
    number, lowest first, are the highest bits of red, green, blue, then their next bits, and so on.
    MaskError as in `decode_mask`, and for a JPEG.
    """
    pixels, is_lossy, _ = decode_mask(data, max_pixels)
    if is_lossy:
        raise MaskError("is a JPEG, which does not keep exact object numbers: export it as PNG")
    found = pixels.astype(np.uint32)
    if pixels.ndim == 2:
        return found
    numbers = np.zeros(pixels.shape[:2], np.uint32)
    for bit in range(8):
        for channel in range(3):
            numbers |= (found[..., channel] >> np.uint32(7 - bit) & 1) << np.uint32(
                3 * bit + channel
            )
    return numbers


def mask_classes(mask: MaskFile, spec: AnnotationSpec) -> Labels:
    """Return the class of each pixel, [height, width]; 0 and 1 for a binary mask.

    MaskError for values or colours that the spec does not allow, and for a JPEG that is not binary.
    """
    pixels = mask.pixels
    if spec.is_binary:
        return _binary(mask)
    if mask.is_lossy:
        raise MaskError("is a JPEG, which does not keep exact values: export it as PNG")
    if spec.values is None:
        if pixels.ndim == 3:
            raise MaskError("has colours, but no mask values are given for them")
        return _checked(pixels, spec)
    is_colours = any(isinstance(value, tuple) for value in spec.values)
    if is_colours:
        pixels = _codes(pixels if mask.palette is None else mask.palette[pixels])
    elif pixels.ndim == 3:
        raise MaskError("has colours, but the mask values are single numbers")
    by_code = {_code(key): to for key, to in spec.values.items()}
    classes, unknown = look_up_classes(pixels, by_code, spec)
    if unknown.size:
        names = [_named(int(value), is_colour=is_colours) for value in unknown[:_NAMED]]
        what = "colour" if is_colours else "value"
        fault = f"has the {what} {', '.join(names)}, which the mask values do not name"
        codes = [f"#{value:06x}" if is_colours else value for value in unknown[:_NAMED].tolist()]
        pairs = ",".join(f"{code}={'NAME' if code else 'background'}" for code in codes)
        raise MaskError(f"{fault}; add {pairs} to the mask values")
    return classes


def value_counts(pixels: Labels) -> NDArray[np.int64]:
    """Return the number of pixels with each value, int64[256] or int64[65536]."""
    if pixels.dtype == np.uint8:
        return np.array(Image.fromarray(pixels).histogram(), np.int64)
    counts = np.zeros(1 << 16, np.int64)
    for row in range(0, len(pixels), 256):  # bincount copies values to 64 bits
        counts += np.bincount(pixels[row : row + 256].ravel(), minlength=1 << 16)
    return counts


def _decoded(
    data: bytes, max_pixels: int, take: Callable[[Image.Image, str], NDArray[Any]]
) -> tuple[Image.Image, NDArray[Any]]:
    try:
        image = Image.open(io.BytesIO(data), formats=_DECODERS)
    except MemoryError:
        raise
    except Exception:
        raise MaskError("is not a readable image") from None
    if image.width * image.height > max_pixels:
        size = f"{image.width}x{image.height} pixels"
        raise MaskError(f"has {size}, above the limit of {max_pixels:,} pixels")
    raw = _raw_mode(image)
    try:
        image.load()
        return image, take(image, raw)
    except (MaskError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        raise MaskError(f"cannot be decoded: {' '.join(str(error).split())[:200]}") from None


def _ids(image: Image.Image, raw: str) -> NDArray[np.uint32]:
    if image.mode not in ("RGB", "RGBA", "RGBX", "P"):
        values = _values(image, raw)
        if values.ndim == 2:
            return values.astype(np.uint32)
    if ";16" in raw:
        raise MaskError("has colours of 16 bits, which are not read: save it with 8 bits")
    return _codes(np.asarray(image.convert("RGB"))[..., ::-1])


def _raw_mode(image: Image.Image) -> str:
    """Return Pillow's name for the layout of values in the file; "" if Pillow gives none."""
    tiles: Any = getattr(image, "tile", None) or [None]
    args = getattr(tiles[0], "args", "")
    if image.format == "PPM" and isinstance(args, tuple) and len(args) > 1:
        raise MaskError(f"has values of 0 to {args[1]}, which are not read: save it as PNG")
    raw = args[0] if isinstance(args, tuple) and args else args
    return raw if isinstance(raw, str) else ""


def _values(image: Image.Image, raw: str) -> NDArray[Any]:
    if image.mode in ("1", "P", "L", "I;16"):
        pixels = np.asarray(image)
        if image.mode == "1":
            return pixels.view(np.uint8)
        stretched = _STRETCHED.match(raw)
        if image.mode == "L" and stretched:
            return pixels // (85 if stretched[1] == "2" else 17)
        return pixels
    if ";16" in raw and not image.mode.startswith(("I", "F")):
        raise MaskError("has colours or transparency of 16 bits: save it with 8 bits")
    if image.mode in ("LA", "La", "PA"):
        return np.asarray(image.getchannel(0))
    if image.mode.startswith(("I", "F")):
        pixels = np.asarray(image)
        is_held = (pixels >= 0) & (pixels <= 65_535)
        if not is_held.all() or (pixels.dtype.kind == "f" and (pixels != np.trunc(pixels)).any()):
            raise MaskError("has values that are not whole numbers from 0 to 65535")
        return pixels.astype(np.uint16)
    colours = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    first = colours[..., 0]
    is_grey = all(np.array_equal(first, colours[..., i]) for i in (1, 2))
    return np.ascontiguousarray(first) if is_grey else colours


def _palette(image: Image.Image) -> NDArray[np.uint8] | None:
    if image.mode not in ("P", "PA"):
        return None
    colours = np.zeros(256 * 3, np.uint8)
    found = (image.getpalette("RGB") or [])[: colours.size]
    colours[: len(found)] = found
    return colours.reshape(256, 3)


def _binary(mask: MaskFile) -> NDArray[np.uint8]:
    pixels = mask.pixels
    if pixels.ndim == 3:
        if not mask.is_lossy:
            raise MaskError(f"has colours, {_OTHERS}")
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    highest = int(pixels.max())
    if highest <= 1 and not mask.is_lossy:
        return pixels.astype(np.uint8)
    half = 128 if highest <= 255 else 128 << 8
    if highest < half and not mask.is_lossy:
        raise MaskError(f"has values up to {highest}, {_OTHERS}")
    return (pixels >= half).view(np.uint8)


def _checked(pixels: Labels, spec: AnnotationSpec) -> Labels:
    counts = value_counts(pixels)
    highest = spec.num_classes - 1
    others = [v for v in np.flatnonzero(counts).tolist() if v > highest and v != spec.ignore]
    if others:
        values = ", ".join(map(str, others[:_NAMED]))
        raise MaskError(
            f"has the value {values}; classes are 0 to {highest}, and {spec.ignore} means no class"
        )
    return pixels.astype(spec.mask_type, copy=False)


def look_up_classes(
    values: NDArray[Any], classes: Mapping[int, int], spec: AnnotationSpec
) -> tuple[Labels, NDArray[Any]]:
    """Return the class of each pixel (or `spec.ignore`) and the values that have no class."""
    # Look up runs of equal values: neighbours in a mask are mostly equal.
    flat = values.ravel()
    starts = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1))
    found, lengths = flat[starts], np.diff(starts, append=flat.size)
    keys = np.array(sorted(classes), np.int64)
    at = np.searchsorted(keys, found).clip(max=len(keys) - 1)
    is_known = keys[at] == found
    labels = np.array([classes[key] for key in keys.tolist()]).astype(spec.mask_type)[at]
    labels[~is_known] = spec.ignore
    return np.repeat(labels, lengths).reshape(values.shape), np.unique(found[~is_known])


def _codes(pixels: NDArray[Any]) -> NDArray[np.uint32]:
    if pixels.ndim == 2:
        if pixels.dtype != np.uint8:
            raise MaskError("has values of 16 bits, but the mask values are colours")
        return pixels.astype(np.uint32) * np.uint32(0x010101)
    codes = pixels[..., 0].astype(np.uint32)
    for channel in (1, 2):
        codes <<= np.uint32(8)
        codes |= pixels[..., channel]
    return codes


def _code(key: int | tuple[int, int, int]) -> int:
    return key if isinstance(key, int) else key[0] << 16 | key[1] << 8 | key[2]


def _named(value: int, *, is_colour: bool) -> str:
    return f"({value >> 16}, {value >> 8 & 255}, {value & 255})" if is_colour else str(value)


_MAX_IDS = 10_000


@dataclass(slots=True)
class MaskFiles:
    """The mask files of one image, decoded one at a time. MaskError for an invalid file."""

    data: Sequence[bytes]
    labels: Sequence[int]
    """Class index of each file; ignored if its length is not the number of files."""
    placement: Placement
    spec: AnnotationSpec

    def paint(self, mask: Labels) -> None:
        """Paint all classes but the background into a mask of the stored size; later files win."""
        nothing = self.spec.background
        for number in range(len(self.data)):
            classes, frame = self._classes(number)
            if self.spec.is_binary:
                mask[self.placement.mask(classes, frame, 0) != 0] = self._label(number, 1)
            else:
                layer = self.placement.mask(classes, frame, nothing)
                np.copyto(mask, layer, where=layer != nothing)

    def shapes(self) -> Iterator[tuple[int, Labels, Frame]]:
        """Yield the label, the mask of 0 and 1, and the frame of each object.

        A binary file has one object. With `spec.values`, a file has one object for each class in
        it; any other file, for each value in it except 0 and `IGNORE` (`IGNORE_16` for 16 bits).
        """
        for number in range(len(self.data)):
            label = self._label(number, 0)
            if self.spec.is_binary:
                yield label, *self._classes(number)
            elif self.spec.values is not None:
                classes, frame = self._classes(number)
                nothing = (self.spec.background, self.spec.ignore)
                for value in self._values(number, classes, nothing):
                    yield value, (classes == value).view(np.uint8), frame
            else:
                file, frame = self._decoded(number)
                ids = file.pixels
                if ids.ndim == 3 or file.is_lossy:
                    raise MaskError(f"{self._name(number)} has colours instead of object numbers")
                nothing = (0, IGNORE if ids.dtype == np.uint8 else IGNORE_16)
                for value in self._values(number, ids, nothing):
                    yield label, (ids == value).view(np.uint8), frame

    def ids(self) -> tuple[NDArray[np.uint32], Frame]:
        """Return segment ids and frame of the only mask file; MaskError for none or several."""
        if len(self.data) != 1:
            raise MaskError(f"has {len(self.data)} mask files, but a panoptic image needs one file")
        height, width = self.placement.upright
        with fault_of("the mask"):
            most = max(MAX_PIXELS, height * width)
            decode = decode_numbers if self.spec.ids_are_values else decode_ids
            found = decode(self.data[0], most)
            return found, self._frame(found)

    def _classes(self, number: int) -> tuple[Labels, Frame]:
        file, frame = self._decoded(number)
        with fault_of(self._name(number)):
            return mask_classes(file, self.spec), frame

    def _decoded(self, number: int) -> tuple[MaskFile, Frame]:
        height, width = self.placement.upright
        with fault_of(self._name(number)):
            file = decode_mask(self.data[number], max(MAX_PIXELS, height * width))
            return file, self._frame(file.pixels)

    def _frame(self, pixels: NDArray[Any]) -> Frame:
        size = pixels.shape[0], pixels.shape[1]
        frame = self.placement.frame(size, self.spec.frames)
        if frame is None:
            raise MaskError(f"is {size_mismatch(size, self.placement)}")
        return frame

    def _values(self, number: int, pixels: Labels, nothing: tuple[int, int]) -> list[int]:
        values = [v for v in np.flatnonzero(value_counts(pixels)).tolist() if v not in nothing]
        if len(values) > _MAX_IDS:
            what = f"{len(values):,} objects, above the limit of {_MAX_IDS:,}"
            raise MaskError(f"{self._name(number)} has {what}")
        return values

    def _label(self, number: int, default: int) -> int:
        return self.labels[number] if len(self.labels) == len(self.data) else default

    def _name(self, number: int) -> str:
        return "the mask" if len(self.data) == 1 else f"mask {number + 1} of {len(self.data)}"


@contextlib.contextmanager
def fault_of(name: str) -> Iterator[None]:
    """Put the name of the mask before the text of a MaskError that the block raises."""
    try:
        yield
    except MaskError as error:
        raise MaskError(f"{name} {error}") from None


def size_mismatch(size: tuple[int, int], placement: Placement) -> str:
    """Return the error text for a mask of `size` that does not fit its image."""
    height, width = placement.upright
    return f"of {size[1]}x{size[0]} pixels, but its image has {width}x{height}"
