"""COCO's panoptic sets: which files are masks of segments, and of which image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep import verify
from shardprep.catalog.catalog import Catalog
from shardprep.catalog.items import Item
from shardprep.dataset.folder import read_schema
from shardprep.dataset.schema import BOX, BOX_LABEL, MASK
from shardprep.errors import RecipeError, SourceError
from shardprep.image.annotation_types import Segment
from shardprep.reader import Dataset
from tests.catalog.builders import catalog, facts_of, objects_of, survey
from tests.support.builders import build, encoded, jpeg, write, zip_bytes

DOCUMENT = "annotations/panoptic_train2017.json"
FOLDER = "annotations/panoptic_train2017/"
CLASSES = [
    {"id": 1, "name": "person", "isthing": 1},
    {"id": 7, "name": "cat", "isthing": 1},
    {"id": 90, "name": "sky", "isthing": 0},
    {"id": 95, "name": "grass", "isthing": 0},
]
SEGMENTS = (
    {"id": 300, "category_id": 7, "bbox": [0, 0, 4, 4], "iscrowd": 0},
    {"id": 70_000, "category_id": 90, "bbox": [0, 0, 8, 4], "iscrowd": 0},
    {"id": 9, "category_id": 1, "bbox": [4, 4, 4, 4], "iscrowd": 1},
)


def colours(*, size: int = 8) -> bytes:
    """Return a mask: cat 300 above left, sky 70,000 above right, person 9 below right, nothing."""
    ids = np.zeros((size, size), np.uint32)
    ids[: size // 2] = 70_000
    ids[: size // 2, : size // 2] = 300
    ids[size // 2 :, size // 2 :] = 9
    pixels = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=2).astype(np.uint8)
    return encoded(Image.fromarray(pixels), "PNG")


def document(number: int, segments: Any = SEGMENTS, **keys: Any) -> bytes:
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 8, "height": 8} for i in range(number)]
    annotations = [
        {"image_id": i, "file_name": f"{i}.png", "segments_info": segments} for i in range(number)
    ]
    parts = {"images": images, "annotations": annotations, "categories": CLASSES, **keys}
    return json.dumps(parts).encode()


def members(number: int = 3, **keys: Any) -> dict[str, bytes]:
    """Return images with a panoptic mask each."""
    images = {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(number)}
    masks = {f"{FOLDER}{i}.png": colours() for i in range(number)}
    return {**images, **masks, DOCUMENT: document(number, **keys)}


def first(made: Catalog) -> Item:
    return made.items[0]


def test_classes_are_things_and_stuff_and_pixels_of_none_are_ignored(tmp_path: Path) -> None:
    made = catalog(tmp_path, members(), masks=f"coco:{DOCUMENT}")
    facts = facts_of(made)
    assert facts.names == ("person", "cat", "sky", "grass")
    assert (facts.spec.masks, facts.spec.boxes, facts.spec.is_panoptic) == ("classes", False, True)
    assert facts.spec.background == facts.spec.ignore
    assert facts.num_objects == {"person": 3, "cat": 3}
    assert [item.key for item in made.items] == [f"images/{i}.jpg" for i in range(3)]
    assert not made.skipped
    assert [mask.key for mask in first(made).companions] == [f"{FOLDER}0.png"]
    one = objects_of(first(made))
    assert one.outlines == (Segment(300), Segment(9))
    assert one.labels == (1, 0)
    assert one.areas == ((Segment(70_000), 2),)
    assert first(made).strata == (0, 1, 2)


def test_instances_are_only_things(tmp_path: Path) -> None:
    made = catalog(tmp_path, members(), masks=f"coco:{DOCUMENT}", instances=True)
    assert facts_of(made).names == ("person", "cat")
    assert facts_of(made).spec.boxes
    one = objects_of(first(made))
    assert one.areas == ()
    assert one.boxes.tolist() == [[0, 0, 4, 4], [4, 4, 8, 8]]
    assert one.crowds == (False, True)


def test_boxes_and_classes_of_one_document(tmp_path: Path) -> None:
    option = f"coco:{DOCUMENT}"
    made = catalog(tmp_path, members(), boxes=option, masks=option)
    assert facts_of(made).names == ("person", "cat", "sky", "grass")
    assert facts_of(made).spec.boxes
    one = objects_of(first(made))
    assert len(one.boxes) == len(one.labels) == 2


def test_masks_are_not_images_if_only_boxes_are_stored(tmp_path: Path) -> None:
    made = catalog(tmp_path, members(), boxes=f"coco:{DOCUMENT}")
    assert len(made.items) == 3
    assert first(made).companions == ()
    assert [one.reason for one in made.skipped] == ["a mask that is not stored"] * 3
    assert facts_of(made).names == ("person", "cat")


def test_classes_that_are_asked_for(tmp_path: Path) -> None:
    """The others are ignored, as everything of no class."""
    keys: dict[str, Any] = {"classes": "grass,sky,kitten", "class_map": "cat=kitten"}
    made = catalog(tmp_path, members(), masks=f"coco:{DOCUMENT}", **keys)
    assert facts_of(made).names == ("grass", "sky", "kitten")
    one = objects_of(first(made))
    assert (one.labels, one.areas) == ((2,), ((Segment(70_000), 1),))
    assert one.dropped == {"not among --classes": 1}


def test_an_image_without_its_mask_is_skipped_and_one_without_segments_is_not(
    tmp_path: Path,
) -> None:
    whole = members(4)
    parts = json.loads(whole[DOCUMENT])
    parts["annotations"][3]["segments_info"] = []
    whole[DOCUMENT] = json.dumps(parts).encode()
    del whole[f"{FOLDER}0.png"], whole[f"{FOLDER}3.png"]
    whole[f"{FOLDER}stray.png"] = colours()
    made = catalog(tmp_path, whole, masks=f"coco:{DOCUMENT}")
    assert [item.key for item in made.items] == [f"images/{i}.jpg" for i in (1, 2, 3)]
    assert made.findings == ["skipped 1 image that no annotation lists"]
    assert {one.key: one.reason for one in made.skipped} == {
        "images/0.jpg": "no mask",
        f"{FOLDER}stray.png": "a mask that is not stored",
    }


def test_no_mask_is_in_the_source(tmp_path: Path) -> None:
    whole = {key: data for key, data in members().items() if not key.startswith(FOLDER)}
    with pytest.raises(SourceError, match=r"none of its masks, such as 0\.png, is in the source"):
        catalog(tmp_path, whole, masks=f"coco:{DOCUMENT}")


def test_two_masks_of_one_name(tmp_path: Path) -> None:
    whole = members() | {f"{FOLDER}more/0.png": colours()}
    with pytest.raises(SourceError, match=r"'0\.png' fits .*0\.png and .*0\.png"):
        catalog(tmp_path, whole, masks=f"coco:{DOCUMENT}")


def test_background_must_be_a_class(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no class called background; leave this option out$"):
        catalog(tmp_path, members(), masks=f"coco:{DOCUMENT}", unlisted="background")


def test_ids_without_a_colour_are_dropped(tmp_path: Path) -> None:
    bad = [{**SEGMENTS[0], "id": id_} for id_ in (0, -1, 1 << 24, 1.5, "8", None, True, 1 << 70)]
    whole = members(1, segments=[*SEGMENTS, *bad])
    made = catalog(tmp_path, whole, masks=f"coco:{DOCUMENT}", max_dropped=1.0)
    one = objects_of(first(made))
    assert (len(one.labels), one.dropped) == (2, {"malformed": len(bad)})


def test_masks_in_an_archive_of_their_own(tmp_path: Path) -> None:
    """As COCO has them: a ZIP of that name, with such a folder, beside the document."""
    whole = members()
    masks = {
        key.removeprefix("annotations/"): whole.pop(key) for key in list(whole) if FOLDER in key
    }
    whole["annotations/panoptic_train2017.zip"] = zip_bytes(masks)
    made = catalog(tmp_path, whole, masks=f"coco:{DOCUMENT}")
    assert len(made.items) == 3
    assert all(item.companions for item in made.items)


def test_a_folder_called_as_a_plain_document_holds_images(tmp_path: Path) -> None:
    whole = {f"data/{i}.jpg": jpeg(8, 8, seed=i) for i in range(3)}
    thing = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4]}
    whole["data.json"] = document(3, annotations=[thing])
    made = catalog(tmp_path, whole, boxes="coco:data.json")
    assert len(made.items) == 3


@pytest.mark.parametrize("folder", ["panoptic_val", "city_panoptic_train"])
def test_panoptic_masks_are_detected_if_nothing_else_fits(tmp_path: Path, folder: str) -> None:
    whole = {
        key.replace(DOCUMENT, f"{folder}.json").replace(FOLDER, f"{folder}/"): data
        for key, data in members().items()
    }
    made = catalog(tmp_path, whole)
    assert facts_of(made).spec.is_panoptic
    assert len(made.items) == 3
    (sign,) = survey(tmp_path, whole).annotations
    assert sign.flag == f"--masks coco:{folder}.json"
    assert sign.how == f"{folder}.json: COCO's panoptic masks, of 3 of 3 images"


@pytest.mark.parametrize("boxes", ["", "coco"])
def test_masks_without_a_file_are_panoptic_if_nothing_else_fits(tmp_path: Path, boxes: str) -> None:
    keys = {"boxes": boxes} if boxes else {}
    made = catalog(tmp_path, members(), masks="coco", **keys)
    named = dict.fromkeys(("masks", *keys), f"coco:{DOCUMENT}")
    again = catalog(tmp_path / "named", members(), **named)
    assert made.annotations == again.annotations
    one, two = first(made).annotation, first(again).annotation
    assert one is not None
    assert two is not None
    assert (one.outlines, one.areas, one.labels) == (two.outlines, two.areas, two.labels)
    assert [[mask.key for mask in item.companions] for item in made.items] == [
        [mask.key for mask in item.companions] for item in again.items
    ]


def test_masks_without_a_file_are_outlines_if_a_document_has_some(tmp_path: Path) -> None:
    ring = {"id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], "segmentation": [[0, 0, 4, 0, 4, 4]]}
    outlines = document(3, annotations=[{**ring, "image_id": i} for i in range(3)])
    whole = members() | {"annotations/instances_train2017.json": outlines}
    made = facts_of(catalog(tmp_path, whole, masks="coco"))
    assert not made.spec.is_panoptic
    assert made.num_objects == {"person": 3}


def boxes_of(number: int = 3) -> bytes:
    """Return a document with a dog and a cat in each image; panoptic masks have other classes."""
    classes = [{"id": 30, "name": "dog"}, {"id": 2, "name": "cat"}]
    objects = [
        {"id": 2 * i + k, "image_id": i, "category_id": one["id"], "bbox": [k, k, 4, 4]}
        for i in range(number)
        for k, one in enumerate(classes)
    ]
    return document(number, annotations=objects, categories=classes)


def test_boxes_of_one_document_and_panoptic_masks_of_another(tmp_path: Path) -> None:
    """Classes of both, objects of the one, pixels of the other."""
    source = write(tmp_path / "set.zip", zip_bytes(members() | {"boxes.json": boxes_of()}))
    keys: dict[str, Any] = {"boxes": "coco:boxes.json", "masks": f"coco:{DOCUMENT}"}
    built = build(source, tmp_path / "out", size="none", format="png", **keys)
    schema = read_schema(built.path)
    assert schema.features[MASK].labels == ("cat", "dog", "person", "sky", "grass")
    example = Dataset(built.path, "train", as_supervised=False)[0]
    assert example[BOX_LABEL].tolist() == [1, 0]
    assert example[BOX].tolist() == [[0, 0, 0.5, 0.5], [0.125, 0.125, 0.625, 0.625]]
    halves = np.array([[0, 3], [255, 2]], np.uint8)
    np.testing.assert_array_equal(example[MASK].squeeze(), halves.repeat(4, 0).repeat(4, 1))
    assert not verify(built.path, decode=True, workers=1).problems


def test_outlines_of_another_document_than_boxes_are_refused(tmp_path: Path) -> None:
    whole = members() | {"boxes.json": boxes_of()}
    keys: dict[str, Any] = {"boxes": f"coco:{DOCUMENT}", "masks": "coco:boxes.json"}
    with pytest.raises(RecipeError, match="must name one document"):
        catalog(tmp_path, whole, **keys)
    keys = {"boxes": "coco:boxes.json", "masks": f"coco:{DOCUMENT}", "instances": True}
    with pytest.raises(RecipeError, match="must name one document"):
        catalog(tmp_path, whole, **keys)


def test_boxes_go_before_panoptic_masks(tmp_path: Path) -> None:
    thing = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4]}
    instances = document(3, annotations=[{**thing, "id": i, "image_id": i} for i in range(3)])
    whole = members() | {"annotations/instances_train2017.json": instances}
    made = catalog(tmp_path, whole)
    assert (facts_of(made).spec.boxes, facts_of(made).spec.masks) == (True, "none")
    flags = [sign.flag for sign in survey(tmp_path, whole).annotations]
    assert flags == ["--boxes coco", f"--masks coco:{DOCUMENT}"]
