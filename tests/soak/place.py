"""Where a soak builds: a disk, or a store that fails now and then."""

import contextlib
import hashlib
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tests.support.object_store import (
    Bucket,
    Fault,
    ObjectStore,
    Proxy,
    Request,
    process_environment,
)
from tests.support.processes import written

_FAILED_SHARE, _CUT_SHARE = 0.02, 0.01
_MOST_CUT_BYTES = 1000
_BLOCK_BYTES = 1 << 20
_SHARD = ".tfrecord-"


@dataclass
class Disk:
    folder: Path
    name: str = "disk"
    silence: Callable[[float], None] | None = None

    @property
    def out(self) -> str:
        return str(self.folder)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "NO_COLOR": "1"}

    def num_shards(self) -> int:
        return len(written(self.folder, f"*/*/[!.]*{_SHARD}*"))

    def hashes(self) -> dict[str, str]:
        found = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found[path.relative_to(self.folder).as_posix()] = digest
        return found

    def read(self, name: str) -> bytes:
        (found,) = self.folder.glob(f"*/*/{name}")
        return found.read_bytes()

    def clear(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def faults(self) -> dict[str, int]:
        return {}


class FaultyStore:
    """Store that fails 2% of the requests and cuts 1% of the bodies, by a seed; used like `Disk`.

    `silence` lets it answer nothing for some seconds, and waits for that. A failure is an answer
    of 500 or 503, a connection that breaks before the store has heard, or one that breaks after it
    has done what was asked.
    """

    def __init__(self, store: ObjectStore, seed: int) -> None:
        self.name = "store"
        self._bucket = Bucket(store, "soak")
        self._draw = random.Random(seed)
        self._faults = {"failed": 0, "cut": 0}
        self._lock = threading.Lock()
        self._silence = threading.Event()
        self._silence.set()
        self.silence: Callable[[float], None] | None = self._fall_silent
        self.proxy = Proxy(store, self._rule)
        self.out = self._bucket.url

    def _rule(self, request: Request) -> Fault | None:
        with self._lock:
            drawn = self._draw.random()
            if drawn < _FAILED_SHARE:
                self._faults["failed"] += 1
                return self._draw.choice(
                    (
                        Fault(status=500),
                        Fault(status=503),
                        Fault(is_reset=True),
                        Fault(is_deaf=True),
                    )
                )
            if drawn < _FAILED_SHARE + _CUT_SHARE and request.method == "GET":
                self._faults["cut"] += 1
                return Fault(cut_at=self._draw.randrange(_MOST_CUT_BYTES))
        return Fault(hold=self._silence)

    def _fall_silent(self, seconds: float) -> None:
        self._silence.clear()
        time.sleep(seconds)
        self._silence.set()

    @property
    def environment(self) -> dict[str, str]:
        return process_environment(self.proxy.endpoint)

    def _objects(self) -> Iterator[dict[str, Any]]:
        pages = self._bucket.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self._bucket.name):
            yield from page.get("Contents", ())

    def num_shards(self) -> int:
        names = (one["Key"].split("/")[-1] for one in self._objects())
        return sum(_SHARD in name and not name.endswith((".idx", ".parquet")) for name in names)

    def hashes(self) -> dict[str, str]:
        found = {}
        for one in self._objects():
            digest = hashlib.sha256()
            body = self._bucket.client.get_object(Bucket=self._bucket.name, Key=one["Key"])["Body"]
            with contextlib.closing(body):
                while block := body.read(_BLOCK_BYTES):
                    digest.update(block)
            found[one["Key"]] = digest.hexdigest()
        return found

    def read(self, name: str) -> bytes:
        (key,) = (one["Key"] for one in self._objects() if one["Key"].endswith(f"/{name}"))
        return self._bucket.read(key)

    def clear(self) -> None:
        for one in list(self._objects()):
            self._bucket.client.delete_object(Bucket=self._bucket.name, Key=one["Key"])

    def faults(self) -> dict[str, int]:
        return dict(self._faults)


Place: TypeAlias = Disk | FaultyStore
