"""`shardprep init`: what it sees is what a build with its recipe gives."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.catalog.survey import Survey, recipe_text, survey_source
from shardprep.errors import SourceError
from shardprep.recipe.document import read_recipe
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import animals, jpeg, write, write_folder, zip_bytes
from tests.support.builders import build as build_dataset
from tests.support.command import error_of, ran, run
from tests.writer.records import records


def survey(folder: Path, members: Mapping[str, bytes]) -> Survey:
    source = write(folder / "pets.zip", zip_bytes(members))
    return survey_source(source, folder / "work", lambda _: None)


def numbered(rows: str, count: int = 12) -> dict[str, bytes]:
    images = {f"train/{i:03d}.jpg": jpeg(seed=i, height=16, width=16) for i in range(count)}
    return {**images, "train.csv": rows.encode()}


SETS: dict[str, tuple[dict[str, bytes], str, str]] = {
    "file names": (animals(12), "prefix", "class"),
    "folders": (animals(6, folder="a/") | animals(6, folder="b/"), "folder", "class"),
    "a table": (
        numbered("id,breed\n" + "".join(f"{i:03d},{'pc'[i % 2]}ug\n" for i in range(12))),
        "csv:train.csv:id:breed",
        "class",
    ),
    "several labels": (
        numbered(
            "image,labels\n" + "".join(f"{i:03d},{('a', 'b', 'a b')[i % 3]}\n" for i in range(12))
        ),
        "csv:train.csv:image:labels",
        "multilabel",
    ),
    "a test set with strange names": (
        animals(24) | {f"test/{'abcdef'[i % 6]}{i:02}.jpg": jpeg(seed=i) for i in range(9)},
        "auto",
        "class",
    ),
    "nothing": ({f"{i}.jpg": jpeg(seed=i) for i in range(4)}, "none", "none"),
}


@pytest.mark.parametrize("case", SETS)
def test_the_proposed_rule_builds_the_same_as_auto(tmp_path: Path, case: str) -> None:
    members, rule, target = SETS[case]
    members = {k.replace("cat.", "") if case == "folders" else k: v for k, v in members.items()}
    if case == "folders":
        members = {k.replace("dog.", "9"): v for k, v in members.items()}
    seen = survey(tmp_path, members)
    assert (seen.chosen, seen.target) == (rule, target)
    write(tmp_path / "shardprep.toml", recipe_text(seen).encode())
    keys: dict[str, Any] = read_recipe(tmp_path / "shardprep.toml")
    make_recipe(keys, "shardprep.toml")
    del keys["source"]
    by_recipe = build_dataset(tmp_path / "pets.zip", tmp_path / "one", **keys)
    by_auto = build_dataset(tmp_path / "pets.zip", tmp_path / "two")
    assert by_recipe.manifest.labels.names == by_auto.manifest.labels.names
    counts = {split: s.label_counts for split, s in by_recipe.manifest.splits.items()}
    assert counts == {split: s.label_counts for split, s in by_auto.manifest.splits.items()}
    assert sum(sum(c.values()) for c in counts.values()) == sum(seen.classes.values())


def test_init_shows_tables_odd_files_and_rules(tmp_path: Path) -> None:
    members = {**SETS["a table"][0], "train/Thumbs.db": b"x", "notes.txt": b"x"}
    members["train/copy.jpg"] = members["train/003.jpg"]
    seen = survey(tmp_path, members)
    (table,) = seen.tables
    assert (table.name, table.num_rows, table.id_column) == ("train.csv", 12, "id")
    assert table.num_matched == 12
    assert seen.others == {".txt": 1}
    assert seen.skipped == {"junk": 1}
    assert seen.num_doubles == 1
    assert (seen.chosen, seen.rules) == ("csv:train.csv:id:breed", ())
    assert "dedup" in recipe_text(seen)


def test_binary_columns_are_proposed_as_labels(tmp_path: Path) -> None:
    rows = "".join(f"{i:03d},{i % 2},{-1 if i % 3 else 1},{i}\n" for i in range(12))
    seen = survey(tmp_path, numbered("id,scab,rust,patient\n" + rows))
    assert seen.chosen == "csv:train.csv:id:scab,rust"
    assert 'labels = "csv:train.csv:id:scab,rust"\n' in recipe_text(seen)


def test_a_source_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no image"):
        survey(tmp_path, {"notes.txt": b"x"})


def test_an_option_in_advice_that_only_build_has_is_said(tmp_path: Path) -> None:
    pages = {"0.jpg": jpeg(), "1.jpg": jpeg(), "t.csv": b"image,dog_breed\n0.jpg,a\n1.jpg,b\n"}
    folder = write_folder(tmp_path / "source", pages)
    advice = "give --labels column:dog_breed, or --labels none to store it unchanged"
    failed = run("init", folder, "--items", folder / "t.csv", cwd=tmp_path)
    assert f"{advice} (only shardprep build has --labels)" in failed.stderr
    failed = run("build", folder, "--items", folder / "t.csv", cwd=tmp_path)
    assert failed.stderr.rstrip().endswith(advice)


def test_init_writes_a_recipe_that_builds(tmp_path: Path) -> None:
    write(tmp_path / "pets.zip", zip_bytes(animals(12)))
    done = ran("init", cwd=tmp_path)
    assert "wrote shardprep.toml; next: shardprep build" in done.stdout
    assert "labels    prefix" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert run("build", cwd=tmp_path).returncode == 0
    assert "already exists" in error_of(run("init", cwd=tmp_path), 2)
    assert json.loads(run("init", "--overwrite", "--json", cwd=tmp_path).stdout)["num_images"] == 12


def test_a_limit_that_init_was_given_is_a_key_of_its_recipe(tmp_path: Path) -> None:
    write(tmp_path / "pets.zip", zip_bytes(animals(12)))
    said = error_of(run("init", "--max-depth", "0", cwd=tmp_path), 2)
    assert said.startswith("--max-depth: '0' is not a whole number from 1 to 64")
    said = error_of(run("init", "--max-unpacked", "1KB", cwd=tmp_path), 1)
    assert "; raise --max-unpacked if you trust the source" in said
    done = ran("init", "--max-members", "12", "--max-unpacked", "1MB", cwd=tmp_path)
    assert "images    12" in done.stdout
    keys = read_recipe(tmp_path / "shardprep.toml")
    limits = {key: value for key, value in keys.items() if key.startswith("max_")}
    assert limits == {"max_members": 12, "max_unpacked": 1_000_000}
    assert run("build", "--dry-run", cwd=tmp_path).returncode == 0


def test_init_shows_what_to_choose_for_images_without_a_yolo_file(tmp_path: Path) -> None:
    """A build with `--boxes yolo` alone would end with an error."""
    members = {f"images/{i}.jpg": jpeg(seed=i) for i in range(8)}
    texts = {f"labels/{i}.txt": b"0 0.5 0.5 0.25 0.25" for i in range(6)}
    write(tmp_path / "set.zip", zip_bytes({**members, **texts, "data.yaml": b"names: [cat]"}))
    shown = run("init", "set.zip", cwd=tmp_path)
    for share in ("background", "skip"):
        flags = ["--boxes", "yolo", "--unlisted", share]
        assert f"choose {' '.join(flags)}" in " ".join(shown.stdout.split())
        assert run("build", *flags, "--name", share, cwd=tmp_path).returncode == 0


def test_init_stores_a_few_images_without_a_yolo_file_as_background(tmp_path: Path) -> None:
    members = {f"images/{i}.jpg": jpeg(seed=i) for i in range(40)}
    texts = {f"labels/{i}.txt": b"0 0.5 0.5 0.25 0.25" for i in range(39)}
    write(tmp_path / "set.zip", zip_bytes({**members, **texts, "data.yaml": b"names: [cat]"}))
    run("init", "set.zip", cwd=tmp_path)
    assert 'unlisted = "background"' in (tmp_path / "shardprep.toml").read_text()
    assert run("build", cwd=tmp_path).returncode == 0


def test_without_exactly_one_archive_init_asks_for_one(tmp_path: Path) -> None:
    assert "no archive is in this folder" in error_of(run("init", cwd=tmp_path), 2)
    write_folder(tmp_path, {"a.zip": b"", "b.zip": b""})
    error = error_of(run("init", cwd=tmp_path), 2)
    assert "several archives are in this folder: a.zip, b.zip" in error


def test_a_table_of_several_targets_is_what_the_recipe_builds(tmp_path: Path) -> None:
    """As in csiro-biomass."""
    names = "Dry_Clover_g", "Dry_Dead_g", "GDM_g"
    rows = [
        f"{i:03d},{name},{i * 1.25 + place}" for i in range(12) for place, name in enumerate(names)
    ]
    members = numbered("\n".join(("id,target_name,target", *rows)))
    seen = survey(tmp_path, members)
    write(tmp_path / "shardprep.toml", recipe_text(seen).encode())
    keys: dict[str, Any] = read_recipe(tmp_path / "shardprep.toml")
    made = build_dataset(keys.pop("source"), tmp_path / "out", **keys)
    for i, (_, record) in enumerate(sorted(records(made.path).items())):
        assert record["targets"] == [i * 1.25, i * 1.25 + 1, i * 1.25 + 2]


def test_a_note_says_that_many_whole_numbers_may_be_numbers(tmp_path: Path) -> None:
    rows = "".join(f"{i:03d},{20 + i}\n" for i in range(24))
    source = write(tmp_path / "ages.zip", zip_bytes(numbered(f"id,age\n{rows}", 24)))
    options: dict[str, Any] = {"labels": "csv:train.csv:id:age", "dry_run": True}
    notes = shardprep.build(source, **options).plan.findings
    assert any("24 classes, which are whole numbers; --target vector" in one for one in notes)
    for target in ("class", "vector"):
        notes = shardprep.build(source, target=target, **options).plan.findings
        assert not any("whole numbers;" in one and "24 classes" in one for one in notes)
