"""`shardprep view`: a million items, many requests at once, and tiles against a plain file server.

The dataset has the documents of a million records. Its shards have the stated size, but only their
first records have content, because no page reads others.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from benchmarks import photos
from benchmarks.measure import ROOT, Measure, Row, built
from benchmarks.table import alone
from shardprep.dataset.documents import shard_name
from shardprep.dataset.folder import ITEMS_FILE, index_name, read_schema
from shardprep.dataset.item_table import COLUMNS, index_text, read_items, write_items
from shardprep.dataset.manifest import MANIFEST_FILE, Shard, load_manifest
from shardprep.dataset.tally import Tally
from shardprep.storage.folder import LocalFolder
from shardprep.writer.plan.build_plan import recorded_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardprep.dataset.manifest import Manifest

FIRST_S = Measure("first page of 1,000,000 items, from the start of the command", "< 1 s", "s")
FILTER_MS = Measure("page of a filter, the slowest of five, first request", "< 200 ms", "ms")
PEAK_MB = Measure("peak memory of the server at the end", "< 600 MB", "MB")
AT_ONCE_MS = Measure("20 pages at once, the slowest", "", "ms")
TILES = Measure("tiles a second / `python -m http.server` on the same file", ">= 0.5")
MEASURES = (FIRST_S, FILTER_MS, PEAK_MB, AT_ONCE_MS, TILES)
_SHARD_RECORDS = 50_000
_REAL_RECORDS = 200
"""Number of records of a shard that have content."""
_FILTERS = ("split=test", "label=7", "status=rejected", "key=00012", "split=train&label=3&key=a/1")


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return times, memory and speed of a viewer of a million items."""
    path = large(folder, 2_000 if quick else 1_000_000, 500 if quick else _SHARD_RECORDS)
    with mock.patch.dict(os.environ, SHARDPREP_CACHE=str(folder / "cache")):
        firsts = []
        for _ in range(rounds):
            start = time.perf_counter()
            with served(path) as viewer:
                viewer.get("/")
                firsts.append(time.perf_counter() - start)
        with served(path) as viewer:
            viewer.get("/")
            viewer.get("/findings")
            times = {one: viewer.timed(f"/?{one}") for one in _FILTERS}
            with ThreadPoolExecutor(20) as pool:
                at_once = [*pool.map(viewer.timed, [f"/?page={i + 1}" for i in range(20)])]
            tiles = [_ratio(viewer, folder, 200 if quick else 2_000) for _ in range(rounds)]
            peak = viewer.peak()
    shown = ", ".join(f"{1000 * one:.0f}" for one in times.values())
    ratio, detail = sorted(tiles)[len(tiles) // 2]
    return [
        FIRST_S.came_to(statistics.median(firsts), f"the slowest {max(firsts):.2f} s"),
        FILTER_MS.came_to(1000 * max(times.values()), shown),
        PEAK_MB.came_to(peak / 1e6, "of the one process, findings made"),
        AT_ONCE_MS.came_to(
            1000 * max(at_once), f"the median {1000 * statistics.median(at_once):.0f}"
        ),
        TILES.came_to(ratio, detail),
    ]


def large(folder: Path, number: int, shard_records: int) -> Path:
    """Write a dataset of `number` records, 1% of them copies, and a rejected image per 100."""
    small = built(
        folder / "small", photos.write_folder(folder / "photos", 20), "--size", "96x96",
        "--split", "train=0.9,test=0.1",
    )  # fmt: skip
    manifest, schema = load_manifest(small), read_schema(small)
    one = next(iter(manifest.shards.values())).name
    rows = read_items(small / ITEMS_FILE)
    frame = (small / one).read_bytes()[: rows["length"][0].as_py()]
    path = folder / "large" / manifest.name / manifest.version
    (path / "index").mkdir(parents=True)
    names = tuple(f"class {i}" for i in range(10))
    schema = schema.model_copy(update={"labels": names})
    tally = Tally(recorded_recipe(manifest, "-", "-").image_spec)
    tables: list[pa.Table] = []
    num_shards = {"train": number * 9 // 10 // shard_records, "test": number // 10 // shard_records}
    for split, count in num_shards.items():
        for i in range(count):
            name = shard_name(manifest.name, split, i, count)
            table = _rows(len(tables) * shard_records, shard_records, len(frame), split, name)
            with (path / name).open("wb") as file:
                file.write(frame * _REAL_RECORDS)
                file.truncate(len(frame) * shard_records)
            shard = Shard(
                name=name, num_records=shard_records, num_bytes=len(frame) * shard_records,
                sha256=hashlib.sha256(name.encode()).hexdigest(),
            )  # fmt: skip
            (path / index_name(name)).write_text(index_text(table))
            tally.add(shard, split, table)
            tables.append(table)
    write_items(LocalFolder(path), ITEMS_FILE, tables)
    (path / "schema.json").write_text(schema.dumps())
    _write_manifest(path, manifest, tally, names)
    return path


def _rows(first: int, number: int, length: int, split: str, shard: str) -> pa.Table:
    """Return the item rows of a shard: its records, and a rejected image per 100 records."""
    numbers = np.arange(first, first + number)
    hashes = [hashlib.sha256(str(one if one % 100 else 0).encode()).hexdigest() for one in numbers]
    written = {
        "key": [f"photos/{'abcdefghij'[one % 10]}/{one:09d}.jpg" for one in numbers],
        "status": ["written"] * number,
        "split": [split] * number,
        "shard": [shard] * number,
        "record": np.arange(number),
        "offset": np.arange(number) * length,
        "length": np.full(number, length),
        "label": numbers % 10,
        "original_width": 300 + numbers % 200,
        "original_height": 200 + numbers % 300,
        "original_format": ["JPEG"] * number,
        "original_bytes": 20_000 + numbers % 9_000,
        "original_sha256": hashes,
    }
    rejected = {
        "key": [f"photos/broken/{one:09d}.jpg" for one in numbers[::100]],
        "status": ["rejected"] * len(numbers[::100]),
        "kind": ["decode"] * len(numbers[::100]),
        "reason": ["is damaged"] * len(numbers[::100]),
        "split": [split] * len(numbers[::100]),
        "shard": [shard] * len(numbers[::100]),
    }
    return pa.concat_tables([_table(written), _table(rejected)])


def _table(columns: Mapping[str, object]) -> pa.Table:
    number = len(columns["key"])  # type: ignore[arg-type]
    arrays = [
        pa.array(columns[one.name], one.type) if one.name in columns else pa.nulls(number, one.type)
        for one in COLUMNS
    ]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def _write_manifest(path: Path, manifest: Manifest, tally: Tally, names: tuple[str, ...]) -> None:
    from collections import Counter

    files = {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest()
        for name in (ITEMS_FILE, "schema.json")
    }
    whole = manifest.model_copy(
        update={
            "labels": manifest.labels.model_copy(update={"names": names}),
            "splits": tally.splits(names),
            "totals": tally.totals(Counter()),
            "files": files,
        }
    )
    (path / MANIFEST_FILE).write_text(whole.dumps())


class _Served:
    """A viewer of the command line, and a connection to it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.port = urlsplit(url).port or 0
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", url[url.index("/?") :])
        answer = connection.getresponse()
        answer.read()
        self.headers = {"Cookie": (answer.headers["Set-Cookie"] or "").split(";")[0]}

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", path, headers=self.headers)
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            sys.exit(f"{path}: {answer.status}")
        return answer.read()

    def timed(self, path: str) -> float:
        start = time.perf_counter()
        self.get(path)
        return time.perf_counter() - start

    def peak(self) -> int:
        """Return the largest memory it had, in bytes."""
        status = (Path("/proc") / f"{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024


@contextmanager
def served(path: Path) -> Iterator[_Served]:
    """Serve a dataset by the command line, in a process of its own."""
    command = [sys.executable, "-m", "shardprep", "view", str(path), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        text = ""
        while not text.endswith("}\n"):
            text += process.stdout.readline() if process.stdout else ""
        try:
            yield _Served(process, json.loads(text)["url"])
        finally:
            process.send_signal(signal.SIGINT)


def _ratio(viewer: _Served, folder: Path, number: int) -> tuple[float, str]:
    """Return tiles per second divided by the rate of a plain file server, and both as text."""
    tile = viewer.get("/tile/0")
    (folder / "files").mkdir(exist_ok=True)
    (folder / "files" / "tile.webp").write_bytes(tile)
    command = [
        sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory",
        str(folder / "files"), "--protocol", "HTTP/1.1",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as plain:
        port = re.search(r"port (\d+)", plain.stdout.readline() if plain.stdout else "")
        try:
            theirs = _rate(int(port[1] if port else 0), "/tile.webp", {}, number)
        finally:
            plain.terminate()
    ours = _rate(viewer.port, "/tile/0", viewer.headers, number)
    return ours / theirs, f"{ours:,.0f} / {theirs:,.0f}, a connection each, {len(tile):,} bytes"


def _rate(port: int, path: str, headers: dict[str, str], number: int) -> float:
    """Return answers per second to one client, which opens a connection for each request."""
    start = time.perf_counter()
    for _ in range(number):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", path, headers=headers)
        connection.getresponse().read()
        connection.close()
    return number / (time.perf_counter() - start)


if __name__ == "__main__":
    alone(rows, __doc__)
