"""Counts for a manifest, from the rows of item tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.item_table import (
    COLUMNS,
    TARGET_COLUMNS,
    WRITTEN,
    columns_for,
    given_columns,
    rows_by_shard,
    value_counts,
    with_status,
)
from shardprep.dataset.manifest import (
    AnnotationCounts,
    Manifest,
    MaskCounts,
    ObjectCounts,
    PointCounts,
    Shard,
    Split,
    Totals,
)
from shardprep.dataset.schema import ALL_POINTS, BOX_LABEL, MASK, Schema
from shardprep.image.spec import ImageSpec, fitted_size


@dataclass(slots=True)
class AnnotationTally:
    """Running counts of objects and masks in rows of the item table."""

    num_background: int = 0
    num_clipped: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    objects: Counter[int] = field(default_factory=Counter)
    """Number of objects by label."""
    object_images: Counter[int] = field(default_factory=Counter)
    """Number of records with an object of each label."""
    pixels: Counter[int] = field(default_factory=Counter)
    """Number of pixels by mask value."""
    mask_images: Counter[int] = field(default_factory=Counter)
    """Number of records whose mask has each value."""
    few_values: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Number of masks with one or two values, by these values; the value of most pixels first."""
    points: list[int] = field(default_factory=lambda: [0, 0])
    """Number of labelled keypoints, and of objects and images without a labelled keypoint."""
    lost_points: Counter[str] = field(default_factory=Counter)

    def add(self, written: pa.Table) -> None:
        """Add the counts of a table of written items; it must have `ANNOTATION_COLUMNS`."""
        if "lost_points" in written.column_names:
            labelled = pc.list_flatten(written["labelled_points"].combine_chunks()).to_numpy()
            self.points[0] += int(labelled.sum())
            self.points[1] += int((labelled == 0).sum())
            for lost in filter(None, written["lost_points"].to_pylist()):
                self.lost_points.update(dict(lost))
        self.num_clipped += sum(filter(None, written["num_clipped"].to_pylist()))
        for dropped in filter(None, written["dropped"].to_pylist()):
            self.dropped.update(dict(dropped))
        labels = [one or () for one in written["object_labels"].to_pylist()]
        self.num_background += sum(not one for one in labels)
        self.objects.update(chain.from_iterable(labels))
        self.object_images.update(chain.from_iterable(map(set, labels)))
        for pixels in filter(None, written["mask_pixels"].to_pylist()):
            values = dict(pixels)
            if len(values) < 3:
                self.few_values[tuple(sorted(values, key=lambda one: (-values[one], one)))] += 1
            self.pixels.update(values)
            self.mask_images.update(values.keys())

    def counts(self, schema: Schema, *, is_strict: bool = False) -> AnnotationCounts:
        """Return the counts; `is_strict` counts padding as a value of a mask, as 1.0.0 did."""
        features = schema.annotations
        objects, masks = None, None
        if any(one.repeated for name, one in features.items() if name != MASK):
            names = features[BOX_LABEL].labels if BOX_LABEL in features else ()
            objects = ObjectCounts(
                num_objects=self.objects.total(),
                num_background=self.num_background,
                objects=_named(self.objects, names),
                images=_named(self.object_images, names),
            )
        if MASK in features:
            names = features[MASK].labels
            masks = MaskCounts(
                pixels=_named(self.pixels, names),
                images=_named(self.mask_images, names),
                num_ignored=self.pixels[features[MASK].ignored],
                num_uniform=sum(
                    number
                    for (_, *rest), number in self.few_values.items()
                    if not rest or (rest == [features[MASK].ignored] and not is_strict)
                ),
            )
        return AnnotationCounts(
            num_clipped=self.num_clipped,
            dropped=dict(sorted(self.dropped.items())),
            objects=objects,
            masks=masks,
            points=PointCounts(
                num_labelled=self.points[0],
                num_without=self.points[1],
                lost=dict(sorted(self.lost_points.items())),
            )
            if {*ALL_POINTS} & features.keys()
            else None,
        )


def _named(counts: Mapping[int, int], names: tuple[str, ...]) -> dict[str, int]:
    return {name: counts.get(label, 0) for label, name in enumerate(names)}


@dataclass(slots=True)
class _SplitTally:
    shards: list[Shard] = field(default_factory=list)
    labels: Counter[int] = field(default_factory=Counter)
    num_unlabelled: int = 0
    annotations: AnnotationTally = field(default_factory=AnnotationTally)


@dataclass(slots=True)
class Tally:
    """Running counts of items. Shards must be added in order. Uses 8 bytes per record."""

    spec: ImageSpec
    _splits: dict[str, _SplitTally] = field(default_factory=dict)
    _rejected: Counter[str] = field(default_factory=Counter)
    _marks: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = field(default_factory=list)
    """For each shard, the first 8 bytes of the SHA-256 of each written original."""
    _places: list[int] = field(default_factory=list)
    """For each shard, the number of its split."""
    _num_damaged: int = 0
    _num_enlarged: int = 0
    _original_bytes: int = 0

    def add(self, shard: Shard, split: str, table: pa.Table) -> None:
        tally = self._splits.setdefault(split, _SplitTally())
        tally.shards.append(shard)
        self._rejected.update(value_counts(table["kind"].cast("string")))
        written = with_status(table, WRITTEN)
        tally.labels.update(value_counts(written["label"]))
        tally.labels.update(value_counts(pc.list_flatten(written["labels"])))
        targets = [name for name in _TARGETS if name in table.column_names]
        is_labelled = reduce(pc.or_, (pc.is_valid(written[name]) for name in targets))
        tally.num_unlabelled += len(written) - (pc.sum(is_labelled).as_py() or 0)
        if "object_labels" in table.column_names:
            tally.annotations.add(written)
        self._num_damaged += pc.count(written["reason"]).as_py()
        marks = "".join(pc.utf8_slice_codeunits(written["original_sha256"], 0, 16).to_pylist())
        self._marks.append(np.frombuffer(bytes.fromhex(marks), ">u8").astype(np.uint64))
        self._places.append(list(self._splits).index(split))
        self._original_bytes += pc.sum(written["original_bytes"]).as_py() or 0
        if self.spec.fixed_size is not None:
            sides = (written[f"original_{side}"].to_pylist() for side in ("height", "width"))
            sizes: Counter[tuple[int, int]] = Counter(zip(*sides, strict=True))
            self._num_enlarged += sum(
                count
                for size, count in sizes.items()
                if math.prod(fitted_size(*size, self.spec)) > math.prod(size)
            )

    def splits(self, labels: Sequence[str]) -> dict[str, Split]:
        return {
            name: Split(
                num_records=sum(shard.num_records for shard in tally.shards),
                num_bytes=sum(shard.num_bytes for shard in tally.shards),
                label_counts={label: tally.labels[i] for i, label in enumerate(labels)},
                num_unlabelled=tally.num_unlabelled,
                shards=tuple(tally.shards),
            )
            for name, tally in self._splits.items()
        }

    def annotations(
        self, schema: Schema, known: Mapping[str, AnnotationCounts] = MappingProxyType({})
    ) -> dict[str, AnnotationCounts]:
        """Return the counts of each split, strict (see `counts`) if `known` has the strict ones."""
        found = dict[str, AnnotationCounts]()
        for name, tally in self._splits.items() if schema.annotations else ():
            strict = tally.annotations.counts(schema, is_strict=True)
            is_known = strict == known.get(name)
            found[name] = strict if is_known else tally.annotations.counts(schema)
        return found

    def totals(self, skipped: Counter[str]) -> Totals:
        """Return the totals; `skipped` counts inputs that never became items, by reason."""
        num_copies, num_leaks = self._copies()
        shards = [shard for tally in self._splits.values() for shard in tally.shards]
        num_written = sum(shard.num_records for shard in shards)
        return Totals(
            num_inputs=num_written + self._rejected.total() + skipped.total(),
            num_written=num_written,
            num_rejected=self._rejected.total(),
            num_skipped=skipped.total(),
            rejected=dict(sorted(self._rejected.items())),
            skipped=dict(sorted(skipped.items())),
            num_copies=num_copies,
            num_leaks=num_leaks,
            num_damaged=self._num_damaged,
            num_enlarged=self._num_enlarged,
            original_bytes=self._original_bytes,
            num_bytes=sum(shard.num_bytes for shard in shards),
        )

    def _copies(self) -> tuple[int, int]:
        """Return the numbers of copies and of leaks, as in `Totals`."""
        marks = np.concatenate(self._marks)
        places = np.repeat(self._places, [len(marks) for marks in self._marks])
        order = np.lexsort((places, marks))
        same = marks[order][1:] == marks[order][:-1]
        apart = places[order][1:] != places[order][:-1]
        return int(same.sum()), int((same & apart).sum())


_TARGETS = ("label", "labels", "target", "text", *TARGET_COLUMNS.names)
_COLUMNS = (
    "status", "kind", "reason", "shard", "length", "label", "labels", "target", "text",
    "original_width", "original_height", "original_bytes", "original_sha256",
)  # fmt: skip


def counted_columns(schema: Schema) -> list[str]:
    """Return the columns of the item table that `Tally` reads."""
    given = [one.name for one in given_columns(schema).values()]
    names = columns_for(schema).names
    return [name for name in names if name in _COLUMNS or name not in (*COLUMNS.names, *given)]


def excerpt(manifest: Manifest, schema: Schema, written: pa.Table) -> Manifest:
    """Return `manifest` with the counts and sizes of the records in `written` only.

    Splits and shards without such records are left out, and so is the certificate. Shards keep the
    names and hashes of the complete files. `written` has `counted_columns`, and its rows are in the
    order of the item table.
    """
    tally = Tally(ImageSpec(size=None, fit="none"))
    rows = rows_by_shard(written)
    for split, whole in manifest.splits.items():
        for shard in whole.shards:
            if shard.name in rows:
                own = rows[shard.name]
                size = {"num_records": len(own), "num_bytes": pc.sum(own["length"]).as_py() or 0}
                tally.add(shard.model_copy(update=size), split, own)
    return manifest.model_copy(
        update={
            "splits": tally.splits(schema.labels),
            "totals": tally.totals(Counter()),
            "annotations": tally.annotations(schema),
            "leaks": None,
        }
    )
