"""Random plans of training on clusters that change, against one undisturbed host.

A plan draws the records, the global batch, the order, the seed, and before each part of the run
the reader and the number of hosts and threads. Which part of a global batch a host must yield is
computed here in plain Python.
"""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from shardprep import reader
from shardprep.reader.order import epoch as epoch_order
from shardprep.reader.order.epoch import StoredOrder, WeightedDraws, lane_shuffle
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import Order
from tests.support.builders import build, png, write, zip_bytes

NUM_GATE, NUM_SOAK = 200, 10_000
"""Number of plans of the order alone, in a run of the suite and in a soak."""
NUM_READ_GATE, NUM_READ_SOAK = 8, 400
"""Number of plans that are read from datasets."""
SMALL, PHOTO, LARGE = 200, 15_000, 3_000_000
"""Bytes of a record: blocks of 64 records, 64 and 8."""
_MOST_HOSTS = 64
_NUM_EPOCHS = 2
_SMALL_BLOCKS: dict[str, Any] = {
    "BLOCK_LENGTH": 4, "_MIN_BLOCK_LENGTH": 1, "_MIN_GROUP_WIDTH": 1, "_GROUP_RECORDS": 12,
}  # fmt: skip
"""Constants of `epoch` that give a small dataset many lanes and groups."""


class Streams(NamedTuple):
    """The numbers of all records in training order."""

    alone: bytes
    """As one undisturbed host yields them."""
    together: bytes
    """As the hosts of the plan yield them."""


def an_order(kind: str, number: int, size: int, seed: int, **sizes: Any) -> Order:
    """Return the order of one host that reads everything."""
    batches = GlobalBatches(number, size)
    if kind == "lanes":
        within: Any = lane_shuffle(number, sizes.pop("record_bytes", PHOTO), size, **sizes)
    elif kind == "stored":
        within = StoredOrder(number, 64, 16)
    else:
        weights = np.arange(1.0, number + 1)
        within = WeightedDraws(weights, np.cumsum(weights), replacement=True, num_draws=number)
    return Order(within, batches, seed)


def planned(seed: int) -> Streams:
    """Return the streams of a plan without reading records; the cluster changes at any batch."""
    draw = random.Random(seed)
    kind = draw.choice(["lanes", "lanes", "lanes", "stored", "weights"])
    size = draw.randint(1, _MOST_HOSTS) * draw.choice([1, 1, 2, 3, 4, 8])
    number = draw.randint(1, 600)
    sizes: dict[str, Any] = {}
    if kind == "lanes":
        sizes["record_bytes"] = draw.choice([SMALL, PHOTO, LARGE])
        sizes["block_length"] = draw.choice([None, 1, 3, 8])
        sizes["group_width"] = draw.choice([None, 1, 5])
    order, epoch = an_order(kind, number, size, seed, **sizes), draw.randint(0, 3)
    clusters, alone, together = _clusters(size, number), bytearray(), bytearray()
    seen: list[int] = []
    for batch in range(order.num_batches(drop=False)):
        whole = order.batch(epoch, batch).tolist()
        alone += repr(whole).encode()
        num_hosts, merged = draw.choice(clusters), list[int]()
        for host in range(num_hosts):
            own = replace(order, batches=replace(order.batches, host=host, num_hosts=num_hosts))
            tags = own.batch(epoch, batch)
            assert tags.tolist() == _part(whole, host, num_hosts), (seed, batch, host)
            mine = own.within_epoch.own(own.batches)
            mine = np.arange(mine.start, mine.stop) if isinstance(mine, slice) else mine
            assert mine[own.rows(tags)].tolist() == [tag % number for tag in tags.tolist()]
            merged += tags.tolist()
        together += repr(merged).encode()
        seen += whole
    assert len(seen) == len(set(seen)) == number, f"plan {seed}: tags are lost or doubled"
    if kind != "weights":
        assert {tag % number for tag in seen} == {*range(number)}, f"plan {seed}: records are lost"
    return Streams(bytes(alone), bytes(together))


def _clusters(size: int, number: int) -> list[int]:
    """Return the numbers of hosts that keep the global batch `size`."""
    return [n for n in range(1, _MOST_HOSTS + 1) if size % n == 0 and n <= number]


def _part(whole: list[Any], host: int, num_hosts: int) -> list[Any]:
    return [one for i, one in enumerate(whole) if i * num_hosts // len(whole) == host]


# --- the readers --------------------------------------------------------------------------------


def datasets(folder: Path) -> list[Path]:
    """Return a small and a larger dataset of tiny images, whose targets are their numbers."""
    return [_numbered(folder / str(number), number) for number in (83, 301)]


def _numbered(folder: Path, number: int) -> Path:
    members = {f"{i}.png": png(4, 4, seed=i) for i in range(number)}
    table = "".join(f"{i}.png,{i}\n" for i in range(number))
    source = write(folder / "set.zip", zip_bytes({**members, "t.csv": f"id,n\n{table}".encode()}))
    keys: dict[str, Any] = {"labels": "csv:t.csv:id:n", "target": "regression", "split": "train=1"}
    return build(source, folder / "out", size="4x4", format="raw", shards=5, **keys).path


def by_batches(place: Path, size: int, host: int, hosts: int, threads: int, **more: Any) -> Any:
    return reader.Dataset(place).batches(
        size, num_shards=hosts, shard_index=host, num_threads=threads, epochs=_NUM_EPOCHS, **more
    )


def by_loader(place: Path, size: int, host: int, hosts: int, threads: int, **more: Any) -> Any:
    return reader.Dataset(place).loader(
        size, num_shards=hosts, shard_index=host, num_threads=threads, **more
    )


def by_iterate(place: Path, size: int, host: int, hosts: int, threads: int, **more: Any) -> Any:
    config = reader.ReadConfig(
        num_shards=hosts, shard_index=host, private_threadpool_size=threads,
        num_parallel_calls_for_decode=threads,
    )  # fmt: skip
    return reader.iterate(place, batch_size=size, read_config=config, **more)


READERS: dict[Callable[..., Any], int] = {by_batches: 64, by_loader: 64, by_iterate: 6}
"""Reader → maximum number of hosts in a plan; an iterator of TensorFlow takes long to start."""


def read(seed: int, places: list[Path]) -> Streams:
    """Return the streams of two epochs that are read, interrupted and resumed by a saved state."""
    with mock.patch.multiple(epoch_order, **_SMALL_BLOCKS):
        return _read(random.Random(seed), seed, draw_from=places)


def _read(draw: random.Random, seed: int, draw_from: list[Path]) -> Streams:
    place = draw.choice(draw_from)
    number = len(reader.Dataset(place))
    size = min(number, draw.randint(1, _MOST_HOSTS) * draw.choice([1, 2, 3]))
    options = {"shuffle": draw.random() < 0.8, "drop_remainder": draw.random() < 0.3}
    wholes = [*map(_targets, by_batches(place, size, 0, 1, 1, seed=seed, **options))]
    steps = len(wholes) // _NUM_EPOCHS
    for epoch in (wholes[:steps], wholes[steps:]):
        seen = [*itertools.chain.from_iterable(epoch)]
        expected = number - number % size if options["drop_remainder"] else number
        assert len(seen) == len(set(seen)) == expected, f"plan {seed}: records are lost or doubled"
    state, at, together = None, 0, bytearray()
    while at < len(wholes):
        read_by = draw.choice([*READERS])
        clusters = [n for n in _clusters(size, number) if n <= READERS[read_by]]
        if read_by is by_batches and not options["drop_remainder"] and number % size:
            clusters = [n for n in clusters if n <= number % size]  # others are refused
        num_hosts, threads = draw.choice(clusters), draw.randint(1, 8)
        cluster = [
            read_by(place, size // num_hosts, host, num_hosts, threads, seed=seed, **options)
            for host in range(num_hosts)
        ]
        if state is not None:
            for host in cluster:
                host.load_state_dict(state)
        stop = min((at // steps + 1) * steps, at + draw.randint(1, steps))
        iterators = [iter(host) for host in cluster]
        for whole in wholes[at:stop]:
            merged: list[float] = []
            for host, iterator in enumerate(iterators):
                part = _part(whole, host, num_hosts)
                merged += _targets(next(iterator)) if part else []
                assert merged[len(merged) - len(part) :] == part, (seed, at, host)
            together += repr(merged).encode()
        at = stop
        if at % steps == 0 and read_by is not by_batches:
            assert not [batch for iterator in iterators for batch in iterator], (seed, at)
        states = [json.loads(json.dumps(host.state_dict())) for host in cluster]
        state = states[0]
        assert state["epoch"] * steps + state["batch"] == at
        assert states == [state] * num_hosts
    return Streams(b"".join(repr(whole).encode() for whole in wholes), bytes(together))


def _targets(batch: Any) -> list[float]:
    found: list[float] = np.asarray(batch[1]).tolist()
    return found
