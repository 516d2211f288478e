"""Near copies are left out, or kept in one split: found before the plan, as a report finds them."""

import functools
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep.catalog.items import Item, Items
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import BuildError, RecordError
from shardprep.image.near_pairs import near_pairs
from shardprep.image.thumbnail import THUMBNAIL, Pixels
from shardprep.progress import Unit
from shardprep.recipe.recipe import make_recipe
from shardprep.reporter.report import Report, make_report
from shardprep.reporter.report_data import ReportOptions
from shardprep.writer.chunk import EncodedChunk, Outcome
from shardprep.writer.plan import near_copies
from shardprep.writer.plan.near_copies import ThumbnailMaker, ThumbnailSource, make_thumbnails
from shardprep.writer.plan.source_plan import make_plan
from tests.support.builders import (
    SHARED_DATA,
    Quiet,
    build,
    build_part,
    encoded,
    finalize,
    flip_bit,
    handing_over,
    in_process,
    tree,
    unsigned,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.planted import file, photo
from tests.writer.records import rows

CUT: dict[str, Any] = {"size": "64x64", "split": "train=0.5,test=0.5", "labels": "folder"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(near_copies, "run_chunks", handing_over(in_process))
    return tmp_path / "cache" / "near"


@functools.cache
def originals() -> dict[str, bytes]:
    return {f"{('cat', 'dog')[i % 2]}/{i:02d}.jpg": file(photo(i, 80, 100), quality=92)
            for i in range(24)}  # fmt: skip


def larger(image: Pixels) -> bytes:
    return encoded(Image.fromarray(image).resize((125, 100)), "PNG")


@functools.cache
def with_copies() -> dict[str, bytes]:
    """Return the photos and copies of ten: two of each, the last two labelled otherwise."""
    found = dict(originals())
    for i in range(10):
        label = ("cat", "dog")[i % 2 if i < 8 else (i + 1) % 2]
        found[f"{label}/again{i:02d}.jpg"] = file(photo(i, 80, 100), quality=35)
        found[f"{label}/large{i:02d}.png"] = larger(photo(i, 80, 100))
    return found


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write(tmp_path / "photos.zip", zip_bytes(with_copies()))


def reported(path: Path) -> Report:
    return make_report(open_dataset(path), ReportOptions(thumbs=0), Quiet())


def pairs_across(report: Report) -> int:
    assert report.measured is not None
    pairs, splits = near_pairs(report.measured.measures), report.contents.split
    return int((splits[pairs["inner"]] != splits[pairs["outer"]]).sum())


def test_near_copies_are_written_to_one_split(source: Path, tmp_path: Path) -> None:
    plain = build(source, tmp_path / "plain", **CUT)
    leaky = reported(plain.path)
    assert pairs_across(leaky) > 0
    page = leaky.html()
    assert "and the ratios divide the others anew" in page
    assert re.search(r"To keep them in one split instead: --split test=0\.\d+ --group near\.", page)
    grouped, told = tmp_path / "grouped", Quiet()
    path = build(source, grouped, group="near", watcher=told, **CUT).path
    report = reported(path)
    assert pairs_across(report) == 0
    assert "near-leaks" not in {one.name for one in report.findings}
    assert "10 groups of near copies, 30 images in all; the largest has 3" in told.lines
    splits = report.contents.manifest.splits
    assert [splits[one].num_records for one in ("train", "test")] == [22, 22]
    whole = Quiet()
    build(source, tmp_path / "whole", group="near", watcher=whole)
    assert "the dataset has one split; --split validation=0.1 divides it" in whole.lines
    assert "the dataset has one split; --split validation=0.1 divides it" not in told.lines
    groups = {key: row["group"] for key, row in rows(path).items()}
    assert groups["dog/01.jpg"] == groups["dog/large01.png"] == "dog/01.jpg"
    assert groups["cat/20.jpg"] is None
    assert report.contents.manifest.fingerprint.options["group"] == "near"
    again = tmp_path / "cache" / "near"
    for one in again.iterdir():
        one.unlink()
    assert tree(build(source, tmp_path / "again", group="near", **CUT).path) == tree(path)


def test_near_copies_are_left_out_and_named(source: Path, tmp_path: Path) -> None:
    told = Quiet()
    made = build(source, tmp_path / "out", dedup="near", watcher=told, **CUT)
    report, totals = reported(made.path), made.manifest.totals
    assert report.copies == ()
    assert totals.skipped == {"a near copy of another": 20}
    assert (totals.num_inputs, totals.num_written) == (44, 24)
    assert "left out: 20 near copies of 10 images; the targets differ in 2 groups" in (told.lines)
    row = rows(made.path)["dog/large01.png"]
    assert (row["status"], row["reason"]) == ("skipped", "a near copy of another: dog/01.jpg")
    assert made.manifest.fingerprint.options["dedup"] == "near"


def test_the_near_copy_in_the_evaluation_split_is_not_left_out(tmp_path: Path) -> None:
    """Exact copies among them are left out as such; the unlabelled test set is not cut."""
    members = {
        "train/cat/1.jpg": file(photo(1), quality=90),
        "train/cat/2.jpg": file(photo(2), quality=90),
        "train/dog/3.jpg": file(photo(3), quality=90),
        "train/dog/4.jpg": file(photo(4), quality=90),
        "train/dog/5.jpg": file(photo(4), quality=90),
        "test/a.jpg": file(photo(1), quality=40),
        "test/b.jpg": file(photo(5), quality=40),
    }
    source = write_folder(tmp_path / "photos", members)
    keys: dict[str, Any] = {"size": "64x64", "labels": "auto"}
    given = rows(build(source, tmp_path / "given", dedup="near", **keys).path)
    assert given["train/cat/1.jpg"]["reason"] == "a near copy of another: test/a.jpg"
    assert given["train/dog/5.jpg"]["reason"] == "a copy of another: train/dog/4.jpg"
    cut = {"split": "train=0.5,validation=0.5", **keys}
    told = Quiet()
    build(source, tmp_path / "cut", group="near", watcher=told, **cut)
    assert [line for line in told.lines if "test/a.jpg and train/cat/1.jpg" in line]
    spoiling = {"split": "train=0.5,test=0.5", **keys}
    left = rows(build(source, tmp_path / "spoiling", dedup="near", **spoiling).path)
    assert left["train/cat/1.jpg"]["status"] == "written", "its copy is not stored"


def test_groups_by_rule_and_near_copies_join(tmp_path: Path) -> None:
    """p1 and p2 have near copies of one photo, p2 and p3 of another; p4 is alone."""
    numbers = {"p1_a": 1, "p2_a": 1, "p2_b": 2, "p3_a": 2, "p3_b": 3, "p4_a": 4, "x": 5, "y": 5}
    members = {
        f"{name}.jpg": file(photo(number), quality=90 - 7 * i)
        for i, (name, number) in enumerate(numbers.items())
    }
    source = write(tmp_path / "photos.zip", zip_bytes(members))
    keys: dict[str, Any] = {"labels": "none", "size": "64x64", "group": "near,regex:^(p\\d)_"}
    groups = {key: row["group"] for key, row in rows(build(source, tmp_path, **keys).path).items()}
    assert {groups[f"{name}.jpg"] for name in numbers if name < "p4"} == {"p1"}
    assert groups["p4_a.jpg"] == "p4"
    assert groups["x.jpg"] == groups["y.jpg"] == "x.jpg"


def thumbnails_of(folder: Path, num_workers: int, **keys: Any) -> dict[str, Any]:
    """Return the thumbnail of each image in the first shard of a plan."""
    recipe = make_recipe(keys, "test")
    plan = make_plan(recipe, folder, Quiet())
    items = Items.of(sorted(plan.shards[0].items))
    files = ThumbnailSource.files(recipe, plan.spec)
    found = make_thumbnails(items, files, recipe, num_workers, Quiet())
    return {item.key: one for item, one in zip(items, found, strict=True)}


FORMS: list[dict[str, Any]] = [
    {"size": "64x64"},
    {"size": "96x64", "fit": "pad", "quality": 60},
    {"size": "150x150", "fit": "stretch", "format": "png"},
    {"size": "64x64", "format": "raw"},
    {"format": "keep"},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_thumbnails_equal_those_of_a_report(tmp_path: Path, form: dict[str, Any]) -> None:
    members = {
        f"{i}.{kind}": file(photo(i, 60 + 40 * i, 230 - 20 * i), form)
        for i, (kind, form) in enumerate([("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")] * 2)
    } | {"broken.jpg": b"\xff\xd8\xff\xe0 no more than a beginning"}
    source = write(tmp_path / "photos.zip", zip_bytes(members))
    keys = {"source": str(source), "labels": "none", "max_rejected": 0.5, **form}
    thumbnails = thumbnails_of(tmp_path, 1, **keys)
    assert not thumbnails.pop("broken.jpg")["decoded"]
    del keys["source"]
    report = reported(build(source, tmp_path / "out", **keys).path)
    assert report.measured is not None
    keys_of = report.contents.keys_of(report.measured.numbers.tolist())
    measured = dict(zip(keys_of, report.measured.measures, strict=True))
    for key, one in thumbnails.items():
        assert [one[name].tolist() for name in THUMBNAIL.names or ()] == [
            measured[key][name].tolist() for name in THUMBNAIL.names or ()
        ], key


def test_no_more_workers_are_started_than_cores_may_be_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def counting(encode: Any, tasks: Any, num_workers: int, limits: Any) -> Iterator[EncodedChunk]:
        started.append(num_workers)
        return in_process(encode, tasks, num_workers, limits)

    monkeypatch.setattr(near_copies, "run_chunks", handing_over(counting))
    monkeypatch.setattr(near_copies, "usable_cores", lambda: 1)
    thumbnails_of(tmp_path, 8, source=str(source), **CUT)
    assert started == [1]


@pytest.mark.thorough
def test_a_second_build_of_the_source_looks_at_no_pixel(
    source: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(source, tmp_path / "one", group="near", **CUT)
    (kept,) = cache.iterdir()

    def none(*_: object) -> Iterator[EncodedChunk]:
        raise AssertionError("an image is read")

    monkeypatch.setattr(near_copies, "run_chunks", none)
    build(source, tmp_path / "two", dedup="near", seed=3, exclude="cat/0*", **CUT)
    monkeypatch.setattr(near_copies, "run_chunks", handing_over(in_process))
    for data in (b"", kept.read_bytes()[:2000]):
        kept.write_bytes(data)
        again = build(source, tmp_path / "one", group="near", replace=True, **CUT)
        assert again.manifest == first.manifest
        assert kept.read_bytes() != data


def test_an_interrupted_pass_goes_on_where_it_stopped(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def stopping(encode: Any, tasks: Any, *_: Any) -> Iterator[EncodedChunk]:
        for task in tasks:
            if len(seen) == 15:
                raise KeyboardInterrupt
            seen.extend(item.key for item in task.items)
            yield encode(task, lambda: None)

    monkeypatch.setattr(near_copies, "run_chunks", handing_over(stopping))
    with pytest.raises(KeyboardInterrupt):
        build(source, tmp_path / "out", group="near", **CUT)
    assert len(seen) == 15
    monkeypatch.setattr(near_copies, "run_chunks", handing_over(in_process))

    class Counting(Quiet):
        def start(
            self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
        ) -> None:
            if what != "encoding":
                found = (what, total, unit, num_done)
                assert found == ("looking for near copies", 44, "images", 15)

    path = build(source, tmp_path / "out", group="near", watcher=Counting(), **CUT).path
    assert pairs_across(reported(path)) == 0


def test_parts_with_near_copies_give_the_bytes_of_one_run(
    source: Path, tmp_path: Path, cache: Path
) -> None:
    """Also where they share no cache."""
    keys = {**CUT, "shards": 3, "group": "near"}
    whole = build(source, tmp_path / "whole", **keys)
    for part in ("1/2", "2/2"):
        for one in cache.iterdir():
            one.unlink()
        build_part(source, tmp_path / "parts", part, **keys)
    assert tree(finalize(tmp_path / "parts").path) == tree(whole.path)


def test_parts_with_other_near_copies_do_not_become_one_dataset(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    """An image that only one machine can read belongs to a group there alone."""
    keys = {**CUT, "shards": 3, "group": "near"}
    build_part(source, tmp_path / "out", "1/2", **keys)
    for one in cache.iterdir():
        one.unlink()
    monkeypatch.setattr(near_copies, "ThumbnailMaker", Unreading)
    with pytest.raises(BuildError, match="this run found other near copies than the run"):
        build_part(source, tmp_path / "out", "2/2", **keys)


class Unreading(ThumbnailMaker):
    def _thumbnail(self, item: Item) -> bytes | Outcome:
        if "large" in item.key:
            return Outcome("crashed", "by construction", 0, 0, 0, "", 0, "")
        return super()._thumbnail(item)


OF_STORED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "PNG": ({"format": "png"}, {}),
    "JPEG": ({"quality": 70}, {"shards": 3}),
    "raw": ({"format": "raw"}, {"group": "near,regex:^(?:again|large)?(\\d)"}),
    "some left out": ({"format": "png"}, {"exclude_list": "out.txt"}),
}
"""Options of the old dataset, and of the change."""


@pytest.mark.parametrize("case", OF_STORED)
def test_a_finished_dataset_is_split_again_as_a_build_splits_its_images(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is a build with the option; its source has an image that cannot be stored."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "out.txt", b"cat/02.jpg\ncat/again02.jpg\n")
    members = {**with_copies(), "cat/bad.jpg": b"\xff\xd8\xff no more"}
    source = write(tmp_path / "photos.zip", zip_bytes(members))
    form, change = OF_STORED[case]
    keys: dict[str, Any] = {"labels": "folder", "size": "64x64", "max_rejected": 1.0, **form}
    wanted = {"group": "near", "split": "train=0.5,test=0.5", **change}
    built = build(source, tmp_path / "built", **keys, **wanted)
    old = build(source, tmp_path / "old", **keys)
    packed = shardprep.repack(old.path, tmp_path / "packed", workers=1, **wanted)
    assert unsigned(built.path) == unsigned(packed.path)
    assert packed.manifest.leaks == built.manifest.leaks
    assert packed.manifest.leaks is not None
    assert packed.manifest.leaks.num_across == 0
    assert pairs_across(reported(packed.path)) == 0
    assert any("groups of near copies" in note for note in packed.notes)


def test_near_copies_join_the_groups_of_the_dataset_and_of_merged_ones(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"labels": "none", "size": "64x64", "group": "regex:^(p\\d)_"}
    numbers = {"a": {"p1_a": 1, "p1_b": 2, "x": 5}, "b": {"p2_a": 2, "p3_a": 3, "y": 5}}
    folders = [
        build(
            write_folder(
                tmp_path / name,
                {f"{one}.jpg": file(photo(at), quality=90 - 9 * at) for one, at in own.items()},
            ),
            tmp_path / "old",
            **{**keys, "name": name},
        ).path
        for name, own in numbers.items()
    ]
    packed = shardprep.repack(folders, tmp_path / "new", name="both", group="near", workers=1)
    groups = {key: row["group"] for key, row in rows(packed.path).items()}
    assert groups == {
        "p1_a.jpg": "p1", "p1_b.jpg": "p1", "p2_a.jpg": "p1", "p3_a.jpg": "p3",
        "x.jpg": "x.jpg", "y.jpg": "x.jpg",
    }  # fmt: skip
    assert "2 groups of near copies, 4 images in all; the largest has 2" in packed.notes


def test_a_damaged_record_ends_the_search_and_is_named(source: Path, tmp_path: Path) -> None:
    old = build(source, tmp_path / "old", **CUT).path
    flip_bit(next(old.glob("*-train.*-00000-of-*")))
    with pytest.raises(
        RecordError, match=r"CRC is .*`shardprep verify .*--repair --source SOURCE`"
    ):
        shardprep.repack(old, tmp_path / "new", group="near", workers=1)
    assert not (tmp_path / "new/photos/1.0.0").exists()


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="needs the shared photographs")
@pytest.mark.thorough
def test_no_near_copy_of_real_photos_is_across_splits(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    with zipfile.ZipFile(SHARED_DATA / "dogs-vs-cats.zip") as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("train.zip")))
    draw = np.random.default_rng(0)
    for name in sorted(inner.namelist())[:50]:
        image = Image.open(io.BytesIO(inner.read(name)))
        members[f"{name[6:9]}/{len(members)}.jpg"] = inner.read(name)
        out = io.BytesIO()
        ratio = 2 ** draw.uniform(-1, 1)
        smaller = image.resize((round(image.width * ratio), round(image.height * ratio)))
        smaller.save(out, "JPEG", quality=int(draw.integers(30, 96)))
        members[f"{name[6:9]}/{len(members)}.jpg"] = out.getvalue()
    source = write(tmp_path / "photos.zip", zip_bytes(members))
    keys = {**CUT, "size": "224x224", "group": "near"}
    path = build(source, tmp_path / "out", **keys).path
    assert pairs_across(reported(path)) == 0
    grouped = [row["group"] for row in rows(path).values() if row["group"]]
    assert len(grouped) >= 0.97 * len(members)


def test_a_column_of_groups_may_begin_with_near() -> None:
    recipe = make_recipe({"source": "x.zip", "dedup": "near", "group": "nearby"}, "t")
    found = near_copies.NearCopies(Items.of([]), ()).leak_check([], recipe)
    assert found.kept_together == ("nearby",)
