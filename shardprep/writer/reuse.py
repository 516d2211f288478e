"""Copy stored images from another dataset in a build (`reuse`).

An item is found by key and size, or by file name and size if it was moved. Then the SHA-256 of its
original must be equal. If its whole record would be the same, the record is copied. If only key,
label or other features differ, a new record is made around the stored image. Other items, such as
items with a damaged record, are encoded from their source. So reuse changes no byte of the dataset.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.catalog.items import Items
from shardprep.catalog.target_values import TargetValues
from shardprep.catalog.targets import Target
from shardprep.dataset import item_table, tfrecord
from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.item_table import TARGET_COLUMNS
from shardprep.dataset.manifest import REPACKED, Fingerprint, fingerprint_differences
from shardprep.dataset.open_dataset import ManifestMark, OpenDataset
from shardprep.dataset.schema import (
    FILENAME,
    HEIGHT,
    IMAGE,
    IMAGES,
    TARGET_FEATURES,
    TARGETS,
    TEXTS,
    WIDTH,
    Schema,
)
from shardprep.errors import OptionName, RecordError, counted, some_of
from shardprep.image.placement import Placement
from shardprep.image.process import Original, ProcessedImage, ordinary_placement
from shardprep.image.spec import ImageSpec
from shardprep.profiling import stage
from shardprep.recipe.options import BUILD_OPTIONS
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import PlainExtent
from shardprep.source.members import StackExtent
from shardprep.source.range_reads import read_ahead
from shardprep.writer.chunk import ChunkTask, Encode, EncodedChunk, Outcome
from shardprep.writer.chunk_encoder import (
    ChunkEncoder,
    StackImages,
    encode_item,
    encode_stack,
    read_item,
    sha256_of,
    wait_for,
)
from shardprep.writer.plan.build_plan import recorded_recipe
from shardprep.writer.plan.fingerprint import SPLIT_RATIOS, fit_version, used_versions, versions
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.record_copier import RecordRun, StoredRecords, with_files

Rows = np.ndarray[Any, np.dtype[np.int64]]

_COLUMNS = (
    "key", "status", "reason", "split", "shard", "offset", "length",
    "label", "labels", "target", "text",
    "original_width", "original_height", "original_format", "original_bytes", "original_sha256",
)  # fmt: skip
_SHAPE_NO_IMAGE = frozenset(
    {"pyarrow", "pycocotools", "tifffile", "imagecodecs", REPACKED, SPLIT_RATIOS}
)
"""Versions that do not affect copied images, only tables, annotations, order and tiles."""


@dataclass(frozen=True, slots=True)
class OldDataset:
    """A finished dataset to copy images from."""

    where: str
    made_by: Fingerprint
    """Options and versions that shape the stored images."""
    mark: ManifestMark
    schema: Schema
    have_own_levels: bool
    """True if each stack has its own values for black and white, False if no stack has."""
    rows: pa.Table
    recorded: Fingerprint
    """Inputs, options and versions of the build that made the dataset."""

    def differences(self, recipe: Recipe) -> str:
        """Return a remark on the options that differ between the dataset and `recipe`, or ""."""
        if REPACKED in self.recorded.versions:
            return ""
        before = Fingerprint(inputs={}, options=self.recorded.options, versions={})
        options = recipe.fingerprint_options()
        if recipe.fit == "auto":  # a dataset records the fit that was chosen
            options["fit"] = before.options.get("fit")
        now = Fingerprint(inputs={}, options=options, versions={})
        changes = fingerprint_differences(before, now)
        other = f"{self.where} was built with other options: {'; '.join(changes)}"
        return f"{OptionName('reuse')}: {other}" if changes else ""

    def applied(
        self, encoder: ChunkEncoder, shards: Sequence[ShardPlan]
    ) -> tuple[Encode, Sequence[ShardPlan], str]:
        """Return the encoder to use, the shards with rows to copy, and a remark for the user."""
        places = self.places(shards)
        remark = self.prospect(encoder.spec, places, encoder.schema, shards)
        if self.changes(encoder.spec):
            return encoder, shards, remark
        ends = np.cumsum([len(shard.items) for shard in shards])
        planned = [
            shard._replace(old=self.rows.take(pa.array(rows, mask=rows < 0)))
            for shard, rows in zip(shards, np.split(places, ends[:-1]), strict=True)
        ]
        reuse = ReuseEncoder(encoder, self.mark, self.schema, self.have_own_levels)
        return reuse, planned, remark

    def prospect(
        self, spec: ImageSpec, places: Rows, schema: Schema, shards: Sequence[ShardPlan]
    ) -> str:
        """Return a remark for the user: how many images may be copied or move to another split."""
        moves = self._moves(places, shards)
        if changes := self.changes(spec):
            none = f"no image is copied from {self.where}, built with other {', '.join(changes)}"
            return none + moves
        num_known = int((places >= 0).sum())
        line = f"{num_known:,} of {counted(len(places), 'image')} can be copied from {self.where}"
        gone = sorted(self.schema.dtypes.keys() - schema.dtypes.keys())
        line += f"; it stores {some_of(gone)}, but this build does not" if gone else ""
        return line + moves

    def _moves(self, places: Rows, shards: Sequence[ShardPlan]) -> str:
        now = itertools.chain.from_iterable([one.split] * len(one.items) for one in shards)
        before = self.rows["split"].take(pa.array(places, mask=places < 0)).to_pylist()
        moves = Counter(
            f"{old} to {new}"
            for old, new in zip(before, now, strict=True)
            if old not in (None, new)
        )
        listed = ", ".join(f"{number:,} from {move}" for move, number in moves.most_common())
        return f"; {counted(moves.total(), 'image')} change their split: {listed}" if moves else ""

    def changes(self, spec: ImageSpec) -> list[str]:
        """Return the differing options and versions that can change stored images, as text."""
        now = versions() | fit_version(spec.fit)
        return fingerprint_differences(self.made_by, _making(spec, now, _formats(self.rows)))

    def places(self, shards: Sequence[ShardPlan]) -> Rows:
        """Return the position in `rows` of each item of the shards, or −1; int64[items]."""
        members = [shard.items.members for shard in shards]
        keys = pa.chunked_array(
            [member.keys.array.cast(pa.string()) for member in members], pa.string()
        )
        sizes = pa.array(np.concatenate([np.empty(0, np.int64), *(m.num_bytes for m in members)]))
        rows = _found(keys, self.rows["key"])
        known = np.asarray(self.rows["original_bytes"]) if len(self.rows) else np.zeros(1, int)
        is_other = (rows < 0) | (known[rows] != np.asarray(sizes))
        moved = pa.array(np.flatnonzero(is_other))
        old = _names(self.rows["key"], self.rows["original_bytes"])
        rows[is_other] = _found(_names(keys.take(moved), sizes.take(moved)), old)
        return rows


def open_old_dataset(dataset: OpenDataset) -> OldDataset:
    """Return an open dataset as an `OldDataset`; DatasetError if its item table is damaged."""
    manifest, schema = dataset.manifest, dataset.schema
    table = dataset.item_rows(_COLUMNS, intact=True)
    recipe = recorded_recipe(manifest, "-", "-").settled(annotated=bool(schema.annotations))
    rows = with_files(item_table.with_status(table, item_table.WRITTEN), dataset)
    made_by = _making(recipe.image_spec, manifest.fingerprint.versions, _formats(rows))
    recorded = manifest.fingerprint.options.keys()
    missing = {name for name in made_by.options if name not in recorded}
    several = {name for name in missing if not BUILD_OPTIONS[name].is_newer}
    made_by.options.update(dict.fromkeys(several, "several"))  # merged datasets differ in these
    if manifest.num_encodings:
        made_by.versions["encodings"] = f"{manifest.num_encodings + 1}"
    if 0 < manifest.num_own_levels < manifest.totals.num_written:
        rows = rows.slice(0, 0)  # which stacks have such levels is not recorded
    facts = schema, manifest.num_own_levels > 0, rows, manifest.fingerprint
    return OldDataset(str(dataset), made_by, dataset.mark, *facts)


def _formats(rows: pa.Table) -> set[str]:
    return {*pc.unique(rows["original_format"]).cast("string").to_pylist()}


def _making(spec: ImageSpec, of: Mapping[str, str], formats: Collection[str]) -> Fingerprint:
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(spec).items()
    }
    used = used_versions(of, formats)
    shaping = {name: number for name, number in used.items() if name not in _SHAPE_NO_IMAGE}
    return Fingerprint(inputs={}, options=options, versions=shaping)


def _names(keys: Any, sizes: Any) -> Any:
    names = pc.replace_substring_regex(keys, r"^.*/", "")
    return pc.binary_join_element_wise(pc.cast(sizes, pa.string()), names, " ")


def _found(wanted: Any, among: Any) -> Rows:
    return np.array(pc.fill_null(pc.index_in(wanted, among), -1), np.int64)


_TABLED = {IMAGE, FILENAME, HEIGHT, WIDTH, *TARGET_FEATURES.values()} - {TARGETS, TEXTS}
"""Features whose values follow from the stored image and its item row, except lists."""
_FACTS: dict[str, str | int] = {
    "reason": "", "length": 0, "original_height": 0, "original_width": 0, "original_format": "",
    "original_bytes": 0, "original_sha256": "",
}  # fmt: skip
"""Item-table column of each `Outcome` field after `kind` → value of the field for null."""


@dataclass(frozen=True, slots=True)
class ReuseEncoder:
    """Copies stored images for tasks with `old` rows, and encodes all other items."""

    encoder: ChunkEncoder
    mark: ManifestMark
    schema: Schema
    """Schema of the stored records."""
    have_own_levels: bool

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        """Return the encoded chunk; ChangedError if the dataset to copy from was replaced."""
        if task.old is None:
            return self.encoder(task, before_item)
        return _ChunkCopy(task, task.old, self).encoded(before_item)


class _ChunkCopy:
    def __init__(self, task: ChunkTask, old: pa.Table, reuse: ReuseEncoder) -> None:
        self._reuse = reuse
        self._items = items = Items.of(task.items)
        self._members = items.members.listed()
        facts = (_values(old, name, null) for name, null in _FACTS.items())
        self._outcomes = [
            Outcome._make(("", *values, False, None, True, reuse.have_own_levels, ()))
            for values in zip(*facts, strict=True)
        ]
        have = reuse.schema.dtypes
        self._is_same = [False] * len(items)
        """Whether the stored record of each item can be copied if its original is unchanged."""
        if reuse.encoder.schema.dtypes == have and _TABLED.issuperset(have):
            now = ((m.key, target) for m, target in zip(self._members, items.target, strict=True))
            before = zip(old["key"].to_pylist(), targets_of(old), strict=True)
            self._is_same = [one == two for one, two in zip(now, before, strict=True)]
        others = np.flatnonzero(~np.array(self._is_same, bool))
        self._others = dict(zip(others.tolist(), items.listed(others), strict=True))
        lengths, offsets = (pc.fill_null(old[name], -1) for name in ("length", "offset"))
        has_record = pc.and_(
            pc.greater_equal(lengths, tfrecord.FRAME_BYTES), pc.greater_equal(offsets, 0)
        )
        self._places: list[int] = np.flatnonzero(has_record.to_numpy()).tolist()
        self._records = StoredRecords(old.filter(has_record), have_keys=FILENAME in have)
        self._dtypes = (*have.items(),)
        self._runs = {self._places[run.start]: run for run in self._records.runs()}
        self._sound: dict[int, memoryview] = {}
        """Item index → framed record, for the sound records of the last run."""

    def encoded(self, before_item: Callable[[], None]) -> EncodedChunk:
        records: list[bytes | memoryview] = []
        outcomes: list[Outcome] = []
        with closing(read_ahead(self._spans())) as ahead:
            for place in range(len(self._items)):
                run = self._runs.get(place)
                wait_for(ahead)
                if run is not None:
                    wait_for(ahead)
                before_item()
                if run is not None:
                    self._read(run)
                record, outcome = self._record(place, before_item)
                records.append(record)
                outcomes.append(outcome)
        if any(outcome.is_copied for outcome in outcomes):
            self._reuse.mark.check()
        return EncodedChunk(b"".join(records), tuple(outcomes))

    def _spans(self) -> list[PlainExtent]:
        """Return the ranges to read: originals, each followed by the run that begins there."""
        spans = []
        for place, member in enumerate(self._members):
            spans.append(member.extent.span)
            if place in self._runs:
                spans.append(self._runs[place].extent)
        return spans

    @stage("read")
    def _read(self, run: RecordRun) -> None:
        records = self._records.read(run.start, run.stop)
        pairs = zip(self._places[run.start : run.stop], records, strict=True)
        self._sound = {place: record for place, record in pairs if record is not None}

    def _record(
        self, place: int, before_item: Callable[[], None]
    ) -> tuple[bytes | memoryview, Outcome]:
        extent = self._members[place].extent
        if isinstance(extent, StackExtent):
            return self._stack(place, extent, before_item)
        data = read_item(self._members[place])
        if isinstance(data, Outcome):
            return b"", data
        sha256, stored = sha256_of(data), self._outcomes[place]
        record = self._sound.get(place) if stored.sha256 == sha256 else None
        if record is not None and self._is_same[place]:
            return record, stored
        image = None if record is None else self._image(stored, bytes(record), data)
        item = self._others.get(place) or self._items[place]
        return encode_item(item, data, sha256, self._reuse.encoder, image)

    def _stack(
        self, place: int, extent: StackExtent, before_item: Callable[[], None]
    ) -> tuple[bytes, Outcome]:
        encoder, stored = self._reuse.encoder, self._outcomes[place]
        item = self._others.get(place) or self._items[place]
        images: Sequence[bytes] = ()
        size: tuple[int, ...] = ()
        # Masks need the placement of each image, which is known only after decoding.
        is_alike = self._reuse.schema.image.channels == encoder.schema.image.channels
        if place in self._sound and is_alike and encoder.annotations is None:
            data = read_item(self._members[place])
            if not isinstance(data, Outcome) and sha256_of(data) == stored.sha256:
                images, size = self._stored(bytes(self._sound[place]), IMAGES)
        if len(images) != len(extent.members) or len(size) != 2:
            return encoder.stack(item, extent, before_item)
        copied = StackImages(tuple(images), size[0], size[1], (), stored)
        return encode_stack(item, copied, encoder, before_item)

    def _stored(self, record: bytes, name: str) -> tuple[Sequence[bytes], tuple[int, ...]]:
        """Return the images of a record, and their height and width; empty if unknown."""
        try:
            payload = record[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES]
            values: dict[str, Any] = dict(_decoder(self._dtypes).decode(payload))
        except RecordError:
            return (), ()
        images = values.get(name, ())
        size = (*values.get(HEIGHT, ()), *values.get(WIDTH, ()))
        are_images = all(isinstance(image, bytes) for image in images)
        return images if are_images else (), self._reuse.encoder.spec.fixed_size or size

    @stage("frame")
    def _image(self, stored: Outcome, record: bytes, data: bytes) -> ProcessedImage | None:
        """Return the result of `process_image` without decoding, or None if this is impossible.

        Annotations and target images need the placement, which is known only for ordinary JPEGs.
        """
        encoder = self._reuse.encoder
        spec, placement = encoder.spec, None
        if encoder.annotations is not None or encoder.target is not None:
            placement = None if stored.reason else ordinary_placement(data, spec)
            if placement is None:
                return None
        image, size = self._stored(record, IMAGE)
        if len(size) != 2 or len(image) != 1:
            return None
        height, width = size
        placement = placement or Placement.whole((height, width))
        original = Original(stored.height, stored.width, stored.format)
        return ProcessedImage(image[0], height, width, original, placement, stored.reason)


@functools.lru_cache(maxsize=4)
def _decoder(dtypes: tuple[tuple[str, str], ...]) -> ExampleDecoder:
    return ExampleDecoder(dict(dtypes), (IMAGE, IMAGES, HEIGHT, WIDTH))


def _values(rows: pa.Table, name: str, null: str | int) -> list[Any]:
    column = rows[name].cast("string") if isinstance(null, str) else rows[name]
    values: list[Any] = pc.fill_null(column, null).to_pylist()
    return values


def targets_of(rows: pa.Table) -> list[Target]:
    """Return the target of each row, or None for a row without a target.

    Targets of several values are in the columns `targets`, `classes` and `texts`. In a table
    without these columns, at most one of `label`, `labels`, `target` and `text` has values.
    """
    if "targets" in rows.column_names:
        lists = (rows[name].to_pylist() for name in TARGET_COLUMNS.names)
        return [
            TargetValues(*(tuple(one or ()) for one in several)) if any(several) else None
            for several in zip(*lists, strict=True)
        ]
    for name in ("label", "labels", "target", "text"):
        column = rows[name]
        if column.null_count < len(column):
            values: list[Any] = column.to_pylist()
            return [tuple(value) if isinstance(value, list) else value for value in values]
    return [None] * len(rows)
