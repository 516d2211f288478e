"""Comparison of a dataset with a source: whether its images come from it, byte for byte."""

from __future__ import annotations

from shardprep.dataset.manifest import REPACKED
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.source_difference import SourceDifference, compare_originals
from shardprep.errors import DatasetError
from shardprep.progress import Watcher
from shardprep.writer.originals import hash_originals
from shardprep.writer.plan.plan import recorded_recipe


def compare_source(
    dataset: OpenDataset, source: str, *, num_threads: int, watcher: Watcher
) -> SourceDifference:
    """Return the differences between a dataset and a source; nothing is decoded.

    The options in the manifest decide which images of the source count.

    Args:
        dataset: the dataset; its shards are not read.
        source: a folder, an archive or an address.
        num_threads: threads that read and hash, at least 1.
        watcher: receives the progress.

    Raises:
        DatasetError: a document of the dataset is damaged, or it was repacked from others.
        SourceError, StorageError: the source cannot be read, or has no image that is wanted.

    """
    manifest = dataset.manifest
    if REPACKED in manifest.fingerprint.versions:
        what = "was repacked from other datasets, so it has no source"
        raise DatasetError(str(dataset), what, "compare the datasets that it was repacked from")
    items = dataset.item_rows(("key", "status", "original_sha256"), intact=True)
    out = str(dataset).removesuffix(f"/{manifest.name}/{manifest.version}")
    originals = hash_originals(
        recorded_recipe(manifest, source, out or "/"),
        items,
        is_annotated=bool(dataset.schema.annotations),
        num_threads=num_threads,
        watcher=watcher,
    )
    return compare_originals(source, items, originals)
