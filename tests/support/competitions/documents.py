"""Competitions that have a document for each image, or several rows of a table."""

import io
import json
from typing import Any

import numpy as np
from PIL import Image

from tests.support.arrays import npy
from tests.support.builders import encoded, jpeg
from tests.support.competitions.twin import Competition, Members, Values, f32, rgb, rows_of, table
from tests.support.layouts import image

# --- byu-locating-bacterial-flagellar-motors-2025 ---

_MOTORS = ("Motor axis 0", "Motor axis 1", "Motor axis 2")


def _byu() -> Members:
    rows: list[list[Any]] = [
        ["row_id", "tomo_id", *_MOTORS, "Array shape (axis 0)", "Array shape (axis 1)",
         "Array shape (axis 2)", "Voxel spacing", "Number of motors"]
    ]  # fmt: skip
    motors = {"tomo_00e047": [(1.0, 4.0, 6.0)], "tomo_01a877": [(-1.0, -1.0, -1.0)],
              "tomo_0a8f05": [(0.0, 2.0, 3.0), (2.0, 5.0, 1.0)], "tomo_0c3a99": [(1.0, 1.0, 2.0)],
              "tomo_ffd29e": [(2.0, 1.0, 1.0)]}  # fmt: skip
    members: Members = {}
    for i, (tomogram, places) in enumerate(motors.items()):
        number = 3 + i % 2
        for place in places:
            own = 0 if place[0] < 0 else len(places)
            rows.append([len(rows) - 1, tomogram, *place, number, 8, 10, 16.1, own])
        for k in range(number if i < 4 else 0):
            members[f"train/{tomogram}/slice_{k:04d}.jpg"] = jpeg(8, 10, 10 * i + k)
    rows[5][3] = ""
    members |= {f"test/tomo_003acc/slice_{k:04d}.jpg": jpeg(8, 10, 90 + k) for k in range(2)}
    return {
        **members, "train_labels.csv": table([*rows, rows[3]]),
        "sample_submission.csv": table([["tomo_id", *_MOTORS], ["tomo_003acc", -1, -1, -1]]),
    }  # fmt: skip


def _byu_values(members: Members) -> Values:
    rows = rows_of(members, "train_labels.csv")
    found: Values = {}
    for key, data in members.items():
        folder = key.rpartition("/")[0]
        if key.endswith(".jpg"):
            found.setdefault(folder, {"images": []})["images"].append(rgb(data))
            own = [row for row in rows if row["tomo_id"] == folder.rpartition("/")[2]]
            for name in _MOTORS:
                found[folder][f"rows/{name}"] = [f32(row[name]) for row in own]
    return found


# --- physionet-ecg-image-digitization ---

_LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", *(f"V{i}" for i in range(1, 7)))
_PRINTS = ("0001", "0003", "0004", "0005")


def _ecg() -> Members:
    rows: list[list[Any]] = [["id", "fs", "sig_len"]]
    members: Members = {}
    for i, record in enumerate((1006427285, 1006867983, 1012423188, 1015000000)):
        rows.append([record, 500, 8])
        for name in _PRINTS if i < 3 else ():
            members[f"train/{record}/{record}-{name}.png"] = image(f"{record}-{name}.png")
        wave = np.random.default_rng(i).normal(0, 0.2, (8, 12))
        cells = [["" if k // 3 != t // 2 and k != 1 else f"{wave[t, k]:.6f}" for k in range(12)]
                 for t in range(8)]  # fmt: skip
        if i != 2:
            members[f"train/{record}/{record}.csv"] = table([_LEADS, *cells])
    members["test/1053922973.png"] = image("1053922973.png")
    test = [["id", "lead", "fs", "number_of_rows"], ["1053922973", "I", "1000", "2500"]]
    return {**members, "train.csv": table([*rows, rows[1]]), "test.csv": table(test)}


def _ecg_values(members: Members) -> Values:
    found: Values = {}
    for key, data in members.items():
        folder, _, name = key.rpartition("/")
        if not key.startswith("train/") or not key.endswith(".png"):
            continue
        own: list[dict[str, str]] = []
        if (waves := f"{folder}/{name.partition('-')[0]}.csv") in members:
            own = rows_of(members, waves)
        values = found.setdefault(folder, {"images": []})
        values["images"].append(rgb(data))
        values |= {f"rows/{lead}": [f32(row[lead]) for row in own] for lead in _LEADS}
    return found


# --- benetech-making-graphs-accessible ---


def _graphs() -> Members:
    members: Members = {}
    for i in range(8):
        name = f"{0x0000AE6CBDB1 + 7919 * i:012x}"
        kind = ("line", "vertical_bar", "dot", "scatter")[i % 2]
        series = [{"x": f"{2001 + k}", "y": None if (i, k) == (2, 0) else 12.5 * k + i}
                  for k in range(1 + i % 4)]  # fmt: skip
        document = {
            "source": "generated", "chart-type": kind,
            "plot-bb": {"height": 6, "width": 8, "x0": 2, "y0": 2},
            "text": [{"id": 0, "text": "Title", "role": "chart_title"}],
            "axes": {"x-axis": {"tick-type": "markers", "values-type": "categorical", "ticks": []}},
            "visual-elements": {"bars": [], "lines": []}, "data-series": series,
        }  # fmt: skip
        members[f"train/images/{name}.jpg"] = image(f"{name}.jpg")
        if i != 5:
            members[f"train/annotations/{name}.json"] = json.dumps(document).encode()
    members["test/images/000b92c3b098.jpg"] = image("000b92c3b098.jpg")
    submission = [
        ["id", "data_series", "chart_type"],
        ["000b92c3b098_x", "abc;def", "vertical_bar"],
    ]
    return {**members, "sample_submission.csv": table(submission)}


def _graph_values(members: Members) -> Values:
    found: Values = {"test/images/000b92c3b098.jpg": {"label": [""]}}
    for key, data in members.items():
        if "/annotations/" in key:
            document = json.loads(data)
            series = document["data-series"]
            place = key.replace("annotations", "images").replace(".json", ".jpg")
            numbers = [f32("" if one["y"] is None else str(one["y"])) for one in series]
            found[place] = {
                "label": [document["chart-type"]], "image": [rgb(members[place])],
                "rows/data-series.x": [int(one["x"]) for one in series],
                "rows/data-series.y": numbers,
            }  # fmt: skip
    return found


# --- hubmap-hacking-the-human-vasculature ---


def _vessels() -> Members:
    members: Members = {}
    lines: list[dict[str, Any]] = []
    meta = [["id", "source_wsi", "dataset", "i", "j"]]
    for i in range(6):
        name = f"{0x0006FF2AA7CD + 104729 * i:012x}"
        colours = np.random.default_rng(i).integers(0, 256, (16, 20, 3), np.uint8)
        if i < 5:
            members[f"train/{name}.tif"] = encoded(Image.fromarray(colours), "TIFF")
        polygons = [
            {"type": ("glomerulus", "blood_vessel", "unsure")[(i + k) % 3],
             "coordinates": [[[2 + 5 * k, 3], [6 + 5 * k, 3], [6 + 5 * k, 9], [2 + 5 * k, 9]]]}
            for k in range(1 + i % 3)
        ]  # fmt: skip
        lines.append({"id": name, "annotations": [] if i == 3 else polygons})
        meta.append([name, "1", "1" if i % 2 else "2", "21504", "52224"])
    lines[1]["annotations"].append(lines[1]["annotations"][0])
    members["test/72e40acccadf.tif"] = members[f"train/{0x0006FF2AA7CD:012x}.tif"]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    submission: list[list[Any]] = [
        ["id", "height", "width", "prediction_string"],
        ["72e40acccadf", 512, 512, "0 1"],
    ]
    return {
        **members, "polygons.jsonl": text.encode(),
        "tile_meta.csv": table([*meta, meta[2], ["72e40acccadf", "5", "", "", ""]]),
        "sample_submission.csv": table(submission),
    }  # fmt: skip


def _vessel_values(members: Members) -> Values:
    found: Values = {"test/72e40acccadf.tif": {}}
    for line in members["polygons.jsonl"].decode().splitlines():
        document = json.loads(line)
        key = f"train/{document['id']}.tif"
        if key in members:
            own = {json.dumps(one): one for one in document["annotations"]}.values()
            places = [np.array(one["coordinates"][0]) for one in own]
            boxes = [(*place.min(0)[::-1], *place.max(0)[::-1]) for place in places]
            sides = np.array([16, 20, 16, 20])
            found[key] = {
                "objects/bbox": (np.array(boxes).reshape(-1, 4) / sides).reshape(-1),
                "objects/label": [one["type"] for one in own],
            }
    return found


# --- recodai-luc-scientific-image-forgery-detection ---


def _forgeries() -> Members:
    members: Members = {}
    for i in range(6):
        for kind in ("authentic", "forged") if i % 2 else ("forged",):
            name = f"{kind}{i}"
            members[f"train_images/{kind}/{10015 + i}.png"] = image(f"{name}.png")
        if i != 4:
            masks = np.random.default_rng(i).integers(0, 2, (1 + i % 2, 10, 12), np.uint8)
            members[f"train_masks/{10015 + i}.npy"] = npy(masks)
    members["supplemental_images/7.png"] = image("supplemental7.png")
    members["supplemental_masks/7.npy"] = npy(np.ones((1, 10, 12), np.uint8))
    members["test_images/45.png"] = image("45.png")
    submission = [["case_id", "annotation"], ["45", "authentic"]]
    return {**members, "sample_submission.csv": table(submission)}


def _forgery_values(members: Members) -> Values:
    found: Values = {"test_images/45.png": {}}
    for key, data in members.items():
        if "_masks/" in key:
            folder = "supplemental_images" if "supp" in key else "train_images/forged"
            place = f"{folder}/{key.rpartition('/')[2].removesuffix('.npy')}.png"
            mask = np.load(io.BytesIO(data)).max(axis=0)
            found[place] = {"segmentation_mask": [mask], "image": [rgb(members[place])]}
    return found


DOCUMENTS = (
    Competition(
        slug="recodai-luc-scientific-image-forgery-detection",
        special="masks of several forgeries in .npy files; the same names in two folders",
        members=_forgeries,
        flags="--exclude '*/authentic/*' --masks '*_masks/{stem}.npy'",
        stored="masks of forged images", expected=_forgery_values,
        skipped={"not an image": 1, "no mask": 1, "matched by --exclude": 3},
        missing="authentic images: build them apart with `--labels none`",
    ),
    Competition(
        slug="byu-locating-bacterial-flagellar-motors-2025",
        special="a folder of slices for each tomogram; a row for each motor",
        members=_byu,
        flags="--stack '{id}/*.jpg' --labels none "
        f"--rows 'csv:train_labels.csv:tomo_id:{','.join(_MOTORS)}'",
        stored="stacks; the places of all motors", expected=_byu_values,
        skipped={"not an image": 1}, rows_without_image=1,
        proposal="--stack '{id}/*.jpg' --labels none "
        f"--rows 'csv:train_labels.csv:tomo_id:{','.join(_MOTORS)}'",
    ),
    Competition(
        slug="physionet-ecg-image-digitization",
        special="several prints of a record, and a CSV of its 12 leads",
        members=_ecg,
        flags="--stack '{id}/{id}-*.png' --labels none "
        f"--rows csv:train/{{id}}/{{id}}.csv:id:{','.join(_LEADS)}",
        stored="the prints of a record as a stack; 12 series", expected=_ecg_values,
        skipped={"not an image": 2, "not matched by --stack": 1}, rows_without_image=8,
    ),
    Competition(
        slug="benetech-making-graphs-accessible", special="a JSON for each image",
        members=_graphs,
        flags="--labels csv:annotations/{id}.json:id:chart-type "
        "--rows csv:annotations/{id}.json:id:data-series.x,data-series.y",
        stored="a class; the points of a graph", expected=_graph_values,
        skipped={"not an image": 1, "no label": 1},
    ),
    Competition(
        slug="hubmap-hacking-the-human-vasculature", special="polygons in JSON lines",
        members=_vessels, flags="--masks jsonl --instances",
        stored="boxes and masks", expected=_vessel_values,
        skipped={"not an image": 2}, dropped={"repeated": 1}, rows_without_image=1,
        proposal="--masks jsonl --instances",
    ),
)  # fmt: skip
