"""Targets of several values: twins of competitions, compared with a reading of their tables."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardprep
from shardprep.catalog.candidates import table_candidates
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.table import parse_table
from shardprep.dataset.folder import read_schema
from shardprep.dataset.item_table import read_items
from shardprep.errors import ShardprepError
from shardprep.writer.finalize import BuildResult
from tests.support.builders import build, png, write_folder
from tests.support.competitions.target_tables import BIOMASS, TWINS
from tests.support.competitions.twin import f32, table
from tests.support.layouts import image
from tests.writer.records import records as records_of

_BUILT: dict[str, BuildResult] = {}


@pytest.fixture(name="built")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], BuildResult]:
    """Return what builds a twin once; nobody changes it."""

    def built(name: str) -> BuildResult:
        if name not in _BUILT:
            folder = tmp_path_factory.mktemp(name)
            source = write_folder(folder / "source", TWINS[name].members())
            _BUILT[name] = build(source, folder / "out", size="8x8", **TWINS[name].flags)
        return _BUILT[name]

    return built


def alike(one: Any, two: Any) -> bool:
    """Return whether values are equal, NaN to NaN."""
    return repr(list(one)) == repr(list(two))


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_every_target_of_its_table(
    name: str, built: Callable[[str], BuildResult]
) -> None:
    twin, result = TWINS[name], built(name)
    expected, records = twin.expected(twin.rows_of_images()), records_of(result.path)
    assert sorted(records) == sorted(key for key in twin.keys if key not in twin.unlabelled)
    assert sorted(expected) == sorted(records)
    for key, values in expected.items():
        for feature, wanted in values.items():
            assert alike(records[key][feature], wanted), (key, feature)
    totals = result.manifest.totals
    skipped = {"no label": len(twin.unlabelled), "not an image": len(twin.others)}
    assert totals.skipped == {reason: number for reason, number in skipped.items() if number}
    assert result.manifest.labels.num_rows_without_image == twin.rows_without_image
    for split in result.manifest.splits.values():
        assert split.num_unlabelled == 0


@pytest.mark.parametrize("name", ["biomass", "graphemes", "captions", "faces"])
def test_a_changed_value_is_found_by_diff_and_verify_and_reuse_copies_the_images(
    name: str, built: Callable[[str], BuildResult], tmp_path: Path
) -> None:
    twin, path = TWINS[name], built(name).path
    assert shardprep.verify(path, workers=1).problems == ()
    changed = {"biomass": 10, "graphemes": 5, "captions": 20, "faces": 2}[name]
    file, rows = twin.table
    other = [*rows]
    place = 1 if name in ("graphemes", "captions", "faces") else -1
    other[changed] = [*rows[changed]]
    other[changed][place] = {"graphemes": "8", "captions": "Another", "faces": "8"}.get(name, "77")
    members = {**twin.members(), file: table(other)}
    source = write_folder(tmp_path / "source", members)
    result = build(source, tmp_path / "out", size="8x8", reuse=path, **twin.flags)
    assert result.num_copied == len(records_of(path))
    records = records_of(result.path)
    one = {
        key
        for key, own in twin.expected(twin.rows_of_images()).items()
        if not all(alike(records[key][feature], values) for feature, values in own.items())
    }
    assert len(one) == 1
    found = shardprep.diff(path, result.path).some("target", 9)
    assert {change.key for change in found} == one
    # The table of one dataset with the shards of the other: verify names the record.
    new = {row["key"]: row for row in pq.read_table(result.path / "items.parquet").to_pylist()}
    (path_two := tmp_path / "two").mkdir()
    for stored in path.iterdir():
        if stored.is_file():
            (path_two / stored.name).write_bytes(stored.read_bytes())
    old = pq.read_table(path / "items.parquet")
    for title in ("targets", "classes", "texts"):
        place = old.schema.get_field_index(title)
        column = [new[key][title] for key in old["key"].to_pylist()]
        old = old.set_column(place, title, pa.array(column, old.schema.field(place).type))
    pq.write_table(old, path_two / "items.parquet")
    problems = shardprep.verify(path_two, workers=1).problems
    assert {problem.key for problem in problems if problem.kind == "items" and problem.key} == one


def test_a_repack_refuses_other_names_of_targets(
    built: Callable[[str], BuildResult], tmp_path: Path
) -> None:
    pair = [built(name).path for name in ("biomass", "plants")]
    with pytest.raises(ShardprepError, match="names of 'targets' or their order differ"):
        shardprep.repack(pair, out=tmp_path, name="both")


def test_a_repack_of_other_classes_names_a_map_that_joins_them(tmp_path: Path) -> None:
    sets = list[Path]()
    for grey in ("grey", "gray"):
        files = {f"{i}.png": image(f"{i}.png") for i in range(3)}
        lines = f"id,colour,form\n0,red,round\n1,blue,flat\n2,{grey},round\n".encode()
        source = write_folder(tmp_path / grey, {**files, "t.csv": lines})
        labels, out = "csv:t.csv:id:colour,form", tmp_path / f"out of {grey}"
        made = build(source, out, labels=labels, target="classes", size="8x8")
        sets.append(made.path)
    with pytest.raises(ShardprepError, match=r"names of 'label/colour' .* with --class-map$"):
        shardprep.repack(sets, out=tmp_path, name="both")
    joined = shardprep.repack(sets, out=tmp_path, name="both", class_map={"gray": "grey"})
    assert joined.manifest.totals.num_written == 6


def test_inspect_counts_missing_values_of_each_target(built: Callable[[str], BuildResult]) -> None:
    facts = shardprep.inspect(built("biomass").path).components
    assert {name: one.num_missing for name, one in facts.items()} == {
        name: int(name == "Dry_Dead_g") for name in BIOMASS
    }
    column = [
        v["targets"][0]
        for v in TWINS["biomass"].expected(TWINS["biomass"].rows_of_images()).values()
    ]
    first = facts["Dry_Clover_g"].numbers
    assert first is not None
    assert np.allclose((first.smallest, first.largest), (min(column), max(column)))
    mixed = shardprep.inspect(built("faces").path).components
    assert mixed["gender"].classes == {"f": 12, "m": 12}
    assert (mixed["race"].num_missing, mixed["age"].num_missing) == (1, 1)
    texts = shardprep.inspect(built("captions").path).num_texts
    assert texts is not None
    assert (texts.smallest, texts.largest) == (2, 6)  # one caption is there twice


def test_an_export_has_a_column_for_each_target(
    built: Callable[[str], BuildResult], tmp_path: Path
) -> None:
    shardprep.export(built("biomass").path, to="folder", out=tmp_path / "a")
    with (tmp_path / "a" / "labels.csv").open() as stream:
        rows = {row["key"]: row for row in csv.DictReader(stream)}
    for key, values in TWINS["biomass"].expected(TWINS["biomass"].rows_of_images()).items():
        assert alike([f32(rows[key][name]) for name in BIOMASS], values["targets"])
    shardprep.export(built("faces").path, to="parquet", out=tmp_path / "b")
    (file,) = (tmp_path / "b" / "data").glob("*.parquet")
    found = {row["key"]: row for row in pq.read_table(file).to_pylist()}
    for key, values in TWINS["faces"].expected(TWINS["faces"].rows_of_images()).items():
        assert [found[key]["label/race"]] == values["label/race"]
        assert alike([f32(str(found[key]["targets"][0] or ""))], values["targets"]) or found[key][
            "targets"
        ] == [0.0]
    shardprep.export(built("captions").path, to="folder", out=tmp_path / "c")
    with (tmp_path / "c" / "labels.csv").open() as stream:
        texts = {row["key"]: json.loads(row["texts"]) for row in csv.DictReader(stream)}
    assert texts["Images/5_x.jpg"] == [f"A dog , number 5 , runs {k} times ." for k in range(2)]


@pytest.mark.parametrize("name", [name for name, twin in TWINS.items() if twin.proposal])
def test_auto_and_init_propose_the_flags_of_a_twin(name: str, tmp_path: Path) -> None:
    twin = TWINS[name]
    tables = [parse_table(table(rows), file)
              for file, rows in (twin.table, *twin.others.items())]  # fmt: skip
    index = KeyIndex(sorted(twin.keys))
    found = [one.flags for each in tables for one in table_candidates(index, each, tables)]
    assert twin.proposal in found
    source = write_folder(tmp_path / "source", twin.members())
    text = recipe_text(survey_source(source, tmp_path, lambda _: None))
    for option in ("labels", "pivot", "target"):
        if option in twin.flags:
            assert f'{option} = "{twin.flags[option]}"' in text


def test_probabilities_are_soft_labels_and_flags_stay_classes(tmp_path: Path) -> None:
    keys = {f"im/{i}.png": png(8, 8, i) for i in range(4)}
    table = b"id,a,b,c,d\n" + b"".join(
        b"%d,%g,%g,%d,%d\n" % (i, i / 4, 1 - i / 4, i % 2, i > 1) for i in range(4)
    )
    source = write_folder(tmp_path / "source", {**keys, "t.csv": table})

    def built(name: str, columns: str, **more: Any) -> tuple[Any, BuildResult]:
        labels = f"csv:t.csv:id:{columns}"
        result = build(source, tmp_path / name, size="8x8", labels=labels, **more)
        return read_schema(result.path), result

    schema, result = built("soft", "a,b")
    assert schema.features["targets"].soft
    assert any("sum to 1" in note for note in result.notes)
    assert not built("vector", "a,b", target="vector")[0].features["targets"].soft
    assert built("flags", "c,d")[0].labels == ("c", "d")
    schema, result = built("numbers", "c,d", target="vector")
    assert schema.features["targets"].labels == ("c", "d")
    assert records_of(result.path)["im/3.png"]["targets"] == [1.0, 1.0]


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "two values": ("id,a\n1,2.5\n1,3.5\n", {"target": "vector"}, "two labels.*--pivot"),
    "a word": ("id,a,b\n1,2.5,1\n2,x,2\n3,4.5,3\n", {}, "'x' in column 'a' is not a number"),
    "no float32": ("id,a,b\n1,1e39,2.5\n", {}, "float32 cannot hold"),
    "nearly zero": ("id,a,b\n1,2,3.5\n2,1e-50,2\n", {}, "1e-50 in column .* cannot hold; write 0"),
    "nearly zero in a list": ("id,a\n1,[1 1e-50]\n", {"target": "vector"}, "write 0, name"),
    "negative votes": ("id,a,b\n1,-1,2\n", {"target": "soft"}, "votes must be 0 or more"),
    "odd flag": ("id,a,b,c\n1,1,0,0\n2,0,1,7\n", {}, "'7'; with one column.*--target vector"),
    "class map": ("id,a,b\n1,1.5,2\n", {"target": "vector", "class_map": "a=b"}, "--class-map"),
    "classes": ("id,a,b\n1,x,y\n", {"classes": "x,y"}, "--classes: needs one label for each image"),
    "pivot of no table": ("id,a\n1,2\n", {"labels": "folder", "pivot": "a"}, "--pivot: needs"),
    "pivot of two": ("id,a,b,n\n1,2,3,x\n", {"pivot": "n"}, "--pivot: needs one column"),
    "pivot is missing": ("id,a,n\n1,2,\n", {"labels": "csv:t.csv:id:a", "pivot": "n"}, "0 names"),
    "pivot is unknown": ("id,a\n1,2\n", {"labels": "csv:t.csv:id:a", "pivot": "n"}, "no column"),
    "a row without a name": (
        "id,a,n\n1,2,x\n1,3,\n", {"labels": "csv:t.csv:id:a", "pivot": "n"}, "1 row has a value"
    ),
    "too many names": (
        "id,a,n\n" + "".join(f"1,2,n{i}\n" for i in range(1_001)),
        {"labels": "csv:t.csv:id:a", "pivot": "n"}, "has 1,001 names",
    ),
    "too many texts": (
        "id,a\n" + "1,x\n" * 1_001, {"labels": "csv:t.csv:id:a", "target": "texts"}, "1,001 texts"
    ),
    "no table": ("id,a\n1,2\n", {"labels": "folder", "target": "soft"}, "needs columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_of_targets_is_a_clear_error(name: str, tmp_path: Path) -> None:
    table, flags, text = WRONG[name]
    members = {**{f"im/{i}.png": png(8, 8, i) for i in (1, 2, 3)}, "t.csv": table.encode()}
    source = write_folder(tmp_path / "source", members)
    header = table.partition("\n")[0].split(",")[1:]
    labels = f"csv:t.csv:id:{','.join(header[:3] if 'pivot' not in flags else header[:2])}"
    with pytest.raises(ShardprepError, match=text) as caught:
        build(source, tmp_path / "out", size="8x8", **{"labels": labels, **flags})
    assert "\n" not in str(caught.value)


def test_a_cut_distributes_several_classes_and_the_most_probable_class(
    built: Callable[[str], BuildResult],
) -> None:
    splits = read_items(built("graphemes").path / "items.parquet", ["split", "classes"]).to_pylist()
    share = [[row["classes"][0] for row in splits if row["split"] == one and row["classes"]]
             for one in ("train", "validation")]  # fmt: skip
    assert [sum(labels) / len(labels) for labels in share] == [0.5, 0.5]


FINDINGS = "id,finding,age\n" + "".join(
    f"{i}.png,{('edema', 'mass', 'edema|mass', 'lung fibrosis')[i % 4]},{20 + i}\n"
    for i in range(8)
)


@pytest.mark.parametrize("options", [{}, {"separator": "|"}])
def test_several_classes_in_a_cell_of_several_targets_are_an_error(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """The option that it names stores the classes, and the number beside them."""
    members = {f"{i}.png": png(seed=i) for i in range(8)} | {"t.csv": FINDINGS.encode()}
    source = write_folder(tmp_path / "set", members)
    with pytest.raises(ShardprepError, match=r"'edema\|mass' in column 'finding' may be") as error:
        shardprep.build(source, labels="csv:t.csv:id:finding,age", dry_run=True, **options)
    assert "store the others with --columns age" in error.value.hint
    made = build(source, tmp_path, labels="csv:t.csv:id:finding", columns="age", separator="|")
    stored = records_of(made.path)["2.png"]
    assert (list(stored["labels"]), list(stored["age"])) == ([0, 2], [22])
    if not options:
        classes: dict[str, Any] = {"labels": "csv:t.csv:id:finding,age", "target": "classes"}
        assert sorted(
            shardprep.build(source, dry_run=True, **classes).plan.schema.class_features
        ) == ["label/age", "label/finding"]


@pytest.mark.parametrize("rows", ["column:labels,age", "column:label,age"])
def test_lists_of_classes_in_items_are_no_target_among_several(tmp_path: Path, rows: str) -> None:
    source = write_folder(tmp_path / "set", {f"{i}.png": png(seed=i) for i in range(8)})
    title, lists = rows[7:-4], [["edema", "mass"], ["mass"]]
    cells = lists if title == "labels" else ["edema|mass", "mass"]
    items = [{"image": f"{i}.png", title: cells[i % 2], "age": i} for i in range(8)]
    with pytest.raises(ShardprepError, match=f"in column '{title}' may be several classes"):
        shardprep.build(source, items=items, labels=rows, dry_run=True)
    by = "|" if title == "label" else ""
    made = shardprep.build(source, tmp_path / "out", items=items, separator=by)
    assert list(records_of(made.path)["2.png"]["labels"]) == [0, 1]


def test_words_of_several_targets_that_recur_are_one_class_each(tmp_path: Path) -> None:
    members = {f"{i}.png": png(seed=i) for i in range(9)}
    rows = [
        f"{i}.png,{('red', 'big', 'old')[i % 3]} {('car', 'bus', 'van')[i // 3]},{i}"
        for i in range(9)
    ]
    members["t.csv"] = "\n".join(["id,what,age", *rows]).encode()
    source = write_folder(tmp_path / "set", members)
    plan = shardprep.build(source, labels="csv:t.csv:id:what,age", dry_run=True)
    assert len(plan.plan.schema.features["label/what"].labels) == 9
