"""An option that has nothing to do in a source is never silent: a note or an error says so."""

import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep.errors import ShardprepError
from shardprep.recipe.options import BUILD_OPTIONS, RUN_OPTIONS
from tests.catalog.builders import catalog, detection, images, masked
from tests.support.arrays import npy
from tests.support.builders import jpeg, png, write_folder
from tests.support.dicom import dicom

CLASSES = images("cat/1.jpg", "dog/2.jpg")
TABLE = images("1.jpg", "2.jpg") | {
    "l.csv": b"id,label\n1,a\n2,b\n",
    "more.csv": b"id,age\n1,7\n2,8\n",
}
MASKS = masked(2, 0, 1)
YOLO = {f"images/{i}.jpg": jpeg(48, 64, seed=i) for i in range(2)} | {
    f"labels/{i}.txt": b"0 0.5 0.5 0.2 0.2\n" for i in range(2)
}
SLICES = {f"scans/{i}/{n}.png": png(seed=n) for i in range(2) for n in range(2)}
ARRAY = {"x.npy": npy(np.zeros((4, 8, 8), np.uint16))}
NOTHING_STORED = "no boxes, masks or keypoints are stored"
OF_MASKS = {"labels": "none", "masks": "masks/{name}"}
NOTES: list[tuple[str, Any, dict[str, bytes], dict[str, Any], str]] = [
    *(
        (option, value, CLASSES, {"labels": "folder"}, NOTHING_STORED)
        for option, value in (
            ("mask_values", "0=background,1=x"),
            ("instances", True),
            ("crowds", "objects"),
            ("rle", "row"),
            ("annotated", "stored"),
            ("unlisted", "skip"),
            ("max_dropped", 1.0),
        )
    ),
    ("min_visible", 0.5, CLASSES, {"labels": "folder"}, "no objects are stored"),
    ("min_visible", 0.5, MASKS, OF_MASKS, "no objects are stored"),
    ("max_clipped", 1.0, CLASSES, {"labels": "folder"}, "no boxes or outlines are read"),
    ("max_clipped", 1.0, MASKS, OF_MASKS, "no boxes or outlines are read"),
    ("annotated_size", "image", MASKS, OF_MASKS, "no boxes or outlines are read"),
    ("annotated_size", "image", YOLO, {"boxes": "yolo"}, "no size is stated in pixels"),
    ("target", "class", CLASSES, {"labels": "none"}, "no image has a label"),
    ("separator", "|", CLASSES, {"labels": "none"}, "targets are not several classes"),
    *(
        ("separator", "|", TABLE, {"labels": "csv:l.csv:id:label", "target": kind},
        "targets are not several classes")
        for kind in ("class", "text")
    ),
    ("header", False, CLASSES, {"labels": "folder"}, "no table is read"),
    ("null", ("x",), CLASSES, {"labels": "folder"}, "no table is read"),
    *(
        ("join", ("more.csv",), TABLE, {"labels": rule}, "no option names a column of its table")
        for rule in ("csv:l.csv:id:label", "none")
    ),
    (
        "depth_range", "auto", CLASSES, {"labels": "folder"},
        "no image can have more than 8 bits",
    ),
    (
        "depth_range", "auto", images(*(f"{i}/{n}.jpg" for i in "ab" for n in "12")),
        {"stack": "{id}/*.jpg"}, "no image can have more than 8 bits",
    ),
    ("window", "full", CLASSES, {"labels": "folder"}, "no image is a DICOM file"),
    ("window", (40, 400), SLICES, {"stack": "scans/{id}/*.png"}, "no image is a DICOM file"),
    ("window", (40, 400), CLASSES, {"tile": (32, 32)}, "no image is a DICOM file"),
    ("window", "full", ARRAY, {"images": ("x.npy",)}, "no image is a DICOM file"),
    ("follow_links", True, CLASSES, {"labels": "folder"}, "no link leads outside"),
    ("zip_encoding", "cp932", CLASSES, {"labels": "folder"}, "all names are ASCII"),
]  # fmt: skip
OTHER_NOTES: list[tuple[str, Any, str]] = [
    ("classes", ("cat", "dog", "dgo"), "--classes: no image is of class dgo"),
    ("exclude", ("b/*",), "--exclude: b/* fits nothing"),
    ("include", ("*.jpg", "b/*"), "--include: b/* fits nothing"),
    ("dedup", "near", "no near copies are found"),
    ("group", "near", "no near copies are found"),
    ("tile", (512, 512), "0 images cut into 0 tiles of 512x512 pixels, 2 not cut"),
]
REFUSED: list[tuple[str, Any]] = [
    ("depth", 16),
    ("pivot", "name"),
    ("class_map", "x=y"),
    ("relabel", "csv:none.csv:id:label"),
    ("columns", ("age",)),
    ("rows", "csv:none.csv:id:x"),
    ("boxes", "voc"),
    ("masks", "masks/{name}"),
    ("points", "coco"),
    ("target_image", "GT/{name}"),
    ("items", "none.csv"),
    ("images", ("*.npy",)),
    ("stack", "x/{id}/*.png"),
    ("overlap", (8, 8)),
    ("root", "x"),
    ("exclude_list", "none.txt"),
    ("schema", "none"),
    ("split", "tables"),
    ("refresh", True),
]
_FILE = re.compile(r"none[.\w]*|coco")
ALWAYS_ACT = {
    "": "source out name version shards size fit format seed labels overwrite part",
    "with their default, other options act": "quality background",
    "a limit, which is there for what may come": "max_pixels min_side max_aspect truncated "
    "timeout max_members max_member_size max_unpacked max_ratio max_depth max_rejected "
    "store_timeout save_rejected",
    "the run": "workers reuse profile dry_run items_out json quiet log_level",
}
"""Options that are not said to be without effect, by the reason."""


@pytest.mark.parametrize(("option", "value", "members", "keys", "what"), NOTES)
def test_an_option_without_effect_is_a_note(
    tmp_path: Path, option: str, value: Any, members: dict[str, bytes], keys: Any, what: str
) -> None:
    said = f"--{option.replace('_', '-')} has no effect: {what}"
    rule = {"labels": "none"} | keys
    before = catalog(tmp_path / "before", members, **rule).findings
    made = catalog(tmp_path / "after", members, **rule, **{option: value}).findings
    assert [line for line in made if line not in before] == [said]


@pytest.mark.parametrize("names", ["{}/{}.dcm", "{}/{}"])
def test_a_window_of_stacks_of_dicom_files_has_an_effect(tmp_path: Path, names: str) -> None:
    """Also of files without a suffix."""
    slices = [np.full((8, 8), number, np.uint16) for number in range(2)]
    members = {names.format(i, n): dicom(one) for i in "ab" for n, one in enumerate(slices)}
    found = catalog(
        tmp_path, members, labels="none", stack=names.format("{id}", "*"), window="full"
    )
    assert not any("--window" in line for line in found.findings)


@pytest.mark.parametrize(("option", "value", "said"), OTHER_NOTES)
def test_an_option_that_finds_nothing_is_a_note(
    tmp_path: Path, option: str, value: Any, said: str
) -> None:
    source = write_folder(tmp_path / "set", {"cat/1.jpg": jpeg(seed=1), "dog/2.jpg": jpeg(seed=2)})
    plan = shardprep.build(source, labels="folder", dry_run=True, **{option: value})
    assert said in plan.plan.findings


def test_a_separator_that_no_label_has_is_a_note_with_the_one_that_labels_have(
    tmp_path: Path,
) -> None:
    rows = b"id,label\n1,a\n2,b\n3,a|b\n4,a|c\n"
    members = images(*(f"{i}.png" for i in range(1, 5))) | {"l.csv": rows}
    made = catalog(tmp_path, members, labels="csv:l.csv:id:label", separator=";")
    meant = "--separator: no label has ';', but '|' separates words that recur"
    assert meant in made.findings
    named = catalog(tmp_path / "2", members, labels="csv:l.csv:id:label", separator="|")
    assert not any("--separator" in one for one in named.findings)


@pytest.mark.parametrize(("option", "value"), REFUSED)
def test_an_option_that_lacks_what_it_needs_is_an_error(
    tmp_path: Path, option: str, value: Any
) -> None:
    source = write_folder(tmp_path / "set", CLASSES)
    named = "|".join([f"--{option.replace('_', '-')}", *_FILE.findall(str(value))])
    with pytest.raises(ShardprepError, match=named):
        shardprep.build(source, tmp_path, **{"labels": "folder", option: value})


def test_every_option_of_a_build_is_in_the_tables() -> None:
    listed = [row[0] for row in (*NOTES, *OTHER_NOTES, *REFUSED)]
    listed += " ".join(ALWAYS_ACT.values()).split()
    assert {*listed} == {*BUILD_OPTIONS, *RUN_OPTIONS}


def test_an_option_with_an_effect_is_not_said_to_have_none(tmp_path: Path) -> None:
    def notes(name: str, members: dict[str, bytes], labels: str = "none", **keys: Any) -> list[str]:
        made = catalog(tmp_path / name, members, labels, **keys)
        return [line for line in made.findings if "no effect" in line]

    boxes: dict[str, Any] = {
        "boxes": "voc",
        "min_visible": 0.5,
        "max_clipped": 1.0,
        "max_dropped": 1.0,
    }
    assert notes("boxes", detection(), annotated="stored", annotated_size="image", **boxes) == []
    labels = "csv:l.csv:id:label"
    assert notes("columns", TABLE, labels, join=("more.csv",), columns=("age",)) == []
    assert notes("group", TABLE, labels, join=("more.csv",), group="age") == []
    assert notes("label", TABLE, "csv:l.csv:id:age", join=("more.csv",), target="class") == []
    headless = {**TABLE, "l.csv": b"1,a\n2,b\n"}
    assert notes("header", headless, "csv:l.csv:1:2", header=False, null=("b",)) == []
    assert notes("png", images("1.png"), depth_range="auto") == []
    assert notes("dicom", images("1.jpg", "2.dcm"), window="full") == []
    with zipfile.ZipFile(tmp_path / "named.zip", "w") as archive:
        archive.writestr("日本.jpg", jpeg())
    assert (
        notes("zip", {"a.zip": (tmp_path / "named.zip").read_bytes()}, zip_encoding="cp932") == []
    )
    outside = write_folder(tmp_path / "outside", images("1.jpg"))
    source = write_folder(tmp_path / "links" / "source", images("2.jpg"))
    (source / "3.jpg").symlink_to(outside / "1.jpg")
    assert notes("links", {}, follow_links=True) == []
