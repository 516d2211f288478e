"""Which names of folders and files are classes, and which only look like them."""

import re
from pathlib import Path

import pytest

from shardprep.catalog.names import are_parts
from shardprep.errors import QuestionError
from tests.catalog.builders import catalog
from tests.support.builders import jpeg, write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture


def pictures(*keys: str) -> dict[str, bytes]:
    return {key: jpeg(16, 16, i) for i, key in enumerate(keys)}


def asked(folder: Path, members: dict[str, bytes]) -> list[str]:
    """Return the values of `--labels` that a question shows."""
    with pytest.raises(QuestionError) as caught:
        catalog(folder, members)
    return [str(one.options["labels"]) for one in caught.value.choices]


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


def test_parts_of_a_source_are_no_classes(tmp_path: Path) -> None:
    keys = [f"scans_part_{part}/{part}{i:03}.jpg" for part in (1, 2) for i in range(4)]
    assert catalog(tmp_path, pictures(*keys)).labels_from.startswith("none found")


def test_one_letter_before_a_number_is_no_class(tmp_path: Path) -> None:
    keys = [f"{letter}{i}.jpg" for letter in "tv" for i in range(4)]
    assert catalog(tmp_path, pictures(*keys)).labels_from.startswith("none found")


def test_classes_named_like_kinds_of_pictures_stay_classes_if_their_pictures_are_photos(
    tmp_path: Path,
) -> None:
    keys = [f"{one}/{i}.jpg" for one in ("image", "label", "table", "text") for i in range(4)]
    assert catalog(tmp_path, pictures(*keys)).label_names == ("image", "label", "table", "text")


@pytest.mark.parametrize("names", [("cat", "dog"), ("0", "1", "2"), ("n01443537", "n02102040")])
def test_class_folders_that_number_their_files_alike_are_not_asked_for(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    keys = [f"{name}/{i:03}.jpg" for name in names for i in range(4)]
    assert catalog(tmp_path, pictures(*keys)).label_names == names


@pytest.mark.parametrize(
    "names", [("cam_a", "cam_b"), ("rgb", "GT_color", "nir_color"), ("tile 1", "tile 2", "tile 3")]
)
def test_views_and_kinds_of_pictures_may_be_no_classes(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    members = pictures(*(f"{name}/{name}{i}.jpg" for name in names for i in range(6)))
    found = asked(tmp_path, members)
    assert (found[0], found[-1]) == ("folder", "none")


def test_a_word_at_the_end_of_numbered_studies_is_the_class(tmp_path: Path) -> None:
    studies = [f"study{n}_{word}" for n in (1, 2) for word in ("negative", "positive")]
    keys = [f"p{i}/{name}/i{i}.png" for i in range(6) for name in studies]
    assert catalog(tmp_path / "1", pictures(*keys)).label_names == ("negative", "positive")
    views = [key.replace("negative", "left").replace("positive", "right") for key in keys]
    assert "folder" in asked(tmp_path / "2", pictures(*views))


@pytest.mark.parametrize("piece", ["{}001-{}999", "sample_{}"])
def test_folders_of_pieces_are_no_classes_but_those_above_are(tmp_path: Path, piece: str) -> None:
    keys = [f"cells/{name}/{piece.format(n, n)}/{name}{n}{i}.png"
            for name in ("blast", "mast") for n in (1, 2) for i in range(3)]  # fmt: skip
    assert catalog(tmp_path, pictures(*keys)).label_names == ("blast", "mast")


def test_a_field_of_most_names_is_not_read_from_the_start_of_longer_names(tmp_path: Path) -> None:
    keys = [f"all/{coin}_{1477 * i}{coin}.jpg" for coin in (5, 25) for i in range(1, 7)]
    several = [f"all/{coin}_25_{1477 * coin}.jpg" for coin in (5, 10)]
    rule = asked(tmp_path, pictures(*keys, *several))[0].removeprefix("regex:")
    assert all(re.search(rule, key) for key in keys)
    assert not any(re.search(rule, key) for key in several)


def test_numbers_in_two_levels_are_asked_for(tmp_path: Path) -> None:
    keys = [f"{pair}/{i}5.jpg" for pair in ("000/03", "604/92") for i in range(3)]
    assert asked(tmp_path, pictures(*keys)) == [
        r"regex:(?P<label>\d+/\d+)/[^/]+$", "folder:2", "folder", "none",
    ]  # fmt: skip


def test_numbers_that_begin_anew_in_each_folder_may_be_objects_of_its_class(tmp_path: Path) -> None:
    keys = [f"{a}/{b}/{i}.jpg" for a in ("apple", "car", "cow") for b in "12" for i in range(2)]
    assert asked(tmp_path, pictures(*keys)) == ["folder:2", "folder", "none"]


def test_many_numbered_folders_with_few_images_are_asked_for(tmp_path: Path) -> None:
    keys = [f"{number}/{i}.jpg" for number in range(100, 125) for i in range(2)]
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, pictures(*keys))
    assert [one.flags for one in caught.value.choices] == [
        "--labels folder", "--labels folder --target regression", "--labels none",
    ]  # fmt: skip


def test_one_more_word_in_some_names_may_be_the_class(tmp_path: Path) -> None:
    keys = [f"all/Im{i}{word}_EYE.jpg" for i, word in zip(range(12), ["", "_g"] * 6, strict=True)]
    assert asked(tmp_path, pictures(*keys)) == [r"regex:(^|/)Im\d+_(?P<label>EYE|g)", "none"]


def test_fields_of_file_names_are_asked_for(tmp_path: Path) -> None:
    keys = [f"a/{who:04}_v{c}s1_{i:06}.jpg" for who in (2, 7) for c in (1, 2) for i in range(3)]
    found = asked(tmp_path, pictures(*keys, "a/-1_v1s1_000009.jpg"))
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


@pytest.mark.parametrize(
    "keys",
    [
        [f"IMG_2024010{day}_{i:06}.jpg" for day in (1, 2) for i in range(5)],
        [f"{i:08x}.jpg" for i in range(3_000_000, 3_000_012)],
        [f"{i:06}.jpg" for i in range(1, 25)],
        [f"{i:06}.jpg" for i in range(0, 60, 5)],
        [f"{i:06}.jpg" for i in (3, 17, 21, 44, 46, 58, 90, 101)],
    ],
)
def test_dates_counters_and_hashes_are_not_asked_for(tmp_path: Path, keys: list[str]) -> None:
    catalog(tmp_path, pictures(*keys))


def test_an_age_in_names_may_be_a_number(tmp_path: Path) -> None:
    keys = [f"{age}_{i}_{j}_170116.jpg" for age in (1, 26, 100) for i in (0, 1) for j in (0, 2)]
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, pictures(*keys))
    pattern = r"regex:(^|/)(?P<label>\d+)_\d+_\d+_\d+"
    assert caught.value.choices[0].options == {"labels": pattern, "target": "regression"}


def test_names_of_a_few_letters_and_numbers_may_be_the_text(tmp_path: Path) -> None:
    """They are if the pictures are equally wide and low."""
    names = ("2b82x", "2gg4x", "xeg2f", "2cgyx", "2d2wm", "2en7g")
    low = {f"{name}.png": picture("grey", f"{name}.png", name, (40, 15)) for name in names}
    assert catalog(tmp_path / "low", low).items.target[0] == "2b82x"
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, pictures(*(f"{name}.jpg" for name in names)))
    assert caught.value.choices[0].options["target"] == "text"


def test_names_with_many_forms_between_equal_signs_may_be_the_text(tmp_path: Path) -> None:
    boards = ("8-K7-3R2n1-1q3Nb1-8", "4p3-7p-k7-NB6-3K4", "1p1b4-5Q2-8-2rR4-K7", "k7-7R-6B1-8-B7r")
    slugs = pictures("red-shoe-for-men-x1.jpg", "hat-of-wool-for-2.jpg", "a-b-c-d-k2.jpg")
    assert catalog(tmp_path / "slugs", slugs).labels_from.startswith("none found")
    found = asked(tmp_path, pictures(*(f"{name}.jpg" for name in boards)))
    assert found == [r"regex:(^|/)(?P<label>[^/]+)\.[^./]+$", "none"]


def test_texts_beside_images_are_their_captions(tmp_path: Path) -> None:
    keys = [f"{i:02}.jpg" for i in range(8)]
    texts = {f"{i:02}.txt": f"a house with number {i}".encode() for i in range(8)}
    found = catalog(tmp_path, pictures(*keys) | texts)
    assert found.items.target[3] == "a house with number 3"


def test_a_folder_with_a_picture_of_each_class_is_left_out(tmp_path: Path) -> None:
    keys = [f"data/{number}/{i}.jpg" for number in (0, 1, 2) for i in range(20, 24)]
    found = catalog(tmp_path, pictures(*keys, "Meta/0.jpg", "Meta/1.jpg", "Meta/2.jpg"))
    assert found.label_names == ("0", "1", "2")
    assert len(found.items) == len(keys)


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
    found = asked(tmp_path / "2", pictures(*keys, *(f"several/{i}.jpg" for i in range(4))))
    assert found == ["folder", "none"]  # a class that is in no split


def test_pictures_of_classes_in_a_folder_named_like_masks_may_be_their_targets(
    tmp_path: Path,
) -> None:
    keys = [f"part/{number}/{i}.jpg" for number in (1, 2, 3) for i in range(4)]
    labels = [f"part/Label/{number}.jpg" for number in (1, 2, 3)]
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, pictures(*keys, *labels))
    wanted = "Label/{folder}.jpg"
    assert wanted in {one.options.get("target_image") for one in caught.value.choices}
    found = catalog(tmp_path / "2", pictures(*keys, *labels), target_image=wanted)
    assert {one.key: [m.key for m in one.companions] for one in found.items} == {
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
    assert rule in asked(tmp_path, pictures(*keys))


@pytest.mark.parametrize("name", ["person_{i}_9", "n_{i}_label_{j}"])
def test_the_number_after_a_word_such_as_label_is_the_class(tmp_path: Path, name: str) -> None:
    keys = [f"cam_{a}/{name.format(i=i, j=i // 2)}.jpg" for a in "ab" for i in range(6)]
    assert len(catalog(tmp_path, pictures(*keys)).label_names) == (6 if "person" in name else 3)


def test_names_that_no_other_image_has_are_not_proposed(tmp_path: Path) -> None:
    keys = [f"cam_{one}/{8 * (one == 'b') + i:03}_0.jpg" for one in "ab" for i in range(8)]
    assert asked(tmp_path, pictures(*keys)) == ["folder", "none"]


def test_folders_of_kinds_are_asked_about_if_those_of_test_have_other_names(tmp_path: Path) -> None:
    folders = ["training/GT_IMAGES", "training/INPUT_IMAGES", "validation/GT_IMAGES"]
    folders += ["validation/INPUT_IMAGES", *(f"testing/expert_{x}_set" for x in "abc")]
    keys = [f"{folder}/{n}{i}.jpg" for n, folder in enumerate(folders) for i in range(4)]
    assert asked(tmp_path, pictures(*keys)) == ["folder", "none"]


def test_probe_and_gallery_are_splits(tmp_path: Path) -> None:
    keys = [f"set/{kind}/{kind}_{i}.jpg" for kind in ("probe", "gallery") for i in range(4)]
    made = catalog(tmp_path, pictures(*keys))
    assert {item.key.split("/")[1]: item.split for item in made.items} == {
        "probe": "query",
        "gallery": "gallery",
    }


def test_fractions_after_a_word_in_names_are_proposed_as_numbers(tmp_path: Path) -> None:
    names = [f"panels/solar_Fri_Jun_1{i}_L_0.{i}5_I_0.{9 - i}.jpg" for i in range(8)]
    rules = asked(tmp_path, pictures(*names))
    assert [re.search(rules[0][6:], names[3])["label"], len(rules)] == ["0.35", 3]  # type: ignore[index]
    found = catalog(tmp_path / "2", pictures(*names), labels=rules[1], target="regression")
    assert [item.target for item in found.items][:2] == [0.9, 0.8]


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
