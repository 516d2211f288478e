"""Real archives, images and datasets, made where a test needs them; watchers, engines of builds."""

import dataclasses
import functools
import io
import os
import signal
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shardprep.api.arguments import part_of
from shardprep.api.sample_archive import write_sample
from shardprep.dataset.open_dataset import open_dataset
from shardprep.processes import WorkerLimits
from shardprep.progress import Unit, Watch
from shardprep.recipe.recipe import make_recipe
from shardprep.writer import build as parts
from shardprep.writer.build import PartResult, build_dataset
from shardprep.writer.chunk import ChunkTask, Encode, EncodedChunk
from shardprep.writer.chunk_encoder import ChunkEncoder
from shardprep.writer.engine.job import (
    Engine,
    ItemCounts,
    OnProgress,
    ShardJob,
    ShardSink,
    Workers,
)
from shardprep.writer.engine.pool import run_chunks
from shardprep.writer.finalize import BuildResult, finalize_dataset
from shardprep.writer.plan.shard_plan import ShardPlan
from shardprep.writer.reuse import open_old_dataset
from shardprep.writer.workspace.states import find_workspace

ChunkRunner = Callable[[Encode, Iterable[ChunkTask], int, WorkerLimits], Iterable[EncodedChunk]]

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"
"""Real photographs and hostile files. Tests that use them are skipped without them."""


def pixels(height: int = 48, width: int = 64, seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return smooth random colours, uint8[height, width, 3]: they survive JPEG well."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (4, 4, 3), np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def jpeg(height: int = 48, width: int = 64, seed: int = 0, **options: Any) -> bytes:
    options.setdefault("quality", 90)
    return encoded(Image.fromarray(pixels(height, width, seed)), "JPEG", **options)


def png(height: int = 48, width: int = 64, seed: int = 0) -> bytes:
    return encoded(Image.fromarray(pixels(height, width, seed)), "PNG")


def zip_bytes(members: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip with the members in their order; names with a backslash are as of Windows."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 0 if "\\" in name else 3
            archive.writestr(info, data, compress_type=method)
    return out.getvalue()


def tar_bytes(members: Mapping[str, bytes], compression: str = "") -> bytes:
    """Return a tar with the members in their order; compression is "", "gz", "bz2" or "xz"."""
    out = io.BytesIO()
    quick = {"preset": 0} if compression == "xz" else {}
    with tarfile.open(fileobj=out, mode=f"w:{compression}", **quick) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_folder(root: Path, members: Mapping[str, bytes]) -> Path:
    for name, data in members.items():
        write(root / name, data)
    return root


def animals(number: int = 12, *, folder: str = "train/") -> dict[str, bytes]:
    """Return `number` labelled images as Kaggle names them: cat.0.jpg, dog.0.jpg, cat.1.jpg."""
    return {f"{folder}{('cat', 'dog')[i % 2]}.{i // 2}.jpg": _animal(i) for i in range(number)}


@functools.cache
def _animal(seed: int) -> bytes:
    """Return a cached JPEG file, because the suite uses some a thousand times."""
    return jpeg(seed=seed, height=40 + seed % 7)


@functools.cache
def drawn_sample() -> dict[str, bytes]:
    """Return the files of `shardprep sample`, cached because drawing takes seconds."""
    with tempfile.TemporaryDirectory() as folder:
        write_sample(Path(folder))
        return tree(Path(folder))


def sample(folder: Path) -> Path:
    write_folder(folder, drawn_sample())
    return folder / "shapes.zip"


def code_for_sample(folder: Path) -> str:
    """Return code with which `shardprep.sample` of another process writes the drawn sample."""
    return f"""
from pathlib import Path
from shardprep.api import sample_archive
sample_archive._archive = lambda *_: Path({str(sample(folder))!r}).read_bytes()
"""


class Quiet(Watch):
    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.lines: list[str] = []
        self.phases: list[tuple[str, int | None]] = []
        self.done: list[int] = []
        self.total: int | None = None
        self.num_done = 0
        self.num_new = 0

    def notice(self, line: str) -> None:
        self.lines.append(line)

    def start(
        self, what: str, total: int | None = None, unit: Unit = "", num_done: int = 0
    ) -> None:
        del unit
        self.phases.append((what, total))
        self.total, self.num_done = total, num_done
        self.done.append(num_done)

    def advance(self, number: int, num_rejected: int = 0) -> None:
        del num_rejected
        self.num_new += number
        self.done.append((self.done or [0])[-1] + number)


Told = Quiet
MANY_ITEMS = 2000
"""A build of so many has 32 images in a chunk. A small build has one, which costs half an image."""


def in_process(
    encode: Encode, tasks: Iterable[ChunkTask], num_workers: int, limits: WorkerLimits
) -> Iterator[EncodedChunk]:
    """Encode in this process, for tests that are not about processes."""
    del num_workers, limits
    for task in tasks:
        yield encode(task, lambda: None)


def in_workers(
    encode: Encode, tasks: Iterable[ChunkTask], num_workers: int, limits: WorkerLimits
) -> Iterator[EncodedChunk]:
    """Encode in worker processes; return all chunks."""
    chunks: list[EncodedChunk] = []
    run_chunks(encode, tasks, num_workers, limits, chunks.append)
    return iter(chunks)


def build(
    source: Path,
    out: Path,
    *,
    watcher: Quiet | None = None,
    engine: Any = in_process,
    replace: bool = False,
    reuse: str | Path | None = None,
    **keys: Any,
) -> BuildResult:
    recipe, workers, old = _asked(source, out, engine, reuse, keys, watcher)
    return build_dataset(recipe, workers, watcher or Quiet(), overwrite=replace, reuse=old)


def build_part(
    source: Path,
    out: Path,
    part: str,
    *,
    watcher: Quiet | None = None,
    engine: Any = in_process,
    reuse: str | Path | None = None,
    **keys: Any,
) -> PartResult:
    recipe, workers, old = _asked(source, out, engine, reuse, keys, watcher)
    return parts.build_part(recipe, part_of(part), workers, watcher or Quiet(), old)


def _asked(
    source: Path, out: Path, engine: Any, reuse: str | Path | None, keys: Any, watcher: Quiet | None
) -> Any:
    recipe = make_recipe({"source": str(source), "out": str(out), **keys}, "test")
    old = None if reuse is None else open_old_dataset(open_dataset(reuse))
    is_observed = engine is not in_process or watcher is not None
    return recipe, Workers(by_chunks(engine, num_items=0 if is_observed else MANY_ITEMS), 1), old


def finalize(out: Path, *, max_rejected: float | None = None) -> BuildResult:
    return finalize_dataset(find_workspace(str(out)), num_threads=2, max_rejected=max_rejected)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def unsigned(folder: Path) -> dict[str, bytes]:
    """Return all files except the manifest, which names the source and the parents."""
    return {name: data for name, data in tree(folder).items() if name != "manifest.json"}


def flip_bit(path: Path) -> None:
    """Change a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def by_chunks(run: ChunkRunner, *, num_items: int = 0) -> Engine:
    """Return an engine that writes shards in this process, in chunks of a build of `num_items`."""

    def engine(
        job: ShardJob, shards: Sequence[ShardPlan], num_workers: int, on_progress: OnProgress
    ) -> None:
        job = dataclasses.replace(job, num_items=num_items or job.num_items)
        tasks = (task for shard in shards for task in job.tasks(shard))
        waiting = deque(shards)
        num_left = len(waiting[0].items)
        with ShardSink(job) as sink:
            for chunk in run(job.encoder, tasks, num_workers, job.limits):
                sink.append(waiting[0], chunk)
                on_progress(ItemCounts.of(chunk))
                num_left -= len(chunk.outcomes)
                if not num_left:
                    waiting.popleft()
                    num_left = len(waiting[0].items) if waiting else 0

    return engine


def handing_over(run: ChunkRunner) -> Callable[..., None]:

    def run_chunks(*arguments: Any) -> None:
        *others, on_chunk = arguments
        for chunk in run(*others):
            on_chunk(chunk)

    return run_chunks


class StoppedError(Exception):
    """Ends a run."""


class StopAfter(Quiet):
    """A watcher that ends the run after some items."""

    def __init__(self, num_items: int) -> None:
        super().__init__()
        self.left = num_items

    def advance(self, number: int, num_rejected: int = 0) -> None:
        super().advance(number, num_rejected)
        self.left -= number
        if self.left <= 0:
            raise StoppedError


@dataclass(frozen=True)
class Deadly:
    """Encodes, but one image kills the process."""

    encoder: ChunkEncoder
    key: str

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        if any(item.key == self.key for item in task.items):
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.encoder(task, before_item)
