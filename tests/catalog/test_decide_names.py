"""Which names of folders and files are classes, and which only look like them."""

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from shardprep.catalog.names import are_parts, split_folders
from tests.catalog.builders import asked, catalog, choices
from tests.support.builders import jpeg, png, write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture


def pictures(*keys: str) -> dict[str, bytes]:
    return {key: jpeg(16, 16, i) for i, key in enumerate(keys)}


def rules(folder: Path, members: dict[str, bytes]) -> list[str]:
    """Return the values of `--labels` that a question shows."""
    return [str(one.options["labels"]) for one in choices(folder, members)]


def keys(pattern: str, **values: Iterable[object]) -> list[str]:
    """Return the pattern with each combination of the values of its fields."""
    combined = itertools.product(*values.values())
    return [pattern.format(**dict(zip(values, one, strict=True))) for one in combined]


_SLIDES = ("benign/adenosis/s1", "malignant/ductal/s2", "malignant/lobular/s3")
_SHAPES = ("flat", "round")
_FIRST = "--labels folder"
_ASKED: dict[str, tuple[list[str], list[str]]] = {
    "magnifications are no classes, but the folders above may be": (
        keys("{a}/{zoom}X/{i}.jpg", a=_SLIDES, zoom=(40, 100), i="01"),
        ["--labels folder:3", "--labels folder:4", "…"]),
    "folders that begin like the set may be parts of it": (
        keys("Plates2019/plates_{x}/{i}.jpg", x=("base", "blur"), i="12"),
        [_FIRST, "--labels none"]),
    "folders with two numbers each may be samples": (
        [f"patches/patient_{i:03}_node_{i % 2}/{k}.jpg" for i in range(4) for k in range(3)],
        [_FIRST, "--labels none"]),
    "views may be no classes": (
        keys("cam_{x}/cam_{x}{i}.jpg", x="ab", i=range(6)), [_FIRST, "…", "--labels none"]),
    "kinds of pictures may be no classes": (
        keys("{x}/{x}{i}.jpg", x=("rgb", "GT_color", "nir_color"), i=range(6)),
        [_FIRST, "…", "--labels none"]),
    "tiles may be no classes": (
        keys("tile {x}/tile {x}{i}.jpg", x="123", i=range(6)), [_FIRST, "…", "--labels none"]),
    "a numbered word that begins anew in each folder may be a part of the class": (
        keys("{a}/character{i:02}/{k}.jpg", a=("Greek", "Latin", "Tamil"), i=(1, 2, 3), k="012"),
        ["--labels 'regex:(?P<label>[^/]+/[^/]+)/[^/]+$'", "--labels folder:2", "…"]),
    "a folder of one name in folders of images is another kind of picture": (
        keys("{x}/{x}/{i}.jpg", x=_SHAPES, i="012")
        + keys("{x}/{x}/CROPPED/{i}.jpg", x=_SHAPES, i="345678"),
        ["--include 'CROPPED/*' --labels folder:2", "--exclude 'CROPPED/*' --labels folder",
         _FIRST, "--labels none"]),
    "a folder whose name ends the names of another is a kind": (
        keys("original/{i:04}.jpg", i=range(6)) + keys("aligned/{i:04}_aligned.jpg", i=range(6)),
        ["--exclude 'original/*' --labels none", "--exclude 'aligned/*' --labels none", "…"]),
    "images above the folders of all others are asked for": (
        keys("signs/{i:05}.jpg", i=range(8))
        + keys("signs/{x}/{i:05}.jpg", x=("stop", "turn", "yield"), i=(0, 1)),
        ["--exclude 'signs/*/*'", "--include 'signs/*/*'"]),
    "names that no other image has are not proposed": (
        [f"cam_{one}/{8 * (one == 'b') + i:03}_0.jpg" for one in "ab" for i in range(8)],
        [_FIRST, "--labels none"]),
    "folders of kinds are asked about if those of test have other names": (
        keys("{s}/{x}_IMAGES/{s}{x}{i}.jpg", s=("training", "validation"), x=("GT", "INPUT"),
             i=range(4)) + keys("testing/expert_{x}_set/{x}{i}.jpg", x="abc", i=range(4)),
        [_FIRST, "--labels none"]),
    "numbers above the same two words are no index": (
        keys("{n}/{x}/{x}{n}{i}.jpg", n="0123", x=("default", "real"), i=range(3)),
        [_FIRST, "--labels folder:2", "--labels none"]),
    "numbers in two levels": (
        keys("{pair}/{i}5.jpg", pair=("000/03", "604/92"), i=range(3)),
        [r"--labels 'regex:(?P<label>\d+/\d+)/[^/]+$'", "--labels folder:2", _FIRST,
         "--labels none"]),
    "numbers that begin anew in each folder may be objects of its class": (
        keys("{a}/{b}/{i}.jpg", a=("apple", "car", "cow"), b="12", i=range(2)),
        ["--labels folder:2", _FIRST, "--labels none"]),
    "many numbered folders with few images": (
        keys("{number}/{i}.jpg", number=range(100, 125), i=range(2)),
        [_FIRST, "--labels folder --target regression", "--labels none"]),
    "one more word in some names may be the class": (
        [f"all/Im{i}{word}_EYE.jpg" for i, word in zip(range(12), ["", "_g"] * 6, strict=True)],
        [r"--labels 'regex:(^|/)Im\d+_(?P<label>EYE|g)'", "--labels none"]),
    "an age in names may be a number": (
        keys("{age}_{i}_{j}_170116.jpg", age=(1, 26, 100), i=(0, 1), j=(0, 2)),
        [r"--labels 'regex:(^|/)(?P<label>\d+)_\d+_\d+_\d+' --target regression", "…"]),
}  # fmt: skip
"""Names of images, and the flags of all readings, or of the first and the last."""


@pytest.mark.parametrize("case", _ASKED)
def test_names_that_can_be_read_in_several_ways_are_asked_about(case: str, tmp_path: Path) -> None:
    own, flags = _ASKED[case]
    found = asked(tmp_path, pictures(*own))
    if "…" in flags:
        at, after = flags.index("…"), len(flags) - flags.index("…") - 1
        found[at : len(found) - after] = ["…"]
    assert found == flags


_DECIDED: dict[str, tuple[list[str], str]] = {
    "parts of a source are no classes": (
        [f"scans_part_{part}/{part}{i:03}.jpg" for part in (1, 2) for i in range(4)], ""),
    "one letter before a number is no class": (keys("{x}{i}.jpg", x="tv", i=range(4)), ""),
    "dates are no classes": (keys("IMG_2024010{x}_{i:06}.jpg", x="12", i=range(5)), ""),
    "hashes are no classes": (keys("{i:08x}.jpg", i=range(3_000_000, 3_000_012)), ""),
    "counters are no classes": (keys("{i:06}.jpg", i=range(1, 25)), ""),
    "counters with a step are no classes": (keys("{i:06}.jpg", i=range(0, 60, 5)), ""),
    "counters with gaps are no classes": (
        keys("{i:06}.jpg", i=(3, 17, 21, 44, 46, 58, 90, 101)), ""),
    "photos in folders named like kinds of pictures have classes": (
        keys("{x}/{i}.jpg", x=("image", "label", "table", "text"), i=range(4)),
        "image label table text"),
    "words of folders that number their files alike": (
        keys("{x}/{i:03}.jpg", x=("cat", "dog"), i=range(4)), "cat dog"),
    "numbers of folders that number their files alike": (
        keys("{x}/{i:03}.jpg", x="012", i=range(4)), "0 1 2"),
    "codes of WordNet in folders that number their files alike": (
        keys("{x}/{i:03}.jpg", x=("n01443537", "n02102040"), i=range(4)), "n01443537 n02102040"),
    "folders of ranges of numbers are no classes, but those above are": (
        [f"cells/{x}/{n}001-{n}999/{x}{n}{i}.png" for x in ("blast", "mast") for n in (1, 2)
         for i in range(3)], "blast mast"),
    "folders of samples are no classes, but those above are": (
        [f"cells/{x}/sample_{n}/{x}{n}{i}.png" for x in ("blast", "mast") for n in (1, 2)
         for i in range(3)], "blast mast"),
    "a folder with a picture of each class is left out": (
        keys("data/{x}/{i}.jpg", x="012", i=range(20, 24)) + keys("Meta/{x}.jpg", x="012"),
        "0 1 2"),
    "a folder named for pictures is no class of folders elsewhere": (
        keys("cells/{x}/{i}.jpg", x=("eosinophil", "monocyte"), i=range(3))
        + keys("voc/JPEGImages/{i}.jpg", i=range(3)), "eosinophil monocyte"),
    "a class of two folders below an index of letters has both names": (
        keys("set/{x}/{i}.jpg", i=range(2),
             x=("a/abbey", "b/barn/indoor", "b/barn/outdoor", "b/bow/indoor", "b/bow/outdoor")),
        "abbey barn/indoor barn/outdoor bow/indoor bow/outdoor"),
    "identities of test are labels, too": (
        keys("train/n{x}/{i}.jpg", x="234", i="012") + keys("test/n{x}/{i}.jpg", x="19", i="012"),
        "n1 n2 n3 n4 n9"),
    "test identities may have some names of another form": (
        keys("box_train/{x:04}/{i}.jpg", x=(1, 3, 5), i=range(3))
        + keys("box_test/{x}/{i}.jpg", x=("0002", "0006", "00-1"), i=range(3)),
        "00-1 0001 0002 0003 0005 0006"),
}  # fmt: skip
"""Names of images, and their classes in alphabetical order."""


@pytest.mark.parametrize("case", _DECIDED)
def test_names_that_can_be_read_in_one_way_are_not_asked_about(case: str, tmp_path: Path) -> None:
    own, classes = _DECIDED[case]
    made = catalog(tmp_path, pictures(*own))
    assert sorted(made.label_names) == classes.split()
    assert made.labels_from.startswith("none found") or classes
    assert len(made.items) == sum("Meta/" not in key and "voc/" not in key for key in own)


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        ("train_val_fist train_val_like train_val_call", "call fist like"),
        ("train_val_fist train_val_like call", "call train_val_fist train_val_like"),
        ("model_train_red model_train_blue", "model_train_blue model_train_red"),
        ("training_fake training_real", "training_fake training_real"),
    ],
)
def test_words_of_several_splits_that_begin_all_class_folders_are_left_out(
    tmp_path: Path, folders: str, classes: str
) -> None:
    plan = catalog(tmp_path, pictures(*(f"{x}/{i}.jpg" for x in folders.split() for i in range(4))))
    assert plan.label_names == tuple(classes.split())


@pytest.mark.parametrize(
    "names",
    [
        ["x_images_part_1", "x_images_part_2"],
        ["bounding_box_train", "bounding_box_test", "query"],
        ["images_001", "images_002"],
        ["Training_Input", "Training_GroundTruth"],
        ["2019-01-02", "2019-01-03"],
        ["train-jpg", "test-jpg"],
    ],
)
def test_folders_that_differ_in_a_split_a_kind_or_a_part_are_no_classes(names: list[str]) -> None:
    assert are_parts(names)


@pytest.mark.parametrize(
    "names",
    [
        ["mask", "no_mask"],
        ["WithMask", "WithoutMask"],
        ["image", "label", "table", "text"],
        ["gt", "hr", "sport"],
        ["test_tube", "test_strip"],
        ["Type_1", "Type_2"],
        ["0", "1"],
    ],
)
def test_folders_with_another_word_or_only_numbers_are_classes(names: list[str]) -> None:
    assert not are_parts(names)


def test_a_word_at_the_end_of_numbered_studies_is_the_class(tmp_path: Path) -> None:
    studies = [f"study{n}_{word}" for n in (1, 2) for word in ("negative", "positive")]
    keys = [f"p{i}/{name}/i{i}.png" for i in range(6) for name in studies]
    assert catalog(tmp_path / "1", pictures(*keys)).label_names == ("negative", "positive")
    views = [key.replace("negative", "left").replace("positive", "right") for key in keys]
    assert "folder" in rules(tmp_path / "2", pictures(*views))


def test_a_field_of_most_names_is_not_read_from_the_start_of_longer_names(tmp_path: Path) -> None:
    keys = [f"all/{coin}_{1477 * i}{coin}.jpg" for coin in (5, 25) for i in range(1, 7)]
    several = [f"all/{coin}_25_{1477 * coin}.jpg" for coin in (5, 10)]
    rule = rules(tmp_path, pictures(*keys, *several))[0].removeprefix("regex:")
    assert all(re.search(rule, key) for key in keys)
    assert not any(re.search(rule, key) for key in several)


def test_fields_of_file_names_are_asked_for(tmp_path: Path) -> None:
    keys = [f"a/{who:04}_v{c}s1_{i:06}.jpg" for who in (2, 7) for c in (1, 2) for i in range(3)]
    found = rules(tmp_path, pictures(*keys, "a/-1_v1s1_000009.jpg"))
    assert found[0] == r"regex:(^|/)(?P<label>-?\d+)_v\d+s\d+_\d+"
    assert found[-1] == "none"


@pytest.mark.parametrize("name", ["{who:04}_c{c}s1_{i:06}", "obj{who}__{c}", "{who:03}/{c:02}"])
def test_a_number_before_a_camera_or_a_word_for_objects_is_the_label(
    name: str, tmp_path: Path
) -> None:
    """Or if it is the number of both folders."""
    start = "a/" if "/" not in name else ""
    end = ".jpg" if start else "/{who:03}{c:02}__{i}.jpg"
    each = [(who, c, i) for who in (2, 7) for c in (1, 2, 3) for i in range(3)]
    keys = {f"{start}{name}{end}".format(who=who, c=c, i=i) for who, c, i in each}
    found = catalog(tmp_path, pictures(*sorted(keys)))
    assert len(found.label_names) == (2 if start else 6)


def test_fields_are_not_asked_for_if_a_table_names_the_images(tmp_path: Path) -> None:
    keys = [f"{who:04}_{i:06}.jpg" for who in (2, 7) for i in range(6)]
    table = "image,width,height\n" + "".join(f"{key},6,{i}\n" for i, key in enumerate(keys))
    members = pictures(*keys) | {"sizes.csv": table.encode()}
    assert catalog(tmp_path, members).labels_from.startswith("none found")


def test_names_of_a_few_letters_and_numbers_may_be_the_text(tmp_path: Path) -> None:
    """They are if the pictures are equally wide and low."""
    names = ("2b82x", "2gg4x", "xeg2f", "2cgyx", "2d2wm", "2en7g")
    low = {f"{name}.png": picture("grey", f"{name}.png", name, (40, 15)) for name in names}
    assert catalog(tmp_path / "low", low).items.target[0] == "2b82x"
    found = choices(tmp_path, pictures(*(f"{name}.jpg" for name in names)))
    assert found[0].options["target"] == "text"


def test_names_with_many_forms_between_equal_signs_may_be_the_text(tmp_path: Path) -> None:
    boards = ("8-K7-3R2n1-1q3Nb1-8", "4p3-7p-k7-NB6-3K4", "1p1b4-5Q2-8-2rR4-K7", "k7-7R-6B1-8-B7r")
    slugs = pictures("red-shoe-for-men-x1.jpg", "hat-of-wool-for-2.jpg", "a-b-c-d-k2.jpg")
    assert catalog(tmp_path / "slugs", slugs).labels_from.startswith("none found")
    found = rules(tmp_path, pictures(*(f"{name}.jpg" for name in boards)))
    assert found == [r"regex:(^|/)(?P<label>[^/]+)\.[^./]+$", "none"]


def test_test_images_are_labelled_by_their_names_if_they_are_named_like_classes(
    tmp_path: Path,
) -> None:
    train = [f"train/{name}/{name}{i}.jpg" for name in ("A", "nothing") for i in range(3)]
    made = catalog(tmp_path, pictures(*train, "test/A_test.jpg", "test/nothing_test.jpg"))
    targets = {one.key: one.target for one in made.items}
    assert made.label_names == ("A", "nothing")
    assert targets["test/A_test.jpg"] == targets["train/A/A1.jpg"] == 0


def test_a_folder_of_test_without_classes_is_left_out(tmp_path: Path) -> None:
    keys = [f"{split}/{name}/{i}.jpg" for split in ("Train", "Test") for name in ("fig", "kiwi")
            for i in range(3)]  # fmt: skip
    made = catalog(tmp_path / "1", pictures(*keys, *(f"test-several/{i}.jpg" for i in range(4))))
    assert sorted(one.key for one in made.items) == sorted(keys)
    assert len(made.skipped) == 4
    alone = pictures(*keys[:6], *(f"test-several/{i}.jpg" for i in range(4)))
    assert len(catalog(tmp_path / "3", alone).items) == 10  # a split without labels
    found = rules(tmp_path / "2", pictures(*keys, *(f"several/{i}.jpg" for i in range(4))))
    assert found == ["folder", "none"]  # a class that is in no split


def test_pictures_of_classes_in_a_folder_named_like_masks_may_be_their_targets(
    tmp_path: Path,
) -> None:
    keys = [f"part/{number}/{i}.jpg" for number in (1, 2, 3) for i in range(4)]
    labels = [f"part/Label/{number}.jpg" for number in (1, 2, 3)]
    wanted, found = "Label/{folder}.jpg", choices(tmp_path, pictures(*keys, *labels))
    assert wanted in {one.options.get("target_image") for one in found}
    made = catalog(tmp_path / "2", pictures(*keys, *labels), target_image=wanted)
    assert {one.key: [m.key for m in one.companions] for one in made.items} == {
        key: [f"part/Label/{key.split('/')[1]}.jpg"] for key in keys
    }


@pytest.mark.parametrize(
    ("keys", "rule"),
    [
        ([f"cam_{one}/{i:03}_{9 * i}.jpg" for one in "ab" for i in range(8)],
         r"regex:(^|/)(?P<label>\d+)_\d+"),
        ([f"{i * 7919:05x}-{'ab' * (i % 3)}c_{i % 2}{'LR'[i % 2]}.jpg" for i in range(12)],
         r"regex:[-_. ](?P<label>\d+[A-Za-z]+)\.[^./]+$"),
        ([f"AF0{i}/AF0{i}{code}{view}.jpg" for i in range(4) for code in ("AN", "HA")
          for view in ("S", "HL", "FR")],
         r"regex:\d(?P<label>[A-Za-z]{2})[A-Za-z]+\.[^./]+$"),
        ([f"a/{who}.{code}{n}.{i}{n}.jpg" for i, who in enumerate(("KA", "KL"))
          for code in ("AN", "HA") for n in range(4)],
         r"regex:(^|/)[A-Za-z]+\.(?P<label>[A-Za-z]+)\d+\.\d+"),
        ([f"Rafd{who:03}_{i}_{sex}_{mood}_front.jpg" for who in (45, 90) for i in (1, 2)
          for sex in ("female", "male") for mood in ("sad", "calm", "glad")],
         r"regex:(^|/)Rafd\d+_\d+_[A-Za-z]+_(?P<label>[A-Za-z]+)_front"),
        ([f"iris/{who:03}/{eye}/{who}{eye}{i}.jpg" for who in range(6) for eye in "LR"
          for i in range(3)], "folder:2"),
        ([f"{top}/cam{i}/person{n:03}/{top}{i}{n}.jpg" for top in ("x", "y") for i in (1, 2)
          for n in range(4)], "folder"),
        ([f"campus/{who:04}{i:03}.png" for who in (1, 2, 11, 105, 384) for i in (1, 2, 3, 4)],
         r"regex:(^|/)(?P<label>\d{4})\d{3}\.[^./]+$"),
    ],
)  # fmt: skip
def test_codes_in_names_are_proposed(tmp_path: Path, keys: list[str], rule: str) -> None:
    assert rule in rules(tmp_path, pictures(*keys))


@pytest.mark.parametrize("name", ["person_{i}_9", "n_{i}_label_{j}"])
def test_the_number_after_a_word_such_as_label_is_the_class(tmp_path: Path, name: str) -> None:
    keys = [f"cam_{a}/{name.format(i=i, j=i // 2)}.jpg" for a in "ab" for i in range(6)]
    assert len(catalog(tmp_path, pictures(*keys)).label_names) == (6 if "person" in name else 3)


def test_probe_and_gallery_are_splits(tmp_path: Path) -> None:
    keys = [f"set/{kind}/{kind}_{i}.jpg" for kind in ("probe", "gallery") for i in range(4)]
    made = catalog(tmp_path, pictures(*keys))
    assert {item.key.split("/")[1]: item.split for item in made.items} == {
        "probe": "query",
        "gallery": "gallery",
    }


def test_fractions_after_a_word_in_names_are_proposed_as_numbers(tmp_path: Path) -> None:
    names = [f"panels/solar_Fri_Jun_1{i}_L_0.{i}5_I_0.{9 - i}.jpg" for i in range(8)]
    found = rules(tmp_path, pictures(*names))
    assert [re.search(found[0][6:], names[3])["label"], len(found)] == ["0.35", 3]  # type: ignore[index]
    made = catalog(tmp_path / "2", pictures(*names), labels=found[1], target="regression")
    assert [item.target for item in made.items][:2] == [0.9, 0.8]


def test_folders_that_only_test_has_are_classes_or_parts_without_labels(tmp_path: Path) -> None:
    names = [f"train/{x}/{i}.jpg" for x in ("cat", "dog", "owl") for i in range(4)]
    names += [f"test/batch_{x}/{i}.jpg" for x in "ab" for i in range(4)]
    source = write_folder(tmp_path / "source", pictures(*names))
    error = outcome(source, {}).error
    rule = r"regex:^train/(?P<label>[^/]+)/[^/]+$"
    assert f"--labels '{rule}' (classes of train; images of test without labels)" in error
    assert "--labels folder (5 names such as batch_a, each in one split" in error
    assert "--labels none (" in error
    facts = outcome(source, {"labels": rule}).facts
    assert facts["train/cat/0.jpg"] == {"split": "train", "label": "cat"}
    assert facts["test/batch_a/0.jpg"] == {"split": "test"}


@pytest.mark.parametrize("form", ["{}", "{}_0-1"])
def test_folders_of_words_that_no_two_splits_share_may_be_scenes(tmp_path: Path, form: str) -> None:
    """They are classes if two splits share one."""
    places = ("beach", "lake"), ("park", "road"), ("hill", "cave")
    pairs = zip(("train", "val", "test"), places, strict=True)
    folders = [f"{split}/{form.format(one)}" for split, several in pairs for one in several]
    members = pictures(*(f"{one}/{i}.jpg" for one in folders for i in range(4)))
    assert asked(tmp_path / "apart", members) == ["--labels folder", "--labels none"]
    shared = pictures(*(f"val/{form.format(one)}/9.jpg" for one in ("beach", "hill")))
    plan = catalog(tmp_path / "shared", members | shared)
    assert len(plan.label_names) >= 4


def test_a_word_of_a_split_counts_beside_a_folder_with_the_same_folders() -> None:
    alike = split_folders(["our485/low", "our485/high", "eval15/low", "eval15/high"])
    assert alike == {"eval15": "validation"}
    assert not split_folders(["oval485/low", "eval15/high"])


def test_pairs_of_files_that_differ_in_the_suffix_are_asked_for(tmp_path: Path) -> None:
    members = pictures(*(f"{room}/{i}.jpg" for room in ("hall", "kitchen") for i in range(3)))
    found = asked(tmp_path, members | {f"{key[:-3]}png": png(16, 16) for key in members})
    assert found[0] == "--target-image '{dir}/{stem}.png'"
    assert "--labels folder" in found


def test_folders_of_test_with_the_start_of_a_class_as_name_have_this_class(tmp_path: Path) -> None:
    keys = [f"train/{name}/{i}.jpg" for name in ("oak_left_T2", "ash_hilum_T1") for i in range(4)]
    members = pictures(*keys, *(f"test/{name}/{i}.jpg" for name in ("oak", "ash") for i in (7, 8)))
    made = catalog(tmp_path, members)
    assert made.label_names == ("ash", "oak")
    assert len(made.items) == 12


def test_letters_after_the_name_of_the_folder_may_be_the_class(tmp_path: Path) -> None:
    keys = [f"{who}/{who}{end}.jpg" for who in ("AF01", "AF02", "BM01") for end in ("AN", "HA")]
    found = asked(tmp_path, pictures(*keys))
    assert found[0].startswith("--labels 'regex:")
    assert found[1:] == ["--labels folder", "--labels none"]
    rule = found[0].removeprefix("--labels ").strip("'")
    own = catalog(tmp_path / "own", pictures(*keys), rule)
    assert set(own.label_names) == {"AN", "HA"}


@pytest.mark.parametrize("odd", ["places/places", "validation_data/prelim_phase"])
def test_a_folder_alone_where_no_class_is_may_be_no_class(tmp_path: Path, odd: str) -> None:
    keys = [f"train_data/fold_{k}/{name}/{i}.jpg"
            for k in range(2) for name in ("all", "hem") for i in range(3)]  # fmt: skip
    found = asked(tmp_path, pictures(*keys, *(f"{odd}/x{i}.jpg" for i in range(3))))
    assert found[0] == f"--exclude '{odd}/*' --labels folder"
    assert "--labels folder" in found


def test_a_folder_that_numbers_of_classes_have_elsewhere_may_be_no_class(tmp_path: Path) -> None:
    keys = [f"set/digits/{i}/{j}.jpg" for i in range(10) for j in range(3)]
    for other in ("examples", "views"):
        found = asked(
            tmp_path / other, pictures(*keys, *(f"set/{other}/x{i}.jpg" for i in range(4)))
        )
        assert "--labels folder" in found
        assert (found[0] == f"--exclude 'set/{other}/*' --labels folder") is (other == "examples")


def test_the_uppermost_name_is_also_proposed_without_a_set_that_alone_has_splits(
    tmp_path: Path,
) -> None:
    paths = ("ulcer/ulcer", "caries/caries", "calculus/calculus/more/preview")
    keys = [f"set/{one}/{i}.jpg" for one in paths for i in range(9)]
    keys += [f"set/boxes/images/train/{i}.jpg" for i in range(2)]
    upper = "--labels 'regex:^set/(?P<label>[^/]+)/'"
    found = asked(tmp_path, pictures(*keys))
    assert found.index(upper) == found.index(f"--exclude 'set/boxes/*' {upper}") + 1


def test_a_level_is_also_proposed_without_folders_of_another_level(tmp_path: Path) -> None:
    paths = [f"s{i}/micro/{one}/s{i}_{one[:2]}_01" for i in range(3) for one in ("happy", "sad")]
    paths += [f"s{i}/non_micro/s{i}_n1" for i in range(3)]
    own = asked(tmp_path, pictures(*(f"faces/{one}/{i}.png" for one in paths for i in range(2))))
    assert own[1:3] == ["--labels folder:2", "--exclude 'non_micro/*' --labels folder:2"]
    assert "--labels folder:3" not in own  # names of persons and of their folders


@pytest.mark.parametrize(("form", "is_said"), [("{}", True), ("{:03}", False)])
def test_many_numbers_of_a_stated_pattern_are_said(
    tmp_path: Path,
    form: str,
    is_said: bool,  # noqa: FBT001
) -> None:
    """They may be ages; with zeros in front, they are codes."""
    members = pictures(*(f"{form.format(age)}_{age}.jpg" for age in range(20, 45)))
    made = catalog(tmp_path, members, labels=r"regex:^(?P<label>\d+)_")
    said = [one for one in made.findings if "25 classes, which are whole numbers" in one]
    assert len(said) == is_said
    assert all("--target regression stores them as numbers" in one for one in said)


def test_folders_of_many_numbers_may_be_a_regression(tmp_path: Path) -> None:
    keys = [f"faces/{age}/11{i % 2}/{i}_{age}.jpg" for age in range(18, 27) for i in range(2)]
    found = asked(tmp_path, pictures(*keys))
    assert {"--labels folder:2", "--labels folder:2 --target regression"} <= {*found}
