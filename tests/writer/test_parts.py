"""A build in parts, then finalized, is the build in one run, whatever happens on the way."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.dataset.locate import locate
from shardprep.errors import BuildError, DatasetError, RecipeError, SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.storage import lock
from shardprep.storage.folder import LocalFolder
from shardprep.storage.lock import locked
from shardprep.writer.chunk import ChunkEncoder, ChunkTask, EncodedChunk
from shardprep.writer.engine.job import ShardJob
from shardprep.writer.engine.worker_process import WorkerLimits
from shardprep.writer.finalize import TooManyRejectedError
from shardprep.writer.plan.shard_plan import Part, numbers_of
from shardprep.writer.plan.source_plan import make_plan
from shardprep.writer.workspace.files import Folders
from tests.support.builders import (
    Quiet,
    StopAfter,
    StoppedError,
    animals,
    build,
    build_part,
    finalize,
    in_process,
    tree,
    write,
    write_folder,
    zip_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

KEYS: dict[str, Any] = {
    "shards": 4,
    "size": "32x32",
    "format": "png",
    "split": "train=0.8,test=0.2",
}
"""Five shards: four of train, one of test."""
SHARDS = [
    *(f"pets-train.tfrecord-{i:05d}-of-00004" for i in range(4)),
    "pets-test.tfrecord-00000-of-00001",
]


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write(tmp_path / "pets.zip", pets())


@functools.cache
def pets() -> bytes:
    return zip_bytes({**animals(30), "notes.txt": b"hello"})


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    build(write(folder / "pets.zip", pets()), folder / "out", **KEYS)
    return MappingProxyType(tree(folder / "out"))


@pytest.fixture(name="out")
def _out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def work_of(out: Path) -> Path:
    return out / "pets" / "1.0.0.incomplete"


def all_parts(source: Path, out: Path, count: int = 2, **keys: Any) -> None:
    for number in range(1, count + 1):
        build_part(source, out, f"{number}/{count}", **{**KEYS, **keys})


@given(st.integers(0, 60), st.integers(1, 80))
def test_parts_are_a_partition_of_the_shards(num_shards: int, count: int) -> None:
    parts = [Part(number, count).of(range(num_shards)) for number in range(1, count + 1)]
    assert sorted(shard for part in parts for shard in part) == list(range(num_shards))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 100))
def test_the_parts_that_are_named_are_those_of_the_shards(shards: set[int], count: int) -> None:
    """Written as array jobs take it: 2,5,7-9."""
    named: set[int] = set()
    for run in numbers_of(shards, count).split(","):
        first, _, last = run.partition("-")
        named.update(range(int(first), int(last or first) + 1))
    of_these = {n for n in range(1, count + 1) if shards & set(Part(n, count).of(range(301)))}
    assert named == of_these


@pytest.mark.parametrize(
    "order",
    [
        "1/1",
        "1/3 2/3 3/3",
        "3/3 1/3 2/3",
        "2/2 2/2 1/2 2/2",
        "1/2 2/5 1/3 4/4 5/5",
        " ".join(f"{i}/9" for i in range(9, 0, -1)),
    ],
)
def test_parts_in_any_order_again_and_cut_otherwise_are_the_build_in_one_run(
    source: Path, out: Path, whole: Mapping[str, bytes], order: str
) -> None:
    for part in order.split():
        build_part(source, out, part, **KEYS)
        assert not (out / "pets" / "1.0.0").exists()
    finalize(out)
    assert tree(out) == whole


def test_a_part_writes_its_shards_and_no_other(source: Path, out: Path) -> None:
    result = build_part(source, out, "2/3", **KEYS)
    assert sorted(path.name for path in work_of(out).glob("pets-*")) == sorted(SHARDS[1::3])
    assert (result.num_shards, result.num_all_shards) == (2, 5)
    assert build_part(source, out, "9/9", **KEYS).num_shards == 0


def test_what_is_done_is_not_done_again(source: Path, out: Path) -> None:
    first = build_part(source, out, "1/2", **KEYS)
    assert first.num_new_items > 0
    assert build_part(source, out, "1/2", **KEYS).num_new_items == 0
    rest = build_part(source, out, "1/1", **KEYS)
    assert first.num_new_items + rest.num_new_items == 30


def test_a_whole_build_goes_on_where_parts_have_stopped(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    part = build_part(source, out, "2/3", **KEYS)
    result = build(source, out, **KEYS)
    assert part.num_new_items + result.num_new_items == 30
    assert tree(out) == whole


@pytest.mark.parametrize("num_items", [1, 15, 30])
def test_parts_go_on_where_a_whole_build_has_stopped(
    source: Path, out: Path, whole: Mapping[str, bytes], num_items: int
) -> None:
    with pytest.raises(StoppedError):
        build(source, out, watcher=StopAfter(num_items), **KEYS)
    all_parts(source, out)
    finalize(out)
    assert tree(out) == whole


def test_a_part_that_was_stopped_goes_on(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    with pytest.raises(StoppedError):
        build_part(source, out, "1/2", watcher=StopAfter(9), **KEYS)
    watcher = Quiet()
    build_part(source, out, "1/2", watcher=watcher, **KEYS)
    assert watcher.num_done > 0
    build_part(source, out, "2/2", **KEYS)
    finalize(out)
    assert tree(out) == whole


DAMAGES: dict[str, Callable[[Path, str], object]] = {
    "missing": lambda work, shard: (work / shard).unlink(),
    "cut": lambda work, shard: os.truncate(work / shard, 100),
    "flipped": lambda work, shard: flip(work / shard),
    "without its part": lambda work, shard: (work / f".parts/{shard}.parquet").unlink(),
    "with a damaged part": lambda work, shard: (work / f".parts/{shard}.parquet").write_bytes(b"x"),
}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_is_not_whole_is_named_with_its_part(
    source: Path, out: Path, whole: Mapping[str, bytes], damage: str
) -> None:
    all_parts(source, out, 3)
    DAMAGES[damage](work_of(out), SHARDS[1])
    with pytest.raises(BuildError) as error:
        finalize(out)
    assert str(error.value) == (
        f"{work_of(out)}: 1 of 5 shards are not there, or not whole: {SHARDS[1]}; "
        "run part 2 of 3 again: finished shards are not written again"
    )
    build_part(source, out, "2/3", **KEYS)
    finalize(out)
    assert tree(out) == whole


def test_the_parts_that_are_named_are_enough_though_others_were_cut_otherwise(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    build_part(source, out, "2/2", **KEYS)
    build_part(source, out, "1/4", **KEYS)
    with pytest.raises(BuildError, match="run part 3 of 4 again"):
        finalize(out)
    build_part(source, out, "3/4", **KEYS)
    finalize(out)
    assert tree(out) == whole


def test_many_missing_shards_take_one_line(source: Path, out: Path) -> None:
    build_part(source, out, "9/9", **KEYS)
    with pytest.raises(BuildError, match=r"5 of 5 .* and 1 more; run parts 1-5 of 9 again"):
        finalize(out)


def test_finalize_sends_a_whole_build_that_was_stopped_back_to_build(
    source: Path, out: Path
) -> None:
    with pytest.raises(StoppedError):
        build(source, out, watcher=StopAfter(9), **KEYS)
    with pytest.raises(BuildError, match="run `shardprep build` again"):
        finalize(out)


def test_finalize_ends_a_whole_build_that_lacks_only_its_end(
    source: Path, out: Path, whole: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shardprep.writer.run.complete", _stop)
        with pytest.raises(StoppedError):
            build(source, out, **KEYS)
    finalize(out)
    assert tree(out) == whole


def _stop(*_: object) -> None:
    raise StoppedError


def test_nothing_is_finalized_while_a_part_is_at_work(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    all_parts(source, out)
    with locked(work_of(out), alone=False):
        build_part(source, out, "1/2", **KEYS)
        with pytest.raises(BuildError, match=r"work here, or a part .*; wait for it, or end"):
            finalize(out)
        with pytest.raises(BuildError, match="at work here"):
            build(source, out, **KEYS)
    with locked(work_of(out)), pytest.raises(BuildError, match="another build is at work here"):
        build_part(source, out, "1/2", **KEYS)
    finalize(out)
    assert tree(out) == whole


def test_finalize_twice_says_that_it_is_there(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    all_parts(source, out)
    assert not finalize(out).was_there
    assert finalize(out).was_there
    assert tree(out) == whole


def test_a_part_that_comes_late_does_nothing(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    all_parts(source, out)
    finalize(out)
    assert build_part(source, out, "1/2", **KEYS).was_there
    assert tree(out) == whole
    with pytest.raises(BuildError, match=r"is there already, .* other seed"):
        build_part(source, out, "1/2", **{**KEYS, "seed": 8})


@pytest.mark.parametrize(
    "begin",
    [lambda source, out: build_part(source, out, "1/2", **KEYS), lambda _, out: finalize(out)],
    ids=["a part", "finalize"],
)
def test_who_was_about_to_begin_when_the_dataset_was_published_does_nothing(
    source: Path, out: Path, whole: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Path, Path], Any],
) -> None:  # fmt: skip
    all_parts(source, out)
    held = lock.locked

    def late(folder: Path, *, alone: bool) -> Any:
        monkeypatch.setattr("shardprep.writer.workspace.local.locked", held)
        finalize(out)
        return held(folder, alone=alone)

    monkeypatch.setattr("shardprep.writer.workspace.local.locked", late)
    assert begin(source, out).was_there
    assert tree(out) == whole


@pytest.mark.parametrize("step", ["PARTS_DIR", "BUILD_FILE", "the name"])
def test_a_finalize_that_was_killed_at_its_very_end_is_ended_by_the_next(
    source: Path, out: Path, whole: Mapping[str, bytes], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is there: whatever else comes, it says what the dataset is."""
    all_parts(source, out)
    with monkeypatch.context() as patch:
        patch.setattr("shardprep.writer.workspace.local.LocalWorkspace.publish", _stop)
        with pytest.raises(StoppedError):
            finalize(out)
    if step != "PARTS_DIR":
        shutil.rmtree(work_of(out) / ".parts")
    if step == "the name":
        (work_of(out) / ".build.json").unlink()
    before = tree(work_of(out))
    result = build_part(source, out, "1/2", **KEYS)
    assert (result.was_there, result.num_new_items, result.num_shards) == (False, 0, 3)
    assert tree(work_of(out)) == before
    finalize(out)
    assert tree(out) == whole


def test_too_many_rejections_are_an_error_until_finalize_accepts_them(tmp_path: Path) -> None:
    members = {**animals(20), "train/cat.77.jpg": b"junk", "train/dog.78.jpg": b""}
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    all_parts(source, tmp_path / "out")
    with pytest.raises(TooManyRejectedError, match=r"2 of 22 .*the limit is 5.0%"):
        finalize(tmp_path / "out")
    with pytest.raises(TooManyRejectedError, match=r"the limit is 9.0%"):
        finalize(tmp_path / "out", max_rejected=0.09)
    finalize(tmp_path / "out", max_rejected=0.1)
    build(source, tmp_path / "whole", max_rejected="10%", **KEYS)
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_the_limit_of_the_recipe_holds_for_finalize_too(tmp_path: Path) -> None:
    members = {**animals(20), "train/cat.77.jpg": b"junk", "train/dog.78.jpg": b""}
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    all_parts(source, tmp_path / "out", max_rejected="20%")
    with pytest.raises(TooManyRejectedError):
        finalize(tmp_path / "out", max_rejected=0.01)
    assert finalize(tmp_path / "out").manifest.totals.num_rejected == 2


def test_what_the_dead_left_is_swept_and_what_is_the_user_s_stays(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    all_parts(source, out)
    work = work_of(out)
    write(work / f".{SHARDS[0]}.0a1b2c3d.tmp", b"half")
    write(work / ".parts" / ".outline.json.0a1b2c3d.tmp", b"half")
    write(work / "index" / ".x.idx.0a1b2c3d.tmp", b"half")
    write(work / ".work" / "tmpab" / "inner.zip", b"unpacked")
    write(work / "README.txt", b"of the user")
    write(work / "notes" / "a.tmp", b"of the user")
    finalize(out)
    assert tree(out) == {
        **whole,
        "pets/1.0.0/README.txt": b"of the user",
        "pets/1.0.0/notes/a.tmp": b"of the user",
    }


def test_a_shard_of_another_build_is_not_published_along(source: Path, out: Path) -> None:
    all_parts(source, out)
    other = write(work_of(out) / "pets-train.tfrecord-00006-of-00007", b"old")
    with pytest.raises(BuildError, match="does not belong to this build; remove it") as error:
        finalize(out)
    assert error.value.where == str(other)


def crashing(*arguments: Any) -> Iterator[EncodedChunk]:
    _, tasks, *_ = arguments
    tasks = list(tasks)
    first = tasks[0]
    lost = EncodedChunk.lost(first.items[0], "crashed", "by construction")
    encoded = list(in_process(arguments[0], [*first.apart(), *tasks[1:]], *arguments[2:]))
    yield EncodedChunk.joined([lost, *encoded[1 : len(first.items)]])
    yield from encoded[len(first.items) :]


def test_images_that_crash_their_decoder_do_not_stand_in_the_way(source: Path, out: Path) -> None:
    build_part(source, out, "1/2", engine=crashing, **KEYS)
    build_part(source, out, "2/2", **KEYS)
    assert finalize(out).manifest.totals.rejected == {"crashed": 1}


def test_a_part_done_again_gives_such_images_another_chance(
    source: Path, out: Path, whole: Mapping[str, bytes]
) -> None:
    build_part(source, out, "1/2", engine=crashing, **KEYS)
    assert 0 < build_part(source, out, "1/2", **KEYS).num_new_items < 30
    build_part(source, out, "2/2", **KEYS)
    finalize(out)
    assert tree(out) == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [({"seed": 3}, r"seed \(0, now 3\)"), ({"size": "16x16"}, r"size \(32x32, now 16x16\)")],
)
def test_parts_of_other_options_are_refused_by_name(
    source: Path, out: Path, change: dict[str, Any], said: str
) -> None:
    build_part(source, out, "1/2", **KEYS)
    before = tree(out)
    with pytest.raises(BuildError, match=f"{said}; give all parts the same") as error:
        build_part(source, out, "2/2", **{**KEYS, **change})
    assert "\n" not in str(error.value)
    assert tree(out) == before


def test_a_source_that_changed_between_parts_is_refused_by_name(source: Path, out: Path) -> None:
    build_part(source, out, "1/2", **KEYS)
    write(source, zip_bytes(animals(31)))
    with pytest.raises(BuildError, match=r"other source \(its content\); give all parts"):
        build_part(source, out, "2/2", **KEYS)


def test_a_source_that_changes_under_a_part_costs_that_part(tmp_path: Path, out: Path) -> None:
    source = write_folder(tmp_path / "pets", animals(30))
    build(source, tmp_path / "whole", **KEYS)
    build_part(source, out, "1/2", **KEYS)
    image = source / "train" / "dog.9.jpg"
    data, status = image.read_bytes(), image.stat()

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        image.write_bytes(b"other")
        yield from in_process(*arguments)

    with pytest.raises(BuildError, match="has changed or gone while it was read"):
        build_part(source, out, "2/2", engine=engine, **KEYS)
    image.write_bytes(data)
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(BuildError, match="run part 2 of 2 again"):
        finalize(out)
    build_part(source, out, "2/2", **KEYS)
    finalize(out)
    assert tree(out) == tree(tmp_path / "whole")


def test_of_two_builds_that_begin_at_once_one_is_refused(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that nothing is begun; the file that begins it is created by one alone."""
    create = LocalFolder.create

    def late(folder: LocalFolder, name: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalFolder, "create", create)
        build_part(source, out, "1/2", **KEYS)
        return create(folder, name, data)

    monkeypatch.setattr(LocalFolder, "create", late)
    with pytest.raises(BuildError, match=r"begun with other seed \(0, now 5\)"):
        build_part(source, out, "2/2", **{**KEYS, "seed": 5})


@pytest.mark.parametrize("fault", [None, errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_is_created_once_with_and_without_links(
    tmp_path: Path, fault: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(fault, "no links here")

    if fault:
        monkeypatch.setattr(os, "link", refuse)
    folder = LocalFolder(tmp_path)
    assert folder.create("a/b", b"first")
    assert not folder.create("a/b", b"second")
    assert tree(tmp_path) == {"a/b": b"first"}


def test_a_part_that_cannot_begin_leaves_nothing(source: Path, out: Path) -> None:
    """So that the next one may have other options."""
    with pytest.raises(SourceError, match="no such label table"):
        build_part(source, out, "1/2", labels="csv:none.csv", **KEYS)
    assert not out.exists()
    with pytest.raises(RecipeError, match="shards"):
        build_part(source, out, "1/2", **{**KEYS, "shards": 99})
    assert not out.exists()
    all_parts(source, out)
    assert finalize(out).manifest.totals.num_written == 30


def test_a_part_that_cannot_begin_leaves_the_others_alone(source: Path, out: Path) -> None:
    with locked(work_of(out), alone=False):
        write(work_of(out) / ".work" / "tmpcd" / "inner.zip", b"unpacked")
        with pytest.raises(SourceError):
            build_part(source, out, "1/2", labels="csv:none.csv", **KEYS)
        assert (work_of(out) / ".work" / "tmpcd" / "inner.zip").exists()


NO_LOCKS = ["EBADF", "EINVAL", "ENOLCK", "ENOSYS", "EOPNOTSUPP"]


@pytest.mark.parametrize("name", NO_LOCKS)
def test_a_file_system_without_locks_is_built_on_all_the_same(
    source: Path, out: Path, whole: Mapping[str, bytes], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(getattr(errno, name), "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    all_parts(source, out)
    write(work_of(out) / f".{SHARDS[0]}.0a1b2c3d.tmp", b"half")
    finalize(out)
    assert tree(out) == whole
    shutil.rmtree(out)
    with pytest.raises(StoppedError):
        build(source, out, watcher=StopAfter(9), **KEYS)
    build(source, out, **KEYS)
    assert tree(out) == whole


def test_without_locks_nobody_takes_away_what_another_may_be_at_work_on(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    theirs = {
        f".{SHARDS[1]}.0a1b2c3d.tmp": b"half",
        ".work/tmpab/inner.zip": b"unpacked",
    }
    write_folder(work_of(out), theirs)
    with pytest.raises(SourceError):
        build_part(source, out, "2/2", labels="csv:none.csv", **KEYS)
    build_part(source, out, "1/2", **KEYS)
    with pytest.raises(BuildError, match="run part 2 of 2 again"):
        finalize(out)
    assert theirs.items() <= tree(work_of(out)).items()


def test_a_lock_that_fails_otherwise_is_an_error(
    source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="the disk is broken"):
        build_part(source, out, "1/2", **KEYS)


def test_the_lock_is_one_that_network_file_systems_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks files, not folders, between machines; an exclusive lock must be on a writable."""
    seen = []

    def flock(descriptor: int, kind: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        seen.append((path.is_file(), mode, kind))

    monkeypatch.setattr(fcntl, "flock", flock)
    for alone in (False, True):
        with locked(tmp_path / "work", alone=alone):
            pass
    assert seen == [
        (True, os.O_RDWR, fcntl.LOCK_SH | fcntl.LOCK_NB),
        (True, os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB),
    ]


@pytest.mark.parametrize(
    "where", ["out", "out/pets", "out/pets/1.0.0", "out/pets/1.0.0.incomplete"]
)
def test_a_build_in_parts_is_found_by_any_folder_above_it(
    source: Path, out: Path, where: str
) -> None:
    all_parts(source, out)
    assert finalize(out.parent / where).path == out / "pets" / "1.0.0"
    if not where.endswith("incomplete"):
        assert finalize(out.parent / where).was_there


@pytest.mark.parametrize(
    ("here", "where"),
    [("", "out"), ("out", "."), ("out/pets", "."), ("out/pets", "1.0.0"), ("out/pets", ".."),
     ("out/pets/1.0.0.incomplete", "."), ("out/pets/1.0.0.incomplete", "../1.0.0")],
)  # fmt: skip
def test_a_folder_may_be_named_as_seen_from_here(
    source: Path, out: Path, here: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_parts(source, out)
    monkeypatch.chdir(out.parent / here)
    assert finalize(Path(where)).path.resolve() == out / "pets" / "1.0.0"


def test_the_one_that_is_unfinished_is_meant_among_several(source: Path, out: Path) -> None:
    build(source, out, version="0.9.0", **KEYS)
    build(source, out, name="other", **KEYS)
    all_parts(source, out)
    assert finalize(out).location == str(out / "pets" / "1.0.0")


def test_several_unfinished_builds_are_named(source: Path, out: Path) -> None:
    all_parts(source, out)
    all_parts(source, out, name="other")
    with pytest.raises(DatasetError, match=r"other/1\.0\.0, .*pets/1\.0\.0; name one of them"):
        finalize(out)


def test_an_out_folder_may_look_like_a_version(source: Path, tmp_path: Path) -> None:
    all_parts(source, tmp_path / "2.0.0")
    assert finalize(tmp_path / "2.0.0").location == str(tmp_path / "2.0.0" / "pets" / "1.0.0")


def test_where_nothing_was_begun_nothing_is_made(source: Path, out: Path, tmp_path: Path) -> None:
    for where, said in (
        (tmp_path / "nowhere", "no such folder; give the folder or address that --out was"),
        (tmp_path, "holds no dataset, finished or not"),
        (out / "pets" / "1.0.0", "no part of a build was written here; run `shardprep build` with"),
    ):
        with pytest.raises(DatasetError, match=re.escape(said)) as error:
            finalize(where)
        assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [source]
    build(source, out, **KEYS)
    build(source, out, name="other", **KEYS)
    with pytest.raises(DatasetError, match=r"no unfinished build, only: .*name one of them"):
        finalize(out)


def test_whoever_looks_for_the_dataset_is_sent_to_finalize(source: Path, out: Path) -> None:
    build_part(source, out, "1/2", **KEYS)
    with pytest.raises(DatasetError, match=r"not finished; .* run `shardprep finalize .*plete`$"):
        locate(out)
    shutil.rmtree(out)
    with pytest.raises(StoppedError):
        build(source, out, watcher=StopAfter(9), **KEYS)
    with pytest.raises(DatasetError, match="run the same `shardprep build` again"):
        locate(out)


def test_the_outline_names_no_place_and_is_the_same_for_all_parts(
    source: Path, out: Path, tmp_path: Path
) -> None:
    texts = set()
    for part in ("1/2", "2/2"):
        build_part(source, out, part, **KEYS)
        texts.add((work_of(out) / ".parts" / "outline.json").read_text())
    assert len(texts) == 1
    assert str(tmp_path) not in texts.pop()


def test_a_damaged_outline_is_one_line(source: Path, out: Path) -> None:
    all_parts(source, out)
    write(work_of(out) / ".parts" / "outline.json", json.dumps({"name": 3}).encode())
    with pytest.raises(
        BuildError, match=r"outline\.json: is damaged \(name: .*\); run the build, or"
    ):
        finalize(out)


def test_what_travels_to_a_worker_does_not_grow_with_the_plan(tmp_path: Path) -> None:
    """A task holds the items of its shard or chunk, and nothing of the others."""
    sizes = []
    for num_items in (40, 4000):
        members = {f"train/cat.{i:05d}.jpg": b"\xff\xd8" for i in range(num_items)}
        source = write(tmp_path / "pets.zip", zip_bytes({"train.zip": zip_bytes(members)}))
        keys = {"source": str(source), "labels": "none", "shards": num_items // 8}
        plan = make_plan(make_recipe(keys, "test"), tmp_path / "work", Quiet())
        task = plan.shards[0]
        chunk = ChunkTask("pets", 0, task.items[:4])
        assert len(task.items) == 8
        folder = LocalFolder(tmp_path)
        encoder = ChunkEncoder(plan.spec, plan.schema, plan.columns)
        job = ShardJob(Folders(folder, folder), encoder, WorkerLimits(), num_items, 100)
        sizes.append([len(pickle.dumps(one)) for one in (job, task, chunk)])
    for few, many in zip(*sizes, strict=True):
        assert many <= few + 64  # numbers have more digits


def test_a_part_holds_no_items_but_its_own(source: Path, tmp_path: Path) -> None:
    plan = make_plan(make_recipe({"source": str(source), "shards": 3}, "test"), tmp_path, Quiet())
    mine, theirs = 1, 0
    kept = plan.without_others(Part(2, 3))
    assert [len(one.items) for one in kept.shards] == [len(one.items) for one in plan.shards]
    assert kept.num_items == plan.num_items
    assert kept.shards[mine] == plan.shards[mine]
    with pytest.raises(IndexError):
        list(kept.shards[theirs].items)
    assert plan.without_others(Part(1, 1)) is plan
