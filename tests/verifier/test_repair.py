"""A repaired dataset equals the built one byte for byte, or stays unchanged."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import shardprep
from shardprep.dataset.local_files import LocalFiles
from shardprep.dataset.manifest import Manifest, load_manifest
from shardprep.errors import BuildError, DatasetError, ShardprepError
from shardprep.storage.lock import locked
from shardprep.verifier.dataset import verify_dataset
from shardprep.verifier.repair import repair_dataset
from tests.support.builders import (
    Quiet,
    Told,
    animals,
    build,
    jpeg,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import run
from tests.support.examples import flipped

SHARD = "pets-{}.tfrecord-{:05d}-of-{:05d}"
FIRST, SECOND, THIRD = (SHARD.format("train", i, 4) for i in range(3))
KEYS: dict[str, Any] = {
    "labels": "prefix",
    "shards": 4,
    "size": "32x32",
    "split": "train=0.8,validation=0.2",
    "max_rejected": "50%",
}
MEMBERS = {
    **animals(40),
    "train/cat.99.jpg": b"<html>",
    "train/dog.99.jpg": b"",
    "train/dog.98.jpg": b"junk",
    "readme.txt": b"hello",
}


@pytest.fixture(name="good", scope="module")
def _good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source and its dataset; tests must not change it."""
    place = tmp_path_factory.mktemp("good")
    build(write(place / "pets.zip", zip_bytes(MEMBERS)), place / "out", **KEYS)
    return place


@pytest.mark.parametrize("option", ["items", "labels"])
def test_a_dataset_of_a_frame_is_repaired_from_the_rows_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    source = write(tmp_path / "pets.zip", zip_bytes(animals(4)))
    frame = pd.DataFrame({"image": sorted(animals(4)), "label": ["a", "b"] * 2})
    options: dict[str, Any] = {option: frame, "size": 16, "shards": 1, "workers": 1}
    path = shardprep.build(source, tmp_path / "out", **options).path
    before = tree(path)
    shard = next(path.glob("*.tfrecord-*"))
    shard.write_bytes(flipped(shard.read_bytes(), 999))
    assert not shardprep.verify(path, repair=True, source=source).problems
    assert tree(path) == before
    shard.write_bytes(flipped(shard.read_bytes(), 999))
    shutil.rmtree(tmp_path / "cache" / "items")
    with pytest.raises(BuildError, match="built from a data frame that is no longer in the cac"):
        shardprep.verify(path, repair=True, source=source)


@pytest.fixture(name="here")
def _here(good: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(name="folder")
def _folder(here: Path) -> Path:
    """Return the dataset in it."""
    return here / "out" / "pets" / "1.0.0"


def repaired(here: Path, source: str = "pets.zip") -> Quiet:
    """Repair the problems that `verify` reports; return the watcher."""
    folder = here / "out" / "pets" / "1.0.0"
    found = verify_dataset(LocalFiles.at(folder), decode=False, num_workers=1, watcher=Told())
    assert found.problems
    watcher = Quiet()
    repair_dataset(found, str(here / source), num_workers=1, watcher=watcher)
    return watcher


def flip(path: Path) -> Path:
    return write(path, flipped(path.read_bytes(), 9999 % (8 * path.stat().st_size)))


def cut(path: Path) -> Path:
    return write(path, path.read_bytes()[:1000])


def swap(one: Path, two: Path) -> None:
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], Any], int]] = {
    "a flipped bit": (lambda d: flip(d / FIRST), 1),
    "a cut and an empty shard": (lambda d: [write(d / SECOND, b""), cut(d / THIRD)], 2),
    "no shard": (lambda d: (d / THIRD).unlink(), 1),
    "swapped shards": (lambda d: swap(d / FIRST, d / SECOND), 2),
    "a renamed shard": (lambda d: (d / FIRST).rename(d / f"{FIRST}.bak"), 1),
    "an extra shard": (lambda d: shutil.copy(d / FIRST, d / SHARD.format("train", 4, 5)), 0),
    "no index at all": (lambda d: shutil.rmtree(d / "index"), 0),
    "an index and the schema": (
        lambda d: [flip(d / "index" / f"{FIRST}.idx"), flip(d / "schema.json")], 0,
    ),
    "files of TFDS": (
        lambda d: [write(d / name, b"") for name in ("label.labels.txt", "dataset_info.json")], 0,
    ),
    "items": (lambda d: flip(d / "items.parquet"), 5),
    "items cut, and a shard": (lambda d: [cut(d / "items.parquet"), flip(d / FIRST)], 5),
}  # fmt: skip
"""Damage → how it is done, and how many shards are built again."""


def test_each_of_two_swapped_shards_is_one_problem(folder: Path) -> None:
    swap(folder / FIRST, folder / SECOND)
    found = verify_dataset(LocalFiles.at(folder), decode=False, num_workers=1, watcher=Told())
    words = {one.file: one.what.partition(", with")[0] for one in found.problems}
    assert len(found.problems) == 2
    assert words == {
        FIRST: f"is {SECOND} under another name",
        SECOND: f"is {FIRST} under another name",
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repaired_folder_equals_the_one_that_was_built(
    good: Path, here: Path, folder: Path, damage: str
) -> None:
    make, num_shards = DAMAGES[damage]
    make(folder)
    assert tree(folder) != tree(good / "out" / "pets" / "1.0.0")
    watcher = repaired(here)
    assert tree(here / "out") == tree(good / "out")
    encoded = watcher.num_new
    assert (encoded > 0) == (num_shards > 0)
    assert encoded + watcher.num_done == 43
    if num_shards < 5:
        assert encoded <= num_shards * 9


def test_shards_are_copied_where_hard_links_are_not_supported(
    good: Path, here: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    flip(folder / FIRST)
    repaired(here)
    assert tree(here / "out") == tree(good / "out")


def test_files_of_others_stay_and_intact_shards_are_linked(
    good: Path, here: Path, folder: Path
) -> None:
    flip(folder / FIRST)
    before = (folder / SECOND).stat().st_ino
    write(folder / "notes" / "mine.txt", b"keep me")
    write(folder / f".{FIRST}.tmp", b"of a dead run")
    repaired(here)
    assert (folder / SECOND).stat().st_ino == before
    assert (folder / "notes" / "mine.txt").read_bytes() == b"keep me"
    shutil.rmtree(folder / "notes")
    assert tree(here / "out") == tree(good / "out")


@pytest.mark.parametrize(
    ("kind", "format_"),
    [("multilabel", "png"), ("regression", "raw"), ("text", "keep"), ("none", "raw")],
)
def test_datasets_of_every_kind_are_repaired(tmp_path: Path, kind: str, format_: str) -> None:
    images = {f"train/{i}.jpg": jpeg(seed=i) for i in range(12)}
    cells = {"multilabel": "ab c", "regression": "0.1", "text": "été", "none": "x"}
    rows = "".join(f"{i},{cells[kind]}{i % 3}\n" for i in range(12))
    keys: dict[str, Any] = {"labels": "csv:t.csv:id:y", "target": kind, "columns": "y"}
    if kind == "none":
        keys = {"labels": "none"}
    if kind == "multilabel":
        keys["separator"] = " "
    members = {**images, "t.csv": f"id,y\n{rows}".encode()}
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    keys |= {"shards": 3, "format": format_, "size": "16x16", "dedup": True}
    path = build(source, tmp_path / "out", **keys).path
    before = tree(path)
    flip(min(path.glob("*.tfrecord-*")))
    repaired(tmp_path)
    assert tree(path) == before


def test_a_dataset_of_a_folder_is_repaired(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "pets", animals(20))
    path = build(source, tmp_path / "out", shards=4, size="32x32").path
    before = tree(path)
    flip(path / FIRST)
    repaired(tmp_path, "pets")
    assert tree(path) == before


def test_a_changed_source_is_refused_and_the_damage_named(here: Path, folder: Path) -> None:
    flip(folder / FIRST)
    flip(folder / THIRD)
    before = tree(here / "out")
    write(here / "pets.zip", zip_bytes({**MEMBERS, "train/cat.100.jpg": jpeg(seed=100)}))
    with pytest.raises(BuildError, match=r"source \(its content\)") as error:
        repaired(here)
    assert f"{FIRST}, {THIRD} stay damaged" in str(error.value)
    assert "\n" not in str(error.value)
    assert tree(here / "out") == before


def test_other_versions_are_refused(here: Path, folder: Path) -> None:
    """A manifest of a build with another Pillow, its own hash right."""
    manifest = load_manifest(folder)
    versions = {**manifest.fingerprint.versions, "pillow": "1.0"}
    fingerprint = manifest.fingerprint.model_copy(update={"versions": versions})
    other = manifest.model_copy(update={"fingerprint": fingerprint})
    write(folder / "manifest.json", other.dumps().encode())
    flip(folder / FIRST)
    with pytest.raises(BuildError, match=r"pillow \(1\.0, now .*stays damaged"):
        repaired(here)


@pytest.mark.parametrize("gone", [True, False])
def test_without_a_sound_manifest_nothing_is_repaired(here: Path, folder: Path, gone: bool) -> None:  # noqa: FBT001
    flip(folder / FIRST)
    if gone:
        (folder / "manifest.json").unlink()
    else:
        flip(folder / "manifest.json")
    before = tree(here / "out")
    with pytest.raises(DatasetError, match=r"build the dataset again"):
        repaired(here)
    assert tree(here / "out") == before


def test_rebuilt_bytes_that_differ_are_never_published(here: Path, folder: Path) -> None:
    """A manifest with another hash of a shard, its own hash right: no build can make that."""
    document = json.loads((folder / "manifest.json").read_text())
    document["splits"]["train"]["shards"][0]["sha256"] = "0" * 64
    write(folder / "manifest.json", Manifest.model_validate(document).dumps().encode())
    before = tree(here / "out")
    with pytest.raises(BuildError, match=rf"rebuilt bytes differ .*{FIRST}\).*not changed"):
        repaired(here)
    assert tree(here / "out") == before


def test_a_dataset_that_was_moved_is_refused(here: Path, folder: Path) -> None:
    flip(folder / FIRST)
    folder.rename(folder.with_name("2.0.0"))
    moved = folder.with_name("2.0.0")
    found = verify_dataset(LocalFiles.at(moved), decode=False, num_workers=1, watcher=Told())
    with pytest.raises(DatasetError, match=r"folder pets/1\.0\.0, and .*; move it to"):
        repair_dataset(found, str(here / "pets.zip"), num_workers=1, watcher=Quiet())


def test_an_unfinished_build_of_the_version_is_not_removed(here: Path, folder: Path) -> None:
    flip(folder / FIRST)
    work = here / "out" / "pets" / "1.0.0.incomplete"
    state = json.loads((folder / "manifest.json").read_text())["fingerprint"]
    state["options"]["quality"] = 50
    write(work / ".build.json", json.dumps(state).encode())
    write(work / ".parts" / f"{FIRST}.parquet", b"PAR1")
    before = tree(here / "out")
    with pytest.raises(BuildError, match="an unfinished build is here"):
        repaired(here)
    assert tree(here / "out") == before | {"pets/1.0.0.incomplete/.lock": b""}


def test_two_repairs_do_not_share_a_folder(here: Path, folder: Path) -> None:
    flip(folder / FIRST)
    with (
        locked(here / "out" / "pets" / "1.0.0.incomplete"),
        pytest.raises(ShardprepError, match=r"another build .*is using this"),
    ):
        repaired(here)


# --- the command line --------------------------------------------------------------------------


@pytest.fixture(name="shop")
def _shop(here: Path) -> Path:
    """Return a folder with a source, its dataset and the recipe."""
    keys = {"source": "pets.zip", "out": "out", **KEYS}
    recipe = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    write(here / "shardprep.toml", recipe.encode())
    return here


def test_a_build_with_raised_limits_is_repaired(tmp_path: Path) -> None:
    data = zip_bytes(MEMBERS)
    for i in range(9):
        data = zip_bytes({f"{i}.zip": data})
    source = write(tmp_path / "pets.zip", data)
    built = build(source, tmp_path / "out", **KEYS, max_depth=12)
    before = tree(built.path)
    flip(built.path / FIRST)
    done = shardprep.verify(built.path, repair=True, source=source, workers=1)
    assert not done.problems
    assert tree(built.path) == before
    with pytest.raises(shardprep.RecipeError, match="is read only for a repair; add"):
        shardprep.verify(built.path, source=source)


def test_verify_exits_3_repair_exits_0(shop: Path, folder: Path) -> None:
    before = tree(folder)
    good = run("verify", "--decode", cwd=shop)
    assert good.returncode == 0, good.stderr
    assert "5 shards, 40 records" in good.stdout
    assert good.stdout.strip().endswith("checked: no problem found")
    flip(folder / FIRST)
    bad = run("verify", cwd=shop)
    assert bad.returncode == 3
    assert bad.stderr == ""
    assert all(len(line) <= 80 for line in bad.stdout.splitlines())
    said = " ".join(bad.stdout.split())
    assert f"damaged {FIRST}, record" in said
    assert ".jpg: data CRC is" in said
    assert "2 problems found in 1 file" in said
    fixed = run("verify", "--repair", cwd=shop)
    assert fixed.returncode == 0, fixed.stderr
    assert "no problem found" in fixed.stdout
    assert tree(folder) == before


def test_verify_json_holds_every_problem(shop: Path, folder: Path) -> None:
    cut(folder / FIRST)
    done = run("verify", "--json", cwd=shop)
    assert done.returncode == 3
    facts = json.loads(done.stdout)
    lost = [problem for problem in facts["problems"] if problem["kind"] == "cut"]
    assert len(lost) > 5
    assert all(problem["file"] == FIRST and problem["key"] for problem in lost)
    assert lost[0]["record"] is not None
    repaired_json = run("verify", "--json", "--repair", cwd=shop)
    assert repaired_json.returncode == 0
    assert json.loads(repaired_json.stdout)["problems"] == []
    assert json.loads(repaired_json.stdout)["repaired"] == facts["problems"]


def test_an_impossible_repair_is_a_one_line_error(shop: Path, folder: Path) -> None:
    flip(folder / FIRST)
    write(shop / "pets.zip", zip_bytes(animals(8)))
    done = run("verify", "--repair", cwd=shop)
    assert done.returncode == 1
    assert f"{FIRST} stays damaged" in done.stderr.strip().splitlines()[-1]
    (shop / "shardprep.toml").unlink()
    lost = run("verify", folder, "--repair", cwd=shop)
    assert lost.returncode == 2
    assert lost.stderr.endswith("add --source with the folder or archive, or kaggle:SLUG\n")
    assert (lost.stdout, lost.stderr.count("\n")) == ("", 1)  # said before anything is verified
    gone = run("verify", folder, "--repair", "--source", "nothing.zip", cwd=shop)
    assert gone.returncode == 1
    assert "nothing.zip: no such file" in gone.stderr


def test_verify_takes_a_folder_without_a_manifest(shop: Path, folder: Path) -> None:
    """Also one that only the recipe names."""
    (folder / "manifest.json").unlink()
    for named in ((folder,), ()):
        done = run("verify", *named, cwd=shop)
        assert done.returncode == 3, done.stderr
        assert "missing   manifest.json: is missing" in done.stdout
        assert "5 shards, 40 records" in done.stdout
        assert "next      build the dataset again with --overwrite: " in done.stdout
        assert "--repair" not in done.stdout


def test_the_next_step_for_a_damaged_manifest_or_a_repacked_dataset_works(
    shop: Path, folder: Path
) -> None:
    copied = run("repack", folder, "--out", "copy", cwd=shop)
    assert copied.returncode == 0, copied.stderr
    copy = next((shop / "copy").rglob("manifest.json")).parent
    flip(next(copy.glob("*train.tfrecord*")))
    done = run("verify", copy, cwd=shop)
    assert "next      run `shardprep repack` again with --overwrite: the dataset was" in done.stdout
    again = run("repack", folder, "--out", "copy", "--overwrite", cwd=shop)
    assert again.returncode == 0, again.stderr
    flip(folder / "manifest.json")
    done = run("verify", folder, cwd=shop)
    assert "next      build the dataset again with --overwrite: the dataset has no" in done.stdout
    assert run("build", "--overwrite", cwd=shop).returncode == 0
    for place in (folder, copy):
        assert run("verify", place, cwd=shop).returncode == 0


def test_verify_of_an_unfinished_build_exits_1(shop: Path, folder: Path) -> None:
    folder.rename(folder.with_name("1.0.0.incomplete"))
    (folder.with_name("1.0.0.incomplete") / "manifest.json").unlink()
    for place in ("out", "out/pets/1.0.0.incomplete"):
        done = run("verify", place, cwd=shop)
        assert done.returncode == 1
        assert "the build is not finished: 3 of 43 images are rejected" in done.stderr


@pytest.mark.parametrize("place", ["copy", "pets/1.0.0", "pets"])
def test_the_next_line_for_a_copy_is_a_command_that_repairs_it(here: Path, place: str) -> None:
    """Nothing there names the source, and it may lie in a folder of any name."""
    built, away = here / "out" / "pets" / "1.0.0", here / "away of it"
    shutil.copytree(built, away / place)
    shard = next((away / place).glob("*.tfrecord*"))
    shard.write_bytes(shard.read_bytes()[:-9])
    done = run("verify", place, cwd=away)
    line = " ".join(done.stdout.partition("\nnext ")[2].split()).partition(" rebuilds the damaged")[
        0
    ]
    assert "--source SOURCE" in line
    for command in line.replace("SOURCE", shlex.quote(f"{here}/pets.zip")).split(" && "):
        words = shlex.split(command)
        if words[0] == "shardprep":
            done = run(*words[1:], cwd=away)
        else:
            subprocess.run(words, check=True, cwd=away)
    assert done.returncode == 0, done.stderr
    assert tree(next(away.rglob("manifest.json")).parent) == tree(built)
