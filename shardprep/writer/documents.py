"""The last steps of a build: from the parts of all shards to the documents of a dataset.

It reads one part at a time, so memory does not grow with the data.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardprep.dataset import item_table, tfds_metadata
from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, index_name
from shardprep.dataset.manifest import Labels, Manifest, Shard
from shardprep.dataset.totals import Tally
from shardprep.errors import BuildError
from shardprep.profiling import stage
from shardprep.writer import receipt
from shardprep.writer.shard import PARTS_DIR, Folders, part_name, read_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from shardprep.source.listing import Skipped
    from shardprep.storage.folder import Folder
    from shardprep.writer.outline import Outline

_SKIPPED_PART = f"{PARTS_DIR}/skipped.parquet"


def write_skipped(parts: Folder, skipped: Sequence[Skipped]) -> None:
    """Keep the rows of skipped inputs with the parts."""
    receipt.write_receipt(parts, _SKIPPED_PART, receipt.skipped_table(skipped), {})


@stage("finish")
def finish(folders: Folders, outline: Outline) -> Manifest:
    """Write everything but the manifest beside the finished shards; return the manifest.

    Raises:
        BuildError: a shard has no part.

    """
    tally = Tally(outline.spec)
    folder = folders.shards
    item_table.write_items(folder, ITEMS_FILE, _tables(folders, outline, tally))
    manifest = _manifest(outline, tally)
    folder.write(SCHEMA_FILE, outline.dataset_schema.dumps().encode())
    for name, text in tfds_metadata.tfds_files(manifest, outline.dataset_schema).items():
        folder.write(name, text.encode())
    hashes = {name: folder.sha256(name) for name in (ITEMS_FILE, SCHEMA_FILE)}
    return manifest.model_copy(update={"files": hashes})


def _tables(folders: Folders, outline: Outline, tally: Tally) -> Iterator[pa.Table]:
    """Yield every part in order, on the way writing its index and adding it to the tally."""
    for shard in outline.shards:
        part = read_part(folders.parts, shard.name, folders.build)
        if part is None:
            raise _missing(folders, part_name(shard.name))
        tally.add(Shard(name=shard.name, **part.seal._asdict()), shard.split, part.table)
        folders.shards.write(index_name(shard.name), item_table.index_text(part.table).encode())
        yield part.table
    skipped = receipt.read_receipt(folders.parts, _SKIPPED_PART)
    if skipped is None:
        raise _missing(folders, _SKIPPED_PART)
    yield skipped.table


def _missing(folders: Folders, name: str) -> BuildError:
    return BuildError(folders.parts.located(name), "is missing", "run the same command again")


def _manifest(outline: Outline, tally: Tally) -> Manifest:
    return Manifest(
        name=outline.name,
        version=outline.version,
        seed=outline.fingerprint.options["seed"],
        fingerprint=outline.fingerprint,
        labels=Labels(
            names=outline.dataset_schema.labels,
            found_by=outline.labels_from,
            num_rows_without_image=outline.num_rows_without_image,
            rows_without_image=outline.rows_without_image,
        ),
        totals=tally.totals(Counter(outline.skipped)),
        splits=tally.splits(outline.dataset_schema.labels),
    )
