"""Files of images and arrays as accidents and strangers change them, and what a build does.

`FORMS` lists the places where the process of a build opens a file of a source itself: to find
volumes and arrays, to detect classes of masks, sizes and levels, to cut tiles, and for `init`.
"""

import gzip
import random
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from PIL import Image

from shardprep.catalog.survey import survey_source
from shardprep.errors import ShardprepError
from tests.catalog.mutated_documents import SEED, Form, changed_text
from tests.support.arrays import hdf5, nifti, npy, paged_tiff, parquet, tiff
from tests.support.builders import encoded, png
from tests.support.dicom import dicom

NUM_FILES, NUM_SOAK = 132, 4000
"""Tries of a run of the suite, six of each form, and of `make soak`. The first 132 tries run 7,086
of the 7,107 lines of `catalog`, `source` and `image` that 400 tries run."""
_RNG = np.random.default_rng(SEED)
_BYTES = _RNG.integers(0, 256, (3, 5, 30, 40), np.uint8)
_BYTES[0, 0, 0, :2] = 0, 255
_NAMES = ("a", "b", "c")
_VOLUME: dict[str, Any] = {"labels": "none"}


def _each(name: str, make: Callable[[Any], bytes], arrays: Any = _BYTES) -> dict[str, bytes]:
    return {name.replace("*", key): make(one) for key, one in zip(_NAMES, arrays, strict=True)}


def _nifti(array: Any) -> bytes:
    return nifti(array.T)


def _zarr(version: int) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip(_NAMES, _BYTES, strict=True):
            place = Path(folder) / f"{name}.zarr"
            made = zarr.create_array(
                place, shape=array.shape, dtype="u1", chunks=(2, 30, 40), zarr_format=version
            )
            made[:] = array
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _idx(array: Any) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return bytes(head + array.tobytes())


def _picture(array: Any) -> bytes:
    return encoded(Image.fromarray(array), "PNG")


def _forms() -> dict[str, Form]:
    images = {f"images/{key}.png": png(30, 40, i) for i, key in enumerate(_NAMES)}
    rows = _RNG.integers(0, 256, (6, 30, 40), np.uint8)
    classes = np.arange(6, dtype=np.uint8) % 2
    masks = _each("masks/*.png", _picture, (_BYTES[:, 0] > 128).astype(np.uint8) * 255)
    depths = _each("depth/*.png", _picture, _BYTES[:, 1])
    floats = _each("depth/*.tif", tiff, _BYTES[:, 1].astype(np.float32))
    slides = _each("*.tif", lambda pages: tiff(pages[0], tile=(16, 16), compression="zlib"))
    frames = _each("*.dcm", lambda pages: dicom(pages, NumberOfFrames=5))
    slices = {
        f"{key}/{i}.dcm": dicom(one, InstanceNumber=i, ImagePositionPatient=[0, 0, i])
        for key, pages in zip(_NAMES, _BYTES, strict=True)
        for i, one in enumerate(pages[:3])
    }
    planes = {f"{key}/{i}.png": png(30, 40, i) for key in _NAMES for i in range(3)}
    faces = {"image": [_picture(one) for one in rows], "label": classes.tolist()}
    pixels = "label," + ",".join(f"pixel{i}" for i in range(1200))
    table = [f"{i % 2}," + ",".join(map(str, one.ravel())) for i, one in enumerate(rows)]
    return {
        "npy volumes": Form(_each("*.npy", npy), {**_VOLUME, "images": "*.npy::THW"}),
        "npy rows": Form({"x.npy": npy(rows), "y.npy": npy(classes)}, {"labels": "auto"}),
        "idx": Form(
            {"t10k-images-idx3-ubyte": _idx(rows), "t10k-labels-idx1-ubyte": _idx(classes)},
            {"labels": "auto"},
        ),
        "nifti": Form(_each("*.nii", _nifti), _VOLUME),
        "nifti, packed": Form(_each("*.nii.gz", _nifti), _VOLUME),
        "nifti masks": Form(
            _each("*/seg.nii", _nifti, _BYTES % 2),
            {"masks": "{id}/seg.nii", "images": "*.nii", "stack": "{id}/im.nii"},
            _each("*/im.nii", _nifti),
        ),
        "tiff pages": Form(_each("*.tif", paged_tiff), _VOLUME),
        "tiff series": Form(_each("*.tif", tiff), {**_VOLUME, "images": "*.tif"}),
        "tiff tiles": Form(slides, {**_VOLUME, "tile": 24}),
        "tiles": Form(images, {**_VOLUME, "tile": "24x16", "masks": "masks/{stem}.png"}, masks),
        "zarr 2": Form(_zarr(2), _VOLUME),
        "zarr 3": Form(_zarr(3), _VOLUME),
        "hdf5 volumes": Form(
            _each("*.h5", lambda one: hdf5({"rgb": one}, chunks=True)),
            {**_VOLUME, "images": "*.h5:rgb:THW"},
        ),
        "hdf5 rows": Form(
            {"x.h5": hdf5({"image": rows, "label": classes}, compression="gzip")},
            {"labels": "auto"},
        ),
        "parquet": Form({"x.parquet": parquet(faces)}, {"labels": "auto"}),
        "csv": Form(
            {"x.csv": "\n".join([pixels, *table]).encode()},
            {"images": "x.csv::40x30", "labels": "auto"},
        ),
        "dicom frames": Form(frames, _VOLUME),
        "dicom series": Form(slices, {**_VOLUME, "stack": "{id}/*.dcm"}),
        "stacks": Form(planes, {**_VOLUME, "stack": "{id}/*.png"}),
        "masks": Form(masks, {"masks": "masks/{stem}.png"}, images),
        "targets": Form(depths, {**_VOLUME, "target_image": "depth/{name}"}, images),
        "float targets": Form(floats, {**_VOLUME, "target_image": "depth/{stem}.tif"}, images),
    }  # fmt: skip


FORMS = _forms()
_NUMBERS = (0, 1, -1, 2, 8, 255, 65535, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1)


def _number(draw: random.Random, data: bytes) -> bytes:
    """Put a number, often an offset in the file, in the place of another, often at the start."""
    width = draw.choice((1, 2, 4, 8))
    value = draw.choice((*_NUMBERS, *(draw.randrange(len(data) + 1) for _ in range(6))))
    at = int(draw.random() ** draw.choice((1, 4)) * len(data)) // width * width
    new = (value % 256**width).to_bytes(width, draw.choice(("little", "big")))
    return b"".join((data[:at], new, data[at + width :]))


def _mutated(draw: random.Random, data: bytes) -> bytes:
    is_text = data[:1] in (b"{", b"l")
    if is_text or draw.random() < 0.3:  # cuts, repeats and flips, which all files may have
        return changed_text(draw, data, is_text=is_text)
    return _number(draw, data)


def mutated(number: int) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    """Return the name of the form, the members and the options of a try."""
    name = [*FORMS][number % len(FORMS)]
    form, draw = FORMS[name], random.Random(f"{SEED} files {number}")
    documents = dict(form.documents)
    for _ in range(draw.choice((1, 1, 2, 3))):
        key = draw.choice([*documents])
        documents[key] = _mutated(draw, documents[key])
    return name, {**form.others, **packed(documents)}, form.options


def packed(documents: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files, compressed if their name says so: a CRC finds changes of packed bytes."""
    every = documents.items()
    return {key: gzip.compress(data) if key.endswith(".gz") else data for key, data in every}


def survey(source: Path) -> None:
    """Let `init` look at a source, which may be an error of one line."""
    with tempfile.TemporaryDirectory() as work:
        try:
            survey_source(source, Path(work), lambda _: None)
        except ShardprepError:
            return
