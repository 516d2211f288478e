"""A second look at images that could not be read: a disk or a share may have been away for a while.

A dataset that lacks them would be finished, and the next run would leave it as it is.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from shardprep.catalog.items import Item
from shardprep.source.byte_range import MemberError
from shardprep.writer.encode.chunk import UNREADABLE
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.shard import read_receipt
from shardprep.writer.workspace.files import Folders

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUM_THREADS = 16
"""Number of threads that wait for object storage."""


def readable_again(folders: Folders, shards: Sequence[ShardPlan]) -> list[ShardPlan]:
    """Return the written shards with an image that was `unreadable`, and that can be read now."""
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        unread = list(pool.map(partial(_unread, folders), shards))
    return [
        shard for shard, items in zip(shards, unread, strict=True) if any(map(_can_be_read, items))
    ]


def _unread(folders: Folders, shard: ShardPlan) -> list[Item]:
    receipt = read_receipt(folders, shard.name)
    if receipt is None:
        return []
    kinds = receipt.table["kind"].cast("string").to_pylist()
    return [item for item, kind in zip(shard.items, kinds, strict=True) if kind == UNREADABLE]


def _can_be_read(item: Item) -> bool:
    """Tell whether the source gives the bytes of an image and of its masks."""
    try:
        for extent in (item.extent, *(mask.extent for mask in item.masks)):
            extent.read()
    except (MemberError, MemoryError):
        return False
    return True
