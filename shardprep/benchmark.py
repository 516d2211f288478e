"""How fast the shards of a dataset are read, each way in a process of its own, turn by turn.

A process of its own has a peak of memory of its own, and no way warms up another. The ways take
turns for several rounds, and the median of the rounds counts: what else the machine does hits all
of them alike. TensorFlow is imported by those processes only.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any

from shardprep.errors import DatasetError
from shardprep.manifest import load_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardprep.manifest import Shard

WAYS = {
    "naive": "naive tf.data",
    "tuned": "tuned tf.data",
    "tfds": "tfds",
    "load": "reader.load",
    "dataset": "reader.Dataset",
}
"""Name → how it is called in a table."""

TRACED = ("naive", "load")
"""The ways whose timelines are drawn, above each other."""

_MOST_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 22
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""No log, and no accelerator: what is compared is work of the host."""


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of one way."""

    first_batch_s: float
    """From nothing to the first batch; what follows does not count it."""
    num_images: int
    elapsed_s: float
    cpu_s: float
    """Of all cores together."""


@dataclass(frozen=True, slots=True)
class Way:
    """What came of one way."""

    name: str
    problem: str = ""
    """Why it cannot run here; then there are no rounds."""
    yields: str = ""
    """The dtype of its images."""
    peak_bytes: int = 0
    """The most memory its process has held, libraries included."""
    rounds: tuple[Round, ...] = ()

    @property
    def images_s(self) -> float:
        """Images a second after the first batch, median of the rounds."""
        return self._median(lambda one: one.num_images / one.elapsed_s)

    @property
    def images_s_core(self) -> float:
        """Images for each second that one core was at work, median of the rounds."""
        return self._median(lambda one: one.num_images / max(one.cpu_s, 1e-9))

    @property
    def first_batch_s(self) -> float:
        """Median of the rounds."""
        return self._median(lambda one: one.first_batch_s)

    def _median(self, value: Callable[[Round], float]) -> float:
        return statistics.median(map(value, self.rounds)) if self.rounds else 0.0


Span = tuple[float, float]
"""Start and end, seconds."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each kind of work was going on while a small network was trained."""

    way: str
    num_images: int
    """That were trained on from the start of the first step to the start of the last."""
    elapsed_s: float
    """From the one to the other."""
    read: tuple[Span, ...]
    decode: tuple[Span, ...]
    train: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """What was read, and how fast."""

    path: Path
    split: str
    num_records: int
    num_bytes: int
    """Of the shards that were read."""
    batch_size: int
    num_cores: int
    seconds: float
    """That a way is measured for in each round."""
    ways: tuple[Way, ...]
    timelines: tuple[Timeline, ...] = ()
    step_s: float = 0.0
    """What a step takes in the timelines."""

    def bytes_s(self, way: Way) -> float:
        """Return the bytes of shards a second."""
        return way.images_s * self.num_bytes / self.num_records

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        return {
            **{key: value for key, value in asdict(self).items() if key != "ways"},
            "path": str(self.path),
            "ways": [
                {
                    **asdict(way),
                    "images_s": way.images_s,
                    "images_s_core": way.images_s_core,
                    "bytes_s": self.bytes_s(way),
                    "first_batch_s": way.first_batch_s,
                }
                for way in self.ways
            ],
        }


def run_benchmark(
    folder: Path,
    split: str,
    *,
    batch_size: int,
    seconds: float,
    rounds: int,
    timelines: bool,
    notice: Callable[[str], None],
) -> Benchmark:
    """Measure every way on one split; of a large one, on its first shards, about 1 GiB.

    With `timelines`, those of `TRACED` are then traced, while each batch is used for as long as
    the last of them needs to make one: the shortest step that it could keep up with.

    Raises:
        DatasetError: there is no such split.

    """
    shards = _first_shards(folder, split)
    num_records = sum(shard.num_records for shard in shards)
    for shard in shards:
        _warm(folder / shard.name)
    source = (str(folder), split, str(num_records), str(batch_size))
    with ExitStack() as stack:
        runs = []
        for name, called in WAYS.items():
            notice(f"{called}: starting")
            runs.append(stack.enter_context(_Run(name, source)))
        for turn in range(rounds):
            for run in runs:
                if not run.problem:
                    notice(f"{WAYS[run.name]}: round {turn + 1} of {rounds}")
                    run.round(seconds)
        ways = tuple(run.result() for run in runs)
    step_s = batch_size / (_rate(ways, TRACED[-1]) or 1.0)
    traced = []
    for name in TRACED if timelines else ():
        notice(f"{WAYS[name]}: tracing")
        traced.append(_trace(name, source, step_s))
    return Benchmark(
        path=folder,
        split=split,
        num_records=num_records,
        num_bytes=sum(shard.num_bytes for shard in shards),
        batch_size=batch_size,
        num_cores=len(os.sched_getaffinity(0)),
        seconds=seconds,
        ways=ways,
        timelines=tuple(one for one in traced if one is not None),
        step_s=step_s if timelines else 0.0,
    )


def _rate(ways: tuple[Way, ...], name: str) -> float:
    return next(way.images_s for way in ways if way.name == name)


def _trace(name: str, source: tuple[str, ...], step_s: float) -> Timeline | None:
    """Return the timeline of a way, None where it or the profiler does not run here."""
    done = subprocess.run(
        [sys.executable, "-m", "shardprep.reader.timeline", name, *source, str(step_s)],
        capture_output=True, text=True, check=False, env={**os.environ, **_QUIET},
    )  # fmt: skip
    if done.returncode:
        return None
    said = json.loads(done.stdout)
    spans = {key: tuple(map(tuple, said[key])) for key in ("read", "decode", "train")}
    return Timeline(**{**said, **spans})


def _first_shards(folder: Path, split: str) -> list[Shard]:
    manifest = load_manifest(folder)
    if split not in manifest.splits:
        names = ", ".join(manifest.splits)
        raise DatasetError(manifest.name, f"has no split {split!r}", f"it has {names}")
    found: list[Shard] = []
    for shard in manifest.splits[split].shards:
        if found and sum(one.num_bytes for one in found) + shard.num_bytes > _MOST_BYTES:
            break
        found.append(shard)
    return found


def _warm(path: Path) -> None:
    """Read a file, so that the first way to come does not pay for the disk."""
    try:
        with path.open("rb") as file:
            while file.read(_BLOCK_BYTES):
                pass
    except OSError as error:
        raise DatasetError(
            str(path), f"cannot be read ({error.strerror})", "build the set again"
        ) from error


class _Run:
    """The process of one way."""

    def __init__(self, name: str, source: tuple[str, ...]) -> None:
        self.name = name
        self.problem = ""
        self._said: dict[str, Any] = {}
        self._rounds: list[Round] = []
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-m", "shardprep.reader.ways", name, *source],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **_QUIET},
        )  # fmt: skip

    def __enter__(self) -> _Run:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def round(self, seconds: float) -> None:
        """Let it have its turn."""
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(f"{seconds}\n")
            stdin.flush()
        said = self._listen()
        if said is not None:
            self._rounds.append(Round(**{key: said[key] for key in Round.__slots__}))

    def result(self) -> Way:
        """Return what came of it."""
        if self.problem:
            return Way(self.name, self.problem)
        return Way(
            self.name, "", self._said["yields"], self._said["peak_bytes"], tuple(self._rounds)
        )

    def _listen(self) -> dict[str, Any] | None:
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        said: dict[str, Any] = json.loads(line) if line else {"problem": self._last_words()}
        self.problem = said.get("problem", "")
        self._said |= said
        return None if self.problem else said

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = (
            f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        )
        return f"{how}: {lines[-1]}" if lines else how
