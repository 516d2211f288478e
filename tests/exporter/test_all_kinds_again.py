"""Each kind of target, object and mask is exported in each layout, and built again from it.

What the layout cannot give back is named: by the export, and in the note of the next build. Records
for TensorFlow's Object Detection API are built too.
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_masks

from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import CROWD, LABEL, MASK, load_schema
from shardprep.errors import OptionError
from shardprep.exporter.export import LAYOUTS, export_dataset, options_of
from tests.support.annotated import grey_png
from tests.support.builders import Told, build, png, write, write_folder
from tests.support.object_detection import write_records
from tests.support.paths import shared_folder
from tests.writer.records import records

HEIGHT, WIDTH = 48, 64
CORNERS = ",".join(f"image/object/bbox/{one}" for one in ("xmin", "ymin", "xmax", "ymax"))
AS_STORED: dict[str, Any] = {"size": "none", "fit": "auto", "format": "keep"}
KEYS = [f"{split}/{i}.png" for split in ("train", "validation") for i in range(4)]
"""Images of two splits with equal names."""
PICTURES = {key: png(HEIGHT, WIDTH, seed=i) for i, key in enumerate(KEYS)}


def rows(head: str, cells: Callable[[int], str]) -> bytes:
    return "\n".join([head, *(f"{key},{cells(i)}" for i, key in enumerate(KEYS))]).encode()


def mask(i: int) -> bytes:
    values = np.zeros((HEIGHT, WIDTH), np.uint8)
    values[4 : 12 + i, 5:20] = 1
    values[20:30, 10:30] = 2
    return grey_png(values)


PLAIN = ({"id": 1, "name": "cat"}, {"id": 2, "name": "traffic light"})
POSED = (
    {"id": 1, "name": "cat", "keypoints": ["nose", "left ear", "right ear"], "skeleton": [[1, 3]]},
)
"""Categories of COCO: the second of the plain ones has no object in some of the sets."""


def pose(_: int, k: int) -> dict[str, Any]:
    return {"keypoints": [6 + k, 8, 2, 12, 9, 1, 0, 0, 0]}


def outline(i: int, k: int) -> dict[str, Any]:
    """Return a mask with a hole and a second part, and its box."""
    pixels = np.zeros((HEIGHT, WIDTH), np.uint8)
    pixels[3 + k : 18, 4 : 24 + i] = 1
    pixels[6:9, 8:12] = 0
    pixels[20:25, 20 : 30 + i] = 1
    runs = coco_masks.encode(np.asfortranarray(pixels))
    box = coco_masks.toBbox(runs).tolist()
    return {"segmentation": {**runs, "counts": runs["counts"].decode()}, "bbox": box}


def coco(
    number: Callable[[int], int],
    *parts: Callable[[int, int], dict[str, Any]],
    categories: Sequence[dict[str, Any]] = PLAIN,
) -> dict[str, bytes]:
    """Return a document of so many objects of each image, with `parts` of each object."""
    things = []
    for i in range(len(KEYS)):
        for k in range(number(i)):
            one = {
                "image_id": i,
                "category_id": k % len(categories) + 1,
                "bbox": [4 + k, 3, 20, 15],
            }
            for part in parts:
                one |= part(i, k)
            things.append(one)
    size = {"height": HEIGHT, "width": WIDTH}
    images = [{"id": i, "file_name": key, **size} for i, key in enumerate(KEYS)]
    document = {"images": images, "annotations": things, "categories": categories}
    return {"a.json": json.dumps(document).encode()}


ONE, ONE_OR_TWO, NONE_TO_TWO = (lambda _: 1), (lambda i: 1 + i % 2), (lambda i: i % 3)
CLASSES = {"l.csv": rows("file,label", lambda i: ("night", '"day, bright"')[i % 2])}
LABELLED = {"labels": "csv:l.csv:file:label", "classes": ("night", "day, bright", "dusk")}
SEVERAL = {"t.csv": rows("file,x", lambda i: ("a", "a|b c", "b c", "")[i % 4])}
MULTILABEL = {"labels": "csv:t.csv:file:x", "target": "multilabel", "separator": "|"}
COLUMNS = {"l.csv": rows("file,label,age,who", lambda i: f"{'ab'[i % 2]},{i},p{i}")}
POINTS = {
    "t.csv": rows(
        "file,nose_x,nose_y,tail_x,tail_y,age",
        lambda i: f"{4 + i},5,{',' if i % 2 else f'{9 + i},11'},{i}",
    )
}
MASKED = {f"masks/{key}": mask(i) for i, key in enumerate(KEYS)}
OF_MASKS: dict[str, Any] = {
    "masks": "masks/{dir}{stem}.png",
    "mask_values": "0=background,1=cat,2=dog",
}
OUTLINED = {"boxes": "coco", "masks": "coco", "instances": True}

KINDS: dict[str, tuple[Mapping[str, bytes], dict[str, Any]]] = {
    "class": (CLASSES, LABELLED),
    "classes": (
        {"t.csv": rows("file,x,y", lambda i: f"{'ab'[i % 2]},{'pqr'[i % 3]}")},
        {"labels": "csv:t.csv:file:x,y", "target": "classes"},
    ),
    "multilabel": (SEVERAL, MULTILABEL),
    "regression": (
        {"t.csv": rows("file,x", lambda i: str(i * 1.5))},
        {"labels": "csv:t.csv:file:x", "target": "regression"},
    ),
    "vector": (
        {"t.csv": rows("file,x,y", lambda i: f"{i * 1.5},{'' if i % 3 else i}")},
        {"labels": "csv:t.csv:file:x,y", "target": "vector"},
    ),
    "classes, numbers": (
        {"t.csv": rows("file,x,y", lambda i: f"{'ab'[i % 2]},{i * 1.5}")},
        {"labels": "csv:t.csv:file:x,y"},
    ),
    "soft": (
        {"t.csv": rows("file,x,y", lambda i: f"{i / 8},{1 - i / 8}")},
        {"labels": "csv:t.csv:file:x,y", "target": "soft"},
    ),
    "text": (
        {"t.csv": rows("file,x", lambda i: f"a text {i}")},
        {"labels": "csv:t.csv:file:x", "target": "text"},
    ),
    "texts": (
        {"t.csv": rows("file,x", lambda i: f"one {i}\n{KEYS[i]},another")},
        {"labels": "csv:t.csv:file:x", "target": "texts"},
    ),
    "columns": (COLUMNS, {"labels": "csv:l.csv:file:label", "columns": ("age", "who")}),
    "columns alone": (COLUMNS, {"labels": "none", "columns": ("age",), "join": ("l.csv",)}),
    "rows": (
        {"t.csv": rows("file,x,y", lambda i: f"{i},n{i}\n{KEYS[i]},{i + 1},n")},
        {"labels": "none", "rows": "csv:t.csv:file:x,y"},
    ),
    "formulas": (
        {"l.csv": rows("file,label", lambda i: ('"=a{b}"', "c/d", "+e")[i % 3])},
        {"labels": "csv:l.csv:file:label"},
    ),
    "points": (POINTS, {"points": "csv:t.csv:file"}),
    "points, classes": (POINTS | CLASSES, {"points": "csv:t.csv:file", **LABELLED}),
    "points, columns": (
        POINTS,
        {"points": "csv:t.csv:file", "labels": "none", "columns": ("age",), "join": ("t.csv",)},
    ),
    "masks": (MASKED, OF_MASKS),
    "masks, classes": (MASKED | CLASSES, OF_MASKS | LABELLED),
    "masks, points": (MASKED | POINTS, OF_MASKS | {"points": "csv:t.csv:file"}),
    "boxes": (coco(NONE_TO_TWO), {"boxes": "coco"}),
    "one box": (coco(ONE), {"boxes": "coco"}),
    "boxes, masks": (MASKED | coco(NONE_TO_TWO), {"boxes": "coco", **OF_MASKS}),
    "boxes, classes": (CLASSES | coco(ONE), {"boxes": "coco", **LABELLED}),
    "boxes, multilabel": (SEVERAL | coco(ONE), {"boxes": "coco", **MULTILABEL}),
    "boxes, points": (POINTS | coco(ONE), {"boxes": "coco", "points": "csv:t.csv:file"}),
    "boxes, columns": (
        COLUMNS | coco(ONE),
        {"boxes": "coco", "labels": "csv:l.csv:file:label", "columns": ("age", "who")},
    ),
    "boxes, crowds": (coco(ONE_OR_TWO, lambda _, k: {"iscrowd": k}), {"boxes": "coco"}),
    "instances": (coco(NONE_TO_TWO, outline), OUTLINED),
    "instances, classes": (CLASSES | coco(ONE_OR_TWO, outline), OUTLINED | LABELLED),
    "keypoints": (coco(ONE_OR_TWO, pose, categories=POSED), {"boxes": "coco", "points": "coco"}),
    "keypoints, instances": (
        coco(ONE_OR_TWO, pose, outline, categories=POSED),
        OUTLINED | {"points": "coco"},
    ),
}
OF_BOXES = ("boxes", "one box", "instances", "keypoints")
WITHOUT_OPTIONS: dict[str, dict[str, str]] = {
    "class": {},
    "boxes": {},
    "one box": {},
    "boxes, crowds": {},
    "boxes, classes": {
        "labels": "column:image/class/text",
        "boxes": f"column:{CORNERS}:image/object/class/text",
    },
}
"""Kinds whose exports are also built without an option, as `init` proposes → options that records
for object detection need: only an export of ours says that labels and boxes are wanted."""
LOST: dict[str, dict[str, set[str]]] = {
    layout: {"rows": {"rows/x", "rows/y"}} for layout in LAYOUTS
}
LOST["yolo"] = {"boxes, crowds": {"objects"}, "keypoints, instances": {"objects/mask"}}
"""Layout → kind → features that only the export has; docs/export.md names them."""


def of_kind(factory: pytest.TempPathFactory, kind: str) -> Path:
    """Return a read-only dataset of a kind, built once for all layouts."""
    members, options = KINDS[kind]

    def make(folder: Path) -> None:
        source = write_folder(folder / "pets", PICTURES | dict(members))
        build(source, folder / "out", size="none", format="keep", **options)

    return shared_folder(factory, f"kind-{kind}", make) / "out" / "pets" / "1.0.0"


def contents(dataset: Path, lost: set[str]) -> dict[bytes, dict[str, list[Any]]]:
    """Return the split and the features of each image by its bytes, with names for classes."""
    opened = open_dataset(dataset)
    features = opened.schema.features
    classes = {name: one.labels for name, one in features.items()} | {LABEL: opened.schema.labels}
    splits = {row["key"]: row["split"] for row in opened.item_rows(["key", "split"]).to_pylist()}
    found: dict[bytes, dict[str, list[Any]]] = {}
    for key, values in records(dataset).items():
        own = found[bytes(values["image"][0])] = {"split": [splits[key]]}
        for name, several in values.items():
            is_lost = any(name == one or name.startswith(f"{one}/") for one in lost)
            if name.startswith("image") or name in ("key", "filename") or is_lost:
                continue
            names = classes.get(name, ())
            plain = (bytes(one) if isinstance(one, memoryview) else one for one in several)
            rounded = (f"{one + 0.0002:.3f}" if isinstance(one, float) else one for one in plain)
            own[name] = [
                names[one] if names and isinstance(one, int) and one >= 0 else one
                for one in rounded
            ]
    return found


def names_in(dataset: Path, lost: set[str]) -> dict[str, Any]:
    """Return the names of classes, numbers and keypoints, with their edges and pairs."""
    schema = open_dataset(dataset).schema
    found = {
        name: (one.labels, one.points, one.edges, one.mirrored, one.ignored, one.soft)
        for name, one in schema.features.items()
        if not any(name == lack or name.startswith(f"{lack}/") for lack in lost)
    }
    return {**found, "": schema.labels}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_that_a_layout_expresses_is_built_again(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, layout: str, kind: str
) -> None:
    if layout in ("coco", "yolo") and not kind.startswith(OF_BOXES):
        pytest.skip("a layout of boxes")
    dataset, watcher = of_kind(tmp_path_factory, kind), Told()
    path = export_dataset(open_dataset(dataset), layout, tmp_path / layout, watcher=watcher).path
    survey = survey_source(path, tmp_path, lambda _: None)
    recipe = tomllib.loads(recipe_text(survey))
    made = build(Path(recipe.pop("source")), tmp_path / "again", **recipe).path
    lost = LOST.get(layout, {}).get(kind, set())
    assert contents(made, lost) == contents(dataset, lost)
    if kind in WITHOUT_OPTIONS:
        plain = build(path, tmp_path / "plain", **AS_STORED).path
        assert contents(plain, lost) == contents(made, lost)
    assert names_in(made, lost) == names_in(dataset, lost)
    said = [line for line in survey.findings if "export.json says" in line]
    assert [name for name in lost if not any(name in line for line in said)] == []
    assert any("a dataset built from this export lacks" in line for line in watcher.lines) == bool(
        lost
    )


@pytest.mark.parametrize("kind", WITHOUT_OPTIONS)
def test_records_for_object_detection_are_built(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, kind: str
) -> None:
    """TensorFlow writes the records, with the keys of its Object Detection API."""
    dataset, options = of_kind(tmp_path_factory, kind), AS_STORED | WITHOUT_OPTIONS[kind]
    path = write_records(dataset, tmp_path / "records")
    recipe = tomllib.loads(recipe_text(survey_source(path, tmp_path, lambda _: None)))
    proposed = build(Path(recipe.pop("source")), tmp_path / "proposed", **(recipe | options)).path
    plain = build(path, tmp_path / "plain", **options).path
    lost = set() if kind == "boxes, crowds" else {CROWD}  # these records always have crowds
    assert contents(plain, lost) == contents(proposed, lost) == contents(dataset, lost)


def test_columns_of_an_export_are_not_mixed_if_the_user_says_what_its_images_get(
    tmp_path: Path,
) -> None:
    """Its masks would be images of training."""
    source = write_folder(tmp_path / "pets", PICTURES | MASKED)
    dataset = open_dataset(build(source, tmp_path / "out", size="none", **OF_MASKS).path)
    path = export_dataset(dataset, "parquet", tmp_path / "exported", watcher=Told()).path
    with pytest.raises(OptionError, match="several columns may have the images") as caught:
        build(path, tmp_path / "again", masks="none")
    assert "--images '*.parquet:image'" in str(caught.value)
    made = build(path, tmp_path / "again", masks="none", labels="none", images="*.parquet:image")
    assert made.manifest.totals.num_written == len(KEYS)


def test_values_of_masks_of_16_bits_are_stated_with_the_ignored_one() -> None:
    labels = tuple(f"c{i}" for i in range(300))
    wide = load_schema("segmentation").filled(None, "png", (), {}, {MASK: labels})
    values = options_of("folder", wide)["mask_values"].split(",")
    assert values[255] == "255=c255"
    assert values[-1] == "65535=ignore"


@pytest.mark.parametrize(
    "stated",
    [
        {"labels": "csv:/etc/passwd:1:2"},
        {"labels": "csv:none.csv:a:b"},
        {"labels": "odd"},
        {"labels": 7},
        {"classes": [1, {}]},
        {"masks": ["{stem}"]},
        ["labels"],
        "labels",
        7,
    ],
    ids=str,
)
def test_what_a_stranger_states_in_export_json_is_not_used(tmp_path: Path, stated: Any) -> None:
    facts = {"shardprep_export": 1, "layout": "folder", "build": stated, "not_built_again": 7}
    members = {f"{name}/{i}.png": png(8, 8, seed=i) for name in ("cat", "dog") for i in range(3)}
    source = write_folder(tmp_path / "pets", members)
    write(source / "export.json", json.dumps(facts).encode())
    survey = survey_source(source, tmp_path / "work", lambda _: None)
    assert survey.classes == {"cat": 3, "dog": 3}


def test_options_of_the_user_win_and_others_of_a_stranger_are_not_used(tmp_path: Path) -> None:
    stated = {"labels": "folder", "exclude_list": "/etc/passwd", "classes": ["cat", "dog"]}
    facts = {"shardprep_export": 1, "layout": "folder", "build": stated}
    members = {f"{name}/{i}.png": png(8, 8, seed=i) for name in ("cat", "dog") for i in range(3)}
    source = write_folder(tmp_path / "pets", members)
    write(source / "export.json", json.dumps(facts).encode())
    made = build(source, tmp_path / "out", size="none", format="keep", classes=("dog", "cat"))
    assert made.manifest.labels.names == ("dog", "cat")
    assert made.manifest.totals.num_written == 6
