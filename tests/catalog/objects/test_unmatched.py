"""Annotations without an image, images without an annotation: counted, and too many an error.

Every format has the same twelve objects, two of each of six images.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shardprep import inspect, repack, report
from shardprep.catalog.catalog import Catalog
from shardprep.dataset.manifest import Unmatched
from shardprep.errors import BuildError, SourceError
from tests.catalog.builders import catalog, facts_of, reasons
from tests.catalog.objects.written import WRITERS, coco_document, yolo_line
from tests.support.builders import build, png, write_folder

NUM_ALL, NUM_THERE = 6, 4
BOXES = ((2, 3, 12, 9), (20, 5, 30, 25))
"""Two corners of each object, x and y, in images of 40 x 30 pixels."""
SETS = {str(i): [("cat", box) for box in BOXES] for i in range(NUM_ALL)}


def coco(outlined: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    """Return a document; `outlined` are the objects of each image that have an outline."""
    document = coco_document(SETS, ["cat"])
    for at, thing in enumerate(document["annotations"]):
        x, y, width, height = thing["bbox"]
        ring = [x, y, x + width, y, x + width, y + height, x, y + height]
        thing |= {"iscrowd": 0, "segmentation": [ring] if at % 2 in outlined else []}
    return document


RUNS = [f"{i}.png,{x * 30 + y + 1} {w - y}" for i, rows in SETS.items() for _, (x, y, _, w) in rows]
FORMATS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    option: ({"boxes": option}, write(SETS, ["cat"], None)) for option, write in WRITERS.items()
}
FORMATS["outlines of coco"] = {"masks": "coco"}, {"a.json": json.dumps(coco())}
FORMATS["run lengths"] = {"masks": "rle:t.csv:id:runs"}, {"t.csv": "\n".join(["id,runs", *RUNS])}
"""Name → options, and the documents of all six images."""


def images(number: int = NUM_THERE) -> dict[str, bytes]:
    return {f"images/{i}.png": png(30, 40, seed=i) for i in range(number)}


def made(folder: Path, name: str, number: int = NUM_THERE, **keys: Any) -> Catalog:
    options, documents = FORMATS[name]
    members = {key: text.encode() for key, text in documents.items()}
    return catalog(folder, {**images(number), **members}, **{**options, **keys})


def num_objects(found: Catalog) -> int:
    """Return the number of objects of images, and of those that are dropped or of no image."""
    facts = facts_of(found)
    unmatched = facts.unmatched.objects if facts.unmatched else {}
    dropped = sum(facts.dropped.values()) + sum(unmatched.values())
    return sum(facts.num_objects.values()) + dropped


@pytest.mark.parametrize("name", FORMATS)
def test_objects_of_images_that_are_missing_are_counted_and_too_many_an_error(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(SourceError, match=r"4 of 12 objects are invalid \(4 no image\)"):
        made(tmp_path, name)
    found = made(tmp_path, name, max_dropped=0.34)
    assert facts_of(found).unmatched == Unmatched(objects={"no image": 4}, num_unlisted=0)
    assert num_objects(found) == 2 * NUM_ALL
    assert len(facts_of(found).without_image) == NUM_ALL - NUM_THERE


@pytest.mark.parametrize("name", FORMATS)
def test_objects_of_excluded_images_are_not_faults(tmp_path: Path, name: str) -> None:
    found = made(tmp_path, name, NUM_ALL, exclude=("images/[0-2].png",))
    assert facts_of(found).unmatched == Unmatched(objects={"image left out": 6}, num_unlisted=0)
    assert num_objects(found) == 2 * NUM_ALL
    assert made(tmp_path / "whole", name, NUM_ALL).annotations.unmatched is None  # type: ignore[union-attr]


def test_ids_as_text_against_numbers_are_an_error_and_not_empty_images(tmp_path: Path) -> None:
    document = coco()
    for entry in document["images"]:
        entry["id"] = int(entry["id"])
    members = {**images(NUM_ALL), "a.json": json.dumps(document).encode()}
    with pytest.raises(
        SourceError, match=r"12 of 12 objects are invalid .* there is no image for image_id '0'"
    ):
        catalog(tmp_path, members, boxes="coco")
    found = catalog(tmp_path, members, boxes="coco", max_dropped=1)
    assert num_objects(found) == 2 * NUM_ALL


def test_objects_of_a_document_of_other_images_are_counted_and_not_faults(tmp_path: Path) -> None:
    other = coco()
    for entry in other["images"]:
        entry["file_name"] = f"val_{entry['file_name']}"
    texts = {"instances_train.json": json.dumps(coco()), "instances_val.json": json.dumps(other)}
    members = images(NUM_ALL) | {key: text.encode() for key, text in texts.items()}
    found = catalog(tmp_path, members, boxes="coco")
    unmatched = Unmatched(objects={"document of other images": 12}, num_unlisted=0)
    assert facts_of(found).unmatched == unmatched


# Boxes without an outline


@pytest.mark.parametrize("more", [{}, {"boxes": "coco"}, {"instances": True}])
@pytest.mark.parametrize(("outlined", "num_lacking"), [((), 12), ((0,), 6)])
def test_objects_without_an_outline_are_dropped_if_masks_are_stored(
    tmp_path: Path, more: dict[str, Any], outlined: tuple[int, ...], num_lacking: int
) -> None:
    members = {**images(NUM_ALL), "a.json": json.dumps(coco(outlined)).encode()}
    keys: dict[str, Any] = {"masks": "coco", **more}
    with pytest.raises(SourceError, match=f"{num_lacking} of 12 objects are invalid .*no outline"):
        catalog(tmp_path, members, **keys)
    source = write_folder(tmp_path / "set", members)
    result = build(source, tmp_path / "out", **keys, max_dropped=1)
    counts = result.manifest.annotations["train"]
    assert counts.dropped == {"no outline": num_lacking}
    assert counts.objects is None or counts.objects.num_objects == 12 - num_lacking
    assert result.manifest.totals.num_rejected == 0


@pytest.mark.parametrize("form", ["coco", "yolo"])
def test_boxes_without_outlines_are_stored_if_masks_are_not(tmp_path: Path, form: str) -> None:
    documents = FORMATS["yolo"][1] if form == "yolo" else {"a.json": json.dumps(coco(()))}
    members = images(NUM_ALL) | {key: text.encode() for key, text in documents.items()}
    found = catalog(tmp_path, members, boxes=form)
    assert sum(facts_of(found).num_objects.values()) == 2 * NUM_ALL
    assert facts_of(found).dropped == {}


# Images without an annotation


def test_images_without_a_file_of_yolo_are_counted_apart_from_empty_files(tmp_path: Path) -> None:
    texts = {f"labels/{i}.txt": yolo_line(0, BOXES[0]) if i else "" for i in range(9)}
    texts["data.yaml"] = "names: [cat]"
    members = images(10) | {key: text.encode() for key, text in texts.items()}
    with pytest.raises(
        SourceError, match=r"1 of 10 images have no annotation, more than --max-dropped 0\.05"
    ):
        catalog(tmp_path, members, boxes="yolo")
    found = catalog(tmp_path, members, boxes="yolo", unlisted="background")
    assert facts_of(found).unmatched == Unmatched(objects={}, num_unlisted=1)
    assert facts_of(found).num_background == 2
    again = catalog(tmp_path, members, boxes="yolo", max_dropped=0.1)
    assert again.annotations == found.annotations
    without = catalog(tmp_path, members, boxes="yolo", unlisted="skip")
    assert facts_of(without).unmatched is None
    assert [one.reason for one in without.skipped if one.key == "images/9.png"] == ["no annotation"]


# From the manifest on


def test_manifest_inspect_report_and_repack_say_what_is_unmatched(tmp_path: Path) -> None:
    _, documents = FORMATS["yolo"]
    texts = {key: text for key, text in documents.items() if key != "labels/0.txt"}
    members = images() | {key: text.encode() for key, text in texts.items()}
    keys: dict[str, Any] = {"boxes": "yolo", "unlisted": "background"}
    source = write_folder(tmp_path / "set", members)
    result = build(source, tmp_path / "out", **keys, max_dropped=0.5)
    wanted = Unmatched(objects={"no image": 4}, num_unlisted=1)
    assert result.manifest.unmatched == wanted
    assert inspect(result.path).manifest.unmatched == wanted
    findings = {one.name: one for one in report(result.path, no_pixels=True).findings}
    found = findings["unmatched-objects"]
    assert (found.num_found, found.num_looked_at, found.severity) == (4, 10, "warning")
    assert "4 annotated objects belong to no image: 4 for no image" in found.what
    assert findings["unlisted-images"].num_found == 1
    again = repack(result.path, out=tmp_path / "again").manifest
    assert again.unmatched == wanted


def test_unmatched_objects_count_with_those_that_workers_drop(tmp_path: Path) -> None:
    _, documents = FORMATS["yolo"]
    documents = {**documents, "labels/0.txt": "\n".join([yolo_line(0, BOXES[0])] * 2)}
    members = images() | {key: text.encode() for key, text in documents.items()}
    source = write_folder(tmp_path / "set", members)
    reasons = r"objects are invalid \(41.7%\), above the limit of 40.0%: 4 no image, 1 repeated"
    with pytest.raises(BuildError, match=reasons):
        build(source, tmp_path / "out", boxes="yolo", max_dropped=0.4)


def test_a_list_of_validation_alone_leaves_no_image_out(tmp_path: Path) -> None:
    members = {f"images/{i}.png": png(32, 32) for i in range(4)}
    members |= {f"labels/{i}.txt": b"0 .5 .5 .5 .5" for i in range(4)}
    members |= {"data.yaml": b"names: [cat]\nval: val.txt", "val.txt": b"images/2.png"}
    made = catalog(tmp_path, members, boxes="yolo")
    assert [item.split for item in made.items].count("train") == 3
    assert not any(reason == "in no split" for reason in reasons(made).values())


def test_images_in_no_list_of_a_split_need_no_annotation_and_count_no_objects(
    tmp_path: Path,
) -> None:
    members = {f"images/{i}.png": png(32, 32) for i in range(6)}
    members |= {f"labels/{i}.txt": b"0 .5 .5 .5 .5" for i in range(4)}
    members["data.yaml"] = b"names: [cat]\ntrain: train.txt\nval: val.txt"
    members |= {"train.txt": b"images/0.png\nimages/1.png", "val.txt": b"images/2.png"}
    made = catalog(tmp_path, members, boxes="yolo")
    assert [item.split for item in made.items] == ["train", "train", "validation"]
    lost = {key for key, reason in reasons(made).items() if reason == "in no split"}
    assert lost == {f"images/{i}.png" for i in (3, 4, 5)}
    facts = facts_of(made)
    assert (facts.num_objects, facts.unmatched, facts.num_background) == ({"cat": 3}, None, 0)
