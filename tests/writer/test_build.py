import hashlib
import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import BuildError, BusyError, RecipeError, SourceError
from shardprep.reader import Dataset
from shardprep.recipe.recipe import make_recipe
from shardprep.storage.lock import locked
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Workers
from shardprep.writer.engine.pool import write_shards
from shardprep.writer.finalize import TooManyRejectedError
from shardprep.writer.plan.fingerprint import make_fingerprint
from tests.support.builders import (
    Quiet,
    StopAfter,
    StoppedError,
    animals,
    build,
    build_part,
    by_chunks,
    encoded,
    finalize,
    in_process,
    in_workers,
    jpeg,
    pixels,
    tree,
    write,
    write_folder,
    zip_bytes,
)

KEYS: dict[str, Any] = {"shards": 4, "size": "32x32", "format": "png"}


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write(tmp_path / "pets.zip", zip_bytes(animals(30)))


def recipe(source: Path, out: Path, **keys: Any) -> Any:
    return make_recipe({"source": str(source), "out": str(out), **KEYS, **keys}, "test")


def test_a_folder_holds_the_documented_files_and_the_manifest_measures_the_shards(
    source: Path, tmp_path: Path
) -> None:
    result = build(source, tmp_path / "out", **KEYS)
    assert result.path == tmp_path / "out" / "pets" / "1.0.0"
    shards = [f"pets-train.tfrecord-{i:05d}-of-00004" for i in range(4)]
    assert sorted(tree(result.path)) == sorted(
        [
            *shards,
            *(f"index/{shard}.idx" for shard in shards),
            "dataset_info.json",
            "features.json",
            "items.parquet",
            "label.labels.txt",
            "manifest.json",
            "schema.json",
        ],
    )
    assert [path.name for path in (tmp_path / "out" / "pets").iterdir()] == ["1.0.0"]
    for shard in result.manifest.splits["train"].shards:
        data = (result.path / shard.name).read_bytes()
        with (result.path / shard.name).open("rb") as file:
            records = list(read_records(file, shard.name))
        assert (shard.num_bytes, shard.num_records) == (len(data), len(records))
        assert shard.sha256 == hashlib.sha256(data).hexdigest()
        index = (result.path / "index" / f"{shard.name}.idx").read_text()
        assert index == "".join(f"{record.offset} {record.length}\n" for record in records)
    text = (result.path / "manifest.json").read_text()
    assert json.loads(text)["name"] == "pets"
    assert str(tmp_path) not in text
    assert load_manifest(result.path) == result.manifest


def test_every_input_is_a_row_and_the_totals_add_up(tmp_path: Path) -> None:
    members = {
        **animals(30),
        "train/cat.99.jpg": b"<html>not found</html>",
        "train/nolabel.jpg": jpeg(),
        "train/Thumbs.db": b"\xd0\xcf",
        "readme.txt": b"hello",
    }
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    result = build(source, tmp_path / "out", labels="prefix", **KEYS)
    items = pq.read_table(result.path / "items.parquet").to_pylist()
    assert Counter(row["key"] for row in items) == Counter(members.keys())
    status = Counter(row["status"] for row in items)
    assert status == {"written": 30, "rejected": 1, "skipped": 3}
    totals = result.manifest.totals
    assert (totals.num_inputs, totals.num_written) == (34, 30)
    assert totals.rejected == {"not_an_image": 1}
    assert totals.skipped == {"junk": 1, "no label": 1, "not an image": 1}
    for row in items:
        assert (row["status"] == "written") == (row["reason"] is None)
        if row["status"] == "written":
            data = (result.path / row["shard"]).read_bytes()
            record = data[row["offset"] : row["offset"] + row["length"]]
            assert row["key"].encode() in record
            assert row["original_sha256"] == hashlib.sha256(members[row["key"]]).hexdigest()
            assert row["original_bytes"] == len(members[row["key"]])


def test_bytes_do_not_depend_on_workers_engine_or_chunks(source: Path, tmp_path: Path) -> None:
    trees: list[dict[str, bytes]] = []
    here: Any = in_process
    chunks = by_chunks(in_workers)
    for number, engine in ((1, by_chunks(here)), (1, chunks), (4, chunks), (2, write_shards)):
        out = tmp_path / f"out{len(trees)}"
        result = build_dataset(recipe(source, out), Workers(engine, number), Quiet())
        trees.append(tree(result.path))
    assert trees[0] == trees[1] == trees[2] == trees[3]


def test_bytes_do_not_depend_on_the_order_of_members(tmp_path: Path) -> None:
    members = animals(20)
    one = write(tmp_path / "a" / "pets.zip", zip_bytes(members))
    two = write(tmp_path / "b" / "pets.zip", zip_bytes(dict(reversed(members.items()))))
    folder = write_folder(tmp_path / "c" / "pets", members)
    shards = [
        {name: data for name, data in tree(build(source, tmp_path / str(i), **KEYS).path).items()
         if ".tfrecord-" in name}
        for i, source in enumerate((one, two, folder))
    ]  # fmt: skip
    assert shards[0] == shards[1] == shards[2]


def test_a_finished_build_has_nothing_to_do(source: Path, tmp_path: Path) -> None:
    first = build(source, tmp_path / "out", **KEYS)
    before = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    again = build(source, tmp_path / "out", **KEYS)
    assert again.was_there
    assert again.manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "said"), [({"size": "16x16"}, "size"), ({"seed": 3}, "seed (0, now 3)")]
)
def test_another_recipe_for_a_finished_dataset_is_an_error(
    source: Path, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    build(source, tmp_path / "out", **KEYS)
    with pytest.raises(BuildError, match="--overwrite") as error:
        build(source, tmp_path / "out", **{**KEYS, **change})
    assert said in str(error.value)
    result = build(source, tmp_path / "out", replace=True, **{**KEYS, **change})
    assert result.manifest.fingerprint.options != {}
    assert not result.was_there
    assert sorted(path.name for path in result.path.parent.iterdir()) == ["1.0.0"]


def test_a_changed_source_is_noticed(source: Path, tmp_path: Path) -> None:
    build(source, tmp_path / "out", **KEYS)
    write(source, zip_bytes(animals(31)))
    with pytest.raises(BuildError, match=r"source \(its content\)"):
        build(source, tmp_path / "out", **KEYS)


@pytest.mark.parametrize("out", ["pets/tfrecords", "pets", ""])
def test_a_folder_may_hold_what_is_built_from_it(out: str, tmp_path: Path) -> None:
    source = write_folder(tmp_path / "pets", animals(30))
    for was_there in (False, True):
        result = build(source, tmp_path / out, **KEYS)
        assert result.was_there == was_there
        assert result.manifest.totals.num_inputs == 30


@pytest.mark.parametrize("num_items", [1, 15, 29])
def test_an_interrupted_build_goes_on_and_ends_with_the_same_bytes(
    source: Path, tmp_path: Path, num_items: int
) -> None:
    whole = build(source, tmp_path / "whole", **KEYS)
    with pytest.raises(StoppedError):
        build(source, tmp_path / "out", watcher=StopAfter(num_items), **KEYS)
    assert not (tmp_path / "out" / "pets" / "1.0.0").exists()
    watcher = Quiet()
    result = build(source, tmp_path / "out", watcher=watcher, **KEYS)
    done = [bound for bound in (0, 7, 15, 22) if bound <= num_items][-1]
    assert watcher.num_done == done
    assert tree(result.path) == tree(whole.path)


def test_too_many_rejections_fail_and_keep_the_work(tmp_path: Path) -> None:
    members = {**animals(20), "train/cat.77.jpg": b"junk", "train/dog.78.jpg": b""}
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    with pytest.raises(TooManyRejectedError, match=r"2 of 22 images are rejected \(9.1%\)"):
        build(source, tmp_path / "out", **KEYS)
    assert not (tmp_path / "out" / "pets" / "1.0.0").exists()
    result = build(source, tmp_path / "out", max_rejected="10%", **KEYS)
    assert result.num_new_items == 0
    assert result.manifest.totals.num_rejected == 2


def test_copies_are_counted_and_dedup_leaves_them_out(tmp_path: Path) -> None:
    twice = jpeg(seed=7)
    members = {**animals(12), "train/cat.90.jpg": twice, "train/cat.91.jpg": twice}
    members |= {"test/1.jpg": jpeg(seed=99), "test/2.jpg": twice}
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    totals = build(source, tmp_path / "out", labels="prefix", **KEYS).manifest.totals
    assert (totals.num_copies, totals.num_leaks) == (2, 1)
    result = build(source, tmp_path / "less", labels="prefix", dedup=True, **KEYS)
    assert result.manifest.totals.num_copies == 0
    assert result.manifest.totals.skipped == {"a copy of another": 2}
    assert result.manifest.splits["test"].num_records == 2


@pytest.mark.parametrize(
    ("members", "keys", "error", "said"),
    [
        ({}, {}, SourceError, "holds no image"),
        ({"a.txt": b"x"}, {}, SourceError, r"holds no image \(1 .txt\)"),
        (animals(4), {"shards": 9}, RecipeError, "use --shards 4 or fewer"),
        (animals(4), {"classes": "cat"}, SourceError, "'dog' .* is not among --classes"),
        (animals(4), {"labels": "csv:none.csv"}, SourceError, "no such label table"),
        (
            animals(4),
            {"schema": "regression9"},
            Exception,
            "a JSON file or one of classes, classif",
        ),
        (animals(4), {"split": "train=0.999,test=0.001"}, RecipeError, "gives 0 of"),
    ],
)
def test_an_impossible_build_is_an_error_with_a_hint(
    tmp_path: Path, members: dict[str, bytes], keys: dict[str, Any], error: Any, said: str
) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    with pytest.raises(error, match=said) as caught:
        build(source, tmp_path / "out", **{"size": "16x16", **keys})
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or folder"):
        build(tmp_path / "nothing.zip", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_options_may_change_as_long_as_nothing_is_done(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "out" / "pets" / "1.0.0.incomplete"
    other = make_fingerprint(recipe(source, tmp_path / "out", seed=9))
    write(work / ".build.json", other.model_dump_json().encode())
    assert build(source, tmp_path / "out", **KEYS).manifest.seed == 0


def test_a_full_disk_is_found_before_starting(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
    with pytest.raises(
        BuildError, match=r"about .* kB are needed and 1\.0 MB must stay free, .* 1\.0 MB left; "
    ):
        build(source, tmp_path / "out", **KEYS)


def test_a_folder_in_use_is_an_error_of_its_own(source: Path, tmp_path: Path) -> None:
    """A program tells by its kind that the same call may work later."""
    out = tmp_path / "out"
    with locked(out / "pets" / "1.0.0.incomplete"):
        for work in (build, partial(build_part, part="1/2")):
            with pytest.raises(BusyError, match=r"another build .*is using this folder"):
                work(source, out, **KEYS)


def test_the_work_folder_is_gone_after_success_and_after_failure(tmp_path: Path) -> None:
    inner = zip_bytes(animals(6))
    good = write(tmp_path / "good.zip", zip_bytes({"train.zip": inner}))
    build(good, tmp_path / "out", size="16x16")
    bad = write(tmp_path / "bad.zip", zip_bytes({"train.zip": inner, "x.zip": inner[:-40]}))
    with pytest.raises(SourceError, match=r"x\.zip"):
        build(bad, tmp_path / "out", size="16x16")
    assert not list((tmp_path / "out").glob("**/.work"))


@pytest.mark.parametrize(
    ("mode", "form"),
    [("L", "png"), ("RGB", "jpeg"), ("P", "keep"), ("P", "png"), ("CMYK", "jpeg"), ("L", "keep")],
)
def test_dark_photographs_of_8_bits_are_not_warned_of(
    mode: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    night = Image.fromarray((pixels() // 16).astype(np.uint8)).convert(mode)
    data = encoded(night, "TIFF")
    members = {f"train/{'ab'[i % 2]}/{i}.tif": data for i in range(4)}
    source = write_folder(tmp_path / "in", members)
    build(source, tmp_path / "out", size="32x32", format=form)
    assert caplog.messages == []


def test_frames_and_bits_that_are_not_stored_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frames = [Image.fromarray(pixels(seed=n)) for n in range(3)]
    members = {"a/1.jpg": jpeg(), "a/2.png": encoded(frames[0], "PNG")}
    for form in ("GIF", "PNG", "WEBP", "TIFF", "MPO"):
        members[f"b/{form}"] = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    deep = Image.fromarray(pixels()[..., 0].astype(np.uint16) * 257)
    members |= {"c/1.png": encoded(deep, "PNG"), "c/2.tif": encoded(deep, "TIFF")}
    source = write_folder(tmp_path / "in", members)
    assert build(source, tmp_path / "out", size="32x32").manifest.totals.num_written == 9
    assert caplog.messages == [
        "5 of 9 images have several frames or pages, of which only the first is stored",
        "2 of 9 images have values of more than 8 bits, of which 8 are stored",
    ]


def test_a_split_of_dark_images_is_warned_of_and_a_depth_range_lightens_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ramp = np.linspace(0, 4095, 32 * 32).astype(np.uint16).reshape(32, 32)
    deep = encoded(Image.fromarray(ramp), "PNG")
    scans = {f"train/{'ab'[i % 2]}/{i}.png": deep for i in range(10)}
    light = {f"test/{'ab'[i % 2]}/{i}.jpg": jpeg(seed=i) for i in range(4)}
    source = write_folder(tmp_path / "in", scans | light)
    keys: dict[str, Any] = {"size": "32x32", "format": "png", "name": "scans"}
    for part in ("1/2", "2/2"):
        build_part(source, tmp_path / "out", part, **keys)
    dark = finalize(tmp_path / "out")
    hint = "; if 16-bit grey files contain 12-bit values, add --depth-range 0,4095"
    lost = "10 of 14 images have values of more than 8 bits, of which 8 are stored"
    assert caplog.messages == [f"train: 10 of 10 images are nearly black{hint}", lost]
    caplog.clear()
    lit = build(source, tmp_path / "lit", depth_range="0,4095", **keys)
    assert caplog.messages == [lost]
    for made, white in ((dark, 65_535), (lit, 4095)):
        for one in Dataset(made.path, "train", as_supervised=False):
            assert np.array_equal(one["image"][..., 0], np.rint(ramp / white * 255))
    with pytest.raises(BuildError, match=r"other depth_range \(0,4095, now auto\)"):
        build(source, tmp_path / "lit", depth_range="auto", **keys)
