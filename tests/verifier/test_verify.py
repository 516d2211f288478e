"""Every damage that a test makes must be a problem of `verify`."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image

from shardprep.dataset import example, tfrecord
from shardprep.dataset.item_table import COLUMNS
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.manifest import Manifest, load_manifest
from shardprep.errors import DatasetError
from shardprep.verifier.dataset import read_contents, side_by_side, verify_dataset
from shardprep.verifier.examples import ExampleCheck
from shardprep.verifier.problem import Problem, Verification
from shardprep.verifier.shard import ShardTask, check_shard
from tests.dataset.resigned import Signed
from tests.support.builders import Told, animals, build, jpeg, png, tree, write, zip_bytes
from tests.support.examples import examples, flipped

SHARD = "pets-train.tfrecord-{:05d}-of-00004"
FIRST, SECOND = SHARD.format(0), SHARD.format(1)
INDEX = f"index/{FIRST}.idx"


def verified(folder: Path, *, decode: bool = False, num_workers: int = 1) -> Verification:
    return verify_dataset(
        LocalFiles.at(folder), decode=decode, num_workers=num_workers, watcher=Told()
    )


def found(folder: Path, *, decode: bool = False) -> set[tuple[str, str]]:
    return {(problem.kind, problem.file) for problem in verified(folder, decode=decode).problems}


def named(folder: Path, kind: str, *, decode: bool = False) -> list[Problem]:
    return [p for p in verified(folder, decode=decode).problems if p.kind == kind]


@pytest.fixture(name="good", scope="module")
def _good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset with a rejected and two skipped inputs; nobody may change it."""
    place = tmp_path_factory.mktemp("good")
    odd = {"train/cat.99.jpg": b"<html>", "readme.txt": b"hello", "train/Thumbs.db": b"\xd0"}
    source = write(place / "pets.zip", zip_bytes({**animals(30), **odd}))
    return build(source, place / "out", labels="prefix", shards=4, size="32x32").path


@pytest.fixture(name="folder")
def _folder(good: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    return shutil.copytree(good, tmp_path / "pets" / "1.0.0")


def rows_of(folder: Path, shard: str) -> list[dict[str, Any]]:
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    return [row for row in rows if row["shard"] == shard and row["status"] == "written"]


def rewritten(
    folder: Path, shard: str, change: Callable[[int, dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Change the examples of a shard and sign everything again: only the records are wrong."""
    signed = Signed.read(folder)
    for number in range(len(signed.payloads[shard])):
        features = change(number, signed.features(shard, number))
        data = b"\xff" if features is None else example.encode(features)
        signed.payloads[shard][number] = data
    signed.write(folder)


# --- good datasets -----------------------------------------------------------------------------


def kinds() -> dict[str, tuple[dict[str, bytes], dict[str, Any]]]:
    images = {f"train/{i}.jpg": jpeg(seed=i) for i in range(8)} | {"test/99.jpg": jpeg(seed=99)}
    numbers = "id,age\n" + "".join(f"{i},{i / 7}\n" for i in range(8))
    several = "id,tags\n" + "".join(f"{i},{('a b', 'b', 'c a')[i % 3]}\n" for i in range(8))
    texts = "id,words\n" + "".join(f"{i},a dog of {i} years é\n" for i in range(8))
    mixed = animals(8) | {"train/cat.50.png": png(seed=5)}
    column = {"labels": "csv:t.csv:id:age", "target": "regression", "columns": "age"}
    return {
        "class": (animals(12), {}),
        "raw, one shard": (animals(8), {"format": "raw", "shards": 1}),
        "png, splits": (
            animals(20), {"format": "png", "split": "train=0.6,validation=0.2,test=0.2"},
        ),
        "keep": (mixed, {"format": "keep", "size": "none"}),
        "within": (animals(8), {"fit": "within"}),
        "none": (images, {"labels": "none"}),
        "regression": ({**images, "t.csv": numbers.encode()}, column),
        "multilabel": (
            {**images, "t.csv": several.encode()},
            {"labels": "csv:t.csv:id:tags", "target": "multilabel", "separator": " "},
        ),
        "text": (
            {**images, "t.csv": texts.encode()},
            {"labels": "csv:t.csv:id:words", "target": "text"},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("kind", kinds())
def test_a_good_dataset_has_no_problem(tmp_path: Path, kind: str) -> None:
    members, keys = kinds()[kind]
    source = write(tmp_path / "pets.zip", zip_bytes({**members, "notes.txt": b"hello"}))
    result = build(source, tmp_path / "out", **{"size": "32x32", "shards": 2, **keys})
    checked = verified(result.path, decode=True)
    assert checked.problems == ()
    assert checked.unknown == ()
    assert checked.num_records == result.manifest.totals.num_written
    assert checked.num_bytes == result.manifest.totals.num_bytes


def test_verify_reports_progress_and_changes_nothing(good: Path) -> None:
    """The dataset has a rejected and two skipped inputs, which are not problems."""
    assert load_manifest(good).totals.num_rejected == 1
    before, told = tree(good), Told()
    checked = verify_dataset(LocalFiles.at(good), decode=True, num_workers=1, watcher=told)
    assert checked.problems == ()
    assert told.done == sorted(told.done)
    assert told.total == told.done[-1] == checked.num_bytes
    assert tree(good) == before


def test_workers_report_the_same_problems_as_one_process(folder: Path) -> None:
    write(folder / FIRST, flipped((folder / FIRST).read_bytes(), 8000))
    write(folder / SECOND, (folder / SECOND).read_bytes()[:100])
    contents = read_contents(LocalFiles.at(folder))
    documents = contents.documents
    check = ExampleCheck(documents.schema, decode=True)
    tasks = [
        ShardTask(file, documents.shards[name], documents.rows[name], None, check)
        for name, file in contents.shards.items()
    ]
    told = Told()
    side = side_by_side(tasks, 2, told)
    assert side == [check_shard(task) for task in tasks]
    assert any(report.problems for report in side)
    assert told.done[-1] == sum(report.num_bytes for report in side)


def test_a_killed_worker_is_one_line_and_no_hang(folder: Path) -> None:
    """A task whose unpickling ends its process, as the system ends one that takes too much."""
    with pytest.raises(DatasetError, match=r"was killed; free some memory"):
        side_by_side([Deadly(folder / FIRST)] * 3, 2, Told())  # type: ignore[list-item]


class Deadly:
    """Ends the process that receives it."""

    def __init__(self, path: Path) -> None:
        self.folder = str(path.parent)

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (9,)


# --- shards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["length", "length crc", "data", "data crc"])
def test_a_flipped_bit_is_named_by_record_offset_and_key(folder: Path, place: str) -> None:
    row = rows_of(folder, FIRST)[3]
    start, end = row["offset"], row["offset"] + row["length"]
    at = {"length": start, "length crc": start + 9, "data": start + 99, "data crc": end - 1}[place]
    write(folder / FIRST, flipped((folder / FIRST).read_bytes(), at * 8 + 5))
    (problem,) = named(folder, "damaged")
    assert (problem.file, problem.record, problem.offset) == (FIRST, 3, start)
    assert problem.key == row["key"]
    assert found(folder) == {("damaged", FIRST), ("hash", FIRST)}


def test_every_damaged_record_of_a_shard_is_named(folder: Path) -> None:
    rows = rows_of(folder, FIRST)
    data = (folder / FIRST).read_bytes()
    for number in (0, 2, 3, len(rows) - 1):
        data = flipped(data, (rows[number]["offset"] + number) * 8)
    write(folder / FIRST, data)
    assert [problem.record for problem in named(folder, "damaged")] == [0, 2, 3, len(rows) - 1]


@pytest.mark.parametrize("number", [0, 1, 4])
@pytest.mark.parametrize("more", [0, 40])
def test_a_cut_names_every_lost_record(folder: Path, number: int, more: int) -> None:
    """Nothing more: exactly between two records, which no checksum sees."""
    rows = rows_of(folder, FIRST)
    data = (folder / FIRST).read_bytes()
    write(folder / FIRST, data[: rows[number]["offset"] + more])
    cut = named(folder, "cut")
    assert [(p.record, p.offset, p.key) for p in cut] == [
        (row["record"], row["offset"], row["key"]) for row in rows[number:]
    ]
    assert ("size", FIRST) in found(folder)


EDITS: dict[str, tuple[Callable[[bytes, list[int]], bytes], str, int | None, str]] = {
    "a record removed": (lambda d, at: d[: at[2]] + d[at[3] :], "damaged", 2, "is gone"),
    "bytes removed": (lambda d, at: d[: at[2] + 60] + d[at[2] + 63 :], "damaged", 2, ""),
    "bytes added": (lambda d, at: d[: at[2] + 60] + bytes(7) + d[at[2] + 60 :], "damaged", 2, ""),
    "bytes added between records": (
        lambda d, at: d[: at[2]] + b"between" + d[at[2] :],
        "damaged", None, "bytes that do not belong to a record",
    ),
    "two records swapped": (
        lambda d, at: d[: at[1]] + d[at[2] : at[3]] + d[at[1] : at[2]] + d[at[3] :], "items", 1, "",
    ),
}  # fmt: skip
"""Change of a shard with records at given offsets → kind, record and words of the only problem."""


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_shard_has_one_wrong_record(folder: Path, edit: str) -> None:
    change, kind, number, words = EDITS[edit]
    rows, data = rows_of(folder, FIRST), (folder / FIRST).read_bytes()
    write(folder / FIRST, change(data, [row["offset"] for row in rows]))
    (problem,) = named(folder, kind)
    key = "" if number is None else rows[number]["key"]
    assert (problem.record, problem.key) == (number, key)
    assert words in problem.what
    if number is None:
        assert problem.offset == rows[2]["offset"]


def test_an_extra_shard_is_named(folder: Path) -> None:
    write(folder / "pets-train.tfrecord-00004-of-00005", tfrecord.frame(b""))
    assert ("extra", "pets-train.tfrecord-00004-of-00005") in found(folder)
    (folder / FIRST).rename(folder / f"{FIRST}.bak")
    assert {("missing", FIRST), ("extra", f"{FIRST}.bak")} <= found(folder)


@pytest.mark.parametrize(
    ("name", "leads_to"),
    [
        (FIRST, "nowhere"),
        *((name, "/proc/self/mem") for name in (FIRST, "items.parquet", "features.json", INDEX)),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder: Path, name: str, leads_to: str) -> None:
    """The system refuses to read the first bytes of a process's memory, as of a broken disk."""
    (folder / name).unlink()
    (folder / name).symlink_to(leads_to)
    assert found(folder) == {("unreadable", name)}


# --- records -----------------------------------------------------------------------------------


def _with(**change: Any) -> Callable[[int, dict[str, Any]], dict[str, Any] | None]:
    """Return a change of record 1 alone; None takes a feature away."""

    def changed(number: int, features: dict[str, Any]) -> dict[str, Any] | None:
        if number == 1:
            features |= {name.replace("__", "/"): value for name, value in change.items()}
        return {name: value for name, value in features.items() if value is not None}

    return changed


FAULTS: dict[str, tuple[Any, str, str]] = {
    "no example": (lambda number, f: None if number == 1 else f, "example", "serialized"),
    "a feature is gone": (_with(image__height=None), "example", "has no feature"),
    "a feature too many": (_with(extra=[1]), "example", "'extra'"),
    "a label of words": (_with(label=[b"cat"]), "example", "holds bytes"),
    "two labels": (_with(label=[0, 1]), "example", "2 values"),
    "no label": (_with(label=[]), "example", "0 values"),
    "a label too large": (_with(label=[2]), "label", "2 is not a class"),
    "a label below -1": (_with(label=[-2]), "label", "-2 is not a class"),
    "a wrong label": (_with(label=[-1]), "items", "items.parquet says"),
    "a key of no text": (_with(image__filename=[b"\xff"]), "example", "UTF-8"),
    "a wrong key": (_with(image__filename=[b"x.jpg"]), "items", "has the key 'x.jpg'"),
    "a wrong height": (_with(image__height=[31]), "example", "the schema says 32"),
    "an empty image": (_with(image=[b""]), "image", "is empty"),
    "no jpeg": (_with(image=[b"GIF89a"]), "image", "is not a JPEG"),
    "a png": (_with(image=[png(32, 32)]), "image", "is not a JPEG"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_example_that_breaks_the_schema_is_named(folder: Path, fault: str) -> None:
    change, kind, said = FAULTS[fault]
    rewritten(folder, FIRST, change)
    (problem,) = verified(folder).problems
    row = rows_of(folder, FIRST)[1]
    assert (problem.kind, problem.file, problem.record) == (kind, FIRST, 1)
    assert (problem.offset, problem.key) == (row["offset"], row["key"])
    assert said in problem.what


def test_a_rewritten_dataset_is_as_good_as_a_built_one(folder: Path) -> None:
    rewritten(folder, FIRST, _with(image=[jpeg(32, 32, seed=77)]))
    assert verified(folder, decode=True).problems == ()
    assert not tfds_refuses(folder)


GREY = io.BytesIO()
Image.new("L", (32, 32)).save(GREY, "JPEG")
PIXELS: dict[str, tuple[bytes, str]] = {
    "cut": (jpeg(32, 32)[:400], "does not decode"),
    "ended too early": (jpeg(32, 32)[:-120] + b"\xff\xd9", "does not decode"),
    "of another size": (jpeg(32, 31), "is 31x32 pixels"),
    "grey": (GREY.getvalue(), "of 1 channels"),
}


@pytest.mark.parametrize("case", PIXELS)
def test_decode_finds_an_image_that_does_not_match_the_schema(folder: Path, case: str) -> None:
    data, said = PIXELS[case]
    rewritten(folder, FIRST, _with(image=[data]))
    assert verified(folder).problems == ()
    (problem,) = verified(folder, decode=True).problems
    assert (problem.kind, problem.record) == ("image", 1)
    assert problem.key == rows_of(folder, FIRST)[1]["key"]
    assert said in problem.what


def test_decode_finds_a_png_with_a_wrong_checksum(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(6)))
    path = build(source, tmp_path / "out", size="32x32", format="png", shards=1).path
    shard = "pets-train.tfrecord-00000-of-00001"
    whole = png(32, 32)
    rewritten(path, shard, _with(image=[flipped(whole, 8 * (len(whole) - 14))]))
    assert verified(path).problems == ()
    assert [problem.record for problem in named(path, "image", decode=True)] == [1]


def test_raw_pixels_of_another_length_are_found_without_decoding(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(animals(6)))
    path = build(source, tmp_path / "out", size="8x8", format="raw", shards=1).path
    rewritten(path, "pets-train.tfrecord-00000-of-00001", _with(image=[b"\0" * 191]))
    (problem,) = verified(path).problems
    assert (problem.kind, problem.record) == ("image", 1)
    assert "191 bytes of pixels, 8x8 takes 192" in problem.what


# --- documents ---------------------------------------------------------------------------------


def edited(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    write(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())


@pytest.mark.parametrize(
    "name",
    ["schema.json", "items.parquet", "dataset_info.json", "features.json", "label.labels.txt",
     INDEX, "manifest.json"],
)  # fmt: skip
def test_a_missing_document_is_named_and_the_shards_are_checked_all_the_same(
    folder: Path, name: str
) -> None:
    write(folder / SECOND, flipped((folder / SECOND).read_bytes(), 9999))
    (folder / name).unlink()
    kinds_found = found(folder)
    assert ("missing", name) in kinds_found
    assert ("damaged", SECOND) in kinds_found


def test_a_missing_shard_is_found_by_the_numbers_of_the_others(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / SECOND).unlink()
    assert found(folder) == {("missing", "manifest.json"), ("missing", SECOND)}


def test_a_missing_index_of_a_damaged_shard_is_found_without_an_item_table(folder: Path) -> None:
    write(folder / FIRST, flipped((folder / FIRST).read_bytes(), 3))
    (folder / "items.parquet").unlink()
    (folder / INDEX).unlink()
    assert ("missing", INDEX) in found(folder)


def test_without_a_manifest_and_items_the_index_leads_to_the_records(folder: Path) -> None:
    rows = rows_of(folder, FIRST)
    (folder / "manifest.json").unlink()
    (folder / "items.parquet").unlink()
    write(folder / FIRST, flipped((folder / FIRST).read_bytes(), rows[2]["offset"] * 8))
    (problem,) = named(folder, "damaged")
    assert (problem.record, problem.offset) == (2, rows[2]["offset"])


def test_a_wrong_number_of_the_manifest_is_found_and_named(folder: Path) -> None:
    def change(document: Any) -> None:
        document["splits"]["train"]["shards"][0]["num_records"] += 1
        document["totals"]["num_copies"] = 5

    edited(folder / "manifest.json", change)
    said = " | ".join(problem.what for problem in verified(folder).problems)
    assert "its own SHA-256 differs" in said
    assert "splits.train.num_records is 30, but its shards have 31" in said
    assert "totals.num_copies is 5, not 0" in said
    assert ("count", FIRST) in found(folder)


def test_a_resealed_manifest_is_still_counted_against_the_rows(folder: Path) -> None:
    """Its own hash is right again: only the rows can tell."""
    document = json.loads((folder / "manifest.json").read_text())
    document["splits"]["train"]["label_counts"] = {"cat": 16, "dog": 14}
    write(folder / "manifest.json", Manifest.model_validate(document).dumps().encode())
    said = {problem.what for problem in verified(folder).problems}
    assert any("label_counts.cat is 16, not 15" in what for what in said)


def changed_rows(folder: Path, change: Callable[[list[dict[str, Any]]], Any]) -> None:
    rows = pq.read_table(folder / "items.parquet").to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), folder / "items.parquet")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("key", "other.jpg", "items.parquet says 'other.jpg'"),
        ("label", 1 << 40, "items.parquet says"),
        ("offset", 3, "bytes long in items.parquet"),
        ("length", 3, "bytes long in items.parquet"),
    ],
)
def test_a_row_that_disagrees_with_its_record_is_named(
    folder: Path, column: str, value: Any, said: str
) -> None:
    changed_rows(folder, lambda rows: rows[2].update({column: value}))
    problems = [p for p in named(folder, "items") if p.record == 2 and p.file == FIRST]
    assert any(said in problem.what for problem in problems)
    assert ("hash", "items.parquet") in found(folder)


def test_missing_rows_and_columns_are_problems(folder: Path) -> None:
    changed_rows(folder, lambda rows: rows.pop())
    said = " | ".join(problem.what for problem in named(folder, "items"))
    assert "totals.num_inputs is 33, not 32" in said
    table = pq.read_table(folder / "items.parquet")
    pq.write_table(table.drop_columns(["label"]), folder / "items.parquet")
    assert ("items", "items.parquet") in found(folder)


def test_an_index_that_lies_is_named_by_its_first_line(folder: Path) -> None:
    lines = (folder / INDEX).read_text().splitlines(keepends=True)
    lines[2] = "1 1\n"
    write(folder / INDEX, "".join(lines).encode())
    (problem,) = verified(folder).problems
    row = rows_of(folder, FIRST)[2]
    assert (problem.kind, problem.record, problem.offset) == ("index", 2, row["offset"])
    assert problem.key == row["key"]


def tfds_refuses(folder: Path) -> bool:
    """Ask TFDS itself to open the folder and to read every record of it."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(str(folder))
        for split in builder.info.splits:
            number = sum(1 for _ in builder.as_dataset(split))
            assert number == builder.info.splits[split].num_examples
    except Exception:
        return True
    return False


def _add_feature(document: Any) -> None:
    features = document["featuresDict"]["features"]
    features["more"] = features["image/height"]


TFDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an unknown key": ("dataset_info.json", lambda d: d.update(ours=1)),
    "a length of words": ("dataset_info.json", lambda d: d["splits"][0].update(shardLengths=["x"])),
    "a length too small": (
        "dataset_info.json",
        lambda d: d["splits"][0]["shardLengths"].__setitem__(0, "3"),
    ),
    "a template": ("dataset_info.json", lambda d: d["splits"][0].update(filepathTemplate="x")),
    "an unknown class": ("features.json", lambda d: d.update(pythonClassName="no.such.Class")),
    "a feature that is not there": ("features.json", _add_feature),
}


@pytest.mark.parametrize("case", TFDS)
def test_a_document_that_tfds_refuses_is_a_problem(folder: Path, case: str) -> None:
    name, change = TFDS[case]
    edited(folder / name, change)
    assert tfds_refuses(folder)
    assert found(folder) == {("tfds", name)}


def test_class_names_in_another_order_are_named(folder: Path) -> None:
    write(folder / "label.labels.txt", b"dog\ncat\n")
    assert [p.what for p in named(folder, "tfds")] == [
        "line 1 is 'dog', not 'cat'",
        "line 2 is 'cat', not 'dog'",
    ]


# --- all of it ---------------------------------------------------------------------------------


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bit_and_any_cut_of_any_file_is_found(
    folder: Path, good: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(tree(good))))
    whole = (good / name).read_bytes()
    if data.draw(st.booleans()):
        damaged = flipped(whole, data.draw(st.integers(0, 8 * len(whole) - 1)))
    else:
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    write(folder / name, damaged)
    try:
        assert name in {problem.file for problem in verified(folder).problems}
    finally:
        write(folder / name, whole)


def test_several_damages_are_all_found_in_one_run(folder: Path) -> None:
    write(folder / FIRST, flipped((folder / FIRST).read_bytes(), 8000))
    (folder / SECOND).unlink()
    third, fourth = SHARD.format(2), SHARD.format(3)
    write(folder / third, (folder / third).read_bytes()[:100])
    write(folder / f"index/{fourth}.idx", b"")
    write(folder / "label.labels.txt", b"cat\n")
    assert found(folder) >= {
        ("damaged", FIRST),
        ("missing", SECOND),
        ("cut", third),
        ("index", f"index/{fourth}.idx"),
        ("tfds", "label.labels.txt"),
    }


def test_unknown_files_are_listed_and_are_not_problems(folder: Path) -> None:
    write(folder / "notes.txt", b"mine")
    write(folder / f".{FIRST}.tmp", b"left")
    (folder.parent / "1.0.0.old").mkdir()
    checked = verified(folder)
    assert checked.problems == ()
    assert checked.unknown == (f".{FIRST}.tmp", "notes.txt", "../1.0.0.old")


def test_an_unfinished_build_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pets" / "1.0.0.incomplete").mkdir(parents=True)
    with pytest.raises(DatasetError, match="not finished; run the same `shardprep build` again"):
        verified(tmp_path / "pets" / "1.0.0.incomplete")
