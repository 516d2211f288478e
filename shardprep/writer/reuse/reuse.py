"""Reuse: a build that copies the images another dataset has stored, and encodes the others.

An item is told by its key, or where it has moved by its file name and size; whether the bytes are
the same its SHA-256 says, once the source is read. The bytes of the new dataset are those of a
build without it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset import item_table
from shardprep.dataset.manifest import REPACKED, Fingerprint, fingerprint_differences
from shardprep.dataset.open_dataset import ManifestMark, OpenDataset
from shardprep.image.spec import ImageSpec
from shardprep.writer.encode.chunk_encoder import ChunkEncoder
from shardprep.writer.engine.job import Encoder
from shardprep.writer.plan.fingerprint import (
    SPLIT_RATIOS,
    fit_version,
    recorded_recipe,
    used_versions,
    versions,
)
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.reuse.reuse_encoder import ReuseEncoder
from shardprep.writer.reuse.stored_records import with_files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    Rows = np.ndarray[Any, np.dtype[np.int64]]

_COLUMNS = (
    "key", "status", "reason", "shard", "offset", "length", "label", "labels", "target", "text",
    "original_width", "original_height", "original_format", "original_bytes", "original_sha256",
)  # fmt: skip
_SHAPE_NO_IMAGE = frozenset({"pyarrow", "pycocotools", REPACKED, SPLIT_RATIOS})
"""Names of versions that shape items, annotations and their order alone, which are made anew."""


@dataclass(frozen=True, slots=True)
class OldDataset:
    """A finished dataset that images are copied from. It is only read."""

    where: str
    """Its path or address."""
    made: Fingerprint
    """The options and versions that its images follow from."""
    mark: ManifestMark
    dtypes: tuple[tuple[str, str], ...]
    """Name and dtype of each feature of its records."""
    rows: pa.Table
    """The rows of its written items."""

    def applied(
        self, encoder: ChunkEncoder, shards: Sequence[ShardPlan]
    ) -> tuple[Encoder, Sequence[ShardPlan], str]:
        """Return the encoder that copies stored images, shards that name them, and a remark.

        If the images were made with other options, these are the encoder and the shards given.
        """
        places = self.places(shards)
        remark = self.prospect(encoder.spec, places)
        if self.changes(encoder.spec):
            return encoder, shards, remark
        ends = np.cumsum([len(shard.items) for shard in shards])
        planned = [
            shard._replace(old=self.rows.take(pa.array(rows, mask=rows < 0)))
            for shard, rows in zip(shards, np.split(places, ends[:-1]), strict=True)
        ]
        return ReuseEncoder(encoder, self.mark, self.dtypes), planned, remark

    def prospect(self, spec: ImageSpec, places: Rows) -> str:
        """Return in words how many of the items with these `places` may be copied, or why none."""
        if changes := self.changes(spec):
            return f"no image is copied from {self.where}: made with other {', '.join(changes)}"
        num_known = int((places >= 0).sum())
        return f"{num_known:,} of {len(places):,} images may be copied from {self.where}"

    def changes(self, spec: ImageSpec) -> list[str]:
        """Return the options and versions by which images of this `spec` would be others."""
        now = versions() | fit_version(spec.fit)
        return fingerprint_differences(self.made, _making(spec, now, _formats(self.rows)))

    def places(self, shards: Sequence[ShardPlan]) -> Rows:
        """Return the row of each item that may have the same bytes, −1 for none."""
        members = [shard.members for shard in shards]
        keys = pa.chunked_array([one.keys.array.cast(pa.string()) for one in members], pa.string())
        sizes = pa.array(np.concatenate([np.empty(0, np.int64), *(m.num_bytes for m in members)]))
        found = _found(keys, self.rows["key"])
        known = np.asarray(self.rows["original_bytes"]) if len(self.rows) else np.zeros(1, int)
        is_other = (found < 0) | (known[found] != np.asarray(sizes))
        moved = pa.array(np.flatnonzero(is_other))
        old = _names(self.rows["key"], self.rows["original_bytes"])
        found[is_other] = _found(_names(keys.take(moved), sizes.take(moved)), old)
        return found


def open_old_dataset(dataset: OpenDataset) -> OldDataset:
    """Return a dataset to copy images from.

    Raises:
        DatasetError: a document of it is missing or damaged, or is of another version.
        StorageError: object storage does not answer, or refuses.

    """
    manifest, schema = dataset.manifest, dataset.schema
    table = dataset.item_rows(_COLUMNS, intact=True)
    recipe = recorded_recipe(manifest, "-", "-").settled(annotated=bool(schema.annotations))
    rows = with_files(item_table.with_status(table, item_table.WRITTEN), dataset)
    made = _making(recipe.image_spec, manifest.fingerprint.versions, _formats(rows))
    several = {name for name in made.options if name not in manifest.fingerprint.options}
    made.options.update(dict.fromkeys(several, "several"))  # of datasets that were merged
    dtypes = tuple(schema.dtypes.items())
    return OldDataset(str(dataset), made, dataset.mark, dtypes, rows)


def _formats(rows: pa.Table) -> set[str]:
    """Return the formats of originals."""
    return {*pc.unique(rows["original_format"]).cast("string").to_pylist()}


def _making(spec: ImageSpec, of: Mapping[str, str], formats: Collection[str]) -> Fingerprint:
    """Return what images of originals of some formats follow from besides these."""
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(spec).items()
    }
    used = used_versions(of, formats)
    shaping = {name: one for name, one in used.items() if name not in _SHAPE_NO_IMAGE}
    return Fingerprint(inputs={}, options=options, versions=shaping)


def _names(keys: Any, sizes: Any) -> Any:
    """Return what stays of items that are moved to another folder: file names and sizes."""
    names = pc.replace_substring_regex(keys, r"^.*/", "")
    return pc.binary_join_element_wise(pc.cast(sizes, pa.string()), names, " ")


def _found(wanted: Any, among: Any) -> Rows:
    """Return the place of each value among others, −1 for none."""
    return np.array(pc.fill_null(pc.index_in(wanted, among), -1), np.int64)
