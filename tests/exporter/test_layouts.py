"""The library of each layout reads the same pixels, labels and objects from an export."""

import csv
import io
import json
import math
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import ANNOTATIONS, BOX, BOX_LABEL, OBJECT_MASK
from shardprep.errors import RecipeError
from shardprep.exporter import webdataset
from shardprep.exporter.export import LAYOUTS, export_dataset
from shardprep.exporter.image_folder import outlines
from shardprep.exporter.samples import ExportSample, Objects
from tests.support.annotated import CLASSES, MARKED, annotated
from tests.support.builders import Told, build, encoded, jpeg, png, write_folder

PETS = {
    "in/cat/a.b.jpg": jpeg(seed=1),
    "in/cat/A.b.jpg": jpeg(seed=2),
    "in/cat/c.png": png(seed=3),
    "in/dog/ü x.jpg": jpeg(seed=4, height=40),
    "in/dog/-rf.jpg": jpeg(seed=5),
    "in/dog/.d.e.jpg": jpeg(seed=6),
}
"""Key → stored bytes; one like an option, a hidden one, two that differ only in case."""
CELLS = {key: (i or None, "" if i % 2 else f"w{i},\n.") for i, key in enumerate(PETS)}
"""Key → age (None: empty) and note."""
CLASS_NAMES = ["cat", "dog"]

OF_BOXES = {"coco", "yolo"}
"""Layouts for sets with boxes alone."""
ANY = [layout for layout in LAYOUTS if layout not in OF_BOXES]


def exported(dataset: Path, out: Path, *layouts: str) -> dict[str, Path]:
    """Return the folder of each layout, of those for any set or of some."""
    return {
        layout: export_dataset(open_dataset(dataset), layout, out / layout, watcher=Told()).path
        for layout in layouts or ANY
    }


def table(*rows: tuple[object, ...]) -> dict[str, bytes]:
    """Return the file of a table, for `write_folder`."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return {"t.csv": text.getvalue().encode()}


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The exports of a set with classes, columns and unchanged images."""
    folder = tmp_path_factory.mktemp("pets")
    rows = [(key, class_of(key), *cells) for key, cells in CELLS.items()]
    columns = table(("id", "label", "key", "note"), *rows)
    source = write_folder(folder / "source", {**PETS, **columns})
    made = build(
        source, folder / "sets", name="pets", shards=2, split="train=0.7,test=0.3", format="keep",
        size="none", labels="csv:t.csv:id:label", columns="key,note",
    )  # fmt: skip
    return exported(made.path, folder)


@pytest.fixture(name="marked", scope="module")
def _marked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The exports of a set with every kind of annotation."""
    folder = tmp_path_factory.mktemp("marked")
    return exported(annotated(folder, *ANNOTATIONS), folder, *LAYOUTS)


def class_of(key: str) -> str:
    return key.split("/")[1]


def pixels_of(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def coco_boxes(key: str) -> list[list[int]]:
    return [[x0, y0, x1 - x0, y1 - y0] for y0, x0, y1, x1 in MARKED[key].rectangles]


def near(found: Any, expected: Any) -> bool:
    return np.allclose(np.reshape(found, -1), np.reshape(expected, -1), atol=1e-3)


# --- WebDataset ---------------------------------------------------------------------------------


def samples(folder: Path) -> list[dict[str, Any]]:
    import webdataset as wds

    tars = [str(path) for path in sorted(folder.glob("*.tar"))]
    assert {Path(one).name.split("-")[1] for one in tars} == {"train", "test"}
    return list(wds.WebDataset(tars, shardshuffle=False, empty_check=False).decode("rgb8"))


def test_webdataset_has_images_classes_and_columns(pets: dict[str, Path]) -> None:
    found = samples(pets["webdataset"])
    assert sorted(one["json"]["key"] for one in found) == sorted(PETS)
    for one in found:
        facts = one["json"]
        key = facts["key"]
        image = one["png" if key.endswith(".png") else "jpg"]
        assert np.array_equal(image, pixels_of(PETS[key]))
        assert one["cls"] == facts["label"] == CLASS_NAMES.index(class_of(key))
        assert facts["class"] == class_of(key)
        assert (facts["height"], facts["width"]) == image.shape[:2]
        age, note = CELLS[key]
        assert (facts["column/key"], facts["note"]) == (age, note)


def test_webdataset_has_objects_and_masks(marked: dict[str, Path]) -> None:
    from pycocotools import mask as coco

    found = samples(marked["webdataset"])
    assert {one["json"]["key"] for one in found} == MARKED.keys()
    for one in found:
        truth, objects = MARKED[one["json"]["key"]], one["json"]["objects"]
        assert np.array_equal(one["png"], pixels_of(truth.image()))
        assert np.array_equal(one["segmentation_mask.png"][..., 0], truth.classes())
        assert objects["label"] == list(truth.labels)
        assert near(objects["bbox"], truth.boxes)
        masks = [coco.decode(mask) for mask in objects.get("segmentation", ())]
        assert np.array_equal(masks, truth.masks())


def names_in(facts: Any) -> Any:
    """Return the names in a document, nested like the document."""
    return (
        {name: names_in(value) for name, value in facts.items()} if hasattr(facts, "items") else 0
    )


def test_the_json_of_each_webdataset_record_has_the_same_names(
    marked: dict[str, Path], pets: dict[str, Path]
) -> None:
    """Of images without an object as well."""
    for exports, more in ((marked, {"bbox", "is_crowd", "segmentation"}), (pets, set())):
        found = [names_in(one["json"]) for one in samples(exports["webdataset"])]
        assert all(one == found[0] for one in found)
        assert more <= {*found[0].get("objects", ())}


@given(
    st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=120
    ),
    st.one_of(st.integers(0, 1 << 20), st.integers(8**11 - 2, 8**11 + 2)),
)
def test_headers_of_tars_are_equal_to_those_of_tarfile(name: str, num_bytes: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = num_bytes
    expected = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    assert webdataset._header(name, num_bytes) == expected


# --- Parquet ------------------------------------------------------------------------------------


@pytest.fixture(name="load", scope="module")
def _load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return `datasets.load_dataset`, which asks no server and keeps its cache here."""
    os.environ.update(
        HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1"
    )
    os.environ["HF_HOME"] = str(tmp_path_factory.mktemp("home"))
    datasets = pytest.importorskip("datasets")
    cache = str(tmp_path_factory.mktemp("cache"))
    return lambda *arguments, **more: datasets.load_dataset(*arguments, cache_dir=cache, **more)


def test_datasets_opens_the_folder_by_its_card(pets: dict[str, Path], load: Any) -> None:
    found = load(str(pets["parquet"]))
    assert {name: len(split) for name, split in found.items()} == splits_of(pets["parquet"])
    assert found["train"].features["label"].names == CLASS_NAMES
    rows = [row for split in found.values() for row in split]
    assert sorted(row["key"] for row in rows) == sorted(PETS)
    for row in rows:
        assert np.array_equal(np.asarray(row["image"]), pixels_of(PETS[row["key"]]))
        assert row["label"] == CLASS_NAMES.index(class_of(row["key"]))
        assert (row["height"], row["width"]) == np.asarray(row["image"]).shape[:2]
        assert (row["column/key"], row["note"]) == CELLS[row["key"]]


def test_datasets_has_objects_and_masks(marked: dict[str, Path], load: Any) -> None:
    """Also from the files alone, which have the features in their metadata."""
    from pycocotools import mask as coco

    data = {name: str(marked["parquet"] / f"data/{name}-*") for name in ("train", "test")}
    found = load("parquet", data_files=data)
    features = found["train"].features
    assert features["objects"]["category"].feature.names == list(CLASSES)
    rows = [row for split in found.values() for row in split]
    assert {row["key"] for row in rows} == MARKED.keys()
    for row in rows:
        truth, objects = MARKED[row["key"]], row["objects"]
        assert np.array_equal(np.asarray(row["image"]), pixels_of(truth.image()))
        assert np.array_equal(np.asarray(row["segmentation_mask"]), truth.classes())
        assert objects["category"] == objects["is_crowd"] == list(truth.labels)
        assert near(objects["bbox"], coco_boxes(row["key"]))
        masks = [coco.decode(runs) for runs in objects["segmentation"]]
        assert np.array_equal(masks, truth.masks())


@pytest.mark.parametrize("name", ["pets", "marked"])
def test_the_card_has_the_features_of_the_files(name: str, request: pytest.FixtureRequest) -> None:
    """As `datasets` reads both. A licence is not invented."""
    datasets = pytest.importorskip("datasets")
    folder = request.getfixturevalue(name)["parquet"]
    text = (folder / "README.md").read_text()
    facts = yaml.safe_load(text.split("---\n")[1])
    import pyarrow.parquet as pq

    schema = pq.read_schema(next((folder / "data").glob("*.parquet")))
    said = datasets.Features._from_yaml_list(facts["dataset_info"]["features"])
    assert said == datasets.Features.from_arrow_schema(schema)
    splits = {one["name"]: one["num_examples"] for one in facts["dataset_info"]["splits"]}
    assert splits == splits_of(folder)
    assert "license" not in facts
    assert "# license:" in text


def splits_of(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "export.json").read_text())["splits"]
    return found


# --- folder -------------------------------------------------------------------------------------


def test_folder_has_the_files_of_the_source_and_a_table(pets: dict[str, Path]) -> None:
    folder = pets["folder"]
    rows = table_of(folder)
    assert rows.keys() == PETS.keys()
    for key, row in rows.items():
        assert (folder / row["file_name"]).read_bytes() == PETS[key]
        split, name, _ = row["file_name"].split("/")
        assert (split, name) == (row["split"], class_of(key))
        assert (row["class"], int(row["label"])) == (name, CLASS_NAMES.index(name))
        age, note = CELLS[key]
        assert (row["column/key"], row["note"]) == ("" if age is None else str(age), note)
    images = {p.relative_to(folder).as_posix() for p in folder.glob("*/*/*")}
    assert images == {row["file_name"] for row in rows.values()}
    assert {p.name for p in folder.iterdir()} == {"train", "test", "labels.csv", "export.json"}


# --- COCO ---------------------------------------------------------------------------------------


def table_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return the rows of `labels.csv` by key."""
    with (folder / "labels.csv").open(newline="") as file:
        return {row["key"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("layout", "document", "root", "images", "masks"),
    [
        ("folder", "{}.coco.json", "", "{}", "class-masks/{}"),
        # As torchvision's CocoDetection: the names of a document are below the images of a split.
        ("coco", "annotations/instances_{}.json", "images/{}", "images/{}", "masks/{}"),
    ],
)
def test_coco_s_own_tools_open_the_objects(
    marked: dict[str, Path], layout: str, document: str, root: str, images: str, masks: str
) -> None:
    from pycocotools.coco import COCO

    folder, seen = marked[layout], set()
    for split in ("train", "test"):
        coco = COCO(str(folder / document.format(split)))
        categories = coco.loadCats(coco.getCatIds())
        assert [one["name"] for one in categories] == list(CLASSES)
        assert categories[0]["keypoints"] == ["left", "right", "top"]
        assert categories[0]["skeleton"] == [[1, 2]]
        below = folder / root.format(split)
        names = {one["file_name"] for one in coco.loadImgs(coco.getImgIds())}
        files = {*(folder / images.format(split)).iterdir()}
        assert {below / name for name in names} == files
        for image in coco.loadImgs(coco.getImgIds()):
            path = below / image["file_name"]
            key = f"{split}/{path.name}"
            seen.add(key)
            truth = MARKED[key]
            assert table_of(folder)[key]["file_name"] == path.relative_to(folder).as_posix()
            assert np.array_equal(pixels_of(path.read_bytes()), pixels_of(truth.image()))
            found = coco.loadAnns(coco.getAnnIds(image["id"]))
            assert [one["category_id"] - 1 for one in found] == list(truth.labels)
            assert near([one["bbox"] for one in found], coco_boxes(key))
            assert [one["area"] for one in found] == [mask.sum() for mask in truth.masks()]
            for one, (top, left, bottom, right) in zip(found, truth.rectangles, strict=True):
                middle = (top + bottom) / 2
                points = [left, middle, 2, right, middle, 1, 0, 0, 0]
                np.testing.assert_allclose(one["keypoints"], points, atol=1e-4)
                assert one["num_keypoints"] == 2
            assert np.array_equal([coco.annToMask(one) for one in found], truth.masks())
            classes = (folder / masks.format(split) / path.name).read_bytes()
            assert np.array_equal(pixels_of(classes), truth.classes())
            for i, mask in enumerate(truth.masks() if layout == "folder" else ()):
                file = folder / f"{split}-object-masks/{path.stem}.{i}.png"
                assert np.array_equal(pixels_of(file.read_bytes()), mask)
    assert seen == MARKED.keys()


@pytest.mark.parametrize("layout", sorted(OF_BOXES))
def test_a_layout_of_boxes_is_refused_for_a_dataset_without_boxes(
    layout: str, tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "source", PETS)
    made = build(source, tmp_path / "sets", name="pets", labels="none", size=8)
    with pytest.raises(RecipeError, match=rf"^--to: '{layout}' is a layout of boxes") as error:
        export_dataset(open_dataset(made.path), layout, tmp_path / "out", watcher=Told())
    assert "use folder" in str(error.value)
    assert not (tmp_path / "out").exists()


# --- YOLO ---------------------------------------------------------------------------------------


def as_ultralytics(folder: Path, key: str) -> list[tuple[Path, list[list[float]]]]:
    """Return the images of a split and their lines, found as `ultralytics.data` finds them.

    Folders are relative to the YAML. The label file of an image has `labels` instead of the
    last `images` of its path.
    """
    data = yaml.safe_load((folder / "data.yaml").read_text())
    found = []
    for image in sorted((folder / data[key]).iterdir()):
        head, tail = str(image).rsplit("/images/", 1)
        text = Path(f"{head}/labels/{tail}".rsplit(".", 1)[0] + ".txt")
        found.append((image, [[float(one) for one in line.split()] for line in text.open()]))
    return found


def test_yolo_is_read_as_ultralytics_reads_it(marked: dict[str, Path]) -> None:
    """Objects of class 1 are crowds, which YOLO cannot express: the table counts them."""
    folder, seen = marked["yolo"], set()
    data = yaml.safe_load((folder / "data.yaml").read_text())
    assert data["names"] == dict(enumerate(CLASSES))
    assert data["nc"] == len(CLASSES)
    assert data.keys() == {"train", "test", "nc", "names", "kpt_shape", "flip_idx", "kpt_names"}
    assert (data["kpt_shape"], data["flip_idx"]) == ([3, 3], [1, 0, 2])
    assert data["kpt_names"] == {0: ["left", "right", "top"], 1: ["left", "right", "top"]}
    for split in ("train", "test"):
        for image, lines in as_ultralytics(folder, split):
            key = f"{split}/{image.name}"
            seen.add(key)
            truth, pixels = MARKED[key], pixels_of(image.read_bytes())
            assert np.array_equal(pixels, pixels_of(truth.image()))
            height, width = pixels.shape[:2]
            single = [i for i, is_crowd in enumerate(truth.labels) if not is_crowd]
            assert [int(line[0]) for line in lines] == [truth.labels[i] for i in single]
            boxes = [
                [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]
                for _, x, y, w, h, *_ in lines
            ]
            for (top, left, bottom, right), line in zip(
                (truth.rectangles[i] for i in single), lines, strict=True
            ):
                middle = (top + bottom) / 2 / height
                points = [left / width, middle, 2, right / width, middle, 1, 0, 0, 0]
                np.testing.assert_allclose(line[5:], points, atol=1e-6)
            assert near(boxes, [coco_boxes(key)[i] for i in single])
            row = table_of(folder)[key]
            assert row["file_name"] == f"images/{key}"
            assert int(row["crowds_left_out"]) == len(truth.labels) - len(single)
            for i, mask in enumerate(truth.masks()):
                file = folder / f"object-masks/{key.removesuffix('.png')}.{i}.png"
                assert np.array_equal(pixels_of(file.read_bytes()), mask)
    assert seen == MARKED.keys()


def drawn(lines: Sequence[Sequence[float]], height: int, width: int) -> list[Any]:
    """Return the mask of each polygon in label lines, drawn by COCO's own tools."""
    from pycocotools import mask as coco

    rings = [(np.reshape(line[1:], (-1, 2)) * (width, height)).ravel().tolist() for line in lines]
    return [coco.decode(coco.frPyObjects([ring], height, width))[..., 0] for ring in rings]


def test_masks_are_polygons_in_yolo(tmp_path: Path) -> None:
    """Without keypoints, as a line has a pose or a polygon."""
    folder = exported(annotated(tmp_path, BOX, BOX_LABEL, OBJECT_MASK), tmp_path, "yolo")["yolo"]
    assert not (folder / "object-masks").exists()
    for split in ("train", "test"):
        for image, lines in as_ultralytics(folder, split):
            truth = MARKED[f"{split}/{image.name}"]
            height, width = pixels_of(image.read_bytes()).shape[:2]
            assert [int(line[0]) for line in lines] == list(truth.labels)
            assert np.array_equal(drawn(lines, height, width), truth.masks())


@given(
    st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
        lambda size: st.lists(
            st.booleans(), min_size=math.prod(size), max_size=math.prod(size)
        ).map(lambda flat: np.reshape(flat, size))
    )
)
def test_a_polygon_is_drawn_as_the_mask_that_it_is_of(mask: Any) -> None:
    """With holes, parts, parts in holes, and parts that touch in a corner. No line is a pose."""
    png_of_mask = encoded(Image.fromarray(mask.astype(np.uint8)), "PNG")
    objects = Objects([(0.0, 0.0, 1.0, 1.0)], [0], [png_of_mask])
    sample = ExportSample("", "", [b""], "png", mask.shape, None, objects)
    (numbers,) = outlines(sample)
    line = [0.0, *(round(one, 6) for one in numbers)]
    (found,) = drawn([line], *mask.shape)
    assert np.array_equal(found, mask if mask.any() else np.ones_like(mask))
    assert (len(line) - 5) % 3


def test_the_yaml_of_yolo_may_have_any_class_name_and_a_validation_split(tmp_path: Path) -> None:
    names = ["yes", "a: b", "010", "null", "ü \"'#"]
    objects = "".join(
        f'a.png,{i},{i},{i + 9},{i + 8},"{name.replace(chr(34), 2 * chr(34))}"\n'
        for i, name in enumerate(names)
    )
    files = {
        "train/a.png": png(seed=1),
        "validation/b.png": png(seed=2),
        "boxes.csv": f"image,xmin,ymin,xmax,ymax,class\n{objects}".encode(),
    }
    source = write_folder(tmp_path / "source", files)
    made = build(
        source, tmp_path / "sets", boxes="csv:boxes.csv:image:xmin,ymin,xmax,ymax:class",
        unlisted="background", labels="none", size="none",
    )  # fmt: skip
    done = export_dataset(open_dataset(made.path), "yolo", tmp_path / "out", watcher=Told())
    data = yaml.safe_load((done.path / "data.yaml").read_text())
    assert sorted(data["names"].values()) == sorted(names)
    assert (data["train"], data["val"]) == ("images/train", "images/validation")
    ((_, lines),) = as_ultralytics(done.path, "val")
    assert lines == []
    ((_, lines),) = as_ultralytics(done.path, "train")
    assert len(lines) == len(names)


# --- what all of them do ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ANY)
def test_raw_pixels_become_png(tmp_path: Path, layout: str) -> None:
    source = write_folder(tmp_path / "in", {"a/1.png": png(30, 40, seed=7)})
    made = build(source, tmp_path / "out", format="raw", size="40x30", name="raw", labels="folder")
    done = export_dataset(open_dataset(made.path), layout, tmp_path / "to", watcher=Told())
    wanted = pixels_of(png(30, 40, seed=7))
    stored = b"".join(p.read_bytes() for p in sorted(done.path.rglob("*")) if p.is_file())
    start = stored.index(b"\x89PNG")
    end = stored.index(b"IEND", start) + 8
    assert np.array_equal(pixels_of(stored[start:end]), wanted)


@pytest.mark.parametrize(
    ("kind", "name", "cells", "wanted"),
    [
        ("multilabel", "labels", ("x y", "", "y"), ([0, 1], [], [1])),
        ("regression", "target", ("1.5", "", "-2"), (1.5, None, -2.0)),
        ("text", "text", ("one", "", "t,w\no"), ("one", "", "t,w\no")),
    ],
)
def test_other_targets_are_exported(
    tmp_path: Path, load: Any, kind: str, name: str, cells: tuple[str, ...], wanted: Any
) -> None:
    rows = [(f"{key}.jpg", cell) for key, cell in zip("abc", cells, strict=True)]
    labels = table(("id", "t"), *(row for row in rows if row[1]))
    images = {f"{'train' if cell else 'test'}/{key}": jpeg() for key, cell in rows}
    source = write_folder(tmp_path / "in", {**images, **labels})
    rule = "csv:t.csv:id:t"
    made = build(source, tmp_path / "out", name="t", target=kind, labels=rule, size="8x8")
    exports = exported(made.path, tmp_path)
    expected = dict(zip("abc", wanted, strict=True))
    tars = samples(exports["webdataset"])
    assert {one["json"]["key"][-5]: one["json"][name] for one in tars} == expected
    read = load("parquet", data_files=str(exports["parquet"] / "data/*"))["train"]
    assert {row["key"][-5]: row[name] for row in read} == expected
    texts = {key[-5]: row[name] for key, row in table_of(exports["folder"]).items()}
    assert texts == {
        k: "" if v is None else v if isinstance(v, str) else json.dumps(v)
        for k, v in expected.items()
    }
    assert len(tars) == 3
