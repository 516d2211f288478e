"""Competitions of volumes, bands and arrays, with masks and target images in files of arrays."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tifffile
from PIL import Image

from tests.support.arrays import decoded, npy, tiff
from tests.support.builders import encoded, tree
from tests.support.competitions.twin import (
    Array,
    Competition,
    Members,
    Values,
    f32,
    rows_of,
    table,
)


def _random(seed: int, *shape: int, dtype: Any = np.uint8) -> Array:
    most = np.iinfo(dtype).max
    return np.random.default_rng(seed).integers(0, most, shape, dtype, endpoint=True)


# --- hms-harmful-brain-activity-classification ---

_VOTES = tuple(f"{name}_vote" for name in ("seizure", "lpd", "gpd", "lrda", "grda", "other"))
_OFFSET = "spectrogram_label_offset_seconds"


def _spectrogram(seed: int) -> tuple[bytes, Array]:
    values = np.random.default_rng(seed).uniform(0, 110, (9, 16)).astype(np.float32)
    values[0, :3] = np.nan
    columns: dict[str, Array] = {"time": np.arange(1, 19, 2)}
    names = [f"{side}_{0.59 + i:.2f}" for side in ("LL", "RL", "LP", "RP") for i in range(4)]
    columns |= {name: values[:, i] for i, name in enumerate(names)}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue(), values


def _brain() -> Members:
    rows: list[list[Any]] = [
        ["eeg_id", "eeg_sub_id", "eeg_label_offset_seconds", "spectrogram_id",
         "spectrogram_sub_id", _OFFSET, "label_id", "patient_id", "expert_consensus", *_VOTES]
    ]  # fmt: skip
    spectrograms = [353733, 789577333, 1089700, 4231649, 999431]
    for i, one in enumerate(spectrograms):
        for k in range(1 + i % 3):
            votes = [(i + j + k) % 4 for j in range(6)]
            rows.append([1628180742 + i, k, 6.0 * k, one, k, 10.0 * k, 127492639 + k, 42516,
                         "Seizure", *votes])  # fmt: skip
    rows[2][9] = ""
    rows.append(rows[3])
    files = {f"train_spectrograms/{one}.parquet": _spectrogram(one)[0] for one in spectrograms[:4]}
    submission: list[list[Any]] = [["eeg_id", *_VOTES], [3911565283, *(1 / 6 for _ in _VOTES)]]
    test: list[list[Any]] = [["spectrogram_id", "eeg_id", "patient_id"], [51549, 3911565283, 6885]]
    return {
        **files, "train.csv": table(rows), "test.csv": table(test),
        "test_spectrograms/51549.parquet": _spectrogram(51549)[0],
        "train_eegs/1628180742.parquet": _spectrogram(7)[0],
        "sample_submission.csv": table(submission),
    }  # fmt: skip


def _brain_values(members: Members) -> Values:
    found: Values = {}
    for key in members:
        if "_spectrograms/" not in key:
            continue
        name = key.rpartition("/")[2].removesuffix(".parquet")
        _, values = _spectrogram(int(name))
        levels = np.nan_to_num(np.rint(np.clip(values / 100, 0, 1) * 255))
        own = [row for row in rows_of(members, "train.csv") if row["spectrogram_id"] == name]
        found[key] = {"image": [levels[..., None].repeat(3, axis=-1)]}
        found[key][f"rows/{_OFFSET}"] = [f32(row[_OFFSET]) for row in own]
        for vote in _VOTES:
            found[key][f"rows/{vote}"] = [int(row[vote] or -1) for row in own]
    return found


# --- vesuvius-challenge-surface-detection ---


def _scrolls() -> Members:
    members: Members = {}
    rows = [["id", "scroll_id"]]
    for i, one in enumerate((1407735, 2290837, *range(102536988, 102536997))):
        members[f"train_images/{one}.tif"] = tiff(_random(one, 4, 10, 12))
        if i != 2:
            members[f"train_labels/{one}.tif"] = tiff(_random(one + 1, 4, 10, 12) % 3)
        rows.append([str(one), "" if i == 1 else str(34117 + i)])
    members["test_images/1407735.tif"] = members["train_images/1407735.tif"]
    test = [["id", "scroll_id"], ["1407735", "26002"]]
    return {**members, "train.csv": table([*rows, rows[1], ["42", "1"]]), "test.csv": table(test)}


def _scroll_values(members: Members) -> Values:
    found: Values = {}
    for key, data in members.items():
        label = key.replace("train_images", "train_labels")
        if "_images/" in key and ("test" in key or label in members):
            volume = tifffile.imread(io.BytesIO(data))
            found[key] = {"images": volume[..., None].repeat(3, axis=-1)}
            if "train" in key:
                found[key]["segmentation_mask"] = tifffile.imread(io.BytesIO(members[label]))
    return found


# --- vesuvius-challenge-ink-detection ---


def _fragments() -> Members:
    members: Members = {}
    rows = [["id", "rle"]]
    for fragment, number in (("train/1", 4), ("train/2", 3), ("train/3", 3), ("test/a", 3)):
        for i in range(number):
            layer = Image.fromarray(_random(i + number, 10, 12, dtype=np.uint16))
            members[f"{fragment}/surface_volume/{i:02d}.tif"] = encoded(layer, "TIFF")
        whole = np.full((10, 12), 255, np.uint8)
        members[f"{fragment}/mask.png"] = encoded(Image.fromarray(whole), "PNG")
        if fragment not in ("train/3", "test/a"):
            ink = np.where(_random(number, 10, 12) > 128, np.uint8(255), np.uint8(0))
            members[f"{fragment}/inklabels.png"] = encoded(Image.fromarray(ink), "PNG")
        if fragment.startswith("train"):
            members[f"{fragment}/ir.png"] = encoded(Image.fromarray(whole), "PNG")
            rows.append([fragment[-1], "1 5"])
    submission = [["Id", "Predicted"], ["a", "1 1 5 1"]]
    return {**members, "train/1/inklabels_rle.csv": table([*rows, rows[1], ["3", ""]]),
            "sample_submission.csv": table(submission)}  # fmt: skip


def _fragment_values(members: Members) -> Values:
    found: Values = {}
    for key, data in members.items():
        folder = key.partition("/surface_volume/")[0]
        if folder != key and (f"{folder}/inklabels.png" in members or "test" in folder):
            layer = decoded(data)[..., None]
            found.setdefault(folder, {"images": []})["images"].append(layer)
    for folder, values in found.items():
        if "train" in folder:
            mask = np.asarray(Image.open(io.BytesIO(members[f"{folder}/inklabels.png"])))
            values["segmentation_mask"] = [mask // 255]
    return found


# --- google-research-identify-contrails-reduce-global-warming ---

_BANDS = [f"{i:02d}" for i in range(8, 17)]


def _band(record: str, band: str) -> Array:
    rng = np.random.default_rng(int(record) % 999 + int(band))
    return rng.uniform(200, 310, (10, 12, 8)).astype(np.float32)


def _contrails() -> Members:
    members: Members = {}
    records = {
        "train": ("1000216489776414077", "1000603527582775543", "1000660467359258186"),
        "validation": ("1000834164244036115",),
        "test": ("1000834164244036116",),
    }
    for split, names in records.items():
        for record in names:
            folder = f"{split}/{record}"
            for band in _BANDS:
                members[f"{folder}/band_{band}.npy"] = npy(_band(record, band))
            if split != "test" and record[-1] != "6":
                mask = _random(int(record) % 97, 10, 12, 1) % 2
                members[f"{folder}/human_pixel_masks.npy"] = npy(mask.astype(np.int32))
            if split == "train":
                several = _random(1, 10, 12, 1, 4) % 2
                members[f"{folder}/human_individual_masks.npy"] = npy(several.astype(np.int32))
    del members["train/1000603527582775543/band_12.npy"]
    facts = [{"record_id": record, "row_min": 1.0, "timestamp": 15600408} for record in ("1", "2")]
    submission = [["record_id", "encoded_pixels"], ["1000834164244036116", "1 1"]]
    return {
        **members, "train_metadata.json": json.dumps(facts).encode(),
        "sample_submission.csv": table(submission),
    }  # fmt: skip


def _contrail_values(members: Members) -> Values:
    found: Values = {}
    for key in members:
        folder, _, name = key.rpartition("/")
        mask = members.get(f"{folder}/human_pixel_masks.npy")
        if name != "band_08.npy" or any(f"{folder}/band_{b}.npy" not in members for b in _BANDS):
            continue
        record = folder.rpartition("/")[2]
        kelvin = np.stack([_band(record, band)[..., 4] for band in _BANDS]).astype(np.float64)
        levels = np.rint(np.clip((kelvin - 180) / 140, 0, 1) * 65_535)
        values: dict[str, Any] = {"images": levels[..., None]}
        if mask is not None:
            values["segmentation_mask"] = [np.load(io.BytesIO(mask))[..., 0]]
        if mask is not None or "test" in folder:
            found[folder] = values
    return found


# --- czii-cryo-et-object-identification ---

_PARTICLES = ("apo-ferritin", "beta-amylase", "ribosome", "virus-like-particle")


def _tomograms() -> Members:
    import tempfile
    from pathlib import Path

    import zarr  # a second, which only this archive needs

    members: Members = {}
    for i, run in enumerate(("TS_5_4", "TS_6_4", "TS_69_2")):
        place = f"train/static/ExperimentRuns/{run}/VoxelSpacing10.000/denoised.zarr"
        with tempfile.TemporaryDirectory() as folder:
            group = zarr.open_group(folder, mode="w", zarr_format=2)
            volume = _tomogram(run)
            for level in range(2):
                step = 2**level
                group.create_array(
                    str(level), data=volume[::step, ::step, ::step], chunks=(2, 8, 8)
                )
            members |= {f"{place}/{name}": data for name, data in tree(Path(folder)).items()}
        for k, particle in enumerate(_PARTICLES[: 4 - i]):
            points = [{"location": {"x": 10.5 * j + k, "y": 7.25 * j, "z": 3.5 * i},
                       "transformation_": np.eye(4).tolist(), "instance_id": 0}
                      for j in range(k + i)]  # fmt: skip
            document = {"pickable_object_name": particle, "user_id": "curation", "session_id": "0",
                        "run_name": run, "voxel_spacing": None, "unit": "angstrom",
                        "points": points}  # fmt: skip
            name = f"train/overlay/ExperimentRuns/{run}/Picks/{particle}.json"
            members[name] = json.dumps(document).encode()
    return members


def _tomogram(run: str) -> Array:
    rng = np.random.default_rng(int(run[-1]))
    return rng.normal(0, 1e-5, (4, 10, 12)).astype(np.float32)


def _tomogram_values(members: Members) -> Values:
    found: Values = {}
    for run in ("TS_5_4", "TS_6_4", "TS_69_2"):
        volume = _tomogram(run).astype(np.float64)
        levels = np.rint(np.clip((volume + 3e-5) / 6e-5, 0, 1) * 65_535)
        rows: dict[str, list[Any]] = {"pickable_object_name": [], "x": [], "y": [], "z": []}
        for particle in _PARTICLES:
            name = f"train/overlay/ExperimentRuns/{run}/Picks/{particle}.json"
            for point in json.loads(members.get(name, b'{"points": []}'))["points"]:
                rows["pickable_object_name"].append(particle.encode())
                for axis in "xyz":
                    rows[axis].append(f32(str(point["location"][axis])))
        key = f"train/static/ExperimentRuns/{run}/VoxelSpacing10.000/denoised.zarr"
        found[key] = {"images": levels[..., None]}
        for name, values in rows.items():
            path = name if name in rows and len(name) > 1 else f"points.location.{name}"
            found[key][f"rows/{path}"] = values
    return found


VOLUMES = (
    Competition(
        slug="hms-harmful-brain-activity-classification",
        special="spectrograms in Parquet; votes for windows of them",
        members=_brain,
        flags="--images '*_spectrograms/*.parquet::HW' --depth-range 0,100 --labels none "
        f"--rows csv:train.csv:spectrogram_id:{_OFFSET},{','.join(_VOTES)}",
        stored="the votes of each window", expected=_brain_values,
        skipped={"not an image": 3}, rows_without_image=2,
    ),
    Competition(
        slug="vesuvius-challenge-surface-detection",
        special="TIFF volumes of several pages, and volumes of labels",
        members=_scrolls, flags="--masks 'train_labels/{stem}.tif'",
        stored="volumes and masks of each plane", expected=_scroll_values,
        skipped={"not an image": 2, "no mask": 1},
        proposal="--masks 'train_labels/{stem}.tif'",
    ),
    Competition(
        slug="vesuvius-challenge-ink-detection",
        special="16-bit TIFF layers, and one mask for all of them",
        members=_fragments,
        flags="--stack '{id}/surface_volume/*.tif' --masks '{id}/inklabels.png' --depth 16",
        stored="volumes and a mask", expected=_fragment_values,
        skipped={"not an image": 2, "no mask": 1, "not matched by --stack": 7},
    ),
    Competition(
        slug="google-research-identify-contrails-reduce-global-warming",
        special=".npy files of 9 bands, each 8 times; masks in .npy files",
        members=_contrails,
        flags="--images 'band_*.npy::HWN' --depth-range 180,320 --depth 16 "
        f"--stack '{{id}}/band_{{{','.join(_BANDS)}}}.npy/000004' "
        "--masks '{id}/human_pixel_masks.npy'",
        stored="the bands of one time and a mask", expected=_contrail_values,
        skipped={"a channel is missing": 1, "a mask without its image": 1, "no mask": 1,
                 "not an image": 5, "not matched by --stack": 308},
    ),
    Competition(
        slug="czii-cryo-et-object-identification",
        special="zarr volumes, and a JSON for each kind of particle",
        members=_tomograms,
        flags="--images denoised.zarr:0 --depth 16 --depth-range=-3e-5,3e-5 --labels none "
        "--rows 'csv:{run}/Picks/{particle}.json:{run}/VoxelSpacing10.000/denoised.zarr:"
        "pickable_object_name,points.location.x,points.location.y,points.location.z'",
        stored="volumes; the places of all particles", expected=_tomogram_values,
        skipped={},
    ),
)  # fmt: skip
