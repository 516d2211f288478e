"""The decision which pictures are target images of others."""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.catalog.builders import asked, catalog, choices
from tests.support.builders import encoded
from tests.support.scenes import picture, scene


def pictures(kinds: Mapping[str, str], *, number: int = 4) -> dict[str, bytes]:
    """Return pictures of scenes; in a name, # is the number of the scene."""
    names = {name.replace("#", str(i)): (kind, i) for name, kind in kinds.items()
             for i in range(number)}  # fmt: skip
    return {name: picture(kind, name, f"scene {i}") for name, (kind, i) in names.items()}


@pytest.mark.parametrize(
    ("image", "target", "pattern"),
    [
        ("low/#.png", "high/#.png", "high/{name}"),
        ("train/blur/#.png", "train/sharp/#.jpg", "sharp/{stem}.jpg"),
        ("set_train_LR/X2/#x2.png", "set_train_HR/#.png", "set_train_HR/{stem[:-2]}.png"),
        ("rain-#.png", "norain-#.png", "norain-{stem[5:]}.png"),
        ("x-rain-#.png", "x-norain-#.png", "x-norain-{stem[7:]}.png"),
        ("train/#.png", "labels/#.png", "labels/{name}"),
        ("#/NOISY_1.png", "#/GT_1.png", "{dir}/GT_1.png"),
        ("b#/5#Noisy.png", "b#/1#Reference.png", "{folder}/*Reference.png"),
        ("watermarked/#.png", "watermark_free/#.png", "watermark_free/{name}"),
        ("composite_images/#.png", "real_images/#.png", "real_images/{name}"),
    ],
)
def test_pictures_of_the_same_scene_are_pairs(
    tmp_path: Path, image: str, target: str, pattern: str
) -> None:
    made = catalog(tmp_path, pictures({image: "noisy", target: "scene"}))
    assert made.recipe.target_image == pattern
    assert [one.key for one in made.items] == sorted(pictures({image: "noisy"}))


def test_several_images_share_a_target_and_other_maps_are_left_out(tmp_path: Path) -> None:
    kinds = {"hazy/#_1.png": "hazy", "hazy/#_2.png": "hazy", "clear/#.png": "scene"}
    made = catalog(tmp_path, pictures({**kinds, "trans/#_1.png": "depth"}))
    assert made.recipe.exclude == ("trans/*",)
    assert len(made.items) == 8
    assert {one.companions[0].key for one in made.items} == {f"clear/{i}.png" for i in range(4)}


BAD = ("haze", "low", "rain", "snow", "haze_rain", "haze_snow", "low_haze", "low_rain", "low_snow",
       "low_haze_rain", "low_haze_snow")  # fmt: skip


def degraded(*kinds: str) -> dict[str, bytes]:
    """Return pictures of two splits in folders called like what a picture has lost."""
    members = dict[str, bytes]()
    for split, number in (("train", 6), ("test", 3)):
        for kind, i in itertools.product(kinds, range(number)):
            values = np.asarray(scene(f"{split}{i}", (60, 40))[0], np.float64)
            noise = np.random.default_rng(i + len(kind)).random((40, 60, 1))
            values = values * 0.25 if "low" in kind else values
            values = values * 0.5 + 100 if "haze" in kind else values
            values = values + 80 * (noise > 0.9) if "rain" in kind else values
            values = values + 200 * (noise < 0.05) if "snow" in kind else values
            image = Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))
            members[f"{split}/{kind}/{i}.png"] = encoded(image, "PNG")
    return members


def test_one_clear_folder_has_the_targets_of_many_others(tmp_path: Path) -> None:
    """Also of `low_haze_snow`, whose pictures are too dark to be compared."""
    made = catalog(tmp_path, degraded("clear", *BAD))
    assert made.recipe.target_image == "clear/{name}"
    assert made.recipe.exclude == ()
    assert len(made.items) == 9 * len(BAD)


def test_many_folders_of_the_same_scenes_are_no_classes_without_a_question(tmp_path: Path) -> None:
    assert "which show the same scenes" in choices(tmp_path, degraded(*BAD))[0].why


def test_weather_and_expressions_are_classes(tmp_path: Path) -> None:
    """Other scenes have equal names, or the folders are not called like kinds of a picture."""
    weather, faces = dict[str, bytes](), dict[str, bytes]()
    for kind, i in itertools.product(("haze", "rain", "snow", "fog"), range(6)):
        key = f"{kind}/{i}.png"
        weather[key] = picture("scene", key, key)
    for kind, i in itertools.product(("angry", "happy", "sad"), range(6)):
        faces[f"{kind}/{i}.png"] = picture("view", f"{kind}/{i}.png", f"face {i}")
    assert len(catalog(tmp_path / "weather", weather).label_names) == 4
    assert len(catalog(tmp_path / "faces", faces).label_names) == 3


def test_a_depth_map_is_the_target_of_its_photo(tmp_path: Path) -> None:
    made = catalog(tmp_path, pictures({"rgb/#.jpg": "scene", "depth/#.png": "deep"}))
    assert made.recipe.target_image == "depth/{stem}.png"


def test_pictures_of_other_scenes_in_folders_called_depth_are_no_depth_maps(tmp_path: Path) -> None:
    def photos(*sizes: tuple[int, int], kind: str = "scene") -> dict[str, bytes]:
        names = {f"{one}/{i}.png": size for one, size in zip(("rgb", "depth"), sizes, strict=False)
                 for i in range(4)}  # fmt: skip
        kinds = {name: kind if name.startswith("depth") else "scene" for name in names}
        return {name: picture(kinds[name], name, name, size) for name, size in names.items()}

    flags = asked(tmp_path / "1", photos((64, 48), (64, 48)))
    assert flags == ["--target-image 'depth/{name}'", "--labels folder"]
    assert not catalog(tmp_path / "2", photos((64, 48), (40, 60))).recipe.target_image
    made = catalog(tmp_path / "3", photos((64, 48), (64, 48), kind="grey"))
    assert made.recipe.target_image == "depth/{name}"  # a map need not look like its photo


def test_unclear_sides_and_several_targets_are_asked(tmp_path: Path) -> None:
    sides = {"train_A/#.png": "dark", "train_B/#.png": "mask", "train_C/#.png": "scene"}
    experts = {"raw/#.png": "dark", "expertA/#.png": "hazy", "expertB/#.png": "scene"}
    for kinds, flags in (
        (sides, {"train_A/{name}", "train_C/{name}"}),
        (experts, {"expertA/{name}", "expertB/{name}"}),
    ):
        found = choices(tmp_path, pictures(kinds))
        assert flags <= {one.options.get("target_image") for one in found}
        shutil.rmtree(tmp_path / "source")


def test_copies_in_folders_of_classes_are_asked(tmp_path: Path) -> None:
    both = {f"{c}/{c}#{end}.jpg": kind for c in ("oak", "elm") for end, kind in
            (("", "scene"), ("_noisy", "noisy"))}  # fmt: skip
    assert "--labels folder" in asked(tmp_path, pictures(both))


@pytest.mark.parametrize("classes", [("rust", "scab"), ("0", "1")])
def test_grey_and_cut_out_copies_of_classes_are_left_out(
    tmp_path: Path, classes: tuple[str, ...]
) -> None:
    kinds = {f"{kind}/{name}/#.jpg": pixels for kind, pixels in
             (("color", "scene"), ("grayscale", "grey"), ("segmented", "cut"))
             for name in classes}  # fmt: skip
    made = catalog(tmp_path / "1", pictures(kinds))
    assert made.label_names == classes
    assert {key.split("/")[0] for key in (one.key for one in made.items)} == {"color"}
    hazy = {name.replace("grayscale", "hazy"): kind for name, kind in kinds.items()}
    assert asked(tmp_path / "2", pictures(hazy))  # the clear photo may be the target


def test_other_scenes_with_equal_names_are_classes(tmp_path: Path) -> None:
    names = [f"{folder}/{i}.png" for folder in ("high", "low") for i in range(6)]
    made = catalog(tmp_path, {name: picture("scene", name, name, (64, 48)) for name in names})
    assert made.label_names == ("high", "low")


def test_damaged_pictures_are_no_pairs(tmp_path: Path) -> None:
    damaged = dict.fromkeys(pictures({"low/#.png": "dark", "high/#.png": "scene"}), b"damaged")
    assert catalog(tmp_path, damaged).label_names == ("high", "low")


def test_folders_of_splits_of_one_kind_are_no_classes(tmp_path: Path) -> None:
    made = catalog(tmp_path, pictures({"S_train_HR/#.png": "scene", "S_valid_HR/1#.png": "scene"}))
    assert made.label_names == ()


def test_two_folders_with_the_same_scenes_are_asked_for_whatever_they_are_called(
    tmp_path: Path,
) -> None:
    members = pictures({"portraits/#.jpg": "scene", "cartoons/#.jpg": "dark"})
    assert asked(tmp_path, members) == [
        "--target-image 'cartoons/{name}'",
        "--target-image 'portraits/{name}'",
        "--labels folder",
    ]


@pytest.mark.parametrize(
    ("sign", "pattern"), [("_", "shadow_free/{stem}_*.jpg"), ("-", "shadow_free/{stem}*.jpg")]
)
def test_pairs_whose_names_end_differently_in_each_split_are_no_classes(
    tmp_path: Path, sign: str, pattern: str
) -> None:
    members = pictures(
        {"train/shadow/a#.jpg": "dark", "train/shadow_free/a#_no_shadow.jpg": "scene"}
    )
    clean = f"test/shadow_free/b#{sign}free.jpg"
    members |= pictures({"test/shadow/b#.jpg": "dark", clean: "scene"})
    found = catalog(tmp_path, members)
    assert found.recipe.target_image == pattern
    assert len(found.items) == len(members) / 2


def test_targets_of_two_splits_with_equal_names_are_those_of_the_split(tmp_path: Path) -> None:
    members = pictures({"set/train_black/#.jpg": "grey", "set/train_color/#.jpg": "scene"})
    test = pictures({"set/test_black/#.jpg": "grey", "set/test_color/#.jpg": "scene"}, number=3)
    made = catalog(tmp_path, members | test)
    assert {one.key: [x.key for x in one.companions] for one in made.items} == {
        key: [key.replace("black", "color")] for key in members | test if "black" in key
    }


def test_pairs_whose_inputs_a_table_labels_are_asked_for(tmp_path: Path) -> None:
    members = pictures({"original/a#.jpg": "scene", "compressed/a#.jpg": "dark"})
    rows = [f"a{i},{'cat' if i % 2 else 'dog'}" for i in range(len(members) // 2)]
    members["images.csv"] = "\n".join(["image,label", *rows]).encode()
    flags = asked(tmp_path, members)
    assert flags[0] == "--labels none --target-image 'original/{name}'"
    assert {*flags[1:]} == {"--exclude 'original/*'", "--exclude 'compressed/*'"}
    assert set(catalog(tmp_path / "2", members, exclude="original/*").label_names) == {"cat", "dog"}


def test_pictures_of_one_scene_are_images_if_a_table_labels_each_of_them(tmp_path: Path) -> None:
    visits = {"train/p#/study1/view.jpg": "scene", "train/p#/study2/view.jpg": "dark"}
    members = pictures(visits, number=6)
    rows = [f"{name},{i % 2},{i // 2 % 2}" for i, name in enumerate(members)]
    table = "\n".join(["Path,Edema,Fracture", *rows]).encode()
    found = catalog(tmp_path, members | {"train.csv": table})
    assert found.label_names == ("Edema", "Fracture")
    assert len(found.items) == len(members)
    assert asked(tmp_path / "2", members)


def test_drawings_of_boxes_beside_their_images_are_asked_for_if_a_document_names_both(
    tmp_path: Path,
) -> None:
    members = pictures({"images/#.jpg": "scene", "boxes/#.jpg": "dark"})
    box = '<box label="shop" xtl="3" ytl="3" xbr="20" ybr="20"/>'
    images = [f'<image name="{i}.jpg">{box}</image>' for i in range(len(members) // 2)]
    members["annotations.xml"] = f"<annotations>{''.join(images)}</annotations>".encode()
    flags = asked(tmp_path, members)
    assert "--exclude 'boxes/*' --boxes cvat" in flags
    assert "--exclude 'images/*' --boxes cvat" in flags
    found = catalog(tmp_path / "2", members, exclude="boxes/*", boxes="cvat")
    assert [item.key for item in found.items if item.key.startswith("boxes/")] == []


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [
        ({"a/x_#_real.png": "noisy", "a/x_#_mean.png": "scene"}, "x_{stem[2:-5]}_mean.png"),
        ({"sketch/a/n#-1.png": "grey", "sketch/a/n#-2.png": "grey", "photo/a/n#.png": "scene"},
         "photo/**/n{stem[1:-2]}.png"),
    ],
)  # fmt: skip
def test_kinds_of_pictures_without_a_word_of_targets_are_asked_for(
    tmp_path: Path, kinds: dict[str, str], pattern: str
) -> None:
    assert pattern in [
        one.options.get("target_image") for one in choices(tmp_path, pictures(kinds))
    ]


def test_a_folder_beside_each_of_several_others_has_their_targets(tmp_path: Path) -> None:
    kinds = {"a/phone/#.png": "noisy", "a/camera/#.png": "scene"}
    kinds |= {"b/tablet/#.png": "noisy", "b/camera/#.png": "scene"}
    assert catalog(tmp_path, pictures(kinds)).recipe.target_image == "camera/{name}"


def test_pairs_beside_other_pictures_with_their_numbers_are_proposed(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for i in range(10):
        place = "train" if i < 8 else "test"  # where SAR has numbers of its own
        keys = {f"dataset/{place}/input/{i}-in.png": "hazy",
                f"dataset/{place}/target/{i}-out.png": "scene",
                f"SAR/{place}/{i % 8}.png": "grey"}  # fmt: skip
        members |= {
            key: picture(kind, key, f"{kind == 'grey'} {i}", (48, 36)) for key, kind in keys.items()
        }
    first = choices(tmp_path, members)[0].options
    assert first["target_image"] == "target/{stem[:-3]}-out.png"
    assert first["exclude"] == ("SAR/*",)


def test_other_names_in_folders_of_a_target_are_left_out_if_a_person_says_so(
    tmp_path: Path,
) -> None:
    kinds = {"b#/5#Noisy.png": "noisy", "b#/1#Reference.png": "scene", "b#/7#Full.png": "view"}
    wanted = {"exclude": ("*Full.*",), "target_image": "{folder}/*Reference.png"}
    assert [one.options for one in choices(tmp_path, pictures(kinds))] == [wanted]


def test_each_input_alone_is_proposed_if_two_folders_may_be_the_targets(tmp_path: Path) -> None:
    kinds = {"sharp_a/#.png": "scene", "sharp_b/#.png": "hazy"}
    kinds |= {"blur/#.png": "noisy", "blur_noise/#.png": "dark"}
    alone = {"exclude": ("sharp_a/*", "blur/*"), "target_image": "sharp_b/{name}"}
    assert alone in [one.options for one in choices(tmp_path, pictures(kinds))]
