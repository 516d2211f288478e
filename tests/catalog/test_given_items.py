"""Items that a user gives as a table: each row is stored, or is an error that names it."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pycocotools import mask as coco

import shardprep
from shardprep import reader
from shardprep.api.builds import Plan
from shardprep.dataset.item_table import read_items
from shardprep.errors import BuildError, OptionName, ShardprepError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.storage.cache import cache_root
from shardprep.writer.plan.fingerprint import source_signature
from tests.support.arrays import decoded, npy
from tests.support.builders import (
    animals,
    encoded,
    jpeg,
    tar_bytes,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.quick_command import encode_here
from tests.writer.records import records

PHOTOS = {f"{'ab'[i % 2]}/{i}.jpg": jpeg(seed=i) for i in range(6)}
Rows = list[dict[str, Any]]
RING = [8, 8, 40, 8, 40, 30, 8, 30]


def planned(
    items: Any,
    members: Mapping[str, bytes] = PHOTOS,
    source: str | Path = "set",
    **options: Any,
) -> Plan:
    """Return the plan of a build of a folder, in the current folder, with items."""
    if not Path("set").exists():
        write_folder(Path("set"), members)
    return shardprep.build(source, items=items, dry_run=True, **options)


def items_of(found: Plan) -> dict[str, Any]:
    return {item.key: item for shard in found.plan.shards for item in shard.items}


def labels_of(found: Plan) -> dict[str, str]:
    names = found.plan.schema.labels
    return {key: names[item.label] for key, item in items_of(found).items()}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    encode_here(monkeypatch)


ROWS: Rows = [{"image": f"{i}.jpg", "label": "xy"[i % 2], "split": "train"} for i in range(4)]
WANTED = {f"{'ab'[i % 2]}/{i}.jpg": "xy"[i % 2] for i in range(4)}


def _csv(rows: Rows) -> str:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    return str(write(Path("items.csv"), "\n".join(lines).encode()))


def _lines(rows: Rows) -> str:
    return str(write(Path("items.jsonl"), "\n".join(map(json.dumps, rows)).encode()))


def _parquet(rows: Rows) -> str:
    pq.write_table(pa.Table.from_pylist(rows), "items.parquet")
    return "items.parquet"


def _pandas(rows: Rows) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def _polars(rows: Rows) -> Any:
    return pytest.importorskip("polars").DataFrame(rows)


def _duckdb(rows: Rows) -> Any:
    return pytest.importorskip("duckdb").from_arrow(pa.Table.from_pylist(rows))


def _arrow(rows: Rows) -> Any:
    """Return a table with nothing but Arrow's interface, as any library has it."""
    return SimpleNamespace(__arrow_c_stream__=pa.Table.from_pylist(rows).__arrow_c_stream__)


def _dict(rows: Rows) -> dict[str, Any]:
    return {title: [row[title] for row in rows] for title in rows[0]}


@pytest.mark.parametrize(
    "form",
    [list, pa.Table.from_pylist, _pandas, _polars, _duckdb, _arrow, _dict, _csv, _lines, _parquet],
)
def test_items_are_a_frame_a_list_of_rows_or_a_file(form: Callable[[Rows], Any]) -> None:
    found = planned(form(ROWS))
    assert labels_of(found) == WANTED
    assert found.skipped == {"not in the table of items": 2}


@pytest.mark.parametrize("kind", ["absolute", "Path", "of the table", "key", "windows", "stem"])
def test_a_path_is_absolute_or_of_the_table_or_a_key(kind: str) -> None:
    paths: dict[str, Callable[[str], Any]] = {
        "absolute": lambda key: str(Path("set").resolve() / key),
        "Path": lambda key: Path("set").resolve() / key,
        "of the table": lambda key: f"../set/{key}",
        "key": str,
        "windows": lambda key: key.replace("/", "\\"),
        "stem": lambda key: key.removesuffix(".jpg"),
    }
    path = paths[kind]
    rows = [{"path": path(key), "label": label} for key, label in WANTED.items()]
    Path("tables").mkdir()
    given: Any = rows
    if kind == "of the table":
        given = str(Path(_lines(rows)).rename("tables/items.jsonl"))
    assert labels_of(planned(given)) == WANTED


def test_without_a_source_the_images_are_below_the_folder_of_all_paths() -> None:
    write_folder(Path("set"), PHOTOS | {"c/9.jpg": jpeg()})
    rows = [
        {"image": str(Path("set").resolve() / key), "label": one} for key, one in WANTED.items()
    ]
    assert labels_of(shardprep.build(items=rows, dry_run=True)) == WANTED
    write(Path("set/items.csv"), b"image,label\n0.jpg,x\n1.jpg,y\n")
    assert labels_of(shardprep.build(items="set/items.csv", dry_run=True)) == {
        "a/0.jpg": "x", "b/1.jpg": "y",
    }  # fmt: skip


def test_paths_without_a_common_folder_are_files_below_the_root(tmp_path: Path) -> None:
    """Keys are paths without the slash in front. The rest of the machine is not listed."""
    far = Path(tempfile.mkdtemp(dir="/tmp" if tmp_path.parts[1] != "tmp" else "/var/tmp"))
    try:
        write_folder(tmp_path / "a", {f"{i}.jpg": jpeg(seed=i) for i in range(3)})
        write_folder(far, {"1.jpg": jpeg(seed=8), "m.png": _mask(), "x/../9.jpg": jpeg(seed=9)})
        paths = [*(tmp_path / f"a/{i}.jpg" for i in range(2)), far / "1.jpg", far / "x/../9.jpg"]
        rows = [{"image": str(path), "label": "xy"[i % 2]} for i, path in enumerate(paths)]
        keys: dict[str, Any] = {"size": "8x8", "workers": 1}
        made = shardprep.build(items=[*rows, {"image": "/no/0.jpg", "label": "x"}], **keys)
        wanted = {os.path.normpath(path)[1:] for path in paths}
        assert {row["key"] for row in reader.table(made.path).to_pylist()} == wanted
        assert made.manifest.labels.rows_without_image == ("/no/0.jpg",)
        assert not shardprep.verify(made.path, decode=True, workers=1).problems
        assert shardprep.build(
            items=[*rows, {"image": "/no/0.jpg", "label": "x"}], **keys
        ).was_there
        reused = shardprep.build(items=rows, out="again", reuse=made.path, **keys)
        assert reused.num_copied == 4
        masks = [{"image": rows[i]["image"], "mask": str(far / "m.png")} for i in range(2)]
        found = shardprep.build(items=masks, dry_run=True)
        assert {one.companions[0].key for one in items_of(found).values()} == {f"{far}/m.png"[1:]}
        paths[0].write_bytes(jpeg(seed=7))
        with pytest.raises(ShardprepError, match="already exists, and was built with other source"):
            shardprep.build(items=[*rows, {"image": "/no/0.jpg", "label": "x"}], **keys)
    finally:
        shutil.rmtree(far)


def test_an_archive_has_the_images() -> None:
    write(Path("set.zip"), zip_bytes({"inner.zip": zip_bytes(PHOTOS)}))
    found = shardprep.build("set.zip", items=ROWS, dry_run=True)
    assert labels_of(found) == {f"inner.zip/{key}": one for key, one in WANTED.items()}


@pytest.mark.parametrize(
    ("column", "values", "wanted"),
    [
        ("labels", [["x, 1", "y"], [], ["y"]], [("x, 1", "y"), (), ("y",)]),
        ("text", ["a b", "c", "7"], ["a b", "c", "7"]),
        ("target/age", [1.5, 2, 3], [1.5, 2.0, 3.0]),
        ("target/sex", ["f", "m", "f"], ["f", "m", "f"]),
        ("label", [3, 1, 3], ["3", "1", "3"]),
    ],
)
def test_a_column_of_targets_has_its_meaning(
    column: str, values: list[Any], wanted: list[Any]
) -> None:
    rows = [{"image": f"{i}.jpg", column: value} for i, value in enumerate(values)]
    found = planned(rows)
    names, targets = found.plan.schema.labels, [one.target for one in items_of(found).values()]
    read = [
        tuple(names[i] for i in one) if isinstance(one, tuple)
        else names[one] if isinstance(one, int) else one
        for one in targets
    ]  # fmt: skip
    assert dict(zip(items_of(found), read, strict=True)) == dict(zip(PHOTOS, wanted, strict=False))


def test_several_targets_and_vectors_are_named() -> None:
    rows = [
        {"image": f"{i}.jpg", "target/age": 20.5 + i, "target/sex": "fm"[i % 2]} for i in range(4)
    ]
    schema = planned(rows).plan.schema
    assert schema.features["targets"].labels == ("age",)
    assert schema.features["label/sex"].labels == ("f", "m")
    rows = [{"image": f"{i}.jpg", "target/place": [i, 0.5]} for i in range(4)]
    assert planned(rows).plan.schema.features["targets"].labels == ("place[0]", "place[1]")


def test_splits_and_groups_are_those_of_the_table_unless_a_flag_divides() -> None:
    rows = [
        one | {"split": "val" if i < 2 else "test", "group": f"g{i // 2}"}
        for i, one in enumerate(ROWS)
    ]
    splits = {key: item.split for key, item in items_of(planned(rows)).items()}
    wanted = ("validation", "validation", "test", "test")
    assert splits == dict(zip(WANTED, wanted, strict=True))
    known = [one | {"split": "train"} for one in rows]
    known += [{"image": f"{i}.jpg", "split": "test", "group": "g2"} for i in (4, 5)]
    for ratios in ("validation=0.5", "train=0.5,validation=0.5"):
        divided = {one: item.split for one, item in items_of(planned(known, split=ratios)).items()}
        assert {divided["a/0.jpg"], divided["a/2.jpg"]} == {"train", "validation"}
        assert divided["a/0.jpg"] == divided["b/1.jpg"]
        assert divided["a/4.jpg"] == divided["b/5.jpg"] == "test"


def test_boxes_with_classes_crowds_outlines_and_keypoints_are_stored() -> None:
    ring = [8.0, 8.0, 40.0, 8.0, 40.0, 30.0]
    row = {
        "image": "0.jpg", "boxes": [[8, 8, 40, 30], [1, 2, 9, 9]], "box_labels": ["cat", "dog"],
        "iscrowd": [0, 1], "segmentation": [[ring], [[1, 2, 9, 2, 9, 9]]],
        "keypoints": [[8, 9, 2, 0, 0, 0], [1, 2, 1, 3, 4, 2]],
    }  # fmt: skip
    found = planned([row, {"image": "1.jpg", "boxes": [], "box_labels": []}])
    one, none = (items_of(found)[key].annotation for key in ("a/0.jpg", "b/1.jpg"))
    assert one is not None
    assert none is not None
    assert one.boxes.tolist() == [[8, 8, 40, 30], [1, 2, 9, 9]]
    assert found.plan.annotations is not None
    assert [found.plan.annotations.names[label] for label in one.labels] == ["cat", "dog"]
    assert (one.crowds, len(one.outlines), len(none.boxes)) == ((False, True), 2, 0)
    assert one.keypoints is not None
    assert one.keypoints[1].tolist() == [[1, 2, 1], [3, 4, 2]]


@pytest.mark.parametrize(
    ("form", "box"),
    [
        ("xyxy", [8, 6, 40, 30]),
        ("xywh", [8, 6, 32, 24]),
        ("center", [24, 18, 32, 24]),
        ("yxyx", [6, 8, 30, 40]),
    ],
)
def test_boxes_have_the_stated_form(form: str, box: list[int]) -> None:
    rows = [{"image": "0.jpg", "boxes": [box], "box_format": form}]
    (item,) = items_of(planned(rows)).values()
    assert item.annotation is not None
    assert [*item.annotation.boxes[0]] == [8, 6, 40, 30]


def test_masks_target_images_and_points_belong_to_their_rows() -> None:
    members = PHOTOS | {f"m/x{i}.png": _mask() for i in (0, 1)}
    rows = [{"image": f"{i}.jpg", "mask": f"m/x{1 - i}.png"} for i in (0, 1)]
    found = items_of(planned(rows, members))
    assert [one.key for one in found["a/0.jpg"].companions] == ["m/x1.png"]
    rows = [{"image": f"{i}.jpg", "target_image": f"{i + 2}.jpg"} for i in (0, 1)]
    found = items_of(planned(rows))
    assert [one.key for one in found["b/1.jpg"].companions] == ["b/3.jpg"]
    pointed: Rows = [{"image": f"{i}.jpg", "points": [[1, 2 + i], None]} for i in (0, 1)]
    points = items_of(planned(pointed))["b/1.jpg"].annotation
    assert points is not None
    assert points.points is not None
    assert points.points.tolist() == [[1, 3, 2], [0, 0, 0]]


def test_columns_of_keypoints_that_are_not_found_are_named_without_a_file() -> None:
    rows: Rows = [{"image": f"{i}.jpg", "across": 4 + i, "down": 5} for i in (0, 1)]
    with pytest.raises(SourceError, match="; name the columns: --points column:x,y"):
        planned(rows, points="column")
    item = items_of(planned(rows, points="column:across,down"))["b/1.jpg"]
    assert item.annotation is not None
    assert item.annotation.points is not None
    assert item.annotation.points.tolist() == [[5, 5, 2]]


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        ((3, 2), "row 2: points .* has 2 keypoints, but row 1 has 3"),
        ((3, 0, 2, 2), "row 1: points .* has 3 keypoints, but row 3 has 2"),
    ],
)
def test_rows_with_another_number_of_points_are_an_error(
    lengths: tuple[int, ...], what: str
) -> None:
    """A joint that was left out moved all later joints."""
    rows = [{"image": f"{i}.jpg", "points": [[1, 2]] * n} for i, n in enumerate(lengths)]
    with pytest.raises(SourceError, match=f"{what}: write None for a missing one"):
        planned(rows)


def test_a_dict_of_points_names_them_and_may_lack_some() -> None:
    rows: Rows = [
        {"image": "0.jpg", "points": {"left_eye": [1, 2], "right, 2: x-eye": [3, 4]}},
        {"image": "1.jpg", "points": {"right_eye": [5, 6], "left_eye": None}},
        {"image": "2.jpg", "points": {}},
    ]
    eyes = ("left_eye", "right, 2: x-eye", "right_eye")
    for items in (rows, pd.DataFrame(rows)):
        found = planned(items)
        assert found.plan.schema.features["points"].points == eyes
        assert found.plan.schema.features["points"].mirrored == (2, 1, 0)
        points = [one.annotation.points.tolist() for _, one in sorted(items_of(found).items())]
        none = [0, 0, 0]
        assert points == [[[1, 2, 2], [3, 4, 2], none], [none] * 3, [none, none, [5, 6, 2]]]


@pytest.mark.parametrize("file", ["items.csv", "items.parquet"])
def test_a_table_of_a_plan_keeps_the_names_of_points(file: str) -> None:
    rows: Rows = [{"image": "0.jpg", "points": {"left_eye": [1, 2.5], "x, right_eye": None}}]
    first, again = planned(rows, items_out=file), planned(file)
    assert first.plan.schema.features["points"].points == ("left_eye", "x, right_eye")
    assert again.plan.schema == first.plan.schema
    (item,) = items_of(again).values()
    assert item.annotation.points.tolist() == [[1, 2.5, 2], [0, 0, 0]]
    boxes = {"boxes": [[1, 2, 30, 40]] * 2, "box_labels": ["a", "b"]}
    for joints in ([[1, 2, 2, 3, 4, 1], None], [None, {"l_ear": [1, 2, 1], "r_ear": None}]):
        first = planned([{"image": "0.jpg", **boxes, "keypoints": joints}], items_out=file)
        again = planned(file)
        assert again.plan.schema == first.plan.schema
        one, two = (items_of(found)["a/0.jpg"].annotation for found in (first, again))
        assert one.keypoints.tolist() == two.keypoints.tolist()


KEYPOINTS: list[Any] = [
    [[5, 6], [10, 12]], [[5, 6], [2, 12], [1, 2]], [5, 6, 7], [5, 6], ["a", 6, 2], "left",
    {"a": 1}, {"a": [1, 2]},
]  # fmt: skip


@pytest.mark.parametrize("value", KEYPOINTS, ids=str)
def test_keypoints_of_another_form_are_an_error_of_their_row(value: Any) -> None:
    boxes = [[1, 2, 30, 40]] * 3
    rows = [{"image": "0.jpg", "boxes": boxes, "keypoints": [[5, 6, 2], None, []]}]
    (item,) = items_of(planned(rows)).values()
    assert item.annotation.keypoints.tolist() == [[[5, 6, 2]], [[0, 0, 0]], [[0, 0, 0]]]
    rows += [{"image": "1.jpg", "boxes": boxes, "keypoints": [[5, 6, 2], value, value]}]
    what = r"row 2: keypoints '.*' is not x, y, visibility \(0, 1 or 2\) in turn; correct"
    with pytest.raises(SourceError, match=what):
        planned(rows)


def test_a_dict_of_keypoints_names_those_of_all_objects() -> None:
    eyes, nose = {"left_eye": [5, 6, 2], "right_eye": [7, 8, 1]}, {"nose": [1, 1, 2]}
    boxes = {"boxes": [[1, 2, 30, 40]] * 2, "box_labels": ["a", "b"]}
    rows: Rows = [
        {"image": "0.jpg", **boxes, "keypoints": [eyes, None]},
        {"image": "1.jpg", **boxes, "keypoints": [nose, {"right_eye": [3, 4, 2], "nose": None}]},
    ]
    for items in (rows, pd.DataFrame(rows)):
        found = planned(items)
        feature = found.plan.schema.features["objects/keypoints"]
        assert feature.points == ("left_eye", "right_eye", "nose")
        assert feature.mirrored == (1, 0, 2)
        points = [one.annotation.keypoints.tolist() for _, one in sorted(items_of(found).items())]
        none = [0, 0, 0]
        assert points == [
            [[[5, 6, 2], [7, 8, 1], none], [none] * 3],
            [[none, none, [1, 1, 2]], [none, [3, 4, 2], none]],
        ]
    rows[1]["keypoints"] = [None, [1, 1, 2, 3, 4, 2, 0, 0, 0]]
    with pytest.raises(SourceError, match=r"row 2: keypoints .* has no names, but other keypoints"):
        planned(rows)


def test_crowds_are_0_or_1_also_as_floats() -> None:
    flags: list[Any] = [1.0, True, 0, None]
    row = {"image": "0.jpg", "boxes": [[1, 2, 30, 40]] * 4, "iscrowd": flags}
    (item,) = items_of(planned([row])).values()
    assert item.annotation.crowds == (True, True, False, False)
    with pytest.raises(SourceError, match="row 1: iscrowd '\"yes\"' is not 0 or 1"):
        planned([row | {"iscrowd": [0, 0, 0, "yes"]}])


@pytest.mark.parametrize("title", ["boxes", "points"])
def test_shares_beside_pixels_are_an_error_or_a_note_if_they_are_few(title: str) -> None:
    members = {f"{i}.jpg": jpeg(seed=i % 3) for i in range(120)}
    values: dict[str, tuple[Any, Any]] = {
        "boxes": ([[0.1, 0.2, 0.3, 0.4]], [[10, 20, 30, 40]]),
        "points": ([[0.1, 0.2], [0.5, 1]], [[10, 20], [0.5, 1]]),
    }
    one, two = values[title]
    rows = [{"image": f"{i}.jpg", title: two if i else one} for i in range(120)]
    start = "items: .*1 of {} .* look like shares of the image sides, such as .*0.jpg"
    with pytest.raises(SourceError, match=start.format(2) + ".* pixels, such as .*1.jpg"):
        planned(rows[:2], members)
    found = planned(rows, members).plan.findings
    assert any(re.match(start.format(120), line) for line in found)
    whole = [[[0, 0, 1, 1]], two] if title == "boxes" else [[[0, 1], [1, 1]], two]
    rows = [{"image": f"{i}.jpg", title: value} for i, value in enumerate(whole)]
    assert planned(rows, members).plan.findings == []


def test_a_target_that_labels_leave_out_is_named_with_the_option_that_stores_it() -> None:
    rows = [
        {"image": f"{i}.jpg", "labels": ["xy"[i % 2]], "age": i, "target/severity": i}
        for i in range(4)
    ]
    with pytest.raises(SourceError, match="several targets: labels and severity") as caught:
        planned(rows)
    flags = "use --labels column:labels, and store others with --columns age,severity"
    assert flags in str(caught.value)
    said = "1 target is not stored: severity; --columns age,severity stores severity too"
    assert said in planned(rows, labels="column:labels").plan.findings
    for columns in ("age,severity", "age,target/severity"):
        found = planned(rows, labels="column:labels", columns=columns)
        assert (found.plan.columns, found.plan.findings) == (("age", "severity"), [])
    chosen = planned(rows, labels="column:target/severity").plan.findings
    assert "1 target is not stored: labels" in chosen


def _mask() -> bytes:
    return encoded(Image.fromarray(np.eye(48, 64, dtype=np.uint8)), "PNG")


def test_images_may_share_a_file_and_have_one_target_image() -> None:
    for column, file in (("mask", "m/x.png"), ("target_image", "x"), ("target_image", ["x"])):
        rows = [{"image": f"{i}.jpg", column: file} for i in (0, 1)]
        found = items_of(planned(rows, PHOTOS | {"m/x.png": _mask()}))
        files = {key: [one.key for one in item.companions] for key, item in found.items()}
        assert files == {"a/0.jpg": ["m/x.png"], "b/1.jpg": ["m/x.png"]}
    stated: dict[str, Any] = {"target_image": "paths:target_image"}
    for options in ({}, stated):
        with pytest.raises(
            SourceError, match=r"row 1: target_image .* names several target images"
        ):
            planned([{"image": "0.jpg", "target_image": ["4.jpg", "5.jpg"]}], **options)


def test_a_mask_in_a_file_of_arrays_is_a_path_as_any_other() -> None:
    masks = {f"m/{i}.npy": np.eye(48, 64, dtype=np.uint8) * (i + 1) for i in (0, 1)}
    write_folder(Path("set"), PHOTOS | {key: npy(one) for key, one in masks.items()})
    paths = ("m/0.npy", str(Path("set/m/1.npy").resolve()))
    rows = [{"image": f"{i}.jpg", "mask": path} for i, path in enumerate(paths)]
    built = shardprep.build("set", items=rows, size="64x48", format="png", workers=1)
    found = records(built.path)
    for at, key in enumerate(("a/0.jpg", "b/1.jpg")):
        (mask,) = found[key]["segmentation_mask"]
        assert np.array_equal(decoded(mask), masks[f"m/{at}.npy"])


def _outlines(form: Callable[[Rows], Any]) -> Any:
    counts = coco.encode(np.asfortranarray(np.eye(48, 64, dtype=np.uint8)))["counts"].decode()
    both = [json.dumps([RING]), json.dumps({"size": [48, 64], "counts": counts})]
    return form(
        [
            {"image": "0.jpg", "segmentation": both, "box_labels": ["cat", "dog"]},
            {"image": "1.jpg", "segmentation": [], "box_labels": []},
        ]
    )


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, _lines])
def test_outlines_without_boxes_are_stored_as_masks(form: Callable[[Rows], Any]) -> None:
    """The oracle is pycocotools, which draws polygons and reads run lengths."""
    write_folder(Path("set"), PHOTOS)
    keys: dict[str, Any] = {"size": "64x48", "format": "png", "workers": 1}
    found = records(shardprep.build("set", items=_outlines(form), **keys).path)
    assert not any(name.startswith("objects") for name in found["a/0.jpg"])
    wanted = np.asarray(coco.decode(coco.frPyObjects([RING], 48, 64))[..., 0])
    line = np.eye(48, 64, dtype=np.uint8)
    mask, none = (decoded(found[key]["segmentation_mask"][0]) for key in ("a/0.jpg", "b/1.jpg"))
    assert ((mask == 0) == ((wanted == 0) & (line == 0))).all()
    assert {*np.unique(mask[(wanted == 1) & (line == 0)])} == {1}
    assert {*np.unique(mask[(wanted == 0) & (line == 1)])} == {2}
    assert not none.any()
    items = _outlines(form)
    apart = records(shardprep.build("set", "apart", items=items, instances=True, **keys).path)
    first, second = (decoded(one) for one in apart["a/0.jpg"]["objects/mask"])
    assert np.array_equal(first != 0, wanted != 0)
    assert np.array_equal(second != 0, line != 0)
    assert len(apart["a/0.jpg"]["objects/bbox"]) == 8
    assert not apart["b/1.jpg"]["objects/bbox"]


@pytest.mark.parametrize("title", ["EncodedPixels", "segmentation", "rle"])
def test_run_lengths_of_kaggle_are_an_error_that_shows_their_option(title: str) -> None:
    """Images have a row each, or a row for each object; the advised option builds them."""
    lines = ["ImageId,ClassId,RLE", "0.jpg,1,1 3 60 2", "0.jpg,2,9 1", "1.jpg,1,-1"]
    text = "\n".join(lines).replace("RLE", title)
    write(Path("train.csv"), text.encode())
    write_folder(Path("set"), PHOTOS)
    option = f"rle:train.csv:ImageId:{title}"
    with pytest.raises(SourceError, match=rf"has run lengths of Kaggle.*{option}") as caught:
        shardprep.build("set", items="train.csv", dry_run=True)
    assert "instead of" in str(caught.value)
    found = shardprep.build("set", masks=f"{option}:ClassId", dry_run=True)
    assert {key for key, one in items_of(found).items() if one.annotation} == {"a/0.jpg", "b/1.jpg"}
    frame = pd.read_csv("train.csv").drop_duplicates("ImageId")
    with pytest.raises(
        SourceError, match=r"write the frame to runs\.csv, and give .*rle:runs\.csv:"
    ):
        planned(frame)


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, _lines])
def test_lists_of_run_lengths_are_an_error_that_shows_their_option(
    form: Callable[[Rows], Any],
) -> None:
    """Also in a column with another title, if the runs do not overlap; numbers are not runs."""
    runs: Rows = [
        {"ImageId": "0.jpg", "EncodedPixels": ["1 3 60 2", "9 1"]},
        {"ImageId": "1.jpg", "EncodedPixels": []},
    ]
    with pytest.raises(SourceError, match=r"explode\('EncodedPixels'\) to runs.csv, and give"):
        planned(form(runs))
    pd.DataFrame(runs).explode("EncodedPixels").to_csv("runs.csv", index=False)
    found = shardprep.build("set", masks="rle:runs.csv:ImageId:EncodedPixels", dry_run=True)
    assert {key for key, one in items_of(found).items() if one.annotation} >= {"a/0.jpg"}
    for cell in ("1 3 60 2 80 9", ["1 3 60 2 80 9", "4 5 10 2 20 1"]):
        with pytest.raises(SourceError, match="column 'defect' has run lengths of Kaggle"):
            planned(form([{"image": "0.jpg", "defect": cell}]))
    for place in ("9 8 7 6", "10 10 200 150", ["3 5"], ["10 20 15 30 20 40"]):
        planned(form([{"image": "0.jpg", "place": place}]))


@pytest.mark.parametrize(
    ("cells", "wrong", "separator"),
    [
        (["A|B", "A", "B", "C"], {1}, "|"),
        (["A;B", "B;C", "A;C", ""], {1, 2, 3}, ";"),
        (["A, B", ["A"], ["B", "C"], "C"], {1}, ","),
        (["grass cat", "grass", "cat", "cat"], {1}, " "),
        (["A;B", "A;B"], {1, 2}, ";"),
    ],
    ids=str,
)
def test_a_text_of_several_classes_is_a_question(
    cells: list[Any], wrong: set[int], separator: str
) -> None:
    """The error shows both ways to write it, and the option that splits all rows."""
    rows = [{"image": f"{i}.jpg", "labels": cell} for i, cell in enumerate(cells)]
    with pytest.raises(SourceError, match=f"row {min(wrong)}: labels .* is one class or s") as said:
        planned(rows)
    assert {int(one) for one in re.findall(r"row (\d+):", str(said.value))} == wrong
    first = cells[min(wrong) - 1]
    assert f"[{json.dumps(first)}] or {json.dumps(re.split('[|;, ]+', first))}" in str(said.value)
    texts = [{**one, "labels": one["labels"]} for one in rows if isinstance(one["labels"], str)]
    found = planned(texts, separator=separator)
    known = ("A", "B", "C", "grass", "cat")
    assert {*found.plan.schema.labels} == {name for name in known if name in str(texts)}
    one_class = [{**one, "labels": [one["labels"]]} for one in texts if one["labels"]]
    assert first in planned(one_class).plan.schema.labels


def test_a_class_with_a_comma_of_its_own_is_one_class() -> None:
    names = ["tench, Tinca tinca", "great white shark, white shark", "hot dog", "dog"]
    rows = [{"image": f"{i}.jpg", "labels": name} for i, name in enumerate(names)]
    assert {*planned(rows).plan.schema.labels} == {*names}


def test_rows_of_a_sample_are_a_stack_in_their_order() -> None:
    rows = [
        {"image": f"{i}.jpg", "sample": f"s{i // 3}", "order": -i, "label": i // 3}
        for i in range(6)
    ]
    found = planned(rows)
    stacks = {
        key: [one.key for one in item.extent.members] for key, item in items_of(found).items()
    }
    assert stacks == {
        "s0": ["a/2.jpg", "b/1.jpg", "a/0.jpg"],
        "s1": ["b/5.jpg", "a/4.jpg", "b/3.jpg"],
    }
    assert labels_of(found) == {"s0": "0", "s1": "1"}
    with pytest.raises(SourceError, match="row 2: label '7' differs from row 3"):
        planned([one | {"label": "7"} if i == 1 else one for i, one in enumerate(rows)])


def test_other_names_of_columns_are_found_and_said() -> None:
    rows = [
        {"image_id": str(i), "breed": "xy"[i % 2], "subset": "test", "fold": i % 2}
        for i in range(4)
    ]
    found = planned(rows)
    assert labels_of(found) == WANTED
    assert found.images == {"test": 4}
    for line in (
        "'image_id' of items is the image",
        "'breed' of items is the label",
        "'subset' of items is the split",
    ):
        assert any(line in note for note in found.plan.findings)
    for row in rows:
        del row["subset"]
    (note,) = (one for one in planned(rows).plan.findings if "'fold' makes no splits" in one)
    assert "column:fold:0=validation,*=train" in note
    again = planned(rows, split="column:fold:0=validation,*=train")
    assert again.images == {"train": 2, "validation": 2}


def test_a_column_that_says_whether_an_image_is_valid_is_a_note() -> None:
    rows = [{"image": f"{i}.jpg", "label": "ab"[i % 2], "is_valid": i > 1} for i in range(4)]
    (note,) = (one for one in planned(rows).plan.findings if "makes no splits" in one)
    split = "column:is_valid:true=validation,*=train"
    assert split in note
    assert planned(rows, split=split).images == {"train": 2, "validation": 2}
    for row in rows:
        row["is_valid"] = f"{row['image']} is"
    assert not [one for one in planned(rows).plan.findings if "makes no splits" in one]


def test_a_star_is_all_other_values_of_a_column_of_splits() -> None:
    """Not an empty cell; without it, a value that no pair names is an error that shows it."""
    rows = [{**one, "use": use} for one, use in zip(ROWS, ("a", "b", "c", ""), strict=True)]
    rows = [{name: cell for name, cell in row.items() if name != "split"} for row in rows]
    found = planned(rows, split="column:use:b=val,*=test")
    assert found.images == {"train": 1, "validation": 1, "test": 2}
    with pytest.raises(ShardprepError, match=r"'a', which names no split.*\*=train for all others"):
        planned(rows, split="column:use:b=test")
    with pytest.raises(ShardprepError, match="no image has d in column 'use'"):
        planned(rows, split="column:use:d=test,*=train")


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, _pandas])
def test_a_frame_of_labels_is_a_table_of_labels(form: Callable[[Rows], Any]) -> None:
    write_folder(Path("set"), PHOTOS | {"test/9.jpg": jpeg()})
    rows = [{"id": str(i), "label": "xy"[i % 2]} for i in range(6)]
    found = shardprep.build("set", labels=form(rows), dry_run=True)
    assert found.images == {"train": 6, "test": 1}
    assert labels_of(found)["a/4.jpg"] == "x"


@pytest.mark.parametrize("option", ["items", "labels"])
def test_an_ordered_categorical_states_the_order_of_classes(option: str) -> None:
    write_folder(Path("set"), PHOTOS)
    levels = pd.Categorical([*"ywyw"], [*"zyxw"], ordered=True)
    frame = pd.DataFrame({"image": [*WANTED], "label": levels})

    def classes(frame: pd.DataFrame, **options: Any) -> list[str]:
        given: Any = {option: frame} | options
        return [*shardprep.build("set", **given, dry_run=True).labels]

    assert classes(frame) == [*"zyxw"]
    frame.to_parquet("set/levels.parquet")
    assert classes(pd.read_parquet("set/levels.parquet")) == [*"zyxw"]
    assert classes(frame, classes="x,y,w,z") == [*"xywz"]
    assert classes(frame.assign(label=pd.Categorical([*"ywyw"], [*"zyxw"]))) == [*"wy"]
    assert classes(frame.assign(label=[*"ywyw"])) == [*"wy"]
    assert classes(frame.assign(label=[*"ywyw"], grade=levels)) == [*"wy"]
    assert classes(frame, class_map={"y": "yes"}) == ["w", "yes"]


def test_a_flag_wins_over_a_column() -> None:
    rows = [one | {"other": "zw"[i // 2]} for i, one in enumerate(ROWS)]
    assert {*labels_of(planned(rows, labels="column:other")).values()} == {"z", "w"}
    assert {*labels_of(planned(rows, labels="folder")).values()} == {"a", "b"}
    columns = planned(rows, columns="other").plan.columns
    assert columns == ("other",)


WRONG: list[tuple[Rows, str]] = [
    ([{"image": "../secret.jpg"}], r"row 1: image '../secret.jpg' leads out of the source"),
    ([{"image": "/etc/passwd"}], "row 1: image '/etc/passwd' leads out"),
    ([{"image": "C:\\0.jpg"}], "row 1: image .* leads out"),
    ([{"image": ""}, {"image": "0.jpg"}], "row 1: image '' is empty"),
    ([{"image": "0.jpg"}, {"image": "a/0.jpg"}], "row 2: image 'a/0.jpg' is in row 1 too"),
    ([{"image": "0.jpg", "mask": "no.png"}], "row 1: mask 'no.png' is not an image of the source"),
    ([{"image": "0.jpg", "points": "here"}], "row 1: points 'here' is not a list"),
    ([{"image": "0.jpg", "points": {"eye": [1, 2, 3]}}], "row 1: points .* is not a list or dict"),
    (
        [{"image": "0.jpg", "points": {"eye": [1, 2]}}, {"image": "1.jpg", "points": [[1, 2]]}],
        "row 2: points .* has no names, but other rows have names",
    ),
    ([{"image": "0.jpg", "boxes": [[1, 2, 3, 4]], "box_format": "abcd"}], "formats abcd"),
    ([{"image": "0.jpg", "boxes": [[1, 2, 3]]}], r"1: boxes '\[\[1, 2, 3\]\]' is not a list of"),
    ([{"image": "0.jpg", "boxes": [[1, 2, 3, 4], [7]]}], r"1: boxes '\[7\]' is not \[xmin,"),
    ([{"image": "0.jpg", "boxes": [1, 2, 3, 4]}], "row 1: boxes .* is not a list of"),
    ([{"image": "0.jpg", "boxes": [[[1, 2, 3, 4]]]}], "row 1: boxes .* is not a list of"),
    ([{"image": "0.jpg", "boxes": [[1, 2, float("nan"), 4]]}], "row 1: boxes .* is not a list of"),
    ([{"image": "0.jpg", "boxes": "left"}], "row 1: boxes 'left' is not a list of"),
    ([{"image": "0.jpg", "boxes": f"[[{10**400}, 1, 2, 3]]"}], "row 1: boxes .* is not a list of"),
    ([{"image": "0.jpg", "points": f"[[{10**400}, 1]]"}], "1: points .* is not a list or dict of"),
    (
        [{"image": "0.jpg", "segmentation": f"[[[{10**400}, 1]]]"}],
        "1: segmentation .* is not a list of p",
    ),
    (
        [{"image": "0.jpg", "boxes": [[1, 2, 3, 4]], "box_labels": ["a", "b"]}],
        r"row 1: box_labels '\[\"a\", \"b\"\]' is not a list as long as boxes \(1\)",
    ),
    ([{"image": "0.jpg", "segmentation": [{"size": 3}]}], "1: segmentation .* is not a list of p"),
    (
        [{"image": "0.jpg", "segmentation": [RING], "box_labels": ["a", "b"]}],
        r"row 1: box_labels .* is not a list as long as segmentation \(1\)",
    ),
    ([{"image": "0.jpg", "label": [1, 2]}], "row 1: label .* is not a single value: call"),
    ([{"image": "0.jpg", "label": {"a": 1}}], "row 1: label .* is not a single value"),
    (
        [{"image": "0.jpg", "label": None}],
        "finds a label for none .* fill label, or name another column",
    ),
    ([{"image": "0.jpg", "split": "held"}], "row 1: split 'held' is not train, validation or"),
    ([{"image": "0.jpg", "sample": None}], "row 1: sample '' is empty"),
    ([{"image": "0.jpg", "mask": "[broken"}], "row 1: mask '' is not an image of the source"),
    ([{"image": "0.jpg", "mask": [7]}], "row 1: mask '7' is not an image of the source"),
    ([{"image": "0.jpg", "label": 1, "text": "b"}], "several targets: label and text"),
    ([{"image": "0.jpg", "class": 1, "breed": "b"}], "may both be the label"),
    ([{"photo": "0.jpg"}], "has no column of images: its columns are photo"),
    ([{"image": "9.jpg"}], "no row names an image of the source; the first is '9.jpg'"),
    ([{"image": "0.jpg", "age": 1, "target/age": 1}], "two columns for 'age'"),
    ([], "no column of images"),
    ([{"image": "5.jpg"}], r"row 1: image '5.jpg' fits b/5.jpg and c/5.jpg: write a"),
    ([{"image": 7}, {"image": "0.jpg"}], "row 1: image '7' lacks the zeros of c/007.jpg"),
    ([{"image": 1.0}], r"the first is '1.0'; .* read the column as texts"),
    ([{"image": "0.jpg", "labels": ["a", None]}], "row 1: labels .* is not a list of texts"),
    ([{"image": "0.jpg", "labels": [{"a": 1}]}], "row 1: labels .* is not a list of texts"),
    (
        [{"image": "0.jpg", "labels": "[a, b]"}],
        r'1: labels .* is not a list of texts, such as \["a"',
    ),
    ([{"image": "0.jpg", "label": "a", "split": ""}], "row 1: split '' is not train, validation"),
    (
        [{"image": f"{i}.jpg", "target/age": "unknown" if i else 3} for i in range(2)]
        + [{"image": "2.jpg", "target/age": 4}],
        "its target 'unknown' is not a",
    ),
]


@pytest.mark.parametrize(("rows", "what"), WRONG, ids=[what for _, what in WRONG])
def test_a_row_that_means_nothing_is_an_error_with_its_number(rows: Rows, what: str) -> None:
    with pytest.raises(ShardprepError, match=what):
        planned(rows, PHOTOS | {"c/007.jpg": jpeg(), "c/5.jpg": jpeg(seed=1)})


def test_the_flags_that_errors_advise_work() -> None:
    two = [{"image": f"{i}.jpg", "class": "xy"[i % 2], "breed": "z"} for i in range(4)]
    assert labels_of(planned(two, labels="column:class")) == WANTED
    both = [{"image": f"{i}.jpg", "label": "xy"[i % 2], "text": "z"} for i in range(4)]
    assert labels_of(planned(both, labels="column:label")) == WANTED
    held = [{**one, "split": "held"} for one in ROWS]
    assert planned(held, split="column:split:held=test").images == {"test": 4}
    masks = [{"image": "0.jpg", "other": "1.jpg"}]
    (item,) = items_of(planned(masks, target_image="paths:other")).values()
    assert [one.key for one in item.companions] == ["b/1.jpg"]


def test_the_split_that_a_misspelt_word_means_is_proposed_once_and_works_as_printed() -> None:
    words = ("train", "vallidation", "vallidation", "test")
    rows = [{"image": f"{i}.jpg", "split": word} for i, word in enumerate(words)]
    with pytest.raises(ShardprepError, match="'vallidation' is not train") as error:
        planned(rows)
    (value,) = re.findall(r"; --split (\S+) gives it a split", str(error.value))
    assert planned(rows, split=value).images == {"train": 1, "validation": 2, "test": 1}
    with pytest.raises(ShardprepError, match="which names no split") as error:
        planned(
            [{**row, "part": row["split"]} | {"split": "train"} for row in rows],
            split="column:part",
        )
    assert f"give it a split: --split {value.replace('split', 'part')} (" in str(error.value)
    held = [{"image": "0.jpg", "split": "held"}, {"image": "1.jpg", "split": "test"}]
    with pytest.raises(SourceError, match="--split column:split:held=SPLIT,test=test gives it"):
        planned(held)


@pytest.mark.parametrize("title", ["clas", "Finding Labels", "dog_breed"])
def test_a_column_that_may_be_the_label_is_a_question_if_nothing_is_labelled(title: str) -> None:
    rows = [{"image": f"{i}.jpg", "site": "s", title: "xy"[i % 2]} for i in range(4)]
    option = re.escape(str(OptionName("labels", f"column:{title}")))
    with pytest.raises(SourceError, match=f"'{title}' meant[?]; give {option}, or --labels none"):
        planned(rows)
    assert labels_of(planned(rows, labels=f"column:{title}")) == WANTED
    assert planned(rows, labels="none").labels == []
    assert planned([{**row, "label": "a"} for row in rows]).labels == ["a"]
    assert planned([{"image": row["image"], "site": "s", "patient": "p"} for row in rows]).images


def test_an_archive_has_no_absolute_paths() -> None:
    write(Path("set.zip"), zip_bytes(PHOTOS))
    for path in (str(Path("set.zip/a/0.jpg").resolve()), "/a/0.jpg", "../a/0.jpg"):
        with pytest.raises(SourceError, match="leads out of the source"):
            shardprep.build("set.zip", items=[{"image": path}], dry_run=True)


def test_a_picture_of_another_folder_is_not_proposed_for_its_name() -> None:
    write_folder(Path("disk B/scans"), PHOTOS)
    rows = [{"image": str(Path(f"disk B/scans/a/{name}.jpg").absolute())} for name in (0, 2)]
    remedy = "(?i)leads out of the source: name the source that holds it, or no source"
    with pytest.raises(SourceError, match=remedy):
        planned(rows, {f"scans/{name}.jpg": jpeg(seed=name) for name in (0, 2)})
    assert len(items_of(planned(rows, source="."))) == 2
    assert len(items_of(shardprep.build(items=rows, dry_run=True))) == 2
    gone = [{"image": "/other/scans/0.jpg"}]
    with pytest.raises(SourceError, match=r"leads out of the source: write scans/0\.jpg"):
        planned(gone)
    with pytest.raises(SourceError, match=r"leads out of the source: write 0\.jpg"):
        planned(gone, source="set/scans")
    with pytest.raises(SourceError, match="leads out of the source; correct these rows"):
        planned([{"image": "/other/0.jpg"}])


def test_a_folder_that_is_missing_is_named_once() -> None:
    rows = [one | {"image": f"set/{key}"} for one, key in zip(ROWS, WANTED, strict=True)]
    planned(ROWS)
    gone = [
        one | {"image": str(Path(one["image"].replace("set", "sat")).absolute())} for one in rows
    ]
    with pytest.raises(
        SourceError, match=r"no path of items exists, .* there is no folder '.*sat'"
    ):
        shardprep.build(items=gone, dry_run=True)
    typo = [one | {"image": one["image"].replace("set/a", "set/aa")} for one in rows]
    notes = " ".join(planned(typo).plan.findings)
    assert "2 of 4 entries (50%) fit no image" in notes
    assert "; no image is in their folder set/aa" in notes
    assert "nearest key" not in notes
    one_name = [*rows[1:], rows[0] | {"image": "set/a/77.jpg"}, rows[0] | {"image": "set/a/78.jpg"}]
    assert "in their folder" not in " ".join(planned(one_name).plan.findings)


def test_a_named_index_of_pandas_is_a_column_and_an_unnamed_one_needs_a_reset() -> None:
    frame = pd.DataFrame(ROWS)
    for mixed in (frame, frame.assign(mixed=[1, *"bcdef"][: len(frame)])):
        named = planned(mixed.rename_axis("place"), columns="place")
        assert "place" in named.plan.schema.features
        of_images = planned(mixed.set_index("image"))
        assert of_images.images == planned(frame).images
        with pytest.raises(SourceError, match=r"has no column 'index'.* or frame.reset_index\(\)"):
            planned(mixed, columns="index")
        assert "index" in planned(mixed.reset_index(), columns="index").plan.schema.features


def test_the_origin_and_the_errors_of_labels_name_the_column_of_the_table() -> None:
    found = planned([{"image": f"{i}.jpg", "Class": "ab"[i % 2]} for i in range(6)])
    assert found.plan.labels_from == "items, column 'Class'"
    with pytest.raises(SourceError, match="fill Class, or name another column"):
        planned([{"image": f"{i}.jpg", "Class": ""} for i in range(6)])
    rows = [{"image": f"{i}.jpg", "Tags": ["a"]} for i in range(6)]
    assert "column 'Tags' of items has the labels" in planned(rows).plan.findings


def test_equal_rows_of_an_image_are_to_be_dropped() -> None:
    frame = pd.DataFrame([*ROWS, ROWS[1]])
    with pytest.raises(SourceError, match=r"are equal: .* \(frame\.drop_duplicates\('image'\)\)"):
        planned(frame)
    assert labels_of(planned(frame.drop_duplicates("image"))) == WANTED
    with pytest.raises(SourceError, match="give each image one row, with lists"):
        planned([*ROWS, ROWS[1] | {"label": "z"}])


def test_five_wrong_rows_are_named_and_the_others_counted() -> None:
    rows = [{"image": f"../{i}.jpg"} for i in range(8)] + [{"image": "0.jpg"}]
    with pytest.raises(SourceError) as error:
        planned(rows)
    assert all(f"row {i}:" in str(error.value) for i in range(1, 6))
    assert "and 3 more rows" in str(error.value)
    first, *said, more, hint = error.value.lines
    assert (first, len(said), more) == ("items:", 5, "  and 3 more rows")
    assert all(row.startswith(f"  row {i}: ") for i, row in enumerate(said, 1))
    assert hint == f"{error.value.hint.capitalize()}."


@pytest.mark.parametrize(
    "cells",
    [
        {}, {"label": "x"}, {"labels": ["x"]}, {"text": "a b"}, {"boxes": [[1, 2, 30, 40]]},
        {"boxes": [[1, 2, 30, 40]], "label": "x"}, {"points": [[1, 2]]}, {"target/age": 3},
        {"mask": "m/x.png"}, {"target_image": "a/2.jpg"},
    ],
    ids=" ".join,
)  # fmt: skip
def test_rows_without_an_image_are_counted_once_and_named(cells: dict[str, Any]) -> None:
    write_folder(Path("set"), PHOTOS | {"m/x.png": _mask()})
    rows = [{"image": f"{name}.jpg", **cells} for name in ("0", "98", "99", "99")]
    found = planned(rows)
    assert list(found.plan.rows_without_image) == ["98.jpg", "99.jpg", "99.jpg"]
    assert found.num_rows_without_image == 3
    if "boxes" in cells:
        built = shardprep.build("set", "built", items=rows, size=16, workers=1).manifest.labels
        assert built.rows_without_image == ("98.jpg", "99.jpg", "99.jpg")
        assert built.num_rows_without_image == 3
        write(Path("items.jsonl"), "\n".join(map(json.dumps, rows)).encode())
        (note,) = shardprep.init("set", items="items.jsonl").findings
        start = "warning: items.jsonl: 3 of 4 entries (75%) fit no image, such as 98.jpg, 99.jpg"
        assert note.startswith(start)


def test_a_row_of_an_excluded_image_is_not_without_an_image() -> None:
    rows = [{"image": f"{i}.jpg", "boxes": [[1, 2, 30, 40]]} for i in (0, 1, 99)]
    found = planned(rows, exclude="b/*")
    assert found.plan.rows_without_image == ("99.jpg",)
    assert "1 row is of images that are left out: b/1.jpg" in found.plan.findings


def test_a_sample_without_one_of_its_images_is_left_out() -> None:
    names = [("0", "a"), ("97", "b"), ("1", "c"), ("98", "b"), ("3", "d"), ("2", "d"), ("99", "d")]
    rows = [
        {"image": f"{i}.jpg", "sample": one, "order": -int(i), "label": one} for i, one in names
    ]
    found = planned(rows)
    assert labels_of(found) == {"a": "a", "c": "c"}
    assert found.labels == ["a", "b", "c", "d"]  # as in the table
    assert found.skipped == {
        "an image of the sample is missing": 1,  # of d; the source has nothing of b
        "not in the table of items": 2,
    }
    assert [*found.plan.rows_without_image] == ["b: 98.jpg", "b: 97.jpg", "d: 99.jpg"]
    with pytest.raises(
        SourceError, match=r"every sample has a missing image, such as d: 99.jpg; correct"
    ):
        planned([row for row in rows if row["sample"] in ("b", "d")])


def test_archives_are_not_opened_if_all_paths_are_files() -> None:
    write_folder(
        Path("set"), {**PHOTOS, "a/bad.zip": b"PK\3\4" * 99, "8.001": jpeg(), "b.zip.002": b"PK"}
    )
    write(Path("set/good.zip"), zip_bytes({"7.jpg": jpeg()}))
    write(Path("set/tables/items.csv"), b"image,label\n../a/0.jpg,x\n../8.001,y\n")
    rows = [
        {"image": str(Path("set").resolve() / key), "label": one}
        for key, one in {**WANTED, "8.001": "x"}.items()
    ]
    skipped = {"not in the table of items": 5 + 3, "not an image": 1}
    found = shardprep.build(items="set/tables/items.csv", dry_run=True)
    assert (found.images, found.skipped) == ({"train": 2}, skipped)
    found = shardprep.build(items=rows, dry_run=True)
    assert (found.images, found.skipped) == ({"train": 5}, {"not in the table of items": 2 + 3})
    with pytest.raises(SourceError, match="is truncated"):
        planned([{"image": "0.jpg"}, {"image": "7.jpg"}])
    Path("set/a/bad.zip").unlink()
    Path("set/b.zip.002").unlink()
    assert planned([{"image": "a/0.jpg"}, {"image": "7.jpg"}]).images == {"train": 2}


@pytest.mark.parametrize("is_linked", [False, True])
def test_without_a_source_only_folders_with_files_of_the_table_are_read(*, is_linked: bool) -> None:
    """Nothing else below the common folder is an input, or may change while it is read."""
    write_folder(Path("top"), {f"sets/one/{key}": image for key, image in PHOTOS.items()})
    write_folder(Path("top"), {f"masks/{i}.png": _mask() for i in range(3)})
    write_folder(Path("top"), {f"other/{i}.jpg": jpeg(seed=i) for i in range(9)})
    write_folder(Path("top/sets/x"), {"bad.zip": b"PK\3\4" * 99, "bad.npy": b"NUMPY"})
    top = Path("top").resolve()
    folder = top / "sets/one"
    if is_linked:
        (top / "link").symlink_to(folder)
        folder = top / "link"
    rows = [
        {"image": f"{folder}/{key}", "mask": f"{top}/masks/{i}.png"}
        for i, key in enumerate([*PHOTOS][:3])
    ]
    (top / "sets/far").symlink_to("/")
    write(Path("out.txt"), b"2\n")
    found = shardprep.build(items=rows, dry_run=True, exclude_list="out.txt")
    assert {*items_of(found)} == {f"sets/one/{key}" for key in [*PHOTOS][:2]}
    skipped = {one.key for one in found.plan.skipped}
    assert skipped == {"masks/2.png", *(f"sets/one/{key}" for key in [*PHOTOS][2:])}
    recipe = make_recipe({"source": str(top), "items": _csv(rows)}, "")
    before = source_signature(recipe)
    write(top / "notes.txt", b"a log of another program")
    write(top / "new/1.jpg", jpeg())
    assert source_signature(recipe) == before
    write(top / "masks/9.jpg", jpeg())
    assert source_signature(recipe) != before
    shutil.rmtree(top / "sets/x")
    counted = planned(rows, source=top.parent).skipped["not in the table of items"]
    assert counted == 3 + 9 + len(["new/1.jpg", "masks/9.jpg"]) + len(PHOTOS)


def test_a_first_column_without_a_title_has_the_images_if_it_names_some() -> None:
    rows = b"0.jpg 1 -1\n1.jpg 1 1\n2.jpg -1 -1\n"
    write(Path("faces.txt"), b"3\nBald Smiling\n" + rows)
    found = planned("faces.txt", labels="column:Bald")
    assert labels_of(found) == {"a/0.jpg": "1", "b/1.jpg": "1", "a/2.jpg": "-1"}
    assert found.plan.columns == ("Smiling",)
    assert "column '1' of faces.txt is the image" in found.plan.findings
    write(Path("bare.txt"), rows)
    with pytest.raises(SourceError, match="no column of images: its columns are 1, 2"):
        planned("bare.txt")
    assert shardprep.build("set", labels="csv:bare.txt:1:2", dry_run=True).labels == ["-1", "1"]


def test_absolute_paths_of_no_file_are_an_error() -> None:
    rows = [{"image": "/here/0.jpg"}, {"image": "/there/1.jpg"}]
    with pytest.raises(ShardprepError, match="none of the paths exists on this machine; "):
        shardprep.build(items=rows, dry_run=True)


def test_a_frame_that_parquet_cannot_hold_is_read_by_its_values() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"image": ["0.jpg", "1.jpg"], "label": pandas.cut([1, 9], 2)})
    assert len(planned(frame).labels) == 2
    frame.columns = ["image", "image"]
    with pytest.raises(SourceError, match="has two columns 'image'"):
        planned(frame)


def test_a_value_that_is_no_table_is_refused() -> None:
    with pytest.raises(ShardprepError, match="items: a value of the type int is not a table"):
        planned(7)
    with pytest.raises(ShardprepError, match="labels: a value of the type int is not a table"):
        planned(ROWS, labels=7)
    with pytest.raises(ShardprepError, match="not a file on this machine"):
        planned("nothing.csv")


@pytest.mark.parametrize("options", [{"items": "t.xlsx"}, {"labels": "csv:t.xlsx:id:label"}])
def test_a_workbook_is_no_table(options: dict[str, Any]) -> None:
    write_folder(Path("set"), PHOTOS)
    write(Path("t.xlsx"), zip_bytes({"xl/workbook.xml": b"<x/>"}))
    with pytest.raises(SourceError, match="is a workbook or a zip, not a text; save it"):
        shardprep.build("set", dry_run=True, **options)


def test_a_column_of_paths_needs_items() -> None:
    write_folder(Path("set"), PHOTOS)
    with pytest.raises(ShardprepError, match="there are no items"):
        shardprep.build("set", masks="paths:mask", dry_run=True)


def test_a_dataset_is_of_the_same_rows_or_another_frame_is_said() -> None:
    write_folder(Path("set"), PHOTOS)
    first = shardprep.build("set", items=ROWS, workers=1, size=16)
    again = shardprep.build("set", items=[dict(row) for row in ROWS], workers=1, size=16)
    assert again.manifest.fingerprint == first.manifest.fingerprint
    other = [{**ROWS[0], "label": "y"}, *ROWS[1:]]
    with pytest.raises(BuildError, match=r"built with other items \(its content\); add"):
        shardprep.build("set", items=other, workers=1, size=16)
    with pytest.raises(BuildError, match=r"items \(a table of Python, now not given\)"):
        shardprep.build("set", labels="folder", workers=1, size=16)


def test_the_records_are_those_of_the_same_rules() -> None:
    write_folder(Path("set"), PHOTOS)
    rules = shardprep.build("set", "rules", labels="folder", workers=1, size=16)
    rows = [{"image": key, "label": key[0]} for key in PHOTOS]
    table = shardprep.build("set", "table", items=rows, workers=1, size=16)
    assert records(table.path) == records(rules.path)


def test_a_table_without_rows_is_an_error() -> None:
    with pytest.raises(SourceError, match="has no rows"):
        planned(pa.table({"image": pa.array([], pa.string()), "fold": pa.array([], pa.int64())}))


def test_folders_named_for_splits_say_nothing_of_items() -> None:
    members = {"train/0.jpg": jpeg(), "test/1.jpg": jpeg(seed=1)}
    assert planned([{"image": key, "label": "a"} for key in members], members).images == {
        "train": 2
    }


def test_texts_are_trimmed_and_a_text_is_one_class_of_a_list() -> None:
    rows = [
        {"image": "0.jpg", "labels": ["cat "]},
        {"image": "1.jpg", "labels": "golden retriever"},
    ]
    assert planned(rows).labels == ["cat", "golden retriever"]
    table = pa.table({"image": [" 0.jpg", "1.jpg"], "label": ["cat ", b"dog".decode()]})
    assert planned(table).labels == ["cat", "dog"]
    binary = pa.table({"image": ["0.jpg", "1.jpg"], "label": [b"cat", b"dog"]})
    assert planned(binary).labels == ["cat", "dog"]


def test_a_table_that_says_nothing_of_its_images_is_noted() -> None:
    found = planned([{"image": "0.jpg", "kind": "a"}])
    assert any("states no labels" in note and "kind" in note for note in found.plan.findings)
    rows = [{"image": f"{i}.jpg", "kind": "xy"[i % 2]} for i in range(4)]
    assert labels_of(planned(rows, labels="column:kind")) == WANTED


def test_a_row_of_a_csv_with_too_many_cells_is_an_error() -> None:
    write(Path("long.csv"), b"image,label\n0.jpg,golden retriever, large\n")
    with pytest.raises(SourceError, match="row 1 has 3 cells for 2 columns"):
        planned("long.csv")


def test_paths_from_the_folder_of_the_table_find_their_source() -> None:
    write_folder(Path("set"), PHOTOS)
    write(Path("tables/items.csv"), b"image,label\n../set/a/0.jpg,x\n../set/b/1.jpg,y\n")
    found = shardprep.build(items="tables/items.csv", dry_run=True)
    assert labels_of(found) == {"a/0.jpg": "x", "b/1.jpg": "y"}
    mixed = [{"image": "a/0.jpg"}, {"image": str(Path("set/b/1.jpg").resolve())}]
    with pytest.raises(ShardprepError, match="mixes absolute and relative paths"):
        shardprep.build(items=mixed, dry_run=True)


@pytest.mark.parametrize(
    "path",
    ["~/a.jpg", "$HOME/a.jpg", "file:///d/a.jpg", "s3://b/a.jpg", r"C:\d\a.jpg", r"..\a.jpg"],
)
def test_without_a_source_a_path_that_is_no_file_is_named_before_folders_are_read(
    path: str,
) -> None:
    write_folder(Path("d"), {"a.jpg": jpeg()})
    rows = [{"image": path, "label": "x"}]
    with pytest.raises(ShardprepError, match="neither relative nor starts with /") as error:
        shardprep.build(items=rows, dry_run=True)
    assert repr(path) in str(error.value)
    if not path.startswith(("C:", "..")):
        assert labels_of(shardprep.build("d", items=rows, dry_run=True)) == {"a.jpg": "x"}


def test_columns_without_a_meaning_are_stored_and_said() -> None:
    rows = [
        {**row, "fold": i, "Note": "x, y", "deep": [[1, 2]], "empty": None, "target_image/x": 1}
        for i, row in enumerate(ROWS)
    ]
    found = planned(rows)
    assert found.plan.columns == ("fold", "Note")
    notes = " ".join(found.plan.findings)
    assert "2 columns are stored: fold, Note; --columns fold stores 'fold' alone" in notes
    what = "deep (lists), empty (all cells are empty), target_image/x (the name of a feature"
    assert f"not stored: {what}" in notes
    one = planned([{**row, "length": i} for i, row in enumerate(ROWS)]).plan.findings
    assert "1 column is stored: column/length" in one
    assert planned(rows, columns="fold").plan.columns == ("fold",)
    assert planned(rows, labels="column:Note").plan.columns == ("fold",)
    write(Path("pandas.csv"), b",Unnamed: 0,image,label,age\n0,0,0.jpg,x,0.5\n1,1,1.jpg,y,\n")
    assert planned("pandas.csv").plan.columns == ("age",)
    boxes = [{"image": "0.jpg", "boxes": [[1, 2, 30, 40]], "height": 48, "width": 64, "dpi": 72}]
    assert planned(boxes).plan.columns == ("dpi",)


def test_a_label_is_one_class_unless_it_may_be_several() -> None:
    def rows(*cells: Any) -> Rows:
        return [{"image": f"{i}.jpg", "label": cell} for i, cell in enumerate(cells)]

    dogs = rows("golden retriever", "flat retriever", "golden", "pug")
    assert planned(dogs).plan.schema.labels == (
        "flat retriever",
        "golden",
        "golden retriever",
        "pug",
    )
    words = rows("hot", "dog", "hot dog")
    with pytest.raises(SourceError, match=r"row 3: label 'hot dog' is one class or several"):
        planned(words)
    assert planned(words, target="class").plan.schema.labels == ("dog", "hot", "hot dog")
    assert planned(words, separator=" ").plan.schema.labels == ("dog", "hot")
    several = rows("a", "b", "a;b", "a|b")
    with pytest.raises(SourceError, match=r"row 3: label 'a;b' is one class or several: give "):
        planned(several)
    assert planned(several, target="class").plan.schema.labels == ("a", "a;b", "a|b", "b")
    assert planned(several[:3], separator=";").plan.schema.labels == ("a", "b")


@pytest.mark.parametrize(
    ("labels", "is_said"),
    [
        ("1 cat dog bird", True),
        ("1 2 cat dog bird", False),
        ("cat dog bird", False),
        ("1 a b c d", False),
        ("1 cat", False),
    ],
)
def test_a_class_that_is_a_number_among_words_is_said(labels: str, *, is_said: bool) -> None:
    rows = [{"image": f"{i}.jpg", "label": x} for i, x in enumerate(labels.split())]
    note = "class '1' is a number among names such as 'bird'; "
    note += "--class-map 1=bird joins it with one, --null 1 makes it empty"
    assert (note in planned(rows).plan.findings) == is_said
    if is_said:
        joined = planned(rows, class_map="1=cat").plan.schema.labels
        assert {*joined} == {"cat", "dog", "bird"}
        assert planned(rows, null="1").plan.schema.labels == ("bird", "cat", "dog")


def test_titles_texts_and_classes_that_are_almost_others_are_said() -> None:
    rows = [
        {"image": f"{i}.jpg", "label": label, "gruop": i, "age": age}
        for i, (label, age) in enumerate([("Cat", 7), ("cat", 8), ("dog", "n/a"), ("dog", 9)])
    ]
    notes = " ".join(planned(rows).plan.findings)
    assert "2 columns are stored: gruop (is group meant?), age; " in notes
    assert (
        "column 'age' is text: 1 value is not a number, such as 'n/a'; --null n/a makes " in notes
    )
    assert "classes 'Cat' and 'cat' differ only in case; --class-map cat=Cat joins them" in notes
    both = planned(rows, null="n/a", class_map="cat=Cat")
    assert both.plan.schema.labels == ("Cat", "dog")
    assert not re.search("is text|differ", " ".join(both.plan.findings))
    known = [{**row, "group": "x"} for row in rows]
    assert "gruop, age;" in " ".join(planned(known).plan.findings)


@pytest.mark.parametrize(
    ("title", "meant"), [("lable", "label"), ("boxs", "boxes"), ("masks", "mask")]
)
def test_a_misspelt_target_is_an_error_unless_it_is_stored_or_another_is_stated(
    title: str, meant: str
) -> None:
    rows = [{"image": f"{i}.jpg", title: "a"} for i in range(4)]
    with pytest.raises(SourceError, match=f"states no {meant}: is '{title}' meant[?]; call it"):
        planned(rows)
    stored = planned(rows, labels="none").plan
    assert (stored.schema.labels, stored.columns) == ((), (title,))
    assert planned([{**row, "label": "x"} for row in rows]).labels == ["x"]


@pytest.mark.parametrize(
    ("labels", "what", "classes"),
    [
        (
            (3, 4, 4, "n/a"),
            "the numbers in column 'label' are classes: 1 value is not a number",
            "34",
        ),
        (("c", "NA", "d", "NA"), "class 'NA' of 2 images: if it means no label, --null NA", "cd"),
    ],
)
def test_a_label_that_may_mean_a_missing_one_is_said(
    labels: tuple[Any, ...], what: str, classes: str
) -> None:
    rows = [{"image": f"{i}.jpg", "label": one} for i, one in enumerate(labels)]
    assert any(one.startswith(what) for one in planned(rows).plan.findings)
    without = planned(rows, null=labels[3]).plan
    assert without.schema.labels == (*classes,)
    assert not any(one.startswith(what) for one in without.findings)


def test_a_text_among_fractions_is_refused_or_made_empty() -> None:
    photos = {f"{i}.jpg": jpeg(8, 8, seed=i) for i in range(30)}
    rows = [{"image": f"{i}.jpg", "label": i / 8} for i in range(29)]
    rows.append({"image": "29.jpg", "label": "bad"})
    Path(_csv(rows)).rename("labels.csv")
    what = r"--labels: are numbers, but 1 label is not, such as 'bad'; --null bad makes it empty, "
    for given in ({"items": rows}, {"labels": "csv:labels.csv:image:label"}):
        keys: dict[str, Any] = {**given, "dry_run": True}
        with pytest.raises(SourceError, match=what):
            shardprep.build(write_folder(Path("set"), photos), **keys)
        assert shardprep.build("set", **keys, null="bad").plan.schema.target == "target"
        assert len(shardprep.build("set", **keys, target="class").labels) == 30


def test_masks_of_numbers_beside_named_boxes_are_said_to_share_a_list() -> None:
    numbers = np.zeros((32, 48), np.uint8)
    numbers[4:20, 4:20] = 1
    numbers[22:30, 22:30] = 2
    write_folder(Path("set"), {**PHOTOS, "m.png": encoded(Image.fromarray(numbers), "PNG")})
    boxes = [[4, 4, 20, 20], [22, 22, 30, 30]]
    rows = [{"image": "0.jpg", "mask": "m.png", "boxes": boxes, "box_labels": ["cat", "dog"]}]
    both = planned(rows)
    what = "masks and objects have one list of classes: 0, 1, 2, cat, dog; --mask-values 0=NAME,1="
    assert any(one.startswith(what) for one in both.plan.findings)
    named = planned(rows, mask_values="0=background,1=cat,2=dog")
    assert named.plan.schema.annotation_labels == ("background", "cat", "dog")
    assert not any("one list" in one for one in named.plan.findings)


def test_decimal_commas_are_refused_as_labels() -> None:
    photos = {f"{i}.jpg": jpeg(8, 8, seed=i) for i in range(30)}
    rows = [{"image": f"{i}.jpg", "label": f"0,{637 + i}"} for i in range(30)]
    what = "--labels: '0,637' may be a number with a decimal comma, or several classes; write 0.637"
    with pytest.raises(SourceError, match=what):
        planned(rows, photos)
    assert len(planned(rows, target="class").labels) == 30
    assert planned(rows, target="multilabel").plan.schema.target == "labels"


def test_a_column_of_patients_that_ratios_may_divide_is_said() -> None:
    rows = [{"image": f"{i}.jpg", "label": "ab"[i % 2], "patient_id": i // 2} for i in range(6)]
    what = "images of one 'patient_id' may be in several splits; --group patient_id keeps them"
    cut = "validation=0.34"
    assert any(one.startswith(what) for one in planned(rows, split=cut).plan.findings)
    given = [{**row, "split": ("train", "test")[i % 2]} for i, row in enumerate(rows)]
    leak = "3 values of 'patient_id' in several splits, a leak"
    assert leak in planned(given).plan.findings
    apart = planned(rows, split=cut, group="patient_id").plan.findings
    assert not any(one.startswith(what) for one in [*apart, *planned(rows).plan.findings])


def test_whole_numbers_of_pandas_that_float32_would_change_are_int64() -> None:
    ids = [123_456_789.0, 123_456_790.0, float("nan")]
    rows = [{"image": f"{i}.jpg", "label": "a", "pid": one} for i, one in enumerate(ids)]
    plan = planned(_pandas(rows)).plan
    kinds = {name: one.dtype for name, one in plan.schema.features.items() if "pid" in name}
    assert kinds == {"pid": "int64", "pid/present": "int64"}
    assert sorted(item.columns[0] for item in items_of(planned(_pandas(rows))).values()) == [
        -1, 123_456_789, 123_456_790,
    ]  # fmt: skip
    small = _pandas([{**row, "pid": one // 1e6} for row, one in zip(rows, ids, strict=True)])
    assert planned(small).plan.schema.features["pid"].dtype == "float32"


def test_rows_that_name_a_folder_by_a_link_find_its_images() -> None:
    write_folder(Path("set"), {f"real/{key}": one for key, one in PHOTOS.items()})
    Path("set/a_link").symlink_to("real")
    for folder in ("real", "a_link"):
        rows = [{"image": f"{Path('set', folder).absolute()}/{key}"} for key in PHOTOS]
        found = planned(rows, labels="none")
        assert sorted(items_of(found)) == sorted(f"real/{key}" for key in PHOTOS)
        assert found.num_rows_without_image == 0


def test_an_index_of_pandas_is_never_the_id_of_labels(tmp_path: Path) -> None:
    """Its numbers name other images, if the rows were shuffled or taken from a larger frame."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [*"012pqr"], "label": [*"ababab"]}, index=[0, 1, 2, 3, 4, 5])
    frame = frame.sample(frac=1, random_state=0)
    write_folder(Path("set"), PHOTOS)
    frame.to_csv(tmp_path / "table.csv")
    for labels in (frame, f"csv:{tmp_path / 'table.csv'}"):
        found = shardprep.build("set", labels=labels, dry_run=True)
        named = {key.partition("/")[2]: one for key, one in labels_of(found).items()}
        assert named == {"0.jpg": "a", "1.jpg": "b", "2.jpg": "a"}
        assert found.num_rows_without_image == 3
    by_name = pandas.DataFrame({"label": [*"aba"]}, index=["0.jpg", "1.jpg", "2.jpg"])
    assert sorted(labels_of(shardprep.build("set", labels=by_name, dry_run=True)).values()) == [
        "a", "a", "b",
    ]  # fmt: skip


def test_a_recipe_without_items_is_not_for_a_table() -> None:
    """Its rule for labels and its source would replace those of the table."""
    write_folder(Path("set"), PHOTOS)
    shardprep.init("set")
    rows = [{"image": f"set/a/{2 * i}.jpg", "label": "xy"[i % 2]} for i in range(3)]
    with pytest.warns(UserWarning, match="toml is not used"):
        found = shardprep.build(items=rows, dry_run=True)
    assert [*labels_of(found).values()] == ["x", "y", "x"]
    seen = list[str]()
    shardprep.build("set", items=ROWS, dry_run=True, progress=lambda now: seen.append(now.notice))
    assert "warning: shardprep.toml is not used, because it does not set items" in seen


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, _pandas, _lines, _parquet])
def test_a_column_of_lists_is_stored_as_the_option_for_rows_stores_them(
    form: Callable[[Rows], Any],
) -> None:
    """The oracle is `--rows` with a table that has a row for each element."""
    lists: dict[str, list[Any]] = {"n": [3, None, 5], "x": [0.5, 1.0, 2.0], "t": ["a", "[b", ""]}
    counts = (3, 0, 1, 2)
    given = [
        {**row, **{title: several[:number] for title, several in lists.items()}}
        for row, number in zip(ROWS, counts, strict=True)
    ]
    lines = [
        ",".join((row["image"], *("" if one[i] is None else str(one[i]) for one in lists.values())))
        for row, number in zip(ROWS, counts, strict=True)
        for i in range(number)
    ]
    write_folder(Path("set"), PHOTOS)
    write(Path("set/rows.csv"), "\n".join(["image,n,x,t", *lines]).encode())
    options: dict[str, Any] = {"size": 16, "workers": 1}
    by_rule = shardprep.build("set", "rule", items=ROWS, rows="csv:rows.csv:image:n,x,t", **options)
    by_lists = shardprep.build("set", "lists", items=form(given), **options)
    assert records(by_lists.path) == records(by_rule.path)
    assert records(by_lists.path)["a/0.jpg"]["rows/n"] == [3, -1, 5]
    assert any("3 columns are stored: rows/n, rows/x, rows/t" in one for one in by_lists.notes)


def test_lists_are_chosen_by_columns_and_a_list_of_targets_is_a_vector() -> None:
    rows = [{**row, "a": [i, 0.5], "b": ["u"] * i, "c": i} for i, row in enumerate(ROWS)]
    assert planned(rows, columns="c,b").plan.columns == ("c", "rows/b")
    assert planned(rows, columns="c").plan.columns == ("c",)
    found = planned(rows, labels="column:a", target="vector")
    assert found.plan.schema.features["targets"].labels == ("a[0]", "a[1]")
    assert found.plan.columns == ("c", "rows/b")
    with pytest.raises(SourceError, match="has two columns for 'rows/a'"):
        planned([{**row, "rows/a": [1]} for row in rows])


def test_init_writes_a_recipe_for_a_table_that_builds_the_same() -> None:
    write_folder(Path("set"), PHOTOS)
    lines = [f"{i}.jpg,{'xy'[i % 2]},{('train', 'val')[i == 3]},{i}" for i in range(5)]
    write(Path("items.csv"), "\n".join(["image,label,split,fold", *lines]).encode())
    survey = shardprep.init("set", items="items.csv")
    assert survey.splits == {"train": 4, "validation": 1}
    assert survey.classes == {"x": 3, "y": 2}
    assert survey.skipped == {"not in the table of items": 1}
    text = Path("shardprep.toml").read_text()
    assert 'items = "items.csv"\n# It states labels, target, columns, split.\n' in text
    assert "# The table gives 4 train, 1 validation;" in text
    options: dict[str, Any] = {"size": 16, "workers": 1}
    by_recipe = shardprep.build(**options)
    Path("shardprep.toml").unlink()
    by_flags = shardprep.build("set", "flags", items="items.csv", **options)
    assert records(by_recipe.path) == records(by_flags.path)
    boxes = '{"image": "set/a/0.jpg", "boxes": [[1, 2, 30, 40]]}'
    write(Path("boxes.jsonl"), boxes.encode())
    assert shardprep.init(items="boxes.jsonl").source == "."
    assert 'fit = "pad"' in Path("shardprep.toml").read_text()


def test_a_dataset_names_no_folder_of_the_user_for_tables_that_are_values(tmp_path: Path) -> None:
    source = write(tmp_path / "s.zip", zip_bytes(animals(4)))
    labels = pd.DataFrame({"id": sorted(animals(4)), "label": ["a", "b", "a", "b"]})
    keys: dict[str, Any] = {"out": tmp_path / "out", "size": (16, 16), "workers": 1}
    made = shardprep.build(source, labels=labels, **keys)
    again = shardprep.repack(made.path, relabel=labels.iloc[:1], version="2.0.0", out=keys["out"])
    for result in (made, again):
        text = (result.path / "manifest.json").read_text()
        assert str(cache_root()) not in f"{text} {result!r}"
    assert made.manifest.labels.found_by == "the data frame, column 'label' by 'id'"


def test_lists_in_cells_of_a_frame_are_all_classes_of_an_image() -> None:
    source, keys = write(Path("s.zip"), zip_bytes(animals(4))), sorted(animals(4))
    kinds: tuple[Any, ...] = (list, tuple, np.array, list)
    made = list[Path]()
    for cells in (["a"], ["b", "a"]) * 2, (["b", "a"], ["b"]) * 2:
        frame = pd.DataFrame(
            {"key": keys, "labels": [kind(x) for kind, x in zip(kinds, cells, strict=True)]}
        )
        frame.assign(labels=[*map(json.dumps, cells)]).to_csv("file.csv", index=False)
        for labels in (frame, "csv:file.csv"):
            options: dict[str, Any] = {"out": f"out{len(made)}", "workers": 1}
            made.append(shardprep.build(source, labels=labels, size=16, **options).path)
            options["out"] += "r"
            made.append(shardprep.repack(made[0], relabel=labels, **options).path)
    first, second = records(made[0]), records(made[4])
    assert [records(path) for path in made] == [first] * 4 + [second] * 4
    assert first != second


@pytest.mark.parametrize("option", ["labels", "relabel"])
def test_a_frame_without_a_clear_label_is_an_error_without_a_file(option: str) -> None:
    source, keys = write(Path("s.zip"), zip_bytes(animals(2))), sorted(animals(2))
    options: dict[str, Any] = {"labels": "prefix", option: pd.DataFrame({"key": keys})}
    with pytest.raises(SourceError) as caught:
        shardprep.build(source, dry_run=True, **options)
    what = "it is not clear which column is the label: only key; call the column label"
    assert str(caught.value) == f"the data frame: {what}"


BOX = [[1, 2, 30, 40]]
PRINTED: dict[str, list[Any]] = {
    "labels": [["a", "b"], ("a", "b"), np.array(["a", "b"]), ["a", None]],
    "label": [["a", "b"], ("a", "b")],
    "category": [np.array(["a", "b"])],
    "texts": [["a", "b's"]],
    "boxes": [[(1, 2, 30, 40)], [np.array([1, 2, 30, 40])]],
    "box_labels": [["a"]],
    "segmentation": [[{"size": [48, 64], "counts": "abc"}]],
    "mask": [["1.jpg"]],
    "points": [[[1, 2], None], {"left_eye": [1, 2]}],
    "target/age": [np.array([1.5, 2.0])],
}


@pytest.mark.parametrize("title", PRINTED)
def test_a_list_that_pandas_wrote_to_a_csv_is_refused_with_the_way_to_write_it(title: str) -> None:
    """A list of one text was lost beside one box, and a vector was a class."""
    for value in PRINTED[title]:
        beside = {} if title == "boxes" else {"boxes": "[[1, 2, 30, 40]]"}
        frame = pd.DataFrame([{"image": "0.jpg", title: value, **beside}])
        frame.to_csv("printed.csv", index=False)
        for items, hint in (
            ("printed.csv", "write lists as JSON (json.dumps), or save the table as Parquet"),
            (pd.read_csv("printed.csv"), "give lists instead of texts"),
        ):
            with pytest.raises(SourceError, match=rf"row 1: {title} .* is not JSON; ") as caught:
                planned(items)
            assert str(caught.value).endswith(hint)


def test_lists_of_numpy_of_several_lines_are_refused_with_the_way_to_write_them() -> None:
    frame = pd.DataFrame([{"image": "0.jpg", "boxes": np.array(BOX * 2)}])
    frame.to_csv("printed.csv", index=False)
    with pytest.raises(
        SourceError, match=r"a quote opens .*; write lists as JSON .json.dumps., or"
    ):
        planned("printed.csv")


SEVERAL: dict[str, list[Any]] = {
    "Python": [["a", "b"]], "NumPy": [np.array(["a", "b"])], "tuple": [("a", "b")], "int": [[1, 2]],
}  # fmt: skip


@pytest.mark.parametrize("form", SEVERAL)
def test_a_printed_list_in_a_table_of_labels_is_a_question(form: str) -> None:
    source, keys = write_folder(Path("set"), PHOTOS), sorted(PHOTOS)
    frame = pd.DataFrame({"id": keys, "label": SEVERAL[form] * len(keys)})
    frame.to_csv("labels.csv", index=False)
    for labels in ("csv:labels.csv", pd.read_csv("labels.csv")):
        with pytest.raises(SourceError, match="one class or several; write lists as JSON, such as"):
            shardprep.build(source, labels=labels, dry_run=True)
        made = shardprep.build(source, labels=labels, target="class", dry_run=True)
        assert len(made.labels) == 1
    intervals = frame.assign(label=pd.cut(range(6), 2))
    assert len(shardprep.build(source, labels=intervals, dry_run=True).labels) == 2


def test_durations_and_periods_are_texts_and_not_numbers_without_a_unit() -> None:
    frame = pd.DataFrame(ROWS).assign(
        long=pd.to_timedelta([90] * 4, unit="s"),
        month=pd.period_range("2024-01", periods=4, freq="M"),
    )
    for items, long in ((frame, "0 days 00:01:30"), (frame.drop(columns="month"), "0:01:30")):
        found = items_of(planned(items))["a/0.jpg"].columns
        assert found == (long, "2024-01")[: len(items.columns) - 3]
    frame.drop(columns="month").to_parquet("items.parquet")
    assert items_of(planned("items.parquet"))["a/0.jpg"].columns == ("0:01:30",)


def test_a_dict_of_labels_is_a_table() -> None:
    source = write_folder(Path("set"), PHOTOS)
    for values in ([0, 1], [np.int64(0), np.int64(1)], [False, True], [*"xy"]):
        labels: Any = {Path(key).stem: values[at % 2] for at, key in enumerate(WANTED)}
        made = shardprep.build(source, labels=labels, dry_run=True)
        wanted = {key: str(values[at % 2]).lower() for at, key in enumerate(WANTED)}
        assert labels_of(made) == wanted


def test_frames_with_views_and_categories_of_arrow_are_tables_of_every_option() -> None:
    """Polars gives such columns, which CSV and Parquet cannot hold."""
    keys = pa.array(WANTED, pa.string_view())
    codes = pa.array([0, 1, 0, 1], pa.uint32())
    names = pa.DictionaryArray.from_arrays(codes, pa.array(["x", "y"], pa.string_view()))
    for label in (names, pa.array([*"xyxy"], pa.string_view())):
        frame = SimpleNamespace(
            __arrow_c_stream__=pa.table({"id": keys, "label": label}).__arrow_c_stream__
        )
        assert labels_of(planned(frame)) == labels_of(
            planned(pa.table({"id": keys, "label": label}))
        )
        made = shardprep.build("set", labels=frame, dry_run=True)
        assert labels_of(made) == {key: WANTED[key] for key in WANTED}


@pytest.mark.parametrize(("form", "by"), [(_pandas, "frame.groupby"), (_csv, "JSON")])
def test_a_table_with_a_row_for_each_box_is_told_to_use_lists(
    form: Callable[[Rows], Any], by: str
) -> None:
    rows = [{"image": "0.jpg", "label": "x", "xmin": i} for i in range(2)]
    with pytest.raises(SourceError, match=r"row 2: image '0.jpg' is in row 1 too; ") as caught:
        planned(form(rows))
    hint = f"give each image one row, with lists of its boxes or labels ({by})"
    assert hint in str(caught.value)
    assert "csv:FILE:ID:BOX:LABEL" in str(caught.value)
    write(Path("b.csv"), b"image,name,a,b,c,d\n0.jpg,x,1,1,4,4\n0.jpg,y,2,2,5,5\n1.jpg,x,0,0,3,3\n")
    found = shardprep.build("set", boxes="csv:b.csv:image:xyxy(a,b,c,d):name", dry_run=True)
    assert found.num_objects == {"x": 2, "y": 1}


def test_bytes_of_images_are_no_paths() -> None:
    for rows in ([{"image": jpeg()}], pd.DataFrame([{"image": jpeg()}])):
        with pytest.raises(SourceError, match="column 'image' has bytes, not paths; give the pat"):
            planned(rows)


@pytest.mark.parametrize("option", ["items", "labels", "relabel"])
def test_rows_that_are_no_dicts_are_refused_by_number(option: str) -> None:
    source = write_folder(Path("set"), PHOTOS)
    given: dict[str, Any] = {"labels": "folder", option: [{"id": "0"}, ("1", "x")]}
    with pytest.raises(ShardprepError, match="row 2 is not a dict; give a data frame or a list of"):
        shardprep.build(source, dry_run=True, **given)


def test_a_list_of_numbers_in_a_target_is_a_vector_in_every_file() -> None:
    rows = [{"image": f"{i}.jpg", "target/at": [i, 0.5]} for i in range(4)]
    texts = [row | {"target/at": json.dumps(row["target/at"])} for row in rows]
    forms: tuple[Any, ...] = (
        rows,
        pd.DataFrame(rows),
        pd.DataFrame(texts),
        _lines(rows),
        _parquet(rows),
    )
    pd.DataFrame(texts).to_csv("items.csv", index=False)
    for form in (*forms, "items.csv"):
        targets = {key: item.target.numbers for key, item in items_of(planned(form)).items()}
        assert targets == {key: (float(Path(key).stem), 0.5) for key in WANTED}
    for wrong in (["a"], [True], [1, None]):
        with pytest.raises(SourceError, match=r"target/at .* is neither a single value nor a list"):
            planned([*rows, {"image": "4.jpg", "target/at": wrong}])


def test_numbers_of_any_length_are_cells_and_other_values_are_named() -> None:
    """As in a CSV, whole numbers of more than 18 digits are stored as text."""
    rows: Rows = [row | {"age": 10**20 + i} for i, row in enumerate(ROWS)]
    for items in (rows, pd.DataFrame(rows), pd.DataFrame(rows).to_dict("list")):
        found = planned(items, columns="age")
        assert found.plan.schema.features["age"].kind == "text"
    for age in (10**5000, {(1, 2): 3}):
        with pytest.raises(ShardprepError, match=f"items: row 2: age .{type(age).__name__}. can"):
            planned([ROWS[0], ROWS[1] | {"age": age}])


def _of_pandas(frame: pd.DataFrame) -> str:
    frame.to_csv("out.csv")
    return "out.csv"


IDS: dict[str, Callable[[list[str]], Any]] = {
    "a list": list,
    "a set": set,
    "a series": pd.Series,
    "an array": np.array,
    "a frame": lambda ids: pd.DataFrame({"fold": range(len(ids)), "id": ids}),
    "a CSV of pandas": lambda ids: _of_pandas(pd.DataFrame({"id": ids, "label": "x"})),
    "a CSV of pandas with another title": lambda ids: _of_pandas(pd.DataFrame({"bad": ids})),
    "a frame of paths": lambda ids: pd.DataFrame({"id": [*map(Path, ids)]}),
    "rows": lambda ids: [{"id": one, "why": "bad"} for one in ids],
    "rows of different keys": lambda ids: [
        {"id": ids[0], "why": "x"},
        *({"id": x} for x in ids[1:]),
    ],
    "JSON lines": lambda ids: write(
        Path("out.jsonl"), "\n".join(json.dumps({"id": one}) for one in ids).encode()
    ),
    "a path": lambda ids: write(Path("out.txt"), "\n".join(ids).encode()),
}


@pytest.mark.parametrize("form", IDS)
def test_an_exclude_list_may_be_any_form_of_ids(form: str) -> None:
    """Also if an index or another column has numbers that are names of images."""
    given = IDS[form](["3", "5"])
    found = planned([{"image": f"{i}.jpg"} for i in range(6)], exclude_list=given)
    assert {Path(key).stem for key in items_of(found)} == {"0", "1", "2", "4"}
    with pytest.raises(
        SourceError, match=r"none of its entries \(2\) fits an image; the first is 7"
    ):
        planned([{"image": "0.jpg"}], exclude_list=IDS[form](["77", "78"]))


def test_an_exclude_list_may_name_images_without_a_row() -> None:
    made = planned([{"image": "0.jpg"}], exclude_list=["3"])
    assert not [one for one in made.plan.findings if "fit no image" in one]
    write(Path("set/note.txt"), b"no image")
    with pytest.raises(SourceError, match=r"none of its entries \(1\) fits an image"):
        planned([{"image": "0.jpg"}], exclude_list=["note"])


def test_another_notation_of_boxes_and_paths_as_outlines_name_the_column_to_add() -> None:
    rows = [{"image": f"{i}.jpg", "boxes": [[20 + i, 20, 8, 6]]} for i in range(6)]
    with pytest.raises(SourceError, match="add a column box_format of 'xywh' to items, or write "):
        planned(rows)
    with pytest.raises(SourceError, match=r"has no outlines in path, but .*; write outlines"):
        planned([{"image": "0.jpg", "path": "m/0.png"}], masks="column:path")


def test_a_class_map_may_be_a_dict() -> None:
    assert planned(ROWS, class_map={"x": "a, b", "y": "z=1"}).labels == ["a, b", "z=1"]


@pytest.mark.parametrize("title", ["image_id", "image"])
@pytest.mark.parametrize("ids", ["as in the table", "keys"])
def test_a_table_joins_by_the_titles_and_cells_of_the_table_of_items(title: str, ids: str) -> None:
    """A joined table may be a file, a frame or rows, alone or in a list."""
    if title == "image_id" and ids == "keys":
        pytest.skip("the column `image_id` has no keys")
    rows = [{title: Path(key).stem, "category": name} for key, name in WANTED.items()]
    found = [key if ids == "keys" else Path(key).stem for key in WANTED]
    facts = pd.DataFrame({title: found, "age": range(len(found))})
    facts.to_csv("facts.csv", index=False)
    names = [{"category": "x", "title": "first"}, {"category": "y", "title": "second"}]
    source, keys = write_folder(Path("set"), PHOTOS), dict[str, Any](size="8x8", workers=1)
    first: tuple[Any, ...] = ("facts.csv", Path("facts.csv"), facts)
    for number, table in enumerate(first):
        made = shardprep.build(
            source, items=rows, join=[table, names], columns=["age", "title"],
            out=f"out{number}", **keys,
        )  # fmt: skip
        read = {
            row["key"]: (row["age"], row["title"]) for row in reader.table(made.path).to_pylist()
        }
        called = {"x": "first", "y": "second"}
        assert read == {key: (at, called[one]) for at, (key, one) in enumerate(WANTED.items())}
    alone: tuple[Any, ...] = (names, [names], pd.DataFrame(names), pa.Table.from_pylist(names))
    columns = [planned(rows, join=one, columns="title").plan.columns for one in alone]
    assert columns == [("title",)] * 4


FAULTS: dict[str, Rows] = {
    "row 2: image_id '0' is in row 1 too": [{"image_id": "0"}, {"image_id": "0"}],
    "row 1: image_id '' is empty": [{"image_id": ""}, {"image_id": "0"}],
    "row 1: category 'x|y' is one class or": [{"image_id": "0", "category": "x|y"}],
    "row 1: Boxes '[[1, 2]]' is not a list": [{"image_id": "0", "Boxes": [[1, 2]]}],
    "row 1: Split 'x' is not train, validation or test; --split column:Split:x=SPLIT gives it": [
        {"image_id": "0", "Split": "x"}
    ],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_message_has_the_titles_of_the_file(fault: str) -> None:
    with pytest.raises(SourceError, match=re.escape(f"items: {fault}")):
        planned(FAULTS[fault])


def test_a_column_of_items_is_found_by_its_title_in_the_file() -> None:
    rows = [{"image_id": f"{i}", "category": "xy"[i % 2], "Subset": "train"} for i in range(4)]
    made = planned(rows, columns="image_id,category")
    found = {key: item.columns for key, item in items_of(made).items()}
    assert found == {key: (int(Path(key).stem), name) for key, name in WANTED.items()}
    with pytest.raises(SourceError, match=r"column 'n'; use one of image_id, category, Subset$"):
        planned(rows, columns="n")


@pytest.mark.parametrize("form", [_pandas, _csv])
def test_a_joined_column_is_a_column_of_the_items(form: Callable[[Rows], Any]) -> None:
    """It has the role of its title, or is stored; the images are those of the items."""
    items = pd.DataFrame(
        {"image_id": range(4), "who": [*"pqpq"], "age": range(4), "hue": [*"uvuv"]}
    )
    facts = {"label": ["x", "y"], "split": ["train", "test"], "path": ["n/0", "n/1"], "n": [5, 6]}
    people = pd.DataFrame({"who": ["p", "q"], **facts})
    source, keys = write_folder(Path("set"), PHOTOS), dict[str, Any](size=16, workers=1)
    joined = form(
        [dict(zip(map(str, people), row, strict=True)) for row in people.to_numpy().tolist()]
    )
    one = shardprep.build(source, "one", items=items, join=joined, **keys)
    two = shardprep.build(source, "two", items=items.merge(people.drop(columns="path")), **keys)
    columns = [column for column in reader.table(one.path).column_names if column != "path"]
    assert {"n", "age", "hue", "who"} <= {*columns}
    assert reader.table(one.path).select(columns) == reader.table(two.path)
    assert one.manifest.splits.keys() == {"train", "test"}
    made = planned(items, join=joined, columns="n,hue")
    assert made.plan.columns == ("n", "hue")
    assert labels_of(made) == WANTED


def test_columns_of_items_are_stored_beside_a_table_of_labels() -> None:
    """Splits, groups and columns are of the items, and columns of both tables may be named."""
    rows = [{"image": f"{i}.jpg", "age": i, "split": ["train", "test"][i % 2]} for i in range(4)]
    labels = pd.DataFrame({"id": [*WANTED], "label": [*WANTED.values()], "site": [*"pqpq"]})
    made = planned(rows, labels=labels)
    assert (labels_of(made), made.images) == (WANTED, {"train": 2, "test": 2})
    assert made.plan.columns == ("age",)
    grouped = planned(rows, labels=labels, columns="site,age", group="site")
    found = {key: (item.group, item.columns) for key, item in items_of(grouped).items()}
    assert found == {key: ("pq"[at % 2], ("pq"[at % 2], at)) for at, key in enumerate(WANTED)}


def test_columns_of_items_are_found_beside_a_joined_table_of_the_source() -> None:
    """The joined table alone lacks the column, and is read before archives are opened."""
    people = {"people.csv": b"who,n\np,5\nq,6\n"}
    write_folder(Path("set"), people | {"photos.tar.gz": tar_bytes(PHOTOS, "gz")})
    items = [{"image": f"{i}.jpg", "label": "x", "who": "pq"[i % 2], "age": i} for i in range(4)]
    made = planned(items, join="people.csv", columns=["age", "n"])
    assert made.plan.columns == ("age", "n")


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        ([0, 1, None, 3], "row 3: order '' is not a number as in other rows"),
        (["first", 1, 2, 3], "row 1: order 'first' is not a number as in other rows"),
        (["a", "b", "", "c"], "row 3: order '' is empty"),
    ],
)
def test_a_place_in_a_stack_is_stated_for_each_of_its_images(order: list[Any], fault: str) -> None:
    rows = [{"image": f"{i}.jpg", "sample": "s", "order": one} for i, one in enumerate(order)]
    with pytest.raises(SourceError, match=re.escape(fault)):
        planned(rows)


@pytest.mark.parametrize(
    ("option", "value", "fault"),
    [
        ("items", {"image": ["0", "1"], "label": "cat"}, "items: 'label' is not a list"),
        ("items", {"image": ["0", "1"], "label": ["a"]}, "items: the lists of the dict have"),
        ("join", {"0": 3, "1": 4}, "join: '0' is not a list"),
        ("exclude_list", {"0": 1}, "exclude.list: '0' is not a list"),
    ],
)
def test_a_dict_that_is_no_table_is_an_error(option: str, value: Any, fault: str) -> None:
    given: dict[str, Any] = {"items": ROWS, option: value}
    with pytest.raises(ShardprepError, match=f"(--)?{fault}"):
        shardprep.build(write_folder(Path("set"), PHOTOS), dry_run=True, **given)


def test_an_id_in_another_case_means_the_only_image_that_it_fits_and_a_note_says_so() -> None:
    write_folder(Path("set"), {f"img_{i:02}.jpg": jpeg(seed=i) for i in range(6)})
    rows = [{"image": f"{'IMG' if i < 1 else 'img'}_{i:02}", "label": "x"} for i in range(6)]
    notes = planned(rows).plan.findings
    what = "items: 1 id differs from the name of an image only in case, such as IMG_00 (img_00.jpg)"
    assert what in notes


def test_whole_numbers_that_pandas_writes_as_fractions_are_cells_of_a_split() -> None:
    rows = [{"image": f"{i}.jpg", "fold": float(i % 2), "x": None} for i in range(4)]
    found = planned(pd.DataFrame(rows), split="column:fold:0=validation,*=train")
    assert found.images == {"train": 2, "validation": 2}


def test_a_column_of_numbers_with_decimal_commas_is_said() -> None:
    rows = [{"image": f"{i}.jpg", "age": f"{i},5"} for i in range(4)]
    note = "column 'age' is text: values such as '0,5' have a decimal comma"
    assert note in planned(rows).plan.findings
    with pytest.raises(SourceError, match="its target '0,5' has a decimal comma; write "):
        planned(rows, labels="column:age", target="regression")


def test_joined_rows_that_contradict_each_other_are_an_error() -> None:
    items = [{"image": f"{i}.jpg", "label": "x", "who": f"p{i % 2}"} for i in range(4)]
    people = [{"who": "p0", "age": 7}, {"who": "p1", "age": 8}, {"who": "p0", "age": 9}]
    what = (
        "gives who 'p0' both '7' and '9' in column 'age' .rows 1 and 3.; give one row for each who"
    )
    with pytest.raises(SourceError, match=what):
        planned(items, join=people, columns="age")
    assert planned(items, join=[*people[:2], people[0]], columns="age").plan.columns == ("age",)
    with pytest.raises(SourceError, match="no cell of its column 'who', such as 'q', is in"):
        planned(items, join=[{"who": "q", "age": 7}], columns="age")
    both = [{"who": "p0", "label": "y", "age": 7}]
    with pytest.raises(SourceError, match="shares 2 columns with items: label, who; drop or"):
        planned(items, join=both, columns="age")
    with pytest.raises(SourceError, match="shares no column with items, which has image, label,"):
        planned(items, join=[{"age": 7}], columns="age")


def test_lists_and_brackets_in_a_column_of_labels_mean_what_the_target_says(tmp_path: Path) -> None:
    rows = [
        {"image": f"{i}.jpg", "tags": ["a", "b"][: 1 + i % 2], "caption": f"[Fig. {i}] a dog"}
        for i in range(3)
    ]
    write_folder(tmp_path / "s", {f"{i}.jpg": jpeg(seed=i) for i in range(3)})
    stored: dict[str, dict[str, Any]] = {}
    for labels, target in (("tags", "multilabel"), ("caption", "text")):
        options: dict[str, Any] = {"labels": f"column:{labels}", "target": target}
        made = shardprep.build(
            tmp_path / "s", tmp_path / labels, items=rows, size=8, workers=1, **options
        )
        every = reader.Dataset(made.path, "train", as_supervised=False)
        stored |= {f"{one['image/filename']}: {labels}": dict(one) for one in every}
    assert stored["1.jpg: tags"]["labels"].tolist() == [1, 1]
    assert stored["2.jpg: tags"]["labels"].tolist() == [1, 0]
    assert stored["1.jpg: caption"]["text"] == "[Fig. 1] a dog"


def test_splits_groups_and_columns_of_a_table_of_labels_count_beside_items(tmp_path: Path) -> None:
    members = {f"{i}.jpg": jpeg(seed=i) for i in range(6)}
    head = "id,label,Age,patient\n"
    parts = {"train": range(4), "test": range(4, 6)}
    for name, own in parts.items():
        lines = "".join(f"{i},{'ab'[i % 2]},{i},p{i // 2}\n" for i in own)
        members[f"{name}.csv"] = (head + lines).encode()
    write_folder(tmp_path / "s", members)
    made = shardprep.build(
        tmp_path / "s", tmp_path / "o", items=[{"image": f"{i}.jpg"} for i in range(6)],
        labels="csv:train.csv,test.csv:id:label", split="tables", columns="age",
        group="patient", size=8, workers=1,
    )  # fmt: skip
    rows = read_items(made.path / "items.parquet").to_pylist()
    assert {row["key"] for row in rows if row["split"] == "test"} == {"4.jpg", "5.jpg"}
    odd = head + "".join(f"{i % 6},a,1,p{i}\n" for i in range(12))
    (tmp_path / "s/train.csv").write_text(odd)
    with pytest.raises(SourceError, match="of an image have 'p0' and 'p6' in column 'patient'"):
        shardprep.build(
            tmp_path / "s", tmp_path / "p", items=[{"image": f"{i}.jpg"} for i in range(6)],
            labels="csv:train.csv:id:label", group="patient", size=8, workers=1,
        )  # fmt: skip


def test_a_joined_table_of_the_source_is_read_and_not_skipped(tmp_path: Path) -> None:
    members = {f"{i}.jpg": jpeg(seed=i) for i in range(2)}
    members["people.csv"] = b"person,age\nann,30\nbob,40\n"
    write_folder(tmp_path / "s", members)
    rows = [{"image": f"{i}.jpg", "person": ("ann", "bob")[i]} for i in range(2)]
    made = shardprep.build(
        tmp_path / "s", tmp_path / "o", items=rows, join="people.csv", size=8, workers=1
    )
    assert made.manifest.totals.skipped == {}


def test_an_id_that_fits_two_images_regardless_of_case_means_neither() -> None:
    members = {"img_1.jpg": jpeg(seed=1), "Img_1.jpg": jpeg(seed=2), "a.jpg": jpeg(seed=3)}
    source = write_folder(Path("lower"), members)
    what = r"IMG_1(.jpg)? \(Img_1.jpg differs only in case\)"
    write(Path("out.txt"), b"IMG_1.jpg\n")
    with pytest.raises(SourceError, match=what):
        shardprep.build(source, exclude_list="out.txt", dry_run=True)
    write(Path("labels.csv"), b"id,label\nIMG_1,x\n")
    with pytest.raises(SourceError, match=what):
        shardprep.build(source, labels="csv:labels.csv:id:label", dry_run=True)
    write(Path("out.txt"), b"other.jpg\n")
    with pytest.raises(SourceError, match=r"the first is other.jpg; write keys"):
        shardprep.build(source, exclude_list="out.txt", dry_run=True)
