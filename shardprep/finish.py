"""The last steps of a build: from the parts of all shards to a dataset folder with a manifest.

It reads one part at a time, so memory does not grow with the data.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from shardprep import items, tfds
from shardprep.dataset import INDEX_DIR, ITEMS_FILE, SCHEMA_FILE, index_name
from shardprep.durable import write_durably
from shardprep.errors import BuildError
from shardprep.manifest import MANIFEST_FILE, Fingerprint, Labels, Manifest, Shard
from shardprep.shard import PARTS_DIR, part_path, read_seal
from shardprep.stages import stage
from shardprep.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from shardprep.prepare import BuildPlan

SKIPPED_PART = "skipped"
_SHOWN_ROWS = 10


def write_skipped(folder: Path, plan: BuildPlan) -> None:
    """Keep the rows of skipped inputs with the parts."""
    items.write_part(part_path(folder, SKIPPED_PART), items.skipped_table(plan.skipped), {})


@stage("finish")
def finish(
    folder: Path, plan: BuildPlan, recipe_version: str, fingerprint: Fingerprint
) -> Manifest:
    """Write everything but the manifest beside the finished shards; return the manifest.

    Raises:
        BuildError: a shard has no part.

    """
    tally = Tally(plan.spec)
    (folder / INDEX_DIR).mkdir(exist_ok=True)
    items.write_items(folder / ITEMS_FILE, _tables(folder, plan, tally))
    manifest = _manifest(plan, recipe_version, fingerprint, tally)
    write_durably(folder / SCHEMA_FILE, plan.schema.dumps().encode())
    for name, text in tfds.tfds_files(manifest, plan.schema).items():
        write_durably(folder / name, text.encode())
    hashes = {name: _sha256(folder / name) for name in (ITEMS_FILE, SCHEMA_FILE)}
    return manifest.model_copy(update={"files": hashes})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest: from then on the dataset is complete."""
    write_durably(folder / MANIFEST_FILE, manifest.dumps().encode())


def _tables(folder: Path, plan: BuildPlan, tally: Tally) -> Iterator[pa.Table]:
    """Yield every part in order, on the way writing its index and adding it to the tally."""
    for shard_plan in plan.shards:
        name = plan.shard_name(shard_plan)
        measured = read_seal(folder, name)
        if measured is None:
            raise BuildError(
                str(folder / PARTS_DIR / name), "is missing", "run the same command again"
            )
        table = items.read_part(part_path(folder, name))
        tally.add(Shard(name=name, **measured._asdict()), shard_plan.split, table)
        write_durably(folder / index_name(name), items.index_text(table).encode())
        yield table
    yield items.read_part(part_path(folder, SKIPPED_PART))


def _manifest(plan: BuildPlan, version: str, fingerprint: Fingerprint, tally: Tally) -> Manifest:
    return Manifest(
        name=plan.name,
        version=version,
        seed=fingerprint.options["seed"],
        fingerprint=fingerprint,
        labels=Labels(
            names=plan.schema.labels,
            found_by=plan.labels_from,
            num_rows_without_image=len(plan.rows_without_image),
            rows_without_image=plan.rows_without_image[:_SHOWN_ROWS],
        ),
        totals=tally.totals(Counter(one.reason for one in plan.skipped)),
        splits=tally.splits(plan.schema.labels),
    )
