"""`shardprep.bench`: measure the reading speed of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import dataset_at, number
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.recipe.options import DATASET, Option
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.benchmark.result import Benchmark
    from shardprep.reader.selection.split_argument import AnySplit

OPTIONS = {
    "dataset": DATASET,
    "split": Option("Split or slice to read, such as train[:10%].", metavar="SPLIT"),
    "batch_size": Option("Images in a batch.", metavar="N", least=1, most=10**6),
    "seconds": Option(
        "Duration of each measurement in each round.", metavar="SECONDS", least=0.1, most=3_600
    ),
    "rounds": Option("Number of rounds; the median is reported.", metavar="N", least=1, most=1_000),
    "plot": Option(
        "Draw bars, and a timeline of reading, decoding and training.", metavar="FILE.png"
    ),
}


def bench(
    dataset: str | Path | None = None,
    *,
    split: AnySplit = "train",
    batch_size: int = 64,
    seconds: float = 2.0,
    rounds: int = 3,
    plot: str | Path | None = None,
    progress: Show | bool = False,
) -> Benchmark:
    """Compare the reading speed of plain tf.data, tfds and this package's readers.

    Raises:
        DatasetError: the dataset or the split does not exist.
        RecipeError: `plot` does not name a PNG file, or matplotlib is not installed.

    """
    from shardprep.benchmark.result import Settings, check_plot, write_plot
    from shardprep.benchmark.run import run_benchmark

    picture = None if plot is None else local_path(plot)
    if picture is not None:
        check_plot(picture)
    settings = Settings(
        batch_size=number("batch_size", batch_size, OPTIONS["batch_size"], int),
        seconds=number("seconds", seconds, OPTIONS["seconds"], float),
        rounds=number("rounds", rounds, OPTIONS["rounds"], int),
        timelines=picture is not None,
    )
    folder = dataset_at(dataset).folder("shardprep bench")
    with watched(progress) as watch:
        result = run_benchmark(folder, split, settings, watch.start)
    if picture is not None:
        write_plot(result, picture)
    return result
