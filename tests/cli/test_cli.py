"""The command line: printed text, stdout and stderr, exit codes."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from PIL import Image

from shardprep import __version__
from shardprep.api import sample_archive
from shardprep.cli import app
from shardprep.reader import Dataset, load
from tests.support.builders import animals, encoded, jpeg, write, write_folder, zip_bytes
from tests.support.command import COMMAND_ERRORS, error_of, python, ran, run


@pytest.fixture(name="here")
def _here(tmp_path: Path) -> Path:
    write(tmp_path / "pets.zip", zip_bytes({**animals(20), "notes.txt": b"hello"}))
    return tmp_path


def test_build_and_inspect_need_no_options(here: Path) -> None:
    built = ran("build", "pets.zip", cwd=here)
    assert "inputs    21 = 20 written + 1 skipped" in built.stdout
    assert "0 cat, 1 dog" in built.stdout
    assert "20 images to 1 shard" in built.stderr
    assert "20 images to 1 shard" not in built.stdout
    seen = ran("inspect", cwd=here)
    assert seen.stderr == ""
    for words in ("pets 1.0.0", "tfrecords/pets/1.0.0", "cat", "dog", "224x224, RGB, jpeg"):
        assert words in seen.stdout
    assert all(len(line) <= 80 for line in seen.stdout.splitlines())
    facts = json.loads(run("inspect", "--json", cwd=here).stdout)
    manifest = json.loads((here / "tfrecords/pets/1.0.0/manifest.json").read_text())
    assert facts["manifest"] == manifest
    assert facts["formats"] == {"jpeg": 20}
    assert facts["original_width"] == {"smallest": 64, "median": 64, "largest": 64}


def test_inspect_shows_numeric_targets_and_stored_columns(here: Path) -> None:
    rows = "".join(f"{i},{i / 4},{i}\n" for i in range(8))
    images = {f"train/{i}.jpg": jpeg(seed=i) for i in range(8)} | {"test/99.jpg": jpeg()}
    write(here / "ages.zip", zip_bytes({**images, "train.csv": b"id,age,rank\n" + rows.encode()}))
    rule = ("--labels", "csv:train.csv:id:age", "--target", "regression", "--columns", "rank")
    assert run("build", "ages.zip", *rule, cwd=here).returncode == 0
    seen = run("inspect", cwd=here).stdout
    assert "target    a number each, 0 to 1.75, median 1; none: 1 in test" in seen
    assert "columns   rank" in seen


def test_the_recipe_in_this_folder_is_used_and_a_flag_overrides_it(here: Path) -> None:
    recipe = 'source = "pets.zip"\nname = "mine"\nsize = "32x32"\nmax-rejected = "1%"\n'
    write(here / "shardprep.toml", recipe.encode())
    assert run("build", "--size", "16x16", cwd=here).returncode == 0
    facts = json.loads(run("inspect", "--json", cwd=here).stdout)
    assert facts["manifest"]["name"] == "mine"
    assert facts["schema"]["features"]["image"]["shape"] == [16, 16, 3]


def test_parts_and_finalize_print_the_next_command(here: Path) -> None:
    first = ran("build", "pets.zip", "--shards", "3", "--part", "1/2", cwd=here)
    assert "this part: 13 images, 2 of the shards" in first.stderr
    assert first.stdout.startswith("part 1/2 is done: 2 of 3 shards; 13 images by this run in ")
    follow = first.stdout.split("          ")[-1].strip()
    assert follow == "shardprep finalize tfrecords/pets/1.0.0"
    early = error_of(run(*follow.split()[1:], cwd=here), 1)
    assert early.endswith("; run part 2 of 2 again: finished shards are not written again")
    second = run("build", "pets.zip", "--shards", "3", "--part", "2/2", "--json", cwd=here)
    facts = json.loads(second.stdout)
    assert facts.pop("elapsed_s") > 0
    assert facts == {
        "path": "tfrecords/pets/1.0.0", "part": "2/2", "was_there": False, "num_shards": 1,
        "num_all_shards": 3, "num_new_items": 7, "num_copied": 0,
    }  # fmt: skip
    done = run(*follow.split()[1:], "--json", cwd=here)
    result = json.loads(done.stdout)
    assert (result["path"], result["was_there"]) == ("tfrecords/pets/1.0.0", False)
    assert result["manifest"]["totals"]["num_written"] == 20
    assert "already exists" in run("finalize", cwd=here).stdout
    assert all(len(line) <= 80 for line in first.stdout.splitlines())


def test_finalize_without_an_argument_uses_the_recipe(here: Path) -> None:
    write(here / "shardprep.toml", b'source = "pets.zip"\nout = "sets"\nname = "mine"\n')
    nothing = error_of(run("finalize", cwd=here), 1)
    assert nothing.startswith("sets/mine/1.0.0: no part of a build was written here; run")
    run("build", "--part", "1/1", cwd=here)
    done = ran("finalize", cwd=here)
    assert done.stdout.startswith("sets/mine/1.0.0\n")


def test_the_dry_run_of_a_part_shows_that_part(here: Path) -> None:
    options = ("pets.zip", "--shards", "3", "--part", "1/2", "--dry-run")
    shown = run("build", *options, cwd=here).stdout
    assert shown.startswith("part 1/2: 2 of 3 shards\n")
    assert re.search(r"^train +13 +2 +13$", shown, re.MULTILINE)
    facts = json.loads(run("build", *options, "--json", cwd=here).stdout)
    assert (facts["part"], facts["splits"], facts["images"]) == ("1/2", {"train": 2}, {"train": 13})
    assert facts["num_all_shards"] == 3
    assert sorted(path.name for path in here.iterdir()) == ["pets.zip"]


@pytest.mark.parametrize("part", [(), ("--part", "1/1")])
def test_too_many_rejections_show_which_and_exit_1(here: Path, part: tuple[str, ...]) -> None:
    members = {**animals(8), "train/cat.9.jpg": b"not an image", "train/dog.9.jpg": b""}
    write(here / "pets.zip", zip_bytes(members))
    command = ("finalize",) if part else ("build", "pets.zip")
    if part:
        assert run("build", "pets.zip", *part, cwd=here).returncode == 0
    done = run(*command, cwd=here)
    assert error_of(done, 1).startswith("tfrecords/pets/1.0.0.incomplete: 2 of 10 images")
    assert "train/dog.9.jpg: the file is empty" in done.stderr
    accepted = ran(*command, "--max-rejected", "20%", cwd=here)
    assert "inputs    10 = 8 written + 2 rejected" in accepted.stdout


@pytest.mark.parametrize("case", COMMAND_ERRORS["usage"])
def test_wrong_arguments_exit_2_with_one_line(here: Path, case: str) -> None:
    arguments, said = COMMAND_ERRORS["usage"][case]
    assert said in error_of(run(*arguments.split(), cwd=here), 2)
    assert sorted(path.name for path in here.iterdir()) in (["pets.zip"], ["pets.zip", "tfrecords"])


def test_missing_and_damaged_files_are_one_line(here: Path) -> None:
    for command in ("inspect", "finalize"):
        assert "name the folder of a dataset" in error_of(run(command, cwd=here), 1)
    write(here / "file", b"")
    assert "cannot be written" in error_of(run("build", "pets.zip", "--out", "file", cwd=here), 1)
    damaged = write(here / "tfrecords/pets/1.0.0.incomplete/.build.json", b"{}")
    assert ".build.json: is damaged" in error_of(run("build", "pets.zip", cwd=here), 1)
    shutil.rmtree(damaged.parent)
    run("build", "pets.zip", cwd=here)
    (here / "tfrecords/pets/1.0.0/items.parquet").unlink()
    assert "items.parquet: is missing" in error_of(run("inspect", cwd=here), 1)


def test_garbage_is_collected_seldom(here: Path) -> None:
    """Imported modules are frozen. The collector stays on for code that runs at exit."""
    code = (
        "import atexit, gc, shardprep.__main__ as program\n"
        "def looks():\n"
        "    return sum(one['collections'] for one in gc.get_stats())\n"
        "before = looks()\n"
        "def show():\n"
        "    print(gc.isenabled(), gc.get_freeze_count() > 10_000, looks() - before < 10)\n"
        "atexit.register(show)\n"
        "program.main()\n"
    )
    done = python("-c", code, "--version", cwd=here, check=True)
    assert done.stdout.splitlines() == [f"shardprep {__version__}", "True True True"]


def test_sample_then_build_needs_no_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive has fewer images than the command draws."""
    monkeypatch.setattr(sample_archive, "NUM_IMAGES", 120)
    archive = sample_archive._archive()
    monkeypatch.setattr(sample_archive, "_archive", lambda: archive)
    sampled = ran("sample", cwd=tmp_path)
    assert "next: shardprep build --shards 20" in sampled.stdout
    assert run("sample", cwd=tmp_path).returncode == 0
    ran("build", "--shards", "20", cwd=tmp_path)
    facts = json.loads(run("inspect", "--json", cwd=tmp_path).stdout)
    manifest = facts["manifest"]
    assert len(manifest["splits"]["train"]["shards"]) == 20
    assert set(manifest["splits"]) == {"train", "validation", "test"}
    assert manifest["totals"]["rejected"] == {"truncated": 1}
    assert manifest["labels"]["names"] == ["circle", "square", "triangle"]


def test_odd_file_names_are_printed_and_stored(here: Path) -> None:
    members = {**animals(4), "train/cat [bold]?.7.jpg": b"y", "train/dog\u00e9\u4e2d.8.jpg": b"x"}
    write(here / "odd.zip", zip_bytes(members))
    done = ran("build", "odd.zip", "--max-rejected", "50%", "--labels", "none", cwd=here)
    assert "train/dogé中.8.jpg" in done.stdout


def test_profile_shows_every_stage_and_adds_up(here: Path) -> None:
    from shardprep.cli.summary import ANNOTATE, PARENT_STAGES, WORKER_STAGES

    shown = run("build", "pets.zip", "--profile", "--workers", "1", cwd=here).stdout
    stages = {*WORKER_STAGES, *PARENT_STAGES} - {ANNOTATE}
    for name in stages:
        assert f"\n{name} " in shown
    assert f"\n{ANNOTATE} " not in shown
    done = run("build", "pets.zip", "--profile", "--json", "--seed", "1", "--overwrite", cwd=here)
    result = json.loads(done.stdout)
    seconds = result["profile"]
    assert seconds.keys() == stages
    assert sum(seconds[name] for name in PARENT_STAGES) <= result["elapsed_s"]
    assert "profile" not in json.loads(
        run("build", "pets.zip", "--json", "--seed", "1", cwd=here).stdout
    )


@pytest.mark.parametrize("flags", [[], ["--instances"]])
def test_profile_accounts_for_masks(tmp_path: Path, flags: list[str]) -> None:
    from shardprep.cli.summary import ANNOTATE, WORKER_STAGES

    members = {f"images/{i}.jpg": jpeg(64, 64, seed=i) for i in range(4)}
    mask = encoded(Image.new("L", (64, 64), 255), "PNG")
    members |= {f"masks/{i}.png": mask for i in range(4)}
    write(tmp_path / "set.zip", zip_bytes(members))
    command = ["build", "set.zip", "--masks", "masks/{stem}.png", "--workers", "1", *flags]
    shown = run(*command, "--profile", cwd=tmp_path).stdout
    assert f"\n{ANNOTATE} " in shown
    done = run(*command, "--profile", "--json", "--seed", "1", "--overwrite", cwd=tmp_path)
    seconds = json.loads(done.stdout)["profile"]
    assert seconds[ANNOTATE] > 0
    assert seconds.keys() >= set(WORKER_STAGES)


@pytest.mark.parametrize("option", COMMAND_ERRORS["ranges"])
def test_an_error_about_a_number_names_its_range(option: str, tmp_path: Path) -> None:
    for value in ("-1", "1e30", "99999999999999999999"):
        error = error_of(run(*f"{option}={value}".split(), cwd=tmp_path), 2)
        assert COMMAND_ERRORS["ranges"][option] in " ".join(error.split())


def test_a_note_about_images_of_their_own_size_names_options_that_work(here: Path) -> None:
    note = "note batches need one image size, and this dataset does not state one"
    hint = ("", "", "")
    for more in (("--format", "keep", "--dry-run"), ("--format", "keep")):
        done = ran("build", "pets.zip", *more, cwd=here)
        words = " ".join(done.stdout.split())
        assert note in words, more
        (hint,) = re.findall(r"or read with (\w+)=\((\d+), (\d+)\)", words)
    crop: dict[str, Any] = {hint[0]: (int(hint[1]), int(hint[2]))}
    folder = here / "tfrecords" / "pets"
    for batches in (Dataset(folder).batches(4, **crop), load(folder, batch_size=4, **crop)):
        assert next(iter(batches))[0].shape == (4, 224, 224, 3)
    flags = ("--format", "keep", "--size", "224x224", "--fit", "crop", "--overwrite")
    assert note not in run("build", "pets.zip", *flags, cwd=here).stdout


def test_a_note_about_images_of_their_own_size_does_not_advise_to_cut_objects(
    tmp_path: Path,
) -> None:
    members = {f"{i}.jpg": jpeg(40, 60, seed=i) for i in range(2)}
    source = write_folder(tmp_path / "boxes", {**members, "0.txt": b"0 .5 .5 .9 .9", "1.txt": b""})
    flags = ("--boxes", "yolo", "--format", "keep", "--dry-run")
    words = " ".join(ran("build", source, *flags, cwd=tmp_path).stdout.split())
    assert "build with --size 224x224 --fit pad, because a crop may cut objects" in words
    done = ran("build", source, *flags, "--size", "224x224", "--fit", "pad", cwd=tmp_path)
    assert "batches need one image size" not in done.stdout


@pytest.mark.parametrize(
    ("fit", "line"),
    [
        ("crop", "48x32, RGB"),
        ("pad", "48x32 (pad), RGB"),
        ("stretch", "48x32 (stretch), RGB"),
        ("within", "at most 48x32 (within), RGB"),
        ("none", "original sizes, RGB"),
    ],
)
def test_the_line_of_images_says_how_they_were_fitted(fit: str, line: str, here: Path) -> None:
    flags = ["--format", "png", "--fit", fit, *(("--size", "48x32") if fit != "none" else ())]
    for command in (["build", "pets.zip", *flags, "--dry-run"], ["build", "pets.zip", *flags]):
        assert re.search(rf"images +{re.escape(line)}", run(*command, cwd=here).stdout)
    assert re.search(rf"images +{re.escape(line)}", run("inspect", cwd=here).stdout)


def test_images_and_datasets_without_labels_are_named(here: Path) -> None:
    done = run("build", "pets.zip", "--labels", "none", "--name", "none", cwd=here)
    assert "20 images to 1 shard, labels: none asked for" in done.stderr
    assert "\nlabels    none asked for\n" in run("inspect", cwd=here).stdout
    shutil.rmtree(here / "tfrecords")
    names = [*animals(20)]
    rows = "".join(f"{key},{i % 2}\n" for i, key in enumerate(names[:18]))
    write(here / "t.csv", f"id,label\n{rows}".encode())
    for more in ("--dry-run", "--quiet"):
        done = ran("build", "pets.zip", "--labels", "csv:t.csv:id:label", more, cwd=here)
        for key in names[18:]:
            assert f"          {key}: no label\n" in done.stdout
    facts = json.loads(run("inspect", "--json", cwd=here).stdout)
    assert facts["skipped"] == [{"key": key, "reason": "no label"} for key in sorted(names[18:])]


@pytest.mark.parametrize(
    ("arguments", "continues"),
    [
        ("build pets.zip", True),
        ("--log-level debug fetch s3://x/y", True),
        ("verify --repair", True),
        ("verify", False),
        ("bench", False),
        ("build pets.zip --dry-run", False),
    ],
)
def test_only_commands_that_continue_advise_to_run_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, *, continues: bool
) -> None:
    monkeypatch.setattr(app, "_command", mock.Mock(side_effect=app._InterruptedError))
    line = error_of(run(*arguments.split(), cwd=tmp_path), 130)
    hint = "; run the same command again to continue"
    assert line == "interrupted" + (hint if continues else "")


def test_classes_named_by_their_numbers_are_shown_as_a_range(here: Path) -> None:
    for name, classes in (("digits", "012"), ("odd", "135")):
        images = {f"{one}/{i}.jpg": jpeg() for one in classes for i in range(2)}
        write(here / f"{name}.zip", zip_bytes(images))
    assert "3 classes, 0 to 2 (by " in run("build", "digits.zip", cwd=here).stdout
    assert "0 1, 1 3, 2 5 (by " in run("build", "odd.zip", "--labels", "folder", cwd=here).stdout
