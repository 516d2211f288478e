"""Threads and worker processes fill the batches of `reader.load` that the graph decodes."""

import gc
import os
import shutil
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.errors import RecordError
from shardprep.reader import ReadConfig
from shardprep.reader.arrays.team import Team
from shardprep.reader.tf import decode, pipeline
from tests.reader.datasets import FORMS, HEIGHT, WIDTH, change_image, damage, flip, put
from tests.reader.worker_processes import WAYS, digests, gone, run, worker_sets
from tests.support.builders import png
from tests.support.object_store import Bucket

Set = dict[str, Any]
"""Form → folder of a dataset, or a mix."""
pytestmark = pytest.mark.usefixtures("by_workers")


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
    sets = worker_sets(
        tmp_path_factory, [*{form for form, _ in OWN_WAYS.values() if form in FORMS}]
    )
    return {**sets, "mix": reader.mix({sets["jpeg"]: 0.5, sets["png"]: 0.5})}


def load(place: Any, num_workers: int | None, **options: Any) -> Any:
    config = ReadConfig(num_workers=num_workers, **options.pop("config", {}))
    return reader.load(place, **{"batch_size": 5, "seed": 5, **options}, read_config=config)


def processes(teams: list[Any]) -> list[int]:
    """Return the process IDs of the workers of the last team."""
    return [worker.process.pid for worker in teams[-1]()._pool.result()._workers]


def mirror(images: Any, *, seed: Any) -> Any:
    return tf.image.stateless_random_flip_left_right(images, seed)


MIRRORED = {"dtype": "float32", "augment": mirror}
SMALL_BLOCKS = {"interleave_block_length": 4, "interleave_cycle_length": 2}
OWN_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    **WAYS,
    "png, several epochs in a batch": ("png", {"repeat": 2, "batch_size": 48, "shuffle": False}),
    "raw, several epochs": ("raw", {"repeat": 3, "batch_size": 7}),
    "raw, one batch": ("raw", {"batch_size": 1000}),
    "raw, padded": ("raw", {"config": {"pad_batches": True}}),
    "several labels or none": ("multilabel", {"dtype": "float32", "split": "train+test"}),
    "numbers or none": ("regression", {"split": "train+test"}),
    "raw, several labels or none": ("raw multilabel", {"split": "train+test"}),
    "raw, texts": ("raw text", {"split": "train+test"}),
    "no labels": ("unlabelled", {}),
    "one size, several encodings": ("keep, one size", {"repeat": 2}),
    "single elements": ("jpeg", {"batch_size": None}),
    "single elements of any size": ("keep", {"batch_size": None}),
    "smaller": ("jpeg", {"config": {"image_size": (6, 8)}}),
    "good records": ("jpeg", {"config": {"on_error": "skip"}}),
    "padded": ("jpeg", {"config": {"pad_batches": True}}),
    "a part in stored order": ("raw", {"shuffle": False, "split": "train[10%:75%]"}),
    "one of two hosts": ("jpeg", {"config": {"num_shards": 2, "shard_index": 1}}),
    "mirrored": ("jpeg", {**MIRRORED, "config": {"num_parallel_calls_for_decode": 5}}),
    "small blocks": ("jpeg", {"repeat": 2, "config": SMALL_BLOCKS}),
    "a mix": ("mix", {}),
    "a cache in memory": ("jpeg", {"cache": "memory"}),
    "crops from a cache": ("jpeg", {"cache": "memory", "random_resized_crop": 8}),
    "a cache in a folder": ("jpeg", {"cache": "folder"}),
}


@pytest.mark.parametrize("way", OWN_WAYS)
def test_threads_and_workers_fill_the_batches_that_the_graph_decodes(
    sets: Set, way: str, tmp_path: Path, teams: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    form, options = OWN_WAYS[way]
    if options.get("cache") == "folder":
        options = {**options, "cache": tmp_path}
    dataset = load(sets[form], 2, **options)
    found = digests(dataset)
    assert teams
    assert dataset.cardinality() == len(found)
    for by_threads in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "threads_are_faster", lambda *_, of=by_threads: of)
            assert found == digests(load(sets[form], 0, **options))


def test_the_graph_decodes_only_whole_images_that_it_decodes_faster(
    sets: Set, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "BatchDecoder", lambda *_, **__: pytest.fail("threads decode"))
    load(sets["jpeg"], 0, batch_size=None)
    monkeypatch.setattr(pipeline, "threads_are_faster", lambda *_: False)
    load(sets["jpeg"], 0)
    load(sets["jpeg"], 0, as_supervised=False)
    for num_workers, more in (
        (0, {"random_resized_crop": 8}),
        (0, {"config": {"on_error": "skip"}}),
        (0, {"config": {"image_size": (6, 8)}}),
        (0, {"config": {"image_size": (6, 8)}, "batch_size": None}),
        (1, {}),
    ):
        with pytest.raises(pytest.fail.Exception):
            load(sets["jpeg"], num_workers, **more)


def test_the_graph_decodes_small_images_on_many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_PIXELS_A_CORE", 100)
    for cores, by_threads in ((1, True), (2, False)):
        monkeypatch.setattr(decode, "usable_cores", lambda cores=cores: cores)
        assert decode.threads_are_faster((12, 16), "jpeg") is by_threads


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


def test_bad_records_are_replaced_as_by_threads_and_reported_once(copied: Path) -> None:
    names = damage(copied, 12, 40)
    found, bad = [], list[reader.BadRecord]()
    for number in (2, 0):
        dataset = load(copied, number, repeat=3, config={"on_error": bad.append})
        found.append(digests(dataset))
        assert sorted(f"{one.shard}, record {one.record}:" for one in bad) == sorted(names)
        bad.clear()
    assert found[0] == found[1]


def test_a_damaged_record_is_the_error_of_threads(copied: Path) -> None:
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


def test_iterate_raises_the_error_of_a_record_without_the_text_of_tensorflow(copied: Path) -> None:
    damage(copied, 12, 40)
    with pytest.raises(RecordError, match=r"record 12: offset .*--repair") as error:
        list(reader.iterate(copied, batch_size=4, shuffle=False))
    assert len(str(error.value).splitlines()) == 1


def small_png(data: bytes) -> bytes:
    return png(HEIGHT, WIDTH, seed=7).ljust(len(data), b"\0")


def worn(data: bytes) -> bytes:
    """Return a JPEG that ends in zeros: simplejpeg and Pillow refuse it, TensorFlow does not."""
    return data[:-40] + bytes(38) + data[-2:]


@pytest.mark.parametrize("change", [small_png, worn])
def test_images_that_only_tensorflow_decodes_have_its_pixels(
    sets: Set, copied: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    change_image(copied, 12, change)
    with pytest.raises(RecordError, match="record"):
        list(reader.Dataset(copied))
    found = digests(load(copied, 2))
    assert found != digests(load(sets["jpeg"], 0))
    for by_threads in (True, False):
        monkeypatch.setattr(pipeline, "threads_are_faster", lambda *_, of=by_threads: of)
        assert found == digests(load(copied, 0))


@pytest.mark.parametrize("form", ["jpeg", "png", "raw"])
def test_a_bad_record_is_named_by_shard_and_number(
    sets: Set, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    copied = shutil.copytree(sets[form], tmp_path / "set")
    monkeypatch.setattr(pipeline, "threads_are_faster", lambda *_: True)
    path, at = change_image(copied, 30, lambda image: image[:60] + bytes(len(image) - 60))
    if form != "raw":
        with pytest.raises(tf.errors.OpError, match=rf"{path}, record \d+: .*cannot be decoded"):
            list(load(copied, 0))
    flip(path, at + 60)
    with pytest.raises(
        tf.errors.UnknownError, match=rf"{path}, record \d+: offset {at:,}: data CRC"
    ):
        list(load(copied, 0))


def test_a_killed_worker_costs_no_batch(sets: Set, teams: list[Any]) -> None:
    """Others: test_workers."""
    expected = digests(load(sets["jpeg"], 0, repeat=3))
    found = []
    for number, batch in enumerate(load(sets["jpeg"], 2, repeat=3)):
        if number == 1:
            os.kill(processes(teams)[1], signal.SIGKILL)
        found += digests([batch])
    assert found == expected


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


def test_a_program_ends_though_it_holds_endless_iterators(
    sets: Set, tmp_path: Path, copied: Path
) -> None:
    """Of workers that fill batches or start, of threads, from memory, and past errors."""
    damage(copied, 12)
    code = f"""
        import multiprocessing, sys
        sys.modules["sklearn"] = sys.modules["jax"] = None  # TensorFlow's Keras would take 2 s
        from shardprep import reader
        from shardprep.reader.tf import decode
        decode._PIXELS_A_CORE, decode._MOST_CORES = 0, {{"jpeg": 1024}}
        def begun(place, num_workers=2, cache=False, on_error="raise"):
            config = reader.ReadConfig(num_workers=num_workers, on_error=on_error)
            batches = iter(reader.load(
                place, batch_size=5, repeat=True, shuffle=False, cache=cache, read_config=config
            ))
            next(batches)
            return batches
        of_threads = begun({str(sets["jpeg"])!r}, 0)
        from_memory = begun({str(sets["jpeg"])!r}, 0, "memory")
        past_errors = begun({str(copied)!r}, 0, on_error="skip")
        later = begun({str(sets["jpeg"])!r})
        while len(multiprocessing.active_children()) < 2:
            next(later)
        for _ in range(100):
            next(later)
        failed = begun({str(copied)!r})
        try:
            for _ in range(9):
                next(failed)
        except Exception:
            print("error")
        first = begun({str(sets["jpeg"])!r})
        print("end", flush=True)
        """
    # A new process: an end too early hangs in each of them, but only sometimes in one that was
    # forked.
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["error", "end"]
    assert done.stderr.count("Traceback") == 1, "of the error alone"
