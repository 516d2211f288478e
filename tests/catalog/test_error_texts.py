"""Errors are whole sentences, also if a list is empty or a number is 1."""

from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import ShardprepError, name_options_as_flags
from tests.catalog.advice_rows import table
from tests.catalog.builders import catalog, images
from tests.support.builders import jpeg

TWO = images("a.jpg", "b.jpg")
TWICE = TWO | {"t.csv": table("id,label", "a,x", "a,y", "b,x")}
IN_ROOT: dict[str, Any] = {"labels": "none", "split": "roots:train=x"}
MASKS = {"i/a.jpg": jpeg(), "m/a.png": b"\x89PNG\r\n\x1a\n"}


@pytest.mark.parametrize(
    ("members", "options", "said"),
    [
        (TWO, {"labels": "csv:x.csv"}, "; name a file on disk"),
        (
            TWO,
            {"labels": "none", "exclude_list": "IMG_0017"},
            "; give a file on disk, or in Python a list of ids",
        ),
        (
            TWO | {"t.csv": table("id,x,y,w,h")},
            {"boxes": "csv:t.csv:id:x,y,w,h"},
            "t.csv: has no rows; write a row for each image",
        ),
        (
            TWO | {"t.csv": table("id,label,part", "a,x,", "b,y,")},
            {"labels": "csv:t.csv:id:label", "split": "column:part:1=train"},
            "no image has 1 in column 'part'; fill the column, or name another column",
        ),
        (
            TWO | {"t.csv": table("id,label,who", "a,x,", "b,y,")},
            {"labels": "csv:t.csv:id:label", "group": "who"},
            "--group who: gives no image a group; fill the column, or name another column",
        ),
        (TWO, IN_ROOT, "matches no image; leave this option out"),
        (TWO, {"labels": "none", "group": "regex:(z)"}, "group; give a pattern that fits a.jpg"),
        (
            TWO,
            {"labels": "column:label"},
            "file or one label table, but the source has none; give --labels csv:FILE:ID:label",
        ),
        (
            images("a.jpg"),
            {"labels": "none", "exclude": "*.jpg"},
            "every image is left out (1 matched by --exclude); change the options to keep images",
        ),
        (
            MASKS,
            {"masks": "m/{stem}.png"},
            "m/a.png: cannot be decoded, like every other mask that was looked at; copy the masks",
        ),
    ],
)
def test_an_error_about_nothing_or_one_thing_is_a_sentence(
    tmp_path: Path, members: dict[str, bytes], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ShardprepError) as caught:
        catalog(tmp_path, members, **options)
    assert said in str(caught.value)


VIA = b'{"a": {"filename": "a.jpg", "regions": []}, "b1": {"regions": [], "shape_attributes": 1}}'


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("boxes", "jsonl", "--boxes jsonl: no document of the source has this format"),
        ("masks", "jsonl", "--masks jsonl: no document of the source has this format"),
        ("masks", "coco", "--masks coco: no document of the source has this format"),
        ("masks", "cvat", "--masks cvat: no document of the source has this format"),
        ("masks", "labelme", "--masks labelme: no document of the source has this format"),
        ("points", "labelme", "--points labelme: no document of the source has this format"),
        ("masks", "yolo", "--masks yolo: no document of the source has this format"),
        ("boxes", "voc", "--boxes voc: no document of the source has this format"),
        ("masks", "csv:t.csv:id:1,2,3", "masks=\"csv\": '1,2,3' is not one column, four or eight"),
        ("points", "csv:{id}.csv:id:xywh(1,2)", "points=\"csv\": 'xywh(1,2)' is not one column"),
        ("masks", "via:v.json", "is not JSON of VIA: entry 'b1' has no 'filename'; export it"),
        ("masks", "via:l.json", "is not JSON of VIA: the document is not an object; export it"),
        ("masks", "via:e.json", "is not JSON of VIA: entry 'a' is not an object; export it"),
    ],
)
def test_an_error_of_a_format_names_the_option_that_has_it(
    tmp_path: Path, option: str, value: str, said: str
) -> None:
    members = TWO | {"v.json": VIA, "l.json": b"[1]", "e.json": b'{"a": 1}'}
    with pytest.raises(ShardprepError) as caught:
        catalog(tmp_path, members, "none", **{option: value})
    assert said in str(caught.value)


@pytest.mark.parametrize("pattern", ["gt.png", "{name}", "{id}/gt.png"])
def test_errors_of_target_patterns_recommend_what_fits_targets(
    tmp_path: Path, pattern: str
) -> None:
    members = {f"{i}/{name}.png": jpeg() for i in range(2) for name in ("gt", "x", "y")}
    with pytest.raises(ShardprepError) as caught:
        catalog(tmp_path, members, "none", target_image=pattern)
    assert "{folder}" in (said := str(caught.value))
    assert "{id}" not in said.rpartition("; ")[2]
    made = catalog(tmp_path / "right", members, "none", target_image="{folder}/gt.png")
    assert [one.key for one in made.items] == ["0/x.png", "0/y.png", "1/x.png", "1/y.png"]


def test_two_labels_of_an_image_are_answered_by_one_option_for_each_meaning(
    tmp_path: Path,
) -> None:
    name_options_as_flags(yes=False)
    try:
        with pytest.raises(ShardprepError) as caught:
            catalog(tmp_path, TWICE, "csv:t.csv:id:label")
    finally:
        name_options_as_flags()
    assert str(caught.value) == (
        "t.csv: gives a.jpg two labels, 'x' and 'y'; give one row for each image. "
        'Or keep several rows with target="multilabel" (classes), target="texts" (texts) or '
        'pivot="COLUMN" (a row for each image and target)'
    )
