"""`shardprep.bench`: how fast a dataset is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.api.arguments import checked, dataset_at
from shardprep.api.progress import watched
from shardprep.benchmark.result import Settings, check_plot, write_plot
from shardprep.benchmark.run import run_benchmark
from shardprep.recipe.options import MAX_BATCH, MAX_ROUNDS, MAX_SECONDS
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.api.progress import Show
    from shardprep.benchmark.result import Benchmark
    from shardprep.reader.selection.split_argument import AnySplit


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
    """Measure how fast the shards are read: plain tf.data, tfds and this package's readers.

    Args:
        dataset: its folder or one above it; None: what ./shardprep.toml builds, else the one
            dataset under ./tfrecords.
        split: the split to read, or a slice of it such as "train[:10%]", or a Selection; these two
            by this package's readers alone.
        batch_size: images in a batch.
        seconds: seconds that each pipeline is measured in each round.
        rounds: rounds for each pipeline; the median counts.
        plot: a PNG for bars and a timeline of read, decode and train.
        progress: takes each `Progress`; True shows them.

    Raises:
        DatasetError: there is no such dataset or split.
        RecipeError: matplotlib is needed for `plot`, or it is no name of a PNG.

    """
    picture = None if plot is None else local_path(plot)
    if picture is not None:
        check_plot(picture)
    settings = Settings(
        batch_size=checked("batch-size", batch_size, int, 1, MAX_BATCH),
        seconds=checked("seconds", seconds, float, 0.1, MAX_SECONDS),
        rounds=checked("rounds", rounds, int, 1, MAX_ROUNDS),
        timelines=picture is not None,
    )
    folder = dataset_at(dataset).folder("shardprep bench")
    with watched(progress) as watch:
        found = run_benchmark(folder, split, settings, watch.start)
    if picture is not None:
        write_plot(found, picture)
    return found
