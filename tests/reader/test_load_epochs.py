"""Epochs of the reader: how well they are mixed, where they go on, who reads what of them."""

from __future__ import annotations

import itertools
import json
import socket
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader import ReadConfig
from tests.reader.datasets import pets, stored
from tests.support.builders import animals
from tests.support.examples import thorough
from tests.support.processes import Program, run_program

if TYPE_CHECKING:
    from pathlib import Path

NUM_TRAIN = 150
Sets = dict[str, "Path"]


@pytest.fixture(scope="module", name="sets")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Return one source as PNG and raw, 4 shards."""
    members = animals(NUM_TRAIN)
    return {
        form: pets(tmp_path_factory, members, format=form, size="8x6", shards=4)
        for form in ("png", "raw")
    }


SMALL_BLOCKS = ReadConfig(interleave_block_length=4, interleave_cycle_length=5)


def keys(dataset: Any) -> list[str]:
    found = (
        np.atleast_1d(one["image/filename"]) for one in tf.data.Dataset.as_numpy_iterator(dataset)
    )
    return [key.decode() for batch in found for key in batch]


def batches(dataset: Any) -> list[list[bytes]]:
    """Return the keys of each batch."""
    return [one["image/filename"].numpy().tolist() for one in dataset]


def load(folder: Path, split: str | reader.EvenSplit = "train", **options: Any) -> Any:
    options = {"as_supervised": False, "read_config": SMALL_BLOCKS, **options}
    return reader.load(folder, split, **options)


# Mixing


@pytest.mark.thorough
def test_an_epoch_is_mixed_over_all_shards(sets: Sets) -> None:
    place = {key: i for i, key in enumerate(stored(sets["png"]))}
    every = [place[key] for key in keys(load(sets["png"], seed=0, repeat=4))]
    for start in range(0, 4 * NUM_TRAIN, NUM_TRAIN):
        found = every[start : start + NUM_TRAIN]
        assert sorted(found) == list(range(NUM_TRAIN))
        assert abs(np.corrcoef(found, range(NUM_TRAIN))[0, 1]) < 5 / np.sqrt(NUM_TRAIN)
        assert np.mean(np.abs(np.diff(found)) == 1) < 0.25  # in a group of 20, of blocks of 4


def test_records_of_a_block_stay_in_its_group(sets: Sets) -> None:
    """A group is all that is mixed at a time, which holds memory down."""
    place = {key: i for i, key in enumerate(stored(sets["png"]))}
    config = ReadConfig(interleave_block_length=5, interleave_cycle_length=2)
    dataset = load(sets["png"], "train[:37]", seed=1, read_config=config)
    found = [place[key] for key in keys(dataset)]
    assert sorted(found) == list(range(37))
    assert found[:5] != sorted(found[:5])
    at = {position: i for i, position in enumerate(found)}
    assert max(abs(at[i] - at[i + 1]) for i in range(0, 35, 5)) < 10


def test_the_order_is_that_of_the_seed_whatever_runs_in_parallel(sets: Sets) -> None:
    orders = []
    for calls, threads in ((1, 1), (8, 2)):
        config = ReadConfig(
            interleave_block_length=4,
            num_parallel_calls_for_decode=calls,
            private_threadpool_size=threads,
        )
        tf.random.set_seed(calls)  # not even TensorFlow's own seed has a say
        orders.append(keys(load(sets["png"], seed=5, repeat=2, read_config=config)))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("shuffle", [True, 20])
@pytest.mark.thorough
def test_the_order_is_the_same_from_every_cache(sets: Sets, tmp_path: Path, shuffle: int) -> None:
    options: dict[str, Any] = {"seed": 3, "batch_size": 16, "repeat": 2, "shuffle": shuffle}
    plain = batches(load(sets["png"], **options))
    assert batches(load(sets["png"], cache="memory", **options)) == plain
    assert batches(load(sets["png"], cache=tmp_path, **options)) == plain
    assert batches(load(sets["raw"], **options)) == plain


# Going on


@pytest.mark.parametrize(
    ("form", "options"),
    [
        thorough("png", {}),
        ("raw", {"shuffle": 20}),
        thorough("raw", {"shuffle": False, "drop_remainder": True}),
        thorough("png", {"cache": "memory", "read_config": ReadConfig(pad_batches=True)}),
    ],
)
def test_a_saved_place_goes_on_with_the_batches_that_were_left(
    sets: Sets, form: str, options: dict[str, Any]
) -> None:
    def fresh(seed: int) -> Any:
        return reader.iterate(
            sets[form], batch_size=16, seed=seed,
            **{"read_config": SMALL_BLOCKS, "shuffle": True, **options},
        )  # fmt: skip

    def values(batch: Any) -> list[Any]:
        return [one.numpy().tolist() for one in batch]

    whole = fresh(3)
    epochs: list[list[Any]] = [[], []]
    states: dict[tuple[int, int], dict[str, Any]] = {}
    for epoch in epochs:
        for batch in whole:
            epoch.append(values(batch))
            state = whole.state_dict()
            states[state["epoch"], state["batch"]] = json.loads(json.dumps(state))
    assert [len(epoch) for epoch in epochs] == [len(whole)] * 2
    assert (epochs[0] == epochs[1]) == (options.get("shuffle") is False)
    assert all(len(json.dumps(state)) < 100 for state in states.values())
    other = fresh(99)  # the seed comes with the state
    other.load_state_dict(states[0, 4])
    assert [values(batch) for batch in other] == epochs[0][4:]
    assert [values(batch) for batch in other] == epochs[1]
    for done in (1, len(whole)):
        other.load_state_dict(states[1, done])
        assert [values(batch) for batch in other] == epochs[1][done:]


def test_a_state_of_something_else_is_refused(sets: Sets) -> None:
    saved = reader.iterate(sets["png"], batch_size=16).state_dict()
    changes: list[dict[str, Any]] = [{"batch_size": 8}, {"shuffle": False}, {"split": "train[:80]"}]
    for change in changes:
        other = reader.iterate(sets["png"], **{"batch_size": 16, **change})
        with pytest.raises(DatasetError, match="load it with the dataset"):
            other.load_state_dict(saved)


def test_an_epoch_a_loop_is_not_repeated(sets: Sets) -> None:
    with pytest.raises(DatasetError, match="leave out repeat"):
        reader.iterate(sets["png"], repeat=2)


# Who reads what


@pytest.mark.parametrize(
    ("n", "drop"),
    [
        pytest.param(1, False, marks=pytest.mark.thorough),
        pytest.param(4, False, marks=pytest.mark.thorough),
        (4, True),
        (7, False),
        pytest.param(140, True, marks=pytest.mark.thorough),
    ],
)
def test_even_splits_are_those_of_tfds(sets: Sets, n: int, drop: int) -> None:
    """To `Dataset`, which reads the same records as `load`; one is loaded as well."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(sets["png"]))
    config = tfds.ReadConfig(interleave_cycle_length=1)
    ours = reader.even_splits("train[3:]", n, drop_remainder=bool(drop))
    theirs = tfds.even_splits("train[3:]", n, drop_remainder=bool(drop))
    assert len(ours) == n
    for i in {0, n // 2, n - 1}:
        expected = keys(builder.as_dataset(split=theirs[i], read_config=config))
        dataset = reader.Dataset(sets["png"], ours[i], decode=False, as_supervised=False)
        assert [one["image/filename"] for one in dataset] == expected
        if (n, i) == (7, 3):
            assert keys(load(sets["png"], ours[i], shuffle=False)) == expected


def test_readers_share_the_records(sets: Sets) -> None:
    """More readers than shards as well: none is idle, none has a record more than one."""
    parts = []
    for i in range(5):
        config = ReadConfig(num_shards=5, shard_index=i, interleave_block_length=4)
        parts.append(keys(load(sets["png"], "train[:147]", seed=1, read_config=config)))
    assert sorted(itertools.chain.from_iterable(parts)) == sorted(stored(sets["png"])[:147])
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("number", [4, thorough(11)])
def test_readers_have_as_many_batches(sets: Sets, number: int) -> None:
    """4 readers of 150 records have 38 or 37, 11 have 14 or 13; the first has most, the last least.

    A reader's batches follow from its own records and from the most that one has.
    """
    size = 150 // number
    for pad in (False, True):
        found = []
        for i in (0, number - 1):
            config = ReadConfig(num_shards=number, shard_index=i, pad_batches=pad)
            dataset = reader.load(
                sets["raw"],
                batch_size=size,
                shuffle=False,
                drop_remainder=not pad,
                read_config=config,
            )
            found.append([len(one[0]) for one in dataset])
            assert dataset.cardinality() == len(found[-1])
        assert found == [[size] * (2 if pad else 1)] * 2


def test_an_input_context_says_who_reads_what(sets: Sets) -> None:
    parts = []
    for i in range(2):
        context = tf.distribute.InputContext(2, i, 4)
        config = ReadConfig(input_context=context)
        parts.append(keys(load(sets["png"], shuffle=False, read_config=config)))
    assert list(itertools.chain.from_iterable(parts)) == stored(sets["png"])


@pytest.mark.parametrize(("index", "number"), [(2, 2), (-1, 2), (0, 0), (0, 151)])
def test_a_reader_that_cannot_be_is_refused(sets: Sets, index: int, number: int) -> None:
    with pytest.raises(DatasetError):
        load(sets["png"], read_config=ReadConfig(shard_index=index, num_shards=number))


def test_a_padded_batch_says_what_is_real(sets: Sets) -> None:
    config = ReadConfig(pad_batches=True)
    options: dict[str, Any] = {"batch_size": 40, "shuffle": False}
    plain = list(reader.load(sets["png"], **options).as_numpy_iterator())
    for form in ("png", "raw"):
        padded = list(reader.load(sets[form], read_config=config, **options).as_numpy_iterator())
        assert [np.sum(weights > 0) for *_, weights in padded] == [40, 40, 40, 30]
        assert np.unique([weights for *_, weights in padded]).tolist() == [0, np.float32(160 / 150)]
        for (images, labels, weights), (real, classes) in zip(padded, plain, strict=True):
            assert len(images) == len(labels) == 40
            assert np.array_equal(images[weights > 0], real)
            assert np.array_equal(labels[weights > 0], classes)
            assert not images[weights == 0].any()
    features = reader.load(
        sets["png"], read_config=config, as_supervised=False, **options
    ).as_numpy_iterator()
    *_, (last, weights) = features
    assert [bool(key) for key in last["image/filename"]] == [bool(one) for one in weights]


EVALUATE = """
        import keras, numpy as np
        from shardprep import reader

        def evaluated(folder, strategy):
            # Loss and accuracy as Keras says them, in `fit` as well, and as NumPy does.
            keras.utils.set_random_seed(1)
            with strategy.scope():
                model = keras.Sequential(
                    [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(),
                     keras.layers.Dense(2)]
                )
                model.compile(
                    keras.optimizers.SGD(0.0), weighted_metrics=["accuracy"],
                    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                )
            train = reader.distribute(strategy, folder, batch_size=16, shuffle=False)
            valid = reader.distribute(
                strategy, folder, batch_size=40, shuffle=False,
                read_config=reader.ReadConfig(pad_batches=True),
            )
            assert (len(train), len(valid)) == (9, 4)
            found = model.evaluate(valid, verbose=0)
            run = model.fit(train, validation_data=valid, verbose=0)
            assert int(model.optimizer.iterations.numpy()) == 9
            found += [run.history["val_loss"][0], run.history["val_accuracy"][0]]
            every = reader.Dataset(folder)
            ((images, labels),) = every.batches(len(every), shuffle=False)
            kernel, bias = (one.astype(float) for one in model.get_weights())
            scores = images.reshape(len(images), -1) / 255 @ kernel + bias
            losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]
            right = scores.argmax(1) == labels
            return [*found, losses.mean(), right.mean()]
"""


@pytest.mark.thorough
def test_evaluation_of_padded_batches_is_the_mean_of_the_records(sets: Sets) -> None:
    """150 in 4 batches of 40: 10 rows of the last one are no records."""
    names: dict[str, Any] = {}
    exec(textwrap.dedent(EVALUATE), names)  # as the program below has it
    for strategy in (tf.distribute.get_strategy(), tf.distribute.MirroredStrategy(["CPU:0"])):
        *found, loss, accuracy = names["evaluated"](sets["png"], strategy)
        assert found == pytest.approx([loss, accuracy] * 2, abs=1e-6)


@pytest.mark.thorough
def test_replicas_evaluate_the_mean_of_the_records(sets: Sets) -> None:
    """Batches of 20 a replica: the last of one is full, of the other half a batch of nothing."""
    found = run_program(
        EVALUATE
        + """
        import sys, tensorflow as tf
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        print(*evaluated(sys.argv[1], strategy))
        """,
        sets["png"],
    )
    *said, loss, accuracy = map(float, found.split())
    assert said == pytest.approx([loss, accuracy] * 2, abs=1e-6)


def test_weights_are_one_in_the_mean_of_all_readers(sets: Sets) -> None:
    """Though one of these has a batch of nothing but zeros."""
    weights = []
    for i in range(3):
        config = ReadConfig(num_shards=3, shard_index=i, pad_batches=True)
        dataset = reader.load(sets["raw"], "train[:148]", batch_size=7, read_config=config)
        weights += [np.asarray(one) for *_, one in dataset]
    every = np.concatenate(weights)
    assert len(weights) == 3 * 8
    assert np.sum(every > 0) == 148
    assert every.mean() == pytest.approx(1, abs=1e-6)


@pytest.mark.thorough
def test_replicas_of_one_host_share_every_record(sets: Sets) -> None:
    """Two virtual devices, in a process of their own: they cannot be made in this one."""
    found = run_program(
        """
        import sys, tensorflow as tf
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two)
        from shardprep import reader
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        for pad in (False, True):
            config = reader.ReadConfig(pad_batches=pad)
            dataset = reader.distribute(
                strategy, sys.argv[1], batch_size=16, shuffle=False, as_supervised=False,
                read_config=config,
            )
            keys, sizes = [], []
            for element in dataset:
                for one in strategy.experimental_local_results(element["image/filename"] if not pad
                                                               else element[0]["image/filename"]):
                    sizes.append(int(one.shape[0]))
                    keys += [key for key in one.numpy().tolist() if key]
            print(len(keys), len(set(keys)), set(sizes), len(sizes))
        """,
        sets["raw"],
    )
    assert found.splitlines() == ["144 144 {8} 18", "150 150 {8} 20"]


@pytest.mark.thorough
def test_hosts_of_a_strategy_read_every_record_once(sets: Sets) -> None:
    ports = [free_port() for _ in range(2)]
    program = """
        import sys, tensorflow as tf
        from shardprep import reader
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        config = reader.ReadConfig(pad_batches=True)
        dataset = reader.distribute(
            strategy, sys.argv[1], batch_size=16, as_supervised=False, shuffle=True, seed=1,
            read_config=config,
        )
        local = strategy.experimental_local_results
        batches = [local(one[0]["image/filename"])[0].numpy().tolist() for one in dataset]
        print(len(batches), *(key.decode() for batch in batches for key in batch if key))
    """
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    hosts = [
        Program(program, sets["raw"], TF_CONFIG=json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": i}}))
        for i in range(2)
    ]  # fmt: skip
    said = [host.wait().stdout.split() for host in hosts]
    assert [one[0] for one in said] == ["10", "10"]
    assert Counter(said[0][1:] + said[1][1:]) == Counter(stored(sets["raw"]))


def test_a_batch_that_replicas_cannot_share_is_refused(sets: Sets) -> None:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with pytest.raises(DatasetError, match="use a multiple of 1"):
        reader.distribute(strategy, sets["png"])


@pytest.mark.thorough
def test_a_service_reads_every_record_once(sets: Sets) -> None:
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target
    workers = [
        tf.data.experimental.service.WorkerServer(
            tf.data.experimental.service.WorkerConfig(address.split("://")[1])
        )
        for _ in range(2)
    ]
    config = ReadConfig(service=address, interleave_block_length=4, interleave_cycle_length=2)
    for form, options in (
        ("png", {"shuffle": False}), ("raw", {"shuffle": False}), ("png", {"repeat": 2}),
    ):  # fmt: skip
        dataset = load(sets[form], batch_size=16, read_config=config, **options)
        times = options.get("repeat", 1)
        found = batches(dataset)
        assert dataset.cardinality() == len(found) == -(-NUM_TRAIN * times // 16)
        assert Counter(key for batch in found for key in batch) == Counter(
            key.encode() for key in stored(sets[form]) * times
        )
    with pytest.warns(reader.Advice, match="repeat=True"):
        load(sets["png"], batch_size=16, read_config=config)
    del workers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give batch_size"),
        ({"batch_size": 4, "cache": "memory"}, "give cache a folder"),
        ({"batch_size": 4, "shuffle": 20}, "use shuffle=True or False"),
    ],
)
def test_what_a_service_cannot_do_is_refused(
    sets: Sets, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(DatasetError, match=said):
        load(sets["png"], read_config=ReadConfig(service="grpc://127.0.0.1:1"), **options)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
