"""The pass over the pixels: every stored form, damage, the cache."""

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import RecordError
from shardprep.reporter import pixels
from shardprep.reporter.pixels import ScanResult, measure, open_images, plan_pass
from tests.reporter.pages import packed
from tests.support.builders import Quiet, tree
from tests.support.examples import flipped
from tests.support.planted import file, photo

NUMBER = 75
"""More images than a thread processes at a time."""


@pytest.fixture(name="cache", autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pixels"


@functools.cache
def photos() -> dict[str, bytes]:
    return {f"{'abc'[i % 3]}/{i}.png": file(photo(i, 64, 64), "PNG") for i in range(NUMBER)}


def made(folder: Path, **keys: Any) -> Path:
    return packed(folder, photos(), labels="folder", **keys)


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("photos"), size="64x64", format="png")


def passed(path: Path, most: int = 10**6, seed: int = 0, told: Quiet | None = None) -> ScanResult:
    dataset = open_dataset(path)
    manifest = dataset.manifest
    labels = np.arange(manifest.totals.num_written) % 3
    plan = plan_pass(manifest.sha256, labels, most, seed)
    return measure(plan, lambda: open_images(dataset), told or Quiet())


def assert_same_tiles(one: ScanResult, other: ScanResult) -> None:
    assert one.tiles.keys() == other.tiles.keys() == {0, 1, 2}
    for label, (number, total) in one.tiles.items():
        assert number == other.tiles[label][0]
        assert (total == other.tiles[label][1]).all()


@pytest.mark.parametrize("form", ["jpeg", "png", "raw", "keep"])
def test_each_stored_form_is_measured(tmp_path: Path, form: str) -> None:
    keys = {"size": "none", "fit": "none"} if form == "keep" else {"size": "64x64"}
    path, told = made(tmp_path, format=form, **keys), Quiet()
    found = passed(path, told=told)
    assert found.measures["decoded"].all()
    assert (told.total, told.done[-1]) == (NUMBER, NUMBER)
    images = open_images(open_dataset(path))
    payloads = [one for one in images.payloads(range(NUMBER)) if not isinstance(one, RecordError)]
    whole = [images.pixels(images.image(one)) for one in payloads]
    stack = np.stack(whole).astype(float)
    mean, std = found.channels.mean_std()
    assert mean == pytest.approx(stack.mean(axis=(0, 1, 2)) / 255)
    assert std == pytest.approx(stack.std(axis=(0, 1, 2)) / 255)
    own = np.stack([whole[i] for i in range(0, NUMBER, 3)]).mean()
    assert {label: number for label, (number, _) in found.tiles.items()} == dict.fromkeys(
        range(3), NUMBER // 3
    )
    assert (found.tiles[0][1] / (NUMBER // 3)).mean() == pytest.approx(own, abs=1)


def test_a_sample_is_a_function_of_its_seed(path: Path) -> None:
    whole, one = passed(path), passed(path, 40)
    again, other = passed(path, 40), passed(path, 40, seed=1)
    assert len(one.numbers) == 40
    assert one.numbers.tolist() == again.numbers.tolist() != other.numbers.tolist()
    assert (whole.measures[one.numbers] == one.measures).all()


def test_a_second_pass_opens_no_shard_and_gives_the_same(path: Path, cache: Path) -> None:
    before = tree(path)
    found = passed(path)
    assert tree(path) == before
    assert [one.suffix for one in cache.iterdir()] == [".npz"]
    manifest = open_dataset(path).manifest

    def none() -> Any:
        raise AssertionError("a shard is opened")

    plan = plan_pass(manifest.sha256, np.arange(NUMBER) % 3, 10**6, 0)
    again = measure(plan, none, Quiet())
    assert (again.measures == found.measures).all()
    assert_same_tiles(again, found)
    assert again.channels.mean_std() == found.channels.mean_std()


def test_the_number_of_threads_changes_nothing(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number in (1, 5):
        monkeypatch.setattr(pixels, "usable_cores", lambda number=number: number)
        found.append(passed(path))
        for one in cache.iterdir():
            one.unlink()
    assert (found[0].measures == found[1].measures).all()
    assert_same_tiles(*found)


def test_a_damaged_cache_file_is_replaced(path: Path, cache: Path) -> None:
    found = passed(path)
    kept = next(cache.iterdir())
    for data in (b"", b"PK no zip", kept.read_bytes()[:5000]):
        kept.write_bytes(data)
        assert (passed(path).measures == found.measures).all()
        assert kept.read_bytes() != data


def test_a_damaged_record_is_named_and_the_pass_is_not_cached(
    path: Path, tmp_path: Path, cache: Path
) -> None:
    """A repair does not change the manifest."""
    whole = passed(path)
    for one in cache.iterdir():
        one.unlink()
    copy = shutil.copytree(path, tmp_path / "copy")
    shard = next(copy.glob("*.tfrecord-*"))
    offset, length = map(int, (copy / "index" / f"{shard.name}.idx").read_text().split()[14:16])
    shard.write_bytes(flipped(shard.read_bytes(), 8 * (offset + length // 2)))
    found = passed(copy)
    assert [*found.damaged] == [7]
    assert "record 7" in str(found.damaged[7])
    assert not found.measures["decoded"][7]
    others = np.delete(np.arange(NUMBER), 7)
    assert (found.measures[others] == whole.measures[others]).all()
    assert not list(cache.iterdir())


def test_an_interruption_leaves_nothing(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopping(Quiet):
        def advance(self, number: int, num_rejected: int = 0) -> None:
            super().advance(number, num_rejected)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        passed(path, told=Stopping())
    assert not cache.exists() or not list(cache.iterdir())

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(KeyboardInterrupt):
        passed(path)
    assert not list(cache.iterdir())
