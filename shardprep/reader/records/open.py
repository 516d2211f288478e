"""Open the records of a dataset that one host reads; check shards, indexes and options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from shardprep.dataset.folder import index_name
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.remote_files import RemoteFiles
from shardprep.dataset.schema import BOX, BOX_LABEL, MASK, Schema
from shardprep.errors import DatasetError
from shardprep.reader.config import ReadConfig, Request, check_request, seed_of
from shardprep.reader.decode.targets import check_boxes
from shardprep.reader.order.epoch import (
    BlockShuffle,
    EpochOrder,
    HostRange,
    StoredOrder,
    block_sizes,
    lane_shuffle,
    usual_block_length,
)
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import Order
from shardprep.reader.records.records import Places, Records, indexed
from shardprep.reader.records.shards import LocalShards, RemoteShards
from shardprep.reader.selection.split_argument import AnySplit, numbers_of


@dataclass(frozen=True, slots=True)
class Subset:
    """The opened records of one host, and the order in which the host reads them."""

    dataset: OpenDataset
    schema: Schema
    """Schema of `records`, which may be decoded copies."""
    records: Records
    """The rows of the host: the records that it may read in any epoch (see `Order`)."""
    digest: str
    """Hash of the records of all hosts; see `Places.digest`."""
    within_epoch: EpochOrder
    batches: GlobalBatches

    @property
    def manifest(self) -> Manifest:
        return self.dataset.manifest

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
        """Return height and width of the images before a crop, or None if they differ."""
        return request.config.image_size or self.schema.image_size

    @property
    def block_length(self) -> int:
        return usual_block_length(mean_record_bytes(self.manifest))

    def blocks(self, config: ReadConfig, *, shuffle: bool) -> BlockShuffle:
        """Return an order of this host's records only, for readers that read whole groups."""
        length, width = block_sizes(mean_record_bytes(self.manifest), *_sizes(config))
        return BlockShuffle(
            num_records=self.num_records, block_length=length, group_width=width, shuffle=shuffle
        )

    def order(self, request: Request) -> Order:
        """Return the order of the records, with a seed of `seed_of`."""
        return Order(
            self.within_epoch,
            self.batches,
            seed=seed_of(request.seed, self.batches.num_hosts),
            reshuffle=request.config.shuffle_reshuffle_each_iteration,
        )

    def alone(self, records: Records, batch_size: int) -> Subset:
        """Return the subset of `records` in their order, as if this were the only host."""
        number = len(records)
        within = StoredOrder(number, *block_sizes(mean_record_bytes(self.manifest)))
        batches = GlobalBatches(number, batch_size)
        return replace(self, records=records, within_epoch=within, batches=batches)


def open_subset(
    path: str | Path | OpenDataset, split: AnySplit, *, verify_crc: bool = True
) -> Subset:
    """Return the records of a split in its order, for a single host."""
    dataset = path if isinstance(path, OpenDataset) else open_dataset(path)
    places = Places.of(dataset.manifest, numbers_of(dataset.manifest, split))
    records = open_records(dataset, places, verify_crc=verify_crc)
    number = len(records)
    within = StoredOrder(number, *block_sizes(mean_record_bytes(dataset.manifest)))
    batches = GlobalBatches(number, 1)
    return Subset(dataset, dataset.schema, records, places.digest, within, batches)


def open_records(
    dataset: OpenDataset,
    places: Places,
    *,
    store: LocalShards | RemoteShards | None = None,
    staging_bytes: int | None = None,
    verify_crc: bool = True,
) -> Records:
    """Return the records of a dataset at `places`, in this order.

    `store` reads their shards. Without it, the shards are checked and opened.
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
    """Return the records that a call of `load` reads on this host. Raises like `load`."""
    check_request(request)
    config = request.config
    dataset = open_dataset(request.path)
    manifest, (host, num_hosts) = dataset.manifest, config.shard_of
    numbers = numbers_of(manifest, request.split)
    size = (request.batch_size or 1) * config.replicas * num_hosts
    within: EpochOrder
    if request.weights is not None:
        from shardprep.reader.selection.weights import weighted_draws  # imports pyarrow

        within = weighted_draws("reader", request.weights, numbers, dataset)
    elif request.window or config.service:
        within = HostRange(len(numbers), request.window or 0, host, num_hosts)
    else:
        within = epoch_order(manifest, len(numbers), size, config, shuffle=request.is_shuffled)
    check_hosts(str(dataset), len(within), num_hosts)
    batches = GlobalBatches(len(within), size, host, num_hosts)
    places = Places.of(manifest, numbers)
    own = Places.of(manifest, numbers[within.own(batches)])
    records = open_records(dataset, own, staging_bytes=config.staging_bytes)
    subset = Subset(dataset, dataset.schema, records, places.digest, within, batches)
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


def epoch_order(
    manifest: Manifest, number: int, size: int, config: ReadConfig, *, shuffle: bool
) -> EpochOrder:
    """Return an order with each of `number` records once, in global batches of `size`."""
    record_bytes = mean_record_bytes(manifest)
    if shuffle:
        length, width = _sizes(config)
        return lane_shuffle(number, record_bytes, size, block_length=length, group_width=width)
    return StoredOrder(number, *block_sizes(record_bytes, *_sizes(config)))


def _sizes(config: ReadConfig) -> tuple[int | None, int | None]:
    return config.interleave_block_length, config.interleave_cycle_length


def check_hosts(where: str, num_records: int, num_hosts: int) -> None:
    """Raise DatasetError if there are fewer records than hosts."""
    if num_records < num_hosts:
        what = f"{num_records} records cannot be shared by {num_hosts} readers"
        raise DatasetError(where, what, "use fewer")
