"""The records of a dataset that one reader wants, opened: documents, shards and indexes checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardprep.dataset.folder import index_name
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.remote_files import RemoteFiles
from shardprep.dataset.schema import BOX
from shardprep.errors import DatasetError
from shardprep.reader.config import check_request, draw_seed
from shardprep.reader.decode.targets import check_boxes, class_names
from shardprep.reader.order.order import make_order, usual_block_length
from shardprep.reader.records.positions import Places
from shardprep.reader.records.records import LocalShards, Records, indexed
from shardprep.reader.records.remote import RemoteShards
from shardprep.reader.selection.selection import numbers_of
from shardprep.reader.selection.splits import part_range

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.dataset.schema import Schema
    from shardprep.reader.config import Request
    from shardprep.reader.order.order import Order
    from shardprep.reader.selection.splits import AnySplit
    from shardprep.reader.selection.weights import Draws
    from shardprep.reader.tf.cache.memory import DecodedRows


@dataclass(frozen=True, slots=True)
class Subset:
    """A dataset, and which of its records are wanted."""

    dataset: OpenDataset
    schema: Schema
    """Schema of the records: of the dataset, or of its decoded copy."""
    shards: dict[str, Shard]
    """The shards that are wanted, by name."""
    records: Records
    num_all: int
    """Records of all readers together."""
    is_cache: bool = False
    """Whether the shards are decoded twins of the dataset's."""
    draws: Draws | None = None
    """Draws by weight of an epoch, where there are such."""
    rows: DecodedRows | None = None
    """Decoded elements, where all are in memory."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the dataset."""
        return self.dataset.manifest

    @property
    def num_records(self) -> int:
        """Records that are wanted here."""
        return len(self.records)

    @property
    def epoch_records(self) -> int:
        """Records of an epoch: those that are wanted here, or as many as are drawn."""
        return len(self.records) if self.draws is None else len(self.draws)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes, in the order of their numbers; none of a set without classes.

        Those of its objects, else of its masks, else of its images.
        """
        return class_names(self.schema)

    def image_size(self, request: Request) -> tuple[int, int] | None:
        """Return height and width of images before a crop, None where they differ."""
        return request.config.image_size or self.schema.image_size

    @property
    def block_length(self) -> int:
        """Records of a block, unless something else is asked for."""
        return usual_block_length(record_bytes(self.manifest))

    def order(self, request: Request) -> Order:
        """Return the order of the records; without a seed, with one that is drawn."""
        config = request.config
        order = make_order(
            len(self.records),
            record_bytes(self.manifest),
            seed=draw_seed() if request.seed is None else request.seed,
            shuffle=request.is_shuffled,
            block_length=config.interleave_block_length,
            group_width=config.interleave_cycle_length,
        ).drawn_by(self.draws)
        return replace(order, reshuffle=config.shuffle_reshuffle_each_iteration)


def open_subset(
    path: str | Path | OpenDataset,
    split: AnySplit,
    reader: tuple[int, int] = (0, 1),
    *,
    staging_bytes: int | None = None,
    verify_crc: bool = True,
) -> Subset:
    """Return the records of a split that are one reader's, such as a host's.

    Args:
        path: folder or address of a dataset, or of one above it, or the opened dataset.
        split: as of `reader.load`.
        reader: number of this reader, from 0, and number of all.
        staging_bytes: as of `ReadConfig`.
        verify_crc: compare the checksums of each record that is read.

    """
    dataset = path if isinstance(path, OpenDataset) else open_dataset(path)
    every = numbers_of(dataset.manifest, split)
    check_readers(str(dataset), len(every), reader[1])
    places = Places.of(dataset.manifest, every[part_range(len(every), *reader)])
    records = open_records(dataset, places, staging_bytes=staging_bytes, verify_crc=verify_crc)
    shards = {shard.name: shard for shard in places.shards}
    return Subset(dataset, dataset.schema, shards, records, len(every))


def open_records(
    dataset: OpenDataset,
    places: Places,
    *,
    store: LocalShards | RemoteShards | None = None,
    staging_bytes: int | None = None,
    verify_crc: bool = True,
) -> Records:
    """Return the records at some places of a dataset, in their order.

    Args:
        dataset: the dataset.
        places: where the records are.
        store: what reads the shards; None opens them.
        staging_bytes: as of `ReadConfig`.
        verify_crc: compare the checksums of each record that is read.

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
    return Records(store, places.shards, frames, verify_crc=verify_crc)


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
        from shardprep.reader.selection.weights import draws_of

        draws = draws_of("reader", request.weights, subset.records, subset.dataset, config.shard_of)
        subset = replace(subset, draws=draws, num_all=draws.num_all)
    crops = request.crop is not None
    if request.batch_size is not None and subset.image_size(request) is None and not crops:
        raise DatasetError(
            str(subset.dataset),
            "its images differ in size, so they cannot be batched as they are",
            "pass random_resized_crop, center_crop or ReadConfig(image_size=(height, width)), "
            "leave out batch_size, or build with --size",
        )
    check_boxes("reader", subset.schema, request)
    if config.service and request.max_boxes is None and BOX in subset.schema.features:
        raise DatasetError(
            str(subset.dataset),
            "a service sends batches of one shape, and images differ in their number of boxes",
            "give max_boxes",
        )
    if config.service and subset.dataset.is_remote:
        raise DatasetError(
            str(subset.dataset),
            "workers of a service see neither this process nor its copies",
            f"shardprep fetch {subset.dataset} to a folder they share, or mount the bucket there",
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
