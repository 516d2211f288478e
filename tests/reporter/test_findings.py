"""Planted faults are found under their keys, and nothing else is."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep import reader
from shardprep.dataset.open_dataset import open_dataset
from shardprep.image.near_candidates import turned
from shardprep.reporter.findings.finding import MEANINGS, OF_PIXELS, SEVERITIES
from shardprep.reporter.report import Report
from tests.reporter.pages import packed, reported
from tests.support.builders import animals, build, tree, write
from tests.support.command import error_of, ran, run
from tests.support.examples import flipped
from tests.support.object_store import Bucket
from tests.support.planted import file, photo

KEYS = {
    "leaks": {"train/cat/00.jpg"},
    "near-leaks": {"train/dog/01.jpg"},
    "label-conflicts": {"train/cat/02.jpg", "train/dog/conflict.jpg"},
    "rejected": {"train/dog/broken.jpg"},
    "duplicates": {"train/dog/conflict.jpg", "train/cat/again.jpg"},
    "near-duplicates": {"train/cat/nearly.png"},
    "dark": {"train/cat/dark.jpg"},
    "light": {"train/cat/light.jpg"},
    "flat": {"train/dog/flat.png", "train/cat/light.jpg"},
    "blurry": {"train/dog/blurry.jpg", "train/dog/flat.png"},
    "grey": {"train/dog/grey.png", "train/cat/light.jpg"},
    "odd-aspect": {"train/dog/long.jpg"},
    "enlarged": {"train/dog/small.png"},
}
"""Kind of finding → images to leave out."""


def inner(keys: tuple[str, ...]) -> set[str]:
    return {key.removeprefix("planted.zip/") for key in keys}


def test_every_fault_is_found_and_ranked_and_no_other(report: Report) -> None:
    assert {one.name: inner(one.keys) for one in report.findings} == KEYS
    ranks = [(SEVERITIES.index(one.severity), [*MEANINGS].index(one.name))
             for one in report.findings]  # fmt: skip
    assert ranks == sorted(ranks)
    assert report.findings[0].name == "leaks"


def test_groups_say_splits_changes_and_conflicts(report: Report) -> None:
    groups = {
        tuple(sorted(inner(report.contents.keys_of(one.numbers)))): one for one in report.copies
    }
    leak = groups["train/cat/00.jpg", "validation/cat/leak.jpg"]
    assert (leak.kind, leak.splits, leak.changes) == ("exact", ("train", "validation"), ("", ""))
    assert report.contents.place(leak.numbers[0]).split == "validation"
    near = groups["train/dog/01.jpg", "validation/dog/near-leak.jpg"]
    assert (near.kind, near.is_leak, near.is_conflict) == ("near", True, False)
    assert near.changes == ("", "same picture")
    assert groups["train/cat/02.jpg", "train/dog/conflict.jpg"].is_conflict
    assert len(groups) == 5


def test_a_place_is_the_position_of_the_record_in_the_reader(report: Report, path: Path) -> None:
    for number in (0, 5, len(report.contents) - 1):
        place = report.contents.place(number)
        item = reader.Dataset(path, place.split, as_supervised=False)[place.record]
        assert item["image/filename"] == place.key
        assert report.contents.schema.labels[item["label"]] == place.label
        row = report.contents.items.row(report.contents.written.numbers.item(number))
        assert place.shard == row["shard"]
        assert place.shard_record == place.record, "there is one shard a split"


def test_a_report_on_a_selection_equals_that_on_a_dataset_of_these_records(
    path: Path, tmp_path: Path
) -> None:
    half = reader.select(path, "train") | reader.select(path, "validation")
    half = half[half.labels == 0] | half[::3]
    own = shardprep.repack(path, tmp_path, split=half, name="planted").path
    some, alone = reported(path, half), reported(own)
    assert {(one.name, one.what, frozenset(one.keys)) for one in some.findings} == {
        (one.name, one.what, frozenset(one.keys)) for one in alone.findings
    }
    assert {"leaks", "duplicates", "dark"} <= {one.name for one in some.findings}
    counts = [
        {name: (one.num_records, one.label_counts) for name, one in found.manifest.splits.items()}
        for found in (some.contents, alone.contents)
    ]
    assert counts[0] == counts[1]
    assert some.channels is not None
    assert alone.channels is not None
    assert some.channels.sums.tolist() == alone.channels.sums.tolist()
    total = sum(one.num_records for one in open_dataset(path).manifest.splits.values())
    assert f"{len(half)} of {total} records" in some.html()
    for number in (0, 9, len(half) - 1):
        place = some.contents.place(number)
        assert (
            reader.Dataset(path, place.split, as_supervised=False)[place.record]["image/filename"]
            == place.key
        )


def test_a_record_that_does_not_decode_is_a_finding(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    copy = shutil.copytree(path, tmp_path / "set")
    shard = next(copy.glob("*validation*"))
    shard.write_bytes(flipped(shard.read_bytes(), 8 * 40))
    found = reported(copy)
    damaged = next(one for one in found.findings if one.name == "damaged-records")
    first = found.contents.split.tolist().index(1)
    assert damaged.keys == (found.contents.key(first),)
    assert "CRC" in damaged.what
    assert "damaged-records" in found.html()


def test_without_pixels_only_findings_of_documents_are_made(path: Path) -> None:
    found = reported(path, has_pixels=False)
    expected = {"leaks", "label-conflicts", "rejected", "duplicates", "odd-aspect", "enlarged"}
    assert {one.name for one in found.findings} == expected == KEYS.keys() - {*OF_PIXELS}
    assert found.images is None
    assert found.measured is None


def test_images_without_annotations_are_cropped_by_default(tmp_path: Path) -> None:
    """All are 64 wide, which is enough, and 40 to 43 high, which is not."""
    found = reported(packed(tmp_path, animals(4), size="56x56"), has_pixels=False)
    assert [len(one.keys) for one in found.findings if one.name == "enlarged"] == [4]


@pytest.mark.thorough
def test_each_flag_leaves_out_the_stated_number_of_images(
    report: Report, planted: Path, tmp_path: Path
) -> None:
    """`--exclude-list` accepts keys printed by `--list`, and then the finding is gone."""
    for one in report.findings:
        if not one.num_dropped:
            continue
        name, _, value = one.flag.removeprefix("--").partition(" ")
        keys: dict[str, Any] = {name.replace("-", "_"): value or True}
        if name == "exclude-list":
            printed = ran("report", planted / "tfrecords", "--list", one.name, cwd=tmp_path)
            assert inner(tuple(printed.stdout.splitlines()[1:])) == KEYS[one.name]
            keys["exclude_list"] = str(write(tmp_path / value, printed.stdout.encode()))
        built = build(
            planted / "planted.zip", tmp_path / one.name, labels="folder", size="64x64",
            max_rejected=0.5, name="again", **keys,
        )  # fmt: skip
        totals = built.manifest.totals
        assert len(report.contents) - totals.num_written == one.num_dropped, one.name
        left = reported(built.path, has_pixels=one.name in OF_PIXELS).findings
        assert one.name not in {other.name for other in left}


def test_an_unknown_list_is_one_line_that_names_the_others(planted: Path, tmp_path: Path) -> None:
    for name, text in (("leak", "not a kind of finding"), ("drift", "classes or splits")):
        done = run("report", planted / "tfrecords", "--list", name, cwd=tmp_path)
        assert text in error_of(done, 2)
        assert "near-leaks" in done.stderr
    done = run("report", planted / "tfrecords", "--list", "dark", "--no-pixels", cwd=tmp_path)
    assert "leave out --no-pixels" in error_of(done, 2)
    done = run("report", planted / "tfrecords", "--list", "drift", "--json", cwd=tmp_path)
    assert "--list" in done.stderr
    assert not list(tmp_path.iterdir())


def test_keys_of_any_shape_survive_a_list(tmp_path: Path) -> None:
    """With spaces, quotes, commas, numbers at the end, escapes, and the same name in folders."""
    names = ("a, b.png", 'say "x".png', "cat 1.png", "x.png", "deep/x.png", "bad\x1b[1m.png",
             "turned\u202e.png", "ünï.png", "y;z.png")  # fmt: skip
    members = {f"a/{name}": file(photo(i) // 8, "PNG") for i, name in enumerate(names)}
    members |= {f"keep/{i}.png": file(photo(300 + i), "PNG") for i in range(60)}
    members |= {f"keep/{name}": file(photo(70 + i), "PNG") for i, name in enumerate(names)}
    formulas = ("=1+1.png", "+a.png", "-b/c.png", "@d.png", "'=e.png", "-1")
    members |= {name: file(photo(90 + i) // 8, "PNG") for i, name in enumerate(formulas)}
    path = packed(tmp_path, members, size="32x32", labels="none")
    done = run("report", path, "--list", "dark", cwd=tmp_path)
    assert "\n'=1+1.png\n" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line[0] in "=+@" or line[:2] == "-b"]
    assert all(one.isprintable() for one in done.stdout.split("\n"))
    listed = write(tmp_path / "dark.csv", done.stdout.encode())
    again = build(
        tmp_path / "any.zip", tmp_path / "out", size="32x32", labels="none",
        exclude_list=str(listed), name="b",
    )  # fmt: skip
    assert again.manifest.totals.num_written == len(members) - len(names) - len(formulas)
    dark = reader.select(path, "train", keys=str(listed))
    assert len(dark) == len(names) + len(formulas)
    left = reported(again.path)
    assert all("keep/" in key for key in left.contents.keys_of(range(left.num_records)))


def skewed(number: int, *, bright: int) -> dict[str, bytes]:
    found = {}
    for i in range(number):
        image = photo(i, 48, 48)
        found[f"train/day/{i}.png"] = file(image // 2 + bright, "PNG")
        found[f"train/night/{i}.png"] = file(image // 4, "PNG")
        found[f"test/day/{i}.png"] = file(photo(1000 + i, 48, 48) // 2 + bright, "PNG")
    found["train/rare/0.png"] = file(photo(5000, 48, 48), "PNG")
    found["test/new/0.png"] = file(photo(6000, 48, 48), "PNG")
    return found


def test_classes_and_splits_that_differ_are_found(tmp_path: Path) -> None:
    path = packed(tmp_path, skewed(30, bright=90), labels="folder", size="32x32")
    found = {one.name: one for one in reported(path).findings}
    assert "new" in found["missing-classes"].what
    assert found["missing-classes"].severity == "serious"
    assert "day, has 60 times" in found["imbalance"].what
    assert "day has more brightness" in found["class-property"].what
    assert "test in the shares of classes" in found["drift"].what


def test_sound_sets_have_no_findings(tmp_path: Path) -> None:
    members = {f"{'ab'[i % 2]}/{i}.jpg": file(photo(i), quality=92) for i in range(80)}
    split = "train=0.7,validation=0.3"
    path = packed(tmp_path, members, labels="folder", size="64x64", split=split)
    assert reported(path).findings == ()


def test_a_dataset_in_object_storage_has_the_same_report(
    path: Path, bucket: Bucket, tmp_path: Path
) -> None:
    for name, data in tree(path).items():
        bucket.put(f"sets/planted/1.0.0/{name}", data)
    here = run("report", path, "-o", "here.html", cwd=tmp_path)
    there = ran("report", f"{bucket.url}/sets", "-o", "there.html", cwd=tmp_path)
    assert there.stdout == here.stdout.replace("here", "there")
    assert (tmp_path / "there.html").read_bytes() == (tmp_path / "here.html").read_bytes()


def test_turned_copies_are_shown_like_the_first_image_of_their_group(tmp_path: Path) -> None:
    for turn in Image.Transpose:
        picture = Image.fromarray(photo(int(turn), 64, 64))
        write(tmp_path / f"in/{turn}.png", file(np.asarray(picture), "PNG"))
        write(tmp_path / f"in/{turn}_turned.png", file(np.asarray(picture.transpose(turn)), "PNG"))
    made = build(tmp_path / "in", tmp_path / "out", labels="none", format="png")
    groups = [one for one in reported(made.path).copies if one.kind == "near"]
    pictures = [np.asarray(one) for one in reader.Dataset(made.path, "train")]
    assert len(groups) == len(Image.Transpose)
    for group in groups:
        (first, copy), (_, way) = group.numbers, group.turns
        shown = np.moveaxis(turned(np.moveaxis(pictures[copy], 2, 0), way), 0, 2)
        np.testing.assert_allclose(shown, pictures[first].astype(int), atol=4)
        assert way


def test_the_part_that_a_cropped_copy_shows_is_outlined_in_the_whole_image(tmp_path: Path) -> None:
    picture = Image.fromarray(photo(3, 200, 200))
    write(tmp_path / "in/whole.png", file(np.asarray(picture), "PNG"))
    write(tmp_path / "in/crop.png", file(np.asarray(picture.crop((20, 10, 200, 190))), "PNG"))
    for number in range(10, 14):
        write(tmp_path / f"in/{number}.png", file(photo(number, 200, 200), "PNG"))
    made = build(tmp_path / "in", tmp_path / "out", labels="none", format="png", size="200x200")
    report = reported(made.path)
    (group,) = report.copies
    (part,) = (one for parts in group.parts for one in parts)
    np.testing.assert_allclose(part, (0.1, 0.05, 0.9, 0.9), atol=0.02)
    outlined = next(i for i, parts in enumerate(group.parts) if parts)
    assert report.contents.key(group.numbers[outlined]) == "whole.png"
    assert "what the cropped copy shows" in report.html()
