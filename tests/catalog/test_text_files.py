"""Text files that strangers wrote: open quotes, other encodings, odd names, cells of a megabyte."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.catalog.tables.table import parse_table
from shardprep.errors import ShardprepError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.storage.text_file import encoding_of
from tests.catalog.builders import facts_of
from tests.catalog.objects.written import WRITERS
from tests.support.builders import png, write, zip_bytes
from tests.support.paths import data_rows

NAMES = [f"{i:02}.png" for i in range(40)]
PIXELS = png(30, 40)


def catalog(folder: Path, documents: Mapping[str, str | bytes], **keys: Any) -> Catalog:
    texts = {k: t.encode() if isinstance(t, str) else t for k, t in documents.items()}
    source = write(folder / "x.zip", zip_bytes({**dict.fromkeys(NAMES, PIXELS), **texts}))
    return make_catalog(make_recipe({"source": str(source), **keys}, "test"), folder, print)


def error_of(folder: Path, documents: Mapping[str, str | bytes], **keys: Any) -> str:
    with pytest.raises(ShardprepError) as caught:
        catalog(folder, documents, **keys)
    return str(caught.value)


def table(**other_lines: str) -> str:
    """Return a table of classes; `line_7` is another seventh line."""
    lines = ["id,kind", *(f"{name},{('cat', 'dog')[i % 2]}" for i, name in enumerate(NAMES))]
    for name, line in other_lines.items():
        lines[int(name.removeprefix("line_")) - 1] = line
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "labels", ["auto", "csv:t.csv", "csv:t.csv:id:kind", "csv:t.csv:{id}:kind"]
)
@pytest.mark.parametrize(("lines", "opens"), data_rows("labels", "open_quotes"))
def test_a_quote_that_swallows_rows_is_named_with_its_line(
    tmp_path: Path, lines: dict[str, str], opens: int, labels: str
) -> None:
    line = error_of(tmp_path, {"t.csv": table(**lines)}, labels=labels)
    assert line.startswith(f"t.csv: a quote opens in line {opens} ")
    assert len(line) < 300


@pytest.mark.parametrize("keys", data_rows("labels", "table_readers"))
def test_every_reader_of_a_table_names_a_quote_that_is_not_closed(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    rows = [f"{name},cat,1,2,3,4,1 2" for name in NAMES]
    rows[6] = f'{NAMES[6]},"cat,1,2,3,4,1 2'
    text = "\n".join(["id,kind,x,y,w,h,runs", *rows, ""])
    other = "\n".join(["id,sort", *(f"{name},a" for name in NAMES)])
    masks = {f"{name[:-4]}.bmp": PIXELS for name in NAMES}
    line = error_of(tmp_path, {"t.csv": text, "u.csv": other, **masks}, **keys)
    assert line.startswith("t.csv: a quote opens in line 8 ")


def test_cells_of_several_lines_are_texts_but_neither_ids_nor_classes(tmp_path: Path) -> None:
    said = [f'{name},"says ""{i}""\nand more",{"ab"[i % 2]}' for i, name in enumerate(NAMES)]
    texts = {"t.csv": "\n".join(["id,said,kind", *said])}
    found = catalog(tmp_path, texts, labels="csv:t.csv:id:kind", columns=["said"])
    assert [item.columns for item in found.items] == [
        (f'says "{i}"\nand more',) for i in range(len(NAMES))
    ]
    found = catalog(tmp_path, texts, labels="csv:t.csv:id:said", target="text")
    assert found.items[3].target == 'says "3"\nand more'
    assert "opens in line 2 " in error_of(tmp_path, texts, labels="csv:t.csv:id:said")
    captions = {
        "captions.csv": "\n".join(["id,caption", *(row[: row.rindex(",")] for row in said)])
    }
    assert catalog(tmp_path, captions).target_kind == "text"


def test_a_table_that_names_no_image_may_have_any_quotes(tmp_path: Path) -> None:
    notes = {"notes.csv": 'name,"text\nopen\n', "t.csv": table()}
    assert catalog(tmp_path, notes).label_names == ("cat", "dog")


# --- delimiters and blanks ----------------------------------------------------------------------

_ROWS = [(f"{i:02}.png", str(i / 4), ("cat", "dog")[i % 2]) for i in range(40)]
SEPARATED = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|", "blank": " ", "blanks": "   "}


@pytest.mark.parametrize("sign", SEPARATED.values(), ids=SEPARATED)
@pytest.mark.parametrize("option", ["labels", "items"])
def test_every_delimiter_separates_the_columns_of_labels_and_items(
    tmp_path: Path, option: str, sign: str
) -> None:
    lines = [sign.join(row) for row in [("image", "weight", "label"), *_ROWS]]
    text = "\n".join(lines) + "\n"
    own = write(tmp_path / "own.csv", text.encode())
    keys = {"items": str(own)} if option == "items" else {"labels": "csv:t.txt:image:label"}
    found = catalog(tmp_path, {"t.txt": text}, columns=["weight"], **keys)
    assert [(item.key, item.columns) for item in found.items] == [
        (name, (float(weight),)) for name, weight, _ in _ROWS
    ]
    assert [found.label_names[int(str(one.target))] for one in found.items] == [
        kind for *_, kind in _ROWS
    ]


_LEFT = "00.png  -1   1 \n01.png   1  -1 \n02.png   1   1 \n"


@pytest.mark.parametrize(
    ("text", "header", "options"),
    [
        (f"3\nBald Smiling \n{_LEFT}", ("1", "Bald", "Smiling"),
            {"skiprows": 2, "names": ["1", "Bald", "Smiling"]}),
        (f"3\nimage Bald Smiling\n{_LEFT}", ("image", "Bald", "Smiling"), {"skiprows": 1}),
        (f"#Image ID BREED\n# 1:Cat\n{_LEFT}", ("1", "2", "3"), {"comment": "#", "header": None}),
        (_LEFT, ("1", "2", "3"), {"header": None}),
        ("1 001.Crow/a.jpg\n2 001.Crow/b.jpg\n", ("1", "2"), {"header": None}),
    ],
)  # fmt: skip
def test_a_table_of_blanks_is_what_pandas_makes_of_it_if_told_the_form(
    text: str, header: tuple[str, ...], options: dict[str, Any]
) -> None:
    pandas = pytest.importorskip("pandas")
    found = parse_table(text.encode(), "list_attr.txt")
    told = pandas.read_csv(io.StringIO(text), sep=r"\s+", dtype=str, index_col=False, **options)
    assert found.header == header
    assert list(found.rows) == told.to_numpy().tolist()


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("id\nmy photo.jpg\nyour photo.jpg\n", ("id",)),  # a name with a blank in it
        ("#,Name\n1,x\n2,y\n", ("#", "Name")),
        ("2\n1\n3\n", ("2",)),
        ("12\na.jpg 1\nb.jpg 1\n", ("12",)),  # not the number of rows
        ("a.jpg a red car\nb.jpg a bus\n", ("a.jpg a red car",)),
    ],
)
def test_blanks_that_make_no_columns_stay_in_their_cells(
    text: str, header: tuple[str, ...]
) -> None:
    found = parse_table(text.encode(), "t.csv")
    assert found.header == header
    assert len(found.rows) == text.count("\n") - 1


def test_a_longer_row_among_blanks_is_named_and_not_cut(tmp_path: Path) -> None:
    lines = [f"{i:03}.png bus" for i in range(99)] + ["099.png polar bear"]
    with pytest.raises(SourceError, match="row 100 has 3 cells for 2 columns"):
        parse_table("\n".join(lines).encode(), "t.txt").check_rows()
    line = error_of(tmp_path, {"t.txt": "\n".join(lines)}, labels="csv:t.txt:1:2")
    assert line.startswith("t.txt: row 100 has 3 cells")


def test_columns_without_titles_are_joined_by_number_and_called_by_their_table(
    tmp_path: Path,
) -> None:
    lists = {
        "images": [f"{i + 1} {name}" for i, name in enumerate(NAMES)],
        "image_class_labels": [f"{i + 1} {i % 2 + 1}" for i in range(len(NAMES))],
        "train_test_split": [f"{i + 1} {int(i % 4 > 0)}" for i in range(len(NAMES))],
    }
    texts = {f"{name}.txt": "\n".join(lines) for name, lines in lists.items()}
    found = catalog(
        tmp_path, texts, labels="csv:images.txt:2:image_class_labels.2",
        join=["image_class_labels.txt", "train_test_split.txt:1"],
        split="column:train_test_split.2:1=train,0=test",
    )  # fmt: skip
    assert found.label_names == ("1", "2")
    assert {item.key: item.split for item in found.items} == {
        name: "train" if i % 4 else "test" for i, name in enumerate(NAMES)
    }


# --- encodings ----------------------------------------------------------------------------------

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_a_table_is_read_in_every_encoding(tmp_path: Path, encoding: str, line_end: str) -> None:
    text = table().replace("cat", "Käfer").replace("\n", line_end)
    found = catalog(tmp_path, {"t.csv": text.encode(encoding)})
    assert set(found.label_names) == {"Käfer", "dog"}
    assert sum(item.target is not None for item in found.items) == len(NAMES)


SETS = {name[:-4]: [("Käfer", (1, 2, 4, 6)), ("Käfer", (5, 5, 9, 9))] for name in NAMES}
ANNOTATED = {
    option.removesuffix(":ann/all.json"): write(SETS, ["Käfer"], None)
    for option, write in WRITERS.items()
    if not option.startswith("via")
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("boxes", ANNOTATED)
def test_annotations_are_read_in_utf_16(tmp_path: Path, boxes: str, encoding: str) -> None:
    texts = {key: text.encode(encoding) for key, text in ANNOTATED[boxes].items()}
    for option in (boxes, "auto"):
        facts = facts_of(catalog(tmp_path, texts, boxes=option))
        assert facts.num_objects == {"Käfer": 2 * len(NAMES)}


@pytest.mark.parametrize("text", ["a", "id,kind\n", "Ωμ,α\n", "[1]", " "])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_tells_the_encoding_of_any_text(text: str, encoding: str) -> None:
    data = text.encode(encoding)
    assert data.decode(encoding_of(data)).removeprefix("\ufeff") == text


# --- names --------------------------------------------------------------------------------------


BAD_NAMES = ("a\0b", "a\nb", "a\x1b[2Jb", "a\x7fb", "a\x85b", "a\u2028b", "\ud800")


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(("coco", name) for name in BAD_NAMES),
        *(("csv", name) for name in BAD_NAMES),
        *(
            (form, name)
            for form in ("labelme", "json table", "class map", "classes")
            for name in ("a\0b", "a\u2028b", "\ud800")
        ),
    ],
)
def test_a_class_name_that_no_file_can_hold_is_one_line(
    tmp_path: Path, form: str, name: str
) -> None:
    written = json.dumps(name)
    texts: dict[str, str | bytes] = {"t.csv": table()}
    keys: dict[str, Any] = {"labels": "csv:t.csv:id:kind"}
    if form in ANNOTATED:
        texts = {k: text.replace('"Käfer"', written) for k, text in ANNOTATED[form].items()}
        keys = {"boxes": form}
    elif form == "csv":
        texts = {"t.csv": table(line_3=f'01.png,"{name}"').encode("utf-8", "surrogatepass")}
    elif form == "json table":
        rows = ",".join(f'{{"id": "{one}", "kind": {written}}}' for one in NAMES)
        texts, keys = {"t.json": f"[{rows}]"}, {"labels": "csv:t.json:id:kind"}
    elif form == "class map":
        texts["map.json"] = f'{{"cat": {written}}}'
        keys["class_map"] = "map.json"
    else:
        keys["classes"] = ["cat", "dog", name]
    try:
        found = catalog(tmp_path, texts, **keys)
    except ShardprepError as error:
        line = str(error)
        assert "\n" not in line
        bad = "classes: {!r} contains {!r}, which a class name may not have; correct the source"
        wanted = {
            ("csv", "a\nb"): "t.csv: a quote opens in line 3 and its cell continues on the next",
            ("classes", "a\0b"): "test: classes: must not contain a null character",
        }
        assert line.startswith(wanted.get((form, name), bad.format(name, name.strip("ab")[0])))
        line.encode()
    else:  # tables hold halves of surrogate pairs as escapes, or in Windows-1252
        assert name == "\ud800"
        assert form in ("csv", "json table")
        "".join(found.label_names).encode()


# --- long cells ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [131_072, 131_073, 1_000_000])
def test_cells_of_any_length_are_read_in_every_table(tmp_path: Path, length: int) -> None:
    long = "x" * length
    texts = {"t.csv": table() + f"lost.png,{long}\n", "map.csv": f"cat,pet\n{long},y\n"}
    found = catalog(tmp_path, texts, labels="csv:t.csv:id:kind", class_map="map.csv")
    assert set(found.label_names) == {"dog", "pet", "y"}
    masks = {f"{name[:-4]}.bmp": PIXELS for name in NAMES}
    values = {"v.csv": f"0,{long}\n1,car\n"}
    facts = catalog(
        tmp_path, {**values, **masks}, masks="{stem}.bmp", mask_values="v.csv"
    ).annotations
    assert facts is not None
    assert facts.names == (long, "car")
