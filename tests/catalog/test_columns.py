"""Columns and targets of a table: types, and numbers that cannot be kept as they are."""

import json
import math
import struct
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.catalog.tables.columns import make_columns
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import match_table
from shardprep.catalog.tables.table import table_of
from shardprep.catalog.target_values import column_targets
from shardprep.catalog.targets import TargetSpec, make_targets
from shardprep.dataset.example import encode, is_beyond_float32
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.schema import IMAGES, PROVIDED
from shardprep.errors import RecipeError, SourceError
from shardprep.reader import Dataset
from shardprep.source.string_column import Coded
from shardprep.verifier.dataset import verify_dataset
from tests.catalog.builders import table
from tests.support.builders import Told, animals, build, jpeg, write, write_folder
from tests.support.paths import data_rows

LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


def column(*cells: str) -> tuple[str, list[object]]:
    """Return the type and the values of a column with these cells."""
    index = KeyIndex([f"{i}.jpg" for i in range(len(cells))])
    rows = "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells))
    match = match_table(index, table(f"id,x\n{rows}"), "id")
    made, values = make_columns(["x"], match, [True] * len(cells))
    return made[0].dtype, list(values[0])


@pytest.mark.parametrize(("cells", "dtype", "values"), data_rows("labels", "column_types"))
def test_the_cells_of_a_column_say_its_type(
    cells: tuple[str, ...], dtype: str, values: tuple[object, ...]
) -> None:
    assert column(*cells) == (dtype, [*values])


def test_cells_that_differ_between_rows_of_an_image_and_missing_ones_are_said(
    tmp_path: Path,
) -> None:
    members = {f"{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)}
    rows = "id,label,fold\n0,a,1\n1,b,2\n1,b,4\n2,a,3\n3,b,3\n"
    members |= {"t.csv": rows.encode(), "more.csv": b"id,site\n0,north\n3,south\n3,south\n"}
    source = write_folder(tmp_path / "in", members)
    keys: dict[str, Any] = {"labels": "csv:t.csv:id:label", "size": "8x8"}
    made = build(source, tmp_path / "out", columns="fold,site", join="more.csv:id", **keys)
    assert "column 'fold': 1 image has rows that differ; the first row is stored" in made.notes
    assert "columns without a value: 'site' 2 of 4 images" in made.notes
    write(tmp_path / "sizes.csv", b"id,size\n0,5\n0,6\n")
    again = shardprep.repack(made.path, tmp_path, join=str(tmp_path / "sizes.csv"), columns="size")
    assert "column 'size': 1 image has rows that differ; the first row is stored" in again.notes
    assert "columns without a value: 'size' 3 of 4 images" in again.notes


def test_a_missing_whole_number_differs_from_minus_one(tmp_path: Path) -> None:
    cells = [
        f"{'ab'[i % 2]},{('-1', '', '7')[i % 3]},{i},{('0.5', '')[i % 2]},{('x', '')[i % 2]}"
        for i in range(6)
    ]
    rows = "".join(f"{key},{cell}\n" for key, cell in zip(animals(6), cells, strict=True))
    members = animals(7) | {"t.csv": f"id,label,age,rank,weight,word\n{rows}".encode()}
    source = write_folder(tmp_path / "in", members)
    keys: dict[str, Any] = {
        "labels": "csv:t.csv:id:label",
        "columns": "age,rank,weight,word",
        "size": "32x32",
    }
    made = build(source, tmp_path / "out", max_rejected="100%", **keys)
    assert made.manifest.totals.skipped["no label"] == 1, "its cells do not count"
    data = Dataset(made.path, "train", as_supervised=False)
    assert {"age", "age/present", "rank", "weight", "word"} <= data.schema.features.keys()
    assert "rank/present" not in data.schema.features, "every record has a rank"
    found = {Path(one["image/filename"]).name: one for one in data}
    for i, key in enumerate(animals(6)):
        one = found[Path(key).name]
        assert (one["age"], one["age/present"]) == ((-1, 1), (-1, 0), (7, 1))[i % 3]
        assert math.isnan(one["weight"]) is bool(i % 2)
        assert one["word"] == ("" if i % 2 else "x")
    features = json.loads((made.path / "features.json").read_text())["featuresDict"]["features"]
    assert features["age/present"]["tensor"]["dtype"] == "int64"
    assert not verify_dataset(
        LocalFiles.at(made.path), decode=False, num_workers=1, watcher=Told()
    ).problems


@pytest.mark.parametrize("cell", ["", "1"])
def test_a_column_may_not_be_called_as_the_feature_beside_another(
    tmp_path: Path, cell: str
) -> None:
    text = "id,label,x,x/present\n" + "".join(f"{key},{key[6]},{cell},1\n" for key in animals(6))
    source = write_folder(tmp_path / "in", animals(6) | {"t.csv": text.encode()})
    with pytest.raises(RecipeError, match=r"^--columns: 'x/present' .* whether 'x' is empty; ren"):
        build(source, tmp_path / "out", labels="csv:t.csv:id:label", columns="x,x/present")
    build(source, tmp_path / "out", labels="csv:t.csv:id:label", columns="x/present")


@pytest.mark.parametrize("name", [*sorted(PROVIDED.keys() - {IMAGES}), "rows/x", "label/x"])
def test_a_column_may_not_be_called_as_another_feature(name: str) -> None:
    match = match_table(KeyIndex(["a.jpg"]), table_of("t.csv", [{"id": "a", name: "1"}]))
    with pytest.raises(RecipeError, match=f"{name}' is a reserved name of features; rename the"):
        make_columns([name], match, [True])


@pytest.mark.parametrize("cell", ["1e39", "-3.5e38", "1e300", "1e-50", "-7e-46", "1e-400"])
def test_a_number_that_float32_cannot_hold_is_an_error_before_the_build(cell: str) -> None:
    with pytest.raises(
        SourceError, match=r"^labels\.csv: column 'x' has .* cannot hold; (write 0, )?leave"
    ):
        column("1.5", cell)
    with pytest.raises(
        SourceError, match=r"^b: its target .* float32 cannot hold; (write 0, )?name this"
    ):
        make_targets(["a", "b"], ["1.5", cell], TargetSpec(kind="regression"))


@pytest.mark.parametrize("cell", ["1e400", "-1e999"])
def test_a_number_beyond_float64_is_an_error_and_a_stated_infinity_is_not(cell: str) -> None:
    with pytest.raises(SourceError, match=f"column 'x' has {cell}, which float32 cannot hold"):
        column("1.5", cell)
    assert column("1.5", "-inf") == ("float32", [1.5, -math.inf])


@pytest.mark.parametrize("cell", ["1e39;0.5", "0.5;1e400", "1e-50;0.5", "0.5;1e-400"])
def test_a_cell_of_several_numbers_is_checked_like_a_single_number(cell: str) -> None:
    def names(_: Collection[str]) -> dict[str, str]:
        return {}

    with pytest.raises(
        SourceError, match=r"^b: .* column 'v.* float32 cannot hold; (write 0, )?name"
    ):
        column_targets(["a", "b"], {"v": Coded.of(["0.5;2", cell])}, "auto", "", names)
    with pytest.raises(SourceError, match=r"^b: .* column 'v.* float32 cannot hold; write 0, name"):
        column_targets(["a", "b"], {"v": Coded.of(["0.5", "1e-400"])}, "vector", "", names)
    made = column_targets(["a", "b"], {"v": Coded.of(["0.5;2", "0;1e38"])}, "auto", "", names)
    assert made.kind == "vector"


@pytest.mark.parametrize("cell", ["0.0", "-0e9", "8e-46", "-1e-45", "1.5"])
def test_zero_and_numbers_that_stay_apart_from_it_are_stored(cell: str) -> None:
    assert column("2.5", cell) == ("float32", [2.5, float(cell)])
    targets = make_targets(["a", "b"], ["2.5", cell], TargetSpec(kind="regression"))
    assert [*targets.values] == [2.5, float(cell)]


@pytest.mark.parametrize("number", [LARGEST, 3.4028235677973362e38, -LARGEST, 0.0])
def test_only_numbers_within_float32_are_encoded(number: float) -> None:
    assert not is_beyond_float32(number)
    assert encode({"x": [number, float("inf"), float("nan")]})
    least_beyond = 3.4028235677973366e38
    assert is_beyond_float32(least_beyond)
    with pytest.raises(OverflowError):
        encode({"x": [least_beyond]})
