"""Builds that meet faults at chosen moments.

A process that has imported everything (`program` forks it) forks a child for each build that
meets a fault, so that it costs hundredths of a second and dies a real death. What goes on from
there to the end it builds itself. Faults are made by the system: a signal, a full disk, a disk that
cannot be written.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
from PIL import Image

from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import BuildError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan.fingerprint import versions
from shardprep.writer.repack import repack_dataset
from shardprep.writer.reuse.record_copier import RecordCopier
from shardprep.writer.reuse.repack_inputs import open_parent
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KEYS: dict[str, Any] = {
    "shards": 3,
    "size": "24x24",
    "format": "png",
    "split": "train=0.8,test=0.2",
}
FEW: dict[str, Any] = {**KEYS, "shards": 1}
"""Two shards, one in each part."""
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
"""Plan → how many faults it must have made."""
PARENT_KILLS = 3
MIN_WORKER_KILLS = 2
ENDS_OF_WORKERS = [
    ("killed", "crashed", "SIGKILL"),
    ("segfault", "crashed", "SIGSEGV"),
    ("exit", "crashed", "exit code 7"),
    ("hang", "timeout", "longer than 0.3 s"),
]
CHUNK_SIZES = [1, 10]
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
_CHANGES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
_FRUITLESS = {"os.mkdir": True, "os.remove": False, "os.rmdir": False}
"""Event → whether its path is there when it changes nothing: to die before it tells nothing new."""
_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 16384, 1 << 18
_DISK_BYTES = 96 << 20
_PAGE_BYTES = 4096


def import_once() -> None:
    """Import what each child that builds would import anew."""
    pa.array([""])  # the first array imports pandas, where that is installed
    versions()
    Image.init()


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


def undisturbed(source: Path, out: Path, keys: dict[str, Any] = KEYS) -> dict[str, bytes]:
    """Build to the end; return every file that is there then."""
    build(source, out, **keys)
    return tree(out)


def undisturbed_in_child(source: Path, out: Path) -> dict[str, bytes]:
    """Build as `undisturbed` does, in a child: who has threads may be given no disk of its own."""
    assert forked(partial(build, source, out, **KEYS)) == 0
    return tree(out)


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long some work takes in a child."""
    start = time.monotonic()
    assert forked(work) == 0
    return time.monotonic() - start


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
    """See that whatever has its final name is complete: a shard, a whole dataset."""
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


def every_change(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Kill a build before each change that it makes to the disk, then build again."""
    whole = undisturbed(source, folder / "whole")
    again = partial(undisturbed, source)
    return killed_at_changes(folder, step, whole, lambda out: build(source, out, **KEYS), again)


def killed_at_changes(
    folder: Path,
    step: int,
    whole: dict[str, bytes],
    work: Callable[[Path], object],
    again: Callable[[Path], dict[str, bytes]],
) -> dict[str, int]:
    """Kill some work before each change that it makes to the disk; see what it comes to again."""
    tried = 0
    for number in itertools.count(1, step):
        out = folder / f"change{number}"

        def faulty(out: Path = out, number: int = number) -> None:
            kill_at_change(number, out)
            work(out)

        code = forked(faulty)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        check_complete(out, whole)
        assert again(out) == whole, f"killed before change {number}"
        shutil.rmtree(out)
        tried += 1
    return {"tried": tried, "same bytes": tried}


def random_moments(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Kill builds at random moments, several times in a row, then build again."""
    whole = undisturbed(source, folder / "whole")
    duration = seconds_of(partial(build, source, folder / "again", **KEYS))
    draw = random.Random(4)
    kills = builds = 0
    while kills < LEAST["random moments"] // step:
        out = folder / f"moment{builds}"
        for number in range(draw.randint(1, 6)):
            moment = draw.uniform(0.001, duration)

            def faulty(out: Path = out, moment: float = moment) -> None:
                signal.setitimer(signal.ITIMER_REAL, moment)  # without a handler it kills
                build(source, out, **KEYS)

            start = time.monotonic()
            code = forked(faulty)
            kills += code == -signal.SIGALRM
            assert code in (0, -signal.SIGALRM)
            check_complete(out, whole)
            if code == 0:  # there is nothing left to build
                if number == 0:  # and later moments are none
                    duration = min(duration, time.monotonic() - start)
                break
        assert undisturbed(source, out) == whole
        shutil.rmtree(out)
        builds += 1
    return {"tried": kills, "same bytes": kills}


def in_parts(source: Path, out: Path) -> None:
    """Build in two parts, then make a dataset of them."""
    for part in ("1/2", "2/2"):
        build_part(source, out, part, **FEW)
    finalize(out)


def ended_in_parts(source: Path, out: Path) -> dict[str, bytes]:
    """Build in parts to the end; return every file that is there then."""
    in_parts(source, out)
    return tree(out)


def every_change_of_parts(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Kill a build in parts before each change that it makes to the disk, then do it again."""
    whole = undisturbed(source, folder / "whole", FEW)
    again = partial(ended_in_parts, source)
    return killed_at_changes(folder, step, whole, partial(in_parts, source), again)


def together(works: Sequence[Callable[[], object]]) -> list[int]:
    """Run works at the same time, a child each; return 0, or the error or signal of each."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            os._exit(abs(forked(work)))
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def parts_at_random_moments(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Kill parts that are built at the same time, one of them twice, then build them again."""
    whole = undisturbed(source, folder / "whole", FEW)
    duration = seconds_of(partial(in_parts, source, folder / "again"))
    draw = random.Random(7)
    kills = builds = 0
    while kills < LEAST["parts at random moments"] // step:
        out = folder / f"moment{builds}"
        for _ in range(draw.randint(1, 3)):
            works = []
            for part in ("1/2", "2/2", "2/2"):
                moment = draw.uniform(0.001, duration)

                def faulty(out: Path = out, part: str = part, moment: float = moment) -> None:
                    signal.setitimer(signal.ITIMER_REAL, moment)
                    build_part(source, out, part, **FEW)

                works.append(faulty)
            codes = together(works)
            assert set(codes) <= {0, signal.SIGALRM}
            kills += codes.count(signal.SIGALRM)
            check_complete(out, whole)
        assert ended_in_parts(source, out) == whole
        shutil.rmtree(out)
        builds += 1
    return {"tried": kills, "same bytes": kills}


def parts_together(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Build each part in two processes at the same time, and end the build in two at once."""
    whole = undisturbed(source, folder / "whole", FEW)
    num_rounds = max(LEAST["parts together"] // step, 1)
    for number in range(num_rounds):
        out = folder / f"round{number}"
        parts = ("1/2", "2/2", "2/2", "1/2")
        works = [partial(build_part, source, out, part, **FEW) for part in parts]
        assert together(works) == [0] * len(parts)
        assert 0 in together([partial(finalize, out)] * 2)
        assert tree(out) == whole
        shutil.rmtree(out)
    return {"tried": num_rounds, "same bytes": num_rounds}


def own_disk(place: Path, num_bytes: int = _DISK_BYTES) -> bool:
    """Give this process a small disk of its own at `place`; False where that is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) and libc.unshare(_CLONE_NEWNS | _CLONE_NEWUSER):
        return False
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    options = f"size={num_bytes}".encode()
    return not libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, options)


def exit_with(error: BuildError, number: int) -> None:
    """End this process with the number of the system's error, if that is what was said."""
    os._exit(number if os.strerror(number) in str(error) else 1)


def fill_but(pages: int, filler: Path) -> None:
    """Fill the disk that a file lies on by it, but for so many pages."""
    with filler.open("wb") as file:
        size = (os.statvfs(filler.parent).f_bavail - pages) * _PAGE_BYTES
        os.posix_fallocate(file.fileno(), 0, size)


def full_disk(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Fill the disk so that a build fails at each page it writes, then make room and go on."""
    whole = undisturbed_in_child(source, folder / "whole")
    place = folder / "disk"
    place.mkdir()
    if not own_disk(place):
        return {"tried": 0}
    failed = 0
    for pages in range(0, 10_000, step):
        out, filler = place / f"out{pages}", place / "filler"

        def faulty(out: Path = out, filler: Path = filler, pages: int = pages) -> None:
            def fill(*arguments: Any) -> Iterator[Any]:
                fill_but(pages, filler)
                return in_process(*arguments)

            try:
                build(source, out, engine=fill, **KEYS)
            except BuildError as error:
                exit_with(error, errno.ENOSPC)

        code = forked(faulty)
        filler.unlink()
        if code == 0:
            break
        assert code == errno.ENOSPC
        failed += 1
        check_complete(out, whole)
        assert undisturbed(source, out) == whole, f"full after {pages} pages"
        shutil.rmtree(out)
    return {"tried": failed, "same bytes": failed}


def copies(source: Path, folder: Path) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return what reuses a dataset, and what repacks it; `begin` is called before shards are."""
    old = build(source, folder / "old", **KEYS, version="0.9.0").path

    def reuse(out: Path, begin: Callable[[], object] = int) -> None:
        def run(*arguments: Any) -> Iterator[Any]:
            begin()
            return in_process(*arguments)

        build(source, out, reuse=old, engine=run, **KEYS)

    def repack(out: Path, begin: Callable[[], object] = int) -> None:
        recipe = make_recipe({"source": "-", "out": str(out), "shards": 3}, "test")
        copied = RecordCopier.copied

        def begun(*arguments: Any) -> Iterator[Any]:
            begin()
            return copied(*arguments)

        with mock.patch.object(RecordCopier, "copied", begun):
            repack_dataset([open_parent(open_dataset(old))], recipe, Quiet())

    return reuse, repack


def full_disk_of_copies(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Fill the disk so that copies fail at pages that they write, then make room and go on."""
    works = copies(source, folder)
    wholes = []
    for make in works:
        make(folder / "whole" / make.__name__)
        wholes.append(tree(folder / "whole" / make.__name__))
    place = folder / "disk"
    place.mkdir()
    if not own_disk(place):
        return {"tried": 0}
    failed = 0
    for make, whole in zip(works, wholes, strict=True):
        for pages in range(0, 10_000, 4 * step):
            out, filler = place / f"{make.__name__}{pages}", place / "filler"

            def faulty(
                make: Callable[..., None] = make, out: Path = out, pages: int = pages
            ) -> None:
                try:
                    make(out, partial(fill_but, pages, place / "filler"))
                except BuildError as error:
                    exit_with(error, errno.ENOSPC)

            code = forked(faulty)
            filler.unlink()
            if code == 0:
                break
            assert code == errno.ENOSPC
            failed += 1
            check_complete(out, whole)
            make(out)
            assert tree(out) == whole, f"{make.__name__} on a disk full after {pages} pages"
            shutil.rmtree(out)
    return {"tried": failed, "same bytes": failed}


def every_ninth_change_of_copies(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Kill a build that reuses, and a repacking, before changes to the disk; do them again."""
    tried = 0
    for make in copies(source, folder):
        make(folder / "whole" / make.__name__)
        whole = tree(folder / "whole" / make.__name__)
        for number in itertools.count(1, 9 * step):
            out = folder / f"{make.__name__}{number}"

            def faulty(
                make: Callable[..., None] = make, out: Path = out, number: int = number
            ) -> None:
                kill_at_change(number, out)
                make(out)

            code = forked(faulty)
            if code == 0:
                break
            assert code == -signal.SIGKILL
            check_complete(out, whole)
            make(out)
            assert tree(out) == whole, f"{make.__name__} killed before change {number}"
            shutil.rmtree(out)
            tried += 1
    return {"tried": tried, "same bytes": tried}


def read_only(source: Path, folder: Path, step: int) -> dict[str, int]:
    """Build onto a disk that may not be written, then make it writable."""
    del step
    whole = undisturbed_in_child(source, folder / "whole")
    place = folder / "disk"
    place.mkdir()
    if not own_disk(place):
        return {"tried": 0}
    libc = ctypes.CDLL(None, use_errno=True)

    def remount(flags: int) -> None:
        assert not libc.mount(b"none", str(place).encode(), None, _MS_REMOUNT | flags, None)

    def fails() -> None:
        try:
            build(source, place / "out", **KEYS)
        except BuildError as error:
            exit_with(error, errno.EROFS)

    remount(_MS_RDONLY)
    codes = [forked(fails)]
    assert not tree(place)
    remount(0)
    assert undisturbed(source, place / "out") == whole
    return {"tried": len(codes), "same bytes": codes.count(errno.EROFS)}


def run_plan(plan: str, source: str, folder: str, step: str) -> None:
    """Print the report of one of the plans, a JSON object; of 8, every eighth fault is made."""
    plans = {
        "every change": every_change,
        "random moments": random_moments,
        "full disk": full_disk,
        "read-only": read_only,
        "every change of parts": every_change_of_parts,
        "parts at random moments": parts_at_random_moments,
        "parts together": parts_together,
        "every ninth change of copies": every_ninth_change_of_copies,
        "full disk of copies": full_disk_of_copies,
    }
    skip_fsync()
    print(json.dumps(plans[plan](Path(source), Path(folder), int(step))))  # noqa: T201 - its result
