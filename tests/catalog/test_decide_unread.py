"""Documents that name the images and that nothing reads: the user is asked."""

import json
import re
from pathlib import Path

import pytest

from shardprep.errors import QuestionError
from tests.catalog.builders import asked, catalog, choices
from tests.support.builders import jpeg, write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture


def pictures(*keys: str) -> dict[str, bytes]:
    return {key: jpeg(16, 16, i) for i, key in enumerate(keys)}


def test_a_document_of_each_image_is_not_passed_over(tmp_path: Path) -> None:
    members = pictures(*(f"photos/IMG_{i}.jpg" for i in range(6)))
    members |= {f"truth/GT_IMG_{i}.mat": b"MATLAB 5.0 MAT-file\n\1" for i in range(6)}
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, members)
    [choice] = caught.value.choices
    assert choice.flags == "--labels none"
    assert "truth/GT_IMG_0.mat" in choice.why
    assert "MATLAB 5.0" in choice.why
    assert "not read" in caught.value.what


_ODD = [f"a{i}f-{i * 37}.jpg" for i in range(12)]
_MARKED = [f"--labels 'regex:{x}' --target regression"
           for x in (r"a(?P<label>\d+)[^/]*$", r"(?P<label>\d+)f(?![A-Za-z])[^/]*$")]  # fmt: skip
_BOXED = [{"name": name, "labels": [{"box2d": {"x1": 1}}]} for name in _ODD]
_LONG = [{"name": name, "notes": {"text": "rain " * 5_000}} for name in _ODD]
_PETS = [f"{name}/{name}{i}.jpg" for name in ("cat", "dog") for i in range(4)]
_FACES = [f"{start}{i}.jpg" for start in ("AF", "AM") for i in range(1031, 1035)]
_ROWS = "".join(f"{i},1,4,3,21,16,1\n" for i in range(1, 9))
_NAMED: dict[str, tuple[list[str], dict[str, str], str, list[str]]] = {
    "an array of each image": (
        [f"rgb/{i}.jpg" for i in range(6)], {f"depth/{i}.npy": "NUMPY" for i in range(6)},
        "depth/0.npy is not read", ["--labels none"]),
    "HDF5 of each image": (
        [f"rgb/{i}.jpg" for i in range(6)], {f"depth/{i}.h5": "HDF" for i in range(6)},
        "depth/0.h5 is not read", ["--labels none"]),
    "EXR of each image": (
        [f"rgb/{i}.jpg" for i in range(6)], {f"depth/{i}.exr": "v/1" for i in range(6)},
        "depth/0.exr is not read", ["--labels none"]),
    "texts of an unknown form, which may be texts": (
        [f"images/{i:03}.jpg" for i in range(4)],
        {f"label_2/{i:03}.txt": "Car 0.0 0 -1.5 1 2 9 8\nVan 0.1 0 2" for i in range(4)},
        "label_2/", ["--labels none", "--labels 'text:label_2/{stem}.txt' --target text"]),
    "a document that names the images": (
        [f"images/{name}" for name in _ODD], {"det/train.json": json.dumps(_BOXED)},
        "det/train.json", ["--labels none", *_MARKED]),
    "a long document that names images": (
        [f"images/{name}" for name in _ODD],
        {"weather.ndjson": "\n".join(map(json.dumps, _LONG))}, "weather.ndjson",
        ["--labels none", *_MARKED]),
    "rows with the numbers of images": (
        [f"frames/seq_{i:06}.jpg" for i in range(1, 9)], {"counts.txt": _ROWS}, "counts.txt",
        ["--labels none"]),
    "numbers beside the images of a folder": (
        [f"clip{c}/img1/{i:06}.jpg" for c in (1, 2) for i in range(1, 9)],
        {"clip1/gt/gt.txt": _ROWS, "clip2/gt/gt.txt": _ROWS}, "clip1/gt/gt.txt",
        ["--labels none", "--labels folder:2"]),
    "a list of splits by number": (
        [f"images/{key}" for key in _PETS],
        {"train_test_split.txt": "".join(f"{i} {int(i % 4 > 0)}\n" for i in range(1, 9))},
        "train_test_split.txt", ["--labels folder"]),
    "boxes in a text beside folders of classes": (
        [f"images/{key}" for key in _PETS],
        {"faces.txt": "".join(f"{key}\n1\n4 3 21 16 0 0\n" for key in _PETS)}, "faces.txt",
        ["--labels none", "--labels folder"]),
    "documents of single images with their suffix beside folders of classes": (
        [f"images/{key}" for key in _PETS],
        {f"truth/{key}.txt": "% form 3\n(4,3),(16,12),person" for key in _PETS}, "truth/",
        ["--labels none", "--labels folder"]),
    "documents of single images in one folder beside folders of classes": (
        [f"images/{key}" for key in _PETS],
        {f"truth/{key[4:-4]}.txt": "% form 3\n(4,3),(16,12),person" for key in _PETS}, "truth/",
        ["--labels none", "--labels folder"]),
    "values of images beside starts of their names": (
        [f"faces/{name}" for name in _FACES],
        {"scores.dat": "".join(f"{name} = 2.5\n" for name in _FACES)}, "scores.dat",
        ["--labels none", "--labels prefix"]),
}  # fmt: skip
"""Images, documents, what the first reading says of these, and the flags of all readings."""


@pytest.mark.parametrize("case", _NAMED)
def test_documents_about_the_images_are_not_passed_over(case: str, tmp_path: Path) -> None:
    keys, documents, why, flags = _NAMED[case]
    texts = {key: text.encode() for key, text in documents.items()}
    found = choices(tmp_path, pictures(*keys) | texts)
    assert why in found[0].why
    assert [one.flags for one in found] == flags


def test_rows_of_an_image_and_a_kind_are_not_passed_over(tmp_path: Path) -> None:
    ids = [f"ID_0000{i}" for i in range(4)]
    members = pictures(*(f"stage_train/{one}.jpg" for one in ids))
    rows = "".join(f"{one}_{kind},0\n" for one in ids for kind in ("any", "subdural"))
    members["stage_train.csv"] = f"ID,Label\n{rows}".encode()
    assert "stage_train.csv is not read" in choices(tmp_path / "1", members)[0].why
    members["stage_train.csv"] = rows.replace("ID_", "LX_").encode()
    assert "none found" in catalog(tmp_path / "2", members).labels_from


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.txt", "0.jpg shows 1.jpg, 2.jpg, 3.jpg, 4.jpg and 5.jpg"),
        ("sha256.txt", "".join(f"abcdef  photos/view{i}.jpg\n" for i in range(6))),
        ("files.txt", "".join(f"photos/view{i}.jpg\n" for i in range(6))),
        ("bad.txt", "view1.jpg is blurred"),
        ("sizes.csv", "image,width\n" + "".join(f"view{i}.jpg,640\n" for i in range(6))),
        ("camera.json", '{"model": "X100", "iso": 200}'),
    ],
)
def test_documents_about_something_else_ask_nothing(tmp_path: Path, name: str, text: str) -> None:
    members = pictures(*(f"photos/view{i}.jpg" for i in range(6)))
    assert "none found" in catalog(tmp_path, {**members, name: text.encode()}).labels_from


def test_lists_beside_folders_of_classes_ask_nothing(tmp_path: Path) -> None:
    members = pictures(*(f"{name}/{name}{i}.jpg" for name in ("cat", "dog") for i in range(4)))
    members["sizes.txt"] = "".join(f"{key} 16x16\n" for key in members).encode()
    made = catalog(tmp_path, members)
    assert made.label_names == ("cat", "dog")
    assert any("sizes.txt is not read" in note for note in made.findings)


def test_a_table_of_half_of_the_images_is_proposed(tmp_path: Path) -> None:
    members = pictures(*(f"{i}.jpg" for i in range(8)))
    members["labels.csv"] = "\n".join(
        ["id,label", *(f"{i},{'ab'[i % 2]}" for i in range(4))]
    ).encode()
    flags = asked(tmp_path, members)
    assert flags == ["--labels csv:labels.csv:id:label", "--labels none"]


def test_numbers_that_divide_folders_of_images_are_not_passed_over(tmp_path: Path) -> None:
    keys = [f"{name}/{name}{i}.jpg" for name in ("chair", "mug") for i in range(6)]
    members = pictures(*keys)
    finer = [f"{key} {10 * ('mug' in key) + i % 6 // 2}" for i, key in enumerate(keys)]
    members["items.txt"] = "\n".join(["path class super", *finer]).encode()
    assert "items.txt" in choices(tmp_path / "1", members)[0].why
    members["items.txt"] = "\n".join(f"{key} {int('mug' in key)}" for key in keys).encode()
    assert catalog(tmp_path / "2", members).label_names == ("chair", "mug")


def test_values_that_join_folders_are_classes_unless_they_are_a_level_of_folders(
    tmp_path: Path,
) -> None:
    kinds = {"shirt": "top", "blouse": "top", "skirt": "bottom", "jeans": "bottom"}
    keys = [f"{one}/{one}{i}.jpg" for one in kinds for i in range(3)]
    text = "\n".join(f"{key} {kinds[key.split('/')[0]]}" for key in keys)
    members = pictures(*keys) | {"kinds.txt": text.encode()}
    assert "kinds.txt" in choices(tmp_path / "1", members)[0].why
    levels = pictures(*(f"{kinds[key.split('/')[0]]}/{key}" for key in keys))
    levels["kinds.txt"] = members["kinds.txt"]
    assert set(catalog(tmp_path / "2", levels).label_names) == {*kinds}


@pytest.mark.parametrize("name", ["labels.xlsx", "meta/Labels.XLS", "labels.ods"])
def test_a_spreadsheet_is_a_question_beside_images_without_labels_and_else_a_note(
    tmp_path: Path, name: str
) -> None:
    what = f"a spreadsheet is not read, save it as CSV: {name}"
    sheet, keys = {name: b"PK\x03\x04"}, [f"p{i}" for i in range(8)]
    flat = pictures(*(f"img/{key}.jpg" for key in keys))
    found = outcome(write_folder(tmp_path / "flat", flat | sheet), {})
    assert f"--labels none (images alone; {what})" in found.error
    folders = pictures(*(f"{'ab'[i % 2] * 3}/{key}.jpg" for i, key in enumerate(keys)))
    found = outcome(write_folder(tmp_path / "folders", folders | sheet), {})
    assert what in found.notes
    rows = "".join(f"{key},{'ab'[i % 2]}\n" for i, key in enumerate(keys))
    same = {f"{name.rpartition('.')[0]}.csv": f"id,label\n{rows}".encode()}
    found = outcome(write_folder(tmp_path / "same", flat | sheet | same), {})
    assert not found.error
    assert what not in found.notes


def test_texts_of_boxes_that_begin_with_their_number_are_no_captions(tmp_path: Path) -> None:
    members = pictures(*(f"Images/{i:06}.jpg" for i in range(6)))
    members |= {f"Annotations/{i:06}.jpg.txt": b"1\n1 5 6 4 2\n" for i in range(6)}
    [alone] = choices(tmp_path, members)
    assert alone.flags == "--labels none"
    assert "--boxes csv:FILE:ID:x,y,w,h:CLASS takes them from a table of yours" in alone.why
    rows = "".join(f"{i:06},5,6,7,8,cat\n" for i in range(6))
    members["boxes.csv"] = f"id,x,y,w,h,class\n{rows}".encode()
    flags = {"boxes": "csv:boxes.csv:id:x,y,w,h:class"}
    found = outcome(write_folder(tmp_path / "own", members), flags)
    assert {fact["boxes"] for fact in found.facts.values()} == {"cat"}


def test_texts_with_two_corners_in_each_line_are_boxes_or_nothing(tmp_path: Path) -> None:
    keys = [f"{split}/images/{split[1]}{i}.jpg" for split in ("train", "test") for i in range(3)]
    texts = {
        f"{key.split('/')[0]}/t_boxes/{key[-6:-4]}.txt": f"cat 5 6 {9 + i} 14\ndog,1,2,9,8\n"
        for i, key in enumerate(keys)
    }
    members = pictures(*keys) | {key: text.encode() for key, text in texts.items()}
    members["test/t_boxes/e2.txt"] = b""
    boxes, alone = choices(tmp_path, members)
    assert boxes.flags == "--no-header --boxes 'csv:t_boxes/{id}.txt:id:xyxy(2,3,4,5):1'"
    assert alone.options == {"labels": "none"}
    found = outcome(write_folder(tmp_path / "own", members), dict(boxes.options))
    assert not found.error
    assert {fact["boxes"] for fact in found.facts.values()} == {"cat,dog"}
    assert found.facts["test/images/e1.jpg"]["split"] == "test"
    flat, _ = choices(tmp_path / "flat", {key.rpartition("/")[2]: x for key, x in members.items()})
    assert flat.flags == "--no-header --boxes 'csv:{id}.txt:id:xyxy(2,3,4,5):1'"


def test_the_longest_list_of_a_json_document_is_a_table(tmp_path: Path) -> None:
    """As in the JSON of captions by Karpathy, whose images have a list of sentences each."""
    texts = [
        [{"raw": f"a {i} {j}", "tokens": ["a"], "sentid": 2 * i + j} for j in (0, 1)]
        for i in range(6)
    ]
    entries = [
        {"filename": f"{i}.jpg", "imgid": i, "split": "train" if i < 4 else "val", "sentences": own}
        for i, own in enumerate(texts)
    ]
    document = json.dumps({"dataset": "x", "images": entries, "sizes": [1]}).encode()
    members = pictures(*(f"img/{i}.jpg" for i in range(6))) | {"dataset.json": document}
    found = outcome(write_folder(tmp_path, members), {})
    assert found.facts["img/5.jpg"] == {"split": "validation", "texts": "a 5 0|a 5 1"}
    assert found.labels_from.endswith("column 'images.sentences.raw' by 'images.filename'")


def test_documents_beside_masks_are_noted_and_sentences_are_asked_about(tmp_path: Path) -> None:
    names = [f"case{i}/source.jpg" for i in range(9)]
    members = {one: picture("scene", one, one) for one in names}
    members |= {f"{one[:6]}mask.png": picture("ids", "mask.png", one) for one in names}
    parts = {"train": names[:6], "validate": names[6:]}

    def documents(key: str) -> dict[str, bytes]:
        rows = {
            name: [{"id": i, "img_name": one, key: f"lung {i % 3}"} for i, one in enumerate(own)]
            for name, own in parts.items()
        }
        return {f"{name}.json": json.dumps(own).encode() for name, own in rows.items()}

    found = outcome(write_folder(tmp_path / "notes", members | documents("remark")), {})
    assert found.facts[names[0]] == {"split": "train", "mask": "case0/mask.png"}
    assert any("train.json is not read" in note for note in found.notes)
    error = outcome(write_folder(tmp_path / "texts", members | documents("answer")), {}).error
    assert "--labels none --masks '{dir}/mask.png' (masks alone; train.json is not read" in error
    rule = "csv:train.json,validate.json:img_name:answer"
    assert re.search(f"--labels {rule} [^(]*--masks '{{dir}}/mask.png' --split tables", error)


def test_numbers_in_names_are_proposed_beside_a_document_that_is_not_read(tmp_path: Path) -> None:
    names = ("001A02", "001A43a", "001A43b", "014A61", "047A00", "063A44")
    members = pictures(*(f"faces/{one}.jpg" for one in names))
    members |= {f"points/{one.lower()}.pts": b"version: 1\n20.5 22.25\n" for one in names}
    ages = {"labels": r"regex:A(?P<label>\d+)[^/]*$", "target": "regression"}
    assert [one.options for one in choices(tmp_path, members)][:2] == [{"labels": "none"}, ages]


def test_tables_that_name_images_and_are_not_read_are_noted(tmp_path: Path) -> None:
    members = pictures(*(f"photos/{i}.jpg" for i in range(100, 108)))
    ids = range(100, 108)
    members["labels.csv"] = "\n".join(["id,label", *(f"{i},{'ab'[i % 2]}" for i in ids)]).encode()
    sizes = ["id,width,height", *(f"{i},16,16" for i in ids)]
    members["sizes.csv"] = "\n".join(sizes).encode()
    members["abels.csv"] = "\n".join(["id,height", *(f"{i},16" for i in ids[:3])]).encode()
    members["others.csv"] = b"id,depth\nx,16\ny,16\n"
    members["sample_submission.csv"] = members["labels.csv"]
    notes = " ".join(catalog(tmp_path, members).findings)
    what = "tables that name images and are not read: "
    assert f"{what}abels.csv (columns id, height), sizes.csv (columns id, width, height)" in notes
    assert "others.csv" not in notes
