"""Competitions whose images are files, each an example."""

import io
import json

import h5py
import numpy as np
from PIL import Image

from tests.support.builders import encoded
from tests.support.competitions.target_tables import TWINS, TargetTable
from tests.support.competitions.twin import Competition, Members, Values, f32, rgb, rows_of, table
from tests.support.layouts import image


def _photos(*keys: str) -> Members:
    return {key: image(key) for key in keys}


# --- csiro-biomass, planttraits2024 ---


def _of_table(twin: TargetTable, slug: str, special: str, flags: str, stored: str) -> Competition:
    return Competition(
        slug=slug, special=special, members=twin.members, flags=flags, stored=stored,
        expected=lambda _: twin.expected(twin.rows_of_images()),
        skipped={"not an image": len(twin.others)},
        rows_without_image=twin.rows_without_image, proposal=twin.proposal,
    )  # fmt: skip


# --- isic-2024-challenge ---


def _isic() -> Members:
    ids = [f"ISIC_{15670 + 43 * i:07d}" for i in range(13)]
    # fmt: off
    rows = [["isic_id", "target", "patient_id", "age_approx", "sex", "anatom_site_general",
             "clin_size_long_diam_mm", "image_type", "tbp_lv_A", "lesion_id", "iddx_full"]]
    for i, one in enumerate(ids):  # the last has no image
        target, age = "" if i == 6 else str(i % 4 // 3), "" if i == 2 else "60.0"
        rows.append([one, target, f"IP_{i // 2}", age, "male", "", "3.04", "TBP tile: close-up",
                     f"{20.24 + i}", "", "Benign"])
    # fmt: on
    rows.append(rows[2])
    photos = {one: image(f"{one}.jpg") for one in ids[:-1]}
    hidden = {f"ISIC_{9000000 + i}": image(f"hidden{i}.jpg") for i in range(3)}
    return {
        "train-metadata.csv": table(rows),
        "test-metadata.csv": table([rows[0][:1], *([one] for one in hidden)]),
        "sample_submission.csv": table([["isic_id", "target"], *([one, 0.3] for one in hidden)]),
        "train-image.hdf5": _hdf5(photos),
        "test-image.hdf5": _hdf5(hidden),
        **{f"train-image/image/{one}.jpg": photo for one, photo in photos.items()},
    }


def _hdf5(files: Members) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        for name, data in files.items():
            file[name] = np.void(data)
    return out.getvalue()


def _isic_values(members: Members) -> Values:
    found: Values = {}
    for row in rows_of(members, "train-metadata.csv"):
        key = f"train-image/image/{row['isic_id']}.jpg"
        if key in members and row["target"]:
            found[key] = {"label": [row["target"]], "image": [rgb(members[key])]}
            found[key]["age_approx"] = [f32(row["age_approx"])]
    with h5py.File(io.BytesIO(members["test-image.hdf5"])) as file:
        for name, data in file.items():
            photo = rgb(data[()].tobytes())
            found[f"test-image.hdf5/{name}"] = {"label": [""], "image": [photo]}
    return found


# --- rsna-breast-cancer-detection ---


def _breast() -> Members:
    rows = [["site_id", "patient_id", "image_id", "laterality", "view", "age", "cancer", "biopsy",
             "invasive", "BIRADS", "implant", "density", "machine_id",
             "difficult_negative_case"]]  # fmt: skip
    for i in range(13):
        cancer = "" if i == 5 else str(int(i in (2, 3)))
        rows.append(["2", str(10006 + i // 4), str(462822612 + 31 * i), "LR"[i // 2 % 2],
                     ("CC", "MLO")[i % 2], "61.0", cancer, str(i % 2), "0", "", "0", "B", "29",
                     "False"])  # fmt: skip
    keys = [f"train_images/{row[1]}/{row[2]}.dcm" for row in rows[1:-1]]
    rows.append(rows[1])
    submission = [["prediction_id", "cancer"], ["10008_L", "0.5"]]
    test = [[*rows[0][:6], "implant", "machine_id", "prediction_id"],
            ["2", "10008", "736471439", "L", "MLO", "81", "0", "21", "10008_L"]]  # fmt: skip
    return {
        **_photos(*keys, "test_images/10008/736471439.dcm"),
        "train.csv": table(rows), "test.csv": table(test),
        "sample_submission.csv": table(submission),
    }  # fmt: skip


def _breast_values(members: Members) -> Values:
    found: Values = {"test_images/10008/736471439.dcm": {"label": [""]}}
    for row in rows_of(members, "train.csv"):
        key = f"train_images/{row['patient_id']}/{row['image_id']}.dcm"
        if key in members and row["cancer"]:
            found[key] = {"label": [row["cancer"]]}
    return found


# --- UBC-OCEAN ---


def _ovary() -> Members:
    rows = [["image_id", "label", "image_width", "image_height", "is_tma"]]
    for i in range(13):
        label = "" if i == 7 else ("HGSC", "LGSC", "EC", "CC", "MC")[i % 2]
        rows.append([str(4 + 62 * i), label, "23785", "20008", str(i % 5 == 4)])
    keys = [f"train_images/{row[0]}.png" for row in rows[1:-1]]
    thumbs = [f"train_thumbnails/{row[0]}_thumbnail.png" for row in rows[1:-1] if row[4] == "False"]
    rows.append(rows[3])
    return {
        **_photos(*keys, *thumbs, "test_images/41.png", "test_thumbnails/41_thumbnail.png"),
        "train.csv": table(rows),
        "test.csv": table([["image_id", "image_width", "image_height"], ["41", "28469", "16987"]]),
        "sample_submission.csv": table([["image_id", "label"], ["41", "HGSC"]]),
    }


def _ovary_values(members: Members) -> Values:
    labels = {"test_images/41.png": ""}
    for row in rows_of(members, "train.csv"):
        key = f"train_images/{row['image_id']}.png"
        if key in members and row["label"]:
            labels[key] = row["label"]
    return {
        f"{key}/y{y:06d}_x{x:06d}": {
            "label": [label], "image": [rgb(members[key])[y : y + 8, x : x + 8]],
            "tile/y": [y], "tile/x": [x],
        }
        for key, label in labels.items() for y in (0, 2) for x in (0, 4)
    }  # fmt: skip


# --- stable-diffusion-image-to-prompts ---


def _prompts() -> Members:
    rows = [["imgId", "prompt"]]
    for i in range(9):
        text = "" if i == 3 else f"hyper realistic photo of {i} cacti, sticking their tongues out"
        rows.append([f"{0x20057F34 + i:x}d", text])
    keys = [f"images/{row[0]}.png" for row in rows[1:-1]]
    rows.append(rows[2])
    submission = [["imgId_eId", "val"], ["20057f34d_0", "0.018848453"]]
    return {
        **_photos(*keys),
        "prompts.csv": table(rows),
        "sample_submission.csv": table(submission),
    }


def _prompt_values(members: Members) -> Values:
    rows = rows_of(members, "prompts.csv")
    texts = {f"images/{row['imgId']}.png": row["prompt"] for row in rows}
    return {
        key: {"text": [text.encode()], "image": [rgb(members[key])]}
        for key, text in texts.items()
        if key in members and text
    }


# --- image-matching-challenge 2023, 2024 and 2025 ---


def _poses(year: int) -> Members:
    scenes = (("haiper", "bike"), ("haiper", "chairs"), ("heritage", "dioscuri"))
    name = {2023: "image_path", 2024: "image_name", 2025: "image"}[year]
    rows = [["dataset", "scene", name, "rotation_matrix", "translation_vector"]]
    keys = []
    for i in range(15):
        dataset, scene = scenes[i % 3]
        file = f"{scene}_{i:03d}.png" if year == 2025 else f"{i // 3:05d}.png"
        path = {2023: f"{dataset}/{scene}/images/{file}", 2024: f"{scene}/images/{file}",
                2025: f"{dataset}/{file}"}[year]  # fmt: skip
        keys.append(f"train/{path}")
        is_out = year == 2025 and i == 4
        turn = ";".join("nan" if is_out else f"{i / 3 + k:.5f}" for k in range(9))
        move = "nan;nan;nan" if is_out else f"{i / 7:.5f};0.5;-1e-3"
        if i == 8:
            move = ""
        if year == 2024:
            dataset = scene
        rows.append([dataset, "outliers" if is_out else scene, path if year == 2023 else file,
                     turn, move])  # fmt: skip
    rows.append(rows[5])
    submitted = "image" if year == 2025 else "image_path"
    more = {2024: "train/categories.csv", 2025: "train_thresholds.csv"}.get(year, "")
    others = {more: table([["dataset", "scene", "thresholds"], ["haiper", "bike", "0.1;0.2"]])}
    return {
        **_photos(*keys[:-1]),
        ("train_labels.csv" if year == 2025 else "train/train_labels.csv"): table(rows),
        "sample_submission.csv": table([[*rows[0][:2], submitted, *rows[0][3:]], rows[1]]),
        **({} if year == 2023 else others),
    }


def _pose_values(members: Members) -> Values:
    found: Values = {}
    labels = next(name for name in members if name.endswith("train_labels.csv"))
    for row in rows_of(members, labels):
        name = row.get("image_path") or row.get("image_name") or row["image"]
        folders = {"image_name": "{dataset}/images/", "image": "{dataset}/"}
        folder = next((folders[one] for one in folders if one in row), "").format(**row)
        key = f"train/{folder}{name}"
        texts = row["rotation_matrix"].split(";")
        texts += row["translation_vector"].split(";") if row["translation_vector"] else [""] * 3
        if key in members:
            found[key] = {
                "targets": [f32(one) for one in texts],
                **{f"label/{one}": [row[one]] for one in ("dataset", "scene")},
            }
    return found


def _pose_competition(year: int, id_column: str, special: str) -> Competition:
    file = "train_labels.csv" if year == 2025 else "train/train_labels.csv"
    columns = "dataset,scene,rotation_matrix,translation_vector"
    flags = f"--labels 'csv:{file}:{id_column}:{columns}'"
    return Competition(
        slug=f"image-matching-challenge-{year}", special=special, members=lambda: _poses(year),
        flags=flags, stored="12 numbers; the scene", expected=_pose_values,
        skipped={"not an image": 1 if year == 2023 else 2}, rows_without_image=1,
        proposal=flags,
    )  # fmt: skip


# --- fathomnet-out-of-sample-detection (2023), fathomnet-2025 ---


def _sea() -> Members:
    names = {1: "Acanthascinae", 52: "Asbestopluma", 160: "Keratoisis"}
    ids = [f"{0x9A3B2C01 + 977 * i:08x}-0c5f-4a5e" for i in range(7)]
    images = [{"id": i + 1, "width": 12, "height": 10, "file_name": f"{one}.png",
               "coco_url": f"https://fathomnet.org/static/m3/{one}.png"}
              for i, one in enumerate(ids)]  # fmt: skip
    boxes = [{"id": i + 1, "image_id": i % 6 + 1, "category_id": [*names][i % 3],
              "bbox": [1, 2, 3 + i % 4, 4], "area": 12, "iscrowd": 0, "segmentation": []}
             for i in range(9) if i % 6 != 4]  # fmt: skip
    boxes.append({**boxes[0], "id": 99})
    boxes.append({"id": 100, "image_id": 7, "category_id": 1, "bbox": [1, 1, 4, 4]})
    document = {
        "images": [*images, images[0]], "annotations": boxes,
        "categories": [{"id": key, "name": name} for key, name in names.items()],
    }  # fmt: skip
    return {
        **_photos(*(f"images/{one}.png" for one in ids[:-1])),
        "object_detection/train.json": json.dumps(document).encode(),
        "multilabel_classification/train.csv": table(
            [["id", "categories"], *([one, "[1.0, 52.0]"] for one in ids), [ids[3], ""]]
        ),
        "category_key.csv": table([["id", "name", "supercat"], *([k, n, "Porifera"]
                                                                 for k, n in names.items())]),
    }  # fmt: skip


def _sea_values(members: Members) -> Values:
    document = json.loads(members["object_detection/train.json"])
    names = {one["id"]: one["name"] for one in document["categories"]}
    found: Values = {}
    for one in document["images"]:
        key = f"images/{one['file_name']}"
        boxes = [box for box in document["annotations"] if box["image_id"] == one["id"]]
        own = {(*box["bbox"], names[box["category_id"]]): None for box in boxes}
        if key in members:
            corners = [(y / 10, x / 12, (y + h) / 10, (x + w) / 12)
                       for x, y, w, h, _ in own]  # fmt: skip
            found[key] = {
                "objects/bbox": [float(np.float32(one)) for box in corners for one in box],
                "objects/label": [name for *_, name in own],
            }
    return found


def _rois() -> Members:
    rows = [["path", "label"]]
    for i in range(13):
        label = "" if i == 4 else ("Actiniaria", "Gorgonia", "Ophiuroidea")[i % 2]
        rows.append([f"train/rois/{i // 3}_{i}.png", label])
    keys = [row[0] for row in rows[1:-1]]
    rows.append(rows[1])
    test = [["path"], ["test/rois/1_0.png"]]
    return {
        **_photos(*keys, "test/rois/1_0.png"),
        "train/annotations.csv": table(rows), "test/annotations.csv": table(test),
        "dataset_train.json": b"{}", "dataset_test.json": b"{}",
    }  # fmt: skip


def _roi_values(members: Members) -> Values:
    found: Values = {"test/rois/1_0.png": {"label": [""]}}
    for row in rows_of(members, "train/annotations.csv"):
        if row["path"] in members and row["label"]:
            found[row["path"]] = {"label": [row["label"]], "image": [rgb(members[row["path"]])]}
    return found


# --- geolifeclef-2024 ---


def _patch(survey: int, band: str, split: str = "train") -> str:
    inner = f"pa_{split}_patches_{band}/{survey % 100:02d}/{survey // 100 % 100:02d}/{survey}.jpeg"
    return f"PA_{split.title()}_SatellitePatches_{band.upper()}/{inner}"


def _plots() -> Members:
    rows = [["lon", "lat", "year", "geoUncertaintyInM", "areaInM2", "region", "country",
             "speciesId", "surveyId"]]  # fmt: skip
    surveys = [212 + 1031 * i for i in range(9)]
    for i, survey in enumerate(surveys):
        for k in range(1 + i % 4):
            species = "" if (i, k) == (5, 1) else f"{(7 * i + 5 * k) % 30}.0"
            rows.append(["3.099038", "43.134956", "2021", "5.0", "100.0", "MEDITERRANEAN", "France",
                         species, str(survey)])  # fmt: skip
    rows.append(rows[4])
    there = [_patch(one, band) for one in surveys[:-1] for band in ("rgb", "nir")]
    test = [_patch(642, band, "test") for band in ("rgb", "nir")]
    return {
        **_photos(*there, *test),
        "GLC24_PA_metadata_train.csv": table(rows),
        "GLC24_PA_metadata_test.csv": table([[*rows[0][:7], "surveyId"], [*rows[1][:7], "642"]]),
        "GLC24_SAMPLE_SUBMISSION.csv": table([["surveyId", "predictions"], ["642", "1 52 10"]]),
    }


def _plot_values(members: Members) -> Values:
    found: Values = {}
    for row in rows_of(members, "GLC24_PA_metadata_train.csv"):
        key = _patch(int(row["surveyId"]), "rgb")
        if key in members and row["speciesId"]:
            own = found.setdefault(key, {"labels": [], "image": [rgb(members[key])]})
            own["labels"] = sorted({*own["labels"], row["speciesId"].removesuffix(".0")})
    return found


# --- blood-vessel-segmentation (SenNet + HOA), slice by slice ---


def _kidneys() -> Members:
    members: Members = {}
    rows = [["id", "rle"]]
    for kidney, number in (("kidney_1_dense", 4), ("kidney_3_sparse", 3)):
        for i in range(number):
            grey = np.random.default_rng(i + number).integers(0, 1 << 16, (10, 12), np.uint16)
            mask = np.where(grey > (50_000 if i else 65_535), np.uint8(255), np.uint8(0))
            members[f"train/{kidney}/images/{i:04d}.tif"] = encoded(Image.fromarray(grey), "TIFF")
            members[f"train/{kidney}/labels/{i:04d}.tif"] = encoded(Image.fromarray(mask), "TIFF")
            rows.append([f"{kidney}_{i:04d}", "1 0" if not i else "5 2"])
    del members["train/kidney_3_sparse/labels/0002.tif"]
    members["test/kidney_5/images/0000.tif"] = members["train/kidney_1_dense/images/0000.tif"]
    submission = [["id", "rle"], ["kidney_5_0000", "1 0"]]
    return {**members, "train_rles.csv": table([*rows, rows[1], ["kidney_2_0000", ""]]),
            "sample_submission.csv": table(submission)}  # fmt: skip


def _kidney_values(members: Members) -> Values:
    found: Values = {}
    for key in members:
        mask = members.get(key.replace("/images/", "/labels/"))
        if "/images/" in key and mask is not None:
            plane = np.asarray(Image.open(io.BytesIO(mask)))
            found[key] = {"segmentation_mask": [plane // 255]}
    return {**found, "test/kidney_5/images/0000.tif": {}}


BIOMASS, PLANTS = TWINS["biomass"], TWINS["plants"]
PHOTOS = (
    _of_table(
        BIOMASS, "csiro-biomass", "a row for each image and target",
        "--labels csv:train.csv:image_path:target --pivot target_name --group Sampling_Date",
        "5 numbers",
    ),
    Competition(
        slug="isic-2024-challenge", special="test images only as JPEG files in HDF5",
        members=_isic,
        flags="--images test-image.hdf5 --labels csv:train-metadata.csv:isic_id:target "
        "--group patient_id --columns age_approx,sex",
        stored="a class", expected=_isic_values,
        skipped={"not an image": 3, "no label": 1}, rows_without_image=1,
        proposal="--images test-image.hdf5 --labels csv:train-metadata.csv:isic_id:target",
    ),
    Competition(
        slug="rsna-breast-cancer-detection", special="DICOM; several columns of 0 and 1",
        members=_breast, flags="--labels csv:train.csv:image_id:cancer --group patient_id",
        stored="a class", expected=_breast_values,
        skipped={"not an image": 2, "no label": 1}, rows_without_image=1,
        proposal="--labels csv:train.csv:image_id:cancer",
    ),
    Competition(
        slug="UBC-OCEAN", special="slides and thumbnails of them", members=_ovary,
        flags="--exclude 'test_thumbnails/*' --exclude 'train_thumbnails/*' "
        "--labels csv:train.csv:image_id:label --tile 512 --overlap 64",
        small={"--tile 512 --overlap 64": "--tile 8 --overlap 2"},
        stored="tiles, each with the class of its slide", expected=_ovary_values,
        skipped={"not an image": 2, "no label": 1, "matched by --exclude": 11},
        rows_without_image=1,
        proposal="--exclude 'test_thumbnails/*' --exclude 'train_thumbnails/*' "
        "--labels csv:train.csv:image_id:label",
    ),
    Competition(
        slug="stable-diffusion-image-to-prompts", special="a text for each image",
        members=_prompts, flags="--labels csv:prompts.csv:imgId:prompt --target text",
        stored="a text", expected=_prompt_values,
        skipped={"not an image": 1, "no label": 1}, rows_without_image=1,
        proposal="--labels csv:prompts.csv:imgId:prompt --target text",
    ),
    Competition(
        slug="blood-vessel-segmentation", special="16-bit TIFF slices and masks of kidneys",
        members=_kidneys, flags="--masks 'labels/{stem}.tif'",
        stored="masks", expected=_kidney_values,
        skipped={"not an image": 2, "no mask": 1},
        proposal="--masks 'labels/{stem}.tif'",
    ),
    _pose_competition(2025, "image", "matrices in cells; outliers have nan"),
    _pose_competition(2024, "{dataset}/images/{image_name}", "the same names in every scene"),
    _pose_competition(2023, "image_path", "paths as ids"),
    _of_table(
        PLANTS, "planttraits2024", "means and deviations of 6 traits, 163 further columns",
        "--labels csv:train.csv:id:X4_mean,X11_mean,X18_mean,X26_mean,X50_mean,X3112_mean",
        "6 numbers",
    ),
    Competition(
        slug="fathomnet-out-of-sample-detection",
        special="COCO and a list of URLs, which another tool downloads",
        members=_sea, flags="--boxes coco", stored="boxes",
        expected=_sea_values, skipped={"not an image": 2}, dropped={"repeated": 1},
        rows_without_image=1,
        proposal="--boxes coco",
    ),
    Competition(
        slug="fathomnet-2025", special="two tables of one name; paths as ids", members=_rois,
        flags="--labels csv:train/annotations.csv:path:label", stored="a class",
        expected=_roi_values, skipped={"not an image": 3, "no label": 1}, rows_without_image=1,
        proposal="--labels csv:train/annotations.csv:path:label",
    ),
    Competition(
        slug="geolifeclef-2024", special="a row for each plot and species; RGB and infrared",
        members=_plots,
        flags="--root PA_Train_SatellitePatches_RGB "
        "--labels csv:GLC24_PA_metadata_train.csv:surveyId:speciesId --target multilabel",
        stored="the classes of a plot; RGB", expected=_plot_values,
        skipped={"not an image": 2, "not below --root": 10}, rows_without_image=1    ),
)  # fmt: skip
