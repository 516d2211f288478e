"""`Dataset.batches(…, sharding=)`: batches as global JAX arrays.

A process decodes only the rows of its own devices. Only the thread that takes the batches calls
JAX, and no call waits for another process. So processes may be at different batches, and a transfer
never comes between the collectives of training steps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import jax
import numpy as np

from shardprep.dataset.schema import BOX, Schema
from shardprep.errors import DatasetError
from shardprep.reader.arrays.batches import AheadBatches
from shardprep.reader.config import BatchOptions, seed_of
from shardprep.reader.order.order import Order
from shardprep.reader.validators import short_repr

_WHERE = "Dataset.batches"


def with_shard(options: BatchOptions, schema: Schema) -> BatchOptions:
    """Return options with the `num_shards`, `shard_index` and seed that the sharding decides.

    Processes with the same rows get the same index. DatasetError if the devices do not divide the
    rows evenly, or for options that do not fit the sharding.
    """
    processes = _parts_of_processes(options.sharding)
    own = processes.get(jax.process_index(), ())
    shards = sorted(set(processes.values()))
    if options.shard_of != (0, 1):
        what, hint = "sharding already decides num_shards and shard_index", "leave out both"
    elif not own:
        what = f"process {jax.process_index()} has no device of the sharding"
        hint = "use a mesh with devices of all processes"
    elif len({*map(len, shards)}) > 1 or len({*chain(*shards)}) < sum(map(len, shards)):
        what = "the rows of the processes overlap or differ in number"
        hint = "use a mesh with equally many devices of each process"
    elif options.batch_size % len(own):
        what = f"sharding cannot divide batch_size={options.batch_size} into {len(own)} parts"
        hint = f"use a multiple of {len(own)}"
    elif len(shards) > 1 and BOX in schema.features and options.max_boxes is None:
        what, hint = "the processes would have different numbers of boxes", "give max_boxes"
    elif len(shards) > 1 and schema.is_stack and options.max_length is None:
        what, hint = "the processes would have stacks of different lengths", "give max_length"
    elif len(shards) > 1 and schema.rows:
        what, hint = "the processes would have different numbers of rows", "build without --rows"
    else:
        seed = seed_of(options.seed, len(processes))
        return replace(options, num_shards=len(shards), shard_index=shards.index(own), seed=seed)
    raise DatasetError(_WHERE, what, hint)


def check_last_batches(order: Order, options: BatchOptions) -> None:
    """Raise DatasetError if an incomplete batch cannot be divided among the devices."""
    if options.drop_remainder:
        return
    num_parts = len({*chain(*_parts_of_processes(options.sharding).values())})
    if (left := order.batches.num_left) % num_parts:
        what = f"sharding cannot divide the last batch of {left} into {num_parts} parts"
        raise DatasetError(_WHERE, what, "give drop_remainder=True")


def _parts_of_processes(sharding: Any) -> dict[int, tuple[int, ...]]:
    """Return process → sorted first rows of its devices, for a batch with one row per device."""
    try:
        slices = sharding.devices_indices_map((sharding.num_devices,))
    except (IndexError, ValueError) as error:
        what = f"sharding={short_repr(sharding)} does not divide only rows"
        hint = "use NamedSharding(mesh, PartitionSpec('data'))"
        raise DatasetError(_WHERE, what, hint) from error
    parts: dict[int, set[int]] = {}
    for device, (rows,) in slices.items():
        parts.setdefault(device.process_index, set()).add(rows.start or 0)
    return {process: tuple(sorted(starts)) for process, starts in parts.items()}


class ShardedBatches(AheadBatches):
    """The iterator that `Dataset.batches(…, sharding=)` returns."""

    def _moved(self, element: Any) -> Any:
        return jax.tree_util.tree_map_with_path(self._array, element)

    def _array(self, path: tuple[Any, ...], value: np.ndarray[Any, Any]) -> Any:
        if value.dtype == object:  # texts
            return value
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        if dtype != value.dtype and (value.astype(dtype) != value).any():
            names = (one.key for one in path if isinstance(one, jax.tree_util.DictKey))
            what = f"{'/'.join(names) or 'target'} has values that JAX cannot store as {dtype}"
            hint = "call jax.config.update('jax_enable_x64', True), or use as_supervised=True"
            raise DatasetError(_WHERE, what, hint)
        make: Any = jax.make_array_from_process_local_data
        return make(self._options.sharding, value)
