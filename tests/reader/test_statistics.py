"""`reader.mean_std` against NumPy; `reader.buckets` and their batches."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep import reader
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.selection.statistics import _usual_sizes
from tests.reader.datasets import batch_keys, damage, keys_of, merged, pets, refused, saved, stored
from tests.support.builders import animals, encoded, jpeg


@pytest.fixture(scope="module", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one source as JPEG of mixed sizes and as raw pixels of one size."""
    options: dict[str, dict[str, Any]] = {
        "mixed": {"fit": "none", "format": "jpeg"}, "raw": {"size": "16x12", "format": "raw"},
    }  # fmt: skip
    return {
        name: pets(tmp_path_factory, animals(70), shards=2, **one) for name, one in options.items()
    }


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("form", ["mixed", "raw"])
def test_mean_and_deviation_are_equal_to_those_of_numpy(
    folders: dict[str, Path], form: str
) -> None:
    for split in ("train", "train[:7]", reader.select(folders[form], label="cat")):
        images = [image for image, _ in reader.Dataset(folders[form], split)]
        pixels = np.concatenate([one.reshape(-1, 3) for one in images]) / 255
        mean, std = reader.mean_std(folders[form], split)
        np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(std, pixels.std(axis=0), rtol=0, atol=1e-9)


def test_mean_std_is_cached_by_the_hash_of_the_manifest(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reader.mean_std(folders["raw"])
    (cached,) = (tmp_path / "cache" / "channels").iterdir()
    with monkeypatch.context() as patch:  # a cache that cannot be created
        patch.setenv("SHARDPREP_CACHE", str(cached))
        assert reader.mean_std(folders["raw"]) == found

    def refused(*_: Any) -> Any:
        raise AssertionError("decoded again")

    monkeypatch.setattr("shardprep.reader.selection.statistics.ExampleReader", refused)
    assert reader.mean_std(folders["raw"]) == found
    with pytest.raises(AssertionError):
        reader.mean_std(folders["raw"], "train[:-1]")
    cached.write_bytes(b"[1, 2")
    with pytest.raises(AssertionError):
        reader.mean_std(folders["raw"])


def test_a_damaged_record_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["raw"], tmp_path / "copy")
    damage(folder, 0)
    with pytest.raises(RecordError, match="record 0"):
        reader.mean_std(folder)
    with pytest.raises(DatasetError, match="no split 'trian'"):
        reader.mean_std(folder, "trian")


# Buckets


SIDES = ((40, 80), (64, 64), (90, 45), (48, 50))
NUM_EACH = 9


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of images of four shapes, and two that are rotated by EXIF."""
    members = {
        f"cat.{10 * number + i}.jpg": jpeg(height, width, seed=10 * number + i)
        for number, (height, width) in enumerate(SIDES)
        for i in range(NUM_EACH)
    }
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Image.fromarray(np.zeros((40, 80, 3), np.uint8))
    members |= {f"dog.{i}.jpg": encoded(turned, exif=exif, comment=f"{i}") for i in range(2)}
    return pets(tmp_path_factory, members, fit="none", shards=2, format="jpeg")


@pytest.fixture(scope="module", name="buckets")
def _buckets(folder: Path) -> dict[tuple[int, int], Any]:
    return reader.buckets(folder, num_pixels=48 * 48)


def read(folder: Path, buckets: Any, **options: Any) -> list[dict[str, Any]]:
    return [*reader.Dataset(folder).batches(4, buckets=buckets, as_supervised=False, **options)]


def test_each_image_is_in_the_bucket_of_the_nearest_aspect(
    folder: Path, buckets: dict[tuple[int, int], Any]
) -> None:
    """Its stored size counts, after EXIF rotation."""
    every = reader.select(folder, "train")
    assert sorted(number for one in buckets.values() for number in one) == [*every]
    for size, selection in buckets.items():
        for item in reader.Dataset(folder, selection, as_supervised=False):
            height, width = item["image"].shape[:2]
            apart = {
                one: abs(np.log(width / height) - np.log(one[1] / one[0]))
                for one in _usual_sizes(48 * 48)
            }
            assert apart[size] == min(apart.values())
    dogs = reader.select(folder, "train", label="dog")
    (tall,) = [size for size, one in buckets.items() if len(one & dogs)]
    assert tall[0] > tall[1]


def test_batches_have_one_shape_and_an_epoch_has_every_record(
    folder: Path, buckets: dict[tuple[int, int], Any]
) -> None:
    found = read(folder, buckets, seed=1, epochs=2)
    expected = sorted(keys_of(folder))
    half = len(found) // 2
    for epoch in (found[:half], found[half:]):
        assert sorted(key for batch in batch_keys(epoch) for key in batch) == expected
    assert batch_keys(found[:half]) != batch_keys(found[half:])
    assert {batch["image"].shape[1:3] for batch in found} == {*buckets}
    short = [batch for batch in found[:half] if len(batch["image"]) < 4]
    assert len({batch["image"].shape[1:3] for batch in short}) == len(short)
    full = read(folder, buckets, seed=1, drop_remainder=True)
    assert {len(batch["image"]) for batch in full} == {4}
    assert len(full) == sum(len(one) // 4 for one in buckets.values())


def test_an_image_is_stretched_to_its_bucket(
    folder: Path, buckets: dict[tuple[int, int], Any]
) -> None:
    size, selection = next(iter(buckets.items()))
    dataset = reader.Dataset(folder, selection)
    images, _ = next(dataset.batches(1, buckets={size: selection}, shuffle=False))
    expected = Image.fromarray(dataset[0][0]).resize(size[::-1], Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(images[0], np.asarray(expected))


def test_batches_of_buckets_depend_on_the_seed_and_resume(
    folder: Path, buckets: dict[tuple[int, int], Any]
) -> None:
    options: dict[str, Any] = {"buckets": buckets, "as_supervised": False, "epochs": 2}
    first = reader.Dataset(folder).batches(4, seed=3, **options)
    for _ in range(3):
        next(first)
    state = saved(first)
    again = reader.Dataset(folder).batches(4, seed=9, **options)
    again.load_state_dict(state)
    rest = batch_keys([*first])
    assert batch_keys([*again]) == rest
    other = reader.buckets(folder, sizes=[(32, 64), (64, 32)])
    different = reader.Dataset(folder).batches(4, **{**options, "buckets": other})
    assert "other batches" in refused(lambda: different.load_state_dict(state))


def test_hosts_share_each_batch_of_a_bucket(
    folder: Path, buckets: dict[tuple[int, int], Any]
) -> None:
    """Two hosts read images of one size at a time, the batches of 4 images of one host."""

    def part(i: int, **options: Any) -> list[dict[str, Any]]:
        given = {"buckets": buckets, "as_supervised": False, "seed": 5, **options}
        return [*reader.Dataset(folder).batches(2, num_shards=2, shard_index=i, **given)]

    whole = read(folder, buckets, seed=5, drop_remainder=True)
    parts = [part(i, drop_remainder=True) for i in range(2)]
    assert merged([batch_keys(one) for one in parts]) == batch_keys(whole)
    for ours, theirs in zip(*parts, strict=True):
        assert ours["image"].shape[1:] == theirs["image"].shape[1:]
    every = [keys for i in range(2) for keys in batch_keys(part(i))]
    assert sorted(itertools.chain(*every)) == sorted(stored(folder))


def test_default_buckets_have_about_the_requested_number_of_pixels() -> None:
    for side in (64, 224, 512):
        sizes = _usual_sizes(side * side)
        assert (side, side) in sizes
        assert len(sizes) >= 3
        for height, width in sizes:
            assert 0.8 < height * width / side**2 < 1.25
            assert 0.5 <= height / width <= 2


def test_impossible_buckets_are_errors(
    folder: Path, buckets: dict[tuple[int, int], Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    dataset = reader.Dataset(folder)
    some = dict([*buckets.items()][:1])
    assert "are in no bucket" in refused(lambda: dataset.batches(4, buckets=some))
    both = {**buckets, (8, 8): reader.select(folder, "train")}
    assert "38 in several" in refused(lambda: dataset.batches(4, buckets=both))
    drawn = refused(lambda: dataset.batches(4, buckets=buckets, weights="balanced"))
    assert "give one of them" in drawn
    assert "buckets=reader.buckets" in refused(lambda: dataset.batches(4))
    twice = [(8, 8), (8, 8)]
    assert f"sizes={twice}" in refused(lambda: reader.buckets(folder, sizes=twice))
    assert "num_pixels=3" in refused(lambda: reader.buckets(folder, num_pixels=3))
    members = {"cat.1.jpg": jpeg(), "dog.1.jpg": jpeg(seed=1)}
    fixed = pets(tmp_path_factory, members, size=8)
    found = reader.buckets(fixed)
    assert "have one size" in refused(lambda: reader.Dataset(fixed).batches(4, buckets=found))
    assert "another dataset" in refused(lambda: dataset.batches(4, buckets=found))
