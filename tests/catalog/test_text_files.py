"""Text files that strangers wrote: open quotes, other encodings, odd names, cells of a megabyte."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.errors import ShardprepError
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
        bad = (
            "classes: {!r} contains {!r}, which a class name may not have; correct it in the source"
        )
        wanted = {
            ("csv", "a\nb"): "t.csv: a quote opens in line 3 and its cell continues on the next",
            ("classes", "a\0b"): "test: classes: contains a null character",
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
