"""A volume obeys its header as a single image does, and a sample is one volume.

The oracle for pages is the single image: each page is saved alone with the same tags.
"""

import io
import sys
from pathlib import Path
from typing import Any

import h5py
import nibabel
import numpy as np
import pytest
import tifffile
import zarr
from nibabel.eulerangles import euler2mat
from nibabel.orientations import aff2axcodes
from numpy.typing import NDArray
from PIL import Image, ImageCms

from shardprep.catalog.arrays.array_file import reading
from shardprep.catalog.arrays.flat_array import open_nifti
from shardprep.catalog.names import natural_order
from shardprep.errors import SourceError
from shardprep.source.byte_range import PlainExtent
from shardprep.writer.finalize import BuildResult
from tests.support.arrays import decoded, npy
from tests.support.builders import build, encoded, png, write, write_folder
from tests.support.dicom import dicom
from tests.writer.records import records, rows

Array = NDArray[Any]
RNG = np.random.default_rng(25)
GREY = RNG.integers(0, 4000, (3, 6, 9)).astype(np.uint16)
BYTES = RNG.integers(0, 256, (3, 6, 9)).astype(np.uint8)
CMYK = RNG.integers(0, 256, (3, 6, 9, 4)).astype(np.uint8)
PALETTE = RNG.integers(0, 65536, (3, 256)).astype(np.uint16)
PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
KEYS: dict[str, Any] = {"size": "none", "format": "png", "labels": "none", "max_rejected": 1.0}
TAGS: dict[str, tuple[Array, dict[str, Any]]] = {
    "white is 0, 16 bits": (GREY, {"photometric": "miniswhite"}),
    "white is 0, 8 bits": (BYTES, {"photometric": "miniswhite"}),
    "CMYK": (CMYK, {"photometric": "separated"}),
    "a palette": (BYTES, {"photometric": "palette", "colormap": PALETTE}),
    **{
        f"orientation {i}": (
            BYTES,
            {"photometric": "minisblack", "extratags": [(274, 3, 1, i, True)]},
        )
        for i in range(2, 9)
    },
}


def tiff(pages: Array, **options: Any) -> bytes:
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as file:
        for page in pages:
            file.write(page, metadata=None, contiguous=False, **options)
    return out.getvalue()


def pixels(made: BuildResult, feature: str) -> Array:
    found = [record[feature] for _, record in sorted(records(made.path).items())]
    images = [one for some in found for one in some]
    return np.stack([*map(decoded, images)])


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("depth_range", ["full", "0,3000"])
def test_pages_are_read_like_single_images(tag: str, depth_range: str, tmp_path: Path) -> None:
    pages, options = TAGS[tag]
    volume = write(tmp_path / "volume" / "a.tif", tiff(pages, **options)).parent
    singles = {f"{i}.tif": tiff(page[None], **options) for i, page in enumerate(pages)}
    keys = {**KEYS, "depth_range": depth_range}
    made = build(volume, tmp_path / "out", **keys)
    alone = build(write_folder(tmp_path / "singles", singles), tmp_path / "out", **keys)
    assert np.array_equal(pixels(made, "images"), pixels(alone, "image"))


def test_masks_of_pages_are_read_like_single_masks(tmp_path: Path) -> None:
    """Mask and image of a volume are turned alike, and the values of a palette are classes."""
    options = {"extratags": [(274, 3, 1, 6, True)]}
    classes = BYTES % 3
    members = {
        "images/a.tif": tiff(BYTES, photometric="minisblack", **options),
        "labels/a.tif": tiff(classes, photometric="palette", colormap=PALETTE, **options),
    }
    source = write_folder(tmp_path / "in", members)
    made = build(source, tmp_path / "out", masks="labels/{name}", mask_values="0=x,1=y,2=z", **KEYS)
    found = pixels(made, "segmentation_mask")
    assert np.array_equal(found, np.rot90(classes, -1, (1, 2)))


def test_a_volume_without_its_last_pages_is_rejected_as_truncated(tmp_path: Path) -> None:
    whole = tiff(GREY, photometric="minisblack")
    with tifffile.TiffFile(io.BytesIO(whole)) as file:
        last = file.pages[-1].offset
    members = {f"{i}.tif": whole for i in range(3)} | {"cut.tif": whole[:last]}
    made = build(write_folder(tmp_path / "in", members), tmp_path / "out", **KEYS)
    assert "truncated" in rows(made.path)["cut.tif"]["reason"]


def test_tiles_are_of_the_largest_page_after_a_thumbnail(tmp_path: Path) -> None:
    slide = np.kron(RNG.integers(0, 256, (8, 8, 3)), np.ones((16, 16, 1))).astype(np.uint8)
    out = io.BytesIO()
    with tifffile.TiffWriter(out) as file:
        file.write(slide[::8, ::8], photometric="rgb", metadata=None)
        file.write(slide, photometric="rgb", tile=(32, 32), metadata=None)
    source = write(tmp_path / "in" / "a.tif", out.getvalue()).parent
    made = build(source, tmp_path / "out", tile="64x64", **{**KEYS, "size": "64x64"})
    corners = [slide[y : y + 64, x : x + 64] for y in (0, 64) for x in (0, 64)]
    assert np.array_equal(pixels(made, "image"), corners)


def nifti(
    array: Array, affine: Array, form: str = "sform", kind: Any = nibabel.Nifti1Image
) -> bytes:
    image = kind(array, affine)
    image.set_sform(affine, code=int(form == "sform"))
    image.set_qform(affine, code=int(form == "qform"))
    data: bytes = image.to_bytes()
    return data


def affines() -> list[Array]:
    """Return mirrored and permuted affines, each turned a little."""
    small = euler2mat(0.1, -0.2, 0.15)
    made = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        for signs in np.ndindex(2, 2, 2):
            matrix = np.eye(4)
            matrix[:3, :3] = small @ np.eye(3)[:, order] * (1 - 2 * np.array(signs)) * (1, 2, 3)
            made.append(matrix)
    return made


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize("form", ["sform", "qform", "none"])
def test_directions_are_those_of_nibabel(kind: Any, form: str, tmp_path: Path) -> None:
    for affine in affines():
        data = nifti(np.zeros((3, 4, 5), np.uint8), affine, form, kind)
        path = write(tmp_path / "a.nii", data)
        found = open_nifti(PlainExtent.named(str(path), len(data)), "a.nii").images[""].directions
        assert found == (() if form == "none" else aff2axcodes(affine))


def masked(folder: Path, affine: Array) -> BuildResult:
    """Build two volumes with masks; `affine` is of the second mask."""
    values = RNG.integers(0, 2, (4, 5, 3)).astype(np.uint8)
    affines = dict.fromkeys(("images/0.nii", "images/1.nii", "labels/0.nii"), np.eye(4))
    members = {key: nifti(values, own) for key, own in {**affines, "labels/1.nii": affine}.items()}
    source = write_folder(folder / "in", members)
    return build(source, folder / "out", masks="labels/{name}", mask_values="0=x,1=y", **KEYS)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_mask_that_is_mirrored_against_its_image_is_rejected(axis: int, tmp_path: Path) -> None:
    mirrored = np.eye(4)
    mirrored[axis, axis] = -1
    made = masked(tmp_path, mirrored)
    assert [*records(made.path)] == ["images/0.nii"]
    assert made.manifest.totals.rejected == {"bad_mask": 1}


def test_channels_that_are_mirrored_against_each_other_are_skipped(tmp_path: Path) -> None:
    values = BYTES.transpose(2, 1, 0)
    ways = {"a_t1": 1, "a_t2": 1, "b_t1": 1, "b_t2": -1}
    members = {
        f"{name}.nii": nifti(values, np.diag([sign, 1, 1, 1])) for name, sign in ways.items()
    }
    source = write_folder(tmp_path / "in", members)
    made = build(source, tmp_path / "out", stack="{id}_{t1,t2}.nii", **KEYS)
    assert [*records(made.path)] == ["a"]
    assert made.manifest.totals.skipped["volumes differ in the directions of their axes"] == 1


@pytest.mark.parametrize("stack", ["{id}_{t1,t2}.nii", "{id}_*.nii"])
def test_volumes_of_different_spacings_have_none_and_a_note(stack: str, tmp_path: Path) -> None:
    values = BYTES.transpose(2, 1, 0)
    sides = {"a_t1": 1, "a_t2": 1, "b_t1": 1, "b_t2": 3}
    members = {
        f"{name}.nii": nifti(values, np.diag([1, 2, side, 1])) for name, side in sides.items()
    }
    source = write_folder(tmp_path / "in", members)
    made = build(source, tmp_path / "out", stack=stack, **KEYS)
    found = {key: one["spacing/t"] for key, one in records(made.path).items()}
    assert found["a"] == [1]
    assert np.isnan(found["b"]).all()
    what = "1 stack joins files that state different spacings"
    assert f"{what}: they may not fit, and no spacing is stored" in made.notes


def test_masks_of_another_spacing_than_their_image_are_a_note(tmp_path: Path) -> None:
    made = masked(tmp_path, np.diag([1, 1, 3, 1]))
    assert "1 stack has masks that state another spacing: they may not fit" in made.notes


ROWS, COLUMNS = [1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1]
MIXED: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "2 patients": ("*", [{"PatientID": one} for one in "1122"]),
    "2 studies": ("*", [{"StudyInstanceUID": f"1.2.{one}"} for one in "1122"]),
    "2 series": ("*", [{"SeriesInstanceUID": f"1.2.{one}"} for one in "1122"]),
    "2 directions": ("*", [{"ImageOrientationPatient": one} for one in (ROWS, COLUMNS) * 2]),
    "2 pixel spacings": ("*", [{"PixelSpacing": [one, one]} for one in (1, 1, 1, 0.5)]),
    "several at one place with one InstanceNumber": (
        "*", [{"InstanceNumber": i // 2 + 1, "SOPInstanceUID": f"1.2.{i + 1}"} for i in range(4)],
    ),
    "4 patients": ("{0,1,2,3}", [{"PatientID": one} for one in "1234"]),
}  # fmt: skip


@pytest.mark.parametrize("what", MIXED)
def test_slices_that_do_not_belong_together_are_not_one_stack(what: str, tmp_path: Path) -> None:
    names, slices = MIXED[what]
    members = {}
    for i, own in enumerate(slices):
        common: dict[str, Any] = {"InstanceNumber": i + 1, "SOPInstanceUID": f"1.2.{i + 1}"}
        members[f"one_{i}.dcm"] = dicom(GREY[0], **{**common, **slices[0]} | common)
        members[f"two_{i}.dcm"] = dicom(GREY[0], **common | own)
    source = write_folder(tmp_path / "in", members)
    made = build(source, tmp_path / "out", stack=f"{{id}}_{names}.dcm", **KEYS)
    assert [*records(made.path)] == ["one"]
    assert what in rows(made.path)["two"]["reason"]


def test_channels_may_be_series_of_their_own(tmp_path: Path) -> None:
    series = ["1.2.1", "1.2.1", "1.2.2"]
    members = {f"a_{i}.dcm": dicom(GREY[0], SeriesInstanceUID=series[i]) for i in range(3)}
    source = write_folder(tmp_path / "in", members)
    made = build(source, tmp_path / "out", stack="{id}_{0,1,2}.dcm", **KEYS)
    assert [*records(made.path)] == ["a"]


@pytest.mark.parametrize("depth", [8, 16])
def test_slices_of_8_and_of_16_bits_need_a_range(depth: int, tmp_path: Path) -> None:
    members = {f"{name}/0.png": png(6, 9) for name in "ab"}
    members["a/1.png"] = encoded(Image.fromarray(np.full((6, 9), 100, np.uint8)), "PNG")
    members["b/1.png"] = encoded(Image.fromarray(np.full((6, 9), 100, np.uint16)), "PNG")
    source = write_folder(tmp_path / "in", members)
    keys = KEYS | {"stack": "{id}/*.png", "depth": depth}
    made = build(source, tmp_path / "type", **keys)
    assert [*records(made.path)] == ["a"]
    made = build(source, tmp_path / "range", depth_range=(0.0, 255.0), **keys)
    assert [*records(made.path)] == ["a", "b"]
    (_, last) = map(decoded, records(made.path)["b"]["images"])
    assert np.all(last == 100 * (257 if depth == 16 else 1))


def test_a_volume_is_no_near_copy_of_another_with_an_equal_middle(tmp_path: Path) -> None:
    volumes = [
        np.stack([decoded(png(32, 32, seed))[..., 0] for seed in seeds])
        for seeds in ((1, 2, 3), (4, 2, 5))
    ]
    members = {f"{i}.npy": npy(volume) for i, volume in enumerate(volumes)}
    source = write_folder(tmp_path / "in", {**members, "2.npy": npy(volumes[0])})
    made = build(source, tmp_path / "out", images="*.npy::THW", dedup="near", **KEYS)
    assert {*records(made.path)} == {"0.npy", "1.npy"}
    assert "near copies of stacks are not left out" in " ".join(made.notes)


def test_a_chunk_that_leads_outside_is_not_black(tmp_path: Path) -> None:
    for name in ("a", "b"):
        array = zarr.create_array(str(tmp_path / "in" / f"{name}.zarr"), shape=(4, 9, 12),
                                  chunks=(1, 9, 12), dtype="uint8", zarr_format=2)  # fmt: skip
        array[:] = 7
    chunk = tmp_path / "in" / "b.zarr" / "2.0.0"
    chunk.symlink_to(chunk.rename(tmp_path / "outside"))
    made = build(tmp_path / "in", tmp_path / "out", **KEYS)
    assert [*records(made.path)] == ["a.zarr"]
    assert "link that leads outside" in rows(made.path)["b.zarr"]["reason"]


@pytest.mark.parametrize("form", ["files", "numbers"])
def test_images_behind_external_links_are_a_note(form: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with h5py.File(tmp_path / "in" / "a.h5", "w") as file:
        for i in range(4):
            picture = np.frombuffer(png(9, 12, i), np.uint8)
            file[f"images/{i}"] = np.void(picture.tobytes()) if form == "files" else COLOURS[i]
        file["images/z"] = h5py.ExternalLink("other.h5", "/x")
        file["w"] = h5py.ExternalLink("other.h5", "/y")
    made = build(tmp_path / "in", tmp_path / "out", **KEYS)
    assert made.manifest.totals.num_written == 4
    assert not made.manifest.totals.rejected
    notes = " ".join(made.notes)
    assert all(f"{one} (its data are in another file)" in notes for one in ("images/z", "w"))


COLOURS = RNG.integers(0, 256, (4, 9, 12, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("<COMPRESSION.LZW: 5> requires the 'imagecodecs' package", "pip install imagecodecs"),
        ("required filter 'blosc' is not registered", "pip install hdf5plugin"),
        ("can't open directory (/usr/local/hdf5/lib/plugin)", "pip install hdf5plugin"),
        ("bad magic number", "download or write it again"),
    ],
)
def test_a_missing_codec_is_to_be_installed(error: str, hint: str) -> None:
    with pytest.raises(SourceError, match=f"{hint}$"), reading("a.tif"):
        raise ValueError(error)


def test_more_codecs_of_hdf5_are_loaded_if_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = write(tmp_path / "lib/hdf5plugin.py", b"")
    monkeypatch.syspath_prepend(loaded.parent)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = np.zeros((5, 9, 12), np.uint8)
    build(tmp_path / "a.h5", tmp_path / "out", labels="none", size="none")
    assert sys.modules.pop("hdf5plugin").__file__ == str(loaded)


@pytest.mark.parametrize(
    "names",
    [
        ["z_-10.png", "z_-2.png", "z_-1.5.png", "z_-1.25.png", "z_-1.png", "z_0.png", "z_0.25.png",
         "z_0.5.png", "z_1.png", "z_1.25.png", "z_1.5.png", "z_2.png", "z_10.png"],
        ["-3", "-1", "-0.5", "0", "0.05", "0.5", "3"],
        ["z -10.png", "z -2.png", "z -1.png", "z 0.png", "z 1.png"],
        ["z (\u22122)", "z (\u22121)", "z (0)"],
        ["5 - 1", "5 - 2", "5 - 10"],
        ["scan-1", "scan-2", "scan-10"],
        ["2020-01-15", "2020-02-03"],
        ["v1.2.3", "v1.10.2"],
        ["1.2.840.9", "1.2.840.10"],
        ["a-1b", "a-2b"],
    ],
)  # fmt: skip
def test_names_are_ordered_by_their_numbers(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(backwards, key=natural_order) == names
