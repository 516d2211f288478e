"""Worker processes fill the batches that threads would fill, whatever happens to the workers."""

import gc
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.errors import DatasetError, RecordError, ShardprepError
from shardprep.reader.arrays import team, worker_pool
from shardprep.reader.arrays.batch_maker import BatchSource
from shardprep.reader.config import Advice
from tests.reader.datasets import NUM_TRAIN, damage, put, refused
from tests.reader.worker_processes import WAYS, digests, gone, run, worker_sets
from tests.support.examples import thorough
from tests.support.object_store import Bucket

Set = dict[str, "Path"]
pytestmark = pytest.mark.usefixtures("by_workers")


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Set:
    forms = ("jpeg", "png", "raw", "keep", "own sizes", "multilabel", "text")
    return worker_sets(tmp_path_factory, forms)


def pool_of(batches: Any) -> Any:
    return batches._team._pool.result()


OWN_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    **WAYS,
    "png": ("png", {"shuffle": False}),
    "ragged images": ("own sizes", {"ragged": True}),
    "ragged boxes": ("boxes", {"ragged": True}),
}


@pytest.mark.parametrize("way", OWN_WAYS)
def test_workers_yield_the_stream_of_threads(sets: Set, way: str) -> None:
    form, options = OWN_WAYS[way]
    dataset = reader.Dataset(sets[form])
    usual = {"epochs": 2, "seed": 5, **options}
    expected = digests(dataset.batches(5, **usual, num_workers=0))
    for num_workers in (1, 3):
        with dataset.batches(5, **usual, num_workers=num_workers) as batches:
            assert digests(batches) == expected


def test_workers_read_mixes_slices_and_parts_of_hosts(sets: Set) -> None:
    mix = reader.mix({sets["jpeg"]: 0.5, sets["png"]: 0.5})
    for dataset in (reader.Dataset(mix), reader.Dataset(sets["jpeg"])[3:30]):
        for host in range(2):
            options: dict[str, Any] = {"seed": 3, "num_shards": 2, "shard_index": host}
            with dataset.batches(4, **options, num_workers=2) as batches:
                found = digests(batches)
            assert found == digests(dataset.batches(4, **options, num_workers=0))


def test_a_state_goes_on_with_any_number_of_workers(sets: Set) -> None:
    dataset = reader.Dataset(sets["jpeg"])
    whole = digests(dataset.batches(5, epochs=2, seed=1, num_workers=0))
    with dataset.batches(5, epochs=2, seed=9, num_workers=2) as batches:
        for number in range(len(whole)):
            before = dataset.batches(5, epochs=2, seed=1, num_workers=0)
            for _ in range(number):
                next(before)
            batches.load_state_dict(before.state_dict())
            assert digests([next(batches)]) == whole[number : number + 1]
            after = batches.state_dict()
            rest = dataset.batches(5, epochs=2, seed=2, num_workers=0)
            rest.load_state_dict(after)
            assert digests(rest) == whole[number + 1 :]


def test_a_bucket_is_read_by_workers(sets: Set, bucket: Bucket) -> None:
    url = put(bucket, sets["jpeg"])
    with reader.Dataset(url).batches(5, seed=1, num_workers=2) as batches:
        found = digests(batches)
    assert found == digests(reader.Dataset(sets["jpeg"]).batches(5, seed=1, num_workers=0))


def test_loaders_and_keras_take_workers(sets: Set) -> None:
    dataset = reader.Dataset(sets["jpeg"])
    for make in (dataset.loader, dataset.keras):
        one, two = (make(5, seed=1, num_workers=number) for number in (2, 0))
        pairs = zip(list(take(one)), list(take(two)), strict=True)
        for first, second in pairs:
            for left, right in zip(first, second, strict=True):
                assert (np.asarray(left) == np.asarray(right)).all()
        one.close()


def take(loader: Any) -> Iterator[Any]:
    """Yield an epoch of a loader or of Keras' batches."""
    for i, batch in enumerate(loader):
        if i == len(loader):
            return
        yield batch


# Memory


def test_held_batches_are_never_overwritten(sets: Set) -> None:
    dataset = reader.Dataset(sets["jpeg"])
    with dataset.batches(4, epochs=4, seed=1, num_workers=2) as batches:
        held = list(batches)
    assert len(held) == 44
    expected = dataset.batches(4, epochs=4, seed=1, num_workers=0)
    assert digests(held) == digests(expected)
    held[0][0][:] = 0  # as writable as the batches of threads
    assert not held[0][0].any()


def test_a_view_or_a_tensor_keeps_its_slot(sets: Set) -> None:
    torch = pytest.importorskip("torch")
    batches = reader.Dataset(sets["raw"]).batches(4, epochs=None, seed=1, num_workers=1)
    views, copies = [], []
    for _ in range(30):
        images, _ = next(batches)
        views.append(torch.from_numpy(images[1:])[..., 0])
        copies.append(images[1:, ..., 0].copy())
        del images
    assert all((view.numpy() == copy).all() for view, copy in zip(views, copies, strict=True))
    batches.close()


def test_slots_are_used_again_when_batches_are_released(sets: Set) -> None:
    with reader.Dataset(sets["raw"]).batches(4, epochs=None, num_workers=2) as batches:
        slots = pool_of_started(batches).slots
        before = len(slots._slots)
        for _ in range(200):
            next(batches)
        assert len(slots._slots) == before
        held = [next(batches) for _ in range(3 * before)]
        grown = len(slots._slots)
        assert grown > before
        held.clear()
        gc.collect()
        for _ in range(200):
            next(batches)
        assert len(slots._slots) == grown


def pool_of_started(batches: Any) -> Any:
    next(batches)
    return pool_of(batches)


def test_arrays_beyond_a_slot_are_sent_and_equal(
    sets: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BatchSource, "batch_bytes", lambda _: 4096)
    dataset = reader.Dataset(sets["jpeg"])
    with dataset.batches(16, seed=1, num_workers=1) as batches:
        found = digests(batches)
    assert found == digests(dataset.batches(16, seed=1, num_workers=0))


# Damage


def test_errors_and_replaced_records_are_those_of_threads(copied: Path) -> None:
    damage(copied, 12, 13, 40)
    dataset = reader.Dataset(copied)
    with dataset.batches(5, shuffle=False, num_workers=2) as batches:
        next(batches)
        next(batches)
        state = batches.state_dict()
        for _ in range(2):
            with pytest.raises(RecordError, match="record 12"):
                next(batches)
            assert batches.state_dict() == state
    read = []
    for number in (0, 2):
        options: dict[str, Any] = {"seed": 1, "epochs": 2, "on_error": "skip"}
        with dataset.batches(5, **options, num_workers=number) as batches:
            with pytest.warns(RuntimeWarning, match="skipped") as warned:
                digest = digests(batches)
            lines = [str(one.message) for one in warned]
            read.append((digest, lines, [str(error) for error in batches.skipped]))
    assert len(read[0][1]) == 3
    assert read[0] == read[1]


def test_advice_of_workers_is_given_once(sets: Set) -> None:
    with (
        reader.Dataset(sets["boxes"]).batches(2, max_boxes=1, epochs=3, num_workers=2) as batches,
        pytest.warns(Advice, match="max_boxes=1 keeps the largest") as warned,
    ):
        list(batches)
    assert len(warned) == 1


def test_a_missing_shard_is_the_error_of_threads(copied: Path) -> None:
    dataset = reader.Dataset(copied)
    for path in copied.glob("*-train.tfrecord*"):
        path.unlink()
    for number in (0, 1):
        batches = dataset.batches(5, num_workers=number)
        with pytest.raises(DatasetError, match="is missing, but the manifest says"):
            next(batches)
        batches.close()


# Workers that end


@pytest.mark.parametrize("at", [0, 4, *(thorough(at) for at in (1, 2, 3, 5, 6, 7, 8))])
def test_a_killed_worker_costs_no_batch(sets: Set, at: int) -> None:
    dataset = reader.Dataset(sets["jpeg"])
    expected = digests(dataset.batches(5, seed=1, num_workers=0))
    with dataset.batches(5, seed=1, num_workers=2) as batches:
        found = []
        for number, batch in enumerate(batches):
            if number == at:
                workers = pool_of(batches)._workers
                workers[at % len(workers)].process.kill()
            found.append(batch)
    assert digests(found) == expected


def test_a_worker_that_hangs_is_replaced(sets: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_SILENT_S", 1.0)
    dataset = reader.Dataset(sets["jpeg"])
    with dataset.batches(5, seed=1, num_workers=1) as batches:
        found = [next(batches)]
        os.kill(pool_of(batches)._workers[0].process.pid, signal.SIGSTOP)
        found += batches
    assert digests(found) == digests(dataset.batches(5, seed=1, num_workers=0))


def test_a_batch_that_ends_two_workers_is_an_error(
    sets: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = worker_pool.WorkerPool._assign

    def killing(self: Any) -> None:
        usual(self)
        for worker in self._workers:
            if worker.tickets:
                worker.process.kill()  # or has ended since

    monkeypatch.setattr(worker_pool.WorkerPool, "_assign", killing)
    with reader.Dataset(sets["jpeg"]).batches(5, shuffle=False, num_workers=1) as batches:
        line = refused(lambda: next(batches))
    assert (
        "record 0 and 4 others of its batch: worker processes ended twice with this batch" in line
    )
    assert "killed by SIGKILL" in line


def test_workers_that_do_not_start_are_an_error(sets: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "serve", sys.exit)  # any function that ends
    dataset = reader.Dataset(sets["jpeg"])
    with dataset.batches(5, seed=1, num_workers=1) as batches:
        line = refused(lambda: next(batches))
        monkeypatch.undo()
        found = digests(batches)
    assert "a worker could not be started in 3 attempts" in line
    assert found == digests(dataset.batches(5, seed=1, num_workers=0))


@pytest.mark.parametrize("way", ["close", "garbage", "with", "end"])
def test_workers_end_with_their_iterator(sets: Set, way: str) -> None:
    batches = reader.Dataset(sets["jpeg"]).batches(5, num_workers=2)
    next(batches)
    processes = [worker.process for worker in pool_of(batches)._workers]
    match way:
        case "close":
            batches.close()
        case "with":
            with batches:
                pass
        case "end":
            list(batches)
    del batches
    assert gone([process.pid for process in processes if process._popen is not None])


# The program


def test_a_program_without_a_guard_runs_once(sets: Set, tmp_path: Path) -> None:
    """Also with few file descriptors."""
    code = f"""
        print("begin")
        from shardprep import reader
        batches = reader.Dataset({str(sets["jpeg"])!r}).batches(5, epochs=40, num_workers=3)
        print(sum(len(images) for images, _ in batches))
        """
    done = run(code, tmp_path, "ulimit -n 64; ")
    assert (done.stdout, done.stderr) == (f"begin\n{40 * NUM_TRAIN}\n", "")


def test_no_worker_outlives_a_killed_program(sets: Set, tmp_path: Path) -> None:
    code = f"""
        import os, signal, time
        from shardprep import reader
        batches = reader.Dataset({str(sets["jpeg"])!r}).batches(5, epochs=None, num_workers=2)
        next(batches), next(batches)
        pool = batches._team._pool.result()
        print(*(worker.process.pid for worker in pool._workers), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    pids = [int(pid) for pid in run(code, tmp_path).stdout.split()]
    assert len(pids) == 2
    assert gone(pids)


def test_ctrl_c_ends_a_program_at_once(sets: Set, tmp_path: Path) -> None:
    code = f"""
        import os, signal, threading, time
        from shardprep import reader
        batches = reader.Dataset({str(sets["jpeg"])!r}).batches(5, epochs=None, num_workers=2)
        next(batches), next(batches)
        while not batches._team._pool.result().has_room: pass
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            for _ in batches: pass
        except KeyboardInterrupt:
            print(len(next(batches)[0]) > 0)
        """
    done = run(code, tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_threads_fill_batches_while_workers_start(
    sets: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    dataset = reader.Dataset(sets["jpeg"])
    with dataset.batches(5, epochs=None, seed=1, num_workers=1) as batches:
        batches._start()
        assert batches._team._pool is None  # until the first batch is filled
        kinds, found = [], []
        while "Ticket" not in kinds:
            kinds = [type(begun).__name__ for _, begun in batches._started]
            found.append(next(batches))
    expected = dataset.batches(5, epochs=None, seed=1, num_workers=0)
    assert digests(found) == digests(next(expected) for _ in found)


def test_threads_begin_few_batches_until_workers_are_ready(
    sets: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    dataset = reader.Dataset(sets["jpeg"])
    with dataset.batches(5, epochs=None, num_workers=6, num_threads=1) as batches:
        begun = list[Any]()
        while len(begun) < 2 * 6:
            next(batches)
            begun = [type(one).__name__ for _, one in batches._started]
            assert begun.count("_Filled") <= 3


def test_the_number_of_workers_follows_from_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, number in ((2, 0), (3, 0), (4, 4), (8, 4), (16, 8), (64, 32)):
        monkeypatch.setattr(team, "usable_cores", lambda cores=cores: cores)
        assert team._num_workers(None, is_remote=False) == number
        assert team._num_workers(None, is_remote=True) == 0
        assert team._num_workers(3, is_remote=True) == 3


def test_processes_of_torchrun_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "usable_cores", lambda: 64)
    for processes, number in (("", 32), ("1", 32), ("4", 8), ("8", 4), ("32", 0), ("128", 0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert team._num_workers(None, is_remote=False) == number
        assert team._num_workers(None, is_remote=False, has_transform=True) == {
            "": 64, "1": 64, "4": 16, "8": 8, "32": 2, "128": 0,
        }[processes]  # fmt: skip


def _numbers_in_a_daemon(pipe: Any) -> None:
    found: list[Any] = [team._num_workers(None, is_remote=False)]
    try:
        team._num_workers(2, is_remote=False)
    except DatasetError as error:
        found.append(str(error))
    pipe.send(found)


def test_a_process_that_may_not_start_processes_uses_threads() -> None:
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_numbers_in_a_daemon, args=(there,), daemon=True)
    process.start()
    number, line = here.recv()
    process.join()
    assert number == 0
    assert "num_workers=2, but this process is a worker of another library" in line


def test_a_dataset_that_was_replaced_meanwhile_is_an_error(sets: Set, copied: Path) -> None:
    """Workers that start afterwards read no record of the new one."""
    dataset = reader.Dataset(copied)
    shutil.rmtree(copied)
    shutil.copytree(sets["png"], copied)
    for number in (0, 1):
        with (
            dataset.batches(5, seed=1, num_workers=number) as batches,
            pytest.raises(ShardprepError, match="has changed since it was found"),
        ):
            next(batches)
