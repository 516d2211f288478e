"""One sample has one range: equal values are equal levels in all images of a stack.

The oracle is exact arithmetic on the numbers of a whole sample.
"""

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import shardprep
from shardprep.errors import SourceError
from tests.support.arrays import decoded, npy
from tests.support.builders import build, encoded, tree, write_folder
from tests.support.dicom import dicom, sequence
from tests.writer.records import records

Array = NDArray[Any]
KEYS: dict[str, Any] = {"stack": "{id}/*", "size": "none", "depth": 16, "labels": "none"}
RNG = np.random.default_rng(46)
SHARES = np.array([1, 2, 9, 3], np.uint16).reshape(4, 1, 1)
VALUES: Array = RNG.integers(100, 4000, (2, 4, 6, 5)).astype(np.uint16) // SHARES
"""Two samples of four slices with different ranges."""


def image(values: Array, form: str) -> bytes:
    return encoded(Image.fromarray(values), form)


def stacks(path: Path) -> dict[str, Array]:
    return {key: np.stack([*map(decoded, row["images"])]) for key, row in records(path).items()}


def scaled(values: Array, low: float, high: float) -> Array:
    numbers = values.astype(np.float64).clip(low, high)
    return np.rint((numbers - low) / (high - low) * 65535)


FILES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "16 bits": (np.uint16, "PNG", {"depth_range": "auto"}),
    "floats": (np.float32, "TIFF", {}),
    "32 bits": (np.int32, "TIFF", {"depth_range": "auto"}),
}


@pytest.mark.parametrize("kind", FILES)
def test_slices_of_a_sample_have_the_range_of_the_sample(kind: str, tmp_path: Path) -> None:
    dtype, form, options = FILES[kind]
    members = {
        f"s{sample}/{i}.{form.lower()}": image(slice_.astype(dtype), form)
        for sample, slices in enumerate(VALUES)
        for i, slice_ in enumerate(slices)
    }
    made = build(write_folder(tmp_path / "in", members), tmp_path / "out", **KEYS, **options)
    found = stacks(made.path)
    for sample, values in enumerate(VALUES):
        assert np.array_equal(found[f"s{sample}"], scaled(values, values.min(), values.max()))
    assert made.manifest.num_own_levels == 2
    assert shardprep.repack(made.path, out=tmp_path / "again").manifest.num_own_levels == 2


def test_stacks_of_one_range_of_their_type_have_none_of_their_own(tmp_path: Path) -> None:
    members = {f"s/{i}.png": image(slice_, "PNG") for i, slice_ in enumerate(VALUES[0])}
    made = build(write_folder(tmp_path / "in", members), tmp_path / "out", **KEYS)
    assert np.array_equal(stacks(made.path)["s"], VALUES[0])
    assert made.manifest.num_own_levels == 0
    assert "num_own_levels" not in json.loads((made.path / "manifest.json").read_text())


SHADES = np.arange(0, 65536, 16).astype("<u2").tobytes()
TABLE = sequence(LUTDescriptor=[4096, 0, 16], LUTData=SHADES)
WINDOWS: dict[str, list[dict[str, Any]]] = {
    "windows": [
        {"WindowCenter": c, "WindowWidth": w} for c, w in ((500, 801), (900, 1001), (400, 701))
    ],
    "none": [{}, {}, {}],
    "a window and none": [{"WindowCenter": 500, "WindowWidth": 801}, {}, {}],
    "a sigmoid": [{"WindowCenter": 500, "WindowWidth": 801, "VOILUTFunction": "SIGMOID"}, {}, {}],
    "slopes": [{"RescaleSlope": s, "RescaleIntercept": -s} for s in (1, 2, 4)],
    "a table": [{"VOILUTSequence": TABLE}, {}, {}],
}


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("window", ["auto", "full"])
def test_equal_values_of_a_series_are_equal_levels(kind: str, window: str, tmp_path: Path) -> None:
    """The middle column of all slices has the same value in the units of the file."""
    members = {}
    for i, elements in enumerate(WINDOWS[kind]):
        slope = int(elements.get("RescaleSlope", 1))
        values = RNG.integers(100, 4000, (6, 5)).astype(np.uint16) // np.uint16(i + 1)
        values[:, 2] = 1000 // slope + (slope > 0 and "RescaleSlope" in elements)
        members[f"s/{i}.dcm"] = dicom(values, **{"InstanceNumber": i, **elements})
    made = build(write_folder(tmp_path / "in", members), tmp_path / "out", window=window, **KEYS)
    columns = stacks(made.path)["s"][:, :, 2]
    assert len(np.unique(columns)) == 1
    assert made.manifest.num_own_levels == int(window == "auto" or kind == "slopes")


def test_a_series_of_one_window_is_stored_by_it(tmp_path: Path) -> None:
    own: dict[str, Any] = {"WindowCenter": 1000, "WindowWidth": 2001}
    members = {
        f"s/{i}.dcm": dicom(one, **{"InstanceNumber": i, **own}) for i, one in enumerate(VALUES[0])
    }
    made = build(write_folder(tmp_path / "in", members), tmp_path / "out", **KEYS)
    # Center 1000 and width 2001 (PS3.3, C.11.2.1.2): 2,000 steps from -0.5 to 1999.5.
    assert np.array_equal(stacks(made.path)["s"], scaled(VALUES[0], -0.5, 1999.5))


ARRAYS = VALUES[0].astype(np.int16) - np.int16(700)
"""Four planes of one sample, in files of one or two planes."""


@pytest.mark.parametrize(
    ("types", "stack"),
    [
        ((np.int16, np.int16), "{id}_{a,b}.nii"),
        ((np.float32, np.int16), "{id}_{a,b}.nii"),
        ((np.uint16, np.int16), "{id}_{a,b}.nii"),
        ((np.uint16, np.uint16), "{id}_{a,b}.nii"),
        ((np.int16, np.float64), "{id}_*.npy"),
    ],
)
def test_files_of_a_sample_have_one_range(types: list[Any], stack: str, tmp_path: Path) -> None:
    planes = ARRAYS.clip(0)
    members = {}
    for name, dtype, some in zip("ab", types, (planes[:2], planes[2:]), strict=True):
        xyz = nibabel.Nifti1Image(some.transpose(2, 1, 0).astype(dtype), np.eye(4))
        data = xyz.to_bytes() if stack.endswith("nii") else npy(some.astype(dtype))
        members[f"s_{name}{stack[-4:]}"] = data
    options = {**KEYS, "stack": stack, "depth_range": "auto"}
    options |= {} if stack.endswith("nii") else {"images": "*.npy::THW"}
    made = build(write_folder(tmp_path / "in", members), tmp_path / "out", **options)
    (found,) = stacks(made.path).values()
    order = [0, 2, 1, 3] if stack.endswith("nii") else [0, 1, 2, 3]
    assert np.array_equal(found, scaled(planes[order], planes.min(), planes.max()))
    assert made.manifest.num_own_levels == 1


def test_rows_of_an_array_that_are_joined_need_a_range(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "in", {"s.npy": npy(ARRAYS)})
    options = {**KEYS, "stack": "{id}.npy/*", "images": "*.npy::NHW"}
    with pytest.raises(SourceError, match=r"s\.npy; give --depth-range MIN,MAX"):
        build(source, tmp_path / "out", depth_range="auto", **options)
    made = build(source, tmp_path / "out", depth_range="-700,3300", **options)
    (found,) = stacks(made.path).values()
    assert np.array_equal(found, scaled(ARRAYS, -700, 3300))


def test_copied_and_repaired_stacks_are_counted_as_built_ones(tmp_path: Path) -> None:
    """Of four samples, three have slices of 16 bits, and one has a slice of floats as well."""
    shapes = {"a": "uint16", "b": "uint16", "c": "uint16", "d": "float32"}
    members = {
        f"{name}/{i}.tif": image(slice_.astype(dtype), "TIFF")
        for name, dtype in shapes.items()
        for i, slice_ in enumerate(VALUES[0])
    }
    source = write_folder(tmp_path / "in", members)
    keys = {**KEYS, "name": "s", "shards": 2}
    for given, number, num_copied in (("full", 1, 0), ("auto", 4, 4)):
        options = {**keys, "depth_range": given}
        made = build(source, tmp_path / given, **options)
        assert made.manifest.num_own_levels == number
        again = build(source, tmp_path / f"{given} again", reuse=made.path, **options)
        assert (again.manifest.num_own_levels, again.num_copied) == (number, num_copied)
        assert tree(again.path) == tree(made.path)
        next(made.path.glob("*.tfrecord-00000*")).unlink()
        assert tree(build(source, tmp_path / given, **options).path) == tree(again.path)
