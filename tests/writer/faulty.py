"""Builds with faults at chosen moments: a plan for each kind of fault.

A process that has imported everything (`program` forks it) forks a child for each faulty build. A
fault then costs hundredths of a second, and the child really dies. The process itself finishes the
build. The system makes the faults: a signal, a full disk or a read-only disk.
"""

import ctypes
import errno
import itertools
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from PIL import Image

from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import BuildError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.parents import open_parent
from shardprep.writer.plan.fingerprint import versions
from shardprep.writer.record_copier import RecordCopier
from shardprep.writer.repack import repack_dataset
from tests.support.builders import (
    Quiet,
    build,
    build_part,
    finalize,
    in_process,
    tar_bytes,
    tree,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.processes import skip_fsync

KEYS: dict[str, Any] = {
    "shards": 3,
    "size": "24x24",
    "format": "png",
    "split": "train=0.8,test=0.2",
}
FEW: dict[str, Any] = {**KEYS, "shards": 1}
LEAST = {
    "every change": 40,
    "random moments": 100,
    "full disk": 15,
    "read-only": 1,
    "every change of parts": 50,
    "parts at random moments": 20,
    "parts together": 3,
    "every ninth change of copies": 7,
    "full disk of copies": 8,
}
"""Plan → minimum number of faults if none is left out (`step` is 1)."""
GATE_STEP, QUICK_STEP = 6, 12
"""The suite makes one fault in this many, `make soak` all."""
PARENT_KILLS = 1
MIN_WORKER_KILLS = 2
ENDS_OF_WORKERS = [
    (10, "killed", "crashed", "SIGKILL"),
    (1, "segfault", "crashed", "SIGSEGV"),
    (10, "exit", "crashed", "exit code 7"),
    (10, "hang", "timeout", "longer than 0.3 s"),
]
"""Items in a chunk, fault, and the kind and reason of the rejection."""
SOURCES: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "zip": lambda folder, images: write(folder / "pets.zip", zip_bytes(images)),
    "tar": lambda folder, images: write(folder / "pets.tar", tar_bytes(images)),
    "folder": lambda folder, images: write_folder(folder / "pets", images),
}
CHANGES: dict[str, Callable[[Path], object]] = {
    "vanishes": lambda file: file.unlink(),
    "is cut": lambda file: os.truncate(file, file.stat().st_size - 900),
    "is replaced": lambda file: file.write_bytes(b"\0" + file.read_bytes()),
}
SOURCE_CHANGES = [
    *(("zip", change) for change in CHANGES),
    ("tar", "is cut"),
    ("folder", "vanishes"),
]
_CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
_FRUITLESS = {"os.mkdir": True, "os.remove": False, "os.rmdir": False}
"""Event → whether its path exists if the event changes nothing; such events are not counted."""
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 16384, 1 << 18
_DISK_BYTES = 96 << 20
_PAGE_BYTES = 4096


def import_once() -> None:
    pa.array([""])  # the first array imports pandas, where that is installed
    versions()
    Image.init()


def strike(fault: str) -> None:
    """Let a fault strike this process, as a decoder may."""
    errors: dict[str, Exception] = {
        "starved": MemoryError(),
        "no mapping": OSError(errno.ENOMEM, "Cannot allocate memory"),
        "cannot read": OSError(errno.EIO, "of the source", "a file"),
        "raises": ZeroDivisionError("by construction"),
    }
    if fault in errors:
        raise errors[fault]
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "segfault":
        ctypes.string_at(0)
    if fault == "exit":
        os._exit(7)
    if fault == "memory":
        bytearray(8 << 30)
    while fault == "hang":
        ctypes.CDLL(None).pause()  # in C, where no exception of Python's gets in


Work = Callable[..., object]
"""Writes a dataset into a folder or resumes it; calls `begin` before its shards."""


def forked(work: Callable[[], object]) -> int:
    """Run the work in a child; return its wait status as `os.waitstatus_to_exitcode` gives it."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def undisturbed(work: Work, out: Path) -> dict[str, bytes]:
    """Return every file that the work leaves.

    A child does the work, because a process with threads cannot mount its own disk.
    """
    assert forked(partial(work, out)) == 0
    return tree(out)


def kill_at_change(number: int, out: Path) -> None:
    """Arm this process: it is killed just before its `number`-th change below `out`."""
    left = number

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in _CHANGES or not str(arguments[0]).startswith(str(out)):
            return
        if event == "open" and not (isinstance(arguments[1], str) and arguments[1][0] in "wax"):
            return
        if event in _FRUITLESS and os.path.lexists(arguments[0]) is _FRUITLESS[event]:
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def check_complete(out: Path, whole: dict[str, bytes]) -> None:
    """Check that every shard and dataset under its final name is complete."""
    there = tree(out)
    for name, data in there.items():
        shard = name.replace(".incomplete/", "/")
        if ".tfrecord-" in Path(name).name and not Path(name).name.startswith("."):
            if "/index/" in name or "/.parts/" in name:
                continue
            assert data == whole[shard], f"{name} has its name and is not complete"
    finished = {name: data for name, data in there.items() if "/1.0.0/" in name}
    assert not finished or finished == {n: d for n, d in whole.items() if n in finished}
    if finished:
        assert any(name.endswith("/manifest.json") for name in finished)


def together(works: Sequence[Callable[[], object]]) -> list[int]:
    """Run works at the same time, a child each; return 0, or the error or signal of each."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            os._exit(abs(forked(work)))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def own_disk(place: Path, num_bytes: int = _DISK_BYTES) -> bool:
    """Mount a small disk at `place` for this process; False if the system forbids it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) and libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER):
        return False
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    options = f"size={num_bytes}".encode()
    return not libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, options)


def exit_with(error: BuildError, number: int) -> None:
    os._exit(number if os.strerror(number) in str(error) else 1)


def fill_but(pages: int, filler: Path) -> None:
    """Fill the disk of a file with it, except for some pages."""
    with filler.open("wb") as file:
        size = (os.statvfs(filler.parent).f_bavail - pages) * _PAGE_BYTES
        os.posix_fallocate(file.fileno(), 0, size)


# --- work -----------------------------------------------------------------------------------------


def whole_build(source: Path) -> Work:
    def work(out: Path, begin: Callable[[], object] = int) -> None:
        build(source, out, engine=_after(begin), **KEYS)

    return work


def _after(begin: Callable[[], object]) -> Any:

    def run(*arguments: Any) -> Iterator[Any]:
        begin()
        return in_process(*arguments)

    return run


def build_in_parts(source: Path) -> Work:
    def work(out: Path) -> None:
        for part in ("1/2", "2/2"):
            build_part(source, out, part, **FEW)
        finalize(out)

    return work


def copies(source: Path, folder: Path) -> dict[str, Work]:
    undisturbed(lambda out: build(source, out, **KEYS, version="0.9.0"), folder / "old")
    (old,) = folder.glob("old/*/0.9.0")

    def reuse(out: Path, begin: Callable[[], object] = int) -> None:
        build(source, out, reuse=old, engine=_after(begin), **KEYS)

    def repack(out: Path, begin: Callable[[], object] = int) -> None:
        recipe = make_recipe({"source": "-", "out": str(out), "shards": 3}, "test")
        copy = RecordCopier.copy

        def begun(*arguments: Any) -> None:
            begin()
            copy(*arguments)

        with mock.patch.object(RecordCopier, "copy", begun):
            repack_dataset([open_parent(open_dataset(old))], recipe, Quiet())

    return {"reuse": reuse, "repack": repack}


# --- faults ---------------------------------------------------------------------------------------


def killed_at_changes(folder: Path, step: int, work: Work) -> int:
    whole = undisturbed(work, folder / "whole")
    for tried, number in enumerate(itertools.count(1, step)):
        out = folder / f"change{number}"

        def faulty(out: Path = out, number: int = number) -> None:
            kill_at_change(number, out)
            work(out)

        code = forked(faulty)
        if code == 0:
            return tried
        assert code == -signal.SIGKILL
        check_complete(out, whole)
        work(out)
        assert tree(out) == whole, f"killed before change {number}"
        shutil.rmtree(out)
    raise AssertionError


def killed_at_moments(
    folder: Path, num_kills: int, processes: Sequence[Callable[[Path], object]], work: Work
) -> int:
    """Kill processes of one dataset at random moments, several times in a row; then do the work."""
    begun = time.monotonic()
    whole = undisturbed(work, folder / "whole")
    duration = time.monotonic() - begun
    draw = random.Random(4)
    kills = 0
    while kills < num_kills:
        out = folder / f"moment{kills}"
        for number in range(draw.randint(1, 6 // len(processes))):

            def faulty(process: Callable[[Path], object], moment: float, out: Path = out) -> None:
                signal.setitimer(signal.ITIMER_REAL, moment)  # without a handler it kills
                process(out)

            begun = time.monotonic()
            codes = together([partial(faulty, p, draw.uniform(0.001, duration)) for p in processes])
            assert {*codes} <= {0, signal.SIGALRM}
            kills += codes.count(signal.SIGALRM)
            check_complete(out, whole)
            if not any(codes):  # there is nothing left to do
                if number == 0:  # and later moments are none
                    duration = min(duration, time.monotonic() - begun)
                break
        work(out)
        assert tree(out) == whole
        shutil.rmtree(out)
    return kills


def on_a_full_disk(folder: Path, step: int, works: Sequence[Work]) -> int:
    """Fill the disk so that works fail at each written page, then make room and resume them."""
    wholes = [undisturbed(work, folder / f"whole{i}") for i, work in enumerate(works)]
    place = folder / "disk"
    place.mkdir()
    if not own_disk(place):
        return 0
    failed = 0
    for work, whole in zip(works, wholes, strict=True):
        for pages in range(0, 10_000, step):
            out, filler = place / f"out{pages}", place / "filler"

            def faulty(work: Work = work, out: Path = out, pages: int = pages) -> None:
                try:
                    work(out, partial(fill_but, pages, place / "filler"))
                except BuildError as error:
                    exit_with(error, errno.ENOSPC)

            code = forked(faulty)
            filler.unlink()
            if code == 0:
                break
            assert code == errno.ENOSPC
            failed += 1
            check_complete(out, whole)
            work(out)
            assert tree(out) == whole, f"full after {pages} pages"
            shutil.rmtree(out)
    return failed


def read_only(source: Path, folder: Path) -> int:
    work = whole_build(source)
    whole = undisturbed(work, folder / "whole")
    place = folder / "disk"
    place.mkdir()
    if not own_disk(place):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)

    def remount(flags: int) -> None:
        assert not libc.mount(b"none", str(place).encode(), None, _MS_REMOUNT | flags, None)

    def fails() -> None:
        try:
            work(place / "out")
        except BuildError as error:
            exit_with(error, errno.EROFS)

    remount(_MS_RDONLY)
    assert forked(fails) == errno.EROFS
    assert not tree(place)
    remount(0)
    assert undisturbed(work, place / "out") == whole
    return 1


def parts_together(source: Path, folder: Path, num_rounds: int) -> int:
    whole = undisturbed(build_in_parts(source), folder / "whole")
    for number in range(num_rounds):
        out = folder / f"round{number}"
        parts = ("1/2", "2/2", "2/2", "1/2")
        works = [partial(build_part, source, out, part, **FEW) for part in parts]
        assert together(works) == [0] * len(parts)
        assert 0 in together([partial(finalize, out)] * 2)
        assert tree(out) == whole
        shutil.rmtree(out)
    return num_rounds


def run_plan(plan: str, source: Path, folder: Path, step: int) -> int:
    """Make one in `step` of the faults of a plan; return their number."""
    least = max(1, LEAST[plan] // step)
    whole, in_parts = whole_build(source), build_in_parts(source)
    parts = [partial(_part, source, part) for part in ("1/2", "2/2", "2/2")]
    plans: dict[str, Callable[[], int]] = {
        "every change": partial(killed_at_changes, folder, step, whole),
        "every change of parts": partial(killed_at_changes, folder, step, in_parts),
        "every ninth change of copies": lambda: sum(
            killed_at_changes(folder / name, 9 * step, work)
            for name, work in copies(source, folder).items()
        ),
        "random moments": partial(killed_at_moments, folder, least, [whole], whole),
        "parts at random moments": partial(killed_at_moments, folder, least, parts, in_parts),
        "parts together": partial(parts_together, source, folder, least),
        "full disk": partial(on_a_full_disk, folder, step, [whole]),
        "full disk of copies": lambda: on_a_full_disk(
            folder, 4 * step, [*copies(source, folder).values()]
        ),
        "read-only": partial(read_only, source, folder),
    }
    return plans[plan]()


def _part(source: Path, part: str, out: Path) -> None:
    build_part(source, out, part, **FEW)


def print_plan(plan: str, source: str, folder: str, step: str) -> None:
    skip_fsync()
    print(run_plan(plan, Path(source), Path(folder), int(step)))  # noqa: T201 - its result
