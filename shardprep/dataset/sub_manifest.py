"""The manifest of some records of a dataset, with the counts of these alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from shardprep.dataset.item_table import Tally, rows_by_shard
from shardprep.image.spec import ImageSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema

COLUMNS = (
    "status", "kind", "reason", "shard", "length", "label", "labels", "target", "text",
    "original_width", "original_height", "original_bytes", "original_sha256",
)  # fmt: skip
"""Columns of the item table that the counts are made of; `ANNOTATION_COLUMNS` besides, if any."""


def excerpt(manifest: Manifest, schema: Schema, written: pa.Table) -> Manifest:
    """Return a manifest whose counts and sizes are those of some records alone.

    Splits and shards without one of them are left out; names and hashes stay those of the whole
    files. Enlarged images are not counted, and there are no rejected and skipped inputs.

    Args:
        manifest: of the dataset.
        schema: of the dataset.
        written: rows of the records in their order, `COLUMNS` at least; one or more.

    """
    tally = Tally(ImageSpec(size=None, fit="none"))
    rows = rows_by_shard(written)
    for split, one in manifest.splits.items():
        for shard in one.shards:
            if shard.name in rows:
                own = rows[shard.name]
                size = {"num_records": len(own), "num_bytes": pc.sum(own["length"]).as_py() or 0}
                tally.add(shard.model_copy(update=size), split, own)
    return manifest.model_copy(
        update={
            "splits": tally.splits(schema.labels),
            "totals": tally.totals(Counter()),
            "annotations": tally.annotations(schema),
        }
    )
