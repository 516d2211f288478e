"""`verify --leaks` finds copies in different splits, and certificates that do not hold."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

import shardprep
from shardprep.dataset.leak_check import LeakSearch, leak_check_differences
from shardprep.dataset.open_dataset import open_dataset
from shardprep.image.near_pairs import METHOD
from shardprep.verifier.problem import Verification
from tests.dataset.resigned import Signed
from tests.support.builders import build, encoded, write, zip_bytes
from tests.support.command import invoke
from tests.support.planted import file, photo

_SETTINGS: dict[str, Any] = {"labels": "none", "size": "64x64"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))


def photos(split: str, first: int, number: int) -> dict[str, bytes]:
    return {
        f"{split}/{i:02d}.jpg": file(photo(i, 80, 100), quality=92)
        for i in range(first, first + number)
    }


def smaller(number: int) -> bytes:
    """Return a near copy: a PNG of other size."""
    return encoded(Image.fromarray(photo(number, 80, 100)).resize((75, 60)), "PNG")


@pytest.fixture(name="mixed")
def _mixed(tmp_path: Path) -> Path:
    """Six photos in train, four in test; photo 0 has a near copy in train, and 1 one in test."""
    files = photos("train", 0, 6) | photos("test", 6, 4)
    files |= {"train/again.png": smaller(0), "test/again.png": smaller(1)}
    return write(tmp_path / "mixed.zip", zip_bytes(files))


@pytest.fixture(name="sound")
def _sound(tmp_path: Path) -> Path:
    """The dataset of ten photos and two near copies, cut by ratios with copies kept together."""
    files = photos("all", 0, 10) | {"all/again0.png": smaller(0), "all/again1.png": smaller(1)}
    source = write(tmp_path / "sound.zip", zip_bytes(files))
    settings = {**_SETTINGS, "split": "train=0.6,test=0.4", "group": "near"}
    return build(source, tmp_path / "out", **settings).path


verify = partial(invoke, "verify", catch_exceptions=False)


def search(path: Path) -> LeakSearch:
    found: Verification = shardprep.verify(path, leaks=True)
    assert not found.problems
    assert found.leaks is not None
    return found.leaks


def test_copies_in_different_splits_are_leaks_and_copies_in_one_split_are_not(
    mixed: Path, tmp_path: Path
) -> None:
    path = build(mixed, tmp_path / "out", **_SETTINGS).path
    found = search(path)
    assert [(one.kind, {*zip(one.keys, one.splits, strict=True)}) for one in found.leaks] == [
        ("near", {("train/01.jpg", "train"), ("test/again.png", "test")})
    ]
    assert (found.num_images, found.num_unread, found.has_certificate) == (12, 0, False)


def test_equal_files_in_different_splits_are_exact_leaks(tmp_path: Path) -> None:
    files = photos("train", 0, 4) | photos("test", 3, 2)
    path = build(write(tmp_path / "a.zip", zip_bytes(files)), tmp_path / "out", **_SETTINGS).path
    assert [(one.kind, one.keys) for one in search(path).leaks] == [
        ("exact", ("test/03.jpg", "train/03.jpg"))
    ]


def test_the_manifest_says_what_a_build_compared_and_what_became_of_the_copies(
    mixed: Path, sound: Path, tmp_path: Path
) -> None:
    given = build(mixed, tmp_path / "given", **_SETTINGS, group="near").manifest.leaks
    without = build(mixed, tmp_path / "without", **_SETTINGS, dedup="near").manifest.leaks
    kept = json.loads((sound / "manifest.json").read_text())["leaks"]
    assert given is not None
    assert without is not None
    assert (given.num_images, given.num_groups) == (12, 2)
    assert (given.num_left_out, given.num_across) == (0, 1)
    assert (without.num_groups, without.num_left_out, without.num_across) == (2, 2, 0)
    assert (kept["num_groups"], kept["num_across"]) == (2, 0)
    assert kept["kept_together"] == ["near copies"]
    assert build(mixed, tmp_path / "plain", **_SETTINGS).manifest.leaks is None


def test_a_sound_certificate_holds_and_the_command_exits_with_0(sound: Path) -> None:
    found = search(sound)
    assert found.is_clean
    assert found.has_certificate
    done = verify(sound, "--leaks", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["leaks"]["contradictions"] == []
    assert "compared: no groups of copies in different splits" in verify(sound, "--leaks").stdout


def swapped(signed: Signed) -> None:
    """Swap a record of train that has a near copy with a record of test; every hash is right."""
    rows = signed.rows.to_pylist()
    pair = next(one for one in (0, 1) if _split_of(rows, f"all/{one:02d}.jpg") == "train")
    inside = _row(rows, f"all/again{pair}.png")
    outside = next(i for i, row in enumerate(rows) if row["split"] == "test")
    places = [(rows[i]["shard"], rows[i]["record"]) for i in (inside, outside)]
    records = [signed.payloads[shard][number] for shard, number in places]
    for (shard, number), record in zip(places, reversed(records), strict=True):
        signed.payloads[shard][number] = record
    kept = ("split", "shard", "record", "offset", "length")
    one, two = rows[inside], rows[outside]
    rows[inside] = {**two, **{name: one[name] for name in kept}}
    rows[outside] = {**one, **{name: two[name] for name in kept}}
    signed.rows = pa.Table.from_pylist(rows, schema=signed.rows.schema)


def _row(rows: list[dict[str, Any]], key: str) -> int:
    return next(i for i, row in enumerate(rows) if row["key"] == key)


def _split_of(rows: list[dict[str, Any]], key: str) -> str:
    return str(rows[_row(rows, key)]["split"])


def test_a_record_moved_to_another_split_is_found_although_every_hash_is_right(
    sound: Path,
) -> None:
    signed = Signed.read(sound)
    swapped(signed)
    found = search(signed.write(sound))
    assert {one.kind for one in found.leaks} == {"near"}
    words = " ".join(found.contradictions)
    assert "about other records" in words
    number = len(found.leaks)
    assert f"says that no near copies are in several splits; {number} are found" in words


def test_a_forged_sum_of_the_records_does_not_hide_a_moved_record(sound: Path) -> None:
    signed = Signed.read(sound)
    swapped(signed)
    moved = signed.write(sound.parent / "moved")
    (contradiction, *_) = search(moved).contradictions
    assert "about other records" in contradiction
    # Whoever signs a dataset can also compute the sum; the search still finds the copies.
    from shardprep.dataset.leak_check import RecordsSum

    records = RecordsSum()
    records.add(signed.rows)
    signed.manifest["leaks"]["records"] = records.text
    (contradiction,) = search(signed.write(sound.parent / "forged")).contradictions
    assert "no near copies are in several splits" in contradiction


def test_a_replaced_original_is_named(sound: Path) -> None:
    signed = Signed.read(sound)
    rows = signed.rows.to_pylist()
    rows[0]["original_sha256"] = "0" * 64
    signed.rows = pa.Table.from_pylist(rows, schema=signed.rows.schema)
    (contradiction,) = search(signed.write(sound)).contradictions
    assert "added, removed, moved or changed" in contradiction


def test_a_certificate_of_another_search_is_named(sound: Path) -> None:
    signed = Signed.read(sound)
    signed.manifest["leaks"]["method"] = "perceptual hashes 0: 60 of 64 bits"
    (contradiction,) = search(signed.write(sound)).contradictions
    assert "made by another search (perceptual hashes 0: 60 of 64 bits)" in contradiction


def test_an_added_record_is_a_problem_and_leaks_are_not_searched(sound: Path) -> None:
    shard = next(sound.glob("*.tfrecord-*"))
    with shard.open("ab") as file:
        file.write(shard.read_bytes())
    done = verify(sound, "--leaks")
    assert done.exit_code == 3
    assert "not searched, because of these problems" in done.stdout


def test_the_command_names_the_images_of_a_leak_and_exits_with_3(
    mixed: Path, tmp_path: Path
) -> None:
    path = build(mixed, tmp_path / "out", **_SETTINGS).path
    done = verify(path, "--leaks")
    assert done.exit_code == 3
    shown = " ".join(done.stdout.split())
    assert "near: test/again.png (test), train/01.jpg (train, " in shown
    assert "certified" in done.stdout


def test_copies_that_folders_divide_are_named_though_the_certificate_holds(
    mixed: Path, tmp_path: Path
) -> None:
    done = verify(build(mixed, tmp_path / "out", group="near", **_SETTINGS).path, "--leaks")
    shown = " ".join(done.stdout.split())
    assert done.exit_code == 3
    assert "still holds, and says that copies are in several splits" in shown
    assert "build again with --split validation=0.2 and --group near, or with --dedup near" in shown


def test_a_difference_of_certificates_names_each_value(sound: Path) -> None:
    before = open_dataset(sound).manifest.leaks
    assert before is not None
    after = before.model_copy(update={"num_images": 11, "kept_together": (), "records": "1" * 64})
    assert leak_check_differences(before, before) == []
    assert leak_check_differences(before, after) == [
        "search for near copies: kept_together (near copies, now nothing)",
        "search for near copies: num_images (12, now 11)",
    ]


def test_an_export_and_the_croissant_document_carry_the_certificate(
    sound: Path, tmp_path: Path
) -> None:
    out = tmp_path / "export"
    shardprep.export(sound, to="parquet", out=out)
    facts = json.loads((out / "export.json").read_text())
    assert facts["leaks"] == json.loads((sound / "manifest.json").read_text())["leaks"]
    croissant = json.loads((out / "croissant.json").read_text())
    (text,) = croissant["rai:dataPreprocessingProtocol"]
    assert text.startswith(
        "2 groups of near copies among 12 images: 0 left out, 0 in several splits; "
        f"undivided by ratios: near copies; found by {METHOD}"
    )


def test_a_merge_says_that_copies_were_not_searched_and_a_copy_keeps_the_certificate(
    sound: Path, mixed: Path, tmp_path: Path
) -> None:
    other = build(mixed, tmp_path / "other", **_SETTINGS).path
    alone = shardprep.repack(sound, out=tmp_path / "alone", shards=1)
    assert search(alone.path).has_certificate
    assert search(alone.path).is_clean
    merged = shardprep.repack([sound, other], out=tmp_path / "merged", name="merged")
    assert merged.manifest.leaks is None
    assert "verify --leaks" in " ".join(merged.notes)
    lines = shardprep.diff(sound, merged.path).recipe
    assert any(line.startswith("search for near copies (2 groups") for line in lines)
