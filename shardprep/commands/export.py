"""`shardprep.export`: a dataset in the layout of another library."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from shardprep.commands.progress import watched
from shardprep.commands.resolve import answering, dataset_at
from shardprep.exporter.export import export_dataset
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.commands.progress import Show
    from shardprep.exporter.export import Exported


def export(
    dataset: str | Path | None = None,
    *,
    to: Literal["webdataset", "parquet", "folder", "tfod"],
    out: str | Path | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Exported:
    """Write a dataset in the layout of another library; stored images are copied as they are.

    An export that was interrupted goes on where it stopped when it is called again.

    Args:
        dataset: its folder or address, or one above it; None: what ./shardprep.toml builds, else
            the one dataset under ./tfrecords.
        to: the layout.
        out: the folder that the export becomes; None: exports/NAME-VERSION-LAYOUT.
        overwrite: replace another export, once the new one is complete.
        store_timeout: seconds that object storage may be silent.
        progress: takes each `Progress`; True shows them.

    Raises:
        DatasetError: there is no such dataset, or a file of it is missing or damaged.
        RecipeError: there is no such layout, or the dataset does not fit it.
        BuildError: something else is there, or another export is at work.

    """
    start_s = time.monotonic()
    folder = None if out is None else local_path(out)
    with answering(store_timeout), watched(progress) as watch:
        done = export_dataset(dataset_at(dataset), to, folder, watcher=watch, overwrite=overwrite)
    return replace(done, elapsed_s=time.monotonic() - start_s)
