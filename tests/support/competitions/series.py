"""Competitions whose samples are several images: series of slices, frames and channels."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.competitions.twin import (
    Array,
    Competition,
    Members,
    Values,
    f32,
    rows_of,
    table,
    windowed,
)
from tests.support.dicom import dicom

_HEIGHT, _WIDTH = 6, 8


def _planes(seed: int, number: int) -> Array:
    rng = np.random.default_rng(seed)
    return rng.integers(-200, 3000, (number, _HEIGHT, _WIDTH)).astype(np.int16)


def _slices(folder: str, planes: Array) -> Members:
    """Return DICOM files whose numbers run against the position of the slices."""
    found: Members = {}
    for i, plane in enumerate(planes):
        number = len(planes) - i
        elements: dict[str, Any] = {
            "ImagePositionPatient": [0, -1.5, 4.0 * i],
            "ImageOrientationPatient": [1, 0, 0, 0, 1, 0], "InstanceNumber": number,
        }  # fmt: skip
        found[f"{folder}/{number}.dcm"] = dicom(plane, **elements)
    return found


# --- rsna-2024-lumbar-spine-degenerative-classification ---

_CONDITIONS = ("spinal_canal_stenosis", "left_neural_foraminal_narrowing",
               "right_neural_foraminal_narrowing", "left_subarticular_stenosis",
               "right_subarticular_stenosis")  # fmt: skip
LUMBAR = tuple(f"{one}_l{i}_{'l' if i < 5 else 's'}{i % 5 + 1}"
               for one in _CONDITIONS for i in range(1, 6))  # fmt: skip
_GRADES = ("Normal/Mild", "Moderate", "Severe")
_LUMBAR_SERIES = {("4003253", "702807833"): 3, ("4003253", "1054713880"): 2,
                  ("4646740", "3201256954"): 3, ("7143189", "132939515"): 2}  # fmt: skip


def _lumbar() -> Members:
    series: list[list[Any]] = [["study_id", "series_id", "series_description"]]
    members: Members = {}
    for i, ((study, one), number) in enumerate(_LUMBAR_SERIES.items()):
        series.append([study, one, ("Axial T2", "Sagittal T1", "Sagittal T2/STIR")[i % 3]])
        members |= _slices(f"train_images/{study}/{one}", _planes(i, number))
    series += [["8785691", "481125819", "Axial T2"], series[1]]
    grades: list[list[Any]] = [["study_id", *LUMBAR]]
    for i, study in enumerate(("4003253", "4646740", "7143189", "8785691", "9000000")):
        grades.append([study, *(_GRADES[(i + k) % 3] for k in range(25))])
    grades[1][7] = ""
    points: list[list[Any]] = [
        ["study_id", "series_id", "instance_number", "condition", "level", "x", "y"],
        ["4003253", "702807833", 2, "Spinal Canal Stenosis", "L1/L2", 3.5, 4.5],
    ]
    members |= _slices("test_images/44036939/2828203845", _planes(9, 2))
    return {
        **members, "train.csv": table([*grades, grades[1]]),
        "train_series_descriptions.csv": table(series),
        "test_series_descriptions.csv": table(
            [series[0], ["44036939", "2828203845", "Sagittal T1"]]
        ),
        "train_label_coordinates.csv": table(points),
        "sample_submission.csv": table([["row_id", "normal_mild", "moderate", "severe"]]),
    }  # fmt: skip


def _lumbar_values(members: Members) -> Values:
    grades = {row["study_id"]: row for row in rows_of(members, "train.csv")}
    found: Values = {}
    for i, ((study, one), number) in enumerate(_LUMBAR_SERIES.items()):
        labels = {f"label/{name}": [grades[study][name]] for name in LUMBAR}
        images = windowed(_planes(i, number), 1000, 4001, 65_535)
        found[f"train_images/{study}/{one}"] = {**labels, "images": images[..., None]}
    test = windowed(_planes(9, 2), 1000, 4001, 65_535)[..., None]
    missing = {f"label/{name}": [""] for name in LUMBAR}
    return {**found, "test_images/44036939/2828203845": {**missing, "images": test}}


# --- rsna-2023-abdominal-trauma-detection ---

_INJURIES = ("bowel_healthy", "bowel_injury", "extravasation_healthy", "extravasation_injury",
             *(f"{organ}_{grade}" for organ in ("kidney", "liver", "spleen")
               for grade in ("healthy", "low", "high")), "any_injury")  # fmt: skip
_ABDOMEN_SERIES = {("10004", "21057"): 3, ("10004", "51033"): 2, ("10005", "18667"): 2,
                   ("10007", "47578"): 3}  # fmt: skip


def _abdomen() -> Members:
    meta: list[list[Any]] = [["patient_id", "series_id", "aortic_hu", "incomplete_organ"]]
    members: Members = {}
    for i, ((patient, one), number) in enumerate(_ABDOMEN_SERIES.items()):
        meta.append([patient, one, f"{146.0 + i}", i % 2])
        members |= _slices(f"train_images/{patient}/{one}", _planes(20 + i, number))
    injuries: list[list[Any]] = [["patient_id", *_INJURIES]]
    for i, patient in enumerate(("10004", "10005", "10007", "10015")):
        injuries.append([patient, *(int((i + k) % 3 == 0) for k in range(len(_INJURIES)))])
    injuries[2] = [injuries[2][0], *("" for _ in _INJURIES)]
    slices = [["patient_id", "series_id", "instance_number", "injury_name"],
              ["10004", "21057", "2", "Active_Extravasation"]]  # fmt: skip
    return {
        **members, "train.csv": table([*injuries, injuries[1]]),
        "train_series_meta.csv": table([*meta, ["10015", "29007", "102.0", 0], meta[1]]),
        "image_level_labels.csv": table(slices), "segmentations/21057.nii": b"\0" * 400,
        "sample_submission.csv": table([injuries[0], ["48843", *(0.5 for _ in _INJURIES)]]),
    }  # fmt: skip


def _abdomen_values(members: Members) -> Values:
    injuries = {row["patient_id"]: row for row in rows_of(members, "train.csv")}
    found: Values = {}
    for i, ((patient, one), number) in enumerate(_ABDOMEN_SERIES.items()):
        names = [name for name in _INJURIES if injuries[patient][name] == "1"]
        images = windowed(_planes(20 + i, number), 50, 400, 255)[..., None].repeat(3, axis=-1)
        if injuries[patient]["any_injury"]:
            found[f"train_images/{patient}/{one}"] = {"labels": sorted(names), "images": images}
    return found


# --- rsna-intracranial-aneurysm-detection ---

_ARTERIES = (
    *(f"{side} {name}" for name in ("Infraclinoid Internal Carotid Artery",
                                    "Supraclinoid Internal Carotid Artery",
                                    "Middle Cerebral Artery") for side in ("Left", "Right")),
    "Anterior Communicating Artery", "Left Anterior Cerebral Artery",
    "Right Anterior Cerebral Artery", "Left Posterior Communicating Artery",
    "Right Posterior Communicating Artery", "Basilar Tip", "Other Posterior Circulation",
    "Aneurysm Present",
)  # fmt: skip


def _aneurysms() -> Members:
    rows: list[list[Any]] = [
        ["SeriesInstanceUID", "PatientAge", "PatientSex", "Modality", *_ARTERIES]
    ]
    uids = [f"1.2.826.0.1.3680043.8.498.{10004044428 + 977 * i}" for i in range(6)]
    members: Members = {}
    for i, uid in enumerate(uids):
        flags = ["" if i == 2 else int((i + k) % 3 == 0) for k in range(len(_ARTERIES))]
        rows.append([uid, 60 + i, "Female", "CTA", *flags])
        if i < 5:
            members |= _slices(f"series/{uid}", _planes(40 + i, 2 + i % 2))
    points = [["SeriesInstanceUID", "SOPInstanceUID", "coordinates", "location"],
              [uids[0], "1.2.826.0.1.9", "{'x': 3.5, 'y': 2.5}", "Basilar Tip"]]  # fmt: skip
    return {
        **members, "train.csv": table([*rows, rows[2]]), "train_localizers.csv": table(points),
        f"segmentations/{uids[0]}/{uids[0]}_cowseg.nii": b"\0" * 400,
    }  # fmt: skip


def _aneurysm_values(members: Members) -> Values:
    found: Values = {}
    for i, row in enumerate(rows_of(members, "train.csv")[:5]):
        if row["Aneurysm Present"]:
            images = windowed(_planes(40 + i, 2 + i % 2), 300, 701, 65_535)[..., None]
            names = sorted(name for name in _ARTERIES if row[name] == "1")
            found[f"series/{row['SeriesInstanceUID']}"] = {"labels": names, "images": images}
    return found


# --- ariel-data-challenge-2024 and ariel-data-challenge-2025 ---

_SHAPE = (8, 16)


def _frames(planet: int) -> Array:
    rng = np.random.default_rng(planet)
    return rng.integers(0, 1 << 16, (4, *_SHAPE), np.uint16)


def _parquet(frames: Array) -> bytes:
    flat = frames.reshape(len(frames), -1)
    out = io.BytesIO()
    pq.write_table(pa.table({f"column_{i}": flat[:, i] for i in range(flat.shape[1])}), out)
    return out.getvalue()


def _planets(year: int) -> Members:
    rows: list[list[Any]] = [["planet_id", *(f"wl_{i}" for i in range(1, 6))]]
    planets = [785834, 14485303, 17002355, 24135240, 25070640]
    members: Members = {}
    signal = "AIRS-CH0_signal" + ("_0" if year == 2025 else "")
    for i, planet in enumerate(planets):
        values: list[Any] = [f"{0.0012 + (i + k) / 9e4:.17f}" for k in range(5)]
        rows.append([planet, *values])
        if i < 4:
            folder = f"train/{planet}"
            members[f"{folder}/{signal}.parquet"] = _parquet(_frames(planet))
            calibration = f"{folder}/{signal.replace('signal', 'calibration')}"
            members[f"{calibration}/dark.parquet"] = _parquet(_frames(1)[:1])
            members[f"{folder}/FGS1_signal.parquet"] = _parquet(_frames(2)[:1])
    rows[2][3] = ""
    members[f"test/1103775/{signal}.parquet"] = _parquet(_frames(1103775))
    name = "train_labels.csv" if year == 2024 else "train.csv"
    info = "train_adc_info.csv" if year == 2024 else "train_star_info.csv"
    return {
        **members, name: table([*rows, rows[1]]), info: table([["planet_id", "star"], *(
            [planet, 0] for planet in planets)]),
        "wavelengths.csv": table([rows[0][1:], [0.7, 1.95, 1.96, 1.97, 1.98]]),
    }  # fmt: skip


def _planet_values(members: Members) -> Values:
    labels = "train_labels.csv" if "train_labels.csv" in members else "train.csv"
    found: Values = {}
    for row in rows_of(members, labels)[:4]:
        numbers = [f32(row[f"wl_{i}"]) for i in range(1, 6)]
        images = _frames(int(row["planet_id"]))[..., None]
        found[f"train/{row['planet_id']}"] = {"targets": numbers, "images": images}
    test = {"targets": [f32("")] * 5, "images": _frames(1103775)[..., None]}
    return {**found, "test/1103775": test}


def _ariel(year: int, file: str, labels: str) -> Competition:
    return Competition(
        slug=f"ariel-data-challenge-{year}",
        special="Parquet files of 16-bit frames, a column for each pixel",
        members=lambda: _planets(year),
        flags=f"--images '{file}::356x32' --stack '{{planet}}/{file}/*' --depth 16 "
        f"--labels 'csv:{labels}:planet_id:*'",
        small={"356x32": f"{_SHAPE[1]}x{_SHAPE[0]}"},
        stored="283 numbers; the frames of one instrument", expected=_planet_values,
        skipped={"not an image": 10}, rows_without_image=1,
    )  # fmt: skip


SERIES = (
    Competition(
        slug="rsna-2024-lumbar-spine-degenerative-classification",
        special="DICOM series in folders of studies; 25 grades of a study",
        members=_lumbar,
        flags="--stack '{study}/{series}/*.dcm' "
        f"--labels csv:train_series_descriptions.csv:series_id:{','.join(LUMBAR)} "
        "--join train.csv --depth 16 --window 1000,4001",
        stored="25 classes of each series", expected=_lumbar_values,
        skipped={"not an image": 3}, rows_without_image=1,
        proposal="--stack '{study}/{series}/*.dcm' "
        f"--labels csv:train_series_descriptions.csv:series_id:{','.join(LUMBAR)} "
        "--join train.csv",
    ),
    Competition(
        slug="rsna-2023-abdominal-trauma-detection",
        special="DICOM series in folders of patients; 14 columns of a patient",
        members=_abdomen,
        flags="--stack 'train_images/{study}/{series}/*.dcm' "
        f"--labels csv:train_series_meta.csv:series_id:{','.join(_INJURIES)} "
        "--join train.csv --window 50,400",
        stored="the classes of each series", expected=_abdomen_values,
        skipped={"not an image": 3, "no label": 1}, rows_without_image=1,
        proposal="--stack 'train_images/{study}/{series}/*.dcm' "
        f"--labels csv:train_series_meta.csv:series_id:{','.join(_INJURIES)} "
        "--join train.csv",
    ),
    Competition(
        slug="rsna-intracranial-aneurysm-detection",
        special="DICOM series; 14 columns of 0 and 1; vessels as NIfTI",
        members=_aneurysms,
        flags="--stack 'series/{id}/*.dcm' "
        f"--labels 'csv:train.csv:SeriesInstanceUID:{','.join(_ARTERIES)}' "
        "--depth 16 --window 300,701",
        stored="the classes of a series", expected=_aneurysm_values,
        skipped={"not an image": 2, "no label": 1}, rows_without_image=1,
        proposal="--stack 'series/{id}/*.dcm' "
        f"--labels 'csv:train.csv:SeriesInstanceUID:{','.join(_ARTERIES)}'",
    ),
    _ariel(2024, "AIRS-CH0_signal.parquet", "train_labels.csv"),
    _ariel(2025, "AIRS-CH0_signal_0.parquet", "train.csv"),
)  # fmt: skip
