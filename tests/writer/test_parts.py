"""A build in parts gives the bytes of one run, also after interruptions and damage."""

import errno
import fcntl
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.dataset.locate import locate
from shardprep.errors import BuildError, DatasetError, RecipeError, SourceError
from shardprep.processes import WorkerLimits
from shardprep.recipe.recipe import make_recipe
from shardprep.storage import lock
from shardprep.storage.folder import LocalFolder
from shardprep.storage.lock import locked
from shardprep.writer.build import PartResult
from shardprep.writer.chunk import ChunkTask, EncodedChunk
from shardprep.writer.chunk_encoder import ChunkEncoder
from shardprep.writer.engine.job import ShardJob
from shardprep.writer.finalize import BuildResult, TooManyRejectedError
from shardprep.writer.plan.shard_plan import Part, numbers_of
from shardprep.writer.plan.source_plan import make_plan
from shardprep.writer.workspace.files import Folders
from shardprep.writer.workspace.states import find_workspace
from tests.support.builders import (
    Quiet,
    StopAfter,
    StoppedError,
    animals,
    build,
    build_part,
    finalize,
    flip_bit,
    in_process,
    tree,
    write,
    write_folder,
    zip_bytes,
)

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


@dataclass(frozen=True)
class Pets:
    """A source of thirty images, and its builds below `out`."""

    source: Path
    out: Path
    whole: Mapping[str, bytes]
    """The files of the build in one run."""
    unfinished: Mapping[str, bytes]
    """The files of two parts that are not finalized."""

    @property
    def work(self) -> Path:
        return self.out / "pets" / "1.0.0.incomplete"

    def build(self, **keys: Any) -> BuildResult:
        return build(self.source, self.out, **{**KEYS, **keys})

    def part(self, part: str, **keys: Any) -> PartResult:
        return build_part(self.source, self.out, part, **{**KEYS, **keys})

    def parts(self, **keys: Any) -> None:
        for part in ("1/2", "2/2"):
            self.part(part, **keys)

    def copy_parts(self) -> None:
        """Put the two unfinished parts into `out`."""
        write_folder(self.out, self.unfinished)

    def finalize(self, **options: Any) -> BuildResult:
        return finalize(self.out, **options)

    def check_end(self) -> None:
        """Finalize the parts; they must be the build in one run."""
        self.finalize()
        assert tree(self.out) == self.whole


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Pets:
    folder = tmp_path_factory.mktemp("whole")
    archive = zip_bytes({**animals(30), "notes.txt": b"hello"})
    pets = Pets(write(folder / "pets.zip", archive), folder / "parts", {}, {})
    pets.parts()
    build(pets.source, folder / "whole", **KEYS)
    return replace(pets, whole=tree(folder / "whole"), unfinished=tree(pets.out))


@pytest.fixture(name="pets")
def _pets(tmp_path: Path, built: Pets) -> Pets:
    source = write(tmp_path / "pets.zip", built.source.read_bytes())
    return replace(built, source=source, out=tmp_path / "out")


@given(st.integers(0, 60), st.integers(1, 80))
def test_parts_are_a_partition_of_the_shards(num_shards: int, count: int) -> None:
    parts = [Part(number, count).of(range(num_shards)) for number in range(1, count + 1)]
    assert sorted(shard for part in parts for shard in part) == list(range(num_shards))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 100))
def test_parts_are_named_by_their_shards(shards: set[int], count: int) -> None:
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
        "3/3 1/3 2/3",
        "2/2 2/2 1/2 2/2",
        "1/2 2/5 1/3 4/4 5/5",
        " ".join(f"{i}/9" for i in range(9, 0, -1)),
    ],
)
def test_parts_in_any_order_repeated_or_of_other_counts_give_the_bytes_of_one_run(
    pets: Pets, order: str
) -> None:
    for part in order.split():
        pets.part(part)
        assert not (pets.out / "pets" / "1.0.0").exists()
    pets.check_end()


def test_a_part_writes_its_shards_and_no_other(pets: Pets) -> None:
    result = pets.part("2/3")
    assert sorted(path.name for path in pets.work.glob("pets-*")) == sorted(SHARDS[1::3])
    assert (result.num_shards, result.num_all_shards) == (2, 5)
    assert pets.part("9/9").num_shards == 0


def test_finished_shards_are_not_written_again(pets: Pets) -> None:
    """Not by a whole build either."""
    first = pets.part("1/2")
    assert first.num_new_items > 0
    assert pets.part("1/2").num_new_items == 0
    rest = pets.build()
    assert first.num_new_items + rest.num_new_items == 30
    assert tree(pets.out) == pets.whole


@pytest.mark.parametrize("num_items", [1, 15])
def test_parts_go_on_where_a_whole_build_has_stopped(pets: Pets, num_items: int) -> None:
    with pytest.raises(StoppedError):
        pets.build(watcher=StopAfter(num_items))
    pets.parts()
    pets.check_end()


def test_a_stopped_part_is_resumed(pets: Pets) -> None:
    with pytest.raises(StoppedError):
        pets.part("1/2", watcher=StopAfter(9))
    watcher = Quiet()
    pets.part("1/2", watcher=watcher)
    assert watcher.num_done > 0
    pets.part("2/2")
    pets.check_end()


DAMAGES: dict[str, Callable[[Path, str], object]] = {
    "missing": lambda work, shard: (work / shard).unlink(),
    "cut": lambda work, shard: os.truncate(work / shard, 100),
    "flipped": lambda work, shard: flip_bit(work / shard),
    "without its part": lambda work, shard: (work / f".parts/{shard}.parquet").unlink(),
    "with a damaged part": lambda work, shard: (work / f".parts/{shard}.parquet").write_bytes(b"x"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_is_not_whole_is_named_with_its_part(pets: Pets, damage: str) -> None:
    for part in ("1/3", "2/3", "3/3"):
        pets.part(part)
    DAMAGES[damage](pets.work, SHARDS[1])
    with pytest.raises(BuildError) as error:
        pets.finalize()
    assert str(error.value) == (
        f"{pets.work}: 1 of 5 shards are missing or incomplete: {SHARDS[1]}; "
        "run part 2 of 3 again: finished shards are not written again"
    )
    pets.part("2/3")
    pets.check_end()


def test_the_named_parts_are_enough_after_parts_of_several_counts(pets: Pets) -> None:
    pets.part("9/9")
    with pytest.raises(BuildError, match=r"5 of 5 .* and 1 more; run parts 1-5 of 9 again"):
        pets.finalize()
    pets.part("2/2")
    pets.part("1/4")
    with pytest.raises(BuildError, match="run part 3 of 4 again"):
        pets.finalize()
    pets.part("3/4")
    pets.check_end()


def test_finalize_sends_a_whole_build_that_was_stopped_back_to_build(pets: Pets) -> None:
    with pytest.raises(StoppedError):
        pets.build(watcher=StopAfter(9))
    with pytest.raises(BuildError, match="run `shardprep build` again"):
        pets.finalize()


def test_finalize_ends_a_whole_build_that_lacks_only_its_end(
    pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("shardprep.writer.run.complete", _stop)
        with pytest.raises(StoppedError):
            pets.build()
    pets.check_end()


def _stop(*_: object) -> None:
    raise StoppedError


def test_nothing_is_finalized_while_a_part_is_at_work(pets: Pets) -> None:
    pets.copy_parts()
    with locked(pets.work, alone=False):
        pets.part("1/2")
        with pytest.raises(BuildError, match=r"another part .*; wait until that build ends"):
            pets.finalize()
        with pytest.raises(BuildError, match="is using this folder"):
            pets.build()
    with locked(pets.work), pytest.raises(BuildError, match="is using this folder"):
        pets.part("1/2")
    pets.check_end()


def test_commands_after_finalize_do_nothing(pets: Pets) -> None:
    pets.copy_parts()
    assert not pets.finalize().was_there
    assert pets.finalize().was_there
    assert pets.part("1/2").was_there
    assert tree(pets.out) == pets.whole
    with pytest.raises(BuildError, match=r"already exists, .* other seed"):
        pets.part("1/2", seed=8)


@pytest.mark.parametrize(
    "begin",
    [lambda pets: pets.part("1/2"), lambda pets: pets.finalize()],
    ids=["a part", "finalize"],
)
def test_a_run_that_begins_while_the_dataset_is_published_does_nothing(
    pets: Pets, monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Pets], Any],
) -> None:  # fmt: skip
    pets.copy_parts()
    held = lock.locked

    def late(folder: Path, *, alone: bool) -> Any:
        monkeypatch.setattr("shardprep.writer.workspace.local.locked", held)
        pets.finalize()
        return held(folder, alone=alone)

    monkeypatch.setattr("shardprep.writer.workspace.local.locked", late)
    assert begin(pets).was_there
    assert tree(pets.out) == pets.whole


@pytest.mark.parametrize("step", ["PARTS_DIR", "BUILD_FILE", "the name"])
def test_a_finalize_that_was_killed_at_its_very_end_is_ended_by_the_next(
    pets: Pets, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest exists and decides what the dataset is."""
    pets.copy_parts()
    with monkeypatch.context() as patch:
        patch.setattr("shardprep.writer.workspace.local.LocalWorkspace.publish", _stop)
        with pytest.raises(StoppedError):
            pets.finalize()
    if step != "PARTS_DIR":
        shutil.rmtree(pets.work / ".parts")
    if step == "the name":
        (pets.work / ".build.json").unlink()
    before = tree(pets.work)
    result = pets.part("1/2")
    assert (result.was_there, result.num_new_items, result.num_shards) == (False, 0, 3)
    assert tree(pets.work) == before
    pets.check_end()


def test_too_many_rejections_are_an_error_until_finalize_accepts_them(
    pets: Pets, tmp_path: Path
) -> None:
    """Or the recipe accepts them, which `finalize` knows."""
    bad = {"train/cat.77.jpg": b"junk", "train/dog.78.jpg": b""}
    write(pets.source, zip_bytes({**animals(20), **bad}))
    pets.parts()
    with pytest.raises(TooManyRejectedError, match=r"2 of 22 .*the limit of 5.0%"):
        pets.finalize()
    with pytest.raises(TooManyRejectedError, match=r"the limit of 9.0%"):
        pets.finalize(max_rejected=0.09)
    pets.finalize(max_rejected=0.1)
    other = replace(pets, out=tmp_path / "other")
    other.parts(max_rejected="10%")
    with pytest.raises(TooManyRejectedError):
        other.finalize(max_rejected=0.01)
    assert other.finalize().manifest.totals.num_rejected == 2
    build(pets.source, tmp_path / "whole", max_rejected="10%", **KEYS)
    assert tree(other.out) == tree(tmp_path / "whole") == tree(pets.out)


def test_finalize_removes_temporary_files_and_keeps_files_of_the_user(pets: Pets) -> None:
    pets.copy_parts()
    work = pets.work
    write(work / f".{SHARDS[0]}.0a1b2c3d.tmp", b"half")
    write(work / ".parts" / ".outline.json.0a1b2c3d.tmp", b"half")
    write(work / "index" / ".x.idx.0a1b2c3d.tmp", b"half")
    write(work / ".work" / "tmpab" / "inner.zip", b"unpacked")
    write(work / "README.txt", b"of the user")
    write(work / "notes" / "a.tmp", b"of the user")
    pets.finalize()
    assert tree(pets.out) == {
        **pets.whole,
        "pets/1.0.0/README.txt": b"of the user",
        "pets/1.0.0/notes/a.tmp": b"of the user",
    }


def test_a_shard_of_another_build_is_not_published_along(pets: Pets) -> None:
    pets.copy_parts()
    other = write(pets.work / "pets-train.tfrecord-00006-of-00007", b"old")
    with pytest.raises(BuildError, match="does not belong to this build; remove it") as error:
        pets.finalize()
    assert error.value.where == str(other)


def crashing(*arguments: Any) -> Iterator[EncodedChunk]:
    _, tasks, *_ = arguments
    tasks = list(tasks)
    first = tasks[0]
    lost = EncodedChunk.lost(first.items[0], "crashed", "by construction")
    encoded = list(in_process(arguments[0], [*first.apart(), *tasks[1:]], *arguments[2:]))
    yield EncodedChunk.joined([lost, *encoded[1 : len(first.items)]])
    yield from encoded[len(first.items) :]


def test_images_that_crash_their_decoder_are_rejected(pets: Pets) -> None:
    pets.part("1/2", engine=crashing)
    pets.part("2/2")
    assert pets.finalize().manifest.totals.rejected == {"crashed": 1}


def test_a_repeated_part_tries_crashed_images_again(pets: Pets) -> None:
    pets.part("1/2", engine=crashing)
    assert 0 < pets.part("1/2").num_new_items < 30
    pets.part("2/2")
    pets.check_end()


def test_parts_of_other_options_or_another_source_are_refused(pets: Pets) -> None:
    pets.part("1/2")
    before = tree(pets.out)
    for change, said in (
        ({"seed": 3}, r"seed \(0, now 3\)"),
        ({"size": "16x16"}, r"size \(32x32, now 16x16\)"),
    ):
        with pytest.raises(BuildError, match=f"{said}; give all parts the same") as error:
            pets.part("2/2", **change)
        assert "\n" not in str(error.value)
    write(pets.source, zip_bytes(animals(31)))
    with pytest.raises(BuildError, match=r"other source \(its content\); give all parts"):
        pets.part("2/2")
    assert tree(pets.out) == before


def test_a_source_that_changes_under_a_part_costs_that_part(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "pets", animals(30))
    build(source, tmp_path / "whole", **KEYS)
    pets = Pets(source, tmp_path / "out", tree(tmp_path / "whole"), {})
    pets.part("1/2")
    image = source / "train" / "dog.9.jpg"
    data, status = image.read_bytes(), image.stat()

    def engine(*arguments: Any) -> Iterator[EncodedChunk]:
        image.write_bytes(b"other")
        yield from in_process(*arguments)

    with pytest.raises(BuildError, match="was changed or removed while it was read"):
        pets.part("2/2", engine=engine)
    image.write_bytes(data)
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(BuildError, match="run part 2 of 2 again"):
        pets.finalize()
    pets.part("2/2")
    pets.check_end()


def test_one_of_two_different_builds_that_begin_together_is_refused(
    pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that nothing is begun; the file that begins it is created by one alone."""
    create = LocalFolder.create

    def late(folder: LocalFolder, name: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalFolder, "create", create)
        pets.part("1/2")
        return create(folder, name, data)

    monkeypatch.setattr(LocalFolder, "create", late)
    with pytest.raises(BuildError, match=r"begun with other seed \(0, now 5\)"):
        pets.part("2/2", seed=5)


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


def test_a_part_that_cannot_begin_leaves_nothing(pets: Pets) -> None:
    """So that the next one may have other options."""
    with pytest.raises(SourceError, match="no such label table"):
        pets.part("1/2", labels="csv:none.csv")
    assert not pets.out.exists()
    with pytest.raises(RecipeError, match="shards"):
        pets.part("1/2", shards=99)
    assert not pets.out.exists()
    pets.parts()
    assert pets.finalize().manifest.totals.num_written == 30


def test_a_part_that_cannot_begin_leaves_the_others_alone(pets: Pets) -> None:
    with locked(pets.work, alone=False):
        write(pets.work / ".work" / "tmpcd" / "inner.zip", b"unpacked")
        with pytest.raises(SourceError):
            pets.part("1/2", labels="csv:none.csv")
        assert (pets.work / ".work" / "tmpcd" / "inner.zip").exists()


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int, said: str = "no locks here") -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, said)

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_a_build_works_on_a_file_system_without_locks(
    pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EBADF", "EINVAL", "ENOLCK", "ENOSYS", "EOPNOTSUPP"):
        refuse_locks(monkeypatch, getattr(errno, name))
        with locked(pets.work) as is_held:
            assert not is_held
    pets.parts()
    write(pets.work / f".{SHARDS[0]}.0a1b2c3d.tmp", b"half")
    pets.check_end()
    shutil.rmtree(pets.out)
    with pytest.raises(StoppedError):
        pets.build(watcher=StopAfter(9))
    pets.build()
    assert tree(pets.out) == pets.whole


def test_without_locks_files_of_other_runs_are_kept(
    pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_locks(monkeypatch, errno.ENOSYS)
    theirs = {f".{SHARDS[1]}.0a1b2c3d.tmp": b"half", ".work/tmpab/inner.zip": b"unpacked"}
    write_folder(pets.work, theirs)
    with pytest.raises(SourceError):
        pets.part("2/2", labels="csv:none.csv")
    pets.part("1/2")
    with pytest.raises(BuildError, match="run part 2 of 2 again"):
        pets.finalize()
    assert theirs.items() <= tree(pets.work).items()


def test_a_lock_that_fails_otherwise_is_an_error(
    pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_locks(monkeypatch, errno.EIO, "the disk is broken")
    with pytest.raises(OSError, match="the disk is broken"):
        pets.part("1/2")


def test_the_lock_works_on_network_file_systems(
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


def test_finalize_finds_the_parts_in_any_folder_above_them(
    pets: Pets, monkeypatch: pytest.MonkeyPatch
) -> None:
    pets.copy_parts()
    for here, *wheres in (
        ("", "out", "out/pets", "out/pets/1.0.0", "out/pets/1.0.0.incomplete", pets.out),
        ("out", "."),
        ("out/pets", ".", "1.0.0", ".."),
        ("out/pets/1.0.0.incomplete", ".", "../1.0.0"),
    ):
        monkeypatch.chdir(pets.out.parent / here)
        for where in wheres:
            place = Path(find_workspace(str(where)).location)
            assert place.resolve() == pets.out / "pets" / "1.0.0"
    assert finalize(Path()).path.resolve() == pets.out / "pets" / "1.0.0"
    monkeypatch.chdir(pets.out.parent)
    for where in ("out", "out/pets", "out/pets/1.0.0"):
        assert finalize(Path(where)).was_there


def test_finalize_chooses_the_one_unfinished_build(pets: Pets) -> None:
    pets.build(version="0.9.0")
    pets.build(name="other")
    pets.copy_parts()
    assert find_workspace(str(pets.out)).location == str(pets.out / "pets" / "1.0.0")
    pets.parts(name="others")
    with pytest.raises(DatasetError, match=r"others/1\.0\.0, .*pets/1\.0\.0; name one of them"):
        pets.finalize()


def test_an_out_folder_may_look_like_a_version(pets: Pets, tmp_path: Path) -> None:
    other = replace(pets, out=tmp_path / "2.0.0")
    other.parts()
    assert other.finalize().location == str(tmp_path / "2.0.0" / "pets" / "1.0.0")


def test_finalize_without_an_unfinished_build_is_an_error(pets: Pets, tmp_path: Path) -> None:
    for where, said in (
        (tmp_path / "nowhere", "no such folder; give the folder of a dataset, or the"),
        (tmp_path, "holds no dataset, finished or not"),
        (
            pets.out / "pets" / "1.0.0",
            "no part of a build was written here; run `shardprep build` with",
        ),
    ):
        with pytest.raises(DatasetError, match=re.escape(said)) as error:
            finalize(where)
        assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [pets.source]
    pets.build()
    pets.build(name="other")
    with pytest.raises(DatasetError, match=r"only finished datasets: .*name one of them"):
        pets.finalize()


def test_an_unfinished_dataset_is_an_error_that_names_finalize(pets: Pets) -> None:
    pets.part("1/2")
    with pytest.raises(DatasetError, match=r"not finished; .*`shardprep finalize .*plete` if"):
        locate(pets.out)
    shutil.rmtree(pets.out)
    with pytest.raises(StoppedError):
        pets.build(watcher=StopAfter(9))
    with pytest.raises(DatasetError, match="run the same `shardprep build` again"):
        locate(pets.out)


def test_the_outline_names_no_place_and_is_the_same_for_all_parts(
    pets: Pets, tmp_path: Path
) -> None:
    texts = set()
    for part in ("1/2", "2/2"):
        pets.part(part)
        texts.add((pets.work / ".parts" / "outline.json").read_text())
    assert len(texts) == 1
    assert str(tmp_path) not in texts.pop()


def test_a_damaged_outline_is_one_line(pets: Pets) -> None:
    pets.copy_parts()
    write(pets.work / ".parts" / "outline.json", json.dumps({"name": 3}).encode())
    with pytest.raises(
        BuildError, match=r"outline\.json: is damaged \(name: .*\); run `shardprep build`, or"
    ):
        pets.finalize()


def test_pickled_tasks_do_not_grow_with_the_plan(tmp_path: Path) -> None:
    """A chunk holds its items, and nothing of the others."""
    sizes = []
    for num_items in (40, 4000):
        members = {f"train/cat.{i:05d}.jpg": b"\xff\xd8" for i in range(num_items)}
        source = write(tmp_path / "pets.zip", zip_bytes({"train.zip": zip_bytes(members)}))
        keys = {"source": str(source), "labels": "none", "shards": num_items // 8}
        plan = make_plan(make_recipe(keys, "test"), tmp_path / "work", Quiet())
        chunk = ChunkTask("pets", 0, plan.shards[0].items[:4])
        folder = LocalFolder(tmp_path)
        encoder = ChunkEncoder(plan.spec, plan.schema, plan.columns)
        job = ShardJob(Folders(folder, folder), encoder, WorkerLimits(), num_items, 100)
        sizes.append([len(pickle.dumps(one)) for one in (job, chunk)])
    for few, many in zip(*sizes, strict=True):
        assert many <= few + 64  # numbers have more digits


def test_a_part_holds_no_items_but_its_own(pets: Pets, tmp_path: Path) -> None:
    keys = {"source": str(pets.source), "shards": 3}
    plan = make_plan(make_recipe(keys, "test"), tmp_path, Quiet())
    mine, theirs = 1, 0
    kept = plan.without_others(Part(2, 3))
    assert [len(one.items) for one in kept.shards] == [len(one.items) for one in plan.shards]
    assert kept.num_items == plan.num_items
    assert kept.shards[mine] == plan.shards[mine]
    with pytest.raises(IndexError):
        list(kept.shards[theirs].items)
    assert plan.without_others(Part(1, 1)) is plan
