"""Boxes and masks in the report: findings, counts and drawings."""

import base64
import io
import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, OBJECT_MASK
from shardprep.image.drawing import class_colour
from shardprep.reporter.findings.finding import OF_ANNOTATIONS
from shardprep.reporter.findings.labels import is_tiny, near_duplicates, twice
from shardprep.reporter.page.pictures import MOST_BOXES
from shardprep.reporter.report import Report
from tests.reporter.pages import checked, packed, page_of, reported
from tests.support.annotated import HEIGHT, MARKED, WIDTH, Marked, annotated
from tests.support.builders import png
from tests.support.viewing import served


class Uniform(Marked):
    def classes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.zeros((HEIGHT, WIDTH), np.uint8)


class Idle(Marked):
    def classes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        found = np.full((HEIGHT, WIDTH), 255, np.uint8)
        found[:5] = 0
        return found


class Short(Marked):
    @property
    def boxes(self) -> tuple[float, ...]:
        return (0.0, 0.0, 1.0)


ODD = {**MARKED, "train/b.png": Uniform(), "test/g.png": Idle()}
RECTANGLE = "M8 4h32v16h-32z"
"""The first box of train/a.png: top 4, left 8, bottom 20, right 40, at the stored size."""


@pytest.fixture(name="odd", scope="module")
def _odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated(tmp_path_factory.mktemp("odd"), BOX, BOX_LABEL, CROWD, MASK, marked=ODD)


def keys(report: Report) -> dict[str, set[str]]:
    return {one.name: set(one.keys) for one in report.findings if one.name in OF_ANNOTATIONS}


def test_odd_boxes_and_masks_are_found(odd: Path) -> None:
    report = reported(odd)
    assert keys(report) == {
        "dropped-objects": {"train/a.png", "train/e.png"},
        "duplicate-boxes": {"train/d.png"},
        "tiny-boxes": {"train/d.png"},
        "uniform-masks": {"train/b.png", "train/c.png"},  # c has one class and ignored pixels
        "ignored-pixels": {"test/g.png"},
    }
    dropped = next(one for one in report.findings if one.name == "dropped-objects")
    assert "4 objects" in dropped.what
    assert "1 outside, 3 zero size" in dropped.what


def test_object_classes_missing_in_train_are_named(tmp_path: Path) -> None:
    marked = {key: Marked(((0, 0, 9, 9),), (int(key[:4] == "test"),)) for key in MARKED}
    report = reported(annotated(tmp_path, BOX, BOX_LABEL, marked=marked), has_pixels=False)
    missing = next(one for one in report.findings if one.name == "missing-object-classes")
    assert missing.severity == "serious"
    assert missing.what == "1 class of objects or masks has none in train: blue"
    assert (missing.num_found, missing.num_looked_at) == (1, 2)


def test_documents_alone_tell_of_masks_and_of_objects_left_out(odd: Path) -> None:
    report = reported(odd, has_pixels=False)
    assert set(keys(report)) == {"dropped-objects", "uniform-masks", "ignored-pixels"}
    page = checked(report.html().encode())
    assert "8 objects in 5 of 7 images; 2 without one. 1 clipped" in page.text
    assert "Sizes of boxes" not in page.text
    assert "Masks" in page.text


def test_boxes_equal_the_records_and_are_cached(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = reported(odd)
    assert report.measured is not None
    boxes = report.measured.boxes
    contents = report.contents
    for number, key in enumerate(contents.keys_of(range(len(contents)))):
        own = boxes[boxes["record"] == number]
        assert tuple(own["label"]) == ODD[key].labels
        assert np.allclose(own["corners"].ravel(), ODD[key].boxes)
        assert (own["size"] == (HEIGHT, WIDTH)).all()
    assert (is_tiny(boxes).sum(), len(twice(boxes))) == (1, 1)

    monkeypatch.setattr("shardprep.reporter.pixels._pass", None)
    again = reported(odd).measured
    assert again is not None
    assert (again.boxes == boxes).all()


@given(st.data())
def test_near_duplicates_equal_a_comparison_of_all_pairs(data: st.DataObject) -> None:
    side = st.integers(0, 40)
    number = data.draw(st.integers(0, 25))
    low = [(data.draw(side), data.draw(side)) for _ in range(number)]
    size = [(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))) for _ in range(number)]
    boxes = np.array([(a, b, a + c, b + d) for (a, b), (c, d) in zip(low, size, strict=True)])
    boxes = boxes.reshape(-1, 4) / 80.0
    if number and data.draw(st.booleans()):
        boxes = np.concatenate([boxes, boxes[: number // 2 + 1] + 0.0005])
    image = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=len(boxes), max_size=len(boxes))), int
    )
    label = np.zeros(len(boxes), int)
    expected = 0
    for i, j in itertools.combinations(range(len(boxes)), 2):
        a, b = boxes[i], boxes[j]
        inner = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
        union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inner
        expected += bool(image[i] == image[j] and inner > 0.9 * union)
    assert len(near_duplicates(image, label, boxes)) == expected


def test_a_record_whose_boxes_are_damaged_is_named(tmp_path: Path) -> None:
    """The viewer does not say that its image cannot be decoded."""
    marked = {**MARKED, "train/a.png": Short(((0, 0, 4, 4),), (0,))}
    path = annotated(tmp_path, BOX, BOX_LABEL, marked=marked)
    report = reported(path)
    found = {one.name: one.keys for one in report.findings}
    assert found["damaged-records"] == ("train/a.png",)
    what = next(one.what for one in report.findings if one.name == "damaged-records")
    assert what.startswith("1 record is damaged; train/a.png: objects/bbox has 3 values, which is")
    with served(path) as one:
        pages = [one.client.page(f"/item/{number}") for number in range(len(marked))]
    (text,) = [page for page in pages if "cannot be drawn" in page]
    assert "its image or annotations cannot be drawn (cannot reshape" in text
    assert "cannot be decoded" not in text


def test_boxes_and_masks_are_drawn_where_they_are(
    odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the stored size, pixels of the picture are pixels of the record."""
    data = reported(odd).html()
    page = checked(data.encode())
    drawn = [attrs for tag, attrs in page.tags if tag == "path" and attrs.get("stroke")]
    colours = [f"#{bytes(class_colour(label)).hex()}" for label in (0, 1)]
    assert {"d": RECTANGLE, "stroke": colours[0]} in drawn
    assert {one["stroke"] for one in drawn} == set(colours)
    assert sum((one["d"] or "").count("M") for one in drawn) == 8
    assert "boxes: red × 1, blue × 1" in page.text

    alts = {attrs["alt"] for tag, attrs in page.tags if tag == "img"}
    assert "masks: ground: 77%, red: 17%, blue: 5%, ignored: 2%" in alts

    masks = [attrs for tag, attrs in page.tags if tag == "img" and attrs.get("class") == "over"]
    assert len(masks) == len(ODD)
    contents = reported(odd).contents
    place = contents.keys_of(range(len(contents))).index("train/a.png")
    found = []
    for attrs in masks:
        encoded = (attrs["src"] or "").partition("base64,")[2]
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
            found.append(np.asarray(image.convert("RGBA")))
    mask = found[place]
    assert mask.shape == (HEIGHT, WIDTH, 4)
    assert tuple(mask[10, 20]) == (*class_colour(1), 255)
    assert tuple(mask[40, 5]) == (*class_colour(2), 255)

    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path))
    assert reported(odd).html() == data


def test_names_of_objects_and_of_mask_values_stay_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = ("<script>alert(1)</script>", '"onload="x', "\u202egnp.exe" * 30)
    monkeypatch.setattr("tests.support.annotated.CLASSES", odd[:2])
    monkeypatch.setattr("tests.support.annotated.MASK_CLASSES", odd)
    page = page_of(annotated(tmp_path, BOX, BOX_LABEL, MASK))
    assert "<script>alert(1)</script>" in page.text
    assert "\u202e" not in page.text


def test_objects_with_masks_are_drawn_as_masks(tmp_path: Path) -> None:
    path = annotated(tmp_path, BOX, BOX_LABEL, OBJECT_MASK)
    page = page_of(path)
    assert not [attrs for tag, attrs in page.tags if tag == "path" and attrs.get("stroke")]
    alts = {attrs["alt"] for tag, attrs in page.tags if attrs.get("class") == "over"}
    assert "masks: red × 1, blue × 1" in alts
    assert "Show masks" in page.text


def test_of_very_many_boxes_the_largest_are_drawn(tmp_path: Path) -> None:
    many = tuple((i % 40, i % 50, i % 40 + 2, i % 50 + 2) for i in range(3000))
    marked = {**MARKED, "train/a.png": Marked(((0, 0, 48, 64), *many), (0,) * 3001)}
    page = page_of(annotated(tmp_path, BOX, BOX_LABEL, marked=marked))
    counts = [(attrs["d"] or "").count("M") for tag, attrs in page.tags if attrs.get("stroke")]
    assert max(counts) == MOST_BOXES
    assert f"red × 3,001; the {MOST_BOXES} largest are drawn" in page.text


def test_a_page_without_annotations_does_not_mention_them(report: Report) -> None:
    page = checked(report.html().encode())
    assert not re.search(r"\b(boxes|masks?|objects)\b", page.text)


@pytest.mark.parametrize(("most", "end"), [(1, 2), (3, 4), (39, 40), (40, 42), (100, 102)])
def test_the_axis_of_objects_in_an_image_ends_at_the_data(
    tmp_path: Path, most: int, end: int
) -> None:
    rows = ["image,xmin,ymin,xmax,ymax,class"]
    rows += [f"0.png,{i % 40},{i // 40},{i % 40 + 8},{i // 40 + 8},cat" for i in range(most)]
    rows.append("1.png,1,1,9,9,cat")
    members = {f"{i}.png": png(seed=i) for i in range(2)} | {"b.csv": "\n".join(rows).encode()}
    rule = "csv:b.csv:image:xmin,ymin,xmax,ymax:class"
    path = packed(tmp_path, members, size="none", labels="none", boxes=rule)
    chart = reported(path, has_pixels=False).html().partition("Objects in an image")[2]
    ticks = re.findall(r'text-anchor="(?:start|middle|end)">([^<]*)<', chart.partition("</svg>")[0])
    assert (ticks[0], ticks[-1]) == ("0", str(end))


def test_the_axis_of_a_quality_ends_at_the_data_or_its_threshold(report: Report) -> None:
    found = {one.name: one for one in report.qualities}
    assert found["enlarged"].histogram.high == pytest.approx(2.6)  # 64 × 64 of 40 × 40
    assert found["odd-aspect"].histogram.high == pytest.approx(4.3)  # 300 by 70
    for one in found.values():
        assert sum(map(sum, one.histogram.counts.values())) == 60
