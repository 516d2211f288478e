"""Masks of numbered objects, as Pascal VOC's SegmentationObject, from source to record."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.errors import BuildError, RecipeError
from shardprep.image.masks import decode_numbers
from shardprep.writer.finalize import BuildResult
from tests.catalog.builders import thing, xml
from tests.support.builders import build, encoded, write_folder
from tests.writer.records import boxes, png, records

OBJECTS = {"a": (2, 1, 2), "b": (1,)}
"""Class of each object in turn, by the name of its image; 1 is a cat and 2 a dog."""
NAMES = ("background", "cat", "dog")
KEYS: dict[str, Any] = {
    "masks": "SegmentationObject/{stem}.png",
    "instances": True,
    "size": "none",
    "fit": "none",
    "max_dropped": 0.5,
    "name": "voc",
}


def colour(index: int) -> tuple[int, int, int]:
    red = green = blue = 0
    for i in range(8):
        red |= (index & 1) << (7 - i)
        green |= (index >> 1 & 1) << (7 - i)
        blue |= (index >> 2 & 1) << (7 - i)
        index >>= 3
    return red, green, blue


def drawn(values: tuple[int, ...], *, colours: bool = False) -> bytes:
    """Return a palette or colour PNG of 10 rows, with 10 columns of each value and a border."""
    pixels = np.repeat(np.array((*values, 255), np.uint8), 10)[None].repeat(10, 0)
    palette = np.array([colour(i) for i in range(256)], np.uint8)
    if colours:
        return encoded(Image.fromarray(palette[pixels]), "PNG")
    image = Image.fromarray(pixels, "P")
    image.putpalette(palette.tobytes())
    return encoded(image, "PNG")


def voc(*parts: str, colours: bool = False) -> dict[str, bytes]:
    """Return images with masks of their objects; `parts` are folders of what says the classes."""
    members: dict[str, bytes] = {}
    for name, labels in OBJECTS.items():
        width = 10 * (len(labels) + 2)
        members[f"VOC/JPEGImages/{name}.png"] = encoded(Image.new("RGB", (width, 10)), "PNG")
        numbers = tuple(range(len(labels) + 1))
        members[f"VOC/SegmentationObject/{name}.png"] = drawn(numbers, colours=colours)
        if "SegmentationClass" in parts:
            members[f"VOC/SegmentationClass/{name}.png"] = drawn((0, *labels), colours=colours)
        if "Annotations" in parts:
            things = [thing(NAMES[one], 10 * i + 11, 2, 10 * i + 19, 9)
                      for i, one in enumerate(labels)]  # fmt: skip
            text = xml(*things, filename=f"{name}.png", size=f"10 {width}")
            members[f"VOC/Annotations/{name}.xml"] = text.encode()
    return members


def built(folder: Path, members: dict[str, bytes], **keys: Any) -> BuildResult:
    return build(write_folder(folder / "source", members), folder / "out", **{**KEYS, **keys})


def classes(result: BuildResult) -> dict[str, list[str]]:
    """Return the classes of the objects of each image, whose masks must be in their order."""
    names = (result.path / "objects-label.labels.txt").read_text().split()
    found = {}
    for key, features in records(result.path).items():
        for number, data in enumerate(features["objects/mask"], 1):
            mask = png(data)
            assert mask[:, 10 * number : 10 * number + 10].all()
            assert mask.sum() == 100
        stem = key.rpartition("/")[2][0]
        found[stem] = [names[label] for label in features["objects/label"]]
    return found


BY_NAME = {"a": ["dog", "cat", "dog"], "b": ["cat"]}
BY_NUMBER = {"a": ["2", "1", "2"], "b": ["1"]}


@pytest.mark.parametrize(
    ("parts", "keys", "wanted", "colours"),
    [
        (["Annotations"], {}, BY_NAME, False),
        (["Annotations"], {"boxes": "voc"}, BY_NAME, True),
        (["SegmentationClass"], {"mask_values": "{table}"}, BY_NAME, True),
        (["SegmentationClass", "Annotations"], {}, BY_NAME, False),
        (["SegmentationClass", "Annotations"], {"mask_values": "{table}"}, BY_NAME, False),
        ([], {}, {"a": ["object"] * 3, "b": ["object"]}, False),
    ],
)
def test_numbered_objects_keep_their_classes(
    tmp_path: Path,
    parts: list[str],
    keys: dict[str, str],
    wanted: dict[str, list[str]],
    colours: bool,  # noqa: FBT001
) -> None:
    table = "0=background,1=cat,2=dog,255=ignore"
    if colours:
        pairs = [(*colour(i), name) for i, name in enumerate((*NAMES, "ignore"))]
        pairs[-1] = (*colour(255), "ignore")
        table = ",".join(f"#{r:02x}{g:02x}{b:02x}={name}" for r, g, b, name in pairs)
    options = {key: value.replace("{table}", table) for key, value in keys.items()}
    result = built(tmp_path, voc(*parts, colours=colours), **options)
    assert classes(result) == wanted
    assert not any(one.dropped for one in result.manifest.annotations.values())
    for key, features in records(result.path).items():
        width = 10 * (len(OBJECTS[key[-5]]) + 2)
        left = (boxes(features) * width)[:, 1]
        first = 11 if "boxes" in keys else 10  # boxes of the XML are smaller than the masks
        assert left.round(3).tolist() == [first + 10 * i for i in range(len(left))]


def test_classes_without_names_are_called_by_their_values(tmp_path: Path) -> None:
    result = built(tmp_path, voc("SegmentationClass"))
    assert classes(result) == BY_NUMBER
    assert not result.manifest.totals.skipped


def test_class_files_are_skipped_where_the_xml_says_more(tmp_path: Path) -> None:
    result = built(tmp_path, voc("SegmentationClass", "Annotations"))
    assert result.manifest.totals.skipped == {"looks like a mask": 2}


def test_class_files_that_are_excluded_say_nothing(tmp_path: Path) -> None:
    result = built(tmp_path, voc("SegmentationClass"), exclude="SegmentationClass/*")
    assert classes(result)["b"] == ["object"]
    assert result.manifest.totals.skipped == {"matched by --exclude": 2}


def test_every_object_is_stored_or_dropped_with_a_reason(tmp_path: Path) -> None:
    """The XML has no third object of a, and one of b that the mask lacks."""
    members = voc("Annotations")
    members["VOC/Annotations/a.xml"] = xml(
        thing("dog", 11, 2, 19, 9), thing("cat", 1, 2, "x", 4), filename="a.png", size="10 50"
    ).encode()
    members["VOC/Annotations/b.xml"] = xml(
        thing("cat", 11, 2, 19, 9), thing("cat", 1, 1, 9, 9), filename="b.png", size="10 30"
    ).encode()
    result = built(tmp_path, members)
    assert classes(result) == {"a": ["dog", "cat"], "b": ["cat"]}
    (counts,) = result.manifest.annotations.values()
    assert counts.dropped == {"unknown class": 1, "zero size": 1}


@pytest.mark.parametrize("part", ["Annotations", "SegmentationClass"])
def test_objects_of_classes_that_are_not_wanted_are_counted_once(tmp_path: Path, part: str) -> None:
    wanted = "dog" if part == "Annotations" else "2"
    result = built(tmp_path, voc(part), classes=wanted)
    names = {"a": [wanted] * 2, "b": []}
    labels = {key[-5]: one["objects/label"] for key, one in records(result.path).items()}
    assert {stem: [wanted] * len(one) for stem, one in labels.items()} == names
    (counts,) = result.manifest.annotations.values()
    assert counts.dropped == {"not among --classes": 2}


def test_an_object_without_pixels_of_a_class_is_dropped(tmp_path: Path) -> None:
    members = voc("SegmentationClass")
    members["VOC/SegmentationClass/a.png"] = drawn((0, 2, 255, 0))
    result = built(tmp_path, members)
    labels = {key[-5]: len(one["objects/label"]) for key, one in records(result.path).items()}
    assert labels == {"a": 1, "b": 1}
    (counts,) = result.manifest.annotations.values()
    assert counts.dropped == {"unknown class": 2}


def test_a_class_file_of_another_size_rejects_its_image(tmp_path: Path) -> None:
    members = voc("SegmentationClass")
    members["VOC/SegmentationClass/a.png"] = drawn((0, 1))
    with pytest.raises(BuildError, match="1 bad_annotation"):
        built(tmp_path, members)


def test_masks_in_other_folders_do_not_say_which_box_is_theirs(tmp_path: Path) -> None:
    members = {k.replace("SegmentationObject", "masks"): v for k, v in voc("Annotations").items()}
    with pytest.raises(RecipeError, match="it is unknown which mask file belongs to which box"):
        built(tmp_path, members, boxes="voc", masks="masks/{stem}.png")


def test_colours_are_the_numbers_of_the_palette_of_voc() -> None:
    for numbers in (tuple(range(128)), tuple(range(128, 255))):
        found = decode_numbers(drawn(numbers, colours=True))
        np.testing.assert_array_equal(found[0, ::10], (*numbers, 255))
