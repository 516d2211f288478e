"""DICOM files: those that pydicom ships, and small ones made by it."""

import io
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import (
    CTImageStorage,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    generate_uid,
)

from tests.support.odd_images import Array

SHIPPED = Path(pydicom.__file__).parent / "data" / "test_files"


def dicom(values: Array, syntax: str = ExplicitVRLittleEndian, **elements: Any) -> bytes:
    """Return a file of grey values [h, w] or colours [h, w, 3], or several frames of them.

    Elements are added, or put in the place of those that tell the pixels.
    """
    is_colour = values.shape[-1] == 3
    frames = values if values.ndim == 3 + is_colour else values[None]
    about = Dataset()
    about.SOPClassUID = CTImageStorage
    about.PatientID, about.Modality = "p1", "CT"
    about.Rows, about.Columns = frames.shape[1:3]
    about.SamplesPerPixel = 3 if is_colour else 1
    about.PhotometricInterpretation = "RGB" if is_colour else "MONOCHROME2"
    about.BitsAllocated = about.BitsStored = 8 * values.itemsize
    about.HighBit = about.BitsStored - 1
    about.PixelRepresentation = int(values.dtype.kind == "i")
    if is_colour:
        about.PlanarConfiguration = 0
    if len(frames) > 1:
        about.NumberOfFrames = len(frames)
    about.PixelData = values.tobytes()
    about["PixelData"].VR = "OW"
    for name, value in elements.items():
        setattr(about, name, value)
    return _written(about, syntax)


def sequence(**elements: Any) -> Sequence:
    item = Dataset()
    for name, value in elements.items():
        setattr(item, name, value)
    return Sequence([item])


def without_pixels() -> bytes:
    about = Dataset()
    about.SOPClassUID, about.Modality = "1.2.840.10008.5.1.4.1.1.88.11", "SR"
    return _written(about, ExplicitVRLittleEndian)


def _written(about: Dataset, syntax: str) -> bytes:
    about.file_meta = FileMetaDataset()
    about.file_meta.TransferSyntaxUID = syntax
    about.file_meta.MediaStorageSOPClassUID = about.SOPClassUID
    about.file_meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["1"])
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of elements that are odd on purpose
        pydicom.dcmwrite(out, about, enforce_file_format=True)
    return out.getvalue()


def deflated_bomb(num_bytes: int) -> bytes:
    """Return a file of some thousandth of the bytes to which its elements unpack."""
    data = dicom(np.zeros((2, 2), np.uint8), DeflatedExplicitVRLittleEndian)
    end = 144 + int.from_bytes(data[140:144], "little")
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    block = deflate.compress(bytes(1 << 20)) + deflate.flush(zlib.Z_FULL_FLUSH)  # needs no other
    return data[:end] + block * (num_bytes >> 20) + deflate.flush()
