import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.catalog.catalog import make_catalog
from shardprep.catalog.label_rules import label_keys
from shardprep.catalog.labels import Labelling
from shardprep.catalog.names import given_split, natural_order
from shardprep.catalog.tables import metadata_files
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.table import Table, parse_table
from shardprep.dataset.schema import UNLABELLED
from shardprep.errors import RecipeError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.recipe.rules import parse_label_rule
from shardprep.source.names import without_archive_suffix
from tests.catalog.builders import catalog, found, images, lettered, reasons, table, table_of
from tests.support.builders import animals, tar_bytes, write, zip_bytes
from tests.support.examples import examples
from tests.support.paths import data_rows


def labels_of(keys: Sequence[str], rule: str, *tables: Table) -> Labelling:
    """Label keys by a rule as the command line writes it."""
    return label_keys(KeyIndex(keys), parse_label_rule(rule), tables)


# Rules


@pytest.mark.parametrize(("rule", "key", "label"), data_rows("labels", "rules"))
def test_a_rule_finds_the_label_of_a_key(rule: str, key: str, label: str) -> None:
    assert labels_of([key], rule).names == [label or None]


@pytest.mark.parametrize(("rule", "advice"), data_rows("labels", "rule_errors"))
def test_a_rule_that_cannot_be_used_is_an_error_with_advice(rule: str, advice: str) -> None:
    with pytest.raises(RecipeError, match=rf"^--labels: .*{advice}"):
        parse_label_rule(rule)


# Tables


@pytest.mark.parametrize(("id_", "key"), data_rows("labels", "ids"))
def test_an_id_finds_its_image(id_: str, key: str) -> None:
    labelling = labels_of([key, "other.jpg"], "csv:labels.csv:id:label", table_of([id_]))
    assert labelling.names == ["cat", None]
    assert labelling.rows_without_image == ()


@pytest.mark.parametrize("id_", ["1", "01", "001.png", "rain/001.jpg", "01.jpg", "001.jpg.jpg", ""])
def test_an_id_that_is_not_exactly_a_name_finds_nothing(id_: str) -> None:
    labelling = labels_of(["train/001.jpg"], "csv:labels.csv:id:label", table_of([id_, "001"]))
    assert labelling.names == ["dog"]
    assert labelling.rows_without_image == (id_,)


@pytest.mark.parametrize(("keys", "ids", "names"), data_rows("labels", "equal_names"))
def test_leading_zeros_splits_and_folders_tell_images_apart(
    keys: tuple[str, ...], ids: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert labels_of(keys, "csv:x", table_of(ids)).names == [name or None for name in names]


@pytest.mark.parametrize("id_", ["1", "1.jpg", "x/1.jpg"])
def test_an_id_that_fits_several_images_is_an_error_that_names_them(id_: str) -> None:
    keys = ["a/x/1.jpg", "b/x/1.jpg"]
    with pytest.raises(SourceError, match=r"labels\.csv: id '.*' .*a/x/1\.jpg and b/x/1\.jpg"):
        labels_of(keys, "csv:labels.csv:id:label", table_of([id_]))


@pytest.mark.parametrize("rows", ["1,cat\n1,cat", "1,\n1,cat", "1,cat\n1,", "1\n1,cat", "1,cat\n1"])
def test_an_equal_or_empty_cell_does_not_contradict_a_label(rows: str) -> None:
    assert labels_of(["1.jpg"], "csv:x", table(f"id,label\n{rows}\n")).names == ["cat"]


@pytest.mark.parametrize(("rule", "label"), data_rows("labels", "column_rules"))
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


@pytest.mark.parametrize(("rule", "text", "message"), data_rows("labels", "table_errors"))
def test_a_table_without_the_columns_is_an_error_that_lists_them(
    rule: str, text: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        labels_of(["x/1.jpg"], rule, table(text))


def test_rows_without_image_are_counted() -> None:
    labelling = labels_of(["1.jpg", "2.jpg"], "csv:x", table_of(["0", "1", "2", "3"]))
    assert labelling.names == ["dog", "cat"]
    assert labelling.rows_without_image == ("0", "3")


@pytest.mark.parametrize("text", data_rows("labels", "usual_csv"))
def test_the_usual_kinds_of_csv_are_read(text: str) -> None:
    for encoding in ("utf-8", "cp1252") if text.startswith("id,") else ("utf-8",):
        read = parse_table(text.encode(encoding), "t.csv")
        assert (read.header, read.rows) == (("id", "label"), [["1", "café"]])


def test_short_rows_are_filled_and_columns_are_found_by_exact_name_first() -> None:
    read = table("ID,id,Label\n1\n2,dog\n")
    assert read.rows == [["1", "", ""], ["2", "dog", ""]]
    assert [read.column(name) for name in ("id", "ID", "Id", "label")] == [1, 0, 0, 2]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b" , ,\n"])
def test_a_table_without_header_is_an_error(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^t\.csv: is empty; give it a header line and a row"):
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


@pytest.mark.parametrize(("split", "names"), data_rows("labels", "split_names"))
def test_a_folder_or_inner_archive_gives_a_split(split: str, names: str) -> None:
    found = {name: given_split([name]) for name in names.split()}
    assert found == dict.fromkeys(names.split(), split or None)


@pytest.mark.parametrize(("folders", "split"), data_rows("labels", "split_folders"))
def test_the_first_telling_folder_gives_the_split(folders: str, split: str) -> None:
    assert given_split(folders.split("/")) == (split or None)


@pytest.mark.parametrize(("name", "bare"), data_rows("labels", "archive_names"))
def test_an_archive_counts_by_its_name_without_suffix(name: str, bare: str) -> None:
    assert without_archive_suffix(name) == bare


# Order of classes


@pytest.mark.parametrize("ordered", data_rows("labels", "natural_orders"))
def test_classes_are_in_natural_order(ordered: tuple[str, ...]) -> None:
    backwards = ordered[::-1]
    assert sorted(backwards, key=natural_order) == [*ordered]


@given(st.lists(st.text("aB1²①٣ é_", max_size=5), max_size=8))
@examples(100, database=None)
def test_any_names_have_one_order(names: list[str]) -> None:
    assert sorted(names, key=natural_order) == sorted(sorted(names), key=natural_order)


@pytest.mark.parametrize(
    ("classes", "names", "labels"),
    [((), ("2", "10"), [1, 0]), (("10", "emu", "2"), ("10", "emu", "2"), [0, 2])],
)
def test_labels_are_numbered_in_natural_order_or_in_the_given_order(
    tmp_path: Path, classes: tuple[str, ...], names: tuple[str, ...], labels: list[int]
) -> None:
    made = catalog(tmp_path, images("10/a.jpg", "2/b.jpg"), "folder", classes=classes)
    assert made.label_names == names
    assert [item.label for item in made.items] == labels


def test_a_label_outside_the_given_classes_is_an_error(tmp_path: Path) -> None:
    members = images("cat/a.jpg", "emu/b.jpg", "emu/c.jpg")
    with pytest.raises(
        SourceError, match=r"emu/b\.jpg: label 'emu' \(2 images\) .* use one of cat, dog"
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


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (["x/a.csv"], r"^labels\.csv: no such label table.*, or one of the source: x/a\.csv"),
        (["a/labels.csv", "b/labels.csv"], r"several files: a/labels\.csv, b/labels\.csv; give"),
    ],
)
def test_a_label_table_that_is_missing_or_ambiguous_is_an_error_that_lists_tables(
    tmp_path: Path, tables: list[str], message: str
) -> None:
    members = images("1.jpg") | dict.fromkeys([*tables, "notes.txt"], b"id\n")
    with pytest.raises(SourceError, match=message):
        catalog(tmp_path, members, "csv:labels.csv")


def test_a_label_table_that_may_not_be_read_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(metadata_files, "read_table", refuse)
    with pytest.raises(SourceError, match=r"^labels\.csv: cannot be read \(permission denied\); "):
        catalog(tmp_path, images("1.jpg"), "csv:labels.csv")


def test_images_without_a_row_are_skipped_if_their_split_has_labels(tmp_path: Path) -> None:
    members = images("train/1.jpg", "train/2.jpg", "train/3.jpg", "test/9.jpg")
    members["labels.csv"] = b"id,label\n1,cat\n3,dog\n7,dog\n8,\n2,\n"
    made = catalog(tmp_path, members, "csv:labels.csv")
    assert found(made) == {
        "train/1.jpg": ("train", "cat"),
        "train/3.jpg": ("train", "dog"),
        "test/9.jpg": ("test", None),
    }
    assert reasons(made) == {"train/2.jpg": "no label"}
    assert made.rows_without_image == ("7", "8")


@pytest.mark.parametrize(
    "options",
    [
        {"labels": "csv:a.csv"},
        {"labels": "auto"},
        {"labels": "csv:a.csv,b.csv"},
        {"labels": "none", "exclude_list": "b.csv"},
        {"labels": "none", "split": "list:train=a.csv,validation=b.csv"},
        {"labels": "csv:a.csv", "relabel": "csv:c.csv:id:kind"},
        {"labels": "none", "join": ("c.csv",), "columns": ("kind",)},
    ],
    ids=str,
)
def test_a_table_is_skipped_only_if_nothing_reads_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    members = images("1.jpg", "2.jpg", "3.jpg") | {"notes.txt": b"so"}
    members |= {"a.csv": b"id,label\n1,cat\n2,dog\n", "b.csv": b"id,label\n3,cat\n"}
    members["c.csv"] = b"id,kind\n1,dog\n"
    source = write(tmp_path / "x.zip", zip_bytes(members))
    made = make_catalog(make_recipe({"source": str(source), **options}, "test"), tmp_path, print)
    unread = {key for key, reason in reasons(made).items() if reason == "not an image"}
    used = {key for key in members if key in str(options)} or {"a.csv", "b.csv"}
    assert unread == {"notes.txt", "a.csv", "b.csv", "c.csv"} - used


def test_every_member_of_the_source_is_an_item_or_skipped(tmp_path: Path) -> None:
    members = images("train/cat/1.jpg", "train/2.jpg", "test/3.jpg", "._4.jpg")
    members |= {"notes.txt": b"text", "labels.csv": b"id,label\n", "empty": b""}
    made = catalog(tmp_path, members, "folder")
    keys = [*(item.key for item in made.items), *reasons(made)]
    assert sorted(keys) == sorted(members)
    assert len(reasons(made)) == len(made.skipped)


def test_items_are_in_the_order_of_their_keys_and_folders_give_their_splits(tmp_path: Path) -> None:
    keys = ("B/3.jpg", "a/10.jpg", "a/2.jpg", "trainannot/2.jpg", "val/3.jpg")
    made = catalog(tmp_path, images(*keys[::-1]), "none")
    assert [item.key for item in made.items] == [*keys]
    assert [item.split for item in made.items] == ["train"] * 4 + ["validation"]
    assert {item.label for item in made.items} == {UNLABELLED} == {-1}


def test_a_source_without_images_is_an_error_that_says_what_it_holds(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no image \(2 \.csv, 1 no suffix\)"):
        catalog(tmp_path / "1", {"a.csv": b"x", "b.csv": b"y", "c": b"z"})
    (tmp_path / "2" / "source").mkdir(parents=True)
    with pytest.raises(SourceError, match=r"holds no image \(it is empty\)"):
        catalog(tmp_path / "2", {})


@pytest.mark.parametrize(
    "rule", ["folder:7", "prefix", "regex:(?P<label>x)", "csv:labels.csv:id:label"]
)
def test_a_rule_that_finds_no_label_at_all_is_an_error(tmp_path: Path, rule: str) -> None:
    members = images("a/a.jpg", "b/b.jpg") | {"labels.csv": b"id,label\n9,cat\n"}
    with pytest.raises(
        SourceError,
        match=r"^--labels .* finds a label for none of the images \(2\).*( auto|column of ids)",
    ):
        catalog(tmp_path, members, rule)


# Auto


def test_auto_takes_folders_also_of_two_words_for_classes_and_says_so(tmp_path: Path) -> None:
    classes = ["fresh apple", "fresh lime", "rotten apple", "rotten lime"]
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
    members["labels.csv"] = lettered("xy", range(9), "id,breed")
    made = catalog(tmp_path, members)
    assert made.label_names == ("x", "y")
    assert made.labels_from == "labels.csv, column 'breed' by 'id'"
    assert made.rows_without_image == ("6", "7", "8")
    assert found(made)["test/9.jpg"] == ("test", None)


def test_a_table_wins_over_folders_that_only_part_the_data(tmp_path: Path) -> None:
    members = images(*(f"part_{i % 2}/{i}.jpg" for i in range(8)))
    members["labels.csv"] = lettered("xyz", range(8), "id,label")
    assert catalog(tmp_path, members).label_names == ("x", "y", "z")


def test_a_sample_submission_is_not_taken_for_labels(tmp_path: Path) -> None:
    members = images(*(f"{s}/{i}.jpg" for s in ("train", "test") for i in range(8)))
    members["sample_submission.csv"] = lettered("0", range(8))
    members["train.csv"] = lettered("01", range(8))
    made = catalog(tmp_path, members)
    assert made.labels_from.startswith("train.csv")
    assert {label for split, label in found(made).values() if split == "test"} == {None}


def test_a_submission_with_a_column_for_each_class_is_not_taken_for_labels(tmp_path: Path) -> None:
    members = images(*(f"{'train' if i < 8 else 'test'}/{i}.jpg" for i in range(11)))
    members["a_submission.csv"] = b"id,x,y\n8,.5,.5\n9,.5,.5\n10,.5,.5\n"
    members["labels.csv"] = lettered("xy", range(8), "id,breed")
    assert catalog(tmp_path, members).labels_from.startswith("labels.csv")


@pytest.mark.parametrize("name", data_rows("labels", "names_without_classes"))
def test_auto_finds_no_labels_in_names_without_classes(tmp_path: Path, name: str) -> None:
    keys = {name.format(i, letter="abcdef"[i]) for i in range(6)}
    made = catalog(tmp_path, images(*keys))
    assert made.label_names == ()
    assert made.labels_from.startswith("none found")
    assert {label for _, label in found(made).values()} == {None}
    assert len(made.items) == len(keys)


@pytest.mark.parametrize("text", ["\udcff\udcfe\0\0", *data_rows("labels", "unlabelled_tables")])
def test_auto_passes_over_a_table_that_labels_nothing(tmp_path: Path, text: str) -> None:
    members = images(*(f"{c}/{c}{i}.jpg" for c in ("cat", "dog") for i in range(3)))
    made = catalog(tmp_path, members | {"a.csv": text.encode(errors="surrogateescape")})
    assert made.labels_from == "name of the folder that holds the image"


# JSON


@pytest.mark.parametrize(("document", "columns", "labels"), data_rows("labels", "json_tables"))
def test_a_coco_document_and_a_list_of_json_objects_are_tables(
    tmp_path: Path, document: str, columns: str, labels: tuple[str, ...]
) -> None:
    members = images("a/0.jpg", "a/1.jpg", "a/2.jpg") | {"t.json": document.encode()}
    made = catalog(tmp_path, members, f"csv:t.json:{columns}")
    assert [label for _, label in found(made).values()] == [*labels]


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"nonsense", b"[" * 100_000, b'{"images": 1}'])
def test_json_without_a_table_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, match=r"t\.json: is neither a list of JSON objects nor"):
        catalog(tmp_path, images("0.jpg") | {"t.json": data}, "csv:t.json:name:sick")


def test_folders_that_are_ids_of_patients_are_not_classes() -> None:
    keys = [f"train/{patient}/{i}.dcm" for patient in (17, 23) for i in range(4)]
    rows = table("patient_id,image_id,cancer\n17,0,1\n23,1,0", "train.csv")
    assert labels_of(keys, "auto").rule == "folder"
    found = labels_of(keys, "auto", rows)
    assert found.rule == "none"
    assert "the folders are ids in train.csv, column 'patient_id'" in found.how


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        ("train/bus train/train test/bus test/train", "bus train"),
        ("data/train/a data/train/val data/val/a data/val/val", "a val"),
        ("bus train car", "bus car train"),
        ("train.zip/train/cat train.zip/train/dog", "cat dog"),
        ("train/train/cat train/train/dog test/test/cat", "cat dog"),
        ("cat dog test", "cat dog"),
        ("train/images train/train_masks cat/x dog/x", ""),
    ],
)
def test_a_class_may_be_called_as_a_split(folders: str, classes: str) -> None:
    keys = sorted(f"{folder}/{i}.jpg" for folder in folders.split() for i in range(3))
    made = labels_of(keys, "folder")
    found = {str(name) for name in made.names.counts()}
    assert found >= {*classes.split()}
    if classes:
        assert found == {*classes.split()}


def test_a_folder_of_test_beside_classes_stays_the_split(tmp_path: Path) -> None:
    keys = [f"{folder}/{i}.jpg" for folder in ("cat", "dog") for i in range(3)]
    made = found(catalog(tmp_path, images(*keys, *(f"test/{i}.jpg" for i in range(7, 10)))))
    assert {key: one for key, one in made.items() if key.startswith("test")} == {
        f"test/{i}.jpg": ("test", None) for i in range(7, 10)
    }


def test_names_that_cameras_give_are_not_classes(tmp_path: Path) -> None:
    starts = (
        "IMG_",
        "DSC_",
        "PXL_2024",
        "DJI_",
        "DSCN",
        "P100",
        "GOPR",
        "VID_",
        "WP_",
        "Screenshot_",
    )
    keys = [f"{start}{i:04}.jpg" for start in starts for i in range(4)]
    assert catalog(tmp_path, images(*keys)).labels_from.startswith("none found")
    assert labels_of(keys, "prefix").names[0] == "IMG"


def test_columns_of_flags_keep_their_order(tmp_path: Path) -> None:
    members = images(*(f"{i}.jpg" for i in range(3)))
    members["t.csv"] = b"id,rust,apple,scab\n0,1,0,0\n1,0,1,0\n2,0,0,1\n"
    made = catalog(tmp_path, members, "csv:t.csv:id:rust,apple,scab")
    assert made.label_names == ("rust", "apple", "scab")
    whole = catalog(tmp_path, members, "csv:t.csv:id:*")
    assert whole.label_names == ("rust", "apple", "scab")
