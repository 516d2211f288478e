"""Volumes as sources: each is a stack of its planes. The oracle is the library of the format."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from shardprep.writer.finalize import BuildResult
from tests.catalog.test_arrays import hdf5, npy
from tests.support.builders import SHARED_DATA, build, write
from tests.writer.records import records

Array = NDArray[Any]
RNG = np.random.default_rng(5)
BYTES = RNG.integers(0, 256, (2, 5, 9, 12), np.uint8)
"""Two volumes of five planes."""
COLOURS = RNG.integers(0, 256, (5, 9, 12, 3), np.uint8)
NIBABEL = Path(nibabel.__file__).parent / "tests" / "data"


def built(source: Path, out: Path, **options: Any) -> BuildResult:
    given = {"size": "none", "format": "png", "labels": "none", "max_rejected": 1.0, **options}
    return build(source, out, **given)


def volumes(made: BuildResult) -> dict[str, Array]:
    return {
        key: np.stack([np.asarray(Image.open(io.BytesIO(one))) for one in features["images"]])
        for key, features in records(Path(made.location)).items()
    }


def grey(volume: Array) -> Array:
    assert (volume == volume[..., :1]).all()
    return volume[..., 0]


def deep(volume: Array, low: float, high: float) -> Array:
    """Return the levels of 16 bits that the numbers of a volume have, in exact arithmetic."""
    return np.rint((volume.astype(np.float64).clip(low, high) - low) / (high - low) * 65535)


@pytest.mark.parametrize(
    ("layout", "array"),
    [
        ("THW", BYTES[0]),
        ("HWT", BYTES[0].transpose(1, 2, 0)),
        ("WHT", BYTES[0].transpose(2, 1, 0)),
        ("THWC", COLOURS),
        ("CTHW", COLOURS.transpose(3, 0, 1, 2)),
        ("NTHW", BYTES),
        ("TNHW", BYTES.transpose(1, 0, 2, 3)),
        ("NTHWC", COLOURS[None]),
        ("HWTT", BYTES.transpose(2, 3, 1, 0)),
        ("TTHW", np.asfortranarray(BYTES.transpose(1, 0, 2, 3))),
    ],
)
@pytest.mark.parametrize("name", ["a.npy", "a.h5"])
def test_an_axis_t_makes_stacks(name: str, layout: str, array: Array, tmp_path: Path) -> None:
    data = npy(array) if name == "a.npy" else hdf5({"x": array}, chunks=True)
    made = built(write(tmp_path / name, data), tmp_path / "out", images=f"{name}::{layout}")
    found = volumes(made)
    if layout in ("HWTT", "TTHW"):  # the first T is the outer one
        (volume,) = found.values()
        assert np.array_equal(grey(volume), BYTES.transpose(1, 0, 2, 3).reshape(10, 9, 12))
    elif "C" in layout:
        assert np.array_equal(*found.values(), COLOURS)
    elif "N" in layout:
        assert found.keys() == {f"{name}/000000", f"{name}/000001"}
        assert all(np.array_equal(grey(found[f"{name}/{i:06d}"]), BYTES[i]) for i in range(2))
    else:
        assert np.array_equal(grey(found[name]), BYTES[0])


def nifti(array: Array, zooms: tuple[float, ...] = (), kind: Any = nibabel.Nifti1Image) -> bytes:
    image = kind(array, np.eye(4))
    image.header.set_zooms(zooms or (1.0,) * array.ndim)
    return image.to_bytes()


def planes(volume: Array) -> Array:
    """Return the planes of nibabel's array x, y, z, …: z is the outer axis, and y the rows."""
    return volume.reshape(*volume.shape[:2], -1).transpose(2, 1, 0)


SHIPPED = [
    "example4d.nii.gz", "example_nifti2.nii.gz", "anatomical.nii", "functional.nii",
    "standard.nii.gz",
]  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_voxels_are_those_of_nibabel(name: str, tmp_path: Path) -> None:
    image: Any = nibabel.load(NIBABEL / name)
    values = image.get_fdata()
    low, high = float(values.min()), float(values.max())
    source = write(tmp_path / name, (NIBABEL / name).read_bytes())
    made = built(source, tmp_path / "out", depth=16, depth_range=f"{low},{high}")
    assert np.array_equal(volumes(made)[name], deep(planes(values), low, high))


@pytest.mark.skipif(not (SHARED_DATA / "modern.tar").exists(), reason="needs the shared data")
def test_volumes_and_labels_of_brats_are_those_of_nibabel(tmp_path: Path) -> None:
    with tarfile.open(SHARED_DATA / "modern.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "modern" / "brats_nifti"
    found = volumes(built(folder, tmp_path / "out", depth=16, depth_range="0,100"))
    paths = [path for path in folder.rglob("*.nii.gz") if not path.name.startswith(".")]
    assert found.keys() == {path.relative_to(folder).as_posix() for path in paths}
    for path in paths:
        expected = planes(np.asarray(nibabel.load(path).dataobj))
        key = path.relative_to(folder).as_posix()
        assert np.array_equal(found[key], deep(expected, 0, 100)), key
