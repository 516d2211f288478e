"""A row belongs to its image: the one rule of ids, in tables and lists of every kind."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.catalog.tables.row_matching import match_table
from shardprep.catalog.tables.table import Table
from shardprep.errors import QuestionError, SourceError
from shardprep.source.string_column import Texts
from tests.catalog.builders import (
    catalog,
    facts_of,
    found,
    images,
    lettered,
    objects_of,
    reasons,
    survey,
)
from tests.support.builders import jpeg, write, write_folder

IDS = range(6)
TWINS = images(*(f"{split}/{i}.jpg" for split in ("train", "test") for i in IDS))
"""Images of two splits with equal names."""


def named(folder: Path, members: Mapping[str, bytes], rule: str = "auto", **keys: Any) -> Any:
    """Return the label of each key."""
    made = catalog(folder, members, rule, **keys)
    return {key: label for key, (_, label) in found(made).items()}


def expected(**letters: str) -> dict[str, str | None]:
    """Return the labels of `TWINS` if each split has these letters in turn."""
    return {
        f"{split}/{i}.jpg": letters[split][i % 2] if split in letters else None
        for split in ("train", "test")
        for i in IDS
    }


BOTH = {"train.csv": lettered("ab"), "test.csv": lettered("ba")}


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (("train.csv", "test.csv"), "auto"),
        (("train.csv", "test.csv"), "csv:train.csv,test.csv:id:label"),
        (("train.csv", "test.csv"), "csv:test.csv,train.csv"),
        (("train_labels.csv", "test_labels.csv"), "csv:{split}_labels.csv:id:label"),
        (("TrainLabels.csv", "TestLabels.csv"), "auto"),
        (("train/labels.csv", "test/labels.csv"), "auto"),
        (("train/_classes.csv", "test/_classes.csv"), "csv:{split}/_classes.csv:id:label"),
        (("labels_train/a.csv", "labels_test/a.csv"), "auto"),
    ],
)
def test_tables_of_two_splits_label_each_their_own_images(
    tmp_path: Path, names: tuple[str, str], rule: str
) -> None:
    members = TWINS | dict(zip(names, BOTH.values(), strict=True))
    assert named(tmp_path, members, rule) == expected(train="ab", test="ba")


def test_the_output_says_which_table_labelled_which_split(tmp_path: Path) -> None:
    assert catalog(tmp_path, TWINS | BOTH).labels_from == (
        "test.csv (6 test) + train.csv (6 train), column 'label' by 'id'"
    )


def test_init_proposes_both_tables_as_one_rule(tmp_path: Path) -> None:
    assert survey(tmp_path, TWINS | BOTH).chosen == "csv:test.csv,train.csv:id:label"


@pytest.mark.parametrize("name", ["test.csv", "test/labels.csv", "a/test_labels.csv"])
@pytest.mark.parametrize("is_named", [False, True])
def test_a_table_of_a_split_alone_labels_only_that_split(
    tmp_path: Path, name: str, *, is_named: bool
) -> None:
    members = TWINS | {name: lettered("ab")}
    if is_named:
        assert named(tmp_path, members, f"csv:{name}:id:label") == expected(test="ab")
    else:
        with pytest.raises(QuestionError) as caught:
            named(tmp_path, members)
        assert f"{name} is not read" in caught.value.choices[0].why


def test_a_table_that_auto_leaves_out_is_said_if_its_images_stay_unlabelled(tmp_path: Path) -> None:
    extra = lettered("ab", [f"test/{i}" for i in IDS], head="id,label,other")
    made = catalog(tmp_path, TWINS | {"train.csv": lettered("ab"), "zz.csv": extra})
    assert made.findings == ["zz.csv is not used, although it labels 6 unlabelled images"]


def test_a_column_of_splits_tells_equal_names_apart(tmp_path: Path) -> None:
    rows = [f"{i},{s},{s[1]}{i % 2}" for s in ("train", "test") for i in IDS]
    members = TWINS | {"labels.csv": "\n".join(["id,split,label", *rows]).encode()}
    made = named(tmp_path, members, "csv:labels.csv:id:label")
    assert made == {key: f"{key[1]}{int(key[-5]) % 2}" for key in TWINS}


def test_an_id_of_two_images_is_an_error_whose_advice_works(tmp_path: Path) -> None:
    members = TWINS | {"labels.csv": lettered("ab")}
    for rule in ("auto", "csv:labels.csv:id:label"):
        with pytest.raises(AmbiguousIdError) as caught:
            catalog(tmp_path / rule[:4], members, rule)
        assert str(caught.value) == (
            "labels.csv: id '0' fits several images: test/0.jpg and train/0.jpg; "
            "write test/{id} or train/{id} instead of id"
        )
    for split in ("train", "test"):
        made = named(tmp_path / split, members, f"csv:labels.csv:{split}/{{id}}:label")
        assert made == expected(**{split: "ab"})


def test_a_table_of_another_split_is_refused_unless_a_path_says_so(tmp_path: Path) -> None:
    members = TWINS | {"test.csv": lettered("ab")}
    with pytest.raises(SourceError, match=r"'0' is of split test, .*train/0.*a table of train$"):
        catalog(tmp_path / "1", members, "csv:test.csv:id:label", root="train")
    rule = "csv:test.csv:train/{id}:label"
    made = named(tmp_path / "2", members, rule, root="train")
    assert made == {key: label for key, label in expected(train="ab").items() if label}


def test_an_id_whose_image_is_missing_does_not_take_the_twin_of_another_split(
    tmp_path: Path,
) -> None:
    members = {key: data for key, data in TWINS.items() if key != "test/5.jpg"} | BOTH
    made = catalog(tmp_path, members)
    wanted = expected(train="ab", test="ba")
    del wanted["test/5.jpg"]
    assert {key: label for key, (_, label) in found(made).items()} == wanted
    assert made.rows_without_image == ("5",)


@pytest.mark.parametrize("name", ["val.csv", "dev.csv"])
def test_a_table_of_validation_may_name_images_of_the_training_folder(
    name: str, tmp_path: Path
) -> None:
    members = images(*(f"train/{i}.jpg" for i in range(8)))
    members |= {"train.csv": lettered("ab"), name: lettered("b", [6, 7])}
    made = catalog(tmp_path, members, f"csv:train.csv,{name}:id:label", split="tables")
    assert [split for split, _ in found(made).values()] == ["train"] * 6 + ["validation"] * 2
    flat = {key.replace("train/", "a/"): data for key, data in members.items()}
    made = catalog(tmp_path / "flat", flat, f"csv:train.csv,{name}:id:label", split="tables")
    assert f"{name} (2 images)" in made.labels_from


def test_a_table_without_a_word_for_a_split_is_not_train_beside_train(tmp_path: Path) -> None:
    members = images(*(f"a/{i}.jpg" for i in range(8)))
    members |= {"train.csv": lettered("ab"), "more.csv": lettered("b", [6, 7])}
    with pytest.raises(
        SourceError, match=r"the name of more\.csv has no word for a split, but other names have"
    ):
        catalog(tmp_path, members, "csv:train.csv,more.csv:id:label", split="tables")


# Boxes, rows, corrections and lists

BOXES = "filename,width,height,class,xmin,ymin,xmax,ymax"


def boxes(name: str, ids: Iterable[Any] = IDS) -> bytes:
    rows = (f"{one}.jpg,8,8,{name},1,1,{x},6" for one in ids for x in (5, 6))
    return "\n".join([BOXES, *rows]).encode()


@pytest.mark.parametrize(
    "rule",
    ["auto", "csv:train/_annotations.csv,test/_annotations.csv", "csv:{split}/_annotations.csv"],
)
def test_tables_of_boxes_belong_to_the_images_beside_them(tmp_path: Path, rule: str) -> None:
    members = TWINS | {f"{s}/_annotations.csv": boxes(s) for s in ("train", "test")}
    made = catalog(tmp_path, members, boxes=rule)
    names = facts_of(made).names
    for item in made.items:
        assert {names[label] for label in objects_of(item).labels} == {item.split}
        assert len(objects_of(item).labels) == 2


def test_tables_of_boxes_can_give_the_splits(tmp_path: Path) -> None:
    members = images(*(f"all/{i}.jpg" for i in range(8)))
    members |= {"train_boxes.csv": boxes("a"), "val_boxes.csv": boxes("a", [6])}
    rule = "csv:train_boxes.csv,val_boxes.csv"
    made = catalog(tmp_path, members, boxes=rule, split="tables")
    splits = [split for split, _ in found(made).values()]
    assert splits == ["train"] * 6 + ["validation"]
    assert reasons(made)["all/7.jpg"] in {"in no split", "no annotation"}


def test_run_lengths_of_two_splits_are_of_their_own_images(tmp_path: Path) -> None:
    runs = {s: f"id,rle\n0,{start} 2 20 3\n".encode() for s, start in (("train", 1), ("test", 9))}
    members = TWINS | {f"{split}.csv": table for split, table in runs.items()}
    made = catalog(tmp_path, members, masks="rle:train.csv,test.csv:id:rle", instances=True)
    cells = {
        item.key: objects_of(item).outlines[0].text  # type: ignore[union-attr]
        for item in made.items
        if item.annotation and item.annotation.outlines
    }
    assert cells == {"test/0.jpg": "9 2 20 3", "train/0.jpg": "1 2 20 3"}


def test_rows_of_two_splits_are_of_their_own_images(tmp_path: Path) -> None:
    tables = {f"{s}.csv": lettered(s[:2], head="id,x") for s in ("train", "test")}
    made = catalog(tmp_path, TWINS | tables, "none", rows="csv:train.csv,test.csv:id:x")
    cells = {item.key: item.columns[0] for item in made.items}
    assert cells == {key: (key[int(key[-5]) % 2].encode(),) for key in TWINS}


@pytest.mark.parametrize(
    ("files", "join"),
    [("train.csv,test.csv", ("test_more.csv",)), ("train.csv,test.csv", ("{split}_more.csv:id",))],
)
def test_a_joined_table_of_a_split_adds_its_columns_to_that_split(
    tmp_path: Path, files: str, join: tuple[str, ...]
) -> None:
    more = {f"{s}_more.csv": lettered(s[:2], head="id,more") for s in ("train", "test")}
    made = catalog(
        tmp_path, TWINS | BOTH | more, f"csv:{files}:id:label", join=join, columns=("more",)
    )
    wanted = {key: key[int(key[-5]) % 2] for key in TWINS}
    if join == ("test_more.csv",):
        wanted |= {key: "" for key in TWINS if key.startswith("train")}
    assert {item.key: item.columns for item in made.items} == {k: (v,) for k, v in wanted.items()}


def test_corrections_and_exclude_lists_mean_one_image(tmp_path: Path) -> None:
    members = TWINS | BOTH
    (tmp_path / "fixes.csv").write_text("key,label\ntest/0.jpg,a\n")
    (tmp_path / "out.txt").write_text("train/1.jpg\n1.jpg\n")
    rule = f"csv:{tmp_path}/fixes.csv:key:label"
    made = named(tmp_path, members, relabel=rule)
    assert made == expected(train="ab", test="ba") | {"test/0.jpg": "a"}
    with pytest.raises(AmbiguousIdError, match=r"id '1\.jpg' fits .*test/1\.jpg and train/1\.jpg"):
        catalog(tmp_path, members, exclude_list=str(tmp_path / "out.txt"))


# Ids with longer paths


@pytest.mark.parametrize(
    "start", ["/kaggle/input/set/", "..\\data\\", "gs://bucket/set/", "set/", "C:\\x\\", "./"]
)
@pytest.mark.parametrize("end", ["train/p{}.jpg", "train/p{}", "train\\p{}.jpg"])
def test_ids_with_a_longer_path_find_their_images(tmp_path: Path, start: str, end: str) -> None:
    members = images(*(f"{split}/p{i}.jpg" for split in ("train", "test") for i in IDS))
    ids = [start + end.format(i) for i in IDS]
    made = named(tmp_path, members | {"all.csv": lettered("ab", ids)}, "csv:all.csv")
    assert made == {
        key: ("ab"[int(key[-5]) % 2] if key.startswith("train") else None) for key in made
    }


def test_the_folder_of_a_longer_path_decides_between_splits(tmp_path: Path) -> None:
    members = images(*(f"{split}ing/{i}.jpg" for split in ("train", "test") for i in IDS))
    table = lettered("ab", [f"/data/train/{i}.jpg" for i in IDS])
    made = named(tmp_path, members | {"all.csv": table}, "csv:all.csv:id:label")
    assert [key for key, label in made.items() if label] == [f"training/{i}.jpg" for i in IDS]


def test_auto_asks_instead_of_taking_prefixes_if_ids_nearly_fit(tmp_path: Path) -> None:
    members = images(*(f"train/p{i:03}.jpg" for i in IDS), *(f"train/q{i:03}.jpg" for i in IDS))
    ids = [f"{letter.upper()}{i}" for letter in "pq" for i in IDS]
    with pytest.raises(SourceError, match=r"'P0' in .* keys such as 'train/p000\.jpg'; write the"):
        catalog(tmp_path, members | {"labels.csv": lettered("ab", ids)})


@pytest.mark.parametrize("options", [{"group": "site"}, {"split": "column:split"}])
def test_rows_of_an_image_with_other_groups_or_splits_are_an_error(
    options: dict[str, str], tmp_path: Path
) -> None:
    rows = [f"{i},{'ab'[i % 2]},s{i},train" for i in IDS]
    table = ["id,label,site,split", *rows, "0,a,s0,train"]
    members = images(*(f"all/{i}.jpg" for i in IDS)) | {"t.csv": "\n".join(table).encode()}
    assert len(catalog(tmp_path / "1", members, "csv:t.csv:id:label", **options).items) == 6
    members["t.csv"] += b"\n0,a,s1,test"
    with pytest.raises(
        SourceError, match=r"t\.csv: rows 1 and .* of an image have 's?0?(train)?' and "
    ):
        catalog(tmp_path / "2", members, "csv:t.csv:id:label", **options)


# Accounts


def notes_of(folder: Path, **keys: Any) -> tuple[list[str], tuple[str, ...]]:
    made = catalog(folder, images(*(f"a/{i}.jpg" for i in IDS)), "none", **keys)
    return made.findings, made.rows_without_image


def test_entries_of_an_exclude_list_that_fit_nothing_are_named_and_are_no_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "out.txt").write_text("a/1.jpg\na/7.jpg\na/8.jpg\na/9.jpg\na/x.jpg\n")
    notes, lost = notes_of(tmp_path, exclude_list=str(tmp_path / "out.txt"))
    (note,) = notes
    start = f"warning: {tmp_path}/out.txt: 4 of 5 entries (80%) fit no image, such as "
    assert note == f"{start}a/7.jpg, a/8.jpg, a/9.jpg"
    assert not lost


def test_a_row_of_an_excluded_image_is_not_a_row_without_image(tmp_path: Path) -> None:
    members = TWINS | {"train.csv": lettered("ab", [*IDS, 9])}
    made = catalog(tmp_path, members, "csv:train.csv:id:label", exclude=("train/1.jpg",))
    assert made.rows_without_image == ("9",)
    assert made.findings == ["1 row is of images that are left out: 1"]


def test_a_glob_that_fits_nothing_is_said(tmp_path: Path) -> None:
    notes, _ = notes_of(tmp_path, exclude=("a/1.jpg", "b/*"))
    assert notes == ["--exclude: b/* fits nothing"]
    notes, _ = notes_of(tmp_path, include=("a/*", "*.png"))
    assert notes == ["--include: *.png fits nothing"]


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_an_id_instead_of_a_glob_is_an_error_with_the_glob(tmp_path: Path, option: str) -> None:
    with pytest.raises(SourceError, match=rf"{option}: 1 is an id, of a/1\.jpg, .* write 1\.\*"):
        notes_of(tmp_path, **{option: ("1", "a/2.jpg")})
    notes, _ = notes_of(tmp_path, **{option: ("1.*", "a/2.jpg")})
    assert notes == []


def test_entries_of_a_list_of_a_split_that_fit_nothing_are_named_and_are_no_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.txt").write_text("a/0.jpg\na/1.jpg\nb/2.jpg\n")
    notes, lost = notes_of(tmp_path, split=f"list:train={tmp_path}/t.txt")
    assert notes[0] == (
        f"warning: {tmp_path}/t.txt: 1 of 3 entries (33%) fit no image, such as b/2.jpg (the "
        "nearest key is a/2.jpg)"
    )
    assert not lost


@pytest.mark.parametrize("way", ["labels", "frame", "items"])
def test_many_ids_without_an_image_are_a_warning_with_the_nearest_keys(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the notes. A few such ids are only counted; those of items are named."""
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    source = write_folder(tmp_path / "s", images(*(f"a/Scan_{i:02}.jpg" for i in range(8))))

    def notes(num_lost: int) -> list[str]:
        ids = [f"scan_{i:02}" for i in range(8 - num_lost)] + [f"scan-{i}" for i in range(num_lost)]
        rows = [{"id": f"S{one[1:]}", "label": "xy"[i % 2]} for i, one in enumerate(ids)]
        table = write(tmp_path / "t.csv", labels_of(rows))
        ways: dict[str, dict[str, Any]] = {
            "labels": {"labels": f"csv:{table}:id:label"},
            "frame": {"labels": rows},
            "items": {"items": rows},
        }
        plan = shardprep.build(source, dry_run=True, **ways[way])
        assert plan.num_rows_without_image == num_lost
        return plan.plan.findings

    first = notes(4)[0]
    assert re.match("warning: .*: 4 of 8 entries \\(50%\\) fit no image, such as Scan-0 ", first)
    assert first.count("(the nearest key is a/Scan_0") == 3
    few = [one for one in notes(1) if "fit no image" in one]
    assert len(few) == (way == "items")
    assert not any(one.startswith("warning") for one in few)


def labels_of(rows: list[dict[str, str]]) -> bytes:
    return "\n".join(["id,label", *(f"{one['id']},{one['label']}" for one in rows)]).encode()


def test_images_that_a_table_does_not_list_are_in_no_split(tmp_path: Path) -> None:
    members = images(*(f"all/{i}.jpg" for i in range(8)), "test/9.jpg")
    rows = [f"{i},{'ab'[i % 2]},{i % 3}" for i in IDS]
    members["folds.csv"] = "\n".join(["id,label,fold", *rows]).encode()
    made = catalog(tmp_path, members, "csv:folds.csv:id:label", split="column:fold:0=f0,1=f1,2=f2")
    assert {split for split, _ in found(made).values()} == {"f0", "f1", "f2", "test"}
    assert {key for key, why in reasons(made).items() if why == "in no split"} == {
        "all/6.jpg",
        "all/7.jpg",
    }


def test_a_table_is_matched_once_for_a_column_that_is_named_or_detected() -> None:
    index = KeyIndex(["a/1.jpg", "a/2.jpg"])
    table = Table("labels.csv", ("id", "label"), [["1", "x"], ["2", "y"]])
    assert match_table(index, table) is match_table(index, table, "id")


@pytest.mark.parametrize("title", ["split", "site"])
def test_a_column_with_one_cell_for_an_image_has_no_values_of_a_pivot(
    tmp_path: Path, title: str
) -> None:
    keys = [f"{folder}/{i}" for folder in ("train", "val") for i in range(3)]
    rows = [f"{key},{name},{key[0]}" for key in keys for name in ("ab" if key[-1] > "0" else "a")]
    members = images(*(f"{key}.jpg" for key in keys))
    members["t.csv"] = "\n".join([f"id,label,{title}", *rows]).encode()
    with pytest.raises(QuestionError) as caught:
        catalog(tmp_path, members)
    assert {str(one.options["labels"]) for one in caught.value.choices} == {"csv:t.csv:id:label"}
    assert not any("pivot" in one.options for one in caught.value.choices)


def test_a_table_that_gives_an_image_two_labels_is_not_left_out_in_silence(tmp_path: Path) -> None:
    members = images(*(f"val/{i}.png" for i in "012"), *(f"test/{i}.png" for i in "234"))
    members["val.csv"] = b"id,label\n1.png,b\n2.png,c\n0.png,a\n"
    rows = "2.png,a 0.png,d 9.png,d 3.png,b 0.png,a 4.png,c 2.png,c"
    members["more.csv"] = "\n".join(["id,label", *rows.split()]).encode()
    made = catalog(tmp_path, members)
    assert all(label is None for split, label in found(made).values() if split == "test")
    assert any(line.startswith("more.csv is not used") for line in made.findings)


def test_ids_may_be_names_of_other_files_of_the_images(tmp_path: Path) -> None:
    """A table of masks names `1.png`, and the image is `1.jpg`; an image so named goes first."""
    members = images(*(f"{i}.jpg" for i in IDS))
    table = lettered("ab", (f"{i}.PNG" for i in IDS))
    assert named(tmp_path / "1", members | {"t.csv": table}) == {
        f"{i}.jpg": "ab"[i % 2] for i in IDS
    }
    assert KeyIndex(["1.jpg", "1.png"]).num_found(Texts.of(["1.png", "2.png"])) == 1
    assert KeyIndex(["1.jpg", "2.jpg", "3.png"]).num_found(Texts.of(["1.png", "3.png"])) == 1


def test_rows_that_repeat_the_label_of_an_image_are_counted(tmp_path: Path) -> None:
    rows = "id,label\n0.jpg,a\n1.jpg,b\n1.jpg,b\n2.jpg,a\n9.jpg,a\n"
    members = {"labels.csv": rows.encode()} | {f"{i}.jpg": jpeg(seed=i) for i in range(3)}
    source = write_folder(tmp_path / "s", members)
    found = shardprep.build(source, labels="csv:labels.csv", dry_run=True, progress=str)
    assert "labels.csv: 1 row repeats the label of an image" in found.plan.findings
    assert found.num_rows_without_image == 1
