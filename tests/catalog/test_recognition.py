"""Labels that are found unasked: what `auto` must not take for classes, and what it says of it."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from shardprep.catalog.candidates import table_candidates
from shardprep.catalog.label_rules import auto_labels
from shardprep.catalog.names import find_masks
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.catalog.tables.key_index import KeyIndex, Origin
from shardprep.errors import QuestionError, SourceError
from shardprep.source.string_column import Coded, Texts
from tests.catalog.builders import Found, catalog, found, images, lettered, reasons, table
from tests.support.builders import write, zip_bytes
from tests.support.paths import data_rows


def hexadecimal(number: int, folder: str = "test") -> list[str]:
    """Return images with hexadecimal names of eight digits, as in a test set of Kaggle."""
    return [f"{folder}/{i * 2654435761 % (1 << 32):08x}.jpg" for i in range(number)]


PETS = [f"train/{name}.{i}.jpg" for name in ("cat", "humpback") for i in range(20)]


# Test splits


def test_hexadecimal_names_of_a_test_set_are_not_classes(tmp_path: Path) -> None:
    test = hexadecimal(300)
    made = catalog(tmp_path, images(*PETS, *test))
    assert made.label_names == ("cat", "humpback")
    assert {key: label for key, (split, label) in found(made).items() if split == "test"} == (
        dict.fromkeys(test)
    )
    assert not made.skipped
    (note,) = made.findings
    assert "300 images of test without labels: the classes by prefix (a" in note
    assert note.endswith("--labels prefix uses them")


@pytest.mark.parametrize("folder", ["test/images", "test/unknown", "test1.zip/x"])
def test_a_folder_of_test_images_is_not_a_class(tmp_path: Path, folder: str) -> None:
    train = [f"train/{name}/{i}.jpg" for name in ("cat", "dog") for i in range(4)]
    made = catalog(tmp_path, images(*train, f"{folder}/1.jpg", f"{folder}/2.jpg"))
    assert made.label_names == ("cat", "dog")
    assert Counter(found(made).values())[Found("test", None)] == 2


def test_a_test_split_with_the_classes_of_training_keeps_its_labels(tmp_path: Path) -> None:
    keys = [f"{s}/{c}.{i}.jpg" for s in ("train", "test") for c in ("cat", "dog") for i in range(9)]
    made = catalog(tmp_path, images(*keys))
    assert Counter(found(made).values())[Found("test", "dog")] == 9
    assert not made.findings


def test_a_rule_that_is_asked_for_labels_the_test_split_too(tmp_path: Path) -> None:
    keys = [f"{split}/{c}/{i}.jpg" for split, c in (("train", "a"), ("test", "b")) for i in "12"]
    assert catalog(tmp_path, images(*keys), "folder").label_names == ("a", "b")


# Images lost


def test_auto_asks_before_it_leaves_out_more_than_a_tenth(tmp_path: Path) -> None:
    keys = [f"train/{i}.jpg" for i in range(10)] + [f"test/{i}.jpg" for i in range(10, 20)]
    members = images(*keys)
    members["labels.csv"] = lettered("xy", range(15))
    with pytest.raises(
        SourceError,
        match=r"--labels auto: finds no label for 5 of 20 images, such as test/15\.jpg .*; "
        r"use --labels csv:labels\.csv:id:label to leave these out, or --labels none",
    ):
        catalog(tmp_path, members)
    assert len(catalog(tmp_path, members, "csv:labels.csv:id:label").items) == 15
    assert len(catalog(tmp_path, members, "none").items) == 20


def test_auto_leaves_a_tenth_out_and_counts_it(tmp_path: Path) -> None:
    keys = [f"{c}/{i}.jpg" for c in "ab" for i in range(9)] + ["10.jpg", "11.jpg"]
    made = catalog(tmp_path, images(*keys))
    assert reasons(made) == {"10.jpg": "no label", "11.jpg": "no label"}


# Annotations


@pytest.mark.parametrize(("folders", "masks"), data_rows("labels", "mask_folders"))
def test_mask_folders_are_reported_and_are_not_classes(
    tmp_path: Path, folders: Sequence[str], masks: dict[str, int]
) -> None:
    keys = [f"{folder}/x{i}y.png" for folder in folders for i in range(4)]
    assert find_masks(keys).num_masks == masks
    made = catalog(tmp_path, images(*keys))
    assert made.label_names == ()
    assert len(made.items) == 8
    (name,) = masks
    pattern = "PATTERN" if name == "labels" else f"'{name}/{{stem}}.*'"  # `labels/train`
    line = (
        f"4 images in folders {name} may be masks; --masks {pattern} stores them, "
        f"--exclude '{name}/*' leaves them out"
    )
    assert line in made.findings  # a folder GT may also have target images


def test_distant_masks_are_recognised_by_their_names() -> None:
    keys = [f"images/train/{i}.jpg" for i in range(4)]
    keys += [f"semantic/masks/train/{i}.png" for i in range(4)]
    assert find_masks(keys).num_masks == {"masks": 4}
    assert not find_masks([key.replace("images", "pictures") for key in keys]).num_masks


def test_splits_in_file_names_are_not_classes() -> None:
    """As a set that was made for boxes has them: train_001.jpg, val_001.jpg."""
    keys = [f"{split}_{i:03d}.jpg" for split in ("train", "val") for i in range(4)]
    assert auto_labels(KeyIndex(keys), ()).rule == "none"


def test_masks_in_a_folder_of_each_image_are_recognised() -> None:
    keys = [f"train/{i:03x}/{name}/{i:03x}.png" for name in ("images", "masks") for i in range(9)]
    assert find_masks(keys).num_masks == {"masks": 9}
    assert auto_labels(KeyIndex(keys), ()).rule == "none"


@pytest.mark.parametrize("names", data_rows("labels", "class_folders"))
def test_classes_that_are_called_so_stay_classes(names: tuple[str, str]) -> None:
    keys = [f"{name}/{i}.jpg" for name in names for i in range(4)]
    assert not find_masks(keys).num_masks
    assert set(auto_labels(KeyIndex(keys), ()).names) == {n.rpartition("/")[2] for n in names}


# Candidates

FINDINGS = [("pneumonia", "pa"), ("healthy", "ap"), ("", "pa"), ("covid", "pa"), ("healthy", "ap")]
METADATA = "patientid,finding,view,note\n" + "".join(
    f"{i:02d},{FINDINGS[i % 5][0]},{FINDINGS[i % 5][1]},text {i}\n" for i in range(55)
)
CHESTS = {**images(*(f"images/{i:02d}.jpg" for i in range(55))), "metadata.csv": METADATA.encode()}
READY = 'labels = "csv:metadata.csv:patientid:finding"'


def test_init_lists_each_column_that_could_be_the_label_as_a_ready_line(tmp_path: Path) -> None:
    source = write(tmp_path / "chests.zip", zip_bytes(CHESTS))
    seen = survey_source(source, tmp_path / "work", lambda _: None)
    assert [one.flags for one in seen.choices] == [
        "--labels csv:metadata.csv:patientid:finding",
        "--labels none",
    ]
    text = recipe_text(seen)
    assert f"\n# {READY}\n" in text
    assert tomllib.loads(text.replace(f"# {READY}", READY))["labels"] == READY.split('"')[1]


def test_build_asks_about_a_column_of_labels_with_many_empty_cells(tmp_path: Path) -> None:
    with pytest.raises(QuestionError, match="11 with an empty cell") as asked:
        catalog(tmp_path, CHESTS)
    assert [one.flags for one in asked.value.choices] == [
        "--labels csv:metadata.csv:patientid:finding",
        "--labels none",
    ]


def test_a_clear_label_column_is_the_only_candidate_of_a_table() -> None:
    index = KeyIndex([f"{i}.jpg" for i in range(4)])
    rows = "".join(f"{i},{'ab'[i % 2]},{'cd'[i % 2]}\n" for i in range(4))
    found = table_candidates(index, table(f"id,label,x\n{rows}"), ())
    assert [one.options for one in found] == [{"labels": "csv:labels.csv:id:label"}]


# Parts


def sets_side_by_side() -> dict[str, bytes]:
    """Return a set of two splits with classes in the file names, and one in class folders."""
    keys = [
        f"data/{split}_set/{name}.{i}.jpg"
        for split in ("training", "test")
        for name in ("cat", "dog")
        for i in range(6)
    ]
    breeds = [f"data/breed_dataset/{c}/{i}.jpg" for c in ("pug", "collie") for i in range(30)]
    return images(*keys, *breeds)


def test_init_writes_the_part_as_ready_lines(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(sets_side_by_side()))
    seen = survey_source(source, tmp_path / "work", lambda _: None)
    text = recipe_text(seen)
    assert '# root = "data/breed_dataset"\n# labels = "folder"  # 60 of 60 images' in text


def test_a_file_called_as_a_split_is_in_no_split() -> None:
    """The base name of a key is none of its folders."""
    train = Coded.constant(Origin(split="train"), 1)
    index = KeyIndex(["a/test", "b/test"])
    assert list(index.find("test")) == [0, 1]
    found = KeyIndex(["test/1", "a/1"]).find_all(Texts.of(["1"]), "t.csv", train)
    assert found.tolist() == [1]
