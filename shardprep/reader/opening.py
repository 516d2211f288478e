"""A dataset folder that is opened for reading: its documents, checked, and the wanted records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.index import check_shard, read_index
from shardprep.dataset.locate import locate
from shardprep.dataset.remote import RemoteDataset, addressed, described
from shardprep.errors import DatasetError
from shardprep.reader.options import check_request
from shardprep.reader.remote_shards import open_remote
from shardprep.reader.splits import part_of, select

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.dataset.schema import Schema
    from shardprep.reader.options import ReadConfig, Request
    from shardprep.reader.order import Ints
    from shardprep.reader.remote_shards import RemoteShards
    from shardprep.reader.splits import ShardSlice


@dataclass(frozen=True, slots=True)
class Opened:
    """A dataset folder, and which of its records are wanted."""

    folder: Path
    manifest: Manifest
    schema: Schema
    slices: list[ShardSlice]
    shards: dict[str, Shard]
    """The shards that are wanted, by name."""
    num_all: int
    """Records of all readers together."""
    remote: RemoteShards | None
    """The shards, where they are not in the folder."""
    where: str
    """The dataset's folder or address, for people."""

    @property
    def num_records(self) -> int:
        """Records that are wanted here."""
        return sum(one.take for one in self.slices)

    def image_size(self, config: ReadConfig) -> tuple[int, int] | None:
        """Return height and width of images as they are yielded, None where they differ."""
        return config.image_size or self.schema.image_size

    def frames(self) -> list[Ints]:
        """Return for each slice int64[records, 2], offset and length of each frame in its shard.

        Raises:
            DatasetError: an index is missing, damaged, or not that of its shard.

        """
        with addressed(self.folder, self.where):
            found = {name: read_index(self.folder, shard) for name, shard in self.shards.items()}
        return [found[one.shard][one.skip : one.skip + one.take] for one in self.slices]


def open_dataset(path: str | Path, request: Request, config: ReadConfig) -> Opened:
    """Return what a request is about. Raises as `reader.load` says."""
    found = locate(path)
    check_request(request, config)
    manifest, schema = described(found)
    slices, num_all = _wanted(manifest, schema, str(found), request, config)
    every = manifest.shards
    shards = {one.shard: every[one.shard] for one in slices}
    if isinstance(found, RemoteDataset):
        if config.service:
            raise DatasetError(
                str(found),
                "workers of a service see neither this process nor its copies",
                f"shardprep fetch {found} to a folder they share, or mount the bucket there",
            )
        folder, remote = open_remote(found, manifest, slices, config.staging_bytes)
        return Opened(folder, manifest, schema, slices, shards, num_all, remote, str(found))
    for shard in shards.values():
        check_shard(found, shard)
    return Opened(found, manifest, schema, slices, shards, num_all, None, str(found))


def _wanted(
    manifest: Manifest, schema: Schema, where: str, request: Request, config: ReadConfig
) -> tuple[list[ShardSlice], int]:
    """Return the wanted records of this reader, and the number of those of all readers."""
    if schema.image_size is None and config.image_size is None and request.batch_size is not None:
        raise DatasetError(
            where,
            "its images differ in size, so they cannot be batched as they are",
            "pass read_config=ReadConfig(image_size=(height, width)), leave out batch_size, "
            "or build with --size",
        )
    slices = select(manifest, request.split)
    num_all = sum(one.take for one in slices)
    index, number = config.shard_of
    if num_all < number:
        raise DatasetError(
            where, f"{num_all} records cannot be shared by {number} readers", "use fewer"
        )
    return part_of(slices, index, number), num_all
