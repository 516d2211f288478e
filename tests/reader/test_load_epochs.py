"""Epochs of the tf.data reader: order, resuming, and shares of hosts and replicas."""

import itertools
import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader import ReadConfig
from tests.reader.datasets import epoch_keys, merged, pets, stored
from tests.support.builders import animals
from tests.support.examples import thorough
from tests.support.processes import Program, run_program

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


def load(folder: Path, split: str | reader.EvenSplit = "train", **options: Any) -> Any:
    options = {"as_supervised": False, "read_config": SMALL_BLOCKS, **options}
    return reader.load(folder, split, **options)


# Mixing


def test_records_of_a_block_stay_in_its_group(sets: Sets) -> None:
    """One group is mixed at a time, which bounds memory."""
    place = {key: i for i, key in enumerate(stored(sets["png"]))}
    config = ReadConfig(interleave_block_length=5, interleave_cycle_length=2)
    dataset = load(sets["png"], "train[:37]", seed=1, read_config=config)
    found = [place[key] for key in epoch_keys(dataset)]
    assert sorted(found) == list(range(37))
    assert found[:5] != sorted(found[:5])
    at = {position: i for i, position in enumerate(found)}
    assert max(abs(at[i] - at[i + 1]) for i in range(0, 35, 5)) < 10


# Resuming


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("raw", {"drop_remainder": True}),
        thorough("png", {"cache": "memory", "read_config": ReadConfig(pad_batches=True)}),
    ],
)
def test_a_saved_state_resumes_with_the_batches_that_were_left(
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
    assert epochs[0] != epochs[1]
    assert all(len(json.dumps(state)) < 100 for state in states.values())
    other = fresh(99)  # the seed comes with the state
    other.load_state_dict(states[0, 4])
    assert [values(batch) for batch in other] == epochs[0][4:]
    assert [values(batch) for batch in other] == epochs[1]
    for done in (1, len(whole)):
        other.load_state_dict(states[1, done])
        assert [values(batch) for batch in other] == epochs[1][done:]


def test_iterate_refuses_repeat(sets: Sets) -> None:
    with pytest.raises(DatasetError, match="leave out repeat"):
        reader.iterate(sets["png"], repeat=2)


# Shares of readers


@pytest.mark.parametrize(("n", "drop"), [(4, True), (7, False), thorough(140, 1)])
def test_even_splits_are_those_of_tfds(sets: Sets, n: int, drop: int) -> None:
    """`Dataset` reads the same records as `load`, which reads one of them too."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(sets["png"]))
    config = tfds.ReadConfig(interleave_cycle_length=1)
    ours = reader.even_splits("train[3:]", n, drop_remainder=bool(drop))
    theirs = tfds.even_splits("train[3:]", n, drop_remainder=bool(drop))
    assert len(ours) == n
    for i in {0, n // 2, n - 1}:
        expected = epoch_keys(builder.as_dataset(split=theirs[i], read_config=config))
        dataset = reader.Dataset(sets["png"], ours[i], decode=False, as_supervised=False)
        assert [one["image/filename"] for one in dataset] == expected
        if (n, i) == (7, 3):
            assert epoch_keys(load(sets["png"], ours[i], shuffle=False)) == expected


def test_an_input_context_gives_the_share_of_a_reader(sets: Sets) -> None:
    contexts = [ReadConfig(input_context=tf.distribute.InputContext(2, i, 4)) for i in range(2)]
    halves = [
        epoch_keys(load(sets["png"], shuffle=False, read_config=config)) for config in contexts
    ]
    replicas = [[half[i : i + 2] for i in range(0, len(half), 2)] for half in halves]
    assert list(itertools.chain(*merged(replicas))) == stored(sets["png"])


@pytest.mark.parametrize("number", [4, thorough(11)])
def test_all_readers_have_the_same_number_of_batches(sets: Sets, number: int) -> None:
    """4 readers of 150 records have 38 or 37, 11 have 14 or 13; the first one has the most."""
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


def test_the_weights_of_a_padded_batch_mark_its_records(sets: Sets) -> None:
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


TWO_DEVICES = """
        import sys, tensorflow as tf
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, two)
        from shardprep import reader
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
"""
EVALUATE = (
    TWO_DEVICES
    + """
        import keras, numpy as np

        def evaluate(folder, strategy):
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
            return found, model.get_weights()

        folder = sys.argv[1]
        found, _ = evaluate(folder, tf.distribute.get_strategy())
        again, (kernel, bias) = evaluate(folder, strategy)  # from the same seed
        every = reader.Dataset(folder)
        ((images, labels),) = every.batches(len(every), shuffle=False)
        scores = images.reshape(len(images), -1) / 255 @ kernel.astype(float) + bias
        losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]
        print(*found, *again, losses.mean(), (scores.argmax(1) == labels).mean())
"""
)


@pytest.mark.thorough
def test_evaluation_of_padded_batches_is_the_mean_of_the_records(sets: Sets) -> None:
    """With one device and with two replicas.

    150 records fill 3 batches of 40 and 30 rows of the last one. One replica has 20 rows of these,
    the other has 10.
    """
    *found, loss, accuracy = map(float, run_program(EVALUATE, sets["png"]).split())
    assert found == pytest.approx([loss, accuracy] * 4, abs=1e-6)


def test_the_mean_weight_over_all_readers_is_one(sets: Sets) -> None:
    """One reader has a batch of padding rows alone."""
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
    """Batches of the graph and of threads. Two virtual devices need a separate process."""
    found = run_program(
        TWO_DEVICES
        + """
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
        from shardprep.reader.tf import decode
        decode._PIXELS_A_CORE, decode._MOST_CORES = 0, {"raw": 1024}
        made, init = [], decode.BatchDecoder.__init__
        decode.BatchDecoder.__init__ = (
            lambda self, *args, **own: (made.append(1), init(self, *args, **own))[1]
        )
        filled = reader.distribute(strategy, sys.argv[1], batch_size=16)
        results = [strategy.experimental_local_results(images) for images, _ in filled]
        sizes = [int(one.shape[0]) for batch in results for one in batch]
        print(set(sizes), len(sizes), len(made))
        """,
        sets["raw"],
    )
    assert found.splitlines() == ["144 144 {8} 18", "150 150 {8} 20", "{8} 18 1"]


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


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
