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
            "every image is left out (1 matched by --exclude); keep images such as a.jpg",
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
