"""`shardprep.repack`: merge datasets, or write their records into other shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.errors import OptionName, RecipeError
from shardprep.recipe.options import ARGUMENTS, BUILD_OPTIONS, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reader.array_types import Ints
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.writer.finalize import BuildResult

OPTIONS = {
    "datasets": Option(
        "Folders or addresses of one or several datasets, or a folder above them. Default: the "
        "dataset of ./shardprep.toml, otherwise the only dataset under ./tfrecords.",
        ARGUMENTS,
        is_repeated=True,
    ),
    "shards": replace(BUILD_OPTIONS["shards"], panel=""),
    "name": Option(
        "Name of the new dataset.", metavar="NAME", shown="the common name of the datasets"
    ),
    "version": Option("Version of the new dataset.", metavar="X.Y.Z", shown="1.0.0"),
    "out": replace(BUILD_OPTIONS["out"], panel="", shown="tfrecords"),
    "split": Option(
        "Records to take from each dataset, such as train[:10%]+validation.",
        metavar="SPLIT",
        shown="all",
    ),
    "seed": Option("Random seed of the order.", metavar="N", shown="seed of the first dataset"),
    "overwrite": Option("Replace an existing dataset when the new one is complete."),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def repack(
    datasets: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    *,
    shards: int | None = None,
    name: str | None = None,
    version: str | None = None,
    split: AnySplit | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Merge datasets, or write the records of a dataset into other shards, without decoding.

    Classes are merged by name. If several datasets have the same key, the name of the dataset is
    put in front. If the call is interrupted, the same call continues it.

    Raises:
        RecipeError: an option is malformed, or the images of the datasets were fitted differently.
        SchemaError: the datasets have different features.
        DatasetError: a dataset or the split does not exist, or a file is missing or damaged.
        RecordError: a record is damaged.
        BuildError: the target folder contains something else, or another process writes to it.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.recipe.recipe import make_recipe
    from shardprep.writer.repack import open_parent, repack_dataset

    is_one = datasets is None or isinstance(datasets, str | Path)
    wanted: list[str | Path | None] = [datasets] if is_one else [*datasets]  # type: ignore[list-item, misc]
    if not wanted:
        raise RecipeError("shardprep repack", "no dataset is named", "name at least one")
    with answering(store_timeout), watched(progress) as watch:
        opened = [dataset_at(place) for place in wanted]
        parents = [open_parent(parent, _numbers(parent, split)) for parent in opened]
        manifests = [parent.manifest for parent in parents]
        options = {
            "out": None if out is None else str(out),
            "shards": shards,
            "name": _name(manifests) if name is None else name,
            "version": version,
            "seed": manifests[0].seed if seed is None else seed,
        }
        given = {key: value for key, value in options.items() if value is not None}
        recipe = make_recipe(
            {"source": "-", "max_rejected": 1.0, "max_dropped": 1.0}, "shardprep repack", given
        )
        return repack_dataset(parents, recipe, watch, overwrite=overwrite)


def _name(manifests: Sequence[Manifest]) -> str:
    names = dict.fromkeys(manifest.name for manifest in manifests)
    if len(names) > 1:
        what = f"is needed to merge {' and '.join(names)}"
        raise RecipeError(OptionName("name"), what, "name the new dataset")
    return manifests[0].name


def _numbers(dataset: OpenDataset, split: AnySplit | None) -> Ints | None:
    """Return the record numbers of a split, or None for all records."""
    if split is None:
        return None
    from shardprep.reader.selection.split_argument import as_selection

    return as_selection(dataset.manifest, split).numbers
