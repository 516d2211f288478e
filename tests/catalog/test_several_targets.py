"""Targets of several values: twins of competitions, compared with a reading of their tables.

Each twin has the columns and oddities of the real set, a row without an image, an empty cell, and a
row that is there twice.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardprep
from shardprep import reader
from shardprep.catalog.candidates import label_findings
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.catalog.tables.table import parse_table
from shardprep.dataset.example import decode
from shardprep.dataset.folder import read_schema
from shardprep.dataset.item_table import read_items
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import ShardprepError
from shardprep.writer.finalize import BuildResult
from tests.support.builders import build, png, write_folder

Rows = list[list[Any]]
Values = dict[str, dict[str, Any]]
"""Key → feature → values of its record."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A small copy of a competition."""

    keys: list[str]
    table: tuple[str, Rows]
    flags: Mapping[str, Any]
    expected: Callable[[dict[str, list[dict[str, str]]]], Values]
    """Reads the rows of each image independently."""
    others: Mapping[str, Rows] = field(default_factory=dict)
    unlabelled: tuple[str, ...] = ()
    proposal: str = ""
    """The flags that `auto` proposes."""

    def members(self) -> dict[str, bytes]:
        tables = {self.table[0]: self.table[1], **self.others}
        files = {name: _csv(rows).encode() for name, rows in tables.items()}
        return files | {key: png(8, 8, i) for i, key in enumerate(self.keys)}


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def f32(text: str) -> float:
    return float(np.float32(text)) if text else math.nan


BIOMASS = ("Dry_Clover_g", "Dry_Dead_g", "Dry_Green_g", "Dry_Total_g", "GDM_g")
PLANTS = ("X4_mean", "X11_mean", "X18_mean", "X26_mean", "X50_mean", "X3112_mean")
VOTES = tuple(f"{name}_vote" for name in ("seizure", "lpd", "gpd", "lrda", "grda", "other"))
GRAPHEME = ("grapheme_root", "vowel_diacritic", "consonant_diacritic")
N = 24


def _biomass() -> Twin:
    rows: Rows = [["sample_id", "image_path", "State", "target_name", "target"]]
    for i in range(N + 1):  # the last has no image
        for j, name in enumerate(reversed(BIOMASS)):
            value = "" if (i, name) == (3, "Dry_Dead_g") else f"{i * 1.7 + j / 3:.4f}"
            state = ("Tas", "NSW", "WA", "Vic")[i % 4]
            rows.append([f"ID{i}__{name}", f"train/ID{i}.jpg", state, name, value])
    rows.append(rows[7])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        values = {}
        for key, own in by_image.items():
            cells = {row["target_name"]: row["target"] for row in own}
            values[key] = {"targets": [f32(cells[name]) for name in BIOMASS]}
        return values

    return Twin(
        [f"train/ID{i}.jpg" for i in range(N)], ("train.csv", rows),
        {"labels": "csv:train.csv:image_path:target", "pivot": "target_name", "group": "State",
         "split": "validation=0.25"},
        expected, proposal="--labels csv:train.csv:image_path:target --pivot target_name",
    )  # fmt: skip


def _plants() -> Twin:
    further = ("WORLDCLIM_BIO1_annual", "WORLDCLIM_BIO12_annual")
    spread = [name.replace("mean", "sd") for name in PLANTS]
    rows: Rows = [["id", *further, *PLANTS, *spread]]
    for i in range(N + 1):
        means = [f"{i * 0.37 + j:.3f}" for j in range(6)]
        means[2] = "" if i == 5 else means[2]
        rows.append([500 + i, i / 7, i / 11, *means, *(f"{i / 9:.3f}" for _ in spread)])
    rows.append(rows[1])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        pick = {key: [f32(own[0][name]) for name in PLANTS] for key, own in by_image.items()}
        return {key: {"targets": numbers} for key, numbers in pick.items()}

    return Twin(
        [f"train_images/{500 + i}.jpeg" for i in range(N)], ("train.csv", rows),
        {"labels": f"csv:train.csv:id:{','.join(PLANTS)}"}, expected,
        {"sample_submission.csv": [["id", *PLANTS], [9, 1, 2, 3, 4, 5, 6]]},
        proposal=f"--labels csv:train.csv:id:{','.join(PLANTS)}",
    )  # fmt: skip


def _brain() -> Twin:
    rows: Rows = [["eeg_id", "patient_id", "expert_consensus", *VOTES]]
    for i in range(N + 1):
        votes = [(i * (j + 2)) % 5 for j in range(6)] if i != 4 else [0] * 6
        cells = ["" if (i, j) == (6, 1) else votes[j] for j in range(6)]
        rows.append([1000 + i, i // 3, "Seizure", *cells])
    rows.append(rows[2])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        values = {}
        for key, own in by_image.items():
            votes = [own[0][name] for name in VOTES]
            total = sum(int(vote or 0) for vote in votes)
            if total and "" not in votes:
                values[key] = {"targets": [f32(str(int(vote) / total)) for vote in votes]}
        return values

    return Twin(
        [f"spectrograms/{1000 + i}.png" for i in range(N)], ("train.csv", rows),
        {"labels": f"csv:train.csv:eeg_id:{','.join(VOTES)}", "target": "soft"}, expected,
        unlabelled=("spectrograms/1000.png", "spectrograms/1004.png", "spectrograms/1005.png",
                    "spectrograms/1006.png", "spectrograms/1010.png", "spectrograms/1015.png",
                    "spectrograms/1020.png"),
        proposal=f"--labels csv:train.csv:eeg_id:{','.join(VOTES)} --target soft",
    )  # fmt: skip


def _graphemes() -> Twin:
    rows: Rows = [["image_id", *GRAPHEME, "grapheme"]]
    for i in range(N + 1):  # root 11 is the class of a row without an image
        rows.append(
            [f"Train_{i}", 11 if i == N else i % 9, "" if i == 4 else i % 3, i % 2 * 5, f"g{i}"]
        )
    rows.append(rows[2])
    known: dict[str, list[int]] = {
        GRAPHEME[0]: [*range(9), 11], GRAPHEME[1]: [0, 1, 2], GRAPHEME[2]: [0, 5]
    }  # fmt: skip

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        def label(name: str, cell: str) -> list[int]:
            return [known[name].index(int(cell)) if cell else -1]

        return {
            key: {f"label/{name}": label(name, own[0][name]) for name in GRAPHEME}
            for key, own in by_image.items()
        }

    return Twin(
        [f"images/Train_{i}.png" for i in range(N)], ("train.csv", rows),
        {"labels": f"csv:train.csv:image_id:{','.join(GRAPHEME)}", "target": "classes",
         "split": "validation=0.25"},
        expected, proposal=f"--labels csv:train.csv:image_id:{','.join(GRAPHEME)} --target classes",
    )  # fmt: skip


def _poses() -> Twin:
    rows: Rows = [["dataset", "image", "rotation_matrix", "translation_vector"]]
    for i in range(N + 1):
        turn = ";".join("nan" if i == 2 else f"{i / 3 + k:.5f}" for k in range(9))
        rows.append(["heritage", f"img{i}.png", turn, f"{i / 7};0.5;-1e-3"])
    rows.append(rows[5])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        def numbers(row: dict[str, str]) -> list[float]:
            return [f32(one) for name in rows[0][2:] for one in row[name].split(";")]

        return {key: {"targets": numbers(own[0])} for key, own in by_image.items()}

    labels = "csv:train_labels.csv:image:rotation_matrix,translation_vector"
    keys = [f"train/heritage/img{i}.png" for i in range(N)]
    return Twin(keys, ("train_labels.csv", rows), {"labels": labels}, expected)


def _faces() -> Twin:
    rows: Rows = [["file", "age", "gender", "race"]]
    for i in range(N + 1):
        age = "" if i == 7 else i * 2.5
        rows.append(
            [f"{i}.jpg", age, "fm"[i % 2], "" if i == 7 else ("asian", "black", "white")[i % 3]]
        )
    rows.append(rows[3])

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        races = ["", "asian", "black", "white"]
        return {
            key: {
                "targets": [f32(own[0]["age"])],
                "label/gender": ["fm".index(own[0]["gender"])],
                "label/race": [races.index(own[0]["race"]) - 1],
            }
            for key, own in by_image.items()
        }

    flags = {"labels": "csv:faces.csv:file:age,gender,race"}
    return Twin([f"faces/{i}.jpg" for i in range(N)], ("faces.csv", rows), flags, expected)


def _captions() -> Twin:
    rows: Rows = [["image", "caption"]]
    for i in range(N + 1):
        texts = [f"A dog , number {i} , runs {k} times ." for k in range(2 if i == 5 else 5)]
        rows += [[f"{i}_x.jpg", text] for text in texts]
    rows += [rows[3], ["6_x.jpg", ""]]

    def expected(by_image: dict[str, list[dict[str, str]]]) -> Values:
        return {
            key: {"texts": [row["caption"].encode() for row in own if row["caption"]]}
            for key, own in by_image.items()
        }

    return Twin(
        [f"Images/{i}_x.jpg" for i in range(N)], ("captions.csv", rows),
        {"labels": "csv:captions.csv:image:caption", "target": "texts"}, expected,
        proposal="--labels csv:captions.csv:image:caption --target texts",
    )  # fmt: skip


TWINS = {
    "biomass": _biomass(), "plants": _plants(), "brain": _brain(), "graphemes": _graphemes(),
    "poses": _poses(), "faces": _faces(), "captions": _captions(),
}  # fmt: skip
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


def rows_of(twin: Twin) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each image, matched by the end of its path without the suffix."""
    header, *rows = list(csv.reader(io.StringIO(_csv(twin.table[1]))))
    by_image: dict[str, list[dict[str, str]]] = {key: [] for key in twin.keys}
    stems = {key.rpartition("/")[2].rpartition(".")[0]: key for key in twin.keys}
    column = header.index(twin.flags["labels"].split(":")[2])
    for row in rows:
        stem = row[column].rpartition("/")[2].rpartition(".")[0] or row[column]
        if stem in stems:
            by_image[stems[stem]].append(dict(zip(header, row, strict=True)))
    return by_image


def records_of(path: Path) -> dict[str, dict[str, Any]]:
    records = {}
    for shard in load_manifest(path).shards:
        with (path / shard).open("rb") as stream:
            for record in read_records(stream, shard):
                example = decode(record.payload)
                records[example["image/filename"][0].decode()] = example  # type: ignore[union-attr]
    return records


def alike(one: Any, two: Any) -> bool:
    """Return whether values are equal, NaN to NaN."""
    return repr(list(one)) == repr(list(two))


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_every_target_of_its_table(
    name: str, built: Callable[[str], BuildResult]
) -> None:
    twin, result = TWINS[name], built(name)
    expected, records = twin.expected(rows_of(twin)), records_of(result.path)
    assert sorted(records) == sorted(key for key in twin.keys if key not in twin.unlabelled)
    assert sorted(expected) == sorted(records)
    for key, values in expected.items():
        for feature, wanted in values.items():
            assert alike(records[key][feature], wanted), (key, feature)
    totals = result.manifest.totals
    lost = {"no label": len(twin.unlabelled)} if twin.unlabelled else {}
    assert totals.skipped == {"not an image": 1 + len(twin.others), **lost}
    assert result.manifest.labels.num_rows_without_image in (1, 5)  # 5 of the long tables
    for split in result.manifest.splits.values():
        assert split.num_unlabelled == 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("faces", "captions") else pytest.mark.thorough)
        for name in TWINS
    ],
)
def test_both_readers_and_tfds_read_what_a_twin_stores(
    name: str, built: Callable[[str], BuildResult]
) -> None:
    import tensorflow_datasets as tfds

    path = built(name).path
    records, schema = records_of(path), read_schema(path)
    arrays = reader.Dataset(path, "train")
    batch = next(iter(arrays.batches(4, shuffle=False)))[1]
    graph = next(iter(reader.load(path, "train", batch_size=4, shuffle=False)))[1]
    names = reader.Dataset(path, "train", as_supervised=False)
    opened = tfds.builder_from_directory(str(path))
    theirs = iter(opened.as_dataset(split="train", shuffle_files=False))
    supervised = iter(opened.as_dataset(split="train", as_supervised=True))
    for row in range(4):
        record = records[names[row]["image/filename"]]
        example, (_, target) = next(theirs), next(supervised)
        for feature in (*schema.target_lists,):
            key, wanted = feature.removeprefix("label/"), record[feature]
            found = [batch, graph, arrays[row][1], target]
            values = [one[key] if isinstance(one, dict) else one for one in found]
            values[:2] = [one[row] for one in values[:2]]
            for value in (*values, example[feature]):
                listed = np.atleast_1d(np.asarray(value)).tolist()
                texts = [one.encode() if isinstance(one, str) else one for one in listed]
                padding = [b""] * (len(texts) - len(wanted))
                assert alike(texts, [*wanted, *padding])


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
    members = {**twin.members(), file: _csv(other).encode()}
    source = write_folder(tmp_path / "source", members)
    result = build(source, tmp_path / "out", size="8x8", reuse=path, **twin.flags)
    assert result.num_copied == len(records_of(path))
    records = records_of(result.path)
    one = {
        key
        for key, own in twin.expected(rows_of(twin)).items()
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


def test_a_repack_keeps_the_targets_and_refuses_other_names(
    built: Callable[[str], BuildResult], tmp_path: Path
) -> None:
    for name in ("biomass", "faces", "captions"):
        result = shardprep.repack(built(name).path, out=tmp_path / name, shards=2)
        assert shardprep.verify(result.path, workers=1).problems == ()
        before = records_of(built(name).path)
        for key, record in records_of(result.path).items():
            assert repr(record) == repr(before[key])
    pair = [built(name).path for name in ("biomass", "plants")]
    with pytest.raises(ShardprepError, match="'targets' have other names"):
        shardprep.repack(pair, out=tmp_path, name="both")


def test_inspect_counts_missing_values_of_each_target(
    built: Callable[[str], BuildResult],
) -> None:
    facts = shardprep.inspect(built("biomass").path).components
    assert {name: one.num_missing for name, one in facts.items()} == {
        name: int(name == "Dry_Dead_g") for name in BIOMASS
    }
    column = [
        v["targets"][0] for v in TWINS["biomass"].expected(rows_of(TWINS["biomass"])).values()
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
    for key, values in TWINS["biomass"].expected(rows_of(TWINS["biomass"])).items():
        assert alike([f32(rows[key][name]) for name in BIOMASS], values["targets"])
    shardprep.export(built("faces").path, to="parquet", out=tmp_path / "b")
    (file,) = (tmp_path / "b" / "data").glob("*.parquet")
    found = {row["key"]: row for row in pq.read_table(file).to_pylist()}
    for key, values in TWINS["faces"].expected(rows_of(TWINS["faces"])).items():
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
    tables = [parse_table(_csv(rows).encode(), file)
              for file, rows in (twin.table, *twin.others.items())]  # fmt: skip
    lines = label_findings(KeyIndex(sorted(twin.keys)), tables)
    assert any(f"{twin.proposal} (" in line for line in lines), lines
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
    "a word": ("id,a,b\n1,2.5,1\n2,x,2\n3,4.5,3\n", {}, "its a 'x' is not a number"),
    "no float32": ("id,a,b\n1,1e39,2.5\n", {}, "float32 cannot hold"),
    "negative votes": ("id,a,b\n1,-1,2\n", {"target": "soft"}, "votes are not negative"),
    "odd flag": ("id,a,b,c\n1,1,0,0\n2,0,1,7\n", {}, "'7', which is neither 1.*--target vector"),
    "class map": ("id,a,b\n1,1.5,2\n", {"target": "vector", "class_map": "a=b"}, "--class-map"),
    "classes": ("id,a,b\n1,x,y\n", {"classes": "x,y"}, "--classes: is for a single label"),
    "pivot of no table": ("id,a\n1,2\n", {"labels": "folder", "pivot": "a"}, "--pivot: is for"),
    "pivot of two": ("id,a,b,n\n1,2,3,x\n", {"pivot": "n"}, "--pivot: needs one column"),
    "pivot is missing": ("id,a,n\n1,2,\n", {"labels": "csv:t.csv:id:a", "pivot": "n"}, "names 0"),
    "pivot is unknown": ("id,a\n1,2\n", {"labels": "csv:t.csv:id:a", "pivot": "n"}, "no column"),
    "a row without a name": (
        "id,a,n\n1,2,x\n1,3,\n", {"labels": "csv:t.csv:id:a", "pivot": "n"}, "1 rows have a value"
    ),
    "too many names": (
        "id,a,n\n" + "".join(f"1,2,n{i}\n" for i in range(1_001)),
        {"labels": "csv:t.csv:id:a", "pivot": "n"}, "names 1,001 targets",
    ),
    "too many texts": (
        "id,a\n" + "1,x\n" * 1_001, {"labels": "csv:t.csv:id:a", "target": "texts"}, "1,001 texts"
    ),
    "no table": ("id,a\n1,2\n", {"labels": "folder", "target": "soft"}, "made of columns"),
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
