"""Write shards, the unit of commit, and their receipts.

A shard file under its final name is complete. Its receipt has the rows of its items, and the length
and hash of the file; it is kept until the dataset is published. A shard counts as written if file
and receipt exist and agree. A build that was replaced by another build commits no further shard.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, Field, ValidationError

from shardprep.catalog.items import Item, Items
from shardprep.catalog.target_values import TargetValues
from shardprep.dataset import item_table
from shardprep.dataset.documents import Count
from shardprep.dataset.item_table import COLUMNS, REJECTED, WRITTEN, given_cells
from shardprep.dataset.manifest import Shard
from shardprep.dataset.schema import PRESENT
from shardprep.image.annotation_types import Annotation
from shardprep.profiling import stage
from shardprep.source.listing import Skipped
from shardprep.source.string_column import integers
from shardprep.storage.folder import Folder
from shardprep.writer.chunk import EncodedChunk, ImageObjectCounts, Outcome
from shardprep.writer.plan.shard_plan import MAX_CHUNK_ITEMS
from shardprep.writer.workspace.files import SKIPPED_FILE, Folders, receipt_name

_FACTS = b"shardprep"
_SHA256 = r"^[0-9a-f]{64}\z"
RETRIED = ("unreadable", "crashed", "timeout")
"""Kinds of rejection that the machine may have caused. The next run tries such images again."""


class ReceiptFacts(BaseModel):
    """Facts about a written shard; stored in the metadata of its receipt."""

    shard: Shard
    mark: str
    """ETag of the shard file in object storage; "" on a disk."""
    build: str
    """`Folders.build` of the build that wrote the shard; "" if any build may use the shard."""
    num_dark: Count = 0
    """Number of records whose image is nearly black; 0 if unknown."""
    num_rescaled: Count = 0
    """Number of records whose image has another size than its annotations state."""
    num_own_levels: Count = 0
    """Number of stack records whose own values decided black and white."""
    losses: dict[str, Count] = Field(default_factory=dict)
    """Number of records that lack a part of their originals, by part; without copied images."""


class Receipt(NamedTuple):
    """Facts about a written shard, and the rows of its items."""

    facts: ReceiptFacts
    table: pa.Table


class ShardHead(NamedTuple):
    """Facts that a `ShardWriter` needs before the first items."""

    name: str
    split: str
    num_items: int
    token: str = ""
    """Part of the temporary file's name, so that other processes can find and remove the file."""


class ShardWriter:
    """Writes one shard from its chunks, in plan order, and collects the rows of its items."""

    def __init__(
        self,
        folders: Folders,
        head: ShardHead,
        columns: pa.Schema,
        features: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.head = head
        self._features = features
        self._folders = folders
        self._file = folders.output.new_file(head.name, head.token)
        self._hash = hashlib.sha256()
        self._hashing = ThreadPoolExecutor(1)
        """Hashes a chunk while it is written; both release the interpreter lock."""
        self.num_items = self._num_records = self._num_bytes = 0
        self._num_dark = self._num_rescaled = self._num_own_levels = 0
        self._losses = Counter[str]()
        self._columns = columns
        self._tables = [self._columns.empty_table()]
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)
        """Columns of the rows that are not in a table yet: making a table has a fixed cost."""

    @property
    def is_full(self) -> bool:
        return self.num_items == self.head.num_items

    @stage("write")
    def append(self, items: Sequence[Item], chunk: EncodedChunk) -> None:
        hashed = self._hashing.submit(self._hash.update, chunk.data)
        self._file.write(chunk.data)
        own, outcomes = Items.of(items), chunk.outcomes
        targets = list(own.target)
        self.num_items += len(outcomes)
        written = [not outcome.kind for outcome in outcomes]
        ends = [self._num_bytes + n for n in accumulate(outcome.length for outcome in outcomes)]
        numbers = [self._num_records + n for n in accumulate(written)]
        columns: dict[str, list[Any]] = {
            "key": list(own.members.keys),
            "status": [WRITTEN if ok else REJECTED for ok in written],
            "kind": [outcome.kind or None for outcome in outcomes],
            "reason": [outcome.reason or None for outcome in outcomes],
            "split": [self.head.split] * len(outcomes),
            "shard": [self.head.name] * len(outcomes),
            "record": [n - 1 if ok else None for n, ok in zip(numbers, written, strict=True)],
            "offset": [
                end - outcome.length if ok else None
                for end, outcome, ok in zip(ends, outcomes, written, strict=True)
            ],
            "length": [outcome.length or None for outcome in outcomes],
            "label": _of_kind(targets, int),
            "labels": _of_kind(targets, tuple),
            "target": _of_kind(targets, float),
            "text": _of_kind(targets, str),
            "group": [group or None for group in own.group],
            "original_width": [outcome.width or None for outcome in outcomes],
            "original_height": [outcome.height or None for outcome in outcomes],
            "original_format": [outcome.format or None for outcome in outcomes],
            "original_bytes": [outcome.num_bytes for outcome in outcomes],
            "original_sha256": [outcome.sha256 or None for outcome in outcomes],
        }
        if "targets" in self._columns.names:
            columns |= _target_columns(targets)
        if "object_labels" in self._columns.names:
            columns |= _annotation_columns(own, outcomes)
        columns |= self._given_columns(own)
        for name in self._columns.names:
            self._rows[name] += columns[name]
        if self.is_full or len(self._rows["key"]) >= MAX_CHUNK_ITEMS:
            self._tables.append(pa.Table.from_pydict(self._rows, schema=self._columns))
            self._rows.clear()
        self._num_records += sum(written)
        self._num_bytes += len(chunk.data)
        self._num_dark += sum(outcome.is_dark for outcome in outcomes)
        self._num_rescaled += sum(map(_is_rescaled, own.annotation, outcomes))
        self._num_own_levels += sum(outcome.has_own_levels for outcome in outcomes)
        self._losses.update(loss for outcome in outcomes for loss in outcome.losses)
        hashed.result()

    def _given_columns(self, items: Items) -> dict[str, list[Any]]:
        values = dict(zip(self._features, items.columns, strict=False))
        return {
            title: given_cells(values[name], values.get(f"{name}{PRESENT}", repeat(1)))
            for name, title in self._features.items()
            if title
        }

    def commit(self) -> None:
        """Rename the shard, then write its receipt; BuildError if the build was replaced."""
        try:
            self._folders.check_build()
            mark = self._file.commit() or ""
        finally:
            self.abandon()
        shard = Shard(
            name=self.head.name,
            num_records=self._num_records,
            num_bytes=self._num_bytes,
            sha256=self._hash.hexdigest(),
        )
        facts = ReceiptFacts(
            shard=shard,
            mark=mark,
            build=self._folders.build,
            num_dark=self._num_dark,
            num_rescaled=self._num_rescaled,
            num_own_levels=self._num_own_levels,
            losses=self._losses,
        )
        # With unified dictionaries the layout does not depend on the chunks.
        table = pa.concat_tables(self._tables).unify_dictionaries()
        write_receipt(self._folders.state, facts, table)

    def abandon(self) -> None:
        self._hashing.shutdown()
        self._file.abandon()


def _is_rescaled(annotation: Annotation | None, outcome: Outcome) -> bool:
    """Return whether the annotation states another image size; swapped sides count as equal."""
    if annotation is None or annotation.size is None or annotation.is_relative or outcome.kind:
        return False
    has_shapes = bool(annotation.labels or annotation.areas) and min(annotation.size) > 0
    return has_shapes and {*annotation.size} != {outcome.height, outcome.width}


def _annotation_columns(items: Items, outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    nothing = ImageObjectCounts(None, 0, {}, None)
    counts = [outcome.objects or nothing for outcome in outcomes]
    written = [not outcome.kind for outcome in outcomes]

    def of_written(values: Iterable[Any]) -> list[Any]:
        return [value if ok else None for value, ok in zip(values, written, strict=True)]

    return {
        "num_objects": [None if count.labels is None else len(count.labels) for count in counts],
        "num_dropped": of_written(sum(count.dropped.values()) for count in counts),
        "num_clipped": of_written(count.num_clipped for count in counts),
        "dropped": of_written(list(count.dropped.items()) for count in counts),
        "object_labels": [count.labels for count in counts],
        "mask_key": of_written(files[0].key if files else None for files in items.companions),
        "mask_pixels": [
            None if count.pixels is None else [*count.pixels.items()] for count in counts
        ],
        "labelled_points": [count.labelled_points for count in counts],
        "lost_points": [
            None if count.lost_points is None else [*count.lost_points.items()] for count in counts
        ],
    }


def _of_kind(targets: Sequence[object], kind: type) -> list[Any]:
    return [target if isinstance(target, kind) else None for target in targets]


def _target_columns(targets: Sequence[object]) -> dict[str, list[Any]]:
    values = [one if isinstance(one, TargetValues) else TargetValues() for one in targets]
    return {
        "targets": [one.numbers or None for one in values],
        "classes": [one.classes or None for one in values],
        "texts": [one.texts or None for one in values],
    }


def write_skipped(state: Folder, skipped: Sequence[Skipped]) -> None:
    """Write the skipped inputs as rows of the item table."""
    nothing = [None] * len(skipped)
    columns: dict[str, list[Any]] = {
        **dict.fromkeys(COLUMNS.names, nothing),
        "key": [entry.key for entry in skipped],
        "status": [item_table.SKIPPED] * len(skipped),
        "reason": [
            f"{entry.reason}: {entry.detail}" if entry.detail else entry.reason for entry in skipped
        ],
        "original_bytes": [entry.num_bytes for entry in skipped],
    }
    _write(state, SKIPPED_FILE, pa.Table.from_pydict(columns, schema=COLUMNS))


def read_skipped(state: Folder) -> pa.Table | None:
    """Return the rows of skipped inputs, or None if their file is missing or damaged."""
    content = _read(state, SKIPPED_FILE)
    return None if content is None else content[0]


def write_receipt(state: Folder, facts: ReceiptFacts, table: pa.Table) -> None:
    """Write the receipt of a shard; `table` has the rows of its items."""
    _write(state, receipt_name(facts.shard.name), table, facts.model_dump_json().encode())


def read_receipt(folders: Folders, shard: str) -> Receipt | None:
    """Return the receipt of a shard, or None if it is missing, damaged or of another build."""
    content = _read(folders.state, receipt_name(shard))
    if content is None:
        return None
    table, text = content
    try:
        facts = ReceiptFacts.model_validate_json(text)
    except ValidationError:
        return None
    is_ours = not folders.build or facts.build in ("", folders.build)
    if not is_ours or facts.shard.name != shard or not _are_rows_of(table, facts.shard):
        return None
    return Receipt(facts, table)


def written_receipt(folders: Folders, shard: str) -> Receipt | None:
    """Return the receipt of a shard, or None if it is missing or the shard file does not match."""
    receipt = read_receipt(folders, shard)
    if receipt is None:
        return None
    facts, mark = receipt.facts.shard, receipt.facts.mark
    is_whole = folders.output.holds(shard, facts.num_bytes, facts.sha256, mark)
    return receipt if is_whole else None


def done_receipt(folders: Folders, shard: str) -> Receipt | None:
    """Return the receipt of a shard, or None if the shard is not written or has items to retry."""
    receipt = written_receipt(folders, shard)
    if receipt is None or set(receipt.table["kind"].cast("string").to_pylist()) & {*RETRIED}:
        return None
    return receipt


def _write(state: Folder, name: str, table: pa.Table, facts: bytes = b"{}") -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({_FACTS: facts}), sink)
    state.write(name, sink.getvalue().to_pybytes())


def _read(state: Folder, name: str) -> tuple[pa.Table, bytes] | None:
    data = state.read(name)
    if data is None:
        return None
    try:
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        table = item_table.bounded_table(file, len(data))
        table = table.cast(item_table.columns_of(table.schema).with_metadata(None))
        return table, file.schema_arrow.metadata[_FACTS]
    except item_table.UNREADABLE:
        return None


def _are_rows_of(table: pa.Table, shard: Shard) -> bool:
    """Return whether the rows are valid and describe exactly the records of the shard."""
    statuses = table["status"].cast("string")
    needed = ("key", "record", "offset", "length", "original_width", "original_height")
    written = table.select([*needed, "original_sha256"]).filter(pc.equal(statuses, WRITTEN))
    if (
        table["key"].null_count
        or any(written[name].null_count for name in needed)
        or len(written) != shard.num_records
    ):
        return False
    lengths, offsets, numbers = (
        integers(written[name].combine_chunks()) for name in ("length", "offset", "record")
    )
    sizes = [written[name] for name in ("original_width", "original_height")]
    hashes = pc.match_substring_regex(written["original_sha256"], _SHA256)
    return (
        {*statuses.unique().to_pylist()} <= {WRITTEN, REJECTED}
        and {*table["shard"].cast("string").unique().to_pylist()} <= {shard.name}
        and np.array_equal(numbers, np.arange(shard.num_records))
        and np.array_equal(offsets, np.cumsum(lengths) - lengths)
        and int(lengths.sum()) == shard.num_bytes
        and pc.all(hashes, skip_nulls=False, min_count=0).as_py() is True
        and all((integers(side.combine_chunks()) >= 1).all() for side in sizes)
    )
