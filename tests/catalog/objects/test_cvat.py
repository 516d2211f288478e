"""CVAT's XML for images: what is taken of its shapes, and what a stranger's may not do."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from shardprep.errors import QuestionError, SourceError
from shardprep.image.annotation_types import Runs
from shardprep.image.rasterize import outline_mask
from shardprep.reader import Dataset
from tests.catalog.builders import survey
from tests.support.annotated import PIXELS, source
from tests.support.builders import Quiet, build, write, zip_bytes
from tests.support.command import run
from tests.support.examples import examples

HEIGHT, WIDTH = 30, 40
LABELS = ("dog", "cat", "unused")


def element(tag: str, **facts: Any) -> str:
    pairs = " ".join(f'{name}="{value}"' for name, value in facts.items())
    return f"<{tag} {pairs}></{tag}>"


def image(name: str, *shapes: str, **facts: Any) -> str:
    sides = {"width": WIDTH, "height": HEIGHT, **facts}
    return element("image", name=name, **sides).replace("></image>", f">{''.join(shapes)}</image>")


def document(*images: str, labels: tuple[str, ...] = LABELS) -> str:
    """Return what CVAT exports; the classes of a skeleton, its points and a tag have no area."""
    named = "".join(f"<label><name>{name}</name><type>any</type></label>" for name in labels)
    named += "<label><name>body</name><type>skeleton</type></label>"
    named += "<label><name>arm</name><type>points</type><parent>body</parent></label>"
    named += "<label><name>blurred</name><type>tag</type></label>"
    meta = f"<meta><task><name>t</name><labels>{named}</labels></task><dumped>now</dumped></meta>"
    text = f"<annotations><version>1.1</version>{meta}{''.join(images)}</annotations>"
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}'


def box(label: str = "cat", **facts: Any) -> str:
    return element("box", label=label, **{"xtl": 1, "ytl": 2.5, "xbr": 9, "ybr": 8, **facts})


def polygon(points: str, label: str = "cat") -> str:
    return element("polygon", label=label, points=points)


def test_shapes_of_cvat(tmp_path: Path) -> None:
    shapes = [
        box("dog"),
        box(xtl=10, ytl=10, xbr=20, ybr=14, rotation=90).replace(
            "></box>", '><attribute name="age">name</attribute></box>'
        ),
        polygon("0.00,0.00;8,0;8,9"),
        element("ellipse", label="cat", cx=20, cy=15, rx=8, ry=4, rotation=90),
        element("mask", label="dog", rle="1,2,1,3", left=4, top=6, width=4, height=2),
        element("polyline", label="cat", points="0,0;8,0;8,9"),
        element("points", label="cat", points="0,0"),
        element("sphere", label="cat", r="3"),
        element("tag", label="blurred"),
        polygon("0,0;8,0"),
        box("stranger"),
        box(""),
    ]
    text = document(image("a.png", *shapes), image("b.png"), image("gone.png", box()))
    made = source(tmp_path, {"annotations.xml": text}, "images/a.png", "images/b.png", "c.png")
    found = made.read("cvat", outlines=True)
    one = made.of(found, "images/a.png")
    assert found.names == ("dog", "cat", "unused", "stranger")
    names = [name for name, _ in made.rows(found)["images/a.png"]]
    assert names == ["dog", "cat", "cat", "cat", "dog", "stranger"]
    wanted: list[list[float]] = [
        [1, 2.5, 9, 8], [13, 7, 17, 17], [0, 0, 8, 9], [16, 7, 24, 23], [4, 6, 7, 8], [1, 2.5, 9, 8]
    ]  # fmt: skip
    np.testing.assert_allclose(one.boxes, wanted, atol=0.02)
    unread = {f"shape '{kind}'": 1 for kind in ("polyline", "points", "sphere")}
    assert one.dropped == {"malformed": 1, "unknown class": 1, **unread}
    assert one.size == (HEIGHT, WIDTH)
    assert made.rows(found)["images/b.png"] == []
    assert [*found.without_image] == ["gone.png"]
    mask = outline_mask(one.outlines[4], one.size)  # type: ignore[arg-type]
    assert np.argwhere(mask).tolist() == [[6, 5], [6, 6], [7, 4], [7, 5], [7, 6]]
    assert made.signs() == ["cvat"]
    assert not made.of(made.read("cvat:annotations.xml"), "images/a.png").outlines


Boxes = st.tuples(*(st.integers(0, 20) for _ in range(4)), st.integers(0, 2**32 - 1))


@given(Boxes)
@examples(100, database=None)
def test_a_mask_is_the_one_that_was_drawn(drawn: tuple[int, ...]) -> None:
    """Its counts lie in a rectangle of its own; numpy says which pixels of the image these are."""
    from shardprep.catalog.objects.formats.cvat import _mask

    left, top, width, height = drawn[0], drawn[1] % 10, drawn[2] or 1, drawn[3] or 1
    inside = np.random.default_rng(drawn[4]).integers(0, 2, (height, width)).astype(np.uint8)
    inside[0, 0] = 1
    flat = np.concatenate(([0], inside.ravel(), [2]))
    edges = np.flatnonzero(np.diff(flat))
    counts = np.diff(np.concatenate(([0], edges))).tolist()
    facts = {"left": left, "top": top, "width": width, "height": height}
    texts = {name: str(value) for name, value in facts.items()}
    sides, outline = _mask({**texts, "rle": ",".join(map(str, counts))}, (HEIGHT, WIDTH))
    whole = np.zeros((HEIGHT, WIDTH), np.uint8)
    whole[top : top + height, left : left + width] = inside
    assert isinstance(outline, Runs)
    assert (outline_mask(outline, (HEIGHT, WIDTH)) == whole).all()
    rows, columns = np.nonzero(whole)
    assert sides == (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def test_boxes_and_masks_of_cvat_are_stored(tmp_path: Path) -> None:
    ring = [(4, 4), (30, 4), (30, 22)]
    points = ";".join(f"{x}.00,{y}.00" for x, y in ring)
    names = [f"photos/{i}.png" for i in range(4)]
    subsets = ("Train", "Train", "Validation", "Test")
    pairs = zip(names, subsets, strict=True)
    text = document(*(image(name, polygon(points), subset=subset) for name, subset in pairs))
    members = {**dict.fromkeys(names, PIXELS), "annotations.xml": text.encode()}
    path = write(tmp_path / "x.zip", zip_bytes(members))
    assert [sign.option for sign in survey(tmp_path, members).annotations] == ["cvat"]
    found = build(path, tmp_path / "out", size="none", format="png", masks="cvat", boxes="cvat")
    assert {name: one.num_records for name, one in found.manifest.splits.items()} == {
        "train": 2, "validation": 1, "test": 1
    }  # fmt: skip
    item = Dataset(found.path, "test", as_supervised=False)[0]
    drawn = Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(drawn).polygon(ring, fill=1)
    is_cat = np.asarray(item["segmentation_mask"]).squeeze() == 1 + LABELS.index("cat")
    assert (is_cat != (np.asarray(drawn) == 1)).mean() < 0.05
    sides = [4 / HEIGHT, 4 / WIDTH, 22 / HEIGHT, 30 / WIDTH]
    np.testing.assert_allclose(item["objects/bbox"], [sides], atol=1e-6)
    unasked = build(path, tmp_path / "auto", size="none", format="png")
    assert unasked.manifest.annotations is not None


@pytest.mark.parametrize(("shape", "is_said"), [(polygon("4,4;30,4;30,22"), True), (box(), False)])
def test_masks_are_proposed_if_the_document_has_outlines(
    tmp_path: Path, shape: str, *, is_said: bool
) -> None:
    names = [f"photos/{i}.png" for i in range(4)]
    text = document(*(image(name, shape) for name in names))
    members = {**dict.fromkeys(names, PIXELS), "annotations.xml": text.encode()}
    path = write(tmp_path / "x.zip", zip_bytes(members))
    said = run("build", path, "--dry-run", cwd=tmp_path)
    assert said.returncode == 0
    words = " ".join((said.stdout + said.stderr).split())
    assert "cvat is decided: annotations.xml: CVAT for images" in words
    assert ("--masks cvat --instances stores the outlines as well" in words) == is_said


def test_objects_of_several_documents_are_joined_and_a_large_one_is_read_in_pieces(
    tmp_path: Path,
) -> None:
    many = [image("1.png", *[box() for _ in range(1400)]), image("2.png", box("dog"))]
    texts = {"one.xml": document(*many), "two.xml": document(image("2.png", box()))}
    made = source(tmp_path, texts, "1.png", "2.png")
    rows = made.rows(made.read("cvat"))
    assert len(texts["one.xml"]) > 1 << 16
    assert [name for name, _ in rows["1.png"]] == ["cat"] * 1400
    assert [name for name, _ in rows["2.png"]] == ["dog", "cat"]
    assert made.read("cvat:two.xml").documents == ("two.xml",)


def test_objects_of_images_that_are_missing_are_counted_by_document(tmp_path: Path) -> None:
    texts = {
        "here.xml": document(image("1.png", box()), image("gone.png", box(), box())),
        "other.xml": document(image("8.png", box()), image("9.png", box(), box())),
    }
    found = source(tmp_path, texts, "1.png").read("cvat")
    assert found.without_image == {"gone.png": 2, "8.png": 0, "9.png": 0}
    assert found.num_elsewhere == 3


PROJECT = document(
    image("1.png", box("dog"), subset="Train"), image("1.png", box("cat"), subset="Validation")
)


@pytest.mark.parametrize(
    "text", [PROJECT, PROJECT.replace("Train", "A").replace("Validation", "B")]
)
def test_a_subset_tells_images_of_one_name_apart(tmp_path: Path, text: str) -> None:
    folders = ("A", "B") if "Train" not in text else ("train", "images/val")
    names = [f"{folder}/1.png" for folder in folders]
    made = source(tmp_path, {"annotations.xml": text}, *names)
    found = made.read("cvat")
    for name, wanted in zip(names, ("dog", "cat"), strict=True):
        assert [label for label, _ in made.rows(found)[name]] == [wanted]
    splits = dict(zip(made.index.keys, found.splits or (), strict=False))
    assert splits == ({} if "A" in folders else {names[0]: "train", names[1]: "validation"})
    assert not found.without_image


def test_an_image_never_gets_the_objects_of_an_excluded_one(tmp_path: Path) -> None:
    members = {f"images/{name}/1.png": PIXELS for name in ("Train", "Validation")}
    path = write(tmp_path / "x.zip", zip_bytes({**members, "a.xml": PROJECT.encode()}))
    made = build(path, tmp_path / "out", boxes="cvat", exclude=["images/Validation/*"])
    assert made.manifest.splits["train"].num_records == 1
    assert Dataset(made.path, "train", as_supervised=False)[0]["objects/label"].tolist() == [0]
    assert made.manifest.unmatched is not None
    assert made.manifest.unmatched.objects == {"image left out": 1}


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (
            [PROJECT],
            "'Train/1.png' and 'Validation/1.png' both match the image 1.png; add the missing",
        ),
        ([PROJECT.replace("subset=", "x=")], "has two entries for '1.png'; delete one of them"),
        (
            [document(image("1.png", box(), subset=s)) for s in ("Train", "Test")],
            "'Train/1.png' in x0.xml and 'Test/1.png' both match the image 1.png",
        ),
    ],
)
def test_two_entries_of_one_image_are_a_question(
    tmp_path: Path, texts: list[str], shown: str
) -> None:
    made = source(tmp_path, {f"x{i}.xml": text for i, text in enumerate(texts)}, "1.png")
    with pytest.raises(SourceError, match=re.escape(f"x{len(texts) - 1}.xml: {shown}")):
        made.read("cvat")


HUGE = "9" * 401
BAD_SHAPES = [
    box(xtl=HUGE), box(xtl="x"), box(rotation="x"), box(xtl="1e308", rotation=7),
    box().replace("xtl", "left"), polygon("1,2;3"), polygon("1,2,3;1,2,3;1,2,3"), polygon(""),
    element("ellipse", label="cat", cx=1, cy=1, rx="1e999", ry=1),
    element("mask", label="cat", rle="1,2", left=0, top=0, width=HUGE, height=1),
    element("mask", label="cat", rle="1,2", left=39, top=0, width=2, height=1),
    element("mask", label="cat", rle="1,-2", left=0, top=0, width=2, height=1),
    element("mask", label="cat", rle="1,2", left=0, top=0, width=2, height=1),
    element("mask", label="cat", rle="2", left=0, top=0, width=2, height=1),
    element("mask", label="cat", rle="", left=0, top=0, width=2, height=1),
    element("mask", label="cat", rle=HUGE * 20, left=0, top=0, width=2, height=1),
]  # fmt: skip


@pytest.mark.parametrize("shape", BAD_SHAPES)
def test_a_shape_that_has_no_area_is_counted(tmp_path: Path, shape: str) -> None:
    text = document(image("1.png", shape, box()))
    made = source(tmp_path, {"a.xml": text}, "1.png")
    one = made.of(made.read("cvat", outlines=True), "1.png")
    assert (len(one.labels), one.dropped) in [(1, {"malformed": 1}), (2, {})]
    if len(one.labels) == 2:  # a box of a number that a float holds as infinite
        assert not np.isfinite(one.boxes[0]).all()


def test_tags_are_counted(tmp_path: Path) -> None:
    text = document(image("1.png", box(), element("tag", label="blurred")))
    found = source(tmp_path, {"a.xml": text}, "1.png").read("cvat")
    assert found.findings == ["1 tag of CVAT, labels of images, not read"]


def test_sides_of_400_digits_are_not_stated(tmp_path: Path) -> None:
    text = document(image("1.png", box(), width=HUGE))
    made = source(tmp_path, {"a.xml": text}, "1.png")
    assert made.of(made.read("cvat"), "1.png").size is None


def _bad() -> Iterator[tuple[str, str]]:
    whole = document(image("1.png", box()))
    yield whole[:-30], "is damaged XML"
    yield "", "is damaged XML"
    yield "<a/>", "is not XML of CVAT: its root is 'a'"
    yield (
        whole.replace("<annotations>", "<!DOCTYPE annotations><annotations>"),
        "has a document type",
    )
    yield document("<track id='0' label='cat'></track>"), "is XML of CVAT for a video, with tracks"
    yield document(image("9.png", box())), "none of its images, such as 9.png, is in the source"
    yield document(), "none of its images is in the source"
    yield document("<a>" * 100_000), "is damaged XML"
    yield whole.replace('encoding="utf-8"', 'encoding="x"'), "is damaged XML"
    yield document(image("&#55296;")), "is damaged XML"
    yield document(image("&x;")), "is damaged XML"


@pytest.mark.parametrize(("text", "message"), [*_bad()])
def test_a_bad_document_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    made = source(tmp_path, {"a.xml": text}, "1.png")
    with pytest.raises(SourceError, match=re.escape(f"a.xml: {message}")) as raised:
        made.read("cvat:a.xml")
    assert "\n" not in str(raised.value)
    assert made.signs() == []


LABELME = (
    "<annotation><filename>{0}.png</filename><folder>f</folder><object><name>cat</name>"
    "<deleted>0</deleted><polygon><pt><x>1</x><y>2</y></pt><pt><x>9</x><y>2</y></pt>"
    "<pt><x>9</x><y>9</y></pt></polygon></object></annotation>"
)
"""The XML of MIT's old LabelMe: its root is that of VOC, its objects have no boxes."""


def test_the_xml_of_labelme_is_not_proposed_as_voc(tmp_path: Path) -> None:
    members = {f"photos/{i}.png": PIXELS for i in range(6)}
    members |= {f"Annotations/{i}.xml": LABELME.format(i).encode() for i in range(6)}
    seen = survey(tmp_path, members)
    assert seen.annotations == ()
    assert not [line for line in seen.findings if "VOC" in line]
    path = write(tmp_path / "x.zip", zip_bytes(members))
    with pytest.raises(QuestionError, match=r"Annotations/0\.xml is not read") as caught:
        build(path, tmp_path / "out", size="none", watcher=Quiet())
    assert "VOC" not in str(caught.value)
