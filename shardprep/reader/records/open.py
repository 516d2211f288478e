"""The records of a dataset that one reader wants, opened: documents, shards and indexes checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardprep.dataset.identity import Identity, check_same
from shardprep.dataset.locate import locate
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.remote import RemoteDataset, addressed, described
from shardprep.dataset.schema import BOX, Schema
from shardprep.errors import DatasetError
from shardprep.reader.config import ReadConfig, Request, check_request, draw_seed
from shardprep.reader.decode.targets import check_boxes, class_names
from shardprep.reader.order.epoch import (
    BlockShuffle,
    EpochOrder,
    WeightedDraws,
    block_shuffle,
    usual_block_length,
)
from shardprep.reader.order.order import Order
from shardprep.reader.records.positions import Places
from shardprep.reader.records.records import Records, open_records
from shardprep.reader.records.remote import RemoteShards, open_remote
from shardprep.reader.selection.split_argument import AnySplit, numbers_of
from shardprep.reader.selection.splits import part_range

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Subset:
    """The records of a dataset that one host reads."""

    path: Path | RemoteDataset
    folder: Path
    """The folder of the indexes, and of the shards unless they are `remote`."""
    manifest: Manifest
    schema: Schema
    remote: RemoteShards | None
    records: Records
    num_all: int
    """Number of records, or draws, of an epoch of all hosts together."""
    draws: WeightedDraws | None = None
    """The draws of an epoch, None if each record is read once."""

    @property
    def num_records(self) -> int:
        """Number of records of this host."""
        return len(self.records)

    @property
    def epoch_records(self) -> int:
        """Number of records that an epoch reads."""
        return len(self.records if self.draws is None else self.draws)

    @property
    def class_names(self) -> list[str]:
        """Class names in label order: of the objects, else of the masks, else of the images."""
        return class_names(self.schema)

    def image_size(self, request: Request) -> tuple[int, int] | None:
        """Return height and width of images before a crop, None if they differ."""
        return request.config.image_size or self.schema.image_size

    @property
    def block_length(self) -> int:
        """Default number of records of a block."""
        return usual_block_length(record_bytes(self.manifest))

    def blocks(self, config: ReadConfig, *, shuffle: bool) -> BlockShuffle:
        """Return the blocks of an epoch's records."""
        return block_shuffle(
            self.epoch_records,
            record_bytes(self.manifest),
            shuffle=shuffle,
            block_length=config.interleave_block_length,
            group_width=config.interleave_cycle_length,
        )

    def epoch_order(self, config: ReadConfig, *, shuffle: bool) -> EpochOrder:
        """Return the order within an epoch: the draws, else blocks."""
        return self.blocks(config, shuffle=shuffle) if self.draws is None else self.draws

    def order(self, request: Request) -> Order:
        """Return the order of the records; without a seed in the request, a random one."""
        return Order(
            self.epoch_order(request.config, shuffle=request.is_shuffled),
            seed=draw_seed() if request.seed is None else request.seed,
            reshuffle=request.config.shuffle_reshuffle_each_iteration,
        )

    def drawn(self, where: str, weights: Any, host: tuple[int, int]) -> Subset:
        """Return the subset with a host's draws by weight from its records.

        Raises:
            DatasetError: the weights are not one per record, or draw no record or too few.

        """
        from shardprep.reader.selection.item_rows import Items  # and pyarrow
        from shardprep.reader.selection.weights import weighted_draws

        items = Items(self.path, self.manifest, self.schema)
        numbers = self.records.places.numbers(self.manifest)
        draws = weighted_draws(where, weights, numbers, items, host)
        return replace(self, draws=draws, num_all=draws.num_all)


def open_subset(
    path: str | Path | RemoteDataset,
    split: AnySplit,
    reader: tuple[int, int] = (0, 1),
    *,
    before: Manifest | None = None,
    staging_bytes: int | None = None,
    verify_crc: bool = True,
) -> Subset:
    """Return the records of a split that are one reader's, such as a host's.

    Args:
        path: folder or address of a dataset, or of what it lies in, or the dataset itself.
        split: as of `reader.load`.
        reader: number of this reader, from 0, and number of all.
        before: the manifest that was read before; the dataset must still have it.
        staging_bytes: as of `ReadConfig`.
        verify_crc: compare the checksums of each record that is read.

    """
    found = path if isinstance(path, RemoteDataset) else locate(path)
    manifest, schema = described(found)
    if before is not None:
        check_same(found, manifest, before.sha256)
    every = numbers_of(manifest, split)
    check_readers(str(found), len(every), reader[1])
    places = Places.of(manifest, every[part_range(len(every), *reader)])
    folder, remote = (
        open_remote(found, manifest, places.shards, staging_bytes)
        if isinstance(found, RemoteDataset)
        else (found, None)
    )
    identity = None if remote is not None else Identity.of(folder, manifest)
    with addressed(folder, found):
        records = open_records(folder, places, remote, identity=identity, verify_crc=verify_crc)
    return Subset(found, folder, manifest, schema, remote, records, len(every))


def open_request(request: Request) -> Subset:
    """Return the records that a call of `load` reads. Raises as that does."""
    check_request(request)
    config = request.config
    is_drawn = request.weights is not None  # from all records, by each reader
    subset = open_subset(
        request.path,
        request.split,
        (0, 1) if is_drawn else config.shard_of,
        staging_bytes=config.staging_bytes,
    )
    if is_drawn:
        subset = subset.drawn("reader", request.weights, config.shard_of)
    crops = request.crop is not None
    if request.batch_size is not None and subset.image_size(request) is None and not crops:
        raise DatasetError(
            str(subset.path),
            "its images differ in size, so they cannot be batched as they are",
            "pass random_resized_crop, center_crop or ReadConfig(image_size=(height, width)), "
            "leave out batch_size, or build with --size",
        )
    check_boxes("reader", subset.schema, request)
    if config.service and request.max_boxes is None and BOX in subset.schema.features:
        raise DatasetError(
            str(subset.path),
            "a service sends batches of one shape, and images differ in their number of boxes",
            "give max_boxes",
        )
    if config.service and subset.remote is not None:
        raise DatasetError(
            str(subset.path),
            "workers of a service see neither this process nor its copies",
            f"shardprep fetch {subset.path} to a folder they share, or mount the bucket there",
        )
    return subset


def record_bytes(manifest: Manifest) -> float:
    """Return the mean size of a record's frame in bytes."""
    shards = manifest.shards.values()
    return sum(one.num_bytes for one in shards) / max(1, sum(one.num_records for one in shards))


def check_readers(where: str, num_records: int, num_readers: int) -> None:
    """Raise DatasetError where there are fewer records than readers."""
    if num_records < num_readers:
        what = f"{num_records} records cannot be shared by {num_readers} readers"
        raise DatasetError(where, what, "use fewer")
