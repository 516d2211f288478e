from __future__ import annotations

import csv
import io
import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog.labels import Labelling, label_keys
from shardprep.catalog.names import given_split, natural_order
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.catalog.tables.table import Table, parse_table
from shardprep.dataset.schema import UNLABELLED
from shardprep.errors import RecipeError, SourceError
from shardprep.recipe.rules import parse_label_rule
from shardprep.source.names import without_archive_suffix
from tests.catalog.builders import catalog, found, images, reasons, table, table_of
from tests.support.builders import animals, tar_bytes, write, zip_bytes
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def labels_of(keys: Sequence[str], rule: str, *tables: Table) -> Labelling:
    """Label keys by a rule as the command line writes it."""
    return label_keys(KeyIndex(keys), parse_label_rule(rule), tables)


def lettered(header: str, letters: str, number: int) -> bytes:
    """Return a table that gives ids 0 to n these letters in turn."""
    rows = (f"{i},{letters[i % len(letters)]}" for i in range(number))
    return "\n".join([header, *rows]).encode()


# Rules


@pytest.mark.parametrize(
    ("rule", "key", "label"),
    [
        ("folder", "train/cat/1.jpg", "cat"),
        ("folder", "cat/1.jpg", "cat"),
        ("folder", "a/b c/é/1.jpg", "é"),
        ("folder", "cat.zip/1.jpg", "cat"),
        ("folder", "cat.tar.gz/1.jpg", "cat"),
        ("folder", "1.jpg", None),
        ("folder", "train/1.jpg", None),
        ("folder", "train.zip/1.jpg", None),
        ("folder", "cat/v1.2/1.jpg", "v1.2"),
        ("folder:1", "cat/tabby/1.jpg", "tabby"),
        ("folder:2", "cat/tabby/1.jpg", "cat"),
        ("folder:2", "cat/1.jpg", None),
        ("folder:2", "train/cat/tabby/1.jpg", "cat"),
        ("folder:3", "a/b/c/1.jpg", "a"),
        ("prefix", "train/cat.0.jpg", "cat"),
        ("prefix", "dog_12.jpg", "dog"),
        ("prefix", "dog-12.jpg", "dog"),
        ("prefix", "dog (12).jpg", "dog"),
        ("prefix", "dog12.jpg", "dog"),
        ("prefix", "great_dane_00012.jpg", "great_dane"),
        ("prefix", "n02085620_10074.JPEG", "n02085620"),
        ("prefix", "0012.jpg", None),
        ("prefix", "cat.jpg", None),
        (r"regex:(?P<label>\w+)_\d+", "x/cat_1.jpg", "cat"),
        (r"regex:^(?P<label>[^/]+)/", "cat/1.jpg", "cat"),
        (r"regex:(?P<label>a|b)?z", "z.jpg", None),
        (r"regex:(?P<label>cat)", "dog.jpg", None),
        (r"regex:(?P<label>c:a:t)", "c:a:t.jpg", "c:a:t"),
        ("none", "cat/cat.1.jpg", None),
    ],
)
def test_a_rule_finds_the_label_of_a_key(rule: str, key: str, label: str | None) -> None:
    assert labels_of([key], rule).names == [label]


@pytest.mark.parametrize(
    ("rule", "advice"),
    [
        (
            "folders",
            r"is not a rule for labels; use auto, folder, folder:N, prefix, regex:PATTERN, csv",
        ),
        ("", "is not a rule for labels"),
        ("Folder", "is not a rule for labels"),
        ("folder:0", r"folder:0 is not folder:N; N counts from 1"),
        ("folder:-1", "N counts from 1"),
        ("folder:x", "N counts from 1"),
        ("folder:²", "N counts from 1"),
        ("csv", r"csv: names no file; use csv:FILE or csv:FILE:ID:LABEL"),
        ("csv:", "use csv:FILE"),
        ("auto:x", "auto does not take an argument, but has 'x'"),
        ("prefix:_", "prefix does not take an argument, but has '_'"),
        ("none:x", "none does not take an argument, but has 'x'"),
        ("regex", r"has no group named label; write \(\?P<label>…\)"),
        (r"regex:(\w+)_", r"has no group named label; write \(\?P<label>…\)"),
        ("regex:(?P<label>x", r"regex:\(\?P<label>x is not valid"),
    ],
)
def test_a_rule_that_cannot_be_used_is_an_error_with_advice(rule: str, advice: str) -> None:
    with pytest.raises(RecipeError, match=rf"^--labels: .*{advice}"):
        parse_label_rule(rule)


# Tables


@pytest.mark.parametrize(
    ("id_", "key"),
    [
        ("001", "train/001.jpg"),
        ("001.jpg", "train/001.jpg"),
        ("train/001.jpg", "data/train/001.jpg"),
        ("train/001", "data/train/001.jpg"),
        ("./train/001.jpg", "train/001.jpg"),
        ("train\\001.jpg", "train/001.jpg"),
        ("img.1", "img.1.jpg"),
        ("img.1.jpg", "img.1.jpg"),
        ("a b", "x/a b.png"),
        ("é", "é.jpg"),
        ("no_suffix", "x/no_suffix"),
        ("in.zip/001.jpg", "in.zip/001.jpg"),
        (" 001 ", "001.jpg"),
    ],
)
def test_an_id_finds_its_image(id_: str, key: str) -> None:
    labelling = labels_of([key, "other.jpg"], "csv:labels.csv:id:label", table_of([id_]))
    assert labelling.names == ["cat", None]
    assert labelling.rows_without_image == ()


@pytest.mark.parametrize("id_", ["1", "01", "001.png", "rain/001.jpg", "01.jpg", "001.jpg.jpg", ""])
def test_an_id_that_is_not_exactly_a_name_finds_nothing(id_: str) -> None:
    labelling = labels_of(["train/001.jpg"], "csv:labels.csv:id:label", table_of([id_, "001"]))
    assert labelling.names == ["dog"]
    assert labelling.rows_without_image == (id_,)


def test_ids_are_strings_with_their_leading_zeros() -> None:
    labelling = labels_of(["1.jpg", "01.jpg", "001.jpg"], "csv:x", table_of(["001", "1", "01"]))
    assert labelling.names == ["dog", "cat", "cat"]


def test_an_id_and_the_name_of_a_test_image_may_be_the_same() -> None:
    keys = ["test/1.jpg", "train/1.jpg", "train/2.jpg"]
    assert labels_of(keys, "csv:x", table_of(["1", "2"])).names == [None, "cat", "dog"]


@pytest.mark.parametrize("id_", ["1", "1.jpg", "x/1.jpg"])
def test_an_id_that_fits_several_images_is_an_error_that_names_them(id_: str) -> None:
    keys = ["a/x/1.jpg", "b/x/1.jpg"]
    with pytest.raises(SourceError, match=r"labels\.csv: id '.*' .*a/x/1\.jpg and b/x/1\.jpg"):
        labels_of(keys, "csv:labels.csv:id:label", table_of([id_]))


def test_a_path_as_id_tells_images_of_one_name_apart() -> None:
    keys = ["a/1.jpg", "b/1.jpg"]
    assert labels_of(keys, "csv:x", table_of(["b/1.jpg", "a/1"])).names == ["dog", "cat"]


def test_two_labels_for_one_image_are_an_error_that_names_them() -> None:
    with pytest.raises(
        SourceError, match=r"labels\.csv: gives x/1\.jpg two labels, 'cat' and 'dog'"
    ):
        labels_of(["x/1.jpg"], "csv:labels.csv:id:label", table_of(["1", "1.jpg"]))


def test_the_same_label_twice_is_no_contradiction() -> None:
    assert labels_of(["1.jpg"], "csv:x", table("id,label\n1,cat\n1,cat\n")).names == ["cat"]


@pytest.mark.parametrize("rows", ["1,\n1,cat", "1,cat\n1,", "1\n1,cat", "1,cat\n1"])
def test_an_empty_cell_does_not_contradict_a_label(rows: str) -> None:
    assert labels_of(["1.jpg"], "csv:x", table(f"id,label\n{rows}\n")).names == ["cat"]


@pytest.mark.parametrize(
    ("rule", "label"),
    [
        ("csv:labels.csv", "a"),
        ("csv:labels.csv:id:breed", "b"),
        ("csv:labels.csv:ID:Breed", "b"),
        ("csv:labels.csv::breed", "b"),
        ("csv:labels.csv:id:", "a"),
        ("csv:labels.csv:file name:breed", "b"),
    ],
)
def test_columns_are_named_or_found(rule: str, label: str) -> None:
    text = "split,id,breed,label,file name\ntrain,1,b,a,1.jpg\n"
    assert labels_of(["1.jpg"], rule, table(text)).names == [label]


@pytest.mark.parametrize(
    "header", ["label", "class", "target", "Category", "BREED", "diagnosis", "species", "whatever"]
)
def test_the_label_column_is_found_by_its_name_or_by_being_the_only_one(header: str) -> None:
    other = "" if header == "whatever" else ",width"
    text = f"split,{header},id{other}\ntrain,cat,1,640\n"
    assert labels_of(["1.jpg"], "csv:x", table(text)).names == ["cat"]


@pytest.mark.parametrize("rule", ["csv:labels.csv:name:label", "csv:labels.csv:id:breed"])
def test_a_missing_column_is_an_error_that_lists_those_there_are(rule: str) -> None:
    with pytest.raises(SourceError, match=r"^labels\.csv: has no column '.*'; .* id, label$"):
        labels_of(["1.jpg"], rule, table_of(["1"]))


def test_a_table_without_ids_of_images_is_an_error() -> None:
    with pytest.raises(
        SourceError, match=r"labels\.csv: no column .* names of images.*csv:FILE:ID"
    ):
        labels_of(["1.jpg"], "csv:labels.csv", table_of(["x"]))


def test_several_columns_that_may_be_the_label_are_an_error_that_lists_them() -> None:
    with pytest.raises(
        SourceError, match=r"not clear .*: id, width, height; .*csv:t\.csv:id:LABEL"
    ):
        labels_of(["1.jpg"], "csv:t.csv", table("id,width,height\n1,2,3\n", "t.csv"))


def test_rows_without_image_are_counted() -> None:
    labelling = labels_of(["1.jpg", "2.jpg"], "csv:x", table_of(["0", "1", "2", "3"]))
    assert labelling.names == ["dog", "cat"]
    assert labelling.rows_without_image == ("0", "3")


@pytest.mark.parametrize(
    "data",
    [
        b"id,label\n1,caf\xc3\xa9\n",
        b"\xef\xbb\xbfid,label\n1,caf\xc3\xa9\n",
        b"id,label\n1,caf\xe9\n",
        b"id;label\r\n1;caf\xc3\xa9\r\n",
        b"id\tlabel\n1\tcaf\xc3\xa9",
        b"id|label\n1|caf\xc3\xa9",
        b" id , label \n 1 , caf\xc3\xa9 \n",
        b'"id","label"\n"1","caf\xc3\xa9"\n',
        b"id,label\n\n1,caf\xc3\xa9\n\n",
        b"id,label\n1,caf\xc3\xa9,more,cells\n",
        b"id,label\n ,\n1,caf\xc3\xa9\n",
    ],
)
def test_the_usual_kinds_of_csv_are_read(data: bytes) -> None:
    read = parse_table(data, "t.csv")
    assert (read.header, read.rows) == (("id", "label"), [["1", "café"]])


def test_short_rows_are_filled() -> None:
    assert table("id,label,x\n1\n2,dog\n").rows == [["1", "", ""], ["2", "dog", ""]]


def test_a_column_is_found_by_exact_name_first() -> None:
    read = table("ID,id,Label\n")
    assert [read.column(name) for name in ("id", "ID", "Id", "label")] == [1, 0, 0, 2]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b" , ,\n"])
def test_a_table_without_header_is_an_error(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^t\.csv: is empty: a header line is needed"):
        parse_table(data, "t.csv")


_CELLS = st.text('ab é0,;"\t\n', max_size=6)


@given(
    st.lists(st.tuples(st.text("ab0", min_size=1), _CELLS, _CELLS), max_size=8),
    st.sampled_from(",;\t|"),
    st.sampled_from(["utf-8", "utf-8-sig", "cp1252"]),
    st.sampled_from(["\n", "\r\n"]),
)
@examples(100, database=None)
def test_what_the_csv_module_writes_comes_back_stripped(
    rows: list[tuple[str, ...]], delimiter: str, encoding: str, newline: str
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator=newline)
    writer.writerows([("id", "label", "more"), *rows])
    read = parse_table(out.getvalue().encode(encoding), "t.csv")
    assert read.rows == [[cell.strip() for cell in row] for row in rows]


# Splits


@pytest.mark.parametrize(
    ("split", "names"),
    [
        (
            "train",
            "train Train TRAIN training Training train1 train_2 train2017 train_set trainset",
        ),
        (
            "train",
            "train-images train_data training_data train.zip train.tar.gz TRAIN.ZIP train.tgz",
        ),
        ("validation", "val valid validation Val VALID Validation val2017 valid_set val_images"),
        ("validation", "validation-data valid.zip val.tar.xz"),
        ("test", "test Test testing test1 test_2 test1.zip testset test_images test-data test.7z"),
        (None, "trainannot trains trainer training_labels value values valley valence validity"),
        (None, "latest testimony tests contest attest cat images data 1 train_cat my_train _"),
    ],
)
def test_a_folder_or_inner_archive_gives_a_split(split: str | None, names: str) -> None:
    assert {name: given_split([name]) for name in names.split()} == dict.fromkeys(
        names.split(), split
    )


@pytest.mark.parametrize(
    ("folders", "split"),
    [
        ("data/train/cat", "train"),
        ("train/test", "train"),
        ("cats/val/1", "validation"),
        ("train.zip/train/cat", "train"),
        ("a/b", None),
        ("", None),
    ],
)
def test_the_first_telling_folder_gives_the_split(folders: str, split: str | None) -> None:
    assert given_split(folders.split("/")) == split


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("a.zip", "a"),
        ("a.tar.gz", "a"),
        ("a.TGZ", "a"),
        ("a.tar", "a"),
        ("a.b", "a.b"),
        ("zip", "zip"),
    ],
)
def test_an_archive_counts_by_its_name_without_suffix(name: str, bare: str) -> None:
    assert without_archive_suffix(name) == bare


# Order of classes


@pytest.mark.parametrize(
    "ordered",
    [
        ["1", "2", "10"],
        ["class 1", "class 2", "class 10", "class 10 b"],
        ["ant", "Bee", "cat", "Dog"],
        ["a", "a1", "a1b", "a2", "a10"],
        ["1", "a", "b1"],
        ["A", "a"],
        ["01", "1"],
        ["", "0", "a"],
    ],
)
def test_classes_stand_in_natural_order(ordered: list[str]) -> None:
    shuffled = ordered[::-1]
    assert sorted(shuffled, key=natural_order) == ordered


@given(st.lists(st.text("aB1²①٣ é_", max_size=5), max_size=8))
@examples(100, database=None)
def test_any_names_have_one_order(names: list[str]) -> None:
    assert sorted(names, key=natural_order) == sorted(sorted(names), key=natural_order)


def test_labels_are_numbered_in_natural_order(tmp_path: Path) -> None:
    made = catalog(tmp_path, images("10/a.jpg", "2/b.jpg", "1/c.jpg"), "folder")
    assert made.label_names == ("1", "2", "10")
    assert {item.key: item.label for item in made.items} == {
        "1/c.jpg": 0,
        "2/b.jpg": 1,
        "10/a.jpg": 2,
    }


def test_given_classes_keep_their_order_and_may_be_absent(tmp_path: Path) -> None:
    made = catalog(
        tmp_path, images("cat/a.jpg", "dog/b.jpg"), "folder", classes=("dog", "emu", "cat")
    )
    assert made.label_names == ("dog", "emu", "cat")
    assert {item.key: item.label for item in made.items} == {"cat/a.jpg": 2, "dog/b.jpg": 0}


def test_a_label_that_is_not_among_the_given_is_an_error_naming_image_and_label(
    tmp_path: Path,
) -> None:
    members = images("cat/a.jpg", "emu/b.jpg", "emu/c.jpg")
    with pytest.raises(
        SourceError, match=r"emu/b\.jpg: label 'emu' \(2 images\) .* classes are cat, dog"
    ):
        catalog(tmp_path, members, "folder", classes=("cat", "dog"))


# Catalog


@pytest.mark.parametrize("rule", ["csv:labels.csv", "csv:labels.csv:id:label", "csv:x/labels.csv"])
@pytest.mark.parametrize("place", ["folder", "zip", "inner zip", "inner tar.gz"])
def test_a_label_table_of_the_source_is_found(tmp_path: Path, rule: str, place: str) -> None:
    text = {"x/labels.csv": b"id,label\n1,cat\n2,dog\n"}
    packed = {
        "folder": text,
        "zip": {"x/labels.zip": zip_bytes(text)},
        "inner zip": {"o.zip": zip_bytes({"labels.csv.zip": zip_bytes(text)})},
        "inner tar.gz": {"o.zip": zip_bytes({"labels.tgz": tar_bytes(text, "gz")})},
    }
    made = catalog(tmp_path, images("train/1.jpg", "train/2.jpg") | packed[place], rule)
    assert [label for _, label in found(made).values()] == ["cat", "dog"]
    assert "x/labels.csv, column 'label' by 'id'" in made.labels_from


def test_a_label_table_on_disk_is_found(tmp_path: Path) -> None:
    file = write(tmp_path / "my labels.csv", b"id,label\n1,cat\n2,dog\n")
    made = catalog(tmp_path, images("1.jpg", "2.jpg"), f"csv:{file}:id:label")
    assert [label for _, label in found(made).values()] == ["cat", "dog"]


def test_a_label_table_that_is_missing_is_an_error_that_lists_those_there_are(
    tmp_path: Path,
) -> None:
    members = images("1.jpg") | {"x/a.csv": b"id\n", "notes.txt": b"text"}
    with pytest.raises(SourceError, match=r"^labels\.csv: no such label table.* has x/a\.csv$"):
        catalog(tmp_path, members, "csv:labels.csv")


def test_two_label_tables_of_the_asked_name_are_an_error_that_lists_them(tmp_path: Path) -> None:
    members = images("1.jpg") | {"a/labels.csv": b"id\n", "b/labels.csv": b"id\n"}
    with pytest.raises(SourceError, match=r"several: a/labels\.csv, b/labels\.csv; give the whole"):
        catalog(tmp_path, members, "csv:labels.csv")


def test_images_without_a_row_are_skipped_where_their_split_has_labels(tmp_path: Path) -> None:
    members = images("train/1.jpg", "train/2.jpg", "train/3.jpg", "test/9.jpg")
    members["labels.csv"] = b"id,label\n1,cat\n3,dog\n7,dog\n8,\n2,\n"
    made = catalog(tmp_path, members, "csv:labels.csv")
    assert found(made) == {
        "train/1.jpg": ("train", "cat"),
        "train/3.jpg": ("train", "dog"),
        "test/9.jpg": ("test", None),
    }
    assert reasons(made) == {"train/2.jpg": "no label", "labels.csv": "not an image"}
    assert made.rows_without_image == ("7", "8")


def test_every_member_of_the_source_is_an_item_or_skipped(tmp_path: Path) -> None:
    members = images("train/cat/1.jpg", "train/2.jpg", "test/3.jpg", "._4.jpg")
    members |= {"notes.txt": b"text", "labels.csv": b"id,label\n", "empty": b""}
    made = catalog(tmp_path, members, "folder")
    keys = [*(item.key for item in made.items), *reasons(made)]
    assert sorted(keys) == sorted(members)
    assert len(reasons(made)) == len(made.skipped)


def test_an_unlabelled_test_folder_is_the_split_test(tmp_path: Path) -> None:
    made = catalog(tmp_path, images("train/cat/1.jpg", "train/dog/2.jpg", "test/3.jpg"), "folder")
    (test,) = [item for item in made.items if item.split == "test"]
    assert (test.key, test.label, UNLABELLED) == ("test/3.jpg", -1, -1)


def test_images_without_a_telling_folder_are_train(tmp_path: Path) -> None:
    made = catalog(tmp_path, images("a/1.jpg", "trainannot/2.jpg", "val/3.jpg"), "none")
    assert found(made) == {
        "a/1.jpg": ("train", None),
        "trainannot/2.jpg": ("train", None),
        "val/3.jpg": ("validation", None),
    }


def test_items_stand_in_the_order_of_their_keys(tmp_path: Path) -> None:
    made = catalog(tmp_path, images("b/1.jpg", "a/2.jpg", "B/3.jpg", "a/10.jpg"), "none")
    assert [i.key for i in made.items] == ["B/3.jpg", "a/10.jpg", "a/2.jpg", "b/1.jpg"]


def test_a_source_without_images_is_an_error_that_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no image \(2 \.csv, 1 no suffix\)"):
        catalog(tmp_path, {"a.csv": b"x", "b.csv": b"y", "c": b"z"})


def test_an_empty_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(SourceError, match=r"holds no image \(it is empty\)"):
        catalog(tmp_path, {})


@pytest.mark.parametrize(
    "rule", ["folder:7", "prefix", "regex:(?P<label>x)", "csv:labels.csv:id:label"]
)
def test_a_rule_that_finds_no_label_at_all_is_an_error(tmp_path: Path, rule: str) -> None:
    members = images("a/a.jpg", "b/b.jpg") | {"labels.csv": b"id,label\n9,cat\n"}
    with pytest.raises(
        SourceError, match=r"^--labels .* finds no label for any of 2 images.* auto"
    ):
        catalog(tmp_path, members, rule)


# Auto


def test_auto_takes_folders_also_of_two_words_for_classes_and_says_so(tmp_path: Path) -> None:
    classes = [
        f"{how} {what}" for how in ("fresh", "rotten") for what in ("apple", "banana", "lime")
    ]
    made = catalog(tmp_path, images(*(f"{c}/{i}.jpg" for c in classes for i in range(3))))
    assert made.label_names == tuple(sorted(classes))
    assert "folder" in made.labels_from
    assert Counter(label for _, label in found(made).values()) == dict.fromkeys(classes, 3)


def test_auto_takes_the_start_of_names_for_classes_and_says_so(tmp_path: Path) -> None:
    made = catalog(tmp_path, animals(6))
    assert made.label_names == ("cat", "dog")
    assert "start of the file name" in made.labels_from
    assert "cat.0.jpg → cat" in made.labels_from


def test_auto_takes_a_table_for_labels_and_says_so(tmp_path: Path) -> None:
    members = images(*(f"train/{i}.jpg" for i in range(6)), "test/9.jpg")
    members["labels.csv"] = lettered("id,breed", "xy", 9)
    made = catalog(tmp_path, members)
    assert made.label_names == ("x", "y")
    assert made.labels_from == "labels.csv, column 'breed' by 'id'"
    assert made.rows_without_image == ("6", "7", "8")
    assert found(made)["test/9.jpg"] == ("test", None)


def test_a_table_wins_over_folders_that_only_part_the_data(tmp_path: Path) -> None:
    members = images(*(f"part_{i % 2}/{i}.jpg" for i in range(8)))
    members["labels.csv"] = lettered("id,label", "xyz", 8)
    assert catalog(tmp_path, members).label_names == ("x", "y", "z")


@pytest.mark.parametrize("pack", [zip_bytes, tar_bytes], ids=["zip", "tar"])
def test_dogs_vs_cats_is_understood(
    tmp_path: Path, pack: Callable[[Mapping[str, bytes]], bytes]
) -> None:
    members = {
        "train.zip": pack(animals(12)),
        "test1.zip": pack(images(*(f"test1/{i}.jpg" for i in range(1, 5)))),
        "sampleSubmission.csv": b"id,label\n1,0\n2,0\n3,0\n4,0\n",
    }
    made = catalog(tmp_path, members)
    assert made.label_names == ("cat", "dog")
    assert Counter(found(made).values()) == {
        ("train", "cat"): 6,
        ("train", "dog"): 6,
        ("test", None): 4,
    }
    assert reasons(made) == {"sampleSubmission.csv": "not an image"}


def test_a_sample_submission_is_not_taken_for_labels(tmp_path: Path) -> None:
    members = images(*(f"{s}/{i}.jpg" for s in ("train", "test") for i in range(8)))
    members["sample_submission.csv"] = b"id,label\n" + b"".join(b"%d,0\n" % i for i in range(8))
    members["train.csv"] = b"id,label\n" + b"".join(b"%d,%d\n" % (i, i % 2) for i in range(8))
    made = catalog(tmp_path, members)
    assert made.labels_from.startswith("train.csv")
    assert {label for split, label in found(made).values() if split == "test"} == {None}


def test_a_submission_with_a_column_for_each_class_is_not_taken_for_labels(tmp_path: Path) -> None:
    members = images(
        *(f"train/{i}.jpg" for i in range(8)), *(f"test/{i}.jpg" for i in range(9, 12))
    )
    members["a_submission.csv"] = b"id,x,y\n9,.5,.5\n10,.5,.5\n11,.5,.5\n"
    members["labels.csv"] = lettered("id,breed", "xy", 8)
    assert catalog(tmp_path, members).labels_from.startswith("labels.csv")


@pytest.mark.parametrize(
    "keys",
    [
        [f"{i}.jpg" for i in range(6)],
        [f"images/{i}.jpg" for i in range(6)],
        [f"IMG_{i}.jpg" for i in range(6)],
        [f"cats/cat.{i}.jpg" for i in range(6)],
        [f"{i}/photo.jpg" for i in range(6)],
        [f"{'abcdef'[i]}{i}.jpg" for i in range(6)],
        [f"train/{i}.jpg" for i in range(6)],
        ["one.jpg"],
    ],
    ids=["numbers", "one folder", "camera", "one class", "each its own", "letters", "train", "one"],
)
def test_auto_takes_nothing_for_labels_where_nothing_tells_classes(
    tmp_path: Path, keys: list[str]
) -> None:
    made = catalog(tmp_path, images(*keys))
    assert made.label_names == ()
    assert made.labels_from.startswith("none found")
    assert {label for _, label in found(made).values()} == {None}
    assert len(made.items) == len(keys)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe\0\0",
        b"id\n1\n2\n",
        b"id,label\n1,cat\n",
        b"id,label\n1,cat\n1,dog\n",
        b"id,label\n" + b"".join(b"%d,cat\n" % i for i in range(6)),
        b"name,age\nBob,3\n",
    ],
    ids=["empty", "binary", "no labels", "too few", "contradiction", "one class", "other matter"],
)
def test_auto_passes_over_a_table_that_labels_nothing(tmp_path: Path, text: bytes) -> None:
    members = images(*(f"{c}/{c}{i}.jpg" for c in ("cat", "dog") for i in range(3)))
    made = catalog(tmp_path, members | {"a.csv": text})
    assert made.labels_from == "name of the folder that holds the image"


# JSON


def test_a_coco_document_is_a_table(tmp_path: Path) -> None:
    document = {
        "images": [{"id": i, "file_name": f"a/{i}.jpg", "place": f"p{i % 2}"} for i in range(4)],
        "annotations": [
            {"id": 10 + i, "image_id": i, "category_id": 7 * (i % 2), "bbox": [1, 2, 3, 4]}
            for i in range(4)
        ],
        "categories": [{"id": 0, "name": "ox"}, {"id": 7, "name": "yak"}],
    }
    members = images(*(f"a/{i}.jpg" for i in range(4)))
    members["train.json"] = json.dumps(document).encode()
    made = catalog(tmp_path, members, "csv:train.json:file_name:category")
    assert [label for _, label in found(made).values()] == ["ox", "yak", "ox", "yak"]


def test_a_list_of_json_objects_is_a_table(tmp_path: Path) -> None:
    rows = [{"name": "0", "sick": True, "x": None}, {"name": "1", "sick": False, "more": [1]}]
    members = images("0.jpg", "1.jpg") | {"t.json": json.dumps(rows).encode()}
    made = catalog(tmp_path, members, "csv:t.json:name:sick")
    assert [label for _, label in found(made).values()] == ["true", "false"]


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"nonsense", b"[" * 100_000, b'{"images": 1}'])
def test_a_json_that_is_no_table_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, match=r"t\.json: is neither a list of JSON objects nor"):
        catalog(tmp_path, images("0.jpg") | {"t.json": data}, "csv:t.json:name:sick")
