"""Both readers have one order, one sharding and one state."""

import functools
import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.dataset.example import encode
from shardprep.dataset.manifest import Shard, load_manifest
from shardprep.dataset.tfrecord import frame
from shardprep.errors import DatasetError
from shardprep.reader.array_types import Ints
from shardprep.reader.order import epoch as epoch_order
from shardprep.reader.order.global_batches import GlobalBatches
from shardprep.reader.order.order import Order
from shardprep.reader.records.subset import mean_record_bytes
from tests.reader.datasets import (
    batch_keys,
    by_dataset,
    by_load,
    damage,
    merged,
    pets,
    put,
    refused,
    saved,
    stored,
    written,
)
from tests.support.builders import animals
from tests.support.examples import examples, thorough
from tests.support.object_store import Bucket

NUM_TRAIN = 83
SCATTERED = [i for i in range(NUM_TRAIN) if i * i % 7 in (1, 2)]
SPLITS: dict[str, Any] = {
    "train": range(NUM_TRAIN),
    "train[10:-20]": range(10, NUM_TRAIN - 20),
    "train[30%:]": range(25, NUM_TRAIN),
    "train[:20]+train[50:]": [*range(20), *range(50, NUM_TRAIN)],
    "even": range(28, 56),
    "scattered": SCATTERED,
}
"""Split → positions of its records in the item table."""
few = examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        form: pets(tmp_path_factory, animals(NUM_TRAIN), format=form, size="8x6", shards=4)
        for form in ("jpeg", "raw")
    }


def test_hosts_without_a_seed_have_one_order(sets: dict[str, Path]) -> None:
    """A random seed on each host would lose some records and repeat others."""
    whole = batch_keys(by_dataset(sets["jpeg"], seed=0))
    for read in (by_dataset, by_load):
        hosts = [read(sets["jpeg"], part=(host, 2), batch_size=5) for host in range(2)]
        assert merged([*map(batch_keys, hosts)]) == whole


USUAL = {
    name: getattr(epoch_order, name)
    for name in ("BLOCK_LENGTH", "_MIN_BLOCK_LENGTH", "_MIN_GROUP_WIDTH", "_GROUP_RECORDS")
}


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a small dataset many groups: blocks of 4 records, groups of 12 records."""
    for name, value in zip(USUAL, (4, 1, 1, 12), strict=True):
        monkeypatch.setattr(epoch_order, name, value)


def split_of(text: str, folder: Path) -> Any:
    if text == "scattered":
        return reader.select(folder, "train")[SCATTERED]
    return reader.even_splits("train", 3)[1] if text == "even" else text


@few
@given(
    form=st.sampled_from(["jpeg", "raw"]), split=st.sampled_from(list(SPLITS)),
    epochs=st.integers(1, 2), batch_size=st.integers(1, 40), num_parts=st.integers(1, 4),
    shuffle=st.sampled_from([True, True, False, None]), drop_remainder=st.booleans(),
    host=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_both_give_the_same_records_in_the_same_order(
    sets: dict[str, Path], form: str, split: str, num_parts: int, **options: Any
) -> None:  # fmt: skip
    """All hosts together read each record once an epoch, unless a remainder is dropped."""
    epochs, drop = options.pop("epochs"), options["drop_remainder"]
    host = options.pop("host") % num_parts
    keys, chosen = stored(sets[form]), split_of(split, sets[form])
    expected = [keys[position] for position in SPLITS[split]]
    lacks = 0 < len(expected) % (options["batch_size"] * num_parts) < num_parts and not drop
    epochs = 1 if lacks else epochs  # several are refused, see below
    one = by_load(sets[form], chosen, part=(host, num_parts), **options)
    read: list[list[str]] = [[] for _ in range(epochs)]
    for part in range(num_parts):
        batches = by_dataset(sets[form], chosen, part=(part, num_parts), epochs=epochs, **options)
        found = batch_keys(batches)
        steps = len(found) // epochs
        for epoch in range(epochs):
            own = found[epoch * steps : (epoch + 1) * steps]
            if part == host:
                assert saved(one)["of"] == saved(batches)["of"], "each resumes the other"
                assert batch_keys(one) == own
            read[epoch] += itertools.chain.from_iterable(own)
        assert len(found) == epochs * (len(one) if part == host else steps)
    for epoch_keys in read:
        assert len(set(epoch_keys)) == len(epoch_keys)
        assert {*epoch_keys} <= {*expected}
        assert drop or len(epoch_keys) == len(expected)
    if options["shuffle"] is False and num_parts == 1 and not drop:
        assert read[0] == expected


@pytest.mark.filterwarnings("ignore:skipped:RuntimeWarning")
@pytest.mark.parametrize(
    ("part", "cache"),
    [((1, 2), ""), thorough((0, 1), "cache")],
)
def test_both_replace_damaged_records_by_the_same_ones(
    sets: dict[str, Path], tmp_path: Path, part: tuple[int, int], cache: str
) -> None:
    """Ends of shards and of the split are damaged too; an epoch keeps its length."""
    folder = shutil.copytree(sets["jpeg"], tmp_path / "set")
    rows = [row for row in written(folder) if row["split"] == "train"]
    last = [i for i in range(len(rows) - 1) if rows[i]["shard"] != rows[i + 1]["shard"]]
    bad = {5, 6, 50, *last, NUM_TRAIN - 1}
    damage(folder, *bad)
    options: dict[str, Any] = {"batch_size": 8, "seed": 1, "shuffle": True}
    config = reader.ReadConfig(on_error="skip", shard_index=part[0], num_shards=part[1])
    cached = tmp_path / cache if cache else False
    one = by_load(folder, read_config=config, cache=cached, **options)
    found = batch_keys(by_dataset(folder, part=part, on_error="skip", epochs=2, **options))
    assert [*batch_keys(one), *batch_keys(one)] == found
    read = [key for keys in found for key in keys]
    sound = batch_keys(by_dataset(sets["jpeg"], part=part, epochs=2, **options))
    assert list(map(len, found)) == list(map(len, sound))
    keys = [row["key"] for row in rows]
    record_bytes = mean_record_bytes(load_manifest(folder))
    starts = epoch_order.lane_shuffle(NUM_TRAIN, record_bytes, 8 * part[1]).starts.tolist()
    stand_in = {}
    for start, stop in itertools.pairwise(starts):
        for number in range(start, stop):
            at = number
            while at in bad:
                at = at + 1 if at + 1 < stop else start
            stand_in[keys[number]] = keys[at]
    assert read == [stand_in[key] for batch in sound for key in batch]


def test_defaults_mean_the_same(sets: dict[str, Path]) -> None:
    """Train is shuffled, in another order in each run."""
    dataset = reader.Dataset(sets["raw"], as_supervised=False)
    runs = [batch_keys(dataset.batches(8, as_supervised=False)) for _ in range(2)]
    assert runs[0] != runs[1]
    state = dataset.batches(8).state_dict()
    assert state["of"] == reader.iterate(sets["raw"], batch_size=8).state_dict()["of"]
    assert dataset.batches(8).state_dict()["seed"] != state["seed"]


def test_more_readers_than_records_are_an_error_of_both(sets: dict[str, Path]) -> None:
    said = "3 records cannot be shared by 4 readers; use at most 3 readers"
    for read in (by_load, by_dataset):
        with pytest.raises(DatasetError, match=said):
            read(sets["raw"], "train[:3]", part=(1, 4), batch_size=2)


@pytest.mark.parametrize("given", [{"num_shards": 5}, {"shard_index": 0}])
def test_one_of_two_numbers_is_an_error_of_every_reader(
    sets: dict[str, Path], given: dict[str, Any]
) -> None:
    """The default of the other one would let all hosts read the same records."""
    dataset, hint = reader.Dataset(sets["raw"]), "; give both of them or neither"
    calls: dict[str, Any] = {
        "reader.ReadConfig: ": lambda: reader.ReadConfig(**given),
        "Dataset.batches: ": lambda: dataset.batches(8, **given),
        "Dataset.loader: ": lambda: dataset.loader(8, **given),
    }
    for where, call in calls.items():
        assert refused(call).startswith(where)
        assert refused(call).endswith(hint)
    assert refused(lambda: dataset.keras(8, **given)).endswith(hint)
    assert refused(lambda: dataset.batches(8, sharding=Rows(), **given)).endswith(hint)
    said = refused(lambda: reader.ReadConfig(shard_index=2, num_shards=2))
    assert said.endswith("shard_index=2 is out of range for num_shards=2; use 0 to 1")
    context = tf.distribute.InputContext(2, 1, 2)
    config: dict[str, Any] = {"num_shards": 2, "shard_index": 1}
    said = refused(lambda: reader.ReadConfig(input_context=context, **config))
    assert said.endswith("input_context already decides num_shards and shard_index; leave out both")
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    options: dict[str, Any] = {"batch_size": 8, "read_config": reader.ReadConfig(**config)}
    said = refused(lambda: reader.distribute(strategy, sets["raw"], **options))
    assert said.endswith("the strategy already decides num_shards and shard_index; leave out both")


class Rows:
    """The attributes of a `jax.sharding.Sharding` of one device."""

    num_devices = 1

    def devices_indices_map(self, shape: tuple[int]) -> dict[Any, Any]:
        return {jax.devices()[0]: (slice(0, shape[0]),)}


@pytest.mark.parametrize(("left", "hosts"), [(1, 2), (3, 4), (3, 5)])
def test_readers_without_a_part_of_the_last_batch_do_not_run_ahead(
    sets: dict[str, Path], left: int, hosts: int
) -> None:
    """After the same number of steps, all readers are at the same global batch."""
    dataset = reader.Dataset(sets["raw"])[: 2 * 4 * hosts + left]
    for epochs in (2, None):
        several: dict[str, Any] = {"num_shards": hosts, "shard_index": 0, "epochs": epochs}
        said = refused(functools.partial(dataset.batches, 4, **several))
        assert f"has {left} record" in said
        assert "give drop_remainder=True or another batch_size, or read with loader" in said
    complete: list[dict[str, Any]] = [{"epochs": 1}, {"epochs": 2, "drop_remainder": True}]
    for options in complete:
        readers = [
            dataset.batches(4, seed=1, num_shards=hosts, shard_index=host, **options)
            for host in range(hosts)
        ]
        for _ in range(2):
            for one in readers:
                next(one)
            states = [one.state_dict() for one in readers]
            assert states == states[:1] * hosts
        for one in readers:
            while next(one, None) is not None:
                pass
        states = [one.state_dict() for one in readers]
        assert states == states[:1] * hosts
        assert (states[0]["epoch"], states[0]["batch"]) == (options["epochs"], 0)


# Several groups of blocks, read in every way


NUM_MANY, MANY_BATCH, SEED = 6_000, 256, 7
STEPS = -(-NUM_MANY // MANY_BATCH)
PLACE = (1, 9)
"""Epoch, and batches of it, before the place where training stops and is resumed."""
GROUP_BYTES = 1 << 19


@pytest.fixture(scope="module", name="many")
def _many(sets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of tiny raw images in 5 shards; the label of a record is its number."""
    folder = tmp_path_factory.mktemp("pets") / "1.0.0"
    (folder / "index").mkdir(parents=True)
    shutil.copy(sets["raw"] / "schema.json", folder)
    common: dict[str, Any] = {
        "image": (bytes(6 * 8 * 3),), "image/height": (6,), "image/width": (8,)
    }  # fmt: skip
    shards = []
    for shard, numbers in enumerate(np.array_split(np.arange(NUM_MANY), 5)):
        framed = [
            frame(encode({**common, "label": (number,), "image/filename": (b"%d" % number,)}))
            for number in numbers.tolist()
        ]
        data = b"".join(framed)
        name = f"pets-train.tfrecord-{shard:05d}-of-00005"
        ends = itertools.accumulate(map(len, framed))
        lines = (f"{end - len(one)} {len(one)}\n" for one, end in zip(framed, ends, strict=True))
        (folder / name).write_bytes(data)
        (folder / "index" / f"{name}.idx").write_text("".join(lines))
        digest = hashlib.sha256(data).hexdigest()
        shards.append(Shard(name=name, num_records=len(framed), num_bytes=len(data), sha256=digest))
    like = load_manifest(sets["raw"])
    sums = {"num_records": NUM_MANY, "num_bytes": sum(one.num_bytes for one in shards)}
    split = like.splits["train"].model_copy(update={**sums, "shards": tuple(shards)})
    counts = {"num_inputs": NUM_MANY, "num_written": NUM_MANY, "num_bytes": sums["num_bytes"]}
    update = {"splits": {"train": split}, "totals": like.totals.model_copy(update=counts)}
    (folder / "manifest.json").write_text(like.model_copy(update=update).dumps())
    return folder


@pytest.fixture(name="large_groups")
def _large_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit groups to 512 KiB of the dataset; the images in a folder cache have fewer bytes."""
    for name, value in {**USUAL, "_GROUP_BYTES": GROUP_BYTES}.items():
        monkeypatch.setattr(epoch_order, name, value)


@pytest.fixture(scope="module", name="expected")
def _expected(many: Path) -> list[Ints]:
    """Return the labels of 3 epochs, computed without reading a record."""
    each = mean_record_bytes(load_manifest(many))
    width = int(GROUP_BYTES / each) // 64
    within = epoch_order.lane_shuffle(
        NUM_MANY, each, MANY_BATCH, block_length=64, group_width=width
    )
    assert len(within.blocks) > 1
    assert min(blocks.num_groups for blocks in within.blocks) > 1
    order = Order(within, GlobalBatches(NUM_MANY, MANY_BATCH), SEED)
    epochs = [order.tags(epoch, 0, NUM_MANY) % NUM_MANY for epoch in range(3)]
    for labels in epochs:
        np.testing.assert_array_equal(np.sort(labels), np.arange(NUM_MANY))
    assert not np.array_equal(epochs[0], epochs[1])
    return epochs


def read_by(name: str, many: Path | str, place: Path) -> Any:
    options: dict[str, Any] = {"batch_size": MANY_BATCH, "seed": SEED}
    if name == "Dataset":
        return reader.Dataset(many).batches(shuffle=True, epochs=3, as_supervised=True, **options)
    if name == "load":
        return reader.load(many, **options)
    if name == "memory":
        return reader.iterate(many, cache="memory", **options)
    if name == "folder":
        options["read_config"] = reader.ReadConfig(image_size=(1, 1))
        return reader.iterate(many, cache=place / "cache", **options)
    return reader.iterate(many, **options)


def labels_of(batches: Any, number: int | None = None) -> list[Any]:
    return [np.asarray(labels) for _, labels in itertools.islice(batches, number)]


def check_batches(name: str, many: Path | str, expected: list[Ints], place: Path) -> None:
    """Compare the batches of 3 epochs, the state in the middle, and the batches after it.

    All states are equal, so each can be loaded by every reader.
    """
    made = read_by(name, many, place)
    at = PLACE[0] * STEPS + PLACE[1]
    every = [
        epoch[i : i + MANY_BATCH] for epoch in expected for i in range(0, NUM_MANY, MANY_BATCH)
    ]
    state = {**read_by("iterate", many, place).state_dict(), "epoch": PLACE[0], "batch": PLACE[1]}
    if name == "load":
        found = [labels for _ in range(3) for labels in labels_of(made)]
    elif name == "Dataset":
        found = labels_of(made, at)
        assert made.state_dict() == state
        found += labels_of(made)
    else:
        found = labels_of(made)
        epoch = iter(made)
        found += labels_of(epoch, PLACE[1])
        assert made.state_dict() == state
        found += [*labels_of(epoch), *labels_of(made)]
    assert list(map(len, found)) == list(map(len, every))
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(every))
    if name == "load":
        return
    again = made if name == "memory" else read_by(name, many, place)
    again.load_state_dict(state)
    left = labels_of(again, STEPS - PLACE[1])
    np.testing.assert_array_equal(np.concatenate(left), expected[PLACE[0]][PLACE[1] * MANY_BATCH :])


@pytest.mark.filterwarnings("ignore::shardprep.reader.Advice")  # a folder's images are small
@pytest.mark.usefixtures("large_groups")
@pytest.mark.parametrize(
    "name", ["folder", *map(thorough, ("load", "iterate", "Dataset", "memory"))]
)
def test_every_reader_and_cache_gives_the_same_batches_and_resumes(
    name: str, many: Path, expected: list[Ints], tmp_path: Path
) -> None:
    check_batches(name, many, expected, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["iterate", "Dataset"])
def test_remote_shards_have_the_same_order(
    name: str, many: Path, expected: list[Ints], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    bucket: Bucket = request.getfixturevalue("bucket")
    request.getfixturevalue("large_groups")
    url = put(bucket, many)
    states = [read_by(name, place, tmp_path).state_dict() for place in (url, many)]
    assert states[0] == states[1], "a run goes on in the folder"
    check_batches(name, url, expected, tmp_path)
