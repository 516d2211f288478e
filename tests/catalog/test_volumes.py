"""Volumes as sources: each is a stack of its planes. The oracle is the library of the format."""

import contextlib
import gzip
import io
import json
import re
import struct
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numcodecs
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from numpy.typing import NDArray

import shardprep
from shardprep import reader
from shardprep.catalog.source_images import list_images
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.errors import ShardprepError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.finalize import BuildResult
from tests.support.arrays import decoded, hdf5, nifti, npy, paged_tiff, tiff
from tests.support.builders import SHARED_DATA, build, png, write, write_folder, zip_bytes
from tests.support.dicom import SHIPPED as DICOMS
from tests.support.dicom import dicom, sequence
from tests.writer.records import records, rows

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
        key: np.stack([*map(decoded, features["images"])])
        for key, features in records(made.path).items()
    }


def rejections(made: BuildResult) -> dict[str, tuple[str, str]]:
    bad = {key: row for key, row in rows(made.path).items() if row["status"] == "rejected"}
    return {key: (row["kind"], row["reason"]) for key, row in bad.items()}


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
        assert np.array_equal(next(iter(found.values())), COLOURS)
    elif "N" in layout:
        assert found.keys() == {f"{name}/000000", f"{name}/000001"}
        assert all(np.array_equal(grey(found[f"{name}/{i:06d}"]), BYTES[i]) for i in range(2))
    else:
        assert np.array_equal(grey(found[name]), BYTES[0])


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
    x, y, z = image.header.get_zooms()[:3]
    (record,) = records(made.path).values()
    assert [record[f"spacing/{axis}"][0] for axis in "tyx"] == [z, y, x]


def test_a_layout_states_other_axes_of_nifti(tmp_path: Path) -> None:
    values = RNG.integers(0, 65536, (5, 6, 4, 2), np.uint16)
    for name, kind in (("a.nii", nibabel.Nifti1Image), ("b.nii", nibabel.Nifti2Image)):
        source = write(tmp_path / name, nifti(values, kind=kind))
        made = built(source, tmp_path / "rows", images=f"{name}::WHTN", depth=16)
        found = volumes(made)
        for row in range(2):
            assert np.array_equal(found[f"{name}/00000{row}"], planes(values[..., row]))
        made = built(source, tmp_path / "x", images=f"{name}::TWHT", depth=16)
        expected = values.transpose(0, 3, 2, 1).reshape(10, 4, 6)
        assert np.array_equal(volumes(made)[name], expected)


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


# --- TIFF ---


WORDS = RNG.integers(0, 65536, (5, 40, 30), np.uint16)
PAGED = {
    "strips": lambda: tiff(WORDS, rowsperstrip=7),
    "tiles and deflate": lambda: tiff(WORDS, tile=(16, 16), compression="zlib", predictor=True),
    "big-endian": lambda: tiff(WORDS, byteorder=">"),
    "BigTIFF": lambda: tiff(WORDS, bigtiff=True, metadata={"axes": "ZYX"}),
    "ImageJ": lambda: tiff(WORDS, imagej=True, metadata={"spacing": 3.0, "unit": "um"}),
    "deflate of libtiff": lambda: paged_tiff(WORDS, compression="tiff_adobe_deflate"),
}


@pytest.mark.parametrize("form", PAGED)
def test_pages_of_16_bits_are_stored_exactly(form: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.zip", zip_bytes({"a.tif": PAGED[form]()}))
    made = built(source, tmp_path / "out", depth=16)
    assert np.array_equal(volumes(made)["a.tif"], WORDS)


def test_bands_are_stacks_and_pyramids_and_single_pages_are_not(tmp_path: Path) -> None:
    """The bands of EuroSAT MS, interleaved or apart; a pyramid has pages of several sizes."""
    bands = RNG.integers(0, 4000, (13, 64, 48), np.uint16)
    files = {
        "a.tif": tiff(bands.transpose(1, 2, 0), planarconfig="contig", compression="zlib"),
        "b.tif": tiff(bands[None], planarconfig="separate"),
    }
    found = volumes(built(write_folder(tmp_path / "bands", files), tmp_path / "a", depth=16))
    assert found.keys() == files.keys()
    assert all(np.array_equal(one, bands) for one in found.values())
    with tifffile.TiffWriter(pyramid := io.BytesIO()) as out:
        out.write(BYTES[0][0], photometric="minisblack", metadata=None)
        out.write(BYTES[0][0][::2, ::2], photometric="minisblack", subfiletype=1, metadata=None)
    source = tmp_path
    for name, others in ("pyramid", {"a.tif": pyramid.getvalue()}), (
        "mixed", {"a.tif": tiff(BYTES[0][:1]), "b.tif": tiff(BYTES[0])},
    ):  # fmt: skip
        source = write_folder(tmp_path / name, others)
        rows = records(Path(built(source, tmp_path / "single").location))
        assert all("images" not in row for row in rows.values()), name
    named = volumes(built(source, tmp_path / "named", images="*.tif"))
    assert {key: len(one) for key, one in named.items()} == {"a.tif": 1, "b.tif": 5}


# --- DICOM ---

FRAMES: dict[str, Callable[[], bytes]] = {
    name: (DICOMS / name).read_bytes
    for name in (
        "rtdose.dcm", "rtdose_rle.dcm", "SC_rgb_rle_2frame.dcm", "SC_rgb_rle_16bit_2frame.dcm",
    )
}  # fmt: skip
FRAMES["an odd number of bytes"] = lambda: dicom(BYTES[0, :, :7, :9])


@pytest.mark.parametrize("name", FRAMES)
def test_frames_are_those_that_pydicom_decodes(name: str, tmp_path: Path) -> None:
    data = FRAMES[name]()
    about = pydicom.dcmread(io.BytesIO(data))
    source = write(tmp_path / "src" / "a.dcm", data).parent
    made = built(source, tmp_path / "out", window="full")
    frames = about.pixel_array
    (volume,) = volumes(made).values()
    assert len(volume) == about.NumberOfFrames == len(frames)
    if frames.ndim == 4:
        assert np.array_equal(volume, frames >> (8 * frames.itemsize - 8))
    else:
        most = float(2**about.BitsStored - 1)
        assert np.abs(grey(volume) - frames / most * 255).max() <= 0.5


def test_frames_of_an_enhanced_image_have_the_range_of_all_their_windows(tmp_path: Path) -> None:
    values = RNG.integers(0, 1000, (3, 9, 12), np.uint16)
    windows = (500, 1000), (100, 200), (900, 199)
    groups = [
        sequence(FrameVOILUTSequence=sequence(WindowCenter=center, WindowWidth=width))[0]
        for center, width in windows
    ]
    data = dicom(values, PerFrameFunctionalGroupsSequence=pydicom.Sequence(groups))
    source = write(tmp_path / "src" / "a.dcm", data).parent
    (volume,) = volumes(built(source, tmp_path / "out", depth=16)).values()
    # PS3.3, C.11.2.1.2: black is center - 0.5 - (width - 1) / 2
    assert np.array_equal(volume, deep(values, 0.0, 999.0))


# --- zarr ---


def zarr_files(array: Array, path: str = "", **options: Any) -> dict[str, bytes]:
    store = zarr.storage.MemoryStore()
    made = zarr.create_array(
        store, name=path or None, shape=array.shape, dtype=array.dtype, **options
    )
    made[...] = array
    return {key: value.to_bytes() for key, value in store._store_dict.items()}


ZARRS: dict[str, dict[str, Any]] = {
    "v2 with slashes": {"zarr_format": 2, "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    "v2 of gzip": {"zarr_format": 2, "compressors": numcodecs.GZip()},
    "v3": {"zarr_format": 3},
    "v3 in shards": {"zarr_format": 3, "shards": (4, 8, 12)},
}


@pytest.mark.parametrize("form", ZARRS)
@pytest.mark.parametrize("where", ["folder", "zip", "itself"])
def test_arrays_of_zarr_are_stacks(form: str, where: str, tmp_path: Path) -> None:
    files = zarr_files(WORDS[:, :30, :26], chunks=(2, 4, 6), **ZARRS[form])
    inside = {f"train/a.zarr/{key}": data for key, data in files.items()}
    source = {
        "folder": lambda: write_folder(tmp_path / "src", inside),
        "zip": lambda: write(tmp_path / "src.zip", zip_bytes(inside)),
        "itself": lambda: write_folder(tmp_path / "a.zarr", files),
    }[where]()
    made = built(source, tmp_path / "out", depth=16)
    found = volumes(made)
    assert found.keys() == {"a.zarr" if where == "itself" else "train/a.zarr"}
    assert np.array_equal(next(iter(found.values())), WORDS[:, :30, :26])
    assert not made.manifest.totals.skipped


# --- twins of competitions ---


def test_czii_cryo_et(tmp_path: Path) -> None:
    """A zarr of three resolutions for each run; a run is empty."""
    files: dict[str, bytes] = {}
    for name in ("TS_0", "TS_1"):
        values = RNG.normal(size=(4, 8, 12)).astype(np.float32)
        folder = f"train/static/ExperimentRuns/{name}/VoxelSpacing10.000/denoised.zarr"
        files[f"{folder}/.zgroup"] = b'{"zarr_format": 2}'
        for level in range(3):
            array = zarr_files(
                values[:, :: 1 << level, :: 1 << level], zarr_format=2, chunks=(2, 4, 4)
            )
            files |= {f"{folder}/{level}/{key}": data for key, data in array.items()}
    files["train/static/ExperimentRuns/TS_9/VoxelSpacing10.000/denoised.zarr/.zgroup"] = b"{}"
    source = write_folder(tmp_path / "czii", files)
    with pytest.raises(ShardprepError, match=r"several columns .*denoised\.zarr:0"):
        built(source, tmp_path / "unclear")
    with pytest.raises(ShardprepError, match=r"TS_9/.*denoised\.zarr has no images"):
        built(source, tmp_path / "empty", images="denoised.zarr:0")
    one = {"images": "TS_[0-1]/*/denoised.zarr:0", "depth_range": "auto"}
    assert len(volumes(built(source, tmp_path / "out", **one))) == 2


@pytest.mark.parametrize("module", ["tifffile", "zarr"])
def test_a_missing_library_is_named(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    files = {"a.tif": tiff(BYTES[0])} if module == "tifffile" else zarray()
    source = write_folder(tmp_path / "src", files)
    extra = {"tifffile": "tiff", "zarr": "zarr"}[module]
    options = {"images": "*.tif"} if module == "tifffile" else {}
    with pytest.raises(SourceError, match=rf"{module}, .*; pip install 'shardprep\[{extra}\]'"):
        built(source, tmp_path / "out", **options)
    if module == "tifffile":  # without --images, the first page is used, as before
        assert "image" in records(Path(built(source, tmp_path / "first").location))["a.tif"]


# --- levels, errors and everything else ---


def test_levels_are_those_of_a_stack_or_of_all_files(tmp_path: Path) -> None:
    one, two = (RNG.normal(size=(4, 9, 12)).astype(np.float32) * scale for scale in (1, 50))
    files = {"1.npy": npy(one), "2.npy": npy(two)}
    source = write_folder(tmp_path / "src", files)
    with pytest.raises(SourceError, match="not clear which values are black and white"):
        built(source, tmp_path / "out", images="*.npy::THW")
    others = write_folder(tmp_path / "many", {f"{i}.npy": npy(BYTES[0]) for i in range(4)})
    made = built(others, tmp_path / "many")
    assert any("'*.npy::THW' would store each of 4 arrays" in note for note in made.notes)
    own = {"images": "*.npy::THW", "depth_range": "auto", "depth": 16}
    found = volumes(built(source, tmp_path / "own", **own))
    for name, values in (("1.npy", one), ("2.npy", two)):
        expected = deep(values, float(values.min()), float(values.max()))
        assert np.array_equal(found[name], expected)
    source = write(tmp_path / "a.npy", npy(WORDS // 2 + 1000))
    (words,) = volumes(built(source, tmp_path / "words", **own)).values()
    assert (words.min(), words.max()) == (0, 65535)
    source = write(tmp_path / "nan.npy", npy(np.where(one > 0, one, np.nan)))
    high = float(one.max())
    made = built(source, tmp_path / "nan", images="*.npy::THW", depth_range=f"0,{high}", depth=16)
    assert np.array_equal(volumes(made)["nan.npy"], deep(one, 0, high))


def test_volumes_of_a_case_become_one_stack_and_classes_come_from_a_table(tmp_path: Path) -> None:
    """As in BraTS: a file for each modality; a case lacks in the table, and one id has no case."""
    shape = (12, 9, 4)
    cases = {
        f"case{i}/case{i}_{kind}.nii.gz": RNG.integers(0, 256, shape, np.uint8)
        for i in range(3)
        for kind in ("flair", "t1")
    }
    files = {key: gzip.compress(nifti(array)) for key, array in cases.items()}
    files["labels.csv"] = b"case,grade\ncase0,low\ncase2,high\ncase9,low\n"
    source = write(tmp_path / "brats.zip", zip_bytes(files))
    keys = {"stack": "{id}/*.nii.gz", "labels": "csv:labels.csv:case:grade"}
    made = built(source, tmp_path / "out", **keys)
    found = volumes(made)
    for case in ("case0", "case2"):
        two = [planes(cases[f"{case}/{case}_{kind}.nii.gz"]) for kind in ("flair", "t1")]
        assert np.array_equal(grey(found[case]), np.concatenate(two))
    assert found.keys() == {"case0", "case2"}
    assert made.manifest.totals.skipped == {"no label": 1}
    channels = {**keys, "stack": "{id}/{id}_{t1,flair}.nii.gz", "labels": "none"}
    files["case1/case1_t1.nii.gz"] = gzip.compress(nifti(np.zeros((12, 9, 3), np.uint8)))
    other = write(tmp_path / "channels.zip", zip_bytes(files))
    made = built(other, tmp_path / "channels", **channels)
    even = volumes(made)
    assert made.manifest.totals.skipped["channels differ in their number of planes"] == 1
    for case in ("case0", "case2"):
        for first, kind in enumerate(("t1", "flair")):
            expected = planes(cases[f"{case}/{case}_{kind}.nii.gz"])
            assert np.array_equal(grey(even[case][first::2]), expected)
    single = volumes(built(source, tmp_path / "single", exclude="*_t1.nii.gz"))
    assert len(single) == 3
    assert np.array_equal(
        grey(single["case0/case0_flair.nii.gz"]), planes(next(iter(cases.values())))
    )


def test_a_dataset_of_volumes_is_read_verified_reused_and_compared(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "src", {f"{i}.nii": nifti(BYTES[i].T) for i in range(2)})
    made = built(source, tmp_path / "out", depth=16)
    folder = made.path
    checked = shardprep.verify(folder, decode=True)
    assert not checked.problems
    again = built(source, tmp_path / "again", depth=16, reuse=folder)
    assert again.num_copied == 2
    assert shardprep.diff(folder, Path(again.location)).is_equal
    data = reader.Dataset(folder, "train")
    volume = data[0]
    assert (volume.shape, volume.dtype) == ((5, 9, 12, 1), np.uint16)
    assert any(np.array_equal(volume[..., 0], one * np.uint16(257)) for one in BYTES)


def test_the_recipe_of_init_builds_volumes(tmp_path: Path) -> None:
    values = RNG.normal(size=(12, 9, 5)).astype(np.float32)
    source = write_folder(tmp_path / "src", {f"{i}.nii": nifti(values + i) for i in range(2)})
    survey = survey_source(source, tmp_path, lambda _: None)
    text = recipe_text(survey)
    low, high = map(float, survey.proposals["depth_range"][0].split(","))
    assert low == pytest.approx(float(values.min()), rel=1e-4)
    assert f'depth_range = "{survey.proposals["depth_range"][0]}"' in text
    made = built(source, tmp_path / "out", depth_range=survey.proposals["depth_range"][0])
    assert {len(one) for one in volumes(made).values()} == {5}
    assert high > low


def header(**fields: Any) -> bytes:
    """Return a NIfTI file with these numbers in its header."""
    data = bytearray(nifti(BYTES[0].T))
    places = {
        "dim": (40, "8h"),
        "datatype": (70, "h"),
        "vox_offset": (108, "f"),
        "slope": (112, "f"),
    }
    for name, value in fields.items():
        at, form = places[name]
        struct.pack_into(f"<{form}", data, at, *np.ravel(value).tolist())
    return bytes(data)


def zarray(**fields: Any) -> dict[str, bytes]:
    about = {
        "zarr_format": 2, "shape": [4, 8, 8], "chunks": [1, 8, 8], "dtype": "|u1", "order": "C",
        "compressor": None, "filters": None, "fill_value": 0, **fields,
    }  # fmt: skip
    return {"a.zarr/.zarray": json.dumps(about).encode(), "a.zarr/0.0.0": b"x" * 64}


def bomb() -> bytes:
    """Return 2 MB that unpack to 2 GB."""
    packer = zlib.compressobj()
    start = packer.compress(b"\0" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return start + (packer.compress(b"\0" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 2047


def circle(data: bytes) -> bytes:
    """Return a TIFF whose last page leads to its first."""
    is_big = data[2] == 43
    number, place, tag_bytes, first = ("<Q", "<Q", 20, 8) if is_big else ("<H", "<I", 12, 4)
    changed, at = bytearray(data), first
    while (offset := struct.unpack_from(place, data, at)[0]) != 0:
        (num_tags,) = struct.unpack_from(number, data, offset)
        at = offset + struct.calcsize(number) + num_tags * tag_bytes
    changed[at : at + struct.calcsize(place)] = data[first : first + struct.calcsize(place)]
    return bytes(changed)


SHARDS = {
    "zarr_format": 3, "node_type": "array", "shape": [4, 8, 8], "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 8, 8]}},
    "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": [
        {"name": "sharding_indexed", "configuration": {"codecs": [{"name": "numcodecs.pickle"}]}}
    ],
}  # fmt: skip
ZLIB = {"id": "zlib", "level": 1}
HOSTILE: dict[str, dict[str, bytes]] = {
    "cut nifti": {"a.nii": header()[:-9]},
    "cut nifti.gz": {"a.nii.gz": gzip.compress(header())[:-30]},
    "a huge nifti": {"a.nii": header(dim=[7, *[32767] * 7])},
    "a negative side": {"a.nii": header(dim=[3, 4, -4, 4, 1, 1, 1, 1])},
    "no axis": {"a.nii": header(dim=[0] * 8)},
    "an unknown type": {"a.nii": header(datatype=32)},
    "an offset beyond the end": {"a.nii": header(vox_offset=1e30)},
    "an offset that is not a number": {"a.nii": header(vox_offset=np.nan)},
    "a zarr of code": zarray(filters=[{"id": "pickle"}]),
    "a zarr of code in shards": {"a.zarr/zarr.json": json.dumps(SHARDS).encode()},
    "a zarr of objects": zarray(dtype="|O", filters=[{"id": "vlen-utf8"}]),
    "an endless zarr": zarray(shape=[10**12, 8, 8]),
    "an endless zarr of floats": zarray(shape=[10**12, 8, 8], dtype="<f4"),
    "a zarr of one chunk": zarray(shape=[1, 10**6, 10**6], chunks=[1, 10**6, 10**6]),
    "an empty zarr": zarray(shape=[0, 8, 8]),
    "a zarr of zero chunks": zarray(chunks=[0, 0, 0]),
    "a zarr of short chunks": zarray(shape=[1, 8, 8], chunks=[1, 8, 9]),
    "a zarr bomb": zarray(compressor=ZLIB) | {"a.zarr/0.0.0": bomb()},
    "a zarr without sense": zarray(shape="x", chunks={}),
    "a zarr of no JSON": {"a.zarr/.zarray": b"[" * 100_000},
    "nested zarrs": {**zarray(), "a.zarr/b.zarr/.zarray": b"{}"},
}


SLOW = pytest.param("a zarr bomb", marks=pytest.mark.thorough)


@pytest.mark.parametrize("case", [SLOW, *(one for one in HOSTILE if one != "a zarr bomb")])
def test_a_hostile_volume_is_an_error_of_one_line(case: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "src", HOSTILE[case])
    with pytest.raises(ShardprepError) as caught:
        built(source, tmp_path / "out", max_member_size=8_000_000)
    assert ("codec" in str(caught.value)) == ("code" in case or "objects" in case)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


FLIPPED: dict[str, Callable[[], dict[str, bytes]]] = {
    "a.nii": lambda: {"a.nii": header()},
    "a.tif": lambda: {"a.tif": tiff(BYTES[0], compression="zlib")},
    "a.zarr/zarr.json": lambda: {
        f"a.zarr/{key}": data for key, data in zarr_files(BYTES[0], chunks=(2, 9, 12)).items()
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", FLIPPED)
def test_a_flipped_bit_never_gives_a_traceback(form: str, tmp_path: Path) -> None:
    files = FLIPPED[form]()
    recipe = {"max_member_size": 8_000_000, "images": form.partition("/")[0]}
    for bit in range(0, 8 * min(700, len(files[form])), 61):
        data = bytearray(files[form])
        data[bit // 8] ^= 1 << bit % 8
        source = write_folder(tmp_path / str(bit), {**files, form: bytes(data)})
        with contextlib.suppress(ShardprepError):
            made = make_recipe({"source": str(source), **recipe}, "test")
            listed = list_images(made, tmp_path, print)
            assert listed.images or listed.others  # its first bytes say what it is


def test_a_damaged_file_of_an_array_can_be_excluded(tmp_path: Path) -> None:
    good = npy(np.zeros((3, 8, 8), np.uint8))
    source = write_folder(tmp_path / "source", {"a.npy": good, "bad.npy": good[:150]})
    options: dict[str, Any] = {"images": ["*.npy::THW"], "exclude": ["bad.npy"]}
    recipe = make_recipe({"source": str(source), **options}, "t")
    found = list_images(recipe, tmp_path, lambda _: None)
    assert list(found.images.keys) == ["a.npy"]
    assert [(one.key, one.reason) for one in found.skipped] == [("bad.npy", "matched by --exclude")]


PLANES = {f"{i}": RNG.integers(0, 256, (4, 9, 12), np.uint8) for i in range(3)}
THW, OF_X = {"images": "*.npy::THW"}, {"images": "*.h5:x:THW"}


def x_array(array: Array) -> bytes:
    return hdf5({"x": array})


UNEQUAL: dict[str, tuple[str, Callable[[Array], bytes], bytes, dict[str, str]]] = {
    "cut TIFF": (".tif", tiff, tiff(PLANES["0"])[:-40], {}),
    "TIFF without its start": (".tif", tiff, b"II*\0" + b"\xff" * 80, {}),
    "single TIFF": (".tif", tiff, tiff(PLANES["0"][:1]), {}),
    "single PNG": (".tif", tiff, png(9, 12), {}),
    "cut DICOM": (".dcm", dicom, dicom(PLANES["0"])[:-200], {}),
    "single DICOM": (".dcm", dicom, dicom(PLANES["0"][0]), {}),
    "cut NIfTI": (".nii", lambda one: nifti(one.T), header()[:-9], {}),
    "cut NIfTI in gzip": (
        ".nii.gz", lambda one: gzip.compress(nifti(one.T)), gzip.compress(header())[:-30], {},
    ),
    "cut npy": (".npy", npy, npy(PLANES["0"])[:-9], THW),
    "npy without its header": (".npy", npy, npy(PLANES["0"])[:20], THW),
    "npy of a negative side": (
        ".npy", npy, npy(PLANES["0"]).replace(b"(4, 9, 12)", b"(4, 9,-12)"), THW,
    ),
    "empty npy": (".npy", npy, npy(PLANES["0"][:0]), THW),
    "npy of two axes": (".npy", npy, npy(PLANES["0"][0]), THW),
    "huge NIfTI": (
        ".nii", lambda one: nifti(one.T), header(dim=[3, *[32767] * 3, *[1] * 4]), {},
    ),
    "empty NIfTI": (".nii", lambda one: nifti(one.T), header(dim=[3, 4, 0, 4, *[1] * 4]), {}),
    "cut HDF5": (".h5", x_array, x_array(PLANES["0"])[:-99], OF_X),
    "empty HDF5": (".h5", x_array, x_array(PLANES["0"][:, :0]), OF_X),
    "HDF5 without the array": (".h5", x_array, hdf5({"y": PLANES["0"]}), OF_X),
    "TIFF in a circle": (".tif", tiff, circle(tiff(PLANES["0"])), {}),
    "large TIFF in a circle": (".tif", tiff, circle(tiff(PLANES["0"], bigtiff=True)), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", UNEQUAL)
def test_a_file_unlike_the_other_volumes_is_rejected(case: str, tmp_path: Path) -> None:
    suffix, write_one, bad, options = UNEQUAL[case]
    bad_key = "!bad.png" if "PNG" in case else f"bad{suffix}"
    files = {f"{name}{suffix}": write_one(one) for name, one in PLANES.items()}
    source = write_folder(tmp_path / "src", {**files, bad_key: bad})
    made = built(source, tmp_path / "out", **options)
    found = volumes(made)
    assert found.keys() == files.keys()
    for name, one in PLANES.items():
        assert np.abs(grey(found[f"{name}{suffix}"]) - one.astype(int)).max() <= 1
    kind, reason = rejections(made)[bad_key]
    assert kind == "unreadable"
    assert (
        "has one image" in reason
        if "single" in case
        else re.search("cannot be read|is truncated|has no image|does not fit", reason)
    )
    with contextlib.suppress(SourceError):  # `init` does not know yet that a file is one sample
        assert survey_source(source, tmp_path / "work", lambda _: None).num_images >= len(files)
    with pytest.raises(ShardprepError, match="rejected"):
        built(source, tmp_path / "strict", max_rejected=0.0, **options)


LOST_ZARR = [
    case for case, files in HOSTILE.items() if "a.zarr" in next(iter(files)) and "bomb" not in case
]


@pytest.mark.parametrize("case", LOST_ZARR)
def test_a_damaged_zarr_beside_others_is_rejected(case: str, tmp_path: Path) -> None:
    files = {f"b{key[1:]}": data for key, data in zarray().items()} | HOSTILE[case]
    source = write_folder(tmp_path / "src", files)
    made = built(source, tmp_path / "out", max_member_size=8_000_000)
    assert [*volumes(made)] == ["b.zarr"]
    assert [*rejections(made)] == ["a.zarr"]


@pytest.mark.timeout(60)
def test_a_circle_of_pages_is_not_followed_where_one_page_is_used(tmp_path: Path) -> None:
    slide = tiff(PLANES["0"], tile=(16, 16))
    files = {"a.tif": circle(slide), "b.tif": tiff(PLANES["0"][:1]), "c.tif": tiff(PLANES["1"][:1])}
    source = write_folder(tmp_path / "src", files)
    made = built(source, tmp_path / "out")
    assert sorted(records(made.path)) == ["a.tif", "b.tif", "c.tif"]
    made = built(source, tmp_path / "tiles", tile=8)
    assert [*rejections(made)] == ["a.tif"]


def test_nifti_files_of_two_axes_are_images(tmp_path: Path) -> None:
    files = {f"{i}.nii": nifti(one[0].T) for i, one in PLANES.items()}
    made = built(write_folder(tmp_path / "src", files), tmp_path / "out")
    for key, features in records(made.path).items():
        stored = decoded(features["image"][0])
        assert np.abs(stored[..., 0].astype(int) - PLANES[key[0]][0]).max() <= 1
    mixed = write_folder(tmp_path / "mixed", {**files, "v.nii": nifti(PLANES["0"].T)})
    with pytest.raises(SourceError, match="has stacks, but also 3 single images"):
        built(mixed, tmp_path / "both")


def test_a_cut_array_of_images_is_an_error_and_one_of_a_single_image_is_rejected(
    tmp_path: Path,
) -> None:
    files = {f"{i}.npy": npy(one[0]) for i, one in PLANES.items()}
    source = write_folder(tmp_path / "src", {**files, "3.npy": files["0.npy"][:-9]})
    assert [*rejections(built(source, tmp_path / "out", images="*.npy"))] == ["3.npy"]
    source = write_folder(tmp_path / "many", {"1.npy": npy(BYTES[0])[:-9], "2.npy": npy(BYTES[0])})
    with pytest.raises(SourceError, match=r"^1\.npy: is truncated"):
        built(source, tmp_path / "rows")


def test_a_stack_with_a_cut_volume_and_a_cut_mask_reject_their_sample(tmp_path: Path) -> None:
    files = {f"{i}/{c}.nii": nifti(one.T) for i, one in PLANES.items() for c in ("x", "y")}
    files["1/y.nii"] = files["1/y.nii"][:-9]
    keys = {"stack": "{id}/{x,y}.nii"}
    made = built(write_folder(tmp_path / "src", files), tmp_path / "out", **keys)
    assert (sorted(volumes(made)), [*rejections(made)]) == (["0", "2"], ["1"])
    files = {f"images/{i}.nii": nifti(one.T) for i, one in PLANES.items()}
    files |= {f"labels/{i}.nii": nifti(one.T // 128) for i, one in PLANES.items()}
    files["labels/1.nii"] = files["labels/1.nii"][:-9]
    source = write_folder(tmp_path / "masks", files)
    made = built(source, tmp_path / "segmented", masks="labels/{stem}.nii")
    assert [*rejections(made)] == ["images/1.nii"]
