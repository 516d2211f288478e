"""The Python API: results, errors, Ctrl-C, threads; nothing is printed or left behind."""

import inspect
import json
import os
import re
import textwrap
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import shardprep
from shardprep.errors import QuestionError, ShardprepError, name_options_as_flags
from shardprep.progress import Progress
from shardprep.recipe.options import spelled
from tests.support.builders import animals, jpeg, png, tree, write, write_folder, zip_bytes
from tests.support.command import Done, python, run, run_process
from tests.support.processes import loaded, run_program

WORKERS = """
def workers():
    server = forkserver._forkserver._forkserver_pid
    status = [p.read_text() for p in pathlib.Path("/proc").glob("[0-9]*/stat") if p.exists()]
    return [one for one in status if int(one.rpartition(")")[2].split()[1]) == server]
"""


@pytest.fixture(autouse=True)
def _as_python() -> Iterator[None]:
    """Let errors name options as a caller from Python sees them."""
    name_options_as_flags(yes=False)
    yield
    name_options_as_flags()


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "pets.zip", zip_bytes(animals(24)))
    return tmp_path


def script(here: Path, code: str) -> Done:
    return python(write(here / "script.py", textwrap.dedent(code).encode()), cwd=here)


def test_each_function_returns_what_its_command_prints(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reports: list[Progress] = []
    plan = shardprep.build("pets.zip", size="32x32", shards=2, dry_run=True)
    assert plan.images == {"train": 24}
    assert plan.splits == {"train": 2}
    assert not (here / "tfrecords").exists()
    built = shardprep.build("pets.zip", size=(32, 32), shards=2, workers=1, progress=reports.append)
    assert (built.num_new_items, built.was_there) == (24, False)
    assert shardprep.build(here / "pets.zip", size=32, shards=2).was_there
    part = shardprep.build("pets.zip", "parts", part="1/1", size="32x32", shards=2, workers=1)
    assert (part.num_shards, part.num_all_shards) == (2, 2)
    whole = shardprep.finalize(here / "parts")
    facts = shardprep.inspect()
    assert facts.manifest.splits["train"].label_counts == {"cat": 12, "dog": 12}
    assert facts.manifest == built.manifest
    found = shardprep.verify(decode=True)
    assert not found.problems
    assert shardprep.diff("tfrecords", "parts").is_equal
    report = shardprep.report("tfrecords", output="pets.html", thumbs=1)
    assert (report.num_records, report.num_measured, report.keys("leaks")) == (24, 24, ())
    page = report.html()
    assert (here / "pets.html").read_text("ascii") == page
    assert page.startswith("<!doctype html>")
    options = page.split("Build options that are not the default")[1].split("</table>")[0]
    assert re.findall('<th scope="row">(.*?)</th>', options) == ["shards", "size"]
    survey = shardprep.init("pets.zip")
    assert survey.classes == {"cat": 12, "dog": 12}
    out, errors = capfd.readouterr()
    assert (out, errors) == ("", ""), "a function prints nothing"
    assert reports[-1] == Progress(), "the end is reported"
    last = [one for one in reports if one.what][-1]
    assert (last.num_done, last.total, last.unit) == (24, 24, "images")
    assert reports[0].notice.startswith("24 images to 2 shards")

    (here / "shardprep.toml").unlink()
    command = ("build", "pets.zip", "--size", "32x32", "--shards", "2", "--out", "told", "--json")
    done = run_process(*command, cwd=here, check=True)
    printed = json.loads(done.stdout)
    assert printed["manifest"] == json.loads(built.manifest.model_dump_json())
    assert tree(Path(printed["path"])) == tree(Path(built.location)) == tree(Path(whole.location))


@pytest.mark.usefixtures("here")
def test_a_repair_restores_the_bytes_and_returns_the_problems() -> None:
    built = shardprep.build("pets.zip", size="32x32", workers=1)
    before = tree(built.path)
    shard = next(built.path.glob("*.tfrecord-*"))
    shard.write_bytes(shard.read_bytes()[:-9])
    problems = shardprep.verify().problems
    assert {one.kind for one in problems} >= {"size"}
    found = shardprep.verify(repair=True, source="pets.zip", workers=1)
    assert (found.problems, found.repaired) == ((), problems)
    assert tree(built.path) == before
    assert shardprep.verify(repair=True, source="pets.zip").repaired is None, "there was no need"


def test_an_error_says_where_what_and_what_to_do_with_names_of_keywords(here: Path) -> None:
    with pytest.raises(shardprep.RecipeError) as wrong:
        shardprep.build("pets.zip", quality=101)
    assert (wrong.value.where, wrong.value.what) == (
        "quality",
        "101 is not a whole number from 1 to 100",
    )
    with pytest.raises(shardprep.RecipeError, match="qualty: unknown key; is quality meant"):
        shardprep.build("pets.zip", qualty=90)  # type: ignore[call-overload]
    with pytest.raises(shardprep.RecipeError, match=r"^part: 'x' is not I/N"):
        shardprep.build("pets.zip", part="x")
    for wrong_number in (0, -1, True, 1.5, "two"):
        with pytest.raises(shardprep.RecipeError, match=r"^workers: .* is not a whole number"):
            shardprep.build("pets.zip", workers=wrong_number)  # type: ignore[arg-type]
    shardprep.build("pets.zip", size=32, workers=1)
    with pytest.raises(shardprep.BuildError) as other:
        shardprep.build("pets.zip", size=16, workers=1)
    assert "add overwrite to replace it" in other.value.hint
    write(here / "shardprep.toml", b"")
    with pytest.raises(shardprep.RecipeError, match="add overwrite to replace it"):
        shardprep.init("pets.zip")
    with pytest.raises(shardprep.DatasetError, match="nowhere"):
        shardprep.inspect("nowhere")
    assert isinstance(other.value, shardprep.ShardprepError)


def test_the_error_for_too_many_rejected_images_has_the_totals(here: Path) -> None:
    write(here / "bad.zip", zip_bytes(animals(6) | {"train/cat.9.jpg": b"no image"}))
    with pytest.raises(shardprep.TooManyRejectedError) as many:
        shardprep.build("bad.zip", size=32, workers=1, save_rejected="rejected")
    assert many.value.manifest.totals.rejected == {"not_an_image": 1}
    assert "max_rejected" in many.value.hint
    assert len([*(here / "rejected").rglob("*.jpg")]) == 1
    given = {"size": 32, "workers": 1, "max_rejected": "20%"}
    assert shardprep.build("bad.zip", **given).manifest.totals.num_written == 6  # type: ignore[call-overload]


def test_too_many_rejections_name_the_reason_and_its_remedy_also_when_inspected(here: Path) -> None:
    for n, width in enumerate((20, 20, 20, 24)):
        for m, side in enumerate((20, width)):
            write(here / "set" / f"s{n}" / f"{m}.png", png(20, side))
    given: Any = {"stack": "{id}/*.png", "labels": "none", "workers": 1}
    with pytest.raises(shardprep.TooManyRejectedError) as many:
        shardprep.build("set", size="none", **given)
    reason = "1 bad_stack, such as s3: 1.png: is 24x20 pixels, but the first image is 20x20"
    assert many.value.what.endswith(reason)
    way = 'build again with size="20x20", and overwrite, or run again with a higher max_rejected'
    assert many.value.hint.startswith(way)
    with pytest.raises(shardprep.DatasetError) as unfinished:
        shardprep.inspect("tfrecords")
    assert unfinished.value.what.endswith(reason)
    assert unfinished.value.hint.startswith(
        'build again with size="20x20", and overwrite, or run the'
    )
    result = shardprep.build("set", size="20x20", overwrite=True, **given)
    assert result.manifest.totals.num_written == 4


def test_no_higher_limit_is_proposed_if_all_images_are_rejected(here: Path) -> None:
    write(here / "bad.zip", zip_bytes({f"train/cat.{n}.jpg": b"no image" for n in range(3)}))
    with pytest.raises(shardprep.TooManyRejectedError) as many:
        shardprep.build("bad.zip", size=32, workers=1)
    assert many.value.hint == "correct the images, or give another source"


def test_an_oserror_becomes_a_shardpreperror(here: Path) -> None:
    shardprep.build("pets.zip", size=32, workers=1)
    with pytest.raises(shardprep.ShardprepError):
        shardprep.sample(here / "pets.zip" / "inside")


def test_ids_without_an_image_warn_once_also_without_progress(tmp_path: Path) -> None:
    rows = [{"image": key, "label": "a"} for key in (*animals(3), "x")]
    write(tmp_path / "rows.jsonl", "\n".join(map(json.dumps, rows)).encode())
    source = write(tmp_path / "set.zip", zip_bytes(animals(3)))
    for option in ("items", "labels"):
        keys: dict[str, Any] = {option: rows, "size": 16}
        for dry_run in (True, False):
            with pytest.warns(shardprep.reader.Advice, match=r"1 of 4 entries \(25%\) fit") as said:
                shardprep.build(source, tmp_path / option, dry_run=dry_run, **keys)
            assert [one.filename for one in said] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = run("build", "set.zip", "--items", "rows.jsonl", "--size", 16, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("fit no image")) == (0, 1)


@pytest.mark.usefixtures("here")
def test_the_timeout_applies_to_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_STORE_TIMEOUT", "77")
    seen: list[str] = []
    shardprep.build(
        "pets.zip",
        size=32,
        workers=1,
        store_timeout=5,
        progress=lambda _: seen.append(os.environ["SHARDPREP_STORE_TIMEOUT"]),
    )
    assert set(seen) == {"5"}
    assert os.environ["SHARDPREP_STORE_TIMEOUT"] == "77"


@pytest.mark.usefixtures("here")
def test_a_profile_covers_one_build() -> None:
    first = shardprep.build("pets.zip", size=32, workers=1, profile=True)
    assert first.profile is not None
    assert first.profile["decode"] > 0
    assert shardprep.build("pets.zip", "again", size=32, workers=1).profile is None
    there = shardprep.build("pets.zip", size=32, profile=True)
    assert not (there.profile or {}).get("decode")


@pytest.mark.thorough
def test_a_script_needs_no_main_guard(here: Path) -> None:
    """Workers do not run the script again."""
    done = script(
        here,
        """
        import shardprep
        from shardprep.verifier import dataset
        print("begins")
        dataset._WORKER_BYTES = 1  # as many processes as for a large dataset
        found = shardprep.build("pets.zip", size=32, shards=4, workers=2)
        print(found.num_new_items, len(shardprep.verify(workers=2).problems))
        """,
    )
    assert done.stderr == ""
    assert done.stdout == "begins\n24 0\n"


@pytest.mark.thorough
def test_tensorflow_in_the_program_changes_no_byte_of_the_manifest(tmp_path: Path) -> None:
    """TensorFlow has its own zlib, with another version than the one that workers use."""
    source = write(tmp_path / "pets.zip", zip_bytes(animals(24)))
    code = """
        import sys, shardprep
        assert "tensorflow" {} sys.modules
        shardprep.build(sys.argv[1], sys.argv[2], size=32, workers=1)
        """
    run_program(code.format("in"), source, tmp_path / "beside")
    run_program(code.format("not in"), source, tmp_path / "plain", framework="none")
    assert tree(tmp_path / "beside/pets/1.0.0") == tree(tmp_path / "plain/pets/1.0.0")


@pytest.mark.usefixtures("here")
def test_two_threads_build_at_the_same_time() -> None:
    found: dict[str, Any] = {}

    def build(out: str) -> None:
        found[out] = shardprep.build("pets.zip", out, size=32, workers=1)

    threads = [threading.Thread(target=build, args=(name,)) for name in ("one", "two")]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert tree(found["one"].path) == tree(found["two"].path)


def test_ctrl_c_leaves_no_worker_and_a_resumable_build(here: Path) -> None:
    done = script(
        here,
        f"""
        import os, pathlib, signal, time
        from multiprocessing import forkserver
        import shardprep
        {textwrap.indent(WORKERS, " " * 8).strip()}
        seen = []
        def stop(now):
            seen.append(now.num_done)
            if now.num_done >= 12:
                print("at work:", bool(workers()))
                os.kill(os.getpid(), signal.SIGINT)
        try:
            shardprep.build("pets.zip", size=32, shards=6, workers=2, progress=stop)
        except KeyboardInterrupt:
            print("interrupted")
        until = time.monotonic() + 60
        while workers() and time.monotonic() < until:
            time.sleep(0.01)
        print("left:", len(workers()))
        found = shardprep.build("pets.zip", size=32, shards=6, workers=2)
        print(0 < found.num_new_items < 24, found.manifest.totals.num_written)
        """,
    )
    assert done.stdout.splitlines() == ["at work: True", "interrupted", "left: 0", "True 24"]
    other = shardprep.build("pets.zip", "other", size=32, shards=6, workers=1)
    assert tree(here / "tfrecords/pets/1.0.0") == tree(other.path)


@pytest.mark.usefixtures("here")
def test_an_exception_of_progress_ends_the_build_and_is_raised() -> None:
    def fail(now: Progress) -> None:
        if now.num_done:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shardprep.build("pets.zip", size=32, workers=1, progress=fail)
    assert shardprep.build("pets.zip", size=32, workers=1).manifest.totals.num_written == 24


def test_importing_the_package_costs_nothing() -> None:
    heavy = {"tensorflow", "numpy", "pyarrow", "PIL", "pydantic", "rich", "typer", "kaggle"}
    assert not loaded("import shardprep") & (heavy | {"importlib.metadata", "multiprocessing"})
    assert any(import_us() < 60_000 for _ in range(5)), "on a busy machine, most are slower"


def import_us() -> int:
    """Return the microseconds that a fresh process takes to import the package."""
    found = python("-X", "importtime", "-c", "import shardprep", cwd=Path(), check=True)
    *_, last = found.stderr.splitlines()
    return int(last.split("|")[1])


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_functions_import_neither_tensorflow_nor_the_command_line_nor_masked_arrays() -> None:
    """Masked arrays take 10 ms; the first `numpy.unique` of numbers alone would import them."""
    without = "from shardprep.processes import without_pandas; without_pandas()"
    work = 'shardprep.build("pets.zip", size=32, workers=1); shardprep.verify()'
    found = loaded(f"{without}; import shardprep; {work}")
    assert not found & {"tensorflow", "keras", "typer", "IPython", "numpy.ma"}


def test_the_package_lists_its_names_and_knows_no_others() -> None:
    assert {*shardprep.__all__} <= {*dir(shardprep)}
    assert all(getattr(shardprep, name) is not None for name in shardprep.__all__)
    assert inspect.isfunction(shardprep.build)
    with pytest.raises(AttributeError, match="no attribute 'biuld'"):
        _ = shardprep.biuld


@pytest.mark.usefixtures("here")
def test_true_shows_progress_on_stderr_alone(capfd: pytest.CaptureFixture[str]) -> None:
    shardprep.build("pets.zip", size=32, workers=1, progress=True)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("24 images to 1 shard")


FRAME = pd.DataFrame({"image_id": ["q1", "q2"], "kind": ["a", "b"]})
PAIRS = pd.DataFrame({"one": ["cat.0", "cat.1"], "two": ["cat.1", "cat.0"], "label": [0, 1]})
TOLD: dict[str, dict[str, Any]] = {
    "the data frame: none of its columns has names of images in the source: image_id (q1), kind "
    "(a); write names such as train/cat.0.jpg": {"labels": FRAME},
    "the data frame: columns 'one' and 'two' name different images in a row; drop one of these "
    "columns": {"labels": PAIRS},
    'group="site": needs a label table with this column, but the source has no label table; use '
    'join=frame, or group="regex:PATTERN"': {"labels": "none", "group": "site"},
    "columns: needs a label table; use join=frame": {"labels": "none", "columns": "age"},
    'split="column": needs a label table, but the source has none; use join=frame': {
        "labels": "none",
        "split": "column:fold",
    },
    "items: has no column of images: its columns are 0, 1; give the column or index of image "
    "paths the name image": {"items": pd.DataFrame([["cat.0.jpg", "a"]])},
}


@pytest.mark.parametrize("says", TOLD)
@pytest.mark.usefixtures("here")
def test_a_call_is_told_of_frames_and_keywords_and_not_of_files_and_flags(says: str) -> None:
    with pytest.raises(ShardprepError) as caught:
        shardprep.build("pets.zip", dry_run=True, **TOLD[says])
    assert str(caught.value) == says


@pytest.mark.usefixtures("here")
def test_ids_of_a_frame_of_corrections_that_name_no_image_are_shown_beside_a_key() -> None:
    built, says = shardprep.build("pets.zip", size=16, workers=1), next(iter(TOLD))
    with pytest.raises(ShardprepError, match=re.escape(says)):
        shardprep.build("pets.zip", dry_run=True, relabel=FRAME)
    with pytest.raises(ShardprepError, match=re.escape(says.rpartition("train/")[0])):
        shardprep.repack(built.path, "again", relabel=FRAME)


def test_the_readings_of_a_question_are_keywords_in_python(here: Path) -> None:
    table = "id,kind,colour\n" + "".join(
        f"{i},{'ab'[i % 2]},{'rg'[i // 2 % 2]}\n" for i in range(6)
    )
    images = {f"{i}.jpg": jpeg(seed=i) for i in range(6)}
    source = write_folder(here / "s", images | {"t.csv": table.encode()})
    with pytest.raises(QuestionError) as caught:
        shardprep.build(source, dry_run=True)
    flags = [one.flags for one in caught.value.choices]
    assert flags == ['labels="csv:t.csv:id:kind"', 'labels="csv:t.csv:id:colour"']
    assert caught.value.lines[-1] == "Repeat the call with the options of one of them."
    plan = shardprep.build(source, dry_run=True, labels="csv:t.csv:id:kind")
    assert plan.labels == ["a", "b"]
    assert (
        spelled({"instances": True, "exclude": ("a", "b")}) == 'instances=True, exclude=["a", "b"]'
    )
