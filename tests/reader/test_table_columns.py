"""Columns of the user's table: select records by them in words, and get them back as a table."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep import reader
from shardprep.errors import DatasetError
from tests.reader.datasets import keys_of
from tests.support.builders import jpeg, write_folder

pandas = pytest.importorskip("pandas")

ROWS: list[dict[str, Any]] = [
    {
        "image": f"{i:02}.jpg",
        "label": ("cat", "dog")[i % 2],
        "split": ("train", "test")[i % 5 == 4],
        "fold": i % 4,
        "sex": ("f", "m", None)[i % 3],
        "age": None if i % 7 == 6 else i * 1.1,
        "count": None if i % 8 == 3 else -i,
        "kind": f"it's {i % 3}",
        "Roi.X1": i,
        "eye/side": "lr"[i % 2],
        "two words": i // 5,
        "is_bad": i % 3 == 1,
        "checked": (True, None, False)[i % 3],
    }
    for i in range(20)
]
FRAME = pandas.DataFrame(ROWS).astype({"count": "Int64"})


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    source = write_folder(
        folder / "set", {row["image"]: jpeg(seed=int(row["image"][:2])) for row in ROWS}
    )
    made = shardprep.build(source, folder / "out", items=FRAME, size=8, shards=2, workers=1)
    said = " ".join(made.notes)
    assert "10 columns are stored: fold, sex, age, count, column/kind, Roi.X1, eye/side" in said
    return made.path


WHOLE = [
    "fold != 3",
    "fold == 3 and label == 1",
    "not (fold == 3 or label == 1)",
    "0 < fold <= 2",
    "fold in (1, 3)",
    "fold not in [1, 3]",
    "2.5 < fold",
    "original_width > fold",
    "fold in (1, 2.5)",
    "`two words` >= 2 and `eye/side` == 'l'",
    "`Roi.X1` > 4",
    "original_format == 'jpeg'",
    'key == "03.jpg" or key in ("04.jpg", "05.jpg", "19.jpg")',
]  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
def test_a_condition_in_words_selects_what_pandas_selects(folder: Path, text: str) -> None:
    frame = FRAME.rename(columns={"image": "key"}).assign(original_width=64, original_format="jpeg")
    frame["label"] = frame["label"].map({"cat": 0, "dog": 1})
    found = reader.select(folder, "train+test", where=text)
    assert sorted(keys_of(folder, found)) == [*frame.query(text)["key"]]


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("sex is None", lambda row: row["sex"] is None),
        ("sex != None", lambda row: row["sex"] is not None),
        ("sex != 'f'", lambda row: row["sex"] == "m"),
        ("sex not in ('f',)", lambda row: row["sex"] == "m"),
        ("not sex in ('f',)", lambda row: row["sex"] == "m"),
        ("not sex == 'f'", lambda row: row["sex"] == "m"),
        ("sex in (None,)", lambda row: row["sex"] is None),
        ("sex in () or fold == 2", lambda row: row["fold"] == 2),
        ("sex in ('f', None)", lambda row: row["sex"] in ("f", None)),
        ("age is not None and age > 4.4", lambda row: (row["age"] or 0) > 4.4),
        ("age == 1.1", lambda row: row["age"] == 1.1),
        ("count is None", lambda row: row["count"] is None),
        ("count < 0", lambda row: (row["count"] or 0) < 0),
        ("Roi.X1 < 3 or eye/side == 'l'", lambda row: row["Roi.X1"] < 3 or row["eye/side"] == "l"),
        ("`column/kind` == 'it\\'s 2'", lambda row: row["kind"] == "it's 2"),
        ("is_bad == True", lambda row: row["is_bad"]),
        ("is_bad != True", lambda row: not row["is_bad"]),
        ("is_bad and fold == 1", lambda row: row["is_bad"] and row["fold"] == 1),
        ("not is_bad", lambda row: not row["is_bad"]),
        ("is_bad == 'true'", lambda row: row["is_bad"]),
        ({"is_bad": True}, lambda row: row["is_bad"]),
        ({"is_bad": FRAME["is_bad"][0]}, lambda row: not row["is_bad"]),
        ("not checked", lambda row: row["checked"] is False),
        ("checked != True", lambda row: row["checked"] is False),
        ("checked in (True, False)", lambda row: row["checked"] is not None),
        ({"checked": [True, None]}, lambda row: row["checked"] is not False),
        ("label_name == 'dog'", lambda row: row["label"] == "dog"),
        ("label_name in ('cat', 'dog') and is_bad", lambda row: row["is_bad"]),
        ({"label_name": "cat", "fold": 2}, lambda row: row["label"] == "cat" and row["fold"] == 2),
        ("sex == 'x' or fold == 2", lambda row: row["fold"] == 2),
    ],
)
def test_an_empty_cell_fulfils_only_is_none(folder: Path, text: Any, fits: Any) -> None:
    found = reader.select(folder, "train+test", where=text)
    assert sorted(keys_of(folder, found)) == [row["image"] for row in ROWS if fits(row)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fld == 3", "items have no column fld; is fold meant? use one of the columns key, status"),
        ("sex == m", "items have no column m; put a text into quotes, or use one of the columns"),
        ("sex = 'm'", "where=sex = 'm': has =; write ==: a condition"),
        ("fold ==", "is not a condition; a condition is such as: fold != 3"),
        ("", "is not a condition"),
        ("fold", "fold is not a comparison; a condition is such as"),
        ("(fold == 3) & (label == 1)", "has &; write and: "),
        ("fold!=3 & age>30", "has &; write and: "),
        ("fold == 3 | ~(label == 1)", "has |; write or: "),
        ("is_bad == 'True'", "no cell of is_bad is 'True'; use cells such as true, false"),
        ("is_bad != 'True'", "no cell of is_bad is 'True'; use cells such as true, false"),
        ("is_bad in ('1', '0')", "no cell of is_bad is '1'; use cells such as false, true"),
        ("is_bad < True", "cannot be compared this way; use == or !="),
        ({"is_bad": "True"}, "no cell of is_bad is 'True'; use cells such as true, false"),
        ("sex == True", "no cell of sex is True; use cells such as f, m"),
        ("not sex", "no cell of sex is True; use cells such as f, m"),
        ({"original_format": True}, "no cell of original_format is True; use cells such as jpeg"),
        ("label_name == 'Dog'", "has no class 'Dog'; is dog meant? use one of cat, dog"),
        ("label_name < 'dog'", "cannot be compared this way; use == or !="),
        ("label_names == 'dog'", "no column label_names; is label_name meant?"),
        ({"label": "dog"}, "'dog' is not the number of a class; label= of reader.select"),
        ({"fold": 10**30}, "is not a value"),
        ({"fold": [[1]]}, "[1] is not a number"),
        ({"fold": "3"}, "'3' is not a number like the values of column fold"),
        (
            "kind == 'x'",
            "kind is in your table and in items.parquet; write column/kind for your table",
        ),
        (
            {"kind": "x"},
            "kind is in your table and in items.parquet; write column/kind for your table",
        ),
        ("__import__('os').getcwd() == 'x'", "is compared, but is not a column"),
        ("fold == fold.__class__", "items have no column fold.__class__"),
        ("fold == '3'", "not a number like the values of column fold; write it without quotes"),
        ("fold == True", "True is not a number"),
        ("sex == 3", "3 is not a text like the values of column sex; write it as a text: '3'"),
        ("label == 'dog'", "'dog' is not the number of a class; label= of reader.select"),
        ("labels == 3", "column labels has lists; select by label="),
        ("fold in 3", "3 is not a list of values; give several values: fold in (1, 2)"),
        ("fold is 3", "3 cannot be compared this way; use == or !=, or fold is None"),
        ("not " * 3000 + "fold == 1", "is not a condition"),
        ("fold == {[1]}", "is not a value"),
        ("column_0_in_backticks == 1", "items have no column column_0_in_backticks"),
        ("`two words`", "`two words` is not a comparison"),
        ("1 == 1", "1 is compared, but is not a column"),
        (f"fold == {10**30}", "is not a value"),
        ("fold == 1 and " * 2000 + "fold == 1", ""),
        ("(" * 500 + "fold == 1" + ")" * 500, "is not a condition"),
    ],
)
def test_a_wrong_condition_says_what_to_write(folder: Path, text: Any, said: str) -> None:
    if not said:
        assert len(reader.select(folder, "train", where=text))
        return
    with pytest.raises(DatasetError) as caught:
        reader.select(folder, "train", where=text)
    assert str(caught.value).startswith("reader.select: where=")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_booleans_of_a_csv_are_selected_as_they_are_stored(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "set", {f"{i}.jpg": jpeg(seed=i) for i in range(3)})
    (tmp_path / "items.csv").write_text("image,ok,length\n0.jpg,True,1\n1.jpg,False,2\n2.jpg,,3\n")
    made = shardprep.build(
        source, tmp_path / "out", items=tmp_path / "items.csv", size=8, workers=1
    )
    for where, wanted in {"ok": ["0.jpg"], "not ok": ["1.jpg"], "ok == 'True'": ["0.jpg"]}.items():
        assert keys_of(made.path, reader.select(made.path, "train", where=where)) == wanted
    long = reader.select(made.path, "train", where="column/length > 2")
    assert keys_of(made.path, long) == ["2.jpg"]
    with pytest.raises(DatasetError, match="write column/length for your table"):
        reader.select(made.path, "train", where="length > 2")
    assert "2 columns are stored: ok, column/length" in " ".join(made.notes)


def test_the_table_of_a_dataset_has_the_cells_of_the_frame(folder: Path) -> None:
    found = reader.table(folder)
    assert found.column_names[:4] == ["key", "split", "label", "label_name"]
    back = found.to_pandas().set_index("key").sort_index()
    wanted = FRAME.rename(columns={"image": "key"}).set_index("key")
    assert [*back["label_name"]] == [*wanted["label"]]
    for name in ("is_bad", "checked"):  # stored as texts
        cells = wanted[name].map({True: "true", False: "false"})
        wanted[name] = cells.astype(object).where(cells.notna(), None)
    for name in (*wanted.columns[1:],):
        title = "column/kind" if name == "kind" else name
        left, right = (
            one.astype(object).where(one.notna(), None) for one in (back[title], wanted[name])
        )
        assert [*left] == [*right]


def test_the_rows_of_a_table_are_in_the_order_of_the_records(folder: Path) -> None:
    few = reader.select(folder, "train+test", where="fold == 2")
    for split in ("test", "train+test", "test+train", "train[50%:]", few):
        keys = reader.table(folder, split)["key"].to_pylist()
        records = reader.Dataset(folder, split, as_supervised=False)
        assert keys == [str(one["image/filename"]) for one in records]
        assert reader.table(folder, split)["age"].fill_null(np.nan).to_pylist() == pytest.approx(
            [float(one["age"]) for one in records], nan_ok=True
        )


def test_columns_stay_when_datasets_are_merged(folder: Path, tmp_path: Path) -> None:
    """Parents may have their columns in another order."""
    source = write_folder(tmp_path / "more", {"x.jpg": jpeg(seed=99), "y.jpg": jpeg(seed=98)})
    row = {name: ROWS[0][name] for name in reversed(ROWS[0])} | {"image": "x.jpg"}
    keys: dict[str, Any] = {"size": 8, "workers": 1, "classes": "cat,dog"}
    empty = {"image": "y.jpg", "count": None, "sex": None, "age": None}
    rows = [{**row, "count": 7}, {**row, **empty}]
    more = shardprep.build(source, tmp_path / "out", items=rows, **keys)
    merged = shardprep.repack([folder, more.path], tmp_path, name="all")
    found = {row["key"]: row for row in reader.table(merged.path).to_pylist()}
    assert len(found) == len(ROWS) + 2
    assert (found["x.jpg"]["Roi.X1"], found["x.jpg"]["column/kind"]) == (0, "it's 0")
    assert found["y.jpg"]["sex"] is found["y.jpg"]["age"] is None
    one = shardprep.repack(folder, tmp_path, name="again", split="test")
    whole = reader.table(folder, "test").to_pandas().set_index("key").sort_index()
    copied = reader.table(one.path).to_pandas().set_index("key").sort_index()
    pandas.testing.assert_frame_equal(copied, whole)


def test_names_of_several_classes_are_lists(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "set", {f"{i}.jpg": jpeg(seed=i) for i in range(3)})
    rows = [{"image": "0.jpg", "labels": ["a", "b"]}, {"image": "1.jpg", "labels": ["b"]}]
    made = shardprep.build(
        source, tmp_path / "out", items=[*rows, {"image": "2.jpg", "labels": []}], size=8, workers=1
    )
    found = dict(
        zip(
            *(reader.table(made.path)[one].to_pylist() for one in ("key", "label_names")),
            strict=True,
        )
    )
    assert found == {"0.jpg": ["a", "b"], "1.jpg": ["b"], "2.jpg": []}
    boxed = [
        {"image": f"{i}.jpg", "boxes": [[1, 2, 30, 40]] * i, "box_labels": ["x", "y"][:i]}
        for i in range(3)
    ]
    made = shardprep.build(source, tmp_path / "boxes", items=boxed, size=8, workers=1)
    names = reader.table(made.path).sort_by("key")["label_names"].to_pylist()
    assert names == [[], ["x"], ["x", "y"]]
