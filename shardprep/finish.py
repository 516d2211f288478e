"""The last steps of a build: from the parts of all shards to a dataset folder with a manifest.

It reads one part at a time, so memory does not grow with the data.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from shardprep import items, tfds
from shardprep.dataset import INDEX_DIR, ITEMS_FILE, SCHEMA_FILE, index_name
from shardprep.durable import write_durably
from shardprep.errors import BuildError
from shardprep.image import fitted_size
from shardprep.manifest import (
    MANIFEST_FILE,
    Fingerprint,
    Labels,
    Manifest,
    Shard,
    Split,
    Totals,
)
from shardprep.shard import PARTS_DIR, part_path, read_seal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from shardprep.plan import ShardPlan
    from shardprep.prepare import BuildPlan

SKIPPED_PART = "skipped"
_SHOWN_ROWS = 10


@dataclass(slots=True)
class _SplitTally:
    shards: list[Shard] = field(default_factory=list)
    labels: Counter[int] = field(default_factory=Counter)
    num_unlabelled: int = 0


@dataclass(slots=True)
class _Tally:
    """Counts that grow as the parts go by."""

    splits: dict[str, _SplitTally] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    marks: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = field(default_factory=list)
    """The first 8 bytes of the SHA-256 of each written original, for each shard."""
    num_damaged: int = 0
    num_enlarged: int = 0
    original_bytes: int = 0

    def add(self, shard: Shard, plan: ShardPlan, table: pa.Table, build: BuildPlan) -> None:
        split = self.splits.setdefault(plan.split, _SplitTally())
        split.shards.append(shard)
        self.rejected.update(kind for kind in table["kind"].to_pylist() if kind is not None)
        written = table.filter(pc.equal(table["status"].cast("string"), items.WRITTEN))
        split.labels.update(written["label"].drop_null().to_pylist())
        split.labels.update(pc.list_flatten(written["labels"]).to_pylist())
        split.num_unlabelled += len(written) - sum(
            pc.count(written[name]).as_py() for name in ("label", "labels", "target", "text")
        )
        self.num_damaged += pc.count(written["reason"]).as_py()
        hashes = written["original_sha256"].to_pylist()
        self.marks.append(np.array([int(text[:16], 16) for text in hashes], np.uint64))
        self.original_bytes += pc.sum(written["original_bytes"]).as_py() or 0
        if build.spec.fixed_size is not None:
            sizes = zip(
                written["original_height"].to_pylist(),
                written["original_width"].to_pylist(),
                strict=True,
            )
            self.num_enlarged += sum(
                math.prod(fitted_size(height, width, build.spec)) > height * width
                for height, width in sizes
            )

    def copies(self, plan: BuildPlan) -> tuple[int, int]:
        """Return how many originals are copies, and how many of these another split has too."""
        splits = list(self.splits)
        marks = np.concatenate(self.marks)
        places = np.repeat(
            [splits.index(shard.split) for shard in plan.shards],
            [len(marks) for marks in self.marks],
        )
        order = np.lexsort((places, marks))
        same = marks[order][1:] == marks[order][:-1]
        apart = places[order][1:] != places[order][:-1]
        return int(same.sum()), int((same & apart).sum())


def write_skipped(folder: Path, plan: BuildPlan) -> None:
    """Keep the rows of skipped inputs with the parts."""
    items.write_part(part_path(folder, SKIPPED_PART), items.skipped_table(plan.skipped), {})


def finish(
    folder: Path, plan: BuildPlan, recipe_version: str, fingerprint: Fingerprint
) -> Manifest:
    """Write everything but the manifest beside the finished shards; return the manifest.

    Raises:
        BuildError: a shard has no part.

    """
    tally = _Tally()
    (folder / INDEX_DIR).mkdir(exist_ok=True)
    items.write_items(folder / ITEMS_FILE, _tables(folder, plan, tally))
    manifest = _manifest(plan, recipe_version, fingerprint, tally)
    write_durably(folder / SCHEMA_FILE, plan.schema.dumps().encode())
    for name, text in tfds.tfds_files(manifest, plan.schema).items():
        write_durably(folder / name, text.encode())
    return manifest


def seal(folder: Path, manifest: Manifest) -> None:
    """Write the manifest: from then on the dataset is complete."""
    write_durably(folder / MANIFEST_FILE, manifest.dumps().encode())


def _tables(folder: Path, plan: BuildPlan, tally: _Tally) -> Iterator[pa.Table]:
    """Yield every part in order, on the way writing its index and adding it to the tally."""
    for shard_plan in plan.shards:
        name = plan.shard_name(shard_plan)
        measured = read_seal(folder, name)
        if measured is None:
            raise BuildError(
                str(folder / PARTS_DIR / name), "is missing", "run the same command again"
            )
        table = items.read_part(part_path(folder, name))
        tally.add(Shard(name=name, **measured._asdict()), shard_plan, table, plan)
        write_durably(folder / index_name(name), _index(table).encode())
        yield table
    yield items.read_part(part_path(folder, SKIPPED_PART))


def _index(table: pa.Table) -> str:
    """Return the index of a shard as DALI's and vahidk's `tfrecord2idx` write it."""
    places = zip(table["offset"].to_pylist(), table["length"].to_pylist(), strict=True)
    return "".join(f"{offset} {length}\n" for offset, length in places if offset is not None)


def _manifest(plan: BuildPlan, version: str, fingerprint: Fingerprint, tally: _Tally) -> Manifest:
    splits = {name: _split(split, plan) for name, split in tally.splits.items()}
    num_written = sum(split.num_records for split in splits.values())
    num_copies, num_leaks = tally.copies(plan)
    skipped = Counter(one.reason for one in plan.skipped)
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
        totals=Totals(
            num_inputs=plan.num_items + len(plan.skipped),
            num_written=num_written,
            num_rejected=tally.rejected.total(),
            num_skipped=len(plan.skipped),
            rejected=dict(sorted(tally.rejected.items())),
            skipped=dict(sorted(skipped.items())),
            num_copies=num_copies,
            num_leaks=num_leaks,
            num_damaged=tally.num_damaged,
            num_enlarged=tally.num_enlarged,
            original_bytes=tally.original_bytes,
            num_bytes=sum(split.num_bytes for split in splits.values()),
        ),
        splits=splits,
    )


def _split(tally: _SplitTally, plan: BuildPlan) -> Split:
    return Split(
        num_records=sum(shard.num_records for shard in tally.shards),
        num_bytes=sum(shard.num_bytes for shard in tally.shards),
        label_counts={name: tally.labels[i] for i, name in enumerate(plan.schema.labels)},
        num_unlabelled=tally.num_unlabelled,
        shards=tuple(tally.shards),
    )
