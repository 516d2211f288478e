"""JSON documents as tables: an object for each key, lists of boxes, lists of names by split."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.tables.json_table import json_rows
from shardprep.errors import QuestionError, SourceError
from tests.catalog.builders import catalog, found, images, objects_of
from tests.support.builders import write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture

NAMES = [f"{i}.jpg" for i in range(100, 112)]


def pictures(*keys: str) -> dict[str, bytes]:
    return {key: picture("scene", key, key) for key in keys}


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


# An object for each key


def test_an_object_for_each_key_is_a_table_with_the_column_key(tmp_path: Path) -> None:
    records = {"16281": {"file": "a/0.jpg", "kind": "Cell"}, "7": {"file": "a/1.jpg", "kind": "No"}}
    members = images("a/0.jpg", "a/1.jpg") | {"t.json": dumped(records)}
    made = catalog(tmp_path / "1", members, "csv:t.json:file:kind")
    assert [label for _, label in found(made).values()] == ["Cell", "No"]
    by_key = {f"{i}.jpg": {"kind": kind} for i, kind in enumerate(("Cell", "No"))}
    made = catalog(tmp_path / "2", members | {"t.json": dumped(by_key)}, "csv:t.json:key:kind")
    assert [label for _, label in found(made).values()] == ["Cell", "No"]


def test_a_field_called_key_stays_that_field() -> None:
    rows = json_rows(dumped({"a": {"key": "c", "x": 1}, "b": {"x": 2}}), "t.json")
    assert rows == [{"key": "c", "x": "1"}, {"x": "2"}]


@pytest.mark.parametrize(
    "document",
    [
        {"model": {"rate": 0.1}, "data": {"path": "a"}},
        {"model": {"rate": 0.1}, "epochs": 7},
        {"a": {}, "b": {}},
    ],
)
def test_settings_are_not_a_table(document: Any) -> None:
    with pytest.raises(SourceError) as caught:
        json_rows(dumped(document), "t.json")
    assert "neither a list of JSON objects nor an object of objects" in caught.value.what
    assert '{"a": {"label": "cat"}, …}' in caught.value.hint


def test_an_error_about_a_column_names_the_columns_of_all_inner_lists() -> None:
    one = {"id": "a", "tags": [{"n": "x"}], "boxes": [{"x": 1}, {"x": 2}]}
    with pytest.raises(SourceError) as caught:
        json_rows(dumped({"items": [one]}), "t.json", ("id", "label"))
    assert caught.value.what == "has no column 'id'"
    assert caught.value.hint.endswith("use one of items.id, items.tags.n, items.boxes.x")


def test_labels_by_key_are_used_without_flags(tmp_path: Path) -> None:
    kinds = {name: {"kind": ("cat", "dog")[i % 2], "n": 1} for i, name in enumerate(NAMES)}
    source = write_folder(tmp_path / "s", pictures(*NAMES) | {"t.json": dumped(kinds)})
    facts = outcome(source, {}).facts
    assert facts["100.jpg"] == {"split": "train", "label": "cat"}
    assert facts["101.jpg"] == {"split": "train", "label": "dog"}


def test_via_is_read_as_via_and_not_as_a_table(tmp_path: Path) -> None:
    shape = {"name": "rect", "x": 1, "y": 2, "width": 8, "height": 8}
    region = {"shape_attributes": shape, "region_attributes": {"type": "cat"}}
    via = {
        f"{name}77": {"filename": name, "size": 77, "regions": [region], "file_attributes": {}}
        for name in NAMES
    }
    source = write_folder(tmp_path / "s", pictures(*NAMES) | {"via.json": dumped(via)})
    assert outcome(source, {}).facts["100.jpg"]["boxes"] == "cat"


# Lists of boxes


def hands(names: list[str], **more: Any) -> dict[str, Any]:
    return {
        name.removesuffix(".jpg"): {
            "bboxes": [[0.5, 0.4, 0.2, 0.3]] * (1 + i % 2),
            "labels": ["call", "no_gesture"][: 1 + i % 2],
            **more,
        }
        for i, name in enumerate(names)
    }


def test_lists_of_boxes_and_labels_of_several_documents_are_objects(tmp_path: Path) -> None:
    members = pictures(*NAMES)
    members |= {"a.json": dumped(hands(NAMES[:6])), "b.json": dumped(hands(NAMES[6:]))}
    boxes = "csv:a.json,b.json:key:xywh(bboxes):labels"
    made = catalog(tmp_path / "flags", members, "none", boxes=boxes)
    assert made.annotations is not None
    assert made.annotations.names == ("call", "no_gesture")
    assert [len(objects_of(item).labels) for item in made.items] == [1, 2] * 6
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path / "asked", members)
    flags = [one.flags for one in caught.value.choices]
    assert "--boxes csv:a.json,b.json:key:bboxes:labels" in flags
    assert "--labels none" in flags


def test_boxes_whose_form_the_numbers_do_not_tell_are_proposed_in_both(tmp_path: Path) -> None:
    unclear = {name: {"bboxes": [[0.1, 0.1, 0.4, 0.4]]} for name in NAMES}
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, pictures(*NAMES) | {"t.json": dumped(unclear)})
    flags = [one.flags for one in caught.value.choices]
    assert flags[:2] == [
        "--boxes 'csv:t.json:key:xywh(bboxes)'", "--boxes 'csv:t.json:key:xyxy(bboxes)'",
    ]  # fmt: skip


def test_one_box_of_a_row_is_a_list(tmp_path: Path) -> None:
    rows = [{"image": name, "bbox": [2, 3, 9, 8], "label": "cat"} for name in NAMES]
    boxes = "csv:t.json:image:xywh(bbox):label"
    members = pictures(*NAMES) | {"t.json": dumped(rows)}
    made = catalog(tmp_path, members, "none", boxes=boxes)
    assert {len(objects_of(item).labels) for item in made.items} == {1}


def points_of(made: Catalog) -> tuple[str, ...]:
    assert made.annotations is not None
    assert made.annotations.spec.points is not None
    return made.annotations.spec.points.names


def test_points_are_rows_of_a_document_by_key(tmp_path: Path) -> None:
    document = {name: {"H": 9, "points": [[1, 2], [3, 4.5]]} for name in NAMES}
    members = pictures(*NAMES) | {"t.json": dumped(document)}
    made = catalog(tmp_path, members, "none", points="csv:t.json:key:points.0,points.1")
    assert {item.annotation is not None for item in made.items} == {True}
    assert points_of(made) == ("points", "points 2")


def test_each_keypoint_may_be_a_list_of_two_numbers(tmp_path: Path) -> None:
    rows = [{"image": name, "at": {"nose": [1, 2], "ear": [3, 4.5]}, "x": []} for name in NAMES]
    members = pictures(*NAMES) | {"t.json": dumped(rows)}
    points = "csv:t.json:image:at.nose.0,at.nose.1,at.ear.0,at.ear.1"
    assert points_of(catalog(tmp_path, members, "none", points=points)) == ("at.nose", "at.ear")


# Lists of names by split


def by_split(**more: list[str]) -> dict[str, bytes]:
    lists = {"test": NAMES[:2], "test_easy": NAMES[:1], "train": NAMES[4:], "val": NAMES[2:4]}
    return pictures(*NAMES) | {"splits.json": dumped(lists | more)}


def test_each_split_has_its_own_list_of_a_document(tmp_path: Path) -> None:
    rule = "list:train=splits.json,val=splits.json,test=splits.json"
    made = catalog(tmp_path / "1", by_split(), "none", split=rule)
    assert [item.split for item in made.items].count("train") == 8
    assert {item.key: item.split for item in made.items}["102.jpg"] == "validation"
    made = catalog(tmp_path / "2", by_split(), "none", split="list:train=*,test=splits.json")
    assert [item.split for item in made.items].count("test") == 2


def test_a_document_without_the_list_of_a_split_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"splits\.json: has no list for held; use its lists"):
        catalog(tmp_path / "1", by_split(), "none", split="list:held=splits.json")
    with pytest.raises(SourceError, match=r"splits\.json: has a list for each split"):
        catalog(tmp_path / "2", by_split(), "none", exclude_list="splits.json")


def test_a_text_is_still_the_list_of_one_split(tmp_path: Path) -> None:
    members = pictures(*NAMES) | {"a.txt": b"100.jpg\n"}
    with pytest.raises(Exception, match=r"'a\.txt' is both train and test"):
        catalog(tmp_path, members, "none", split="list:train=a.txt,test=a.txt")


def test_a_list_of_names_is_a_list(tmp_path: Path) -> None:
    members = pictures(*NAMES) | {"test.json": dumped(NAMES[:3])}
    made = catalog(tmp_path, members, "none", split="list:test=test.json,train=*")
    assert [item.split for item in made.items].count("test") == 3


def test_lists_by_split_are_used_without_flags(tmp_path: Path) -> None:
    found = outcome(write_folder(tmp_path / "s", by_split()), {})
    assert [fact["split"] for fact in found.facts.values()].count("validation") == 2


def test_lists_of_other_names_are_not_splits(tmp_path: Path) -> None:
    members = pictures(*NAMES) | {"splits.json": dumped({"train": ["cat"], "val": ["dog"]})}
    assert {item.split for item in catalog(tmp_path, members, "none").items} == {"train"}


# Errors


def test_an_error_names_the_columns_of_a_nested_list(tmp_path: Path) -> None:
    nested = {"info": {"n": 1}, "questions": [{"image_filename": "100.jpg", "answer": "yes"}]}
    members = pictures(*NAMES) | {"q.json": dumped(nested)}
    with pytest.raises(SourceError, match=r"is questions\.image_filename meant\?"):
        catalog(tmp_path / "1", members, "csv:q.json:image_filename:answer")
    made = catalog(tmp_path / "2", members, "csv:q.json:questions.image_filename:questions.answer")
    assert found(made)["100.jpg"].label == "yes"
    deep = pictures(*NAMES) | {"q.json": dumped([{"image": {"file": "100.jpg", "kind": "a"}}])}
    with pytest.raises(SourceError, match=r"use one of image\.file, image\.kind"):
        catalog(tmp_path / "3", deep, "csv:q.json:file:kind")


@pytest.mark.parametrize(
    "cell", ["\"['100.jpg', '101.jpg']\"", '"[""100.jpg""]"', "100.jpg;101.jpg"]
)
def test_a_cell_with_a_list_of_images_is_said(tmp_path: Path, cell: str) -> None:
    members = pictures(*NAMES) | {"t.csv": f"image,view\n{cell},AP\n".encode()}
    with pytest.raises(SourceError, match=r"column 'image' has a list of images in a cell: .*100"):
        catalog(tmp_path, members, "csv:t.csv:image:view")
