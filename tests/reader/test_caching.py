"""Caches of decoded records, records that are skipped, warnings, and seeds of the reader."""

import errno
import fcntl
import logging
import os
import shutil
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.errors import BusyError, DatasetError, RecordError
from shardprep.reader import BadRecord, ReadConfig
from shardprep.reader.tf import image_cache
from shardprep.storage.atomic_file import DurableFile
from tests.reader.datasets import change_image, damage, epoch_keys, pets, written
from tests.support.builders import animals, build, jpeg, write, zip_bytes
from tests.support.examples import thorough
from tests.support.processes import Program

NUM_TRAIN = 60


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 3 shards; read only."""
    return pets(tmp_path_factory, animals(NUM_TRAIN), size="16x12", shards=3)


@pytest.fixture(name="plain", scope="module")
def _plain(whole: Path) -> dict[str, Any]:
    """Return the images of the dataset by key, read without a cache."""
    return by_key(load(whole))


@pytest.fixture(name="folder")
def _folder(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of the dataset, to be damaged."""
    return shutil.copytree(whole, tmp_path / "pets" / "1.0.0")


@pytest.fixture(name="made", scope="module")
def _made(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache of the whole dataset; read only."""
    place = tmp_path_factory.mktemp("made")
    reader.load(whole, batch_size=8, cache=place)
    return place


@pytest.fixture(name="place")
def _place(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the cache."""
    return shutil.copytree(made, tmp_path / "cache")


def load(folder: Path, split: str = "train", **options: Any) -> Any:
    return reader.load(folder, split, as_supervised=False, **{"batch_size": 8, **options})


def by_key(dataset: Any) -> dict[str, Any]:
    elements = dataset.unbatch().as_numpy_iterator()
    return {one["image/filename"].decode(): one["image"] for one in elements}


def files(place: Path) -> list[Path]:
    return sorted(one for one in place.rglob("*tfrecord*") if one.suffix != ".idx")


# The cache on disk


def test_a_cache_holds_the_pixels_and_is_written_once(
    whole: Path, plain: dict[str, Any], place: Path
) -> None:
    times = {one: one.stat().st_mtime_ns for one in files(place)}
    assert len(times) == 3
    for shuffle in (True, False):
        check(load(whole, cache=place, shuffle=shuffle), plain)
        assert times == {one: one.stat().st_mtime_ns for one in files(place)}


def check(dataset: Any, expected: dict[str, Any]) -> None:
    """Compare the images of batches with others by their keys."""
    found = by_key(dataset)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_slices_share_a_cache(whole: Path, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    reader.load(whole, "train[:5]", batch_size=8, cache=place)
    assert len(files(place)) == 1  # of the one shard that is wanted
    reader.load(whole, "train", batch_size=8, cache=place)
    assert len(files(place)) == 3


@pytest.mark.parametrize("fault", ["cut", "no index", "gone", "half written"])
def test_an_incomplete_cache_is_completed(
    whole: Path, plain: dict[str, Any], place: Path, fault: str
) -> None:
    """A process that was killed leaves a half-written file."""
    times = {one: one.stat().st_mtime_ns for one in files(place)}
    hurt = files(place)[1]
    if fault == "cut":
        os.truncate(hurt, hurt.stat().st_size // 2)
    elif fault == "gone":
        hurt.unlink()
    else:
        (hurt.parent / "index" / f"{hurt.name}.idx").unlink()
        if fault == "half written":
            hurt.rename(hurt.with_name(f".{hurt.name}.tmp"))
    check(load(whole, cache=place), plain)
    assert times.keys() <= set(files(place))
    again = {one for one, time_ns in times.items() if one.stat().st_mtime_ns != time_ns}
    assert again == {hurt}


def test_another_size_or_dataset_is_another_cache(
    whole: Path, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The shards of the other dataset have the same names."""
    config = ReadConfig(image_size=(6, 8))
    expected = by_key(load(whole, read_config=config))
    check(load(whole, cache=place, read_config=config), expected)
    assert len(files(place)) == 6
    other = pets(tmp_path_factory, animals(NUM_TRAIN), size="16x12", shards=3, format="png")
    check(load(other, "train[3:30]", cache=place), by_key(load(other, "train[3:30]")))
    unlabelled = pets(tmp_path_factory, animals(9), size="16x12", shards=3, labels="none")
    assert "label" not in next(iter(load(unlabelled, cache=place)))


@pytest.mark.thorough
def test_two_processes_make_one_cache(whole: Path, tmp_path: Path) -> None:
    code = """
        import sys; from shardprep import reader
        dataset = reader.load(sys.argv[1], batch_size=8, cache=sys.argv[2])
        print(sum(len(labels) for _, labels in dataset))
    """
    both = [Program(code, whole, tmp_path / "cache") for _ in range(2)]
    assert [int(one.wait().stdout) for one in both] == [NUM_TRAIN] * 2
    assert len(files(tmp_path / "cache")) == 3


def test_a_cache_that_cannot_be_written_is_refused(whole: Path, tmp_path: Path) -> None:
    write(tmp_path / "taken", b"a file")
    with pytest.raises(DatasetError, match="give cache another folder"):
        reader.load(whole, batch_size=8, cache=tmp_path / "taken")


def test_a_cache_that_does_not_fit_is_refused_before_it_is_written(
    whole: Path, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs what it has when it is made, to a few per cent, and a reserve of 1 MiB."""
    needed = sum(one.stat().st_size for one in made.rglob("*") if one.is_file())
    place = tmp_path / "a" / "cache"
    usage = shutil.disk_usage(tmp_path)
    for free in (0, (1 << 20) + needed * 95 // 100):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        with pytest.raises(DatasetError) as caught:
            reader.load(whole, batch_size=8, cache=place)
        said = f"{place}: the decoded images do not fit: "
        assert str(caught.value).startswith(said)
        assert str(caught.value).endswith(" left; free some space, or give another folder")
        assert not list(tmp_path.iterdir())
    usage = usage._replace(free=(1 << 20) + needed * 110 // 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    reader.load(whole, batch_size=8, cache=place)


def test_a_disk_that_fills_up_keeps_nothing_of_a_new_cache(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches of other slices, which were there before, stay."""
    left = [500_000]

    def write_some(self: DurableFile, data: bytes) -> None:
        left[0] -= len(data)
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.stream.write(data)

    reader.load(whole, "train[:5]", batch_size=8, cache=tmp_path / "slice")
    before = {one: one.read_bytes() for one in files(tmp_path / "slice")}
    monkeypatch.setattr(DurableFile, "write", write_some)
    for name in ("new", "slice"):
        left[0] = 60 * 16 * 12 * 3 // 2
        with pytest.raises(DatasetError, match=r"cannot be written \(No space left on device\)"):
            reader.load(whole, batch_size=8, cache=tmp_path / name)
    assert not list((tmp_path / "new").iterdir())
    assert {one: one.read_bytes() for one in files(tmp_path / "slice")} == before


def test_a_cache_is_cleared_and_nothing_else(whole: Path, made: Path, place: Path) -> None:
    reader.load(whole, batch_size=8, cache=place, read_config=ReadConfig(image_size=(4, 4)))
    theirs = [
        write(place / name, b"data")
        for name in ("notes.txt", "0123456789abcdef/x.0123456789abcdef", "mine/lock")
    ]
    files = [path for path in place.rglob("*") if path.is_file()]
    num_bytes = sum(path.stat().st_size for path in files if path not in theirs)
    assert num_bytes > sum(path.stat().st_size for path in made.rglob("*.tfrecord*"))
    assert reader.clear_cache(str(place)) == num_bytes
    assert sorted(path for path in place.rglob("*") if path.is_file()) == sorted(theirs)
    assert reader.clear_cache(place) == 0
    assert by_key(load(whole, cache=place)).keys() == by_key(load(whole)).keys()


def test_a_cache_that_is_being_filled_is_not_cleared(place: Path) -> None:
    before = sorted(place.rglob("*"))
    (lock,) = place.glob("*/lock")
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BusyError, match="another process is writing this cache; try again"):
            reader.clear_cache(place)
    assert sorted(place.rglob("*")) == before
    with pytest.raises(DatasetError, match="no such folder; give the folder that load got as "):
        reader.clear_cache(place / "nothing")


@pytest.mark.parametrize("level", [logging.NOTSET, thorough(logging.INFO), logging.ERROR])
def test_the_progress_of_filling_a_cache_is_shown(
    whole: Path,
    tmp_path: Path,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log if that shows INFO, else on stderr, unless the log drops even warnings."""
    monkeypatch.setattr(image_cache, "_SECONDS_A_LINE", 0.0)
    logger, root = logging.getLogger("shardprep.reader"), logging.getLogger()
    monkeypatch.setattr(logger, "level", level)
    # Libraries of other tests log to stderr.
    monkeypatch.setattr(root, "level", logging.WARNING)
    monkeypatch.setattr(root, "handlers", [caplog.handler])
    logger.manager._clear_cache()  # type: ignore[attr-defined]
    for cache, where in (("memory", "memory"), (str(tmp_path), str(tmp_path))):
        list(reader.load(whole, batch_size=8, cache=cache))
        logged = [one.getMessage() for one in caplog.records if " images decoded" in one.message]
        printed = [line for line in capsys.readouterr().err.splitlines() if " images " in line]
        caplog.clear()
        lines = {logging.NOTSET: printed, logging.INFO: logged}.get(level, [])
        # Memory is filled a batch at a time.
        numbers = [NUM_TRAIN] if cache == "memory" else range(1, NUM_TRAIN + 1)
        assert sum(map(len, (logged, printed))) == (0 if level == logging.ERROR else len(numbers))
        for number, line in zip(numbers, lines, strict=True) if lines else ():
            assert line.startswith(f"cache: {number} of {NUM_TRAIN} images decoded to {where}")
        assert not lines or lines[-1].endswith(", about 0 s left")


@pytest.fixture(name="photos", scope="module")
def _photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of images that take seconds to be decoded and resized; read only."""
    root = tmp_path_factory.mktemp("photos")
    image = jpeg(600, 800)
    members = {f"{i:03}.jpg": image for i in range(160)}
    source = write(root / "photos.zip", zip_bytes(members, method=zipfile.ZIP_STORED))
    return build(source, root / "out", size="none", format="keep", labels="none").path


@pytest.mark.thorough
@pytest.mark.parametrize("cache", ["memory", "folder"])
def test_the_filling_of_a_cache_is_interrupted_within_a_second(
    photos: Path, tmp_path: Path, cache: str
) -> None:
    """By Ctrl-C. Files of a folder are then complete."""
    place = "memory" if cache == "memory" else tmp_path / "cache"
    code = """
        import os, sys, time
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one second of it is one here
        from shardprep import reader
        from shardprep.reader.tf import image_cache
        image_cache._SECONDS_A_LINE = 0.05
        try:
            dataset = reader.load(
                sys.argv[1], batch_size=8, cache=sys.argv[2], split="train",
                read_config=reader.ReadConfig(image_size=(590, 790)),
            )
            next(iter(dataset))
        finally:
            print(time.process_time(), flush=True)
    """
    program = Program(code, photos, place)
    program.wait_for("images decoded to", in_errors=True)
    begin = program.interrupt()
    done = program.wait()
    assert "KeyboardInterrupt" in done.stderr
    assert float(done.stdout) - begin < 1
    left = files(tmp_path / "cache") if cache == "folder" else []
    assert not [one for one in left if one.name.startswith(".")]


def test_images_that_differ_in_size_are_not_cached_in_a_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = pets(tmp_path_factory, animals(8), size="none")
    with pytest.raises(DatasetError, match=r"ReadConfig\(image_size=\(height, width\)\)"):
        reader.load(folder, cache=tmp_path / "cache")
    assert len(list(reader.load(folder, cache="memory"))) == 8


# "auto"


@pytest.mark.parametrize(("share", "chosen"), [(0.5, "memory"), (1e-12, "none")])
def test_auto_is_memory_if_the_images_fit(
    folder: Path, caplog: pytest.LogCaptureFixture, share: float, chosen: str
) -> None:
    caplog.set_level(logging.INFO, "shardprep.reader")
    config = ReadConfig(cache_ram_share=share)
    dataset = load(folder, cache="auto", read_config=config)
    (said,) = caplog.messages
    assert said.startswith(f"cache: {chosen}, ")
    assert "of what is free" in said
    found = epoch_keys(dataset)
    for shard in folder.glob("*-train.tfrecord*"):
        os.truncate(shard, 0)  # one that is removed is still open
    if chosen == "memory":
        assert sorted(epoch_keys(dataset)) == sorted(found)
    else:
        with pytest.raises(tf.errors.UnknownError, match="its shard was truncated"):
            epoch_keys(dataset)


# Bad records


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for row in written(folder) if row["split"] == "train"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        thorough({"cache": "memory"}),
    ],
)
def test_the_next_good_record_replaces_a_bad_one(folder: Path, options: dict[str, Any]) -> None:
    every = rows(folder)
    flipped, spoiled = every[3], every[30]
    damage(folder, 3)
    change_image(folder, 30, lambda image: image[:60] + bytes(len(image) - 60))
    with pytest.raises(RecordError if "cache" in options else tf.errors.OpError):
        epoch_keys(load(folder, **options))
    bad: list[BadRecord] = []
    config = ReadConfig(on_error=bad.append)
    dataset = load(folder, read_config=config, seed=1, **options)
    assert dataset.cardinality() == 8
    for _ in range(2):
        found = Counter(epoch_keys(dataset))
        stand_ins = {3: 4, 30: 31}
        assert found == Counter(every[stand_ins.get(i, i)]["key"] for i in range(NUM_TRAIN))
    assert sorted((one.shard, one.record, one.offset) for one in bad) == [
        (row["shard"], row["record"], row["offset"]) for row in (flipped, spoiled)
    ]
    assert any("CRC" in one.reason for one in bad)
    assert {str(one).count("offset") for one in bad} == {1}


def test_skipped_records_are_named_once_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    row = rows(folder)[7]
    damage(folder, 7)
    dataset = load(folder, read_config=ReadConfig(on_error="skip"))
    for _ in range(2):
        list(dataset)
    said = [one for one in caplog.messages if "left out" in one]
    assert len(said) == 1
    assert f"{row['shard']}: record {row['record']} (offset {row['offset']:,})" in said[0]
    assert said[0].endswith("left out, 1 so far")


def test_bad_records_do_not_get_into_a_cache(folder: Path, tmp_path: Path) -> None:
    damage(folder, 3)
    with pytest.raises(RecordError, match=r"record 3: offset [\d,]+: data CRC"):
        reader.load(folder, batch_size=8, cache=tmp_path / "cache")
    config = ReadConfig(on_error="skip")
    for _ in range(2):
        dataset = load(folder, cache=tmp_path / "cache", read_config=config)
        found = epoch_keys(dataset)
        assert len(found) == NUM_TRAIN
        assert rows(folder)[3]["key"] not in found


# Augmentation


@pytest.mark.thorough
def test_augmentation_is_a_function_of_seed_epoch_and_record(whole: Path) -> None:
    def noise(images: Any, labels: Any, *, seed: Any) -> Any:
        return tf.cast(tf.random.stateless_uniform(tf.shape(images), seed), tf.float32), labels + 1

    def epochs(number: int = 2, **options: Any) -> list[Any]:
        options = {"batch_size": 8, "seed": 3, "augment": noise, **options}
        dataset = reader.load(whole, **options)
        return [[(one.numpy(), other.numpy()) for one, other in dataset] for _ in range(number)]

    def same(one: Any, other: Any) -> bool:
        return all(np.array_equal(a[0], b[0]) for a, b in zip(one, other, strict=True))

    config = ReadConfig(num_parallel_calls_for_decode=1, private_threadpool_size=1)
    first, second = epochs()
    assert not same(first, second)
    assert not same(first[:1], first[1:2])
    for options in ({"read_config": config}, {"cache": "memory"}):
        again = epochs(**options)
        assert same(first, again[0])
        assert same(second, again[1])
    assert not same(first, epochs(1, seed=4)[0])
    assert {int(label) for _, labels in first for label in labels} == {1, 2}
    batches = reader.iterate(whole, batch_size=8, seed=3, augment=noise)
    batches.load_state_dict({**batches.state_dict(), "epoch": 1, "batch": 2})
    assert same([(i.numpy(), 0) for i, _ in batches], second[2:])


def test_a_seeded_augmentation_without_labels_is_given_features(whole: Path) -> None:
    seeds = []

    def look(images: Any, *, seed: Any) -> Any:
        seeds.append((seed.dtype, seed.shape))
        return images

    one = next(iter(load(whole, augment=look)))
    assert set(one) > {"image", "label"}
    assert set(seeds) == {(tf.int32, (2,))}


# Advice


def test_decoding_far_larger_images_than_needed_is_advised_against(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes({"cat/1.jpg": jpeg(), "dog/1.jpg": jpeg()}))
    folder = build(source, tmp_path / "out", size="64x48").path
    with pytest.warns(reader.Advice, match="build the set with --size 32x24") as warned:
        reader.load(folder, batch_size=2, read_config=ReadConfig(image_size=(24, 32)))
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", reader.Advice)
        for cache in ("memory", tmp_path / "cache"):
            config = ReadConfig(image_size=(24, 32))
            reader.load(folder, batch_size=2, cache=cache, read_config=config)


def test_missing_labels_are_advised_against(tmp_path: Path) -> None:
    """Not with `as_supervised=False`, where they are not counted; nor to predict a whole split."""
    members = {"train/cat.1.jpg": jpeg(), "train/dog.1.jpg": jpeg(), "test/1.jpg": jpeg()}
    source = write(tmp_path / "pets.zip", zip_bytes(members))
    folder = build(source, tmp_path / "out", size="8x8").path
    with pytest.warns(
        reader.Advice, match=r"1 of 1 records of test have no label \(−1\), "
    ) as warned:
        reader.load(folder, "train+test", batch_size=2)
    assert [one.filename for one in warned] == [__file__]
    assert "use model.predict" in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error", reader.Advice)
        reader.load(folder, "train", batch_size=2)
        reader.load(folder, "test", batch_size=2, as_supervised=False)
        reader.load(folder, "test", batch_size=2)
    with pytest.warns(reader.Advice, match="1 of 1 records of test have no label"):
        reader.load(folder, "test", batch_size=2, shuffle=True)


@pytest.mark.filterwarnings("error::shardprep.reader.Advice")
def test_the_defaults_give_no_advice(whole: Path) -> None:
    reader.load(whole, batch_size=8)
    reader.load(whole, batch_size=8, cache="auto")
