"""Masks beside images: found by names and pixels, whatever their folders are called."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.objects import mask_files
from shardprep.errors import QuestionError
from tests.catalog.builders import catalog, choices
from tests.support.builders import encoded, write_folder
from tests.support.first_contact import outcome
from tests.support.layouts import expanded
from tests.support.scenes import picture

SIZE = (40, 30)


def files(kind: str, *names: str, like: str = "") -> dict[str, bytes]:
    """Return pictures of the scenes 0, 1 …; `like` tells the scenes of two folders apart."""
    return {name: picture(kind, name, f"{like}{i}", SIZE) for i, name in enumerate(names)}


def numbered(pattern: str, number: int = 6) -> tuple[str, ...]:
    return tuple(pattern.format(i) for i in range(number))


def masks_of(made: Catalog) -> dict[str, list[str]]:
    return {item.key: [mask.key for mask in item.companions] for item in made.items}


def flags(folder: Path, members: dict[str, bytes]) -> list[dict[str, object]]:
    """Return the options of each reading of a source that is not built."""
    return [dict(one.options) for one in choices(folder, members)]


PHOTOS = files("scene", *numbered("Training_Input/{}.jpg"))


_PAIRED = {
    "an ending in a folder of splits": (
        "Training_Input/{0..5}.jpg", "Training_GroundTruth/{0..5}_segmentation.png",
        "Training_GroundTruth/{stem}_segmentation.png"),
    "a short word for annotations": ("pics/{0..5}.jpg", "ann/{0..5}.png", "ann/{stem}.png"),
    "equal names": ("Training_Input/{0..5}.jpg", "Training_Masks/{0..5}.png",
                    "Training_Masks/{stem}.png"),
    "an ending next to the image": ("Training_Input/{0..5}.jpg", "Training_Input/{0..5}_m.png",
                                    "{stem}_m.png"),
    "another start of names": ("IMAGES/img_{0..5}.jpg", "MASKS/seg_{0..5}.png",
                               "MASKS/seg_{stem[4:]}.png"),
    "splits that number their files alike": (
        "pictures_{train,test}/{0..5}.png", "annotated_gt_{train,test}/{0..5}.png",
        "annotated_gt_*/{stem}.png"),
    "more words in the folder of one split": (
        "S_{Train,Val,Test_v2}_Data/p{0..5}.jpg", "S_{Train,Val,Test_v2}_GT/p{0..5}_seg.png",
        "S_*_GT/{stem}_seg.png"),
    "folders named like those of images, with an ending": (
        "clips/{C1,C2}/{0..3}.png", "clips/{C1,C2}_gt/{0..3}.png", "{folder}_gt/{stem}.png"),
    "half of the masks of a folder without an image": (
        "city/images/{0..3}.tif", "city/labels/{0..6}.tif", "labels/{stem}.tif"),
    "folders that differ in an s": (
        "{train/image,test/a/images}/{0..5}.png", "{train/mask,test/a/masks}/{0..5}.png",
        "mask*/{stem}.png"),
    "the word before the ending": (
        "images/train/a{0..5}_image.jpg", "gt/train/a{0..5}_label.png",
        "gt/{folder}/{stem[:-6]}_label.png"),
}  # fmt: skip
"""What pairs masks with images: their names, as in bash, and the pattern."""


@pytest.mark.parametrize("case", _PAIRED)
def test_masks_named_like_images_are_neither_images_nor_classes(case: str, tmp_path: Path) -> None:
    images, masks, pattern = _PAIRED[case]
    members = files("scene", *expanded(images)) | files("ids", *expanded(masks))
    if case == "the word before the ending":  # masks of objects
        members |= files("numbers", *numbered("gt/train/a{}_inst_label.png"))
    made = catalog(tmp_path, members)
    assert made.recipe.masks == pattern
    assert made.label_names == ()
    pairs = masks_of(made)
    assert {*pairs} == {*expanded(images)}
    assert {*map(len, pairs.values())} == {1}
    assert {mask for own in pairs.values() for mask in own} <= {*expanded(masks)}


_PROPOSED = {
    "folders of parts of the body are classes": (
        "scans/{0..5}.png", {"mask": "manual/{left,right}Mask/{0..5}.png"},
        {"manual/{class}/{stem}.png"}),
    "colours of more things than the values beside them do not draw these": (
        "Training_Input/{0..5}.jpg",
        {"mask": "plants/{0..5}.png", "colours": "annotations/{0..5}.png"},
        {"plants/{stem}.png", "annotations/{stem}.png"}),
    "the word before the ending differs": (
        "clip/frame_{0..5}_endo.png",
        {"ids": "clip/frame_{0..5}_endo_watershed_mask.png",
         "mask": "clip/frame_{0..5}_endo_mask.png"},
        {"{stem}_watershed_mask.png", "{stem[:-5]}_endo_mask.png"}),
    "a number above all folders joins no folders of masks": (
        "set1/images/{0..5}.png", {"mask": "set1/{label,label1}/{0..5}.png"},
        {"label/{stem}.png", "label1/{stem}.png"}),
    "folders below one named like a folder of images": (
        "cells/{01,02}/t{0..5}.png",
        {"numbers": "cells/{01,02}_{GT/SEG/man_seg,GT/TRA/man_track,ST/SEG/man_seg}{0..5}.png"},
        {"{folder}_GT/SEG/man_seg{stem[1:]}.png"}),
}  # fmt: skip
"""Names of images, names of masks by their kind, and patterns that a question shows."""


@pytest.mark.parametrize("case", _PROPOSED)
def test_masks_that_can_be_read_in_several_ways_are_asked_about(case: str, tmp_path: Path) -> None:
    images, masks, patterns = _PROPOSED[case]
    members = files("scene", *expanded(images))
    for kind, names in masks.items():
        members |= files(kind, *expanded(names))
    assert patterns <= {one.get("masks") for one in flags(tmp_path, members)}


def test_masks_in_folders_with_braces_are_asked_for(tmp_path: Path) -> None:
    photos, masks = ([f"set{{1}}/{one}/{i}.png" for i in range(6)] for one in ("x", "gt{1}"))
    found = flags(tmp_path, files("scene", *photos) | files("mask", *masks))
    assert ("gt{1}/*",) in [one.get("exclude") for one in found]


def test_the_pairs_that_were_decided_are_those_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_files, "pair_masks", None)  # the build alone calls it by this name
    made = catalog(tmp_path, PHOTOS | files("mask", *numbered("Training_Masks/{}.png")))
    assert len(masks_of(made)) == 6


def test_drawings_for_the_eye_are_left_out(tmp_path: Path) -> None:
    members = PHOTOS | files("ids", *numbered("SegmentationClassPNG/{}.png"))
    drawings = files("overlay", *numbered("SegmentationClassVisualization/{}.jpg"))
    drawings |= files("colours", *numbered("coloured/{}.png"))
    drawings |= files("overlay", *numbered("collage/{}.jpg"))
    made = catalog(tmp_path, members | drawings)
    assert masks_of(made).keys() == PHOTOS.keys()
    assert {one.key for one in made.skipped} == drawings.keys()


def test_a_question_shows_what_images_would_get_and_how_to_answer(tmp_path: Path) -> None:
    start = "a/folder/with/a/long/path"
    members = files("scene", *numbered(f"{start}/images/{{}}.jpg"))
    numbers = files("numbers", *numbered(f"{start}/masks/{{}}.png"), like="n")
    with pytest.raises(QuestionError) as error:
        catalog(tmp_path, members | numbers)
    image, mask = "…/with/a/long/path/images/0.jpg", "…/with/a/long/path/masks/0.png"
    lines = error.value.lines
    assert f"      {image}: train, mask {mask}" in lines
    assert f"      {image}: train, objects {mask}" in lines
    assert lines[-1] == "Repeat the command with the flags of one of them."


def test_masks_of_two_annotators_are_a_question(tmp_path: Path) -> None:
    members = PHOTOS | files("mask", *numbered("labels-ah/{}.png"))
    read = flags(tmp_path, members | files("mask", *numbered("labels-vk/{}.png")))
    assert read == [
        {"exclude": ("labels-vk/*",), "masks": "labels-ah/{stem}.png"},
        {"exclude": ("labels-ah/*",), "masks": "labels-vk/{stem}.png"},
    ]


def test_masks_of_classes_come_before_those_with_numbers_of_objects(tmp_path: Path) -> None:
    numbers = files("numbers", *numbered("human_ids/{}.png"))
    made = catalog(tmp_path / "1", PHOTOS | numbers | files("ids", *numbered("ids/{}.png")))
    assert masks_of(made)["Training_Input/0.jpg"] == ["ids/0.png"]
    read = flags(tmp_path / "2", PHOTOS | numbers | files("mask", *numbered("masks/{}.png")))
    assert "masks/{stem}.png" in [one.get("masks") for one in read]  # two values are no classes


def test_numbers_of_objects_are_certain_if_three_counts_differ(tmp_path: Path) -> None:
    def masks(*counts: int) -> dict[str, bytes]:
        pixels = np.arange(SIZE[0] * SIZE[1], dtype=np.uint8).reshape(SIZE[::-1])
        return {
            f"masks/{i}.png": encoded(Image.fromarray(pixels % (n + 1)), "PNG")
            for i, n in enumerate(counts)
        }

    photos = files("scene", *numbered("images/{}.jpg", 9))
    made = catalog(tmp_path / "1", photos | masks(1, 2, 3, 1, 2, 3, 4, 1, 2))
    assert made.recipe.instances
    for i, counts in enumerate([(1, 3, 3, 1, 1, 3, 3, 1, 3), (1, 2, 3, 4)]):  # may be classes
        read = flags(tmp_path / f"q{i}", dict([*photos.items()][: len(counts)]) | masks(*counts))
        assert [one.get("instances") for one in read] == [None, True]


def test_masks_that_are_equal_for_all_images_are_fields_of_view(tmp_path: Path) -> None:
    field = {name: picture("mask", name, "field", SIZE) for name in numbered("mask/{}_mask.png")}
    made = catalog(tmp_path, PHOTOS | field | files("mask", *numbered("manual/{}_manual1.png")))
    assert masks_of(made)["Training_Input/0.jpg"] == ["manual/0_manual1.png"]


def test_class_folders_with_masks_keep_their_classes_and_folders_of_patients_do_not(
    tmp_path: Path,
) -> None:
    def scans(*folders: str) -> dict[str, bytes]:
        members: dict[str, bytes] = {}
        for folder in folders:
            members |= files("grey", *numbered(f"{folder}/scan ({{}}).png"), like=folder)
            members |= files("mask", *numbered(f"{folder}/scan ({{}})_mask.png"), like=folder)
        return members

    made = catalog(tmp_path / "1", scans("benign", "malignant"))
    assert made.label_names == ("benign", "malignant")
    assert all(len(item.companions) == 1 for item in made.items)
    made = catalog(tmp_path / "2", scans("patient001", "patient002"))
    assert made.label_names == ()
    assert all(len(item.companions) == 1 for item in made.items)


def test_folders_of_frames_with_masks_may_be_clips(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for clip in ("bear", "boat"):
        members |= files("scene", *numbered(f"frames/{clip}/0000{{}}.jpg"), like=clip)
        members |= files("ids", *numbered(f"masks/{clip}/0000{{}}.png"), like=clip)
    assert {one.get("labels") for one in flags(tmp_path, members)} == {"folder", None}


def test_colours_without_names_are_classes_and_too_few_masks_are_a_question(tmp_path: Path) -> None:
    names = numbered("masks/{}.png")
    made = catalog(tmp_path / "1", PHOTOS | files("colours", *names))
    assert len(masks_of(made)) == len(PHOTOS)
    assert made.annotations is not None
    assert "800000" in made.annotations.names
    read = flags(tmp_path / "2", PHOTOS | files("mask", *names[:3]))
    assert read == [{"masks": "masks/{stem}.png"}, {"exclude": ("masks/*",)}]


@pytest.mark.parametrize(
    ("titles", "cells", "more"),
    [
        ("glaucoma", "ab", {}),
        ("MEL,NV,DF", ["1,0,0", "0,1,0", "0,0,1"], {}),
        ("price", ["1.5", "2", "4.5", "6.1", "7", "8.9"], {"target": "regression"}),
    ],
)
def test_a_table_of_labels_beside_masks_is_a_question(
    tmp_path: Path, titles: str, cells: Sequence[str], more: Mapping[str, str]
) -> None:
    rows = "".join(f"{i}.jpg,{cells[i % len(cells)]}\n" for i in range(6))
    members = PHOTOS | files("mask", *numbered("masks/{}.png"))
    read = flags(tmp_path, members | {"list.csv": f"file,{titles}\n{rows}".encode()})
    own = {"labels": f"csv:list.csv:file:{titles}", **more}
    masks = {"masks": "masks/{stem}.png"}
    assert read == [masks, {"exclude": ("masks/*",), **own}, {**own, **masks}]


@pytest.mark.parametrize(
    ("first", "second"), [("scene", "scene"), ("mask", "mask"), ("scene", "grey")]
)
def test_classes_with_equal_numbers_stay_classes_even_if_called_mask(
    first: str, second: str, tmp_path: Path
) -> None:
    members = files(first, *numbered("with_mask/{}.png"), like="a")
    made = catalog(tmp_path, members | files(second, *numbered("without_mask/{}.png"), like="b"))
    assert made.label_names == ("with_mask", "without_mask")
    assert len(made.items) == 12


def test_masks_that_are_called_by_codes_are_of_an_object_each(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for i in range(4):
        members[f"00ae65c{i}/images/00ae65c{i}.png"] = picture("scene", "a.png", str(i))
        for k in range(2):
            name = f"00ae65c{i}/masks/{7 * i + k + 16:x}a9bf1d.png"
            members[name] = picture("mask", name, f"{i}{k}")
    found = outcome(write_folder(tmp_path / "source", members), {})
    assert found.facts["00ae65c1/images/00ae65c1.png"]["boxes"] == "object,object"


def test_masks_that_differ_in_the_end_of_their_names_are_of_classes(tmp_path: Path) -> None:
    members = files("scene", *numbered("images/{}.jpg"))
    for number, end in enumerate(("MA", "HE")):
        members |= files("mask", *numbered(f"groundtruths/{number}. kind/{{}}_{end}.png"))
    made = catalog(tmp_path, members)
    assert made.annotations is not None
    assert made.annotations.names == ("background", "HE", "MA")
    assert [len(several) for several in masks_of(made).values()] == [2] * 6


def test_masks_that_fit_two_folders_are_shown_with_each(tmp_path: Path) -> None:
    members = files("scene", *numbered("day/{}.jpg"))
    members |= files("scene", *numbered("dusk/{}.jpg"), like="b")
    found = flags(tmp_path, members | files("mask", *numbered("label/{}.png")))
    assert [one.get("masks") for one in found] == [None] + ["label/{stem}.png"] * 2
    assert [one["exclude"] for one in found] == [("label/*",), ("dusk/*",), ("day/*",)]


def test_two_words_may_end_the_names_of_masks_in_folders_of_clips(tmp_path: Path) -> None:
    clips = ("7", "8", "9")  # a frame of each
    photos = files("scene", *(f"rgb_anon/{one}/f_{one[-1]}_rgb_anon.png" for one in clips))
    start = [f"gt/{one}/f_{one[-1]}_gt" for one in clips]
    masks = files("ids", *(f"{one}_labelIds.png" for one in start))
    drawn = files("colours", *(f"{one}_labelColor.png" for one in start))
    assert masks_of(catalog(tmp_path, photos | masks | drawn)) == {
        key: [mask] for key, mask in zip(photos, masks, strict=True)
    }


@pytest.mark.parametrize(
    ("photo", "kind", "mask", "glob"),
    [
        ("set/images/cell{0}.jpg", "mask", "set/masks/tumour-{0}x.png", "masks/*"),
        ("set/image_2/um_00{0}.png", "colours", "set/gt_image_2/um_road_x{0}.png", "gt_image_2/*"),
        ("set/c{0}/c{0}_photo/c{0}.bmp", "mask", "set/c{0}/c{0}_lesion/c{0}_lesion.bmp",
         "*_lesion/*"),
    ],
)  # fmt: skip
def test_pictures_that_look_like_masks_are_no_images_without_a_question(
    tmp_path: Path, photo: str, kind: str, mask: str, glob: str
) -> None:
    members = files("scene", *numbered(photo)) | files(kind, *numbered(mask))
    found = flags(tmp_path, members)
    assert (glob,) in [one.get("exclude") for one in found]
    assert all(found), "each reading has flags that choose it"
    made = catalog(tmp_path / "2", members, exclude=glob)
    assert {item.key for item in made.items} == {*numbered(photo)}


def test_classes_of_drawings_of_few_colours_are_classes(tmp_path: Path) -> None:
    members = files("mask", *numbered("icons/cat/{}.png"))
    members |= files("mask", *numbered("icons/dog/{}.png"), like="d")
    assert catalog(tmp_path, members).label_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("image", "mask", "pattern"),
    [
        ("photos/um_{}.jpg", "gt/um_road_{}.png", "gt/{stem:^([^_]+)_}_road_{stem:_([^_]+)$}.png"),
        (
            "a/cam/l/a_cam_{}.jpg",
            "a/label/l/a_label_{}.png",
            "label/{folder}/{stem:^([^_]+)_}_label_",
        ),
        ("photos/a_sat_{}.jpg", "maps/a_mask_{}.png", "_mask_{stem:_([^_]+)$}.png"),
        ("MT_{}/Imgs/{}.jpg", "MT_{}/Imgs/{}.png", "{stem}.png"),
        ("train/images/{}.png", "train/Masks/images/{}_id_RGB.png", "/{stem}_id_RGB.png"),
        ("a/{}/{}_photo/{}.bmp", "a/{}/{}_lesion/{}_lesion.bmp", "*_lesion/{stem}_lesion.bmp"),
        ("Slide_{}/a.png", "GT_{}/a.png", "GT_{folder[6:]}/{stem}.png"),
    ],
)
def test_names_of_masks_have_parts_of_the_names_of_images(
    tmp_path: Path, image: str, mask: str, pattern: str
) -> None:
    names = [[one.replace("{}", str(i)) for i in range(6)] for one in (image, mask)]
    found = outcome(
        write_folder(tmp_path / "source", files("scene", *names[0]) | files("mask", *names[1])), {}
    )
    assert pattern in (found.error or " ".join(found.notes))


@pytest.mark.parametrize(
    "names", [("covid-19", "viral", "normal"), ("Class1", "Class2"), ("0", "1")]
)
def test_classes_with_numbers_are_asked_for(tmp_path: Path, names: tuple[str, ...]) -> None:
    members = dict[str, bytes]()
    for name in names:
        members |= files("scene", *numbered(f"{name}/images/{name}{{}}.png"), like=name)
        members |= files("mask", *numbered(f"{name}/lung masks/{name}{{}}.png"), like=name)
    found = flags(tmp_path, members)
    assert [one.get("labels") for one in found] == ["folder:2", None]


def test_images_of_two_folders_that_show_one_place_may_share_masks(tmp_path: Path) -> None:
    """Folders of other scenes, such as of two films, have the masks of their number."""
    members = dict[str, bytes]()
    for name, kind in (("Image1", "scene"), ("Image2", "hazy")):
        members |= files(kind, *numbered(f"{name}/{{}}.png"))
        members |= files("mask", *numbered(f"label{name[-1]}/{{}}.png"), like=name)
    found = flags(tmp_path, members)
    assert {"masks": "label{folder[5:]}/{stem}.png"} in found
    own = [one["exclude"] for one in found if one.get("masks") == "label1/{stem}.png"]
    assert own == [("Image2/*", "label2/*"), ("Image1/*", "label2/*")]
    others = dict[str, bytes]()
    for name in ("Image1", "Image2"):
        others |= files("scene", *numbered(f"{name}/{{}}.png"), like=name)
        others |= files("mask", *numbered(f"label{name[-1]}/{{}}.png"), like=name)
    made = catalog(tmp_path / "others", others)
    assert made.recipe.masks == "label{folder[5:]}/{stem}.png"


@pytest.mark.parametrize("form", ["png", "jpg"])
def test_pictures_in_a_folder_named_as_masks_are_asked_for(tmp_path: Path, form: str) -> None:
    """Whatever their pixels are. JPEG blurs colours, so that no pattern is proposed for it."""
    members = files("grey", *numbered("images/ID{0}_{0}.jpg"))
    kind = "scene" if form == "jpg" else "mask"
    members |= files(kind, *numbered(f"masks/ID{{0}}_mask_{{0}}.{form}"))
    found = flags(tmp_path, members)
    masks = "masks/{stem:^([^_]+)_}_mask_{stem:_([^_]+)$}.png"
    assert [one.get("masks") for one in found] == [*([masks] if form == "png" else []), None, None]
    assert {one.get("exclude") for one in found} == {("*_mask*.*",), None}


def test_classes_of_photos_named_label_are_no_masks(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for name in ("image", "label", "table", "text"):
        members |= files("scene", *numbered(f"crops/{name}/{{}}.png"), like=name)
    assert catalog(tmp_path, members).label_names == ("image", "label", "table", "text")


def test_a_folder_of_masks_for_each_image_has_its_name(tmp_path: Path) -> None:
    """The images are not taken for pictures of classes that are called by numbers."""
    members = files("scene", *numbered("box/train/good/{:03}.png", 8))
    members |= files("scene", *numbered("box/test/good/{:03}.png", 4), like="t")
    for kind in ("logical", "broken"):
        members |= files("scene", *numbered(f"box/test/{kind}/{{:03}}.png", 4), like=kind)
        for part in range(2):
            own = numbered(f"box/ground_truth/{kind}/{{:03}}/00{part}.png", 4)
            members |= files("mask", *own, like=f"{kind}{part}")
    first = flags(tmp_path, members)[0]
    pattern = "ground_truth/{folder}/{stem}/*.png"
    assert first == {"labels": "folder", "masks": pattern, "unlisted": "background"}
    made = catalog(tmp_path / "given", members, **first)  # type: ignore[arg-type]
    masks = masks_of(made)["box/test/broken/001.png"]
    assert masks == [f"box/ground_truth/broken/001/00{part}.png" for part in range(2)]


def test_images_without_masks_in_their_own_folder_may_be_background(tmp_path: Path) -> None:
    """The masks alone are proposed, too, with and without these images."""
    members = files("scene", *numbered("Image/Fire/{}.jpg")) | files(
        "scene", *numbered("Image/Not_Fire/n{}.jpg"), like="n"
    )
    members |= files("mask", *numbered("Mask/Fire/{}.png"))
    found = flags(tmp_path, members)
    masks = {"masks": "Mask/{folder}/{stem}.png"}
    background = {**masks, "unlisted": "background"}
    assert found[:2] == [{"labels": "folder", **background}, background]
    assert masks in found


def test_a_column_that_two_tables_repeat_is_proposed_once(tmp_path: Path) -> None:
    members = files("scene", *numbered("images/{}.png")) | files("mask", *numbered("masks/{}.png"))
    for number in (5, 10):
        rows = [f"{i},{'ab'[i % 2]},{i % number}" for i in range(6)]
        members[f"{number}-fold.csv"] = "\n".join(["id,kind,fold", *rows]).encode()
    labels = [one["labels"] for one in flags(tmp_path, members) if "labels" in one]
    assert {*labels} == {"csv:10-fold.csv:id:kind"}


def test_images_without_a_mask_may_be_background_or_left_out(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for name in ("trout", "shrimp"):
        members |= files("scene", *numbered(f"{name}/{name}/{{}}.png"), like=name)
        members |= files("mask", *numbered(f"{name}/{name} GT/{{}}.png", 3), like=name)
    found = flags(tmp_path, members)
    assert {one.get("unlisted") for one in found if "masks" in one} == {"background", None}


def test_two_pictures_of_one_name_above_the_folders_of_masks_do_not_hide_these(
    tmp_path: Path,
) -> None:
    members = files("scene", *numbered("car/input/in{:03}.jpg"))
    members |= files("mask", *numbered("car/groundtruth/gt{:03}.png"), "car/ROI.bmp", "car/ROI.jpg")
    made = catalog(tmp_path, members)
    pairs = {f"car/input/in{i:03}.jpg": [f"car/groundtruth/gt{i:03}.png"] for i in range(6)}
    assert masks_of(made) == pairs


def test_a_folder_for_each_image_has_its_mask_and_a_drawing(tmp_path: Path) -> None:
    """As LabelMe's `json_to_dataset` writes them."""
    keys = [f"{name}_json/img.png" for name in ("a", "b7", "c", "d")]
    drawn = {key.replace("img.png", "label_viz.png"): key for key in keys}
    members = files("scene", *keys) | {
        one: picture("scene", one, key, (64, 48)) for one, key in drawn.items()
    }
    masks = files("ids", *(key.replace("img.png", "label.png") for key in keys))
    made = catalog(tmp_path / "all", members | masks)
    assert masks_of(made) == {key: [key.replace("img.png", "label.png")] for key in keys}
    other = {"b7_json/label.png": members["b7_json/label_viz.png"]}  # no mask in one folder
    found = outcome(write_folder(tmp_path / "odd", members | masks | other), {})
    assert not any("mask" in fact for fact in found.facts.values())


def test_masks_that_only_the_suffix_tells_are_found_next_to_a_preview(tmp_path: Path) -> None:
    photos = files("scene", *numbered("set/{}.jpg"))
    masks = files("mask", *numbered("set/{}.png"))
    made = catalog(tmp_path, photos | masks | files("scene", "set.png", like="preview"))
    assert masks_of(made) == {key: [mask] for key, mask in zip(photos, masks, strict=True)}


def test_masks_named_differently_in_two_groups_of_folders_are_two_readings(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for split in ("train", "test"):
        for place, end in (("crop/c{}", ""), ("data/d{}", "_mask")):
            members |= files("scene", *numbered(f"{split}{place}.jpg"), like=place)
            members |= files("mask", *numbered(f"{split}{place}{end}.png"), like=place)
    assert flags(tmp_path, members) == [
        {"exclude": ("testcrop/*", "traincrop/*"), "masks": "{stem}_mask.png"},
        {"exclude": ("testdata/*", "traindata/*"), "masks": "{stem}.png"},
    ]


def test_masks_of_two_endings_in_a_folder_are_one_set_if_no_image_has_both(tmp_path: Path) -> None:
    photos = files("scene", *numbered("xray/CH{}.png"), *numbered("xray/MC{}.png"))
    of_one = files("mask", *numbered("masks/CH{}_mask.png"))
    of_other = files("mask", *numbered("masks/MC{}.png"))
    made = catalog(tmp_path / "1", photos | of_one | of_other)
    assert made.recipe.masks == "masks/{stem}*.png"
    assert masks_of(made)["xray/MC3.png"] == ["masks/MC3.png"]
    both = files("mask", *numbered("masks/MC{}_mask.png"))
    twice = outcome(write_folder(tmp_path / "2", photos | of_one | of_other | both), {})
    assert "{stem}*" not in " ".join([twice.error, *twice.notes])


def test_two_masks_in_a_folder_below_the_name_of_each_image_are_classes(tmp_path: Path) -> None:
    masks = [f"train/GT/p{i}/Soft/p{i}_{kind}.png" for i in range(6) for kind in ("disc", "cup")]
    members = files("scene", *numbered("train/Images/p{}.png")) | files("mask", *masks)
    made = catalog(tmp_path, members)
    assert made.recipe.masks == "Soft/{stem}_{class}.png"
    assert {len(own) for own in masks_of(made).values()} == {2}


def flat(colours: int, number: int = 6) -> dict[str, bytes]:
    """Return drawings of few colours and grey masks of the same names."""
    palette = np.array([[20] * 3, [220, 30, 30], [30, 220, 30], [30, 30, 220]], np.uint8)
    members = dict[str, bytes]()
    for i in range(number):
        classes = np.zeros((30, 40), np.uint8)
        classes[5 + i : 20, 5:15], classes[20:, 10 + i : 30] = 1 + i % 3, 1 + (i + 1) % 3
        drawn = palette[classes] if colours else classes * 60
        members[f"images/{i}.png"] = encoded(Image.fromarray(drawn), "PNG")
        members[f"masks/{i}.png"] = encoded(Image.fromarray(classes), "PNG")
    return members


def test_flat_pictures_of_colours_have_masks_in_a_folder_of_this_name(tmp_path: Path) -> None:
    made = catalog(tmp_path / "flat", flat(4))
    assert masks_of(made) == {f"images/{i}.png": [f"masks/{i}.png"] for i in range(6)}
    renamed = {key.replace("images/", "viz/"): data for key, data in flat(4).items()}
    assert not any("masks" in one for one in flags(tmp_path / "viz", renamed))


@pytest.mark.parametrize("folder", ["masks", "labels", "annotations"])
def test_grey_pictures_of_few_values_have_masks_in_a_folder_of_this_name(
    folder: str, tmp_path: Path
) -> None:
    members = {key.replace("masks/", f"{folder}/"): data for key, data in flat(0).items()}
    made = catalog(tmp_path / "grey", members)
    assert masks_of(made) == {f"images/{i}.png": [f"{folder}/{i}.png"] for i in range(6)}
    alone = {key: data for key, data in members.items() if key.startswith("images/")}
    assert len(catalog(tmp_path / "alone", alone).items) == 6
