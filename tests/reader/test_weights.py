"""Draws by weight: their frequencies, and the same draws in both readers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from tests.kinds.sets import as_png
from tests.reader.datasets import batch_keys, by_load, keys_of, merged, pets, refused, saved
from tests.support.builders import animals, jpeg

NUM_CATS, NUM_DOGS = 32, 8


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of raw images with four times as many cats as dogs."""
    members = animals(2 * NUM_CATS)
    kept = {
        key: data for key, data in members.items() if "cat" in key or int(key[10:-4]) < NUM_DOGS
    }
    return pets(tmp_path_factory, kept, size="8x6", shards=3, format="raw")


def drawn(folder: Path, epochs: int, *, batch_size: int = 16, **options: Any) -> list[str]:
    dataset = reader.Dataset(folder, decode=False)
    read = dataset.batches(batch_size, epochs=epochs, as_supervised=False, **options)
    return [*itertools.chain(*batch_keys(read))]


def chi_square(counts: Any, expected: Any) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_balanced_draws_each_class_equally_often(folder: Path) -> None:
    keys = drawn(folder, 50, weights="balanced", seed=1)
    assert len(keys) == 50 * (NUM_CATS + NUM_DOGS)
    counts = np.array([sum(name in key for key in keys) for name in ("cat", "dog")])
    assert chi_square(counts, len(keys) / 2) < 10.8  # 1 degree, p = 0.001
    order = keys_of(folder)
    each = np.array([keys.count(key) for key in order])
    expected = [len(keys) / 2 / (NUM_CATS if "cat" in key else NUM_DOGS) for key in order]
    assert chi_square(each, np.array(expected)) < 72  # 39 degrees, p = 0.001


def test_records_are_drawn_in_proportion_to_their_weights(folder: Path) -> None:
    weights = np.arange(NUM_CATS + NUM_DOGS) % 5.0
    order = keys_of(folder)
    keys = drawn(folder, 60, weights=weights, seed=2)
    each = np.array([keys.count(key) for key in order])
    used = weights > 0
    assert not each[~used].any()
    assert chi_square(each[used], (len(keys) * weights / weights.sum())[used]) < 62  # 31 degrees


def test_without_replacement_a_record_is_drawn_once(folder: Path) -> None:
    """The chance of a record is its share of the weights of the records that are left."""
    weights = np.where(np.arange(NUM_CATS + NUM_DOGS) < 4, [1, 2, 3, 6] * 10, 0)
    order = keys_of(folder)[:4]
    options: dict[str, Any] = {"weights": reader.Weights(weights, replacement=False), "seed": 3}
    epochs = np.array(drawn(folder, 1200, batch_size=4, **options)).reshape(1200, 4)
    assert all(sorted(epoch) == sorted(order) for epoch in epochs.tolist())
    first = np.array([(epochs[:, 0] == key).sum() for key in order])
    assert chi_square(first, 1200 * np.array([1, 2, 3, 6]) / 12) < 16.3  # 3 degrees
    second = epochs[epochs[:, 0] == order[3], 1]
    counts = np.array([(second == key).sum() for key in order[:3]])
    assert chi_square(counts, len(second) * np.array([1, 2, 3]) / 6) < 13.8  # 2 degrees
    few = reader.Weights("balanced", replacement=False, num_samples=10)
    keys = drawn(folder, 2, weights=few, seed=1)
    assert len(keys) == 20
    assert len({*keys[:10]}) == len({*keys[10:]}) == 10


@pytest.mark.parametrize(
    "weights",
    [reader.Weights("balanced", num_samples=75),
     reader.Weights(np.arange(40), replacement=False, num_samples=30)],
    ids=["with", "without"],
)  # fmt: skip
def test_both_readers_draw_the_same_on_any_number_of_hosts(folder: Path, weights: Any) -> None:
    """Hosts share one series of draws in global batches, and a cache does not change it."""
    options: dict[str, Any] = {"weights": weights, "seed": 7, "batch_size": 8}
    whole = drawn(folder, 2, **options)
    one = by_load(folder, **options)
    assert [*itertools.chain(*batch_keys(one), *batch_keys(one))] == whole
    cached = by_load(folder, cache="memory", **options)
    assert [*itertools.chain(*batch_keys(cached), *batch_keys(cached))] == whole
    epoch = whole[: len(whole) // 2]
    small = {**options, "batch_size": 4}
    parts = [batch_keys(by_load(folder, part=(i, 2), **small)) for i in range(2)]
    assert [*itertools.chain(*merged(parts))] == epoch
    half = reader.Dataset(folder).batches(num_shards=2, shard_index=1, as_supervised=False, **small)
    assert batch_keys(half) == parts[1]
    assert drawn(folder, 2, **options) == whole
    assert drawn(folder, 2, **{**options, "seed": 8}) != whole
    assert whole[: len(epoch)] != whole[len(epoch) :]


def test_draws_resume_in_the_other_reader(folder: Path) -> None:
    options: dict[str, Any] = {"weights": "balanced", "seed": 5, "as_supervised": False}
    first = reader.Dataset(folder).batches(7, epochs=2, **options)
    for _ in range(3):
        next(first)
    state = saved(first)
    rest = batch_keys(itertools.islice(first, 3))
    there = reader.iterate(folder, batch_size=7, **options)
    there.load_state_dict(state)
    assert batch_keys(there) == rest
    for weights in (None, np.arange(40), reader.Weights("balanced", num_samples=39)):
        other = reader.Dataset(folder).batches(7, epochs=2, **{**options, "weights": weights})
        assert "or settings" in refused(lambda other=other: other.load_state_dict(state))  # type: ignore[misc]


@pytest.mark.thorough
def test_each_draw_of_a_record_has_another_augmentation_seed(folder: Path) -> None:
    weights = np.eye(1, NUM_CATS + NUM_DOGS)[0]

    def seeded(images: Any, *, seed: Any) -> tuple[Any, Any]:
        return images, seed

    drawn_ones = reader.load(folder, batch_size=1, weights=weights, seed=1, augment=seeded)
    seeds = [tuple(seed.numpy().tolist()) for _, seed in drawn_ones]
    assert len(set(seeds)) == NUM_CATS + NUM_DOGS


def test_the_number_of_batches_depends_on_the_number_of_draws(folder: Path) -> None:
    weights = reader.Weights("balanced", num_samples=100)
    assert len(reader.load(folder, batch_size=8, weights=weights)) == 13
    assert len(reader.load(folder, batch_size=8, weights=weights, drop_remainder=True)) == 12
    assert len(reader.Dataset(folder).batches(8, weights=weights, drop_remainder=True)) == 12


def test_class_weights_have_the_mean_1(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = reader.class_weights(folder)
    assert found == {0: 40 / (2 * NUM_CATS), 1: 40 / (2 * NUM_DOGS)}
    part = reader.select(folder, "train", label="dog")
    assert reader.class_weights(folder, part) == {0: 0.0, 1: 1.0}
    members = {f"{i}.jpg": jpeg(seed=i) for i in range(3)}
    plain = pets(tmp_path_factory, members, size=8, labels="none")
    said = refused(lambda: reader.class_weights(plain, "train"))
    assert said.endswith("do not have one class each; weight the losses yourself")
    assert "no class" in refused(lambda: reader.load(plain, batch_size=2, weights="balanced"))


@pytest.fixture(name="masked", scope="module")
def _masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of class masks; the class "none" has no pixel."""
    members: dict[str, bytes] = {}
    for i in range(6):
        mask = np.zeros((16, 16), np.uint8)
        mask[: i + 1], mask[8:12] = 1, 255
        members |= {f"images/{i}.jpg": jpeg(16, 16, seed=i), f"masks/{i}.png": as_png(mask)}
    values = "0=road,1=car,2=none,255=ignore"
    masks = {"masks": "masks/{stem}.png", "mask_values": values}
    return pets(tmp_path_factory, members, size=16, labels="none", **masks)


def test_class_weights_of_masks_are_those_of_pixels(masked: Path) -> None:
    """Their mean over the pixels that have a class is 1."""
    first = reader.select(masked, keys=["images/0.jpg", "images/5.jpg"])
    for split in ("train", first):
        _, masks = next(reader.Dataset(masked, split).batches(6))
        road, car = ((masks == value).sum() for value in (0, 1))
        expected = {0: (road + car) / (2 * road), 1: (road + car) / (2 * car), 2: 0.0}
        assert reader.class_weights(masked, split) == pytest.approx(expected)


def test_balanced_draws_of_masks_are_an_error_that_points_to_the_weights_of_pixels(
    masked: Path,
) -> None:
    said = refused(lambda: reader.load(masked, batch_size=2, weights="balanced"))
    assert "; weight the loss of pixels by class_weights, or give an array" in said


def test_class_weights_point_to_balanced_draws_only_if_these_work(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    table = b"name,tags\n" + b"".join(b"%d.jpg,a b\n" % i for i in range(3))
    members = {**{f"{i}.jpg": jpeg(seed=i) for i in range(3)}, "tags.csv": table}
    labels = {"labels": "csv:tags.csv:name:tags", "target": "multilabel"}
    several = pets(tmp_path_factory, members, size=8, **labels)
    assert 'draw by weights="balanced"' in refused(lambda: reader.class_weights(several))
    assert len(reader.load(several, batch_size=3, weights="balanced")) == 1


def test_wrong_weights_are_errors(folder: Path) -> None:
    def line(weights: Any, **options: Any) -> str:
        if "read_config" not in options:
            refused(lambda: reader.Dataset(folder).batches(4, weights=weights, **options))
        return refused(lambda: reader.load(folder, batch_size=4, weights=weights, **options))

    assert "shape (3,), not (40,)" in line([1, 2, 3])
    for wrong_number in (-1.0, 0.0, float("nan")):
        assert "below 0, infinite, NaN or all 0" in line([wrong_number] * 40)
    assert "an array of numbers" in line(["a"] * 40)
    too_many = reader.Weights("balanced", replacement=False, num_samples=41)
    assert "num_samples=41, but 40 records" in line(too_many)
    assert "num_samples=0" in refused(lambda: reader.Weights("balanced", num_samples=0))
    assert "shuffle=False keeps the stored order" in line("balanced", shuffle=False)
    padded = reader.ReadConfig(pad_batches=True)
    assert "pad_batches for evaluation" in line("balanced", read_config=padded)
