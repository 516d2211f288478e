"""The records of a dataset that one host reads: shards and indexes checked, and opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardprep.dataset.folder import index_name
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.remote_files import RemoteFiles
from shardprep.dataset.schema import BOX, BOX_LABEL, MASK, Schema
from shardprep.errors import DatasetError
from shardprep.reader.config import ReadConfig, Request, check_request, draw_seed
from shardprep.reader.decode.targets import check_boxes
from shardprep.reader.order.epoch import (
    BlockShuffle,
    EpochOrder,
    WeightedDraws,
    block_shuffle,
    usual_block_length,
)
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Places, Records, indexed
from shardprep.reader.records.shards import LocalShards, RemoteShards
from shardprep.reader.selection.split_argument import AnySplit, numbers_of, part_range


@dataclass(frozen=True, slots=True)
class Subset:
    """The opened records of one host, and how many an epoch reads."""

    dataset: OpenDataset
    schema: Schema
    """Schema of the records, or of their decoded copy."""
    records: Records
    num_all: int
    """Number of records, or draws, of an epoch of all hosts together."""
    draws: WeightedDraws | None = None
    """The draws of an epoch, None if each record is read once."""

    @property
    def manifest(self) -> Manifest:
        return self.dataset.manifest

    @property
    def num_records(self) -> int:
        return len(self.records)

    @property
    def epoch_records(self) -> int:
        return len(self.records if self.draws is None else self.draws)

    @property
    def class_names(self) -> list[str]:
        """Class names in label order: of the objects, or else of the masks, or of the images."""
        for name in (BOX_LABEL, MASK):
            if name in self.schema.features:
                return list(self.schema.features[name].labels)
        return list(self.schema.labels)

    def image_size(self, request: Request) -> tuple[int, int] | None:
        """Return height and width of images before a crop, None if they differ."""
        return request.config.image_size or self.schema.image_size

    @property
    def block_length(self) -> int:
        return usual_block_length(mean_record_bytes(self.manifest))

    def blocks(self, config: ReadConfig, *, shuffle: bool) -> BlockShuffle:
        return block_shuffle(
            self.epoch_records,
            mean_record_bytes(self.manifest),
            shuffle=shuffle,
            block_length=config.interleave_block_length,
            group_width=config.interleave_cycle_length,
        )

    def epoch_order(self, config: ReadConfig, *, shuffle: bool) -> EpochOrder:
        return self.blocks(config, shuffle=shuffle) if self.draws is None else self.draws

    def order(self, request: Request) -> Order:
        """Return the order of the records. Its seed is random if the request has none."""
        return Order(
            self.epoch_order(request.config, shuffle=request.is_shuffled),
            seed=draw_seed() if request.seed is None else request.seed,
            reshuffle=request.config.shuffle_reshuffle_each_iteration,
        )

    def drawn(self, where: str, weights: Any, host: tuple[int, int]) -> Subset:
        """Return the subset with the draws of a host by weight; raises like `weighted_draws`."""
        from shardprep.reader.selection.weights import weighted_draws  # and pyarrow

        numbers = self.records.places.numbers(self.manifest)
        draws = weighted_draws(where, weights, numbers, self.dataset, host)
        return replace(self, draws=draws, num_all=draws.num_all)


def open_subset(
    path: str | Path | OpenDataset,
    split: AnySplit,
    host: tuple[int, int] = (0, 1),
    *,
    staging_bytes: int | None = None,
    verify_crc: bool = True,
) -> Subset:
    """Return the records of a split that one host reads.

    `host` is the number of this host, from 0, and the number of hosts; `staging_bytes` is the
    option of `ReadConfig`.
    """
    dataset = path if isinstance(path, OpenDataset) else open_dataset(path)
    numbers = numbers_of(dataset.manifest, split)
    check_hosts(str(dataset), len(numbers), host[1])
    places = Places.of(dataset.manifest, numbers[part_range(len(numbers), *host)])
    records = open_records(dataset, places, staging_bytes=staging_bytes, verify_crc=verify_crc)
    return Subset(dataset, dataset.schema, records, len(numbers))


def open_records(
    dataset: OpenDataset,
    places: Places,
    *,
    store: LocalShards | RemoteShards | None = None,
    staging_bytes: int | None = None,
    verify_crc: bool = True,
) -> Records:
    """Return records of a dataset in the order of their places.

    The shards are opened unless `store` already reads them.
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
    return Records(store, frames, verify_crc=verify_crc)


def open_request(request: Request) -> Subset:
    """Return the records that a call of `load` reads. Raises as `load`."""
    check_request(request)
    config = request.config
    is_drawn = request.weights is not None  # then every host draws from all records
    host = (0, 1) if is_drawn else config.shard_of
    subset = open_subset(request.path, request.split, host, staging_bytes=config.staging_bytes)
    if is_drawn:
        subset = subset.drawn("reader", request.weights, config.shard_of)
    has_crop = request.crop is not None
    if request.batch_size is not None and subset.image_size(request) is None and not has_crop:
        raise DatasetError(
            str(subset.dataset),
            "its images differ in size, so they cannot be batched as they are",
            "give random_resized_crop, center_crop or ReadConfig(image_size=(height, width)), "
            "leave out batch_size, or build with --size",
        )
    check_boxes("reader", subset.schema, request)
    if config.service and request.max_boxes is None and BOX in subset.schema.features:
        what = "a service sends batches of one shape, and images differ in their number of boxes"
        raise DatasetError(str(subset.dataset), what, "give max_boxes")
    if config.service and subset.dataset.is_remote:
        raise DatasetError(
            str(subset.dataset),
            "workers of a service cannot read object storage through this process",
            f"shardprep fetch {subset.dataset} to a folder they share, or mount the bucket there",
        )
    return subset


def mean_record_bytes(manifest: Manifest) -> float:
    """Return the mean size of a record in bytes, with its frame."""
    shards = manifest.shards.values()
    num_records = sum(shard.num_records for shard in shards)
    return sum(shard.num_bytes for shard in shards) / max(1, num_records)


def check_hosts(where: str, num_records: int, num_hosts: int) -> None:
    """Raise DatasetError if there are fewer records than hosts."""
    if num_records < num_hosts:
        what = f"{num_records} records cannot be shared by {num_hosts} readers"
        raise DatasetError(where, what, "use fewer")
