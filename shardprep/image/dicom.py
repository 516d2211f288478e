"""Decode the first frame of a DICOM file as a viewer shows it; split frames, and order slices.

Needs the extra `dicom`. Stored grey values are rescaled and windowed to 8 or 16 bits by the rules
of PS3.3, C.11; docs/images.md has a row for each kind of pixels and each `Window`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pydicom
from numpy.typing import NDArray
from PIL import Image
from pydicom import Dataset
from pydicom.encaps import encapsulate, generate_frames, get_frame
from pydicom.pixels import apply_color_lut, get_decoder
from pydicom.pixels.utils import get_expected_length

from shardprep.image.color import Levels
from shardprep.image.resample import Deep, Pixels
from shardprep.image.signatures import NotAnImageError, is_dicom
from shardprep.image.spec import Window

Values = NDArray[Any]

_META_LENGTH: Final = 132
"""Offset of the element with the length of the file meta group (PS3.10, 7.1)."""
_META_TAG: Final = 2  # (0002,0000)
_DEFLATED, _PLAIN = b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.1\0\0\0"
_RUN_LENGTHS: Final = "1.2.840.10008.1.2.5"
_MOST_INFLATED: Final = 256 << 20
"""Maximum bytes of an inflated data set: a small file can inflate to gigabytes."""
_TAGS: Final = [
    "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames",
    "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation",
    "PixelPaddingValue", "PixelPaddingRangeLimit", "RescaleSlope", "RescaleIntercept",
    "ModalityLUTSequence", "VOILUTSequence", "VOILUTFunction", "WindowCenter", "WindowWidth",
    "RedPaletteColorLookupTableDescriptor", "GreenPaletteColorLookupTableDescriptor",
    "BluePaletteColorLookupTableDescriptor", "RedPaletteColorLookupTableData",
    "GreenPaletteColorLookupTableData", "BluePaletteColorLookupTableData",
    "SegmentedRedPaletteColorLookupTableData", "SegmentedGreenPaletteColorLookupTableData",
    "SegmentedBluePaletteColorLookupTableData", "ICCProfile", "SharedFunctionalGroupsSequence",
    "PerFrameFunctionalGroupsSequence", "ExtendedOffsetTable", "ExtendedOffsetTableLengths",
    "PixelData", "FloatPixelData", "DoubleFloatPixelData",
]  # fmt: skip
"""Elements that hold or describe the pixels; no others are parsed."""
_PIXELS: Final = {"PixelData", "FloatPixelData", "DoubleFloatPixelData"}
_FRAME_GROUPS: Final = ("PixelValueTransformationSequence", "FrameVOILUTSequence")
"""Groups of elements in enhanced images (PS3.3, C.7.6.16.2), for `_lift_frame_groups`."""
_TEXT_VRS: Final = "AE AS CS DA DS DT FD FL IS LO LT PN SH SL SS ST TM UC UI UL UR US UT"
"""Value representations (VR) of elements that hold a text or a number (PS3.5, 6.2)."""
_TRUNCATED: Final = "image file is truncated"
_TOO_SHORT: Final = "The number of bytes of pixel data is less than expected"
_SIZE_MARKER: Final = frozenset({*range(0xC0, 0xD0), 0xF7}) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segment that states the size (ITU T.81, table B.1; T.87, C.1.1)."""
_JPEG: Final = b"\xff\xd8"
_CODESTREAM: Final = b"\xff\x4f\xff\x51"
"""First markers of a JPEG 2000 image; its size follows (ITU T.800, A.5.1)."""


class DicomImage(Image.Image):
    """A DICOM file with its elements read and no pixels decoded; `pixels` decodes them."""

    format = "DICOM"

    def __init__(self, data: bytes) -> None:
        """Read the elements; NotAnImageError if there is no image, any Exception if broken."""
        super().__init__()
        self._about = _elements(data)
        self._size = (int(self._about.Columns), int(self._about.Rows))
        self._mode = "RGB"
        self.levels: Levels | None = None
        """Values that became black and white, in the file's units; None until grey is decoded."""
        if "ICCProfile" in self._about:
            self.info["icc_profile"] = self._about.ICCProfile

    @property
    def num_bits(self) -> int:
        return int(self._about.get("BitsStored") or 8)

    @property
    def is_animated(self) -> bool:
        return int(self._about.get("NumberOfFrames") or 1) > 1

    def pixels(self, window: Window) -> Pixels:
        """Return the first frame, uint8[height, width, 3]: grey is windowed, no profile applied."""
        about = self._about
        values = _first_frame(about)
        if str(about.PhotometricInterpretation) == "PALETTE COLOR":
            colours = apply_color_lut(values, about)[..., :3]
            return _high_bytes(colours, 8 * colours.dtype.itemsize)
        if values.ndim == 3:
            return _high_bytes(values, int(about.BitsStored))
        return np.repeat(self._grey(values, window, 255)[..., None], 3, axis=2)

    def deep_pixels(self, window: Window) -> Deep | None:
        """Return the first frame, uint16[height, width, 1], as in `pixels`; None for colours."""
        values = _first_frame(self._about)
        if values.ndim == 3 or str(self._about.PhotometricInterpretation) == "PALETTE COLOR":
            return None
        return self._grey(values, window, 65535)[..., None]

    def _grey(self, values: Values, window: Window, white: int) -> Values:
        about = self._about
        _lift_frame_groups(about)
        grey, self.levels = grey_levels(values, about, window, white)
        if str(about.PhotometricInterpretation) == "MONOCHROME1":
            np.subtract(white, grey, out=grey)
        return grey


def header_texts(head: bytes, keywords: Sequence[str]) -> list[str]:
    """Return the texts of the elements `keywords` in the first bytes of a file; "" if missing.

    Values of one element are joined by a backslash. All are "" if the header cannot be read.
    """
    if is_dicom(head):
        with contextlib.suppress(Exception):  # decoding the image reports the error
            about = pydicom.dcmread(
                io.BytesIO(_inflated(head)), specific_tags=list(keywords), stop_before_pixels=True
            )
            return [_text(about.get(keyword)) for keyword in keywords]
    return [""] * len(keywords)


def num_frames(head: bytes) -> int:
    """Return the number of frames stated in the first bytes of a file; 1 if none is stated."""
    (text,) = header_texts(head, ["NumberOfFrames"])
    return int(text) if text.isdecimal() else 1


def frame_files(data: bytes, number: int) -> Iterator[bytes]:
    """Yield each of `number` frames as a DICOM file, undecoded; ValueError if they are cut."""
    about = pydicom.dcmread(io.BytesIO(_inflated(data)))
    pixels, groups = about.PixelData, about.get("PerFrameFunctionalGroupsSequence")
    is_packed = about.file_meta.TransferSyntaxUID.is_encapsulated
    frames = generate_frames(pixels, number_of_frames=number) if is_packed else None
    num_bytes, rest = divmod(0 if is_packed else get_expected_length(about), number)
    if rest or num_bytes * number > len(pixels):
        raise ValueError(f"its {number} frames are cut, or do not end at a byte: export it again")
    about.NumberOfFrames = 1
    for place in range(number):
        frame = pixels[num_bytes * place : num_bytes * (place + 1)] + b"\0" * (num_bytes % 2)
        about.PixelData = frame if frames is None else encapsulate([next(frames)], has_bot=False)
        if groups:
            about.PerFrameFunctionalGroupsSequence = [groups[place]]
        about.save_as(out := io.BytesIO())
        yield out.getvalue()


_PLACE_TAGS: Final = (
    "ImagePositionPatient", "ImageOrientationPatient", "InstanceNumber", "PixelSpacing",
)  # fmt: skip
_OWNER_TAGS: Final = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID")
_PLACE_BYTES: Final = 256 << 10
"""Bytes of a file that are searched for the elements of a `SlicePlace`; they precede the pixels."""
_SAME_DIRECTION: Final = 1e-3
"""Largest difference of direction cosines within a series of parallel slices."""


class SlicePlace(NamedTuple):
    """Header elements that order a slice in its series, distances in mm; () if missing."""

    position: tuple[float, ...]
    orientation: tuple[float, ...]
    number: tuple[float, ...]
    spacing: tuple[float, ...] = ()
    owner: tuple[str, ...] = ("", "", "", "")
    """Ids of patient, study, series and image; "" for a missing one."""

    @classmethod
    def of(cls, head: bytes) -> SlicePlace:
        """Return the elements in the header, from the first bytes of a file."""
        texts = header_texts(head[:_PLACE_BYTES], (*_PLACE_TAGS, *_OWNER_TAGS))
        position, orientation, number, spacing = map(_numbers, texts, (3, 6, 1, 2))
        return cls(position, orientation, number, spacing, (*texts[len(_PLACE_TAGS) :],))


def mixture(places: Sequence[SlicePlace], *, is_series: bool) -> str:
    """Return a text such as "2 patients" if the images of a sample do not belong together, or "".

    Without `is_series`, the images are channels, and only their patient must be the same. An id or
    direction that differs in every slice is ignored: anonymisation may give each slice its own id.
    """
    patients, *owners, images = zip(*(one.owner for one in places), strict=True)
    if (number := len({*patients})) > 1 or not is_series:
        return f"{number} patients" if number > 1 else ""
    turns = [np.round(one.orientation, 2).tobytes() for one in places]
    for noun, values in zip(("studies", "series", "directions"), (*owners, turns), strict=True):
        if 1 < (number := len({*values})) < len(places):
            return f"{number} {noun}"
    if (number := len({tuple(np.round(one.spacing, 3)) for one in places} - {()})) > 1:
        return f"{number} pixel spacings"
    spots = [(one.position, one.number) for one in places]
    is_twice = 1 < len({*spots}) < len({*zip(spots, images, strict=True)})
    has_numbers = all(one.number for one in places)
    return "several at one place with one InstanceNumber" if is_twice and has_numbers else ""


def series_order(places: Sequence[SlicePlace]) -> list[int]:
    """Return the indices of the slices in the order of their series.

    Parallel slices are ordered along their normal (PS3.3, C.7.6.2). If a position is missing or
    occurs twice, InstanceNumber decides. Without it, the given order is kept.
    """
    rows = range(len(places))
    if all(one.position and one.orientation for one in places):
        cosines = np.array([one.orientation for one in places])
        normal = np.cross(cosines[0, :3], cosines[0, 3:])
        along = (np.array([one.position for one in places]) @ normal).round(3).tolist()
        are_parallel = np.abs(cosines - cosines[0]).max() < _SAME_DIRECTION
        if are_parallel and len(set(along)) == len(along):
            return sorted(rows, key=lambda row: along[row])
    if all(one.number for one in places):
        return sorted(rows, key=lambda row: places[row].number)
    return list(rows)


def _numbers(text: str, count: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split("\\"))
    except ValueError:
        return ()
    return numbers if len(numbers) == count and np.isfinite(numbers).all() else ()


def text_keywords() -> list[str]:
    """Return the keywords of all elements that hold a text or a number."""
    entries = pydicom.datadict.DicomDictionary.values()
    return [keyword for vr, *_, keyword in entries if keyword and vr in _TEXT_VRS.split()]


def _text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "\\".join(str(one).strip() for one in value)
    return "" if value is None else str(value).strip()


def _elements(data: bytes) -> Dataset:
    about = pydicom.dcmread(io.BytesIO(_inflated(data)), specific_tags=_TAGS)
    if _PIXELS.isdisjoint(about.dir()):
        stored = about.file_meta.get("MediaStorageSOPClassUID", pydicom.uid.UID(""))
        if "Rows" in about or "Image Storage" in stored.name:
            raise OSError(_TRUNCATED)  # pydicom ignores an element that is cut
        raise NotAnImageError(f"a DICOM file without an image ({stored.name or 'of no class'})")
    return about


def _inflated(data: bytes) -> bytes:
    """Return a file with its deflated elements unpacked; any other file unchanged."""
    tag, num_bytes = struct.unpack_from("<I4xI", data, _META_LENGTH)
    end = _META_LENGTH + 12 + num_bytes
    if tag == _META_TAG and end > len(data):
        raise OSError(_TRUNCATED)
    if tag != _META_TAG or _DEFLATED not in data[:end]:
        return data
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    elements = inflate.decompress(data[end:], _MOST_INFLATED)
    if inflate.unconsumed_tail:
        raise ValueError(f"its elements unpack to more than {_MOST_INFLATED >> 20} MiB")
    return data[:end].replace(_DEFLATED, _PLAIN) + elements


def _first_frame(about: Dataset) -> Values:
    """Return the stored values of the first frame, [height, width] or [height, width, 3] in RGB."""
    decoder = get_decoder(about.file_meta.TransferSyntaxUID)
    plugin = ""
    if decoder.UID.is_encapsulated:  # named: other installed decoders may give other pixels
        plugin = "pydicom" if decoder.UID == _RUN_LENGTHS else "pylibjpeg"
        frames = int(about.get("NumberOfFrames") or 1)
        frame = get_frame(about.PixelData, 0, number_of_frames=frames)
        size = _coded_size(frame) if plugin == "pylibjpeg" else None
        if size not in (None, (about.Rows, about.Columns)):
            raise ValueError("its pixels have another size than its header says")
    try:
        values, _ = decoder.as_array(about, index=0, decoding_plugin=plugin)
    except ValueError as error:
        if str(error).startswith(_TOO_SHORT):
            raise OSError(_TRUNCATED) from error
        raise
    native: Values = values.astype(values.dtype.newbyteorder("="), copy=False)
    return native


def _coded_size(frame: bytes) -> tuple[int, int] | None:
    """Return the height and width that a compressed frame states; None if it states none.

    Decoders allocate memory by this size, but the limit of pixels is checked on the DICOM header.
    """
    start = -1 if frame.startswith(_JPEG) else frame.find(_CODESTREAM)
    if start >= 0:
        right, bottom, left, top = struct.unpack_from(">4I", frame, start + 8)
        return bottom - top, right - left
    at = 2
    while at + 9 <= len(frame) and frame[at] == 0xFF:
        marker = frame[at + 1]
        num_bytes, _, height, width = struct.unpack_from(">HBHH", frame, at + 2)
        if marker in _SIZE_MARKER:
            return height, width
        at += 1 if marker == 0xFF else 2 + num_bytes
    return None


def _high_bytes(values: Values, bits: int) -> Pixels:
    values = values >> (bits - 8) if bits > 8 else values
    pixels: Pixels = np.ascontiguousarray(values.astype(np.uint8, copy=False))
    return pixels


def _lift_frame_groups(about: Dataset) -> None:
    """Copy elements of an enhanced image's first frame to the top, where other images have them."""
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for group in list(about.get(name) or ())[:1]:
            for part in _FRAME_GROUPS:
                for found in list(group.get(part) or ())[:1]:
                    about.update(found)


_BAND_PIXELS: Final = 1 << 18
"""Number of pixels to rescale at once; each takes 8 bytes."""
_TAILS: Final = (0.005, 0.995)
"""Quantiles of the values that become black and white if no window is known."""


def grey_levels(
    values: Values, about: Dataset, window: Window, white: int = 255
) -> tuple[Values, Levels]:
    """Return values, [height, width], as grey of 0 to `white` (255 or 65535), and their levels."""
    dtype = np.uint8 if white == 255 else np.uint16
    levels, share = _share_of_white(values, about, window)

    def shades(stored: Values) -> Values:
        found = np.nan_to_num(share(_rescaled(stored, about)), nan=0.0)
        shade: Values = np.rint(np.clip(found, 0, 1) * white).astype(dtype)
        return shade

    num_bytes = values.dtype.itemsize
    table = None
    if num_bytes <= 2 and values.dtype.kind != "f":  # look up a table of all values of the type
        unsigned = np.dtype(f"u{num_bytes}")
        table = shades(np.arange(1 << 8 * num_bytes).astype(unsigned).view(values.dtype))
        values = values.view(unsigned)
    grey = np.empty(values.shape, dtype)
    height, width = values.shape
    rows = max(1, _BAND_PIXELS // width)
    for top in range(0, height, rows):
        band = values[top : top + rows]
        grey[top : top + rows] = shades(band) if table is None else table[band]
    return grey, levels


def _share_of_white(
    values: Values, about: Dataset, window: Window
) -> tuple[Levels, Callable[[Values], Values]]:
    """Return levels, and a function that maps rescaled values to 0 at black and 1 at white."""
    is_own = window == "auto"
    if window == "auto":
        table = _first(about.get("VOILUTSequence"))
        if table is not None:
            number, first, bits = table.LUTDescriptor
            curve = hashlib.sha256(repr((bits, table.LUTData)).encode()).hexdigest()
            levels = Levels(first, first + (number or 1 << 16) - 1, "", is_own, curve)
            return levels, lambda rescaled: _looked_up(rescaled, table) / ((1 << int(bits)) - 1)
        found = _own_window(about)
    else:
        found = (*window, "LINEAR") if isinstance(window, tuple) else None
    if found is not None:
        center, width, function = found
        center, width = (center - 0.5, width - 1) if function == "LINEAR" else (center, width)
        curve = function if function == "SIGMOID" else ""
        levels = Levels(center - width / 2, center + width / 2, "", is_own, curve)
        return levels, functools.partial(_windowed, *found)
    bits = int(about.get("BitsStored") or 32)
    if values.dtype.kind in "iu" and (window == "full" or bits <= 8):
        is_own = False
        low = -(1 << bits - 1) if values.dtype.kind == "i" else 0
        ends = np.array([low, low + (1 << bits) - 1])
    else:
        ends = _tails(values, about)
    black, white = sorted(_rescaled(ends, about).tolist())
    levels = Levels(black, white, "", is_own)
    return levels, lambda rescaled: (rescaled - black) / ((white - black) or 1)


def _own_window(about: Dataset) -> tuple[float, float, str] | None:
    """Return centre, width and function of the first window; None if missing or invalid."""
    center, width = (_first(about.get(name)) for name in ("WindowCenter", "WindowWidth"))
    function = str(about.get("VOILUTFunction") or "LINEAR")
    if center is None or width is None:
        return None
    is_usable = float(width) >= 1 if function == "LINEAR" else float(width) > 0
    return (float(center), float(width), function) if is_usable else None


def _windowed(center: float, width: float, function: str, rescaled: Values) -> Values:
    """Map rescaled values to shares of white by a window (PS3.3, C.11.2.1.2 and C.11.2.1.3)."""
    if function == "SIGMOID":
        return 1 / (1 + np.exp(np.clip(-4 * (rescaled - center) / width, -60, 60)))
    if function == "LINEAR_EXACT":
        return (rescaled - center) / width + 0.5
    if width == 1:
        return (rescaled > center - 0.5).astype(np.float64)
    return (rescaled - (center - 0.5)) / (width - 1) + 0.5


def _tails(values: Values, about: Dataset) -> Values:
    """Return the stored values at the quantiles `_TAILS`, ignoring padding."""
    padding = about.get("PixelPaddingValue")
    is_meant = np.isfinite(values)
    if padding is not None:
        other = about.get("PixelPaddingRangeLimit")
        low, high = sorted((padding, padding if other is None else other))
        is_meant &= (values < low) | (values > high)
    found = values[is_meant]
    return np.quantile(found if found.size else values, _TAILS, method="nearest")


def _rescaled(stored: Values, about: Dataset) -> Values:
    """Return stored values in the units of the file, such as Hounsfield units (PS3.3, C.11.1)."""
    table = _first(about.get("ModalityLUTSequence"))
    if table is not None:
        return _looked_up(stored, table)
    slope, intercept = about.get("RescaleSlope"), about.get("RescaleIntercept")
    return stored * np.float64(1 if slope is None else slope) + np.float64(intercept or 0)


def _looked_up(values: Values, table: Dataset) -> Values:
    """Return the table entry of each rounded value; the first or last entry if beyond the table."""
    number, first, _ = table.LUTDescriptor
    entries = table.LUTData
    if isinstance(entries, bytes):
        entries = np.frombuffer(entries, "<u2" if len(entries) > (number or 1 << 16) else "u1")
    entries = np.asarray(entries)
    places = np.clip(np.rint(values).astype(np.int64) - first, 0, len(entries) - 1)
    found: Values = entries[places].astype(np.float64)
    return found


def _first(found: Any) -> Any:
    if isinstance(found, Sequence) and not isinstance(found, str | bytes):
        return found[0] if len(found) else None
    return found
