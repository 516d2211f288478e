"""`shardprep bench`: four pipelines of the same images, a table, JSON and a picture."""

import io
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.benchmark import run as bench_run
from shardprep.benchmark.pipelines import PIPELINES, Pipeline, Source, naive
from shardprep.benchmark.result import (
    Benchmark,
    Round,
    Settings,
    Way,
    check_plot,
    union,
    write_plot,
)
from shardprep.benchmark.run import run_benchmark
from shardprep.cli.console import Terminal
from shardprep.cli.reports import print_benchmark
from shardprep.errors import DatasetError, RecipeError
from shardprep.reader.diagnosis.diagnosis import images_of
from tests.support.benchmark import TRACED, example
from tests.support.builders import build, png, write, zip_bytes
from tests.support.command import run
from tests.support.json_page import printed

NUM_IMAGES, BATCH_SIZE = 40, 8
SHORT = Settings(batch_size=BATCH_SIZE, seconds=0.05, rounds=2)


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    images = {f"train/{('cat', 'dog')[i % 2]}.{i}.png": png(seed=i) for i in range(NUM_IMAGES)}
    source = write(root / "pets.zip", zip_bytes(images))
    forms: dict[str, dict[str, Any]] = {
        "png": {"size": "32x24", "format": "png"},
        "raw": {"size": "32x24", "format": "raw"},
        "own sizes": {"size": "none", "format": "png"},
        "unlabelled": {"size": "32x24", "format": "png", "labels": "none"},
    }
    return {
        form: build(source, root / form, shards=4, **{"labels": "prefix", **keys}).path
        for form, keys in forms.items()
    }


def stored(folder: Path) -> Counter[bytes]:
    """Return the pixels of all images of a PNG dataset, read by Pillow."""
    import tensorflow as tf

    found: Counter[bytes] = Counter()
    for record in tf.data.TFRecordDataset([str(p) for p in folder.glob("*.tfrecord-*")]):
        example = tf.train.Example.FromString(record.numpy())
        data = example.features.feature["image"].bytes_list.value[0]
        found[np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).tobytes()] += 1
    return found


def epoch(folder: Path, name: str) -> list[Any]:
    """Return the images of one epoch of a pipeline."""
    shards = tuple(sorted(path.name for path in folder.glob("*.tfrecord-*")))
    batches = iter(PIPELINES[name].make(Source(folder, "train", shards, BATCH_SIZE)))
    found = [np.asarray(images_of(next(batches))) for _ in range(NUM_IMAGES // BATCH_SIZE)]
    assert {len(batch) for batch in found} == {BATCH_SIZE}
    return [image for batch in found for image in batch]


@pytest.mark.parametrize("form", ["png", "raw", "unlabelled"])
@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_yields_every_image_once_an_epoch(
    sets: dict[str, Path], form: str, name: str
) -> None:
    images = epoch(sets[form], name)
    if name == "naive":
        assert {image.dtype.name for image in images} == {"float32"}
        images = [np.round(image * 255) for image in images]
    seen = Counter(image.astype(np.uint8).tobytes() for image in images)
    expected = stored(sets["png"])
    if name == "tuned":  # parallel calls can mix the end of an epoch with the start of the next
        assert seen.keys() <= expected.keys()
        assert max(seen.values()) <= 2
    else:
        assert seen == expected


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "dataset"])
def test_images_that_differ_in_size_are_resized_with_tensorflow(
    sets: dict[str, Path], name: str
) -> None:
    assert {image.shape for image in epoch(sets["own sizes"], name)} == {(224, 224, 3)}


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Benchmark:
    """Measure a few pipelines: TensorFlow takes long to start."""
    table = {name: PIPELINES.get(name, Pipeline(name, naive)) for name in names}
    monkeypatch.setattr(bench_run, "PIPELINES", table)
    return run_benchmark(folder, "train", SHORT, lambda _: None)


def test_rounds_are_measured_after_the_first_batch(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = measured(sets["png"], monkeypatch, "dataset")
    (way,) = found.ways
    assert (way.problem, way.yields, len(way.rounds)) == ("", "uint8", SHORT.rounds)
    for one in way.rounds:
        assert one.num_images > 0
        assert one.num_images % BATCH_SIZE == 0
        assert one.elapsed_s >= SHORT.seconds
        assert one.first_batch_s > 0
    size = sum(path.stat().st_size for path in sets["png"].glob("*.tfrecord-*"))
    assert (found.num_records, found.num_bytes) == (NUM_IMAGES, size)


def test_the_type_of_the_images_is_measured(sets: dict[str, Path]) -> None:
    shards = tuple(sorted(path.name for path in sets["png"].glob("*.tfrecord-*")))
    source = Source(sets["png"], "train", shards, BATCH_SIZE)
    assert [bench_run.measure(name, source, 0.0)[1] for name in ("naive", "load")] == [
        "float32",
        "uint8",
    ]


def test_a_pipeline_that_cannot_run_has_its_problem(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, unknown = measured(sets["own sizes"], monkeypatch, "dataset", "nothing").ways
    assert "differ in size" in refused.problem
    assert unknown.problem == "KeyError: 'nothing'"
    monkeypatch.setattr(bench_run, "_begin", os.abort)  # each process dies at its start
    (died,) = measured(sets["png"], monkeypatch, "dataset").ways
    assert died.problem.startswith("BrokenProcessPool: ")
    assert not died.rounds


@pytest.mark.parametrize("split", ["test", "train[:50%]"])
def test_only_whole_splits_are_measured(sets: dict[str, Path], split: str) -> None:
    with pytest.raises(DatasetError, match="it has train"):
        run_benchmark(sets["png"], split, SHORT, lambda _: None)


def test_only_the_first_shards_of_a_large_split_are_read(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, *_ = sorted(sets["png"].glob("*.tfrecord-*"))
    monkeypatch.setattr(bench_run, "_MOST_BYTES", first.stat().st_size + second.stat().st_size)
    found = measured(sets["png"], monkeypatch, "dataset")
    assert found.num_records == NUM_IMAGES // 2
    assert found.ways[0].rounds


@pytest.mark.thorough
def test_bench_gives_json_and_a_picture(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, with two pipelines."""
    table = {name: PIPELINES[name] for name in ("load", "dataset")}
    monkeypatch.setattr(bench_run, "PIPELINES", table)
    picture = tmp_path / "bench.png"
    done = run(
        "bench", sets["png"], "--seconds", 0.1, "--rounds", 1, "--batch-size", BATCH_SIZE,
        "--json", "--plot", picture, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = printed(done.stdout, Benchmark)
    ways = {way["name"]: way for way in found["ways"]}
    assert list(ways) == list(table)
    assert {name: way["problem"] for name, way in ways.items() if way["problem"]} == {}
    assert all(way["images_s"] > 0 for way in ways.values())
    assert ways["load"]["yields"] == ways["dataset"]["yields"] == "uint8"
    # TensorFlow alone takes hundreds of megabytes. Each pipeline has its own peak.
    assert ways["dataset"]["peak_bytes"] < ways["load"]["peak_bytes"]
    assert [one["way"] for one in found["timelines"]] == [way for way in TRACED if way in table]
    for one in found["timelines"]:
        last = one["train"][-1][1]
        assert len(one["train"]) == 10
        assert all(end - start >= found["step_s"] * 0.99 for start, end in one["train"])
        assert one["read"], one["way"]
        assert one["decode"], one["way"]
        for row in ("read", "decode", "train"):
            flat = [time for span in one[row] for time in span]
            assert flat == sorted(flat)
            assert 0 <= flat[0] <= flat[-1] <= last
    assert Image.open(picture).format == "PNG"


@pytest.mark.thorough
def test_timelines_have_the_pace_of_the_fastest_pipeline_without_load(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`reader.load`, whose pace counts, cannot run without TensorFlow."""
    table = {"nothing": Pipeline("nothing", naive, is_traced=True), "dataset": PIPELINES["dataset"]}
    monkeypatch.setattr(bench_run, "PIPELINES", table)
    found = run_benchmark(sets["png"], "train", replace(SHORT, timelines=True), lambda _: None)
    assert [one.way for one in found.timelines] == ["dataset"]
    assert found.step_s == pytest.approx(BATCH_SIZE / found.ways[1].images_s)


def test_the_table_fits_80_columns_and_names_the_problem_of_a_pipeline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = example(tuned=Way("tuned", "ModuleNotFoundError: No module named 'tensorflow'"))
    print_benchmark(Terminal(), found)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    rows = {line[:14].strip(): line.split() for line in lines}
    assert rows["reader.load"][1:] == [
        "50,000", "33,333", "0.20", "s", "224", "MB", "uint8",
    ]  # fmt: skip
    assert rows["tuned tf.data"] == ["tuned", "tf.data", "-", "-", "-", "-", "-"]
    said = " ".join(" ".join(lines).split())
    assert "not run tuned tf.data: ModuleNotFoundError: No module named 'tensorflow'" in said


def test_the_median_of_the_rounds_counts() -> None:
    rounds = (Round(0.5, 100, 1.0, 1.0), Round(0.1, 900, 1.0, 1.5), Round(0.2, 200, 1.0, 0.5))
    way = Way.measured("load", rounds, "uint8", 1)
    assert (way.images_s, way.images_s_core, way.first_batch_s) == (200, 400, 0.2)


@pytest.mark.thorough
def test_the_picture_shows_our_readers_in_colour_and_timelines_if_any(tmp_path: Path) -> None:
    path = tmp_path / "bench.png"
    for found in (example(), replace(example(), timelines=())):
        write_plot(found, path)
        colours = Image.open(path).convert("RGB").getcolors(1 << 24) or []
        counts = {colour: count for count, colour in colours}
        assert counts[(0x0B, 0x6E, 0x99)] > 10_000
        assert ((0x5B, 0x8C, 0x3E) in counts) == bool(found.timelines)


def test_a_picture_that_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_plot(tmp_path / "bench.png")
    with pytest.raises(RecipeError, match=r"ends in \.png"):
        check_plot(tmp_path / "bench.jpg")
    with pytest.raises(RecipeError, match="does not exist"):
        check_plot(tmp_path / "nowhere" / "bench.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    with pytest.raises(RecipeError, match=r"pip install 'shardprep\[plot\]'"):
        check_plot(tmp_path / "bench.png")


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12))
def test_a_union_of_spans_covers_each_moment_once(spans: list[tuple[int, int]]) -> None:
    found = list(union(spans))
    covered = {moment for start, end in spans for moment in range(start, end)}
    assert {moment for start, end in found for moment in range(int(start), int(end))} == covered
    flat = [time for span in found for time in span]
    assert flat == sorted(set(flat))
