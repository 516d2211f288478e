"""Documents of objects come before names of files, and beside folders of classes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture

BOX = "<bndbox><xmin>4</xmin><ymin>3</ymin><xmax>25</xmax><ymax>19</ymax></bndbox>"


def voc(name: str, label: str) -> bytes:
    objects = f"<object><name>{label}</name>{BOX}</object>"
    return f"<annotation><filename>{name}</filename>{objects}</annotation>".encode()


def labelme(name: str, **more: object) -> bytes:
    return json.dumps({"version": "5", "imagePath": f"{name}.jpg", "shapes": [], **more}).encode()


def images(*keys: str) -> dict[str, bytes]:
    return {key: picture("scene", key, key) for key in keys}


def stored(folder: Path, members: dict[str, bytes]) -> dict[str, dict[str, str]]:
    found = outcome(write_folder(folder / "source", members), {})
    assert not found.error
    return {key: dict(fact) for key, fact in found.facts.items()}


def asked(folder: Path, members: dict[str, bytes]) -> str:
    found = outcome(write_folder(folder / "source", members), {})
    assert not found.facts
    return found.error


FRUIT = [f"train/{name}_{i}" for name in ("apple", "pear") for i in range(4)]


@pytest.mark.parametrize(
    ("keys", "document", "label"),
    [
        (FRUIT, "train/{stem}.xml", "fruit"),
        (["stage_1_images/1", "stage_1_images/2", "stage_2_images/3", "stage_2_images/4"],
         "{folder}/{stem}.xml", "face"),
        (["png/images/train/0", "png/images/train/1", "png/images/val/0", "png/images/val/1"],
         "png/annotations/{folder}/{stem}.xml", "boat"),
        (["crack/crack0", "crack/crack1", "hole/hole0", "hole/hole1"], "notes/{stem}.xml",
         "{folder}"),
    ],
    ids=["starts of file names", "folders of splits", "a folder named for pictures",
         "folders that repeat the classes of objects"],
)  # fmt: skip
def test_boxes_come_before_names_that_are_no_other_classes(
    tmp_path: Path, keys: list[str], document: str, label: str
) -> None:
    members, wanted = images(*(f"{key}.jpg" for key in keys)), dict[str, dict[str, str]]()
    for key in keys:
        folder, stem = key.split("/")[-2:]
        own = label.format(folder=folder)
        members[document.format(folder=folder, stem=stem)] = voc(f"{stem}.jpg", own)
        split = "validation" if folder == "val" else "train"
        wanted[f"{key}.jpg"] = {"split": split, "boxes": own}
    assert stored(tmp_path, members) == wanted


def test_lists_of_the_starts_of_file_names_make_these_a_choice_beside_boxes(tmp_path: Path) -> None:
    members = images(*(f"{key}.jpg" for key in FRUIT))
    members |= {f"{key}.xml": voc(f"{key[6:]}.jpg", "fruit") for key in FRUIT}
    members |= {f"lists/{name}_all.txt": f"{name}_0\n".encode() for name in ("apple", "pear")}
    error = asked(tmp_path / "other", members)
    assert "--boxes voc (" in error
    assert "--labels prefix (" in error
    own = {f"{key}.xml": voc(f"{key[6:]}.jpg", key[6:-2]) for key in FRUIT}
    assert stored(tmp_path / "same", members | own)["train/pear_1.jpg"]["boxes"] == "pear"


def test_names_of_files_label_images_without_documents(tmp_path: Path) -> None:
    members = images(*(f"{key}.jpg" for key in FRUIT)) | {"notes.json": b"{}", "a.xml": b"<a/>"}
    assert {fact["label"] for fact in stored(tmp_path, members).values()} == {"apple", "pear"}


def test_images_in_two_folders_that_a_document_fits_are_asked_for(tmp_path: Path) -> None:
    keys = [f"{kind}/train/{i}.jpg" for kind in ("visible", "infrared") for i in range(6)]
    members = images(*keys) | {f"notes/{i}.xml": voc(f"{i}.jpg", "person") for i in range(6)}
    error = asked(tmp_path / "1", members)
    assert "--root infrared --boxes voc (" in error
    assert "--root visible --boxes voc (" in error
    for i in range(6):  # a path says which
        members[f"notes/{i}.xml"] = voc(f"visible/train/{i}.jpg", "person")
    found = stored(tmp_path / "2", members)
    assert {key for key, fact in found.items() if "boxes" in fact} == {*keys[:6]}


BREEDS = [f"{name}/{name[:2]}{i}" for name in ("n01-beagle", "n02-pug") for i in range(4)]


@pytest.mark.parametrize("is_same", [True, False])
def test_class_folders_with_documents_of_objects_are_asked_about(
    tmp_path: Path, *, is_same: bool
) -> None:
    members = images(*(f"images/{key}.jpg" for key in BREEDS))
    for key in BREEDS:
        name = key.partition("/")[0][4:] if is_same else "dog"
        members[f"boxes/{key}.xml"] = voc(f"{key.rpartition('/')[2]}.jpg", name)
    error = asked(tmp_path, members)
    assert "--boxes voc" in error
    assert "--labels folder" in error
    assert ("name the classes of the objects" in error) == is_same


def test_drawn_outlines_are_stored_with_their_boxes(tmp_path: Path) -> None:
    shape = {"label": "cat", "points": [[4, 3], [25, 3], [25, 19]], "shape_type": "polygon"}
    members = images("0.jpg", "1.jpg")
    members |= {f"{i}.json": labelme(str(i), shapes=[shape]) for i in range(2)}
    assert stored(tmp_path, members) == {
        f"{i}.jpg": {"split": "train", "boxes": "cat", "shapes": "cat"} for i in range(2)
    }


def test_flags_of_an_image_are_its_label(tmp_path: Path) -> None:
    flags = [{"cat": i < 3, "dog": i >= 3} for i in range(6)]
    members = images(*(f"{i}.jpg" for i in range(6)))
    members |= {f"{i}.json": labelme(str(i), flags=one) for i, one in enumerate(flags)}
    labels = [fact["label"] for fact in stored(tmp_path, members).values()]
    assert sorted(labels) == ["cat"] * 3 + ["dog"] * 3


def test_a_table_of_boxes_without_header_is_read_or_asked_about(tmp_path: Path) -> None:
    members = images(*(f"{i}.jpg" for i in range(4)))
    rows = [f"{i}.jpg,30,20,50,40,{'cat' if i % 2 else 'dog'}" for i in range(4)]
    members["a.csv"] = "\n".join(rows).encode()
    assert {fact["boxes"] for fact in stored(tmp_path, members).values()} == {"cat", "dog"}
    members["a.csv"] = members["a.csv"].replace(b"30,20,50,40", b"4,3,25,19")
    (tmp_path / "other").mkdir()
    assert "xywh" in asked(tmp_path / "other", members)


def test_ids_of_boxes_may_have_an_ending_and_a_column_of_boxes_is_no_class(tmp_path: Path) -> None:
    rows = [f"""{i}_image,"[{{'x': 7, 'y': 2, 'width': 4, 'height': 5}}]",opacity 1 7 2 11 7"""
            for i in range(10, 16)]  # fmt: skip
    members = images(*(f"train/s{i}/{i}.jpg" for i in range(10, 16)))
    members["train.csv"] = "\n".join(["id,boxes,label", *rows]).encode()
    assert stored(tmp_path, members)["train/s10/10.jpg"] == {"split": "train", "boxes": "object"}


def test_tables_of_boxes_that_are_named_for_splits_say_the_split(tmp_path: Path) -> None:
    members = images(*(f"{i}.jpg" for i in range(8)))
    for name, some in {"train": range(6), "val": range(6, 8)}.items():
        rows = [f"{i}.jpg,4,3,20,30,{label}" for i in some for label in (1, 2)]
        text = "\n".join(["frame,xmin,ymin,xmax,ymax,class_id", *rows])
        members[f"boxes_{name}.csv"] = text.encode()
    found = {key: fact["split"] for key, fact in stored(tmp_path, members).items()}
    assert found == {f"{i}.jpg": "train" if i < 6 else "validation" for i in range(8)}


def test_boxes_of_few_images_beside_folders_of_classes_are_asked_about(tmp_path: Path) -> None:
    members = images(*(f"{name}/{i}.jpg" for name in ("yes", "no") for i in range(9)))
    members |= images(*(f"boxes/train/y{i}.jpg" for i in range(4)))
    shape = {"name": "rect", "x": 4, "y": 3, "width": 20, "height": 16}
    regions = [{"shape_attributes": shape, "region_attributes": {}}]
    found = [{"filename": f"y{i}.jpg", "size": 1, "regions": regions} for i in range(4)]
    members["boxes/train/a.json"] = json.dumps({one["filename"]: one for one in found}).encode()
    text = asked(tmp_path, members)
    assert "--boxes via" in text
    assert "--labels folder" in text


def test_a_folder_whose_first_images_have_no_text_of_yolo_is_not_left_out(tmp_path: Path) -> None:
    """The rest of its images has texts; what is proposed builds."""
    names = [f"{'train' if i < 30 else 'valid'}/images/{i:02}" for i in range(40)]
    members = images(*(f"{name}.jpg" for name in names))
    members |= {f"{name.replace('images', 'labels')}.txt": b"0 .5 .5 .2 .2\n" for name in names[9:]}
    source = write_folder(tmp_path / "source", members)
    text = outcome(source, {"max_dropped": 0.05}).error
    assert "--exclude" not in text
    for share, why, number in (
        ("background", "9 others without an object", 40),
        ("skip", "9 others left out", 31),
    ):
        assert f"--boxes yolo --unlisted {share} (" in text
        assert f"a file for 31 of 40 images; {why}" in text
        flags = {"boxes": "yolo", "unlisted": share, "max_dropped": 0.05}
        assert len(outcome(source, flags).facts) == number


def test_a_folder_without_any_text_of_yolo_may_be_left_out(tmp_path: Path) -> None:
    names = [f"train/images/{i:02}" for i in range(30)]
    members = images(*(f"{name}.jpg" for name in names), *(f"extra/x{i}.jpg" for i in range(9)))
    members |= {f"{name.replace('images', 'labels')}.txt": b"0 .5 .5 .2 .2\n" for name in names}
    source = write_folder(tmp_path / "source", members)
    text = outcome(source, {"max_dropped": 0.05}).error
    assert "--exclude 'extra/*' --boxes yolo (" in text
    assert "1 folder without one left out" in text
    assert "--boxes yolo --unlisted skip (" in text
    flags = {"exclude": ("extra/*",), "boxes": "yolo", "max_dropped": 0.05}
    assert len(outcome(source, flags).facts) == 30


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("zebra .5 .5 .2 .2", "'zebra' is not a number"),
        ("0,.5,.5,.2,.2", "'0,.5,.5,.2,.2' is not a number, blanks separate numbers"),
        ("0 30 20 10 12", "pixels, not shares of the sides"),
    ],
)
def test_texts_that_are_not_yolo_beside_others_are_named_with_their_line(
    tmp_path: Path, line: str, what: str
) -> None:
    names = [f"{i:02}" for i in range(20)]
    members = images(*(f"images/{name}.jpg" for name in names))
    texts = {name: "0 .5 .5 .2 .2" if i < 5 else line for i, name in enumerate(names)}
    members |= {f"labels/{name}.txt": f"{text}\n".encode() for name, text in texts.items()}
    text = asked(tmp_path, members)
    assert f"labels/05.txt is not YOLO: line 1 is '{line}': {what}" in text


def test_too_many_malformed_lines_are_an_error_that_shows_one(tmp_path: Path) -> None:
    names = [f"{i:02}" for i in range(8)]
    members = images(*(f"images/{name}.jpg" for name in names))
    members |= {f"labels/{name}.txt": b"0 .5 .5 .2 .2\nx .5 .5 .1 .1\n" for name in names}
    flags = {"boxes": "yolo", "max_dropped": 0.05}
    error = outcome(write_folder(tmp_path / "yolo", members), flags).error
    assert "8 of 16 objects are invalid (8 malformed), a share above 0.05: " in error
    assert "labels/00.txt is not YOLO: line 2 is 'x .5 .5 .1 .1': 'x' is not a number; " in error
    wrong = BOX.replace("25", "x")
    objects = (BOX + "</object><object><name>cat</name>" + wrong).encode()
    document = voc("a.jpg", "cat").replace(BOX.encode(), objects)
    source = write_folder(tmp_path / "voc", images("a.jpg") | {"a.xml": document})
    error = outcome(source, {**flags, "boxes": "voc"}).error
    assert "(1 malformed), a share above 0.05: see a.jpg; " in error


@pytest.mark.parametrize("kind", ["voc", "labelme", "yolo", "coco", "csv"])
def test_objects_of_few_images_are_a_question_and_beside_labels_a_note(
    tmp_path: Path, kind: str
) -> None:
    """Its answers count the images without an object."""
    names = [f"p{i:02}" for i in range(10)]
    few, members = names[::3], images(*(f"img/{name}.jpg" for name in names))
    rows = [f"{name}.jpg,3,3,{x},20,cat\n" for name in few for x in (20, 30)]
    box = {"category_id": 1, "bbox": [3, 3, 9, 9]}
    coco = {
        "images": [{"id": i, "file_name": f"{name}.jpg"} for i, name in enumerate(few)],
        "annotations": [{"id": i, "image_id": i, **box} for i in range(len(few))],
        "categories": [{"id": 1, "name": "cat"}],
    }
    shapes = [{"label": "cat", "shape_type": "rectangle", "points": [[3, 3], [20, 19]]}]
    members |= {
        "voc": {f"notes/{name}.xml": voc(f"{name}.jpg", "cat") for name in few},
        "labelme": {f"notes/{name}.json": labelme(name, shapes=shapes) for name in few},
        "yolo": {f"labels/{name}.txt": b"0 .5 .5 .2 .2\n" for name in few},
        "coco": {"notes.json": json.dumps(coco).encode()},
        "csv": {"boxes.csv": ("file,xmin,ymin,xmax,ymax,class\n" + "".join(rows)).encode()},
    }[kind]
    error = asked(tmp_path / "few", members)
    rule = "csv:boxes.csv:file:xmin,ymin,xmax,ymax:class" if kind == "csv" else kind
    skip = " --unlisted skip" if kind == "yolo" else ""
    for options, why in ((" --unlisted background", "without an object"), (skip, "left out")):
        assert re.search(f"--boxes {rule}{options} .[^)]* 4 of 10 images; 6 others {why}", error)
    assert "--labels none (images without boxes)" in error
    for share, number in (("background", 10), ("skip", 4)):
        flags = {"boxes": rule, "unlisted": share}
        assert len(outcome(tmp_path / "few" / "source", flags).facts) == number
    members["labels.csv"] = (
        "id,label\n" + "".join(f"{n},{'ab'[n > 'p04']}\n" for n in names)
    ).encode()
    found = outcome(write_folder(tmp_path / "labels", members), {})
    assert {fact["label"] for fact in found.facts.values()} == {"a", "b"}
    assert any("4 of 10 images, not read; --boxes" in note for note in found.notes)


@pytest.mark.parametrize(
    ("titles", "cells"),
    [
        ("xmin,ymin,xmax,ymax,class", "3,3,{x},20,{c}"),
        ("x,y,w,h,label", "3,3,{x},20,{c}"),
        ("x1,y1,x2,y2", "3,3,{x},20"),
    ],
)
def test_boxes_of_a_table_with_a_row_for_each_image_are_a_question(
    tmp_path: Path, titles: str, cells: str
) -> None:
    """Labels of something else make it a note: here class folders."""
    names = [f"{kind}/{kind[0]}{i}" for kind in ("cats", "dogs") for i in range(6)]
    rows = [f"{n[5:]}.jpg," + cells.format(x=20 + i, c=n[:4]) for i, n in enumerate(names)]
    table = {"t.csv": "\n".join([f"image,{titles}", *rows]).encode()}
    error = asked(tmp_path / "flat", images(*(f"img/{name[5:]}.jpg" for name in names)) | table)
    *four, label = titles.split(",") if "l" in titles else (*titles.split(","), "")
    rule = ":".join(filter(None, ["csv:t.csv:image", ",".join(four), label]))
    labels = f"csv:t.csv:image:{label}" if label else "none"
    assert f"--boxes {rule} (t.csv: boxes of 12 of 12 images, a row for each)" in error
    assert f"--labels {labels} (images without boxes)" in error
    folder = write_folder(tmp_path / "folders", images(*(f"{name}.jpg" for name in names)) | table)
    found = outcome(folder, {})
    assert {fact["label"] for fact in found.facts.values()} == {"cats", "dogs"}
    assert any(f"not read; --boxes {rule} stores them" in note for note in found.notes)


def test_ids_of_boxes_may_be_a_path_of_columns(tmp_path: Path) -> None:
    """`video_0/7.jpg` for 0 in `video_id` and 7 in `video_frame`, which each video has."""
    keys = [f"frames/video_{one}/{i}.jpg" for one in (0, 1) for i in range(4)]
    rows = [f"{one},{i},\"[{{'x': 1, 'y': 2, 'width': {8 + i}, 'height': 6}}]\""
            for one in (0, 1) for i in range(4)]  # fmt: skip
    table = "\n".join(["video_id,video_frame,annotations", *rows]).encode()
    flags = "--boxes 'csv:boxes.csv:video_{video_id}/{video_frame}:annotations'"
    notes = outcome(write_folder(tmp_path, images(*keys) | {"boxes.csv": table}), {}).notes
    assert any(f"{flags} is decided" in note for note in notes)


def test_folders_without_a_document_beside_others_are_asked_about(tmp_path: Path) -> None:
    keys = [f"data/train/images/{i}.jpg" for i in range(6)]
    texts = {f"data/train/labels/{i}.txt": b"0 0.5 0.5 0.2 0.2" for i in range(6)}
    plots = images("runs/curve.png", "runs/labels.jpg")
    found = asked(tmp_path, images(*keys) | texts | plots)
    assert found.index("--exclude 'runs/*' --boxes yolo") < found.index("or --boxes yolo")


def coco(*names: str, classes: str = "bus") -> bytes:
    every = [
        {"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(names)
    ]
    objects = [
        {"id": i, "image_id": i, "category_id": 1, "bbox": [4, 3, 9, 9]} for i in range(len(names))
    ]
    document = {"images": every, "annotations": objects, "categories": [{"id": 1, "name": classes}]}
    return json.dumps(document).encode()


def test_documents_of_the_same_images_are_read_in_groups(tmp_path: Path) -> None:
    names = [f"{i}.jpg" for i in range(8)]
    members = images(*(f"data/{name}" for name in names))
    for fold in (1, 2):
        some = names[fold:] + names[:fold]
        members |= {f"lists/train-split{fold}.json": coco(*some[:6]),
                    f"lists/val-split{fold}.json": coco(*some[6:])}  # fmt: skip
    found = outcome(write_folder(tmp_path / "source", members), {})
    group = "coco:lists/train-split1.json,lists/val-split1.json"
    assert group in found.error + " ".join(found.notes)
    assert "another document also has objects" not in found.error


def test_documents_in_folders_of_splits_are_read_in_groups(tmp_path: Path) -> None:
    members = images(
        *(f"{split}/{i}.jpg" for split, n in (("train", 6), ("val", 3)) for i in range(n))
    )
    for split, n in (("train", 6), ("val", 3)):
        own = [f"{i}.jpg" for i in range(n)]
        members[f"{split}/{split}_annos.json"] = coco(*own)
        members[f"{split}/mul_{split}_annos.json"] = coco(*own, classes="part")
    error = asked(tmp_path / "two", members)
    assert "--boxes coco:train/train_annos.json,val/val_annos.json (" in error
    assert "--boxes coco:train/mul_train_annos.json,val/mul_val_annos.json (" in error
    single = {key: one for key, one in members.items() if "mul_" not in key}
    facts = stored(tmp_path / "one", single)
    assert facts["val/2.jpg"] == {"split": "validation", "boxes": "bus"}


def test_a_document_that_joins_others_is_left_out_with_a_note(tmp_path: Path) -> None:
    names = [f"{i}.jpg" for i in range(8)]
    members = images(*(f"data/{name}" for name in names))
    members |= {"lists/train.json": coco(*names[:6]), "lists/test.json": coco(*names[6:])}
    whole = members | {"lists/train_test.json": coco(*names)}
    found = outcome(write_folder(tmp_path / "whole", whole), {})
    assert "lists/train_test.json is not read: it joins other documents" in found.notes
    assert found.facts == outcome(write_folder(tmp_path / "parts", members), {}).facts
    assert {one["split"] for one in found.facts.values()} == {"train", "test"}


def test_a_document_with_the_images_of_others_and_more_boxes_is_not_left_out(
    tmp_path: Path,
) -> None:
    names = [f"{i}.jpg" for i in range(8)]
    members = images(*(f"data/{name}" for name in names))
    members |= {"lists/train.json": coco(*names[:6]), "lists/test.json": coco(*names[6:])}
    more = coco(*names).replace(b'"annotations": [', b'"annotations": [{"id": 99, "image_id": 0, '
                                b'"category_id": 1, "bbox": [1, 1, 5, 5]}, ')  # fmt: skip
    found = outcome(write_folder(tmp_path / "source", members | {"lists/all.json": more}), {})
    assert "another document also has objects" in found.error or "choose one" in found.error


def test_boxes_and_class_folders_may_be_wanted_together(tmp_path: Path) -> None:
    keys = [f"{name}/{name}{i}" for name in ("broken", "whole") for i in range(4)]
    members = images(*(f"{key}.jpg" for key in keys))
    members |= {
        f"notes/{key[key.index('/') + 1 :]}.xml": voc(f"{key[key.index('/') + 1 :]}.jpg", "broken")
        for key in keys
    }
    assert "--labels folder --boxes voc (" in asked(tmp_path, members)


def test_tables_of_boxes_of_other_splits_may_have_more_columns(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for split, number in (("train", 6), ("test", 2)):
        keys = [f"{split}/data/{split}{i}.jpg" for i in range(number)]
        more = ",Depiction" if split == "train" else ""
        rows = [f"{split}{i},cat,0.1,0.1,0.5,0.6{',0' if more else ''}" for i in range(number)]
        members |= images(*keys)
        lines = "\n".join([f"ImageID,LabelName,XMin,YMin,XMax,YMax{more}", *rows, rows[0]])
        members[f"{split}/labels/detections.csv"] = lines.encode()
    assert {one["boxes"] for one in stored(tmp_path, members).values()} == {"cat", "cat,cat"}


@pytest.mark.parametrize(
    ("box", "rule"),
    [
        ({"coordinates": {"x": 8, "y": 9, "width": 6, "height": 5}},
         f"center({','.join(f'notes.coordinates.{x}' for x in ('x', 'y', 'width', 'height'))})"),
        ({"at": {"minimum": {"r": 4, "c": 5}, "maximum": {"r": 9, "c": 12}}},
         "xyxy(notes.at.minimum.c,notes.at.minimum.r,notes.at.maximum.c,notes.at.maximum.r)"),
        ({"box2d": {"x1": 5, "y1": 4, "x2": 12, "y2": 9}},
         "notes.box2d.x1,notes.box2d.y1,notes.box2d.x2,notes.box2d.y2"),
    ],
)  # fmt: skip
def test_boxes_of_images_in_a_json_list_are_proposed_or_the_images_alone(
    tmp_path: Path, box: dict[str, object], rule: str
) -> None:
    rows = [{"image": f"{i}.jpg", "notes": [{"label": "cat", **box}]} for i in range(4)]
    members = images(*(f"a/{i}.jpg" for i in range(4))) | {"all.json": json.dumps(rows).encode()}
    error = asked(tmp_path, members)
    assert f"csv:all.json:image:{rule}:notes.label" in error
    assert "--labels none (images without boxes)" in error


def test_documents_of_single_images_are_no_lists_of_their_names(tmp_path: Path) -> None:
    keys = [f"{place}{i}" for place in ("WEB", "Shop") for i in range(10, 16)]
    members = images(*(f"a/images/{key}.jpg" for key in keys))
    members |= {f"a/labels/{key}.txt": b"0 0.5 0.5 0.2 0.2" for key in keys}
    assert {fact["boxes"] for fact in stored(tmp_path, members).values()} == {"0"}


def test_outlines_of_yolo_are_masks_and_oriented_boxes_are_boxes(tmp_path: Path) -> None:
    names = [f"{i}" for i in range(4)]
    members = images(*(f"images/{one}.jpg" for one in names))
    corners = ".1 .1 .4 .1 .4 .4 .1 .4"
    for ends, kinds in (("", {"boxes"}), (" .05 .2", {"boxes", "shapes"})):
        lines = {f"labels/{one}.txt": f"0 {corners}{ends}\n".encode() for one in names}
        facts = stored(tmp_path / str(len(kinds)), members | lines)["images/1.jpg"]
        assert facts.keys() - {"split"} == kinds


def test_outlines_of_coco_beside_masks_of_the_same_images_are_asked_about(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(8)]
    members = images(*(f"data/{one}" for one in names))
    members |= {f"masks/{one}": picture("ids", one, f"data/{one}") for one in names}
    document = coco(*names).replace(b'"bbox"', b'"segmentation": [[1,1,9,1,9,9,1,9,0,4]], "bbox"')
    flags = "--masks 'masks/{stem}.png'"
    error = asked(tmp_path / "outlines", members | {"labels.json": document})
    assert f"--labels none {flags} (masks, without the objects" in error
    assert f"--boxes coco {flags} (" in error
    facts = stored(tmp_path / "boxes", members | {"labels.json": coco(*names)})["data/1.png"]
    assert {"boxes", "mask"} <= facts.keys()


def test_outlines_of_coco_are_proposed_if_the_readme_says_so(tmp_path: Path) -> None:
    names = [f"{i}.png" for i in range(8)]
    document = coco(*names).replace(b'"bbox"', b'"segmentation": [[1,1,9,1,9,9,1,9,0,4]], "bbox"')
    members = images(*names) | {"labels.json": document, "README.txt": b"COCO format."}
    assert stored(tmp_path / "boxes", members)["1.png"].keys() == {"split", "boxes"}
    error = asked(tmp_path, members | {"README.txt": b"Annotated in COCO Segmentation format."})
    assert "; --masks coco --instances (" in error
    assert "or --boxes coco (" in error


def test_a_table_of_each_image_with_columns_of_a_box_has_its_boxes(tmp_path: Path) -> None:
    names = [f"{i}_a" for i in range(4)]
    members = images(*(f"images/{one}.jpg" for one in names))
    members |= {f"boxes/{one}.csv": b"item,x,y,dx,dy,label\n0,3,4,9,8,1\n" for one in names}
    facts = {"split": "train", "boxes": "1"}
    assert stored(tmp_path, members) == dict.fromkeys((f"images/{x}.jpg" for x in names), facts)
    empty = {f"boxes/{one}.csv": b"" for one in names}
    assert "boxes" not in outcome(write_folder(tmp_path / "bare", members | empty), {}).error
    error = asked(tmp_path / "empty", members | {"boxes/3_a.csv": b"item,x,y,dx,dy,label\n"})
    assert "--boxes 'csv:boxes/{id}.csv:id:x,y,dx,dy:label' --unlisted background (" in error


def test_two_folders_with_a_text_for_each_image_are_not_captions(tmp_path: Path) -> None:
    keys = [f"img/{i}.jpg" for i in range(100, 106)]
    texts = {f"{folder}/{i}.txt": b"a dog runs" for folder in ("a", "b") for i in range(100, 106)}
    assert asked(tmp_path, images(*keys) | texts)


def _charts(kinds: str, *, is_nested: bool) -> dict[str, bytes]:
    """Return charts with a document each, with boxes in a list or in two, and a list of answers."""
    members = images(*(f"png/{i}.jpg" for i in range(8)))
    for i in range(8):
        boxes = {"bboxes": [{"x": 3, "y": 4, "w": 9, "h": 8}]}
        one = {"type": kinds[i % len(kinds)], **({"models": [boxes]} if is_nested else boxes)}
        members[f"annotations/{i}.json"] = json.dumps(one).encode()
    rows = [{"imgname": f"{i}.jpg", "label": "yes" if i % 2 else "no"} for i in range(8)]
    return members | {"human.json": json.dumps(rows).encode()}


def test_boxes_of_documents_that_cannot_be_read_do_not_end_the_decision(tmp_path: Path) -> None:
    facts = stored(tmp_path / "one", _charts("v", is_nested=True))
    assert facts["png/1.jpg"] == {"split": "train", "label": "yes"}
    error = asked(tmp_path / "two", _charts("vh", is_nested=True))
    assert "{id}:type' (" in error
    assert "--labels csv:human.json:imgname:label (" in error


def test_boxes_of_documents_that_can_be_read_are_stored(tmp_path: Path) -> None:
    assert stored(tmp_path, _charts("vh", is_nested=False))["png/0.jpg"]["boxes"]


@pytest.mark.parametrize(
    "head", ["image,x,y,w,h", "filename,class,xmin,ymin,xmax,ymax", "image,x,y", "image,x_1,y_1"]
)
@pytest.mark.parametrize("number", [1, 2])
def test_columns_of_words_are_neither_boxes_nor_keypoints(
    tmp_path: Path, head: str, number: int
) -> None:
    words = "a,b,c,d,e"[: 2 * head.count(",") - 1]
    lines = [head, *[f"{i}.jpg,{words}" for i in range(8)] * number]
    members = images(*(f"{i}.jpg" for i in range(8))) | {"t.csv": "\n".join(lines).encode()}
    found = outcome(write_folder(tmp_path / "source", members), {})
    assert "has no" not in found.error
    assert "t.csv" in found.error + " ".join(found.notes)


@pytest.mark.parametrize("value", [[3], [[3]], "a", {"x": [3]}, None, [[1, 2]], [{"x": 1}], True])
@pytest.mark.parametrize("title", ["bbox", "bboxes", "points", "x", "segmentation", "keypoints"])
def test_odd_values_of_usual_fields_are_no_error(tmp_path: Path, title: str, value: Any) -> None:
    """No flag names these documents, so that none may end a build."""
    row = {title: value, **(dict.fromkeys("ywh", value) if title == "x" else {})}
    members = images(*(f"{i}.jpg" for i in range(8)))
    forms: dict[str, dict[str, Any]] = {
        "each": {f"{i}.json": {"objects": [row]} for i in range(8)},
        "list": {"a.json": [{"image": f"{i}.jpg", **row} for i in range(8)]},
        "keys": {"a.json": {f"{i}.jpg": row for i in range(8)}},
        "inner": {"a.json": {"images": [{"file_name": f"{i}.jpg", "a": [row]} for i in range(8)]}},
    }
    for form, documents in forms.items():
        texts = {key: json.dumps(one).encode() for key, one in documents.items()}
        found = outcome(write_folder(tmp_path / form / "source", members | texts), {})
        assert not found.error or "choose" in found.error


QUADS = [
    "4,3,12,5,10,9,2,7", "3,2,14,2,14,8,3,8", "8,2,16,6,14,10,6,6", "5,1,9,1,9,7,5,7",
    "2,9,20,11,20,16,2,14",
]  # fmt: skip


def test_four_corners_in_texts_are_boxes_with_the_text_as_class_or_without(tmp_path: Path) -> None:
    """The names of files may start with other letters, and splits may have the same names."""
    keys = [f"ch4_{part}_images/img_{i}.jpg" for part in ("training", "test") for i in range(5)]
    texts = {
        f"{folder}/gt_img_{i}.txt": f"\ufeff{QUADS[i]},SALE, 50%\n{QUADS[i - 1]},###\n".encode()
        for folder in ("ch4_training_gt", "Test_GT")
        for i in range(5)
    }
    members = images(*keys) | texts
    error = asked(tmp_path, members)
    files = "Test_GT/gt_{id}.txt,ch4_training_gt/gt_{id}.txt"
    rule = f"csv:{files}:id:1,2,3,4,5,6,7,8"
    assert f"--no-header --boxes '{rule}' (boxes in 10 texts, each of four corners)" in error
    assert f"--no-header --boxes '{rule}:9' (" in error
    source = tmp_path / "source"
    found = outcome(source, {"header": False, "boxes": rule})
    splits = {key: "test" if "test" in key else "train" for key in keys}
    assert {key: one["split"] for key, one in found.facts.items()} == splits
    assert {one["boxes"] for one in found.facts.values()} == {"object,object"}


def test_a_text_with_commas_is_the_rest_of_its_line(tmp_path: Path) -> None:
    lines = [
        f"{one},{text}"
        for one, text in zip(QUADS[1:], ("SALE, 50%", "EXIT", "5", "OUT"), strict=True)
    ]
    members = images("a.jpg", "b.jpg") | {"a.txt": "\n".join(lines).encode(), "b.txt": b""}
    source = write_folder(tmp_path / "source", members)
    rule = "csv:{id}.txt:id:1,2,3,4,5,6,7,8:9"
    found = outcome(source, {"header": False, "boxes": rule})
    assert found.facts["a.jpg"]["boxes"] == " 50%,5,EXIT,OUT,SALE"
    more = "".join(f"{one},Latin,a text, or two\n" for one in QUADS[:4])
    write_folder(source, {"a.txt": more.encode()})
    found = outcome(source, {"header": False, "boxes": rule})
    assert found.facts["a.jpg"]["boxes"] == "Latin,Latin,Latin,Latin"


def test_four_corners_and_a_class_after_blanks_are_boxes_of_the_class(tmp_path: Path) -> None:
    """Lines of one word above them, as in DOTA, are no boxes."""
    lines = [f"{one.replace(',', ' ')} plane 0" for one in QUADS]
    text = "\n".join(["imagesource:GoogleEarth", "gsd:0.14", *lines, ""]).encode()
    members = images(*(f"train/images/P{i}.jpg" for i in range(3)))
    members |= {f"train/labelTxt/P{i}.txt": text for i in range(3)}
    error = asked(tmp_path, members)
    rule = "csv:labelTxt/{id}.txt:id:1,2,3,4,5,6,7,8"
    assert error.index(f"--no-header --boxes '{rule}:9' (") < error.index(f"'{rule}' (")
    found = outcome(tmp_path / "source", {"header": False, "boxes": f"{rule}:9"})
    assert {one["boxes"] for one in found.facts.values()} == {",".join(["plane"] * 5)}


def test_documents_of_the_same_names_need_folders_of_splits(tmp_path: Path) -> None:
    members = images(*(f"Images/{i}/{kind}.jpg" for i in "12" for kind in ("front", "side")))
    text = "\n".join(QUADS).encode()
    members |= {f"Texts/{i}/{kind}.txt": text for i in "12" for kind in ("front", "side")}
    assert "1,2,3,4,5,6,7,8" not in asked(tmp_path, members)


_LINES = "0 .5 .5 .4 .4 .5 .5 2 .6 .6 1"
_DOCUMENTS: dict[str, tuple[dict[str, str], list[str], str]] = {
    "images that a table without empty rows leaves out may have none": (
        {"train.csv": "image_id,bbox" + "".join(f'\n{i},"[{4 + i}, 3, 20, 30]"' for i in range(7))},
        ["--unlisted background"], ""),
    "numbers may be boxes from either column": (
        {"a.txt": "\n".join(f"{i}.jpg {i % 3} 9 12 30 28" for i in range(8))},
        ["a.txt:1:xyxy(2,3,4,5):6", "a.txt:1:xyxy(3,4,5,6):2", "a.txt:1:2"], ""),
    "runs of a class are objects apart, or areas of it together": (
        {"train.csv": "id,EncodedPixels,ClassId" + "".join(
            f"\n{i},{i + 1} 3 {i + 400} 2,{kind}" for i in range(8) for kind in (1, 1, 2))},
        ["--masks rle:train.csv:id:EncodedPixels:ClassId --instances (",
         "--masks rle:train.csv:id:EncodedPixels:ClassId ("], ""),
    "places in a text for each image may be points or boxes": (
        {"gt/{}.txt": "20 9 5 4 2 0\n11 13 8 9 1 0\n"},
        ["--no-header --points 'csv:gt/{id}.txt:id:1,2' (points in 8 texts",
         "--no-header --boxes 'csv:gt/{id}.txt:id:xywh(1,2,3,4)' ("], ""),
    "places outside of the image are no points": (
        {"gt/{}.txt": "2000 9 5 4 2 0\n"}, ["--labels none"], "--points"),
    "boxes below their number may have no class": (
        {"gt/{}.txt": "2\n0 1 3 4\n2 3 6 7\n"},
        ["--no-header --boxes 'csv:gt/{id}.txt:id:xyxy(1,2,3,4)' (boxes in 8 texts)"], ""),
    "poses of YOLO may be keypoints or boxes, as those of COCO": (
        {"labels/{}.txt": _LINES, "data.yaml": "names: [cat]\nkpt_shape: [2, 3]\n"},
        ["--points yolo (", "--boxes yolo ("], ""),
    "boxes of VisDrone are no four corners": (
        {"gt/{}.txt": "684,8,273,116,0,0,0,0\n406,119,265,70,1,4,0,1\n25,22,119,128,1,1,0,0\n" * 2},
        ["--labels none"], "1,2,3,4,5,6,7,8"),
    "five points are no four corners": (
        {"gt/{}.txt": "\n".join(f"{one},21,17" for one in QUADS)}, ["--labels none"],
        "1,2,3,4,5,6,7,8"),
    "corners across are no four corners": (
        {"gt/{}.txt": "4,3,10,9,12,5,2,7\n" * 6}, ["--labels none"], "1,2,3,4,5,6,7,8"),
}  # fmt: skip
"""Documents of eight images, parts of the question in order, and what is not in it."""


@pytest.mark.parametrize("case", _DOCUMENTS)
def test_documents_that_can_be_read_in_several_ways_are_asked_about(
    case: str, tmp_path: Path
) -> None:
    documents, parts, other = _DOCUMENTS[case]
    members = images(*(f"images/{i}.jpg" for i in range(8)))
    members |= {key.format(i): text.encode() for key, text in documents.items() for i in range(8)}
    error = asked(tmp_path, members)
    places = [error.index(one) for one in parts]
    assert places == sorted(places)
    assert not other or other not in error
