"""`shardprep.export`: write a dataset in the layout of another library."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardprep.api.arguments import answering, dataset_at
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.recipe.options import DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.exporter.export import Chosen, Exported
    from shardprep.reader.selection.split_argument import AnySplit

OPTIONS = {
    "dataset": DATASET,
    "to": Option("Layout: webdataset, parquet, folder, tfod, coco or yolo.", metavar="LAYOUT"),
    "out": Option("Folder of the export.", metavar="DIR", shown="exports/NAME-VERSION-LAYOUT"),
    "split": Option(
        "Records to write, such as train[:10%]+validation.", metavar="SPLIT", shown="all"
    ),
    "overwrite": Option("Replace an existing export when the new one is complete."),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def export(
    dataset: str | Path | None = None,
    *,
    to: Literal["webdataset", "parquet", "folder", "tfod", "coco", "yolo"],
    out: str | Path | None = None,
    split: AnySplit | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Exported:
    """Write a dataset in the layout of another library; stored images are copied unchanged.

    If an export is interrupted, the same call continues it.

    Raises:
        DatasetError: the dataset or the split does not exist, or a file is missing or damaged.
        RecipeError: the layout is unknown, or does not fit the dataset.
        BuildError: the target folder contains something else, or another export writes to it.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.exporter.export import export_dataset

    start_s = time.monotonic()
    folder = None if out is None else local_path(out)
    with answering(store_timeout), watched(progress) as watch:
        opened = dataset_at(dataset)
        result = export_dataset(
            opened, to, folder, watcher=watch, chosen=_chosen(opened, split), overwrite=overwrite
        )
    return replace(result, elapsed_s=time.monotonic() - start_s)


def _chosen(dataset: OpenDataset, split: AnySplit | None) -> Chosen | None:
    from shardprep.exporter.export import Chosen

    if split is None:
        return None
    from shardprep.reader.selection.split_argument import as_selection

    selection = as_selection(dataset.manifest, split)
    return Chosen(selection.name, selection.numbers)
