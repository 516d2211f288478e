"""Readers for the replicas of a strategy: each host reads a range of records of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardprep.errors import DatasetError
from shardprep.reader.subset import open_request
from shardprep.reader.tf.pipeline import make_dataset

if TYPE_CHECKING:
    from pathlib import Path

    from shardprep.reader.options import ReadConfig, Request


def distribute(strategy: Any, path: str | Path, request: Request, config: ReadConfig) -> Any:
    """Return the distributed dataset of a request whose batches are those of all replicas.

    Raises:
        DatasetError: a batch cannot be parted evenly among the replicas.

    """
    replicas = strategy.num_replicas_in_sync
    if request.batch_size is None or request.batch_size % replicas:
        raise DatasetError(
            "reader.distribute",
            f"batch_size={request.batch_size} for {replicas} replicas",
            f"batch_size counts images of all replicas together: use a multiple of {replicas}",
        )

    if not config.pad_batches:
        request = replace(request, drop_remainder=True)

    def of_host(context: Any) -> Any:
        own = replace(config, input_context=context)
        size = context.get_per_replica_batch_size(request.batch_size)
        mine = replace(request, batch_size=size)
        return make_dataset(open_request(path, mine, own), mine, own)

    return strategy.distribute_datasets_from_function(of_host)
