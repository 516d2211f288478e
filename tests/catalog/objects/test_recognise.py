"""Boxes and masks that are recognised unasked, and those that are proposed."""

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.errors import QuestionError, RecipeError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan.source_plan import make_plan
from tests.catalog.builders import VOC, catalog, detection, facts_of, grey, segmentation, survey
from tests.support.builders import SHARED_DATA, Quiet, encoded, jpeg, png, write_folder
from tests.support.paths import data_rows


def test_boxes_are_detected_if_images_have_no_labels(tmp_path: Path) -> None:
    made = catalog(tmp_path, detection())
    assert facts_of(made).names == ("cat",)
    assert facts_of(made).spec.boxes
    assert not made.skipped
    assert "Pascal VOC" in facts_of(made).how


@pytest.mark.parametrize(("folder", "name"), data_rows("objects", "mask_names"))
def test_masks_are_detected(tmp_path: Path, folder: str, name: str) -> None:
    made = catalog(tmp_path, segmentation(folder=folder, name=name))
    assert facts_of(made).spec.masks == "classes"
    assert [len(item.companions) for item in made.items] == [1] * 6


def test_masks_that_are_excluded_are_not_taken(tmp_path: Path) -> None:
    made = catalog(tmp_path, segmentation(), exclude="masks/*")
    assert made.annotations is None
    assert len(made.items) == len(made.skipped) == 6
    assert Counter(one.reason for one in made.skipped) == {"matched by --exclude": 6}


def test_several_masks_of_an_image_are_detected(tmp_path: Path) -> None:
    members = {f"s/{i}{i}/images/{i}{i}.png": png(8, 8, seed=i) for i in range(5)}
    members |= {f"s/{i}{i}/masks/{j}abc.png": grey(0, 255) for i in range(5) for j in range(3)}
    made = catalog(tmp_path, members)
    assert "{id}/masks/*.png" in facts_of(made).how
    assert [len(item.companions) for item in made.items] == [3] * 5


@pytest.mark.parametrize(
    "keys", [{"labels": "none"}, {"boxes": "none"}, {"masks": "none"}, {"labels": "folder"}]
)
def test_a_flag_for_labels_boxes_or_masks_ends_the_search(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    made = catalog(tmp_path, detection(), **keys)
    assert made.annotations is None
    assert len(made.items) == 6


def test_boxes_of_other_classes_than_the_folders_are_asked_about(tmp_path: Path) -> None:
    members = {f"{c}/{c}{i}.jpg": jpeg(8, 8, seed=i) for c in ("cat", "dog") for i in range(4)}
    members |= {f"xml/{c}{i}.xml": VOC for c in ("cat", "dog") for i in range(4)}
    with pytest.raises(QuestionError, match=r"--labels folder .*--boxes voc"):
        catalog(tmp_path, members)
    text = recipe_text(survey(tmp_path, members))
    assert {"labels", "boxes"}.isdisjoint(tomllib.loads(text))
    assert '\n# labels = "folder"\n' in text
    assert '\n# boxes = "voc"\n' in text


def test_photographs_in_a_folder_called_labels_are_asked_for(tmp_path: Path) -> None:
    members = {f"{f}/{i}.png": png(40, 40, seed=i) for f in ("images", "labels") for i in range(6)}
    with pytest.raises(QuestionError) as error:
        catalog(tmp_path, members)
    both = [one.options for one in error.value.choices]
    assert both == [{"exclude": ("labels/*",)}, {"labels": "none"}]


@pytest.mark.parametrize("options", [{}, {"boxes": "auto", "masks": "auto"}])
def test_boxes_and_masks_of_the_same_images_are_stored_together(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    members = detection() | {f"masks/{i}.png": grey(0, 255) for i in range(6)}
    made = catalog(tmp_path, members, **options)
    assert (facts_of(made).spec.boxes, facts_of(made).spec.masks) == (True, "classes")
    assert facts_of(made).names == ("background", "object", "cat")


@pytest.mark.parametrize("names", [("{}.png",), ("{}_a.png", "{}_b.png", "{}_c.png")])
def test_boxes_are_recognised_by_the_images_and_not_by_masks_beside_them(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Three masks of other names to an image would be three images of four without a box."""
    members = detection()
    members |= {f"masks/{n.format(i)}": grey(0, 255) for n in names for i in range(6)}
    boxes = next(one for one in survey(tmp_path, members).annotations if one.key == "boxes")
    assert boxes.how == "Pascal VOC: a file for 6 of 6 images"
    assert len(catalog(tmp_path, members, boxes="auto").items) == 6


def test_boxes_of_a_table_whose_ids_have_no_extension_are_detected(tmp_path: Path) -> None:
    """As in global-wheat-detection."""
    rows = "".join(f'{i},40,30,"[30, 20, {i + 3}, 4]"\n' * 2 for i in range(6))
    members = {f"train/{i}.jpg": jpeg(40, 30) for i in range(6)}
    members["train.csv"] = f"image_id,width,height,bbox\n{rows}".encode()
    (found,) = (one for one in survey(tmp_path, members).annotations if one.key == "boxes")
    assert found.how == "train.csv: boxes of 6 of 6 images"
    assert facts_of(catalog(tmp_path, members, boxes="auto")).spec.boxes


def test_asked_for_and_not_found_is_an_error(tmp_path: Path) -> None:
    members = {"a.jpg": jpeg(8, 8)}
    with pytest.raises(SourceError, match="--masks auto: no masks are recognised"):
        catalog(tmp_path, members, masks="auto")


def test_init_writes_what_is_decided_or_the_readings_to_choose_from(tmp_path: Path) -> None:
    keys = tomllib.loads(recipe_text(survey(tmp_path, detection())))
    assert (keys["boxes"], keys["fit"]) == ("voc", "pad")
    assert "labels" not in keys
    assert make_recipe(keys, "t").fit == "pad"
    rows = "".join(f"{i},{'ab'[i % 2]}\n" for i in range(6)).encode()
    text = recipe_text(survey(tmp_path, detection() | {"t.csv": b"id,label\n" + rows}))
    assert {"labels", "boxes"}.isdisjoint(tomllib.loads(text))
    assert '\n# boxes = "voc"\n' in text
    assert '\n# labels = "csv:t.csv:id:label"\n' in text


def test_run_lengths_are_recognised_but_not_beside_the_same_masks_in_files(tmp_path: Path) -> None:
    members = {f"images/{i}.jpg": jpeg(8, 16, seed=i) for i in range(6)}
    rows = "".join(f"{i},1 3 9 2\n" for i in range(6))
    members["train.csv"] = f"id,rle_mask\n{rows}".encode()
    made = catalog(tmp_path / "1", members)
    assert facts_of(made).spec.masks == "classes"
    members |= {f"masks/{i}.png": grey(0, 255) for i in range(6)}
    made = catalog(tmp_path / "2", members)
    assert "masks/{stem}.png" in facts_of(made).how


# Numbers of objects, and names that differ at their ends


def pedestrians(*numbers: int, name: str = "{}_mask.png") -> dict[str, bytes]:
    """Return a small PennFudan: masks whose values are 1 to n, another n for each image."""
    members = {f"P/PNGImages/Ped{i:02d}.png": png(8, 8, seed=i) for i in range(len(numbers))}
    for i, number in enumerate(numbers):
        members[f"P/PedMasks/{name.format(f'Ped{i:02d}')}"] = grey(*range(number + 1))
    return members


def test_init_proposes_instances_for_numbers_of_objects(tmp_path: Path) -> None:
    members = pedestrians(2, 1, 5, 3)
    seen = survey(tmp_path, members)
    _, apart = seen.choices
    assert apart.flags == "--masks 'PedMasks/{stem}_mask.png' --instances"
    assert "numbers of objects" in apart.why
    made = catalog(tmp_path / "2", members, **apart.options)
    assert (facts_of(made).names, facts_of(made).spec.masks) == (("object",), "instances")


@pytest.mark.parametrize("keys", [{}, {"masks": "auto"}])
def test_auto_asks_before_numbers_of_objects_become_classes(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    with pytest.raises(QuestionError) as error:
        catalog(tmp_path / "1", pedestrians(2, 1, 5, 3), **keys)
    assert [one.flags for one in error.value.choices] == [
        "--masks 'PedMasks/{stem}_mask.png'",
        "--masks 'PedMasks/{stem}_mask.png' --instances",
    ]


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({"instances": True}, ("object",)),
        ({"mask_values": "0=bg,1=a,2=b,3=c"}, ("bg", "a", "b", "c")),
        ({"classes": "bg,a,b,c"}, ("bg", "a", "b", "c")),
    ],
)
def test_options_decide_the_meaning_of_mask_values(
    tmp_path: Path, keys: dict[str, Any], names: tuple[str, ...]
) -> None:
    made = catalog(tmp_path, pedestrians(2, 1, 3), masks="auto", **keys)
    assert facts_of(made).names == names


@pytest.mark.parametrize(
    ("masks", "more"),
    [
        ([(0, 1, 2, 3)] * 4, ""),  # all classes in each
        ([(0, 1), (0, 1, 2), (0, 1, 2)], ""),  # an organ and its tumour
        ([(0, 1, 2, 3), (0, 1), (0, 3)], ""),  # a class alone
        ([(0, 1, 2, 3), (0, 1), (0, 1, 255), (2, 255)], ""),
        ([(0, 1, 4), (0, 1, 2)], ""),
        ([(0,), (0, 1, 2, 3, 255), (0, 255), (0, 1)], " --instances"),  # borders, and no object
    ],
)
def test_values_are_object_numbers_only_if_each_mask_has_1_to_n(
    tmp_path: Path, masks: list[tuple[int, ...]], more: str
) -> None:
    members = {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(len(masks))}
    members |= {f"masks/{i}.png": grey(*one, mode="P") for i, one in enumerate(masks)}
    seen = survey(tmp_path, members)
    assert seen.decided or more
    assert [one.flags for one in seen.choices[1:]] == [
        f"--masks 'masks/{{stem}}.png'{more}"
    ] * bool(more)


def test_a_document_that_names_the_values_makes_them_classes(tmp_path: Path) -> None:
    members = pedestrians(2, 1, 3)
    made = catalog(tmp_path, members, masks="PedMasks/{stem}_mask.png")
    assert any("--instances keeps the objects apart" in line for line in made.findings)
    members["P/names.yaml"] = b"names: [sky, road, car, tree]"
    assert survey(tmp_path, members).decided == {"masks": "PedMasks/{stem}_mask.png"}


def test_instances_choose_the_masks_with_numbers_of_objects(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for i in range(4):
        members[f"JPEGImages/{i}.jpg"] = jpeg(8, 8, seed=i)
        members[f"SegmentationClass/{i}.png"] = grey(0, *[2] * i, 255)
        members[f"SegmentationObject/{i}.png"] = grey(*range(1 + i), 255)
    with pytest.raises(
        QuestionError, match=r"--masks auto: .*SegmentationClass/.*SegmentationObject/"
    ):
        catalog(tmp_path / "1", members, masks="auto")
    made = catalog(tmp_path / "2", members, masks="auto", instances=True)
    assert facts_of(made).names == ("1", "2")
    assert facts_of(made).num_objects == {"2": 6}


def few_colours() -> bytes:
    """Return a picture of two colours, as a drawing of classes is."""
    image = np.repeat([[[128, 64, 128], [0, 0, 142]]], 8, axis=0).repeat(4, axis=1)
    return encoded(Image.fromarray(image.astype(np.uint8)), "PNG")


def cityscapes(*tops: str) -> dict[str, bytes]:
    """Return a small Cityscapes, whose images and masks are below these two folders."""
    members: dict[str, bytes] = {}
    for split, city in (("train", "aachen"), ("train", "bochum"), ("val", "lindau")):
        for i in range(2):
            name = f"{split}/{city}/{city}_00000{i}_000019"
            members[f"{tops[0]}/{name}_leftImg8bit.png"] = png(8, 8, seed=i)
            masks = f"{tops[1]}/{name}_gtFine"
            members[f"{masks}_labelIds.png"] = grey(0, 7, 11)
            members[f"{masks}_labelTrainIds.png"] = grey(0, 2, 255)
            members[f"{masks}_instanceIds.png"] = grey(0, 7, 26_001, mode="I;16")
            members[f"{masks}_color.png"] = few_colours()
            members[f"{masks}_polygons.json"] = b"{}"
    return members


@pytest.mark.parametrize("tops", [("leftImg8bit", "gtFine"), ("l.zip/leftImg8bit", "g.zip/gtFine")])
def test_cityscapes_is_recognised(tmp_path: Path, tops: tuple[str, str]) -> None:
    made = catalog(tmp_path, cityscapes(*tops))
    assert "gtFine/**/{stem[:-12]}_gtFine_labelIds.png" in facts_of(made).how
    assert len(made.items) == 6
    assert Counter(item.split for item in made.items) == {"train": 4, "validation": 2}
    for item in made.items:
        (mask,) = item.companions
        assert mask.key.endswith("_labelIds.png")
        assert mask.key.split("_")[-4] == item.key.split("_")[-3]
    assert {one.reason for one in made.skipped} == {"looks like a mask", "not an image"}


@pytest.mark.parametrize(
    ("image", "mask"),
    [("d/{}_sat.jpg", "d/{}_mask.png"), ("images/{}_rgb.jpg", "labels/{}_gt.png")],
)
def test_masks_of_images_whose_names_have_an_end_of_their_own_are_recognised(
    tmp_path: Path, image: str, mask: str
) -> None:
    members = {image.format(i): jpeg(8, 8, seed=i) for i in range(100, 104)}
    members |= {mask.format(i): grey(0, 255) for i in range(100, 104)}
    made = catalog(tmp_path, members)
    assert {item.key: item.companions[0].key for item in made.items} == {
        image.format(i): mask.format(i) for i in range(100, 104)
    }


@pytest.mark.parametrize(("keys", "message"), data_rows("objects", "contradictions"))
def test_options_that_mean_nothing_together_are_an_error(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    members = detection() | {f"masks/{i}.png": grey(0, 255) for i in range(6)}
    with pytest.raises(RecipeError) as error:
        catalog(tmp_path, members, **keys)
    assert str(error.value).startswith(message)


def test_labels_are_stored_with_boxes_if_a_rule_is_given(tmp_path: Path) -> None:
    members = {f"{c}/{c}{i}.jpg": jpeg(48, 64, seed=i) for c in ("wild", "tame") for i in range(4)}
    members |= {f"xml/{c}{i}.xml": VOC for c in ("wild", "tame") for i in range(4)}
    keys: dict[str, Any] = {"boxes": "voc", "labels": "folder"}
    made = catalog(tmp_path / "1", members, **keys, class_map="cat=lion,tame=calm")
    assert made.label_names == ("calm", "wild")
    assert facts_of(made).names == ("lion",)
    assert not made.findings
    made = catalog(tmp_path / "2", members, **keys, classes="wild,tame")
    assert (made.label_names, facts_of(made).names) == (("wild", "tame"), ("cat",))


def test_objects_of_other_classes_are_dropped_and_counted(tmp_path: Path) -> None:
    members = detection()
    members["annotations/1.xml"] = VOC.replace(b"cat", b"dog")
    made = catalog(tmp_path / "1", members, boxes="voc", classes="dog,cow")
    facts = facts_of(made)
    assert facts.names == ("dog", "cow")
    assert facts.dropped == {"not among --classes": 5}
    assert facts.num_objects == {"dog": 1}
    assert facts.num_background == 5
    with pytest.raises(SourceError, match="none of emu is a class of the objects"):
        catalog(tmp_path / "2", members, boxes="voc", classes="emu")


def test_documents_that_were_read_are_not_skipped(tmp_path: Path) -> None:
    made = catalog(tmp_path, detection() | {"readme.md": b"x"}, boxes="voc")
    assert [one.key for one in made.skipped] == ["readme.md"]
    assert len(facts_of(made).documents) == 6


@pytest.mark.parametrize(
    ("archive", "flag"),
    [("camvid.zip", "--masks '*annot/{stem}.png'"), ("bccd.zip", "--boxes voc")],
)
def test_init_finds_the_annotations_of_real_sets(tmp_path: Path, archive: str, flag: str) -> None:
    if not (SHARED_DATA / archive).exists():
        pytest.skip("needs the shared data")
    seen = survey_source(SHARED_DATA / archive, tmp_path, lambda _: None)
    assert flag in f"{seen.facts()}"


def test_annotations_without_their_image_are_counted_and_named(tmp_path: Path) -> None:
    members = detection(3) | {"annotations/9.xml": VOC.replace(b"x.jpg", b"9.jpg")}
    source = write_folder(tmp_path / "source", members)
    recipe = make_recipe({"source": str(source), "boxes": "voc", "max_dropped": 0.5}, "test")
    plan = make_plan(recipe, tmp_path / "work", Quiet())
    assert len(plan.rows_without_image) == 1
    assert "9" in plan.rows_without_image[0]
    assert plan.num_items == 3


def test_a_cut_spreads_the_classes_of_objects(tmp_path: Path) -> None:
    members = {f"images/{i:02d}.jpg": jpeg(48, 64, seed=i) for i in range(40)}
    for i in range(40):
        members[f"xml/{i:02d}.xml"] = VOC.replace(b"cat", (b"cat", b"dog")[i % 4 == 0])
    source = write_folder(tmp_path / "source", members)
    keys = {"source": str(source), "boxes": "voc", "split": "train=0.5,test=0.5"}
    plan = make_plan(make_recipe(keys, "test"), tmp_path / "work", Quiet())
    counts = Counter((item.split, item.strata) for shard in plan.shards for item in shard.items)
    assert set(counts.values()) == {5, 15}
    assert len(counts) == 4
