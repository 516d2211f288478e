"""Rows of tables and documents of images: twins of competitions, compared with a plain reading.

Each twin has the layout of the real set, an image without rows, a row without an image and an empty
cell.
"""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep import reader
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.catalog.tables.json_table import json_rows
from shardprep.dataset.folder import read_schema
from shardprep.errors import ShardprepError
from shardprep.verifier.examples import ExampleCheck
from shardprep.writer.finalize import BuildResult
from tests.support.builders import build, png, write_folder
from tests.writer.records import records

Members = dict[str, bytes]
Rows = dict[str, dict[str, list[Any]]]
"""Key → column → values."""
Twin = tuple[Members, dict[str, Any], Rows]
"""Files, flags and the rows that are expected, also of images that the source lacks."""
TILE = png(8, 8)


def table(*rows: str) -> bytes:
    return "\n".join(rows).encode()


def document(value: object) -> bytes:
    return json.dumps(value).encode()


def f32(text: object) -> float:
    return math.nan if text in ("", None) else float(np.float32(text))  # type: ignore[arg-type]


def utf8(text: object) -> bytes:
    return str("" if text is None else text).encode()


def discs() -> Twin:
    """Return row 4: coordinates in series, which are found by a path of two columns."""
    labels = table(
        "study_id,series_id,instance_number,condition,level,x,y",
        "4,70,8,Spinal Canal Stenosis,L1/L2,322.831858,227.964602",
        '4,71,3,"Left, Neural",L1/L2,,1', "9,99,1,lost,L1/L2,1,1",
        "4,70,,Spinal Canal Stenosis,L2/L3,320.5,295.7",
    )  # fmt: skip
    files = {f"images/4/{s}/{i}.png": png(8, 8, i) for s in (70, 71, 72) for i in (1, 2, 10)}
    flags = {
        "stack": "images/{study_id}/{series_id}/*.png",
        "rows": "csv:places.csv:{study_id}/{series_id}:instance_number,condition,x",
    }
    stenosis, places = b"Spinal Canal Stenosis", [f32(322.831858), 320.5]
    rows: Rows = {
        "images/4/70": {"instance_number": [8, -1], "condition": [stenosis] * 2, "x": places},
        "images/4/71": {"instance_number": [3], "condition": [b"Left, Neural"], "x": [math.nan]},
    }
    return {"places.csv": labels, **files}, flags, rows


def leads() -> Twin:
    """Return row 7: a CSV with the time series of each image."""
    files, rows = dict[str, bytes](), Rows()
    for number in ("77", "78", "79"):
        files[f"train/{number}/{number}-0001.png"] = png(8, 8, int(number))
    for number in ("77", "78", "80"):
        lines = [f"{i * 0.25 - 1:.2f},{'' if i > 1 else i * 0.5}" for i in range(int(number) - 72)]
        files[f"train/{number}/{number}.csv"] = table("I,aVR", *lines)
        cells = [line.split(",") for line in lines]
        rows[f"train/{number}/{number}-0001.png"] = {
            "I": [f32(a) for a, _ in cells], "aVR": [f32(b) for _, b in cells],
        }  # fmt: skip
    return files, {"rows": "csv:train/{id}/{id}.csv:{id}-0001:I,aVR"}, rows


def charts() -> Twin:
    """Return row 28: a JSON of each image, with a list of points, a class and other lists."""
    files = {f"images/{i}.jpg": png(8, 8, i) for i in range(4)}
    rows: Rows = {}
    every: list[Any] = [[{"x": "a", "y": 1.5}, {"x": "b", "y": None}], [], [{"y": 2}]]
    for i, series in enumerate(every):
        files[f"annotations/{i}.json"] = document({
            "source": "generated", "chart-type": ("dot", "line", "dot")[i],
            "text": [{"id": k, "polygon": {"x0": k}} for k in range(3)],
            "axes": {"x-axis": {"ticks": [{"id": 0}]}}, "data-series": series,
        })  # fmt: skip
        cells = [(utf8(one.get("x")), f32(one.get("y"))) for one in series]
        rows[f"images/{i}.jpg"] = {
            "data-series.x": [x for x, _ in cells], "data-series.y": [y for _, y in cells],
        }  # fmt: skip
    files["annotations/9.json"] = document({"chart-type": "bar", "data-series": [{"y": 0}]})
    flags = {
        "rows": "csv:annotations/{id}.json:id:data-series.x,data-series.y",
        "labels": "csv:annotations/{id}.json:id:chart-type",
    }
    return files, flags, rows


def picks() -> Twin:
    """Return row 27: several JSON of each sample, named after the class of their points."""
    files = {f"runs/TS_{i}.png": png(8, 8, i) for i in (1, 2)}
    rows: Rows = {"runs/TS_1.png": {"points.location.z": [], "particle": []}}
    for run, particle, number in (("TS_1", "apo", 2), ("TS_1", "ribo", 1), ("TS_7", "ribo", 1)):
        places = [{"x": 1.0, "y": 2.0, "z": 100.25 + k} for k in range(number)]
        files[f"overlay/{run}/Picks/{particle}.json"] = document({
            "pickable_object_name": particle, "user_id": None,
            "points": [{"location": one, "instance_id": 0} for one in places],
        })  # fmt: skip
        if run == "TS_1":
            rows["runs/TS_1.png"]["points.location.z"] += [one["z"] for one in places]
            rows["runs/TS_1.png"]["particle"] += [particle.encode()] * number
    flags = {"rows": "csv:{run}/Picks/{particle}.json:run:points.location.z,particle"}
    return files, flags, rows


TWINS = {"discs": discs(), "leads": leads(), "charts": charts(), "picks": picks()}


def made(twin: str, folder: Path, **flags: Any) -> BuildResult:
    source = write_folder(folder / "source", TWINS[twin][0])
    given = {"labels": "none", "format": "png", "size": 8, **TWINS[twin][1], **flags}
    return build(source, folder / "out", **given)


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_every_row_of_its_images(name: str, tmp_path: Path) -> None:
    _, flags, rows = TWINS[name]
    result = made(name, tmp_path)
    found = records(result.path)
    names = flags["rows"].rsplit(":", 1)[1].split(",")
    of_images = {key: own for key, own in rows.items() if key in found}
    num_rows = sum(len(own[names[0]]) for own in of_images.values())
    for key, record in found.items():
        own = of_images.get(key, {column: [] for column in names})
        assert {column: repr(record[f"rows/{column}"]) for column in names} == {
            column: repr(own[column]) for column in names
        }
    with_rows = sum(bool(own[names[0]]) for own in of_images.values())
    assert f"--rows: {num_rows} rows of {with_rows} image" in " ".join(result.notes)
    assert len(found) > with_rows  # an image without rows is there, with empty lists
    assert result.manifest.labels.num_rows_without_image > 0
    assert not shardprep.verify(result.path).problems


def same(one: Any, two: Any) -> bool:
    return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(one, two))  # noqa: B905


@pytest.mark.parametrize("form", ["png", "raw"])
def test_load_gives_the_batches_of_the_arrays(form: str, tmp_path: Path) -> None:
    path = made("charts", tmp_path, labels="none", format=form).path
    _, batch = next(reader.Dataset(path, "train").batches(4, shuffle=False))
    for cache in (False, "memory"):
        load = reader.load(path, "train", batch_size=4, shuffle=False, cache=cache)
        _, target = next(iter(load))
        assert same([target["rows/data-series.y"].numpy()], [batch["rows/data-series.y"]])
        texts = [[one.decode() for one in row] for row in target["rows/data-series.x"].numpy()]
        assert texts == batch["rows/data-series.x"].tolist()


def test_documents_of_images_give_labels(tmp_path: Path) -> None:
    result = made("charts", tmp_path)
    assert result.manifest.labels.names == ("bar", "dot", "line")
    labels = {key: record["label"] for key, record in records(result.path).items()}
    assert labels == {"images/0.jpg": [1], "images/1.jpg": [2], "images/2.jpg": [1]}
    assert result.manifest.totals.skipped["no label"] == 1


def test_texts_beside_images_are_their_targets(tmp_path: Path) -> None:
    files = {f"{p}/{i:03d}.png": png(8, 8, i) for p in ("a", "b") for i in range(3)}
    texts = {key.replace(".png", ".txt"): f" A dog, {key}\nin two lines\n" for key in files}
    del texts["b/002.txt"]
    source = write_folder(tmp_path / "in", {**files, **{k: v.encode() for k, v in texts.items()}})
    result = build(source, tmp_path / "out", labels="text:{stem}.txt", size=8)
    found = {key: record["text"] for key, record in records(result.path).items()}
    assert found == {k.replace("txt", "png"): [t.strip().encode()] for k, t in texts.items()}
    assert result.manifest.totals.skipped == {"no label": 1}
    lines = build(
        source, tmp_path / "two", labels="text:{part}/{stem}.txt", target="texts", size=8, root="a"
    )
    assert records(lines.path)["a/001.png"]["texts"] == [b"A dog, a/001.png", b"in two lines"]
    for key in texts:
        (source / key).write_text(f"A dog in {key}", encoding="utf-8")
    survey = survey_source(source, tmp_path / "work", lambda _: None)
    assert '\n# labels = "text:{stem}.txt"\n# target = "text"  #' in recipe_text(survey)


def test_rows_follow_into_the_other_commands(tmp_path: Path) -> None:
    one, two = (made("leads", tmp_path / name, name=name).path for name in ("one", "two"))
    merged = shardprep.repack([one, two], tmp_path / "out", name="both")
    assert {repr(r["rows/I"]) for r in records(merged.path).values()} == {
        repr(r["rows/I"]) for r in records(one).values()
    }
    sheet = tmp_path / "two/source/train/77/77.csv"
    sheet.write_bytes(sheet.read_bytes().replace(b"-1.00", b"-9.00"))
    again = build(
        tmp_path / "two/source", tmp_path / "again", labels="none", format="png", size=8,
        reuse=one, name="one", **TWINS["leads"][1],
    )  # fmt: skip
    assert again.num_copied == 3
    changed = records(again.path)["train/77/77-0001.png"]["rows/I"]
    assert changed[0] == -9
    assert changed[1:] == records(one)["train/77/77-0001.png"]["rows/I"][1:]
    assert shardprep.diff(one, again.path).num_same == 2
    shardprep.export(one, to="folder", out=tmp_path / "files")
    with (tmp_path / "files/labels.csv").open() as lines:
        cells = {row["key"]: json.loads(row["rows/aVR"]) for row in csv.DictReader(lines)}
    assert cells["train/77/77-0001.png"] == [0, 0.5, None, None, None]


def test_verify_finds_rows_of_different_lengths(tmp_path: Path) -> None:
    path = made("leads", tmp_path).path
    check = ExampleCheck(read_schema(path), decode=True)
    record = dict(records(path)["train/77/77-0001.png"])
    assert [*check.faults(record, None, 0)] == []
    record["rows/I"] = record["rows/I"][:-1]
    assert "rows/I of 4, rows/aVR of 5" in " ".join(f.what for f in check.faults(record, None, 0))
    record["rows/I"] = [b"\xff"]
    assert "holds bytes" in " ".join(fault.what for fault in check.faults(record, None, 0))


LINES = [
    {"id": "a", "annotations": [
        {"type": "blood_vessel", "coordinates": [[[1, 1], [5, 1], [5, 4], [1, 4]]]},
        {"type": "unsure", "coordinates": [[[0, 0], [2, 0], [2, 2]], [[4, 4], [7, 4], [7, 7]]]},
        {"type": "unsure", "coordinates": [[[0, 0], [2]]]}, {"type": "unsure"},
    ]},
    {"id": "b", "annotations": []},
    {"id": "lost", "annotations": [{"type": "unsure", "coordinates": [[[1, 1], [2, 1], [2, 2]]]}]},
]  # fmt: skip


def test_polygons_in_json_lines_are_masks_and_boxes(tmp_path: Path) -> None:
    files = {f"train/{name}.tif": png(8, 8) for name in "abc"}
    files["polygons.jsonl"] = "\n".join(map(json.dumps, LINES)).encode()
    source = write_folder(tmp_path / "in", files)
    flags: dict[str, Any] = {"size": "none", "max_dropped": 1.0, "format": "png"}
    auto = build(source, tmp_path / "auto", **flags)
    result = build(source, tmp_path / "out", masks="jsonl", instances=True, **flags)
    for made in (auto, result):
        record = records(made.path)["train/a.tif"]
        assert sorted(records(made.path)) == ["train/a.tif", "train/b.tif"]
        assert record["objects/label"] == [0, 1]
        corners = [[1, 1, 4, 5], [0, 0, 7, 7]]
        assert record["objects/bbox"] == [side / 8 for one in corners for side in one]
        assert read_schema(made.path).annotation_labels == ("blood_vessel", "unsure")
        counts = made.manifest.annotations["train"]
        assert counts.dropped == {"malformed": 2}
    data = reader.Dataset(result.path)
    _, target = data[list(records(result.path)).index("train/a.tif")]
    masks = target["masks"]
    assert masks[0][1:4, 1:5].all()
    assert masks[0].sum() == 12
    assert masks[1][[0, 5, 3], [1, 6, 3]].tolist() == [1, 1, 0]


FAULTS: dict[str, tuple[Members, dict[str, Any], str]] = {
    "no column": ({}, {"rows": "csv:t.csv:id"}, "rows: 'csv:t.csv:id' does not name columns"),
    "other kind": ({}, {"rows": "folder"}, "use csv:FILE:ID:COLUMN"),
    "no file": ({"t.md": b""}, {"rows": "csv:t/{id}.json:id:x"}, "no file of the source; use"),
    "a bad pattern": ({}, {"rows": "csv:t/{i d}.json:id:x"}, "'t/{i d}.json' has {i d}"),
    "missing column": ({"a.json": b'{"x": 1}'}, {"rows": "csv:{id}.json:id:y"}, "no column 'y'"),
    "no image": ({"t.csv": b"id,x\nq,1"}, {"rows": "csv:t.csv:id:x"}, "names an image, such as q"),
    "two lists": (
        {"a.json": b'{"p": [{"x": 1}], "q": []}'}, {"rows": "csv:{id}.json:id:p.x,q.y"},
        "a.json: the columns are of two lists, 'p' and 'q'",
    ),
    "numbers": ({"a.json": b"[1, 2]"}, {"rows": "csv:{id}.json:id:x"}, "a.json: is neither a list"),
    "deep": ({"a.json": b"[" * 9999}, {"rows": "csv:{id}.json:id:x"}, "a.json: is neither a list"),
    "too large": (
        {"t.csv": b"id,x\na,1e40"}, {"rows": "csv:t.csv:id:x"}, "1e\\+40, which float32 cannot hold"
    ),
    "reserved": (
        {"t.csv": b"id,rows/x,y\na,1,c\nb,2,d"},
        {"labels": "csv:t.csv:id:y", "columns": "rows/x"}, "reserved name of features",
    ),
    "lines": (
        {"p.jsonl": b'{"id": "a", "annotations": [{"coordinates": 1}]}\n{"id": "b"}'},
        {"boxes": "jsonl"}, "polygons in JSON lines: line 2 has no 'annotations'; export it again",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_mistake_is_one_line(case: str, tmp_path: Path) -> None:
    files, flags, message = FAULTS[case]
    source = write_folder(tmp_path / "in", {"img/a.png": TILE, "img/b.png": TILE, **files})
    with pytest.raises(ShardprepError, match=message):
        build(source, tmp_path / "out", **{"labels": "none", "size": 8, **flags})


def test_a_huge_document_needs_no_memory_for_each_pair_of_values() -> None:
    fields = {f"f{i}": i for i in range(3_000)}
    data = document({**fields, "p": [{"x": i} for i in range(3_000)], "q": [{"x": 1}] * 3_000})
    rows = json_rows(data, "a.json", ("p.x", "f7"), is_of_image=True)
    assert rows == [{"f7": "7", "p.x": str(i)} for i in range(3_000)]


def test_points_of_two_numbers_are_rows_with_numbered_columns() -> None:
    data = b'{"class": "a", "points": [[1, 2], [3, 4.5]]}'
    rows = json_rows(data, "0.json", ("points.0", "points.1"), is_of_image=True)
    assert [(row["points.0"], row["points.1"]) for row in rows] == [("1", "2"), ("3", "4.5")]
