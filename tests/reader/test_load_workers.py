"""Worker processes fill the batches of `reader.load` that threads would fill."""

import gc
import hashlib
import os
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.errors import RecordError
from shardprep.reader import ReadConfig
from shardprep.reader.arrays import worker_pool
from shardprep.reader.arrays.team import Team
from shardprep.reader.tf import pipeline
from tests.reader.datasets import change_image, damage, put
from tests.reader.worker_processes import gone, let_workers_fill_all, run, worker_sets
from tests.support.examples import thorough
from tests.support.object_store import Bucket
from tests.support.processes import EndingProgram, Program

Set = dict[str, "Path"]


@pytest.fixture(autouse=True, name="_all_by_workers")
def _all_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    let_workers_fill_all(monkeypatch)


@pytest.fixture(name="teams")
def _teams(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return weak references to the teams that are made during a test."""
    teams: list[Any] = []
    usual = Team.__init__

    def noted(self: Team, *args: Any, **options: Any) -> None:
        usual(self, *args, **options)
        teams.append(weakref.ref(self))

    monkeypatch.setattr(Team, "__init__", noted)
    return teams


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Set:
    forms = ("jpeg", "png", "raw", "keep", "multilabel", "text")
    return worker_sets(tmp_path_factory, forms)


def load(place: Any, num_workers: int | None, **options: Any) -> Any:
    config = ReadConfig(num_workers=num_workers, **options.pop("config", {}))
    return reader.load(place, **{"batch_size": 5, "seed": 5, **options}, read_config=config)


def digests(dataset: Any) -> list[str]:
    """Return the SHA-256 of each batch."""
    found = []
    for batch in dataset:
        digest = hashlib.sha256(repr(tf.nest.map_structure(tf.rank, batch)).encode())
        for one in tf.nest.flatten(batch):
            digest.update(f"{one.dtype}{one.shape}".encode())
            values = one.numpy()
            has_texts = one.dtype == tf.string
            digest.update(repr(values.tolist()).encode() if has_texts else values.tobytes())
        found.append(digest.hexdigest())
    return found


def processes(teams: list[Any]) -> list[int]:
    """Return the process IDs of the workers of the last team."""
    return [worker.process.pid for worker in teams[-1]()._pool.result()._workers]


WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": ("jpeg", {}),
    "png, several epochs in a batch": ("png", {"repeat": 2, "batch_size": 48, "shuffle": False}),
    "raw": ("raw", {"drop_remainder": True}),
    "several labels": ("multilabel", {"dtype": "float32"}),
    "crops": ("keep", {"random_resized_crop": 8}),
    "weights": ("jpeg", {"weights": "balanced"}),
    "boxes": ("boxes", {}),
    "boxes in pixels": ("boxes", {"box_format": "xywh", "max_boxes": 2}),
    "masks": ("masks", {"random_resized_crop": 8}),
    "stacks": ("stacks", {}),
    "texts": ("text", {}),
    "all features": ("jpeg", {"as_supervised": False}),
    "single elements": ("jpeg", {"batch_size": None}),
    "single elements of any size": ("keep", {"batch_size": None}),
    "smaller": ("jpeg", {"config": {"image_size": (6, 8)}}),
    "good records": ("jpeg", {"config": {"on_error": "skip"}}),
    "cut stacks": ("stacks", {"max_length": 2}),
    "padded": ("jpeg", {"config": {"pad_batches": True}}),
    "one of two hosts": ("jpeg", {"config": {"num_shards": 2, "shard_index": 1}}),
}


@pytest.mark.parametrize("way", WAYS)
def test_workers_yield_the_batches_of_threads_and_of_the_graph(
    sets: Set, way: str, teams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    form, options = WAYS[way]
    found = digests(load(sets[form], 2, **options))
    assert found == digests(load(sets[form], 1, **options))
    assert len(teams) == 2
    for by_threads in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "threads_are_faster", lambda *_, of=by_threads: of)
            assert found == digests(load(sets[form], 0, **options))


def test_a_mix_and_a_cached_folder_are_read_by_workers(
    sets: Set, tmp_path: Path, teams: list[Any]
) -> None:
    mix = reader.mix({sets["jpeg"]: 0.5, sets["png"]: 0.5})
    for place, options in ((mix, {}), (sets["jpeg"], {"cache": tmp_path})):
        found = digests(load(place, 2, **options))
        assert teams
        assert found == digests(load(place, 0, **options))


def test_workers_fill_a_cache_in_memory(sets: Set, teams: list[Any]) -> None:
    for options in ({}, {"random_resized_crop": 8}):
        teams.clear()
        found = digests(load(sets["jpeg"], 2, cache="memory", **options))
        assert teams
        assert found == digests(load(sets["jpeg"], 0, cache="memory", **options))


def test_a_bucket_is_read_by_workers(sets: Set, bucket: Bucket) -> None:
    url = put(bucket, sets["jpeg"])
    for options in ({}, {"weights": "balanced"}):
        assert digests(load(url, 2, **options)) == digests(load(sets["jpeg"], 0, **options))


def test_a_state_goes_on_with_any_number_of_workers(sets: Set) -> None:
    def batches(num_workers: int, seed: int) -> Any:
        config = ReadConfig(num_workers=num_workers)
        return reader.iterate(
            sets["jpeg"], batch_size=5, random_resized_crop=8, seed=seed, read_config=config
        )

    whole = digests(batches(0, 1))
    resumed = batches(2, 9)
    for number in range(0, len(whole), 2):
        before = batches(0, 1)
        for _, _ in zip(range(number), before, strict=False):
            pass
        state = before.state_dict()
        assert state["batch"] == number
        resumed.load_state_dict(state)
        assert digests(resumed) == whole[number:]
        assert resumed.state_dict()["epoch"] == 1


def test_keras_trains_on_batches_of_workers(sets: Set) -> None:
    keras = pytest.importorskip("keras")
    dataset = load(sets["jpeg"], 2, dtype="float32", repeat=True, drop_remainder=True)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(dataset, epochs=2, steps_per_epoch=8, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


# Memory


def test_held_batches_are_never_overwritten(sets: Set) -> None:
    held = list(load(sets["raw"], 2, repeat=4))
    assert digests(held) == digests(load(sets["raw"], 0, repeat=4))


def test_slots_are_used_again_when_tensors_are_released(sets: Set, teams: list[Any]) -> None:
    batches = iter(load(sets["raw"], 2, repeat=True))
    for _ in range(400):
        next(batches)
    ahead = teams[-1]().prefetch
    assert len(teams[-1]()._pool.result().slots._slots) <= 4 * (ahead + 2) < 100


# Errors


def test_bad_records_are_replaced_as_by_threads_and_reported_once(
    sets: Set, tmp_path: Path
) -> None:
    copied = shutil.copytree(sets["jpeg"], tmp_path / "set")
    names = damage(copied, 12, 40)
    found, bad = [], list[reader.BadRecord]()
    for number in (2, 0):
        dataset = load(copied, number, repeat=3, config={"on_error": bad.append})
        found.append(digests(dataset))
        assert sorted(f"{one.shard}, record {one.record}:" for one in bad) == sorted(names)
        bad.clear()
    assert found[0] == found[1]


def test_a_damaged_record_is_the_error_of_threads(sets: Set, tmp_path: Path) -> None:
    copied = shutil.copytree(sets["jpeg"], tmp_path / "set")
    damage(copied, 12, 40)
    lines = []
    for number in (2, 0):
        batches = iter(load(copied, number, shuffle=False, random_resized_crop=8))
        next(batches)
        next(batches)
        with pytest.raises(tf.errors.UnknownError, match="record 12: offset") as error:
            next(batches)
        lines.append(str(error.value).partition("RecordError")[2])
    assert lines[0].startswith(": ")
    assert lines[0].splitlines()[0] == lines[1].splitlines()[0]


def test_what_workers_cannot_decode_is_decoded_by_tensorflow(sets: Set, tmp_path: Path) -> None:
    """A JPEG that ends in zeros: simplejpeg and Pillow refuse it, TensorFlow does not."""
    copied = shutil.copytree(sets["jpeg"], tmp_path / "set")
    change_image(copied, 12, lambda data: data[:-40] + bytes(38) + data[-2:])
    with pytest.raises(RecordError, match="record"):
        list(reader.Dataset(copied))
    found = digests(load(copied, 2))
    assert found == digests(load(copied, 0))
    assert found != digests(load(sets["jpeg"], 0))


@pytest.mark.parametrize("at", [1, thorough(0), thorough(5)])  # others: test_workers
def test_a_killed_worker_costs_no_batch(sets: Set, at: int, teams: list[Any]) -> None:
    expected = digests(load(sets["jpeg"], 0, repeat=3))
    found = []
    for number, batch in enumerate(load(sets["jpeg"], 2, repeat=3)):
        if number == at:
            os.kill(processes(teams)[at % 2], signal.SIGKILL)
        found += digests([batch])
    assert found == expected


def test_a_worker_that_hangs_is_replaced(
    sets: Set, teams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_SILENT_S", 1.0)
    batches = load(sets["jpeg"], 1, repeat=3)
    found = []
    for number, batch in enumerate(batches):
        if number == 1:
            os.kill(processes(teams)[0], signal.SIGSTOP)
        found += digests([batch])
    assert found == digests(load(sets["jpeg"], 0, repeat=3))


def test_workers_that_do_not_start_are_an_error(sets: Set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # threads fill batches until the workers have failed
    monkeypatch.setattr(worker_pool, "serve", os.abort)
    dataset = load(sets["jpeg"], 2, repeat=True)
    with pytest.raises(tf.errors.UnknownError, match="a worker could not be started, 3 times"):
        list(dataset)
    batches = iter(dataset)
    assert all(len(next(batches)[0]) == 5 for _ in range(20))


# The end


def test_workers_end_with_the_dataset_and_its_iterators(sets: Set, teams: list[Any]) -> None:
    dataset = load(sets["jpeg"], 2, repeat=True)
    batches = iter(dataset)
    next(batches)
    pids = processes(teams)
    assert len(pids) == 2
    del dataset
    batch = next(batches)
    del batches
    gc.collect()
    assert gone(pids)
    assert len(batch[0]) == 5


@pytest.mark.parametrize("at", ["later", thorough("first"), thorough("past an error")])
def test_a_program_ends_though_it_holds_an_endless_iterator(
    sets: Set, tmp_path: Path, at: str
) -> None:
    copied = shutil.copytree(sets["jpeg"], tmp_path / "set")
    if at == "past an error":
        damage(copied, 12)
    code = f"""
        import multiprocessing
        from shardprep import reader
        config = reader.ReadConfig(num_workers=2)
        batches = iter(reader.load(
            {str(copied)!r}, batch_size=5, repeat=True, shuffle=False, read_config=config
        ))
        next(batches)
        while {at == "later"} and len(multiprocessing.active_children()) < 2:
            next(batches)
        for _ in range(100 * {at == "later"}):
            next(batches)
        try:
            for _ in range(9 * {at == "past an error"}):
                next(batches)
        except Exception:
            print("error")
        print("end", flush=True)
        """
    # An end too early hangs in each new process, and only sometimes in one that was forked.
    done = run(code, tmp_path) if at == "later" else EndingProgram(code).wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "end"
    assert ("error" in done.stdout) == (at == "past an error")
    assert ("Traceback" in done.stderr) == ("error" in done.stdout), "of the error alone"


def test_no_worker_outlives_a_killed_program(sets: Set) -> None:
    code = f"""
        import multiprocessing, os, signal
        from shardprep import reader
        config = reader.ReadConfig(num_workers=2)
        batches = iter(
            reader.load({str(sets["jpeg"])!r}, batch_size=5, repeat=True, read_config=config)
        )
        while len(multiprocessing.active_children()) < 2:
            next(batches)
        print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    pids = [int(pid) for pid in Program(code).wait().stdout.split()]
    assert len(pids) == 2
    assert gone(pids)
