"""Run a benchmark: each pipeline in a separate process, in turns.

A separate process has its own peak of memory, and no pipeline warms up another one. The pipelines
take turns for several rounds and the median counts, so that other load on the machine affects all
of them alike. Only these processes import TensorFlow; `measure` describes their protocol.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

from pydantic import TypeAdapter

from shardprep.benchmark import measure
from shardprep.benchmark.pipelines import PIPELINES, Source
from shardprep.benchmark.result import Benchmark, Round, Settings, Timeline, Way
from shardprep.dataset.manifest import Shard, Split, load_manifest
from shardprep.errors import DatasetError
from shardprep.machine import usable_cores
from shardprep.reader.records.open import mean_record_bytes
from shardprep.reader.records.positions import Places
from shardprep.reader.selection.split_argument import AnySplit, as_selection

_MOST_BYTES = 1 << 30
"""Maximum number of bytes to read; at least one shard is read."""
_BLOCK_BYTES = 1 << 22
_PACE = "load"
"""Pipeline whose time per batch is the step time of timelines, if it runs here."""
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}
"""Environment without logs and accelerators, because the host's work is compared."""


def run_benchmark(
    folder: Path, split: AnySplit, settings: Settings, notice: Callable[[str], None]
) -> Benchmark:
    """Measure every pipeline on the first shards of a split, about 1 GiB.

    Only this package's readers read a slice or a Selection. In timelines, a step takes as long as
    `reader.load` takes for a batch: the shortest step that it can keep up with.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source, shards, num_bytes = _source(folder, split, settings.batch_size, Path(scratch))
        for shard in shards:
            _warm(folder / shard.name)
        return _measured(source, num_bytes, settings, notice)


def _measured(
    source: Source, num_bytes: int, settings: Settings, notice: Callable[[str], None]
) -> Benchmark:
    with ExitStack() as stack:
        notice("starting")  # all at once, which is not measured
        runs = [stack.enter_context(_PipelineProcess(name, source)) for name in PIPELINES]
        for run in runs:
            run.listen()  # wait for the first batch or a problem
        for turn in range(settings.rounds):
            for run in runs:
                if not run.problem:
                    notice(f"{PIPELINES[run.name].title}: round {turn + 1} of {settings.rounds}")
                    run.round(settings.seconds)
        ways = tuple(run.result(num_bytes / source.num_records) for run in runs)
    step_s, traced = 0.0, []
    rates = {way.name: way.images_s for way in ways if way.rounds}
    if settings.timelines and rates:
        step_s = settings.batch_size / rates.get(_PACE, max(rates.values()))
        for name in (name for name in rates if PIPELINES[name].is_traced):
            notice(f"{PIPELINES[name].title}: tracing")
            traced.append(_trace(name, source, step_s))
    return Benchmark(
        path=str(source.folder),
        split=source.split,
        num_records=source.num_records,
        num_bytes=num_bytes,
        settings=settings,
        num_cores=usable_cores(),
        ways=ways,
        timelines=tuple(timeline for timeline in traced if timeline is not None),
        step_s=step_s,
    )


def _trace(name: str, source: Source, step_s: float) -> Timeline | None:
    """Return the timeline of a pipeline, or None if the profiler does not run here."""
    done = subprocess.run(  # noqa: S603 - a module of ours
        [sys.executable, "-m", measure.__name__, "timeline", name, *source.arguments, str(step_s)],
        capture_output=True, text=True, check=False, env={**os.environ, **_QUIET},
    )  # fmt: skip
    if done.returncode:
        return None
    return TypeAdapter(Timeline).validate_json(done.stdout)


def _source(
    folder: Path, split: AnySplit, batch_size: int, scratch: Path
) -> tuple[Source, Sequence[Shard], int]:
    """Return the records to read, their shards and bytes. A Selection is written to `scratch`."""
    manifest = load_manifest(folder)
    if isinstance(split, str) and split in manifest.splits:
        shards = _first_shards(manifest.splits[split])
        num_records = sum(shard.num_records for shard in shards)
        source = Source(folder, split, num_records, batch_size)
        return source, shards, sum(shard.num_bytes for shard in shards)
    mean = mean_record_bytes(manifest)
    chosen = as_selection(manifest, split)[: int(_MOST_BYTES / mean) or 1]
    file = chosen.save(scratch / "selection.npz")
    source = Source(folder, chosen.name, len(chosen), batch_size, str(file))
    return source, Places.of(manifest, chosen.numbers).shards, round(mean * len(chosen))


def _first_shards(split: Split) -> list[Shard]:
    shards: list[Shard] = []
    num_bytes = 0
    for shard in split.shards:
        num_bytes += shard.num_bytes
        if shards and num_bytes > _MOST_BYTES:
            break
        shards.append(shard)
    return shards


def _warm(path: Path) -> None:
    """Read a file into the page cache, so that no pipeline waits for the disk."""
    try:
        with path.open("rb") as file:
            while file.read(_BLOCK_BYTES):
                pass
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise DatasetError(str(path), what, "build the set again") from error


class _PipelineProcess:
    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.problem = ""
        self._facts: dict[str, Any] = {}
        self._rounds: list[Round] = []
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            [sys.executable, "-m", measure.__name__, "rounds", name, *source.arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **_QUIET},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def round(self, seconds: float) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(f"{seconds}\n")
            stdin.flush()
        facts = self.listen()
        if facts is not None:
            self._rounds.append(Round(**{key: facts[key] for key in Round.__slots__}))

    def result(self, image_bytes: float) -> Way:
        if self.problem:
            return Way(self.name, self.problem)
        yields, peak_bytes = self._facts["yields"], self._facts["peak_bytes"]
        return Way.measured(self.name, self._rounds, yields, peak_bytes, image_bytes)

    def listen(self) -> dict[str, Any] | None:
        """Return the next answer of the process, or None if it has a problem."""
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        facts: dict[str, Any] = json.loads(line) if line else {"problem": self._ending()}
        self.problem = facts.get("problem", "")
        self._facts |= facts
        return None if self.problem else facts

    def _ending(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"ended {how}: {lines[-1]}" if lines else f"ended {how}"
