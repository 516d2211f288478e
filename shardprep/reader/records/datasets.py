"""The dataset that a reader opens, or the datasets of a mix: their schema and their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Self

from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.schema import Schema
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Ints
from shardprep.reader.config import ReadConfig
from shardprep.reader.order.epoch import (
    BlockShuffle,
    EpochOrder,
    StoredOrder,
    block_sizes,
    lane_shuffle,
)
from shardprep.reader.order.mixed_draws import MixedDraws
from shardprep.reader.selection.split_argument import AnySplit, EvenSplit, Mix, numbers_of


@dataclass(frozen=True, slots=True)
class Datasets:
    """The opened datasets of a reader: a single one, or the datasets of a mix in their order."""

    opened: tuple[OpenDataset, ...]
    sizes: tuple[int, ...]
    """Number of records to read of each dataset, by all hosts together."""
    mix: Mix | None
    schema: Schema
    """The common schema. Without a common size of images, it has none."""

    @classmethod
    def of(cls, path: str | Path | OpenDataset | Mix, split: AnySplit) -> tuple[Self, list[Ints]]:
        """Open datasets. Return them, and the record numbers of a split in each.

        DatasetError if the datasets of a mix differ in features or classes, or as in `numbers_of`.
        """
        mix = path if isinstance(path, Mix) else None
        if mix is not None and not isinstance(split, str | EvenSplit):
            what = f"{split.name!r} is a selection of one dataset, but a mix has several"
            raise DatasetError("reader", what, "give split a text, or part of even_splits")
        places = path.paths if isinstance(path, Mix) else (path,)
        opened = tuple(one if isinstance(one, OpenDataset) else open_dataset(one) for one in places)
        numbers = [numbers_of(one.manifest, split) for one in opened]
        return cls(opened, tuple(map(len, numbers)), mix, _joined_schema(opened)), numbers

    def __str__(self) -> str:
        """Return the path or address, or the shares and paths of a mix."""
        return str(self.only if self.mix is None else self.mix)

    @property
    def only(self) -> OpenDataset:
        """The dataset, if it is not a mix."""
        (only,) = self.opened
        return only

    @property
    def record_bytes(self) -> float:
        """Mean size of a record of all datasets in bytes, with its frame."""
        return mean_record_bytes(*(one.manifest for one in self.opened))

    def order(self, size: int, config: ReadConfig, *, shuffle: bool) -> EpochOrder:
        """Return the order in global batches of `size`: each record once, or the draws of a mix."""
        if self.mix is None:
            record_bytes, (number,) = self.record_bytes, self.sizes
            length, width = sizes_of_blocks(record_bytes, config)
            if not shuffle:
                return StoredOrder(number, length, width)
            return lane_shuffle(number, record_bytes, size, block_length=length, group_width=width)
        if len(self.sizes) < len(self.opened):
            hint = "slice each dataset by split, as in 'train[:90%]'"
            raise DatasetError(str(self), "a slice of a mix has no shares", hint)
        every = []
        for dataset, number in zip(self.opened, self.sizes, strict=True):
            length, width = sizes_of_blocks(mean_record_bytes(dataset.manifest), config)
            every.append(
                BlockShuffle(
                    num_records=number, block_length=length, group_width=width, shuffle=shuffle
                )
            )
        stops_first = self.mix.stop == "first"
        return MixedDraws(blocks=tuple(every), shares=self.mix.shares, stops_first=stops_first)


def mean_record_bytes(*manifests: Manifest) -> float:
    """Return the mean size of a record in bytes, with its frame."""
    shards = [shard for manifest in manifests for shard in manifest.shards.values()]
    num_records = sum(shard.num_records for shard in shards)
    return sum(shard.num_bytes for shard in shards) / max(1, num_records)


def sizes_of_blocks(record_bytes: float, config: ReadConfig) -> tuple[int, int]:
    """Return the block length and the group width."""
    return block_sizes(record_bytes, config.interleave_block_length, config.interleave_cycle_length)


def _joined_schema(datasets: Sequence[OpenDataset]) -> Schema:
    """Return the schema of datasets whose images may differ in size, and be JPEG or PNG.

    DatasetError if they differ in anything else.
    """
    first, *others = datasets
    if not others:
        return first.schema
    sizes = {one.schema.image_size for one in datasets}
    encodings = {one.schema.image.encoding for one in datasets}
    if "raw" in encodings and (len(encodings) > 1 or len(sizes) > 1):
        what = "raw images can be mixed only with raw images of the same size"
        raise DatasetError(str(first), what, "build all with the same --size and --format")
    size = sizes.pop() if len(sizes) == 1 else None
    encoding = encodings.pop() if len(encodings) == 1 else "any"
    joined = first.schema.with_images(size, encoding)
    for other in others:
        schema = other.schema.with_images(size, encoding)
        if schema.unnamed().features != joined.unnamed().features:
            from shardprep.dataset.diff import feature_differences  # imports pyarrow

            if differences := feature_differences(joined.unnamed(), schema.unnamed()):
                what = f"its features differ from the features of {first}: {differences[0]}"
                raise DatasetError(str(other), what, "build both with the same options")
        for own, known in zip_longest(_classes(schema), _classes(joined), fillvalue="no class"):
            if own != known:
                what = f"it has {own} where {first} has {known}"
                paths = " ".join(map(str, datasets))
                hint = f"build all with the same classes, or merge them: shardprep repack {paths}"
                raise DatasetError(str(other), what, hint)
    return joined


def _classes(schema: Schema) -> Iterator[str]:
    """Yield descriptions of all classes, in an order that depends on the names of features."""
    features = sorted(schema.features.items())
    for name, labels in (("", schema.labels), *((name, one.labels) for name, one in features)):
        for number, label in enumerate(labels):
            yield f"class {number} {label!r}" + (f" of {name}" if name else "")
