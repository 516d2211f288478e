"""Every argument of the readers is checked when it is given: a wrong one is one line, at once."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import pydoc
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader import augment
from shardprep.reader.config import BatchOptions, ReadConfig, Request
from shardprep.reader.order.order import Batching, check_state
from shardprep.reader.validators import Arguments
from shardprep.storage.url import ObjectUrl
from tests.reader.datasets import pets, refused
from tests.support.builders import animals
from tests.support.examples import texts

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TRAIN = 24


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets(tmp_path_factory, animals(NUM_TRAIN), size="8x8", shards=2)


COUNTS: tuple[Any, ...] = (0, -1, "64", 2.5, True, False, [8], 1 << 70, float("nan"), np.bool_(1))
FLAGS: tuple[Any, ...] = (0, 1, "no", None, [])
WEIGHTS: tuple[Any, ...] = ("even", 3, True, {"cat": 1.0}, b"balanced")
SEEDS: tuple[Any, ...] = ("a", 1.5, True, [1], b"1")
CROPS: tuple[Any, ...] = (224, "8x8", (8,), (0, 8), (8.0, 8.0), True, {"size": (8, 8)})
LOAD: dict[str, tuple[Any, ...]] = {
    "path": (None, 3, "", b"folder", "a\0b", ["a"]),
    "split": (None, 3, "", ["train", "test"], ("train",), {"train": 1}, b"train"),
    "batch_size": COUNTS,
    "shuffle": (0, -1, "yes", 2.5, [1], 1 << 70),
    "weights": WEIGHTS,
    "seed": SEEDS,
    "repeat": (0, -1, "2", 1.5, None),
    "cache": (True, None, "", "Memory", "AUTO", "none", "True", 3, b"memory", "a\0b", ["memory"]),
    "random_resized_crop": CROPS,
    "center_crop": CROPS,
    "augment": (
        "flip",
        3,
        [print],
        lambda: 0,
        lambda images, label: (images, label),
        lambda images, seed, key: (images, seed, key),
        lambda *, images: images,
        type("Flip", (), {"call": lambda self, images, label: (self, images, label)})(),
    ),
    "dtype": ("float16", "UINT8", None, np.uint8, float),
    "as_supervised": FLAGS,
    "box_format": ("XYXY", "rel_center_yxhw", "coco", None, ("x", "y"), 4),
    "max_boxes": (0, -1, "64", 2.5, True),
    "drop_remainder": FLAGS,
    "read_config": ({}, "raise", 3, {"num_shards": 2}),
}
CONFIG: dict[str, tuple[Any, ...]] = {
    "interleave_cycle_length": (0, -1, "16", 1.5, True),
    "interleave_block_length": (0, -1, "16", 1.5, True),
    "num_parallel_calls_for_interleave_files": (0, -2, "1", 1.5, True),
    "num_parallel_calls_for_decode": (0, -2, "1", 1.5, True),
    "shuffle_reshuffle_each_iteration": FLAGS,
    "image_size": (224, "8x8", (8,), (8, 8, 3), (0, 8), (8.0, 8.0), ("8", "8")),
    "num_shards": (0, -1, "2", 1.5, None, True),
    "shard_index": (-1, 1, 7, "0", 0.5, None, False),
    "input_context": (3, "context", object()),
    "pad_batches": FLAGS,
    "on_error": ("ignore", "Skip", None, 3, True),
    "service": ("", 3, ["grpc://a:1"], b"grpc://a:1"),
    "staging_bytes": (-1, "1e9", 1e9, True),
    "cache_ram_share": (-0.1, 1.1, "0.5", None, True, float("nan")),
    "private_threadpool_size": (0, -1, "4", 1.5, True),
    "assert_cardinality": FLAGS,
    "options": (3, {}, "threading"),
}
DATASET: dict[str, tuple[Any, ...]] = {
    "path": LOAD["path"],
    "split": LOAD["split"],
    "as_supervised": FLAGS,
    "decode": FLAGS,
    "transform": ("flip", 3, [print]),
    "verify_crc": FLAGS,
}
BATCHES: dict[str, tuple[Any, ...]] = {
    "batch_size": (*COUNTS, None),
    "shuffle": (0, 2000, "yes"),
    "weights": WEIGHTS,
    "seed": SEEDS,
    "epochs": (0, -1, "2", 1.5, True, float("inf")),
    "drop_remainder": FLAGS,
    "as_supervised": FLAGS,
    "box_format": LOAD["box_format"],
    "max_boxes": LOAD["max_boxes"],
    "random_resized_crop": CROPS,
    "center_crop": CROPS,
    "buckets": ({}, [(8, 8)], {(8, 8): "train"}, {8: None}, True),
    "ragged": FLAGS,
    "num_shards": (0, -1, "2", 1.5, None, True),
    "shard_index": (-1, 1, 7, "0", 0.5, None, False),
    "on_error": ("ignore", "Skip", None, 3, print),
    "num_threads": (0, -1, "2", 1.5, True),
    "prefetch": (-1, "2", 1.5, True),
}
SPLIT: dict[str, tuple[Any, ...]] = {
    "index": (-1, 5, "0", 1.0, None),
    "number": (0, -1, "5", 5.0),
    "split": (None, 3, ["train"]),
    "drop_remainder": FLAGS,
}

DECLARED: dict[str, Any] = {
    "reader.load": Request, "reader.ReadConfig": ReadConfig, "Dataset.batches": BatchOptions,
    "reader.EvenSplit": reader.EvenSplit, "reader.Dataset": reader.Dataset.__init__,
}  # fmt: skip


def cases(table: dict[str, tuple[Any, ...]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r:.20}")
        for name, values in table.items()
        for value in values
    ]


def test_the_signature_of_each_call_shows_what_it_takes() -> None:
    """With types and defaults, as `help` prints it; each is told of in its words."""
    calls: dict[str, Any] = {
        "reader.load": reader.load, "reader.Dataset": reader.Dataset,
        "Dataset.batches": reader.Dataset.batches, "reader.ReadConfig": reader.ReadConfig,
        "reader.EvenSplit": reader.EvenSplit,
    }  # fmt: skip
    for where, call in calls.items():
        kinds = Arguments(where, DECLARED[where]).kinds
        assert [*kinds] == [n for n in inspect.signature(call).parameters if n != "self"]
        assert kinds.keys() == MADE[where][0].keys(), "a wrong value of each is refused below"
    assert {one.name for one in fields(reader.ReadConfig)} == {*CONFIG}
    told: tuple[Any, ...] = (
        (reader.load, LOAD), (reader.Dataset.batches, BATCHES), (reader.ReadConfig, CONFIG),
    )  # fmt: skip
    for call, names in told:
        assert all(
            f"            {name}: " in str(call.__doc__) or f"        {name}: " in str(call.__doc__)
            for name in names
        )
    assert "batch_size: int | None = None" in pydoc.render_doc(reader.load).replace(
        "Optional[int]", "int | None"
    )
    assert [*inspect.signature(reader.distribute).parameters] == ["strategy", *LOAD]


def test_items_are_pairs_by_default_in_every_call(folder: Path) -> None:
    calls = (
        reader.load, reader.iterate, reader.distribute, reader.Dataset, reader.Dataset.batches,
    )  # fmt: skip
    for call in calls:
        assert inspect.signature(call).parameters["as_supervised"].default is True, call
    image, label = reader.Dataset(folder)[0]
    loaded, same = next(iter(reader.load(folder, shuffle=False)))
    assert np.array_equal(image, loaded)
    assert label == int(same)


MADE: dict[str, tuple[dict[str, tuple[Any, ...]], Callable[[Path, dict[str, Any]], object]]] = {
    "reader.load": (LOAD, lambda _, given: reader.load(**{"path": "nowhere", **given})),
    "reader.iterate": (LOAD, lambda _, given: reader.iterate(**{"path": "nowhere", **given})),
    "reader.ReadConfig": (CONFIG, lambda _, given: reader.ReadConfig(**given)),
    "reader.Dataset": (DATASET, lambda _, given: reader.Dataset(**{"path": "nowhere", **given})),
    "Dataset.batches": (
        BATCHES,
        lambda folder, given: reader.Dataset(folder).batches(**{"batch_size": 8, **given}),
    ),
    "reader.EvenSplit": (
        SPLIT,
        lambda _, given: reader.EvenSplit(**{"split": "train", "index": 0, "number": 5, **given}),
    ),
}
"""Call → wrong values of its arguments, and the call with some of them."""


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        pytest.param(where, *case.values, id=f"{where}: {case.id}")
        for where, (table, _) in MADE.items()
        for case in cases(table)
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_opened(
    folder: Path, where: str, name: str, value: Any
) -> None:
    said = refused(lambda: MADE[where][1](folder, {name: value}))
    assert said.startswith(f"{where}: {name}=")
    assert "; use " in said or "? use " in said or "; count from" in said


def test_distribute_and_even_splits_refuse_what_they_cannot_use() -> None:
    assert refused(lambda: reader.distribute(3, "nowhere")).startswith(
        "reader.distribute: strategy=3"
    )
    for n in (0, "5", 2.5, None):
        said = refused(lambda n=n: reader.even_splits("train", n))  # type: ignore[misc]
        assert said.startswith("reader.even_splits: n=")


def test_an_argument_that_there_is_not_is_named_with_those_there_are(folder: Path) -> None:
    calls: list[Callable[..., Any]] = [
        reader.load, reader.iterate, reader.Dataset, reader.Dataset(folder).batches,
    ]  # fmt: skip
    for call in calls:
        said = refused(lambda call=call: call("nowhere", nonsense=3))  # type: ignore[misc]
        assert "'nonsense'; it takes " in said
    assert "missing a required argument: 'path'" in refused(reader.load)  # type: ignore[arg-type]


def public_calls() -> list[Any]:
    """Return every function and class that a user calls, and their methods with options."""
    of_modules = [getattr(module, name) for module in (reader, augment) for name in module.__all__]
    of_selections = ["sample", "per_class", "save", "load"]
    left_out = (reader.Advice, reader.BadRecord, reader.Selection, augment.Layer)  # made by others
    return [
        *(one for one in of_modules if callable(one) and one not in left_out),
        reader.Dataset.batches,
        *(getattr(reader.Selection, name) for name in of_selections),
    ]


@pytest.mark.parametrize("call", public_calls(), ids=lambda call: call.__qualname__)
def test_a_misspelt_argument_of_any_call_is_one_line_with_the_name_that_was_meant(
    call: Any,
) -> None:
    """The name is one of the call, with a letter left out; it comes before all other checks."""
    names = [name for name in inspect.signature(call).parameters if name != "self"]
    for name in names:
        wrong = name[:1] + name[2:] if len(name) > 3 else f"{name}{name}x"
        said = refused(functools.partial(call, **{wrong: 1}))
        assert f"got an unexpected keyword argument '{wrong}'; " in said
        assert (f"did you mean {name}?" in said) == (len(name) > 3), said


def test_an_option_of_another_call_is_named_with_that_call(folder: Path) -> None:
    for call in (reader.load, reader.iterate, reader.distribute):
        said = refused(lambda call=call: call(folder, image_size=(8, 8)))  # type: ignore[misc]
        assert said.endswith("; give read_config=reader.ReadConfig(image_size=…)")
    said = refused(lambda: reader.Dataset(folder, batch_size=8))  # type: ignore[call-arg]
    assert said.endswith("; give it to batches: Dataset(…).batches(batch_size=…)")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"cache": "ram"}, "memory"), ({"cache": "RAM"}, "memory"), ({"cache": "memroy"}, "memory"),
        ({"cache": "Auto"}, "auto"), ({"dtype": "UINT8"}, "uint8"),
        ({"dtype": "float16"}, "float32"), ({"weights": "balance"}, "balanced"),
        ({"box_format": "xyhw"}, "xywh"),
    ],
    ids=str,
)  # fmt: skip
def test_a_misspelt_value_is_one_line_with_the_value_that_was_meant(
    given: dict[str, Any], meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(lambda: reader.load("nowhere", **given))
    assert f"; did you mean '{meant}'? use " in said
    assert not [*tmp_path.iterdir()]


@pytest.mark.thorough
def test_the_ops_are_there_with_the_reader_alone() -> None:
    program = "from shardprep import reader; print(reader.augment.Flip(horizontal=1).horizontal)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.stdout == b"1.0\n"


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ({"batch_size": "9" * 1_000_000}, "batch_size='999"),
        ({"split": ["train"] * 1_000_000}, "split=['train', "),
        ({"batch_size": 10**5000}, "batch_size=<int>; use "),  # Python does not write it
        ({"random_resized_crop": itertools.count(1)}, "random_resized_crop=count("),
    ],
    ids=["text", "list", "number", "what has no end"],
)
def test_a_value_that_is_too_long_is_not_all_shown(option: dict[str, Any], shown: str) -> None:
    said = refused(lambda: reader.load("x", **option))
    assert shown in said
    assert len(said) < 300


@pytest.mark.parametrize("split", ["train[:110%]", "train[-101%:]", f"train[:{'9' * 5000}]"])
def test_a_slice_beyond_all_percent_is_refused_by_both_readers(folder: Path, split: str) -> None:
    for call in (reader.load, reader.Dataset):
        assert "is not a split; " in refused(lambda call=call: call(folder, split))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("augment", "returned"),
    [
        (lambda _: None, "None"),
        (lambda _, labels: (None, labels), "a tuple of 2"),
        (lambda images, labels: (images, labels, labels), "a tuple of 3"),
        (lambda images: [images], "a list of 1"),
    ],
)
@pytest.mark.parametrize("as_supervised", [True, False])
def test_an_augmentation_that_returns_no_images_is_refused_by_the_call(
    folder: Path, augment: Any, returned: str, *, as_supervised: bool
) -> None:
    said = refused(
        lambda: reader.load(folder, batch_size=8, augment=augment, as_supervised=as_supervised)
    )
    assert said.startswith("augment=<function ")
    assert f": returned {returned}; let it return images" in said


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts() | st.binary()
        | st.sampled_from([print, object(), np.int64(3), np.zeros(3), range(9), int]),
        lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
        | st.dictionaries(texts(), inner, max_size=2),
        max_leaves=4,
    )
)  # fmt: skip
def test_whatever_is_given_is_taken_or_refused_in_a_line(value: Any) -> None:
    for where, declared in DECLARED.items():
        arguments = Arguments(where, declared)
        for name in arguments.kinds:
            try:
                arguments.converted({name: value})
            except DatasetError as error:
                said = str(error)
                assert said.startswith(f"{where}: {name}=")
                assert said.isprintable() or not repr(value).isprintable()
                assert "\n" not in said
                assert len(said) < 600
    with contextlib.suppress(DatasetError):
        one = Batching(1, drop_remainder=False, window=None, num_batches=1)
        check_state("Dataset.batches.load_state_dict", value, "", one)


# What is right


def test_the_integers_of_numpy_are_as_good_as_those_of_python(folder: Path) -> None:
    eight, two, seed = np.int64(8), np.uint8(2), np.int32(3)
    plain = reader.Dataset(folder).batches(8, shuffle=True, seed=3, epochs=2)
    same = reader.Dataset(folder).batches(
        eight, shuffle=np.bool_(1), seed=seed, epochs=two  # type: ignore[arg-type]
    )  # fmt: skip
    assert json.dumps(same.state_dict()) == json.dumps(plain.state_dict())
    assert [labels.tolist() for _, labels in same] == [labels.tolist() for _, labels in plain]
    config = reader.ReadConfig(image_size=[eight, eight], num_shards=two)  # type: ignore[arg-type]
    assert config == reader.ReadConfig(image_size=(8, 8), num_shards=2)
    state = reader.iterate(folder, batch_size=eight, seed=seed).state_dict()  # type: ignore[arg-type]
    assert json.dumps(state) == json.dumps(
        reader.iterate(folder, batch_size=8, seed=3).state_dict()
    )


def test_an_address_of_ours_is_a_path() -> None:
    """As `Dataset.path` of a set in object storage."""
    url = ObjectUrl.parse("s3://bucket/pets")
    arguments = Arguments("reader.Dataset", reader.Dataset.__init__)
    assert arguments.converted({"path": url}) == {"path": url}


def test_a_number_of_calls_may_be_that_of_tf_data_itself() -> None:
    assert reader.ReadConfig(num_parallel_calls_for_decode=-1) == reader.ReadConfig()


def test_a_folder_may_have_the_name_of_a_cache_if_it_is_a_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(list(reader.load(folder, batch_size=8, cache="./Memory"))) == 3
    assert (tmp_path / "Memory").is_dir()


def test_a_tilde_is_the_home_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = folder.parents[1]
    monkeypatch.setenv("HOME", str(home))
    near = f"~/{folder.relative_to(home)}"
    monkeypatch.chdir(tmp_path)
    assert len(reader.Dataset(Path(near))) == len(reader.Dataset(near)) == NUM_TRAIN
    assert len(list(reader.load(near, batch_size=8, cache="~/decoded"))) == 3
    assert (home / "decoded").is_dir()
    assert not [*tmp_path.iterdir()]


def test_labels_may_be_asked_for_by_name_alone(folder: Path) -> None:
    def one_more(images: Any, *, labels: Any) -> Any:
        return images, labels + 1

    options: dict[str, Any] = {"batch_size": NUM_TRAIN, "shuffle": False}
    ((_, plain),) = reader.load(folder, **options)
    ((_, more),) = reader.load(folder, augment=one_more, **options)
    assert np.array_equal(more, plain + 1)


def test_a_batch_larger_than_the_set_takes_the_memory_of_the_set(folder: Path) -> None:
    ((images, _),) = reader.Dataset(folder).batches(10**12)
    assert len(images) == NUM_TRAIN


# States

STATES: tuple[Any, ...] = (None, 3, [], "state", {}, {"epoch": 0, "batch": 0})
PLACES: dict[str, tuple[Any, ...]] = {
    "batch": (-1, 10**9, 4, "3", 1.0, None, True),
    "epoch": (-1, 10**9 + 2**40, "3", 1.0, None, True),
    "seed": ("3", 1.5, None, True),
}


@pytest.mark.parametrize("kind", ["iterate", "batches"])
@pytest.mark.parametrize(
    ("name", "value"),
    [*cases(PLACES), *(pytest.param("", state, id=repr(state)) for state in STATES)],
)
def test_what_is_no_state_is_refused_and_the_place_stays(
    folder: Path, kind: str, name: str, value: Any
) -> None:
    one = made(folder, kind)
    before = one.state_dict()
    state = {**before, name: value} if name else value
    said = refused(lambda: one.load_state_dict(state))
    assert f"load_state_dict: {name and f'{name}='}" in said
    assert one.state_dict() == before


def test_a_state_after_the_last_epoch_that_there_is_is_refused(folder: Path) -> None:
    three = reader.Dataset(folder).batches(8, epochs=3)
    for _ in three:
        pass
    two = reader.Dataset(folder).batches(8, epochs=2)
    assert "epoch=3 of 2" in refused(lambda: two.load_state_dict(three.state_dict()))


def made(folder: Path, kind: str) -> Any:
    if kind == "iterate":
        return reader.iterate(folder, batch_size=8, seed=0)
    return reader.Dataset(folder).batches(8, epochs=2)


# The length of batches, and what stands in the module


def test_the_length_of_batches_is_that_of_all_epochs(folder: Path) -> None:
    dataset = reader.Dataset(folder)
    for options in ({}, {"epochs": 3}, {"epochs": 2, "num_shards": 2}, {"drop_remainder": True}):
        batches = dataset.batches(7, **options)
        length = len(batches)
        next(batches)
        assert len(batches) == length == 1 + len(list(batches))


def test_batches_without_end_have_no_length(folder: Path) -> None:
    with pytest.raises(TypeError, match="epochs=None has no end; steps_per_epoch"):
        len(reader.Dataset(folder).batches(8, epochs=None))


def test_what_is_read_says_its_classes_and_what_a_batch_is(folder: Path) -> None:
    """In the order of the labels, as what Keras's `image_dataset_from_directory` returns does."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    distributed = reader.distribute(strategy, folder, batch_size=8)
    endless = reader.distribute(strategy, folder, batch_size=8, repeat=True)
    loaded = reader.load(folder, batch_size=8)
    batches = reader.iterate(folder, batch_size=8)
    for one in (loaded, batches, distributed, reader.Dataset(folder, as_supervised=False)):
        assert one.class_names == ["cat", "dog"]
    assert batches.element_spec == loaded.element_spec
    assert len(batches) == len(loaded) == len(distributed) == distributed.cardinality == 3
    with pytest.raises(TypeError, match="unknown or infinite"):
        len(endless)


def test_the_module_lists_its_public_names_and_no_others() -> None:
    assert dir(reader) == sorted(reader.__all__)
    assert {"Dataset", "StallMeter", "load"} <= set(dir(reader))


# Without the extra


@pytest.mark.parametrize(
    ("use", "missing"),
    [
        ("reader.load('nowhere')", "TensorFlow"),
        ("reader.iterate('nowhere')", "TensorFlow"),
        ("reader.distribute(Strategy(), 'nowhere')", "TensorFlow"),
        ("reader.diagnose(None, print)", "TensorFlow"),
        ("from shardprep.reader import augment", "TensorFlow"),
        ("reader.StallMeter()", "Keras"),
        ("from shardprep.reader import StallMeter", "Keras"),
        ("reader.ResumeInEpoch", "Keras"),
    ],
)
def test_what_needs_an_extra_names_it(use: str, missing: str) -> None:
    said = without_tensorflow(use)
    assert said.startswith("shardprep.errors.DatasetError: reader")
    assert said.endswith(
        f": needs {missing}, which is not installed; pip install 'shardprep[reader]'"
    )


def test_arguments_are_checked_before_an_extra_is_asked_for() -> None:
    assert "batch_size='64'; use " in without_tensorflow("reader.load('nowhere', batch_size='64')")


def without_tensorflow(use: str) -> str:
    """Return the last line of a fresh interpreter that has neither TensorFlow nor Keras."""
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "keras", "tf_keras")))
from shardprep import reader
class Strategy:
    num_replicas_in_sync = 1
    distribute_datasets_from_function = None
{use}
"""
    run = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert run.returncode == 1
    return run.stderr.splitlines()[-1]
