"""`shardprep bench`: four pipelines of the same images, a table, and JSON."""

import io
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep.benchmark import run as bench_run
from shardprep.benchmark.pipelines import PIPELINES, Pipeline, Source, naive
from shardprep.benchmark.result import Benchmark, Round, Settings, Way
from shardprep.benchmark.run import run_benchmark
from shardprep.cli.console import Terminal
from shardprep.cli.reports import print_benchmark
from shardprep.errors import DatasetError
from shardprep.reader.diagnosis.steps import images_of
from tests.support.benchmark import example
from tests.support.builders import build, png, write, zip_bytes
from tests.support.command import ran
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
    with pytest.raises(DatasetError, match="use one of train"):
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
def test_bench_gives_json(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, with two pipelines."""
    table = {name: PIPELINES[name] for name in ("load", "dataset")}
    monkeypatch.setattr(bench_run, "PIPELINES", table)
    done = ran(
        "bench", sets["png"], "--seconds", 0.1, "--rounds", 1, "--batch-size", BATCH_SIZE,
        "--json", cwd=tmp_path,
    )  # fmt: skip
    found = printed(done.stdout, Benchmark)
    ways = {way["name"]: way for way in found["ways"]}
    assert list(ways) == list(table)
    assert {name: way["problem"] for name, way in ways.items() if way["problem"]} == {}
    assert all(way["images_s"] > 0 for way in ways.values())
    assert ways["load"]["yields"] == ways["dataset"]["yields"] == "uint8"
    # TensorFlow alone takes hundreds of megabytes. Each pipeline has its own peak.
    assert ways["dataset"]["peak_bytes"] < ways["load"]["peak_bytes"]


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
