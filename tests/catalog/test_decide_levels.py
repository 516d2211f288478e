"""Levels of folders that are no classes: magnifications, an index, kinds of pictures."""

from pathlib import Path

import pytest

from shardprep.catalog.names import split_folders
from shardprep.errors import QuestionError
from tests.catalog.builders import catalog
from tests.support.builders import jpeg, png


def pictures(*keys: str) -> dict[str, bytes]:
    return {key: jpeg(16, 16, i) for i, key in enumerate(keys)}


def flags(folder: Path, members: dict[str, bytes]) -> list[str]:
    with pytest.raises(QuestionError) as caught:
        catalog(folder, members)
    return [one.flags for one in caught.value.choices]


def test_magnifications_are_no_classes_but_the_folders_above_may_be(tmp_path: Path) -> None:
    slides = ("benign/adenosis/s1", "malignant/ductal/s2", "malignant/lobular/s3")
    keys = [f"{one}/{zoom}X/{i}.jpg" for one in slides for zoom in (40, 100) for i in range(2)]
    assert flags(tmp_path, pictures(*keys))[:2] == ["--labels folder:3", "--labels folder:4"]


def test_a_class_of_two_folders_below_an_index_of_letters_has_both_names(tmp_path: Path) -> None:
    classes = ("a/abbey", "b/barn/indoor", "b/barn/outdoor", "b/bow/indoor", "b/bow/outdoor")
    keys = [f"set/{name}/{i}.jpg" for name in classes for i in range(2)]
    assert set(catalog(tmp_path, pictures(*keys)).label_names) == {
        "abbey", "barn/indoor", "barn/outdoor", "bow/indoor", "bow/outdoor",
    }  # fmt: skip


def test_a_folder_whose_name_ends_the_names_of_another_is_a_kind(tmp_path: Path) -> None:
    keys = [f"original/{i:04}.jpg" for i in range(6)]
    keys += [f"aligned/{i:04}_aligned.jpg" for i in range(6)]
    found = flags(tmp_path, pictures(*keys))
    assert found[:2] == [
        "--exclude 'original/*' --labels none",
        "--exclude 'aligned/*' --labels none",
    ]


def test_identities_of_test_are_labels_too(tmp_path: Path) -> None:
    keys = [f"train/n{who}/{i}.jpg" for who in (2, 3, 4) for i in range(3)]
    keys += [f"test/n{who}/{i}.jpg" for who in (1, 9) for i in range(3)]
    assert len(catalog(tmp_path, pictures(*keys)).label_names) == 5


@pytest.mark.parametrize("form", ["{}", "{}_0-1"])
def test_folders_of_words_that_no_two_splits_share_may_be_scenes(tmp_path: Path, form: str) -> None:
    """They are classes if two splits share one."""
    places = ("beach", "lake"), ("park", "road"), ("hill", "cave")
    pairs = zip(("train", "val", "test"), places, strict=True)
    folders = [f"{split}/{form.format(one)}" for split, several in pairs for one in several]
    members = pictures(*(f"{one}/{i}.jpg" for one in folders for i in range(4)))
    assert flags(tmp_path / "apart", members) == ["--labels folder", "--labels none"]
    shared = pictures(*(f"val/{form.format(one)}/9.jpg" for one in ("beach", "hill")))
    plan = catalog(tmp_path / "shared", members | shared)
    assert len(plan.label_names) >= 4


def test_a_column_whose_values_in_test_are_others_may_have_texts(tmp_path: Path) -> None:
    rows = {"train": [f"{i}.jpg,{'AB'[i % 2]}NN" for i in range(6)]}
    rows["test"] = ["7.jpg,EVE", "8.jpg,LENA"]
    tables = {f"names_{s}.csv": "\n".join(["file,who", *own]).encode() for s, own in rows.items()}
    keys = [f"{s}/{row.partition(',')[0]}" for s, own in rows.items() for row in own]
    found = flags(tmp_path, pictures(*keys) | tables)
    assert [one.endswith("--target text") for one in found] == [True, False]


def test_folders_that_begin_like_the_set_may_be_parts_of_it(tmp_path: Path) -> None:
    keys = [f"Plates2019/{name}/{i}.jpg" for name in ("plates_base", "plates_blur") for i in "12"]
    assert flags(tmp_path, pictures(*keys)) == ["--labels folder", "--labels none"]


def test_a_word_of_a_split_counts_beside_a_folder_with_the_same_folders() -> None:
    alike = split_folders(["our485/low", "our485/high", "eval15/low", "eval15/high"])
    assert alike == {"eval15": "validation"}
    assert not split_folders(["oval485/low", "eval15/high"])


def test_pairs_of_files_that_differ_in_the_suffix_are_asked_for(tmp_path: Path) -> None:
    members = pictures(*(f"{room}/{i}.jpg" for room in ("hall", "kitchen") for i in range(3)))
    found = flags(tmp_path, members | {f"{key[:-3]}png": png(16, 16) for key in members})
    assert found[0] == "--target-image '{dir}/{stem}.png'"
    assert "--labels folder" in found


def test_folders_of_test_with_the_start_of_a_class_as_name_have_this_class(tmp_path: Path) -> None:
    keys = [f"train/{name}/{i}.jpg" for name in ("oak_left_T2", "ash_hilum_T1") for i in range(4)]
    members = pictures(*keys, *(f"test/{name}/{i}.jpg" for name in ("oak", "ash") for i in (7, 8)))
    made = catalog(tmp_path, members)
    assert made.label_names == ("ash", "oak")
    assert len(made.items) == 12


def test_images_above_the_folders_of_all_others_are_asked_for(tmp_path: Path) -> None:
    keys = [f"signs/{i:05}.jpg" for i in range(8)]
    keys += [f"signs/{label}/{i:05}.jpg" for label in ("stop", "turn", "yield") for i in range(2)]
    assert [one.partition("' ")[0].strip("'") for one in flags(tmp_path, pictures(*keys))] == [
        "--exclude 'signs/*/*",
        "--include 'signs/*/*",
    ]


def test_a_folder_named_for_pictures_is_no_class_of_folders_elsewhere(tmp_path: Path) -> None:
    keys = [f"cells/{label}/{i}.jpg" for label in ("eosinophil", "monocyte") for i in range(3)]
    keys += [f"voc/JPEGImages/{i}.jpg" for i in range(3)]
    made = catalog(tmp_path, pictures(*keys))
    assert set(made.label_names) == {"eosinophil", "monocyte"}
    assert len(made.items) == 6


def test_letters_after_the_name_of_the_folder_may_be_the_class(tmp_path: Path) -> None:
    keys = [f"{who}/{who}{end}.jpg" for who in ("AF01", "AF02", "BM01") for end in ("AN", "HA")]
    found = flags(tmp_path, pictures(*keys))
    assert found[0].startswith("--labels 'regex:")
    assert found[1:] == ["--labels folder", "--labels none"]
    rule = found[0].removeprefix("--labels ").strip("'")
    own = catalog(tmp_path / "own", pictures(*keys), rule)
    assert set(own.label_names) == {"AN", "HA"}


def test_test_identities_may_have_some_names_of_another_form(tmp_path: Path) -> None:
    keys = [f"box_train/{who:04}/{i}.jpg" for who in (1, 3, 5) for i in range(3)]
    keys += [f"box_test/{who}/{i}.jpg" for who in ("0002", "0006", "00-1") for i in range(3)]
    assert set(catalog(tmp_path, pictures(*keys)).label_names) == {
        "0001", "0003", "0005", "0002", "0006", "00-1",
    }  # fmt: skip


def test_a_numbered_word_that_begins_anew_in_each_folder_may_be_a_part_of_the_class(
    tmp_path: Path,
) -> None:
    places = [(above, i) for above in ("Greek", "Latin", "Tamil") for i in (1, 2, 3)]
    keys = [f"{above}/character{i:02}/{k}.jpg" for above, i in places for k in range(3)]
    found = flags(tmp_path, pictures(*keys))
    assert found[:2] == ["--labels 'regex:(?P<label>[^/]+/[^/]+)/[^/]+$'", "--labels folder:2"]


def test_folders_with_two_numbers_each_may_be_samples(tmp_path: Path) -> None:
    keys = [f"patches/patient_{i:03}_node_{i % 2}/{k}.jpg" for i in range(4) for k in range(3)]
    assert flags(tmp_path, pictures(*keys)) == ["--labels folder", "--labels none"]


@pytest.mark.parametrize("odd", ["places/places", "validation_data/prelim_phase"])
def test_a_folder_alone_where_no_class_is_may_be_no_class(tmp_path: Path, odd: str) -> None:
    keys = [f"train_data/fold_{k}/{name}/{i}.jpg"
            for k in range(2) for name in ("all", "hem") for i in range(3)]  # fmt: skip
    found = flags(tmp_path, pictures(*keys, *(f"{odd}/x{i}.jpg" for i in range(3))))
    assert found[0] == f"--exclude '{odd}/*' --labels folder"
    assert "--labels folder" in found


def test_a_folder_that_numbers_of_classes_have_elsewhere_may_be_no_class(tmp_path: Path) -> None:
    keys = [f"set/digits/{i}/{j}.jpg" for i in range(10) for j in range(3)]
    for other in ("examples", "views"):
        found = flags(
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
    found = flags(tmp_path, pictures(*keys))
    assert found.index(upper) == found.index(f"--exclude 'set/boxes/*' {upper}") + 1


def test_a_folder_of_one_name_in_folders_of_images_is_another_kind_of_picture(
    tmp_path: Path,
) -> None:
    keys = [f"{name}/{name}/{i}.jpg" for name in ("flat", "round") for i in range(3)]
    keys += [f"{name}/{name}/CROPPED/{i}.jpg" for name in ("flat", "round") for i in range(3, 9)]
    assert flags(tmp_path, pictures(*keys)) == [
        "--include 'CROPPED/*' --labels folder:2", "--exclude 'CROPPED/*' --labels folder",
        "--labels folder", "--labels none",
    ]  # fmt: skip


def test_a_level_is_also_proposed_without_folders_of_another_level(tmp_path: Path) -> None:
    paths = [f"s{i}/micro/{one}/s{i}_{one[:2]}_01" for i in range(3) for one in ("happy", "sad")]
    paths += [f"s{i}/non_micro/s{i}_n1" for i in range(3)]
    own = flags(tmp_path, pictures(*(f"faces/{one}/{i}.png" for one in paths for i in range(2))))
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
    found = flags(tmp_path, pictures(*keys))
    assert {"--labels folder:2", "--labels folder:2 --target regression"} <= {*found}
