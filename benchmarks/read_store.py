"""Raw images from object storage compared with the same images in a folder, by both readers.

The store is a fast server on this machine (`benchmarks.store`), which shares its cores. With
copies, shards are read from local files from the second epoch on. Without copies, every byte comes
from the store in every epoch. The requests alone show the highest possible speed without copies.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, built, interleaved, timed
from benchmarks.read import BATCH, load, of, ratio
from benchmarks.store import BUCKET, FolderStore
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOAD = Measure("`load`, raw, from a store with copies / from a folder", ">= 0.9")
ARRAYS = Measure("`Dataset.batches`, the same", ">= 0.9")
LOAD_STORE = Measure("`load`, raw, from a store, without copies / from a folder")
ARRAYS_STORE = Measure("`Dataset.batches`, the same, without copies")
BARE = Measure("requests alone, images of 147 KB a second / `load` from a folder")
SERVER = Measure("processor time of the server, an image", "", "µs")
CLIENT = Measure("processor time of the requests alone, an image", "", "µs")
READER = Measure("processor time of `load` from a folder, an image", "", "µs")
RATIOS = {
    LOAD: ("load, copies", "load, folder"),
    ARRAYS: ("arrays, copies", "arrays, folder"),
    LOAD_STORE: ("load, store", "load, folder"),
    ARRAYS_STORE: ("arrays, store", "arrays, folder"),
    BARE: ("requests", "load, folder"),
}
MEASURES = (*RATIOS, SERVER, CLIENT, READER)
_REQUEST_BYTES = 2 << 20
"""Bytes of a request: as many as a block of raw images has."""
_NUM_REQUESTS = 8
"""Number of parallel requests."""


class _Cache(NamedTuple):
    """A folder for copies of shards, and the bytes that they may take."""

    folder: Path
    num_bytes: int


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios, and the processor time per image of server, requests and reader."""
    batches = 2 if quick else 60
    source = photos.write_folder(folder / "photos", 2 * BATCH if quick else 3840)
    local = built(folder / "raw", source, "--shards", 8, "--format", "raw")
    remote = f"s3://{BUCKET}"
    kept, empty = _Cache(folder / "kept", 10**12), _Cache(folder / "empty", 0)
    server_s: list[float] = []
    store = FolderStore(local)
    with _cached(kept):
        next(_arrays(remote))
        while any(one.name == "shardprep-copy" for one in threading.enumerate()):
            time.sleep(0.1)

    def requests() -> Cost:
        before_s = store.cpu_s()
        cost = timed(partial(_requests, local, batches * BATCH))
        server_s.append(store.cpu_s() - before_s)
        return cost

    ways: dict[str, Callable[[], Cost]] = {
        "load, folder": partial(_of, kept, load, local, batches),
        "load, copies": partial(_of, kept, load, remote, batches),
        "load, store": partial(_of, empty, load, remote, batches),
        "arrays, folder": partial(_of, kept, _arrays, local, batches),
        "arrays, copies": partial(_of, kept, _arrays, remote, batches),
        "arrays, store": partial(_of, empty, _arrays, remote, batches),
        "requests": requests,
    }
    cost = interleaved(ways, rounds)
    number = batches * BATCH
    found = [ratio(measure, cost, names, batches) for measure, names in RATIOS.items()]
    median_s = sorted(server_s)[len(server_s) // 2]
    detail = f"requests of {_REQUEST_BYTES >> 20} MiB, {_NUM_REQUESTS} at a time"
    return [
        *found,
        SERVER.came_to(median_s / number * 1e6, f"sendfile; {detail}"),
        CLIENT.came_to(cost["requests"].cpu_s / number * 1e6, f"obstore; {detail}"),
        READER.came_to(cost["load, folder"].cpu_s / number * 1e6, "all of it"),
    ]


def _of(cache: _Cache, make: Any, path: Path | str, batches: int) -> Cost:
    with _cached(cache):
        return of(partial(make, path), batches)


def _arrays(path: Path | str) -> Any:
    from shardprep import reader

    dataset = reader.Dataset(path, "train")
    return dataset.batches(BATCH, shuffle=True, epochs=None, drop_remainder=True)


@contextmanager
def _cached(cache: _Cache) -> Iterator[None]:
    before = dict(os.environ)
    try:
        os.environ |= {
            "SHARDPREP_CACHE": str(cache.folder), "SHARDPREP_CACHE_BYTES": str(cache.num_bytes)
        }  # fmt: skip
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _requests(local: Path, number: int) -> None:
    """Request as many bytes as `number` images have, and discard them."""
    from shardprep.storage import objects
    from shardprep.storage.url import ObjectUrl

    (file, *_) = sorted(local.glob("*.tfrecord-*"))
    url = ObjectUrl.parse(f"s3://{BUCKET}/{file.name}")
    room = max(1, file.stat().st_size - _REQUEST_BYTES)
    starts = [i * _REQUEST_BYTES % room for i in range(number * 224 * 224 * 3 // _REQUEST_BYTES)]
    with ThreadPoolExecutor(_NUM_REQUESTS) as pool:
        for _ in pool.map(lambda start: objects.read_range(url, "", start, _REQUEST_BYTES), starts):
            pass


if __name__ == "__main__":
    alone(rows, __doc__)
