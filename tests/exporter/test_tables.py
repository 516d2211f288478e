"""Tables for spreadsheets have no formula, even if names of files and classes are formulas."""

import csv
from pathlib import Path
from typing import Any

import shardprep
from shardprep.dataset.card import from_cell
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.originals import LIST_FILE, save_rejected
from tests.support.builders import build, png, write, zip_bytes

FORMULA = "=HYPERLINK(1)"


def rows_of(table: Path) -> list[list[str]]:
    """Return the cells of a table after a check that no spreadsheet runs one."""
    with table.open(newline="") as file:
        rows = list(csv.reader(file))
    cells = [cell for row in rows for cell in row]
    assert not [
        cell for cell in cells if cell.startswith(("=", "+", "@", "\t", "\r")) and cell != "+2"
    ]
    return rows


def test_no_table_holds_a_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    lines = ["id,class,+note"]
    members = {f"@{i}.png": png(seed=i) for i in range(4)}
    lines += [f"@{i},{FORMULA},{note}" for i, note in enumerate(("-1.5", "-x", "+2", "plain"))]
    lines.append(f"@9,{FORMULA},1")
    members |= {"@9.png": b"\x89PNG\r\n\x1a\n no more", "t.csv": "\n".join(lines).encode()}
    source = write(tmp_path / "odd.zip", zip_bytes(members))
    rules: dict[str, Any] = {"labels": "csv:t.csv:id:class", "columns": "+note"}
    built = build(source, tmp_path / "out", size="16x16", max_rejected=0.9, **rules)
    shardprep.export(built.path, to="folder", out=tmp_path / "files")
    titles, *rows = rows_of(tmp_path / "files" / "labels.csv")
    table = [dict(zip(map(from_cell, titles), map(from_cell, row), strict=True)) for row in rows]
    assert {row["class"] for row in table} == {FORMULA}
    assert {row["key"]: row["+note"] for row in table} == {
        "@0.png": "-1.5", "@1.png": "-x", "@2.png": "+2", "@3.png": "plain",
    }  # fmt: skip
    save_rejected(built.path, make_recipe({"source": str(source)}, "t"), tmp_path / "bad", print)
    assert "'@9.png" in rows_of(tmp_path / "bad" / LIST_FILE)[1]
