"""Open and check the records of a dataset or mix that one host reads, and decide their order."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Self

from shardprep.dataset.folder import index_name
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.remote_files import RemoteFiles
from shardprep.dataset.schema import (
    BOX_LABEL,
    LABEL,
    LABELS,
    MASK,
    TARGET,
    TARGET_IMAGE,
    TARGETS,
    TEXT,
    TEXTS,
    Schema,
)
from shardprep.errors import DatasetError, counted
from shardprep.reader.array_types import Ints
from shardprep.reader.config import ReadConfig, ReadOptions, Request, seed_of
from shardprep.reader.decode.targets import check_options
from shardprep.reader.order.epoch import (
    BlockShuffle,
    EpochOrder,
    StoredOrder,
    block_sizes,
    lane_shuffle,
)
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import MixedDraws, Order
from shardprep.reader.records.records import Places, Records, indexed
from shardprep.reader.records.shards import LocalShards, RemoteShards, Shards
from shardprep.reader.selection.selection import Selection
from shardprep.reader.selection.split_argument import AnySplit, EvenSplit, Mix, numbers_of
from shardprep.reader.validators import MERGE_HINT

_MISSING = {LABELS: "all 0", TARGET: "NaN", TARGETS: "NaN", TEXT: "''", TEXTS: "''"}
"""Value of a missing target, by feature; −1 for classes."""


@dataclass(frozen=True, slots=True)
class Datasets:
    """The opened datasets of a reader: a single one, or the datasets of a mix in their order."""

    opened: tuple[OpenDataset, ...]
    sizes: tuple[int, ...]
    """Number of records to read from each dataset, by all hosts together."""
    mix: Mix | None
    schema: Schema
    """The common schema, without an image size if the datasets' images differ in size."""

    @classmethod
    def of(cls, path: str | Path | OpenDataset | Mix, split: AnySplit) -> tuple[Self, list[Ints]]:
        """Return the opened datasets of a path or mix, and the record numbers of a split in each.

        DatasetError as for `numbers_of`, or if datasets of a mix differ in features or classes.
        """
        mix = path if isinstance(path, Mix) else None
        if mix is not None and not isinstance(split, str | EvenSplit):
            what = f"{split.name!r} is a selection of one dataset, but a mix has several datasets"
            hint = f"give a split name or a part of even_splits, or {MERGE_HINT}"
            raise DatasetError("reader", what, hint)
        places = path.paths if isinstance(path, Mix) else (path,)
        opened = tuple(one if isinstance(one, OpenDataset) else open_dataset(one) for one in places)
        numbers = [numbers_of(one.manifest, split) for one in opened]
        return cls(opened, tuple(map(len, numbers)), mix, _joined_schema(opened)), numbers

    def __str__(self) -> str:
        return str(self.only if self.mix is None else self.mix)

    @property
    def only(self) -> OpenDataset:
        """The single dataset; ValueError for a mix."""
        (only,) = self.opened
        return only

    @property
    def record_bytes(self) -> float:
        """Mean size of a record with its frame in bytes, over all datasets."""
        return mean_record_bytes(*(one.manifest for one in self.opened))

    def order(
        self,
        options: ReadOptions,
        split: AnySplit,
        size: int,
        config: ReadConfig,
        numbers: Callable[[], Ints],
    ) -> EpochOrder:
        """Return the order within an epoch, for global batches of `size` records.

        `numbers` returns the record numbers of the split; only weights need them. DatasetError for
        invalid weights, or for a slice of a mix.
        """
        if options.weights is not None:
            from shardprep.reader.selection.query import weighted_draws  # imports pyarrow

            return weighted_draws(options.where, options.weights, numbers(), self.only)
        shuffle = options.shuffles(split)
        if self.mix is None:
            record_bytes, (number,) = self.record_bytes, self.sizes
            length, width = sizes_of_blocks(record_bytes, config)
            if not shuffle:
                return StoredOrder(number, length, width)
            return lane_shuffle(number, record_bytes, size, block_length=length, group_width=width)
        if len(self.sizes) < len(self.opened):
            hint = "slice each dataset by split, as in 'train[:90%]'"
            what = "batches cannot be read from a slice [a:b] of a mix"
            raise DatasetError(str(self), what, hint)
        every = []
        for dataset, number in zip(self.opened, self.sizes, strict=True):
            length, width = sizes_of_blocks(mean_record_bytes(dataset.manifest), config)
            every.append(
                BlockShuffle(
                    num_records=number, block_length=length, group_width=width, shuffle=shuffle
                )
            )
        return MixedDraws(blocks=tuple(every), shares=self.mix.shares)


def mean_record_bytes(*manifests: Manifest) -> float:
    """Return the mean size of a record with its frame in bytes, over all shards."""
    shards = [shard for manifest in manifests for shard in manifest.shards.values()]
    num_records = sum(shard.num_records for shard in shards)
    return sum(shard.num_bytes for shard in shards) / max(1, num_records)


def sizes_of_blocks(record_bytes: float, config: ReadConfig) -> tuple[int, int]:
    """Return the block length in records, and the group width in blocks."""
    return block_sizes(record_bytes, config.interleave_block_length, config.interleave_cycle_length)


def _joined_schema(datasets: Sequence[OpenDataset]) -> Schema:
    """Return the common schema; DatasetError if features, classes or raw images differ."""
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
                what = f"has {own} where {first} has {known}"
                paths = shlex.join(map(str, datasets))
                hint = f"build with equal classes, or merge: shardprep repack {paths} --name NAME"
                raise DatasetError(str(other), what, hint)
    return joined


def _classes(schema: Schema) -> Iterator[str]:
    """Yield a description of each class of the images, then of the features sorted by name."""
    features = sorted(schema.features.items())
    for name, labels in (("", schema.labels), *((name, one.labels) for name, one in features)):
        for number, label in enumerate(labels):
            yield f"class {number} {label!r}" + (f" of {name}" if name else "")


@dataclass(frozen=True, slots=True)
class Subset:
    """The opened records of one host, and their reading order."""

    datasets: Datasets
    schema: Schema
    """Schema of `records`, which may be decoded copies."""
    records: Records
    """The rows of the host: the records that it may read in any epoch (see `Order`)."""
    digest: str
    """Hash of the records of all hosts; see `Places.digest`."""
    within_epoch: EpochOrder
    batches: GlobalBatches

    @property
    def num_records(self) -> int:
        return len(self.records)

    @property
    def num_all(self) -> int:
        """Number of records (or draws by weight) of an epoch, of all hosts together."""
        return len(self.within_epoch)

    @property
    def epoch_records(self) -> int:
        """Number of records (or draws by weight) of an epoch that this host reads."""
        return len(self.batches)

    @property
    def class_names(self) -> list[str]:
        """Class names in label order: of the objects, else of the masks, else of the images."""
        for name in (BOX_LABEL, MASK):
            if name in self.schema.features:
                return list(self.schema.features[name].labels)
        return list(self.schema.labels)

    def image_size(self, request: Request) -> tuple[int, int] | None:
        """Return height and width of the images before a crop, or None if sizes differ."""
        return request.config.image_size or self.schema.image_size

    @property
    def block_length(self) -> int:
        length, _ = block_sizes(self.datasets.record_bytes)
        return length

    def group_records(self, config: ReadConfig) -> int:
        """Return the number of records to read together from object storage."""
        length, width = sizes_of_blocks(self.datasets.record_bytes, config)
        return min(width, -(-self.num_records // length)) * length

    def order(self, request: Request) -> Order:
        """Return the order of the records in all epochs; a missing seed is as in `seed_of`."""
        return Order(
            self.within_epoch,
            self.batches,
            seed=seed_of(request.seed, self.batches.num_hosts),
            reshuffle=request.config.shuffle_reshuffle_each_iteration,
        )

    def alone(self, records: Records, batch_size: int) -> Subset:
        """Return this subset for one host: `records` in stored order, in batches of this size."""
        number = len(records)
        within = StoredOrder(number, *block_sizes(self.datasets.record_bytes))
        batches = GlobalBatches(number, batch_size)
        return replace(self, records=records, within_epoch=within, batches=batches)


def open_subset(path: str | Path | OpenDataset | Mix, split: AnySplit) -> Subset:
    """Return the records of a split in its order, for one host. Errors as in `reader.Dataset`."""
    datasets, numbers = Datasets.of(path, split)
    records = _joined(datasets, numbers)
    within = StoredOrder(len(records), *block_sizes(datasets.record_bytes))
    batches = GlobalBatches(len(records), 1)
    return Subset(datasets, datasets.schema, records, records.digest, within, batches)


class Labelling(NamedTuple):
    """The number of records of a split without a target."""

    split: str
    num_unlabelled: int
    num_records: int


def labellings(subset: Subset, split: AnySplit, weights: object) -> list[Labelling]:
    """Return the labelling of each split that is read; [] without targets.

    With weights="balanced", which draws only records with a class, return [].
    """
    if isinstance(weights, str) or not subset.schema.has_target:
        return []
    if isinstance(split, Selection) and subset.schema.target == LABEL:
        return [Labelling(split.name, int((split.labels < 0).sum()), len(split))]
    paths = {*subset.records.paths}
    return [
        Labelling(name, one.num_unlabelled, one.num_records)
        for dataset in subset.datasets.opened
        for name, one in dataset.manifest.splits.items()
        if any(dataset.files.location(shard.name) in paths for shard in one.shards)
    ]


def labelling_advice(subset: Subset, found: Sequence[Labelling]) -> Iterator[str]:
    """Yield a warning for each split with records that have no target."""
    feature = subset.schema.target or "class"
    for name, number, num_records in found:
        if number:
            yield (
                f"{number:,} of {num_records:,} records of {name} have no {feature} "
                f"({_MISSING.get(feature, '−1')}), but fit and evaluate count them; to train, "
                "leave the split out; to predict, use model.predict, or to get the file names "
                "too, call model(batch['image']) on batches with as_supervised=False"
            )


def _joined(
    datasets: Datasets, numbers: Sequence[Ints], *, staging_bytes: int | None = None
) -> Records:
    """Return the records with these numbers in each dataset, one dataset after the other."""
    every = [
        open_records(one, Places.of(one.manifest, own), staging_bytes=staging_bytes)
        for one, own in zip(datasets.opened, numbers, strict=True)
    ]
    return Records.joined(every) if len(every) > 1 else every[0]


def open_records(
    dataset: OpenDataset,
    places: Places,
    *,
    store: Shards | None = None,
    staging_bytes: int | None = None,
) -> Records:
    """Return the records of a dataset at `places`, in this order.

    Without `store`, the shards are first checked against the manifest, and opened. DatasetError if
    a shard or index is missing or damaged.
    """
    files, shards = dataset.files, {shard.name: shard for shard in places.shards}
    if store is None:
        files.check_shards(places.shards)
        if isinstance(files, RemoteFiles):
            remote = {name: files.shard(shard) for name, shard in shards.items()}
            store = RemoteShards(remote, staging_bytes)
        else:
            store = LocalShards(files.folder, shards, files)
    with dataset.documents(*map(index_name, shards)) as folder:
        frames = indexed(folder, places)
    return Records(store, frames)


def open_request(request: Request) -> Subset:
    """Return the records that a call of `load` reads on this host. Raises like `load`."""
    _check_request(request)
    config = request.config
    datasets, numbers = Datasets.of(request.path, request.split)
    host, num_hosts = config.shard_of
    size = (request.batch_size or 1) * config.replicas * num_hosts
    within = datasets.order(request, request.split, size, config, lambda: numbers[0])
    check_hosts(str(datasets), len(within), num_hosts)
    batches = GlobalBatches(len(within), size, host, num_hosts)
    # Each host reads from all records of a mix.
    own = numbers if datasets.mix else [numbers[0][within.own(batches)]]
    records = _joined(datasets, own, staging_bytes=config.staging_bytes)
    digest = records.digest
    if not datasets.mix:
        digest = Places.of(datasets.only.manifest, numbers[0]).digest
    subset = Subset(datasets, datasets.schema, records, digest, within, batches)
    has_crop = request.crop is not None
    if request.batch_size is not None and subset.image_size(request) is None and not has_crop:
        raise DatasetError(
            str(datasets),
            "its images may differ in size, so they cannot be batched",
            "give random_resized_crop, center_crop or ReadConfig(image_size=(height, width)), "
            "leave out batch_size, or build with --size",
        )
    check_options(subset.schema, request)
    if subset.schema.is_stack:
        _check_stack_request(subset, request)
    if (target := subset.schema.features.get(TARGET_IMAGE)) is not None:
        is_moved = type(request.augment).__module__.startswith("shardprep.") and target.is_deep
        if config.image_size is not None or is_moved:
            what = "ops of reader.augment cannot move target images of 16 bits"
            what = what if is_moved else "image_size does not resize target images"
            hint = "use random_resized_crop or center_crop instead"
            raise DatasetError(str(datasets), what, hint)
    return subset


def _check_request(request: Request) -> None:
    config = request.config
    no_mix = {
        "weights": request.weights,
        "a cache in a folder": request.cache not in (False, "auto", "memory"),
    }
    request.check_source(request.path, no_mix)
    if request.weights is not None and config.pad_batches:
        what = "weights are for training, pad_batches for evaluation"
        raise _refused(what, "leave out weights or pad_batches")
    if config.pad_batches and (
        request.batch_size is None or request.drop_remainder or request.repeat
    ):
        what = "pad_batches=True needs batch_size, and neither repeat nor drop_remainder"
        raise _refused(what, "change these arguments, or leave out pad_batches")
    if request.crop is not None and config.image_size is not None:
        hint = "leave out image_size: a crop has its own size"
        raise _refused("image_size and a crop are both given", hint)


def _refused(what: str, hint: str) -> DatasetError:
    return DatasetError("reader", what, hint)


def _check_stack_request(subset: Subset, request: Request) -> None:
    if request.config.image_size is not None:
        what, hint = "image_size resizes only single images", "give a crop, or build with --size"
    elif request.cache not in (False, "auto", "memory"):
        what, hint = "a cache in a folder cannot store them", "give cache='memory'"
    else:
        return
    raise DatasetError(str(subset.datasets), f"has stacks, but {what}", hint)


def check_hosts(where: str, num_records: int, num_hosts: int) -> None:
    """Raise DatasetError if there are fewer records than hosts."""
    if num_records < num_hosts:
        records, readers = counted(num_records, "record"), counted(num_records, "reader")
        what = f"{records} cannot be shared by {num_hosts} readers"
        raise DatasetError(where, what, f"use at most {readers}")
