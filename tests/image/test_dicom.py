"""DICOM is stored as pydicom decodes it, and a broken file is rejected."""

import io
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydicom.pixels import apply_color_lut, apply_modality_lut, apply_voi_lut

from shardprep.image.dicom import SlicePlace, series_order
from shardprep.image.process import ProcessedImage, Rejection, process_image
from shardprep.image.spec import ImageSpec
from tests.support.dicom import SHIPPED, dicom, sequence
from tests.support.odd_images import Array, furthest, grey

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:pydicom")

NOT_READ = {
    "JPEG-lossy": "undecodable",
    "JPEG2000-embedded-sequence-delimiter": "undecodable",
    "badVR": "undecodable",
    "MR_truncated": "truncated",
}
"""Files with pixels that pydicom cannot decode either."""
RAMP = np.arange(24 * 32, dtype=np.int16).reshape(24, 32) * 5 - 1000
"""Grey values, -1000..2835."""


def outcome(data: bytes, **keys: Any) -> ProcessedImage | Rejection:
    return process_image(data, ImageSpec(size=None, fit="none", format="raw", **keys))


@pytest.mark.parametrize(
    ("dtype", "frames", "losses"),
    [("uint8", 1, ()), ("uint16", 1, ("bits",)), ("uint8", 3, ("frames",))],
)
def test_lost_frames_and_bits_are_known(dtype: str, frames: int, losses: tuple[str, ...]) -> None:
    image = outcome(dicom(np.arange(frames * 64, dtype=dtype).reshape(frames, 8, 8)))
    assert isinstance(image, ProcessedImage)
    assert image.losses == losses


def seen(data: bytes, **keys: Any) -> Array:
    found = outcome(data, **keys)
    assert isinstance(found, ProcessedImage), found
    assert found.original.format == "dicom"
    return np.frombuffer(found.data, np.uint8).reshape(found.height, found.width, 3)


def by_pydicom(about: pydicom.Dataset) -> Array:
    """Return what pydicom makes of the first frame, brought to 8 bits."""
    frame = about.pixel_array
    if int(about.get("NumberOfFrames") or 1) > 1:
        frame = frame[0]
    if about.PhotometricInterpretation == "PALETTE COLOR":
        return np.asarray(apply_color_lut(frame, about)[..., :3] >> 8)
    if frame.ndim == 3:
        return np.asarray(frame >> (about.BitsStored - 8))
    values = apply_modality_lut(frame, about)
    if "WindowCenter" not in about and about.BitsStored > 8:
        low, high = np.quantile(values, (0.005, 0.995), method="nearest")
    else:
        bits = about.BitsStored
        ends = np.array(
            [-(1 << bits - 1), (1 << bits - 1) - 1]
            if about.PixelRepresentation
            else [0, (1 << bits) - 1]
        )
        low, high = apply_modality_lut(ends, about)
        values = apply_voi_lut(values, about)
    return grey(np.clip((values - float(low)) / (float(high) - float(low)) * 255, 0, 255))


def shipped() -> dict[str, pydicom.Dataset]:
    """Return pydicom's files that have the mark and pixels."""
    found = {}
    for path in sorted(SHIPPED.glob("*.dcm")):
        if path.read_bytes()[128:132] == b"DICM":
            about = pydicom.dcmread(path)
            if "PixelData" in about and "Rows" in about and "TransferSyntaxUID" in about.file_meta:
                found[path.stem] = about
    return found


@pytest.mark.thorough
def test_the_files_of_pydicom_are_stored_as_pydicom_decodes_them() -> None:
    far = {}
    for name, about in shipped().items():
        data = (SHIPPED / f"{name}.dcm").read_bytes()
        if name in NOT_READ:
            found = outcome(data)
            assert isinstance(found, Rejection), name
            assert found.kind == NOT_READ[name], name
        else:
            far[name] = furthest(seen(data), by_pydicom(about))
    assert len(far) > 50
    assert {name: by for name, by in far.items() if by > 1} == {}


@pytest.mark.parametrize("function", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
def test_a_window_is_applied_as_in_the_standard(function: str, photometric: str) -> None:
    data = dicom(
        RAMP, RescaleSlope="2.5", RescaleIntercept="-10", WindowCenter=["40", "900"],
        WindowWidth=["400", "1"], VOILUTFunction=function, PhotometricInterpretation=photometric,
    )  # fmt: skip
    about = pydicom.dcmread(io.BytesIO(data))
    expected = by_pydicom(about)
    assert furthest(seen(data), 255 - expected if photometric == "MONOCHROME1" else expected) <= 1
    assert len(np.unique(seen(data))) > 20


@pytest.mark.parametrize("width", ["0", "-5", ""])
def test_a_window_without_a_width_is_ignored(width: str) -> None:
    odd, plain = dicom(RAMP, WindowCenter="40", WindowWidth=width), dicom(RAMP)
    assert furthest(seen(odd), seen(plain)) == 0


def test_padding_has_no_influence_on_shades() -> None:
    """Pixels outside the circle of a scanner must not make the inside flat."""
    padded = RAMP.copy()
    padded[:12] = -2000
    inside = seen(dicom(padded, PixelPaddingValue=-2000))[12:]
    assert furthest(inside, seen(dicom(RAMP[12:]))) == 0
    assert len(np.unique(inside)) > 200


def test_an_enhanced_image_has_the_window_of_its_first_frame() -> None:
    shared = sequence(
        PixelValueTransformationSequence=sequence(RescaleSlope="2", RescaleIntercept="1")
    )
    frames = [
        sequence(FrameVOILUTSequence=sequence(WindowCenter=center, WindowWidth="200"))[0]
        for center in ("100", "2000")
    ]
    enhanced = dicom(
        np.stack([RAMP, RAMP[::-1]]), SharedFunctionalGroupsSequence=shared,
        PerFrameFunctionalGroupsSequence=frames,
    )  # fmt: skip
    plain = dicom(
        RAMP, RescaleSlope="2", RescaleIntercept="1", WindowCenter="100", WindowWidth="200"
    )
    assert furthest(seen(enhanced), seen(plain)) == 0


def test_values_outside_a_table_have_its_first_and_last_shade() -> None:
    def entries(numbers: range) -> bytes:
        return np.array(numbers, "<u2").tobytes()

    table = sequence(LUTDescriptor=[256, 100, 12], LUTData=entries(range(0, 4096, 16)))
    expected = np.clip(RAMP - 100, 0, 255) * 16 / 4095 * 255
    assert furthest(seen(dicom(RAMP, VOILUTSequence=table)), grey(expected)) <= 1
    mapped = sequence(LUTDescriptor=[256, 100, 16], LUTData=entries(range(0, 65_536, 256)))
    stored = seen(dicom(RAMP, ModalityLUTSequence=mapped), window="full")
    assert furthest(stored, grey(np.clip(RAMP - 100, 0, 255))) <= 1


def test_a_frame_of_another_size_than_its_header_is_not_decoded() -> None:
    """The limit of pixels is checked on the header; a decoder takes the size in the frame."""
    for name, size_at in (("MR_small_jp2klossless", 8), ("JPGExtended", 5)):
        data = bytearray((SHIPPED / f"{name}.dcm").read_bytes())
        start = data.rindex(b"\xff\x4f\xff\x51" if size_at == 8 else b"\xff\xc1")
        form = ">II" if size_at == 8 else ">HH"
        struct.pack_into(form, data, start + size_at, 60_000, 60_000)
        found = outcome(bytes(data))
        assert isinstance(found, Rejection)
        assert (found.kind, "another size" in found.reason) == ("undecodable", True)


@given(
    st.sampled_from(["CT_small", "MR_small_RLE", "JPEGLSNearLossless_08", "image_dfl", "rtdose"]),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=6)), max_size=6),
    st.floats(0, 1),
)
def test_damage_raises_nothing(name: str, patches: list[tuple[float, bytes]], kept: float) -> None:
    data = bytearray((SHIPPED / f"{name}.dcm").read_bytes())
    for share, patch in patches:
        at = 132 + int(share**3 * (len(data) - 140))
        data[at : at + len(patch)] = patch
    outcome(bytes(data[: 132 + int(kept * len(data))]), max_pixels=1 << 22)


def test_a_truncated_file_is_not_taken_for_another_kind_of_file() -> None:
    for name in ("CT_small", "MR_small_jp2klossless", "SC_rgb_rle", "image_dfl"):
        data = (SHIPPED / f"{name}.dcm").read_bytes()
        for percent in (4, 20, 60, 95):
            found = outcome(data[: max(150, len(data) * percent // 100)])
            assert isinstance(found, Rejection), (name, percent)
            assert found.kind == "truncated", (name, percent, found)


def test_without_the_extra_the_reason_names_it() -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys(["pydicom", "pillow_heif"]))
from shardprep.image.process import process_image
from shardprep.image.spec import ImageSpec
for data in (bytes(128) + b"DICM" + bytes(50), b"\\0\\0\\0\\x18ftypheic" + bytes(20)):
    print(process_image(data, ImageSpec()).reason)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert said.stdout.splitlines() == [
        "a DICOM image: pip install 'shardprep[dicom]'",
        "a HEIC image: pip install 'shardprep[heic]'",
    ]


@pytest.mark.parametrize(
    ("series", "names"),
    [
        ("77654033/CT2", ["17106", "17136", "17166", "17196"]),
        ("98892001/CT5N", ["3353", "3023", "2693", "2392", "2062"]),
        ("98892003/MR700", ["4558", "4528", "4588", "4467", "4618", "4678", "4648"]),
    ],
)
def test_real_series_are_ordered_by_position_or_by_number(series: str, names: list[str]) -> None:
    """The slices of MR700 are around an axis, so InstanceNumber orders them."""
    files = sorted((SHIPPED / "dicomdirtests" / series).iterdir())
    order = series_order([SlicePlace.of(file.read_bytes()) for file in files])
    assert [files[row].name for row in order] == names


def test_slices_without_a_place_keep_their_order() -> None:
    heads = [dicom(RAMP), dicom(RAMP, InstanceNumber=1), b"no DICOM"]
    assert series_order([SlicePlace.of(head) for head in heads]) == [0, 1, 2]
