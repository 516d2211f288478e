"""Every argument of the readers is checked by the call: a wrong one is an error of one line."""

import contextlib
import functools
import inspect
import itertools
import json
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader import augment
from shardprep.reader.config import BatchOptions, ReadConfig, Request
from shardprep.reader.order.order import check_state
from shardprep.reader.validators import Arguments
from shardprep.storage.url import ObjectUrl
from tests.reader.datasets import pets, refused
from tests.support.builders import animals
from tests.support.examples import texts

NUM_TRAIN = 24


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pets(tmp_path_factory, animals(NUM_TRAIN), size="8x8", shards=2)


COUNTS: tuple[Any, ...] = (0, -1, "64", 2.5, True)
FLAGS: tuple[Any, ...] = (0, 1, "no", None, [])
CROPS: tuple[Any, ...] = (0, 224.0, "8x8", (8,), (0, 8), (8.0, 8.0), True, {"size": (8, 8)})
WRONG: dict[str, tuple[Any, ...]] = {
    "path": (None, 3, "", b"folder", "a\0b", ["a"]),
    "split": (None, 3, "", ["train", "test"], ("train",), {"train": 1}, b"train"),
    "batch_size": (*COUNTS, False, [8], 1 << 70, float("nan"), np.bool_(1)),
    "shuffle": (0, 1, 2000, "yes", 2.5, [1]),
    "weights": ("even", 3, True, {"cat": 1.0}, b"balanced"),
    "seed": ("a", 1.5, True, [1], b"1"),
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
    "box_format": ("XYXY", "rel_center_yxhw", "coco", None, ("x", "y"), 4),
    "read_config": ({}, "raise", 3, {"num_shards": 2}),
    "image_size": (0, -8, "8x8", (8,), (8, 8, 3), (0, 8), (8.0, 8.0), ("8", "8")),
    "shard_index": (-1, "0", 0.5, False),
    "input_context": (3, "context", object()),
    "on_error": ("ignore", "Skip", None, 3, True),
    "staging_bytes": (-1, "1e9", 1e9, True),
    "cache_ram_share": (-0.1, 1.1, "0.5", None, True, float("nan")),
    "options": (3, {}, "threading"),
    "transform": ("flip", 3, [print]),
    "epochs": (*COUNTS, float("inf")),
    **dict.fromkeys(("prefetch", "num_workers"), (-1, "2", 1.5, True)),
    "sharding": (8, "data", object()),
    "index": (-1, 5, "0", 1.0, None),
    **dict.fromkeys(("every", "max_boxes", "max_length", "num_shards", "num_threads", "number",
                     "interleave_cycle_length", "interleave_block_length",
                     "private_threadpool_size"), COUNTS),
    **dict.fromkeys(("num_parallel_calls_for_interleave_files", "num_parallel_calls_for_decode"),
                    (0, -2, "1", 1.5, True)),
    **dict.fromkeys(("as_supervised", "drop_remainder", "shuffle_reshuffle_each_iteration",
                     "pad_batches", "assert_cardinality", "decode", "ragged"), FLAGS),
}  # fmt: skip
"""Argument, of any call → values that are not allowed."""
MORE: dict[str, dict[str, tuple[Any, ...]]] = {
    "Dataset.batches": {"batch_size": (None,), "on_error": (print,)},
}
"""Call → values that it does not allow, and others do."""

DECLARED: dict[str, Any] = {
    "reader.load": Request, "reader.ReadConfig": ReadConfig, "Dataset.batches": BatchOptions,
    "reader.EvenSplit": reader.EvenSplit, "reader.Dataset": reader.Dataset.__init__,
}  # fmt: skip


def test_signatures_and_docstrings_have_all_arguments() -> None:
    for where, declared in DECLARED.items():
        *module, name = where.split(".")
        call = getattr(reader.Dataset if module == ["Dataset"] else reader, name)
        kinds = Arguments(where, declared).kinds
        assert [*kinds] == [n for n in inspect.signature(call).parameters if n != "self"]
        assert kinds.keys() <= WRONG.keys()
        if name not in ("EvenSplit", "Dataset"):
            lines = [line.strip() for line in str(call.__doc__).splitlines()]
            assert all(any(line.startswith(f"{name}: ") for line in lines) for name in kinds)
    assert "batch_size: int | None = None" in pydoc.render_doc(reader.load).replace(
        "Optional[int]", "int | None"
    )
    arguments = [*inspect.signature(reader.load).parameters]
    assert [*inspect.signature(reader.distribute).parameters] == ["strategy", *arguments]
    for call in (reader.load, reader.Dataset, reader.Dataset.batches):
        assert inspect.signature(call).parameters["as_supervised"].default is True, call


CALLS: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "reader.load": lambda _, given: reader.load(**{"path": "nowhere", **given}),
    "reader.iterate": lambda _, given: reader.iterate(**{"path": "nowhere", **given}),
    "reader.ReadConfig": lambda _, given: reader.ReadConfig(**given),
    "reader.Dataset": lambda _, given: reader.Dataset(**{"path": "nowhere", **given}),
    "Dataset.batches": lambda folder, given: reader.Dataset(folder).batches(
        **{"batch_size": 8, **given}
    ),
    "reader.EvenSplit": lambda _, given: reader.EvenSplit(
        **{"split": "train", "index": 0, "number": 5, **given}
    ),
}


@pytest.mark.parametrize("where", CALLS)
def test_a_wrong_value_is_an_error_before_anything_is_opened(folder: Path, where: str) -> None:
    kinds = Arguments(where, DECLARED.get(where, Request)).kinds
    more = MORE.get(where, {})
    cases = [(name, value) for name in kinds for value in WRONG[name] + more.get(name, ())]
    for name, value in cases:
        said = refused(lambda: CALLS[where](folder, {name: value}))  # noqa: B023 - called at once
        assert said.startswith(f"{where}: {name}="), (name, value)
        assert "; use " in said or "? use " in said or "; count from" in said


def test_wrong_arguments_of_distribute_and_even_splits_are_errors() -> None:
    assert refused(lambda: reader.distribute(3, "nowhere")).startswith(
        "reader.distribute: strategy=3"
    )
    for n in (0, "5", 2.5, None):
        said = refused(lambda n=n: reader.even_splits("train", n))  # type: ignore[misc]
        assert said.startswith("reader.even_splits: n=")


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


def test_a_misspelt_argument_of_any_call_is_an_error_with_the_right_name() -> None:
    """It is found before all other errors."""
    for call in public_calls():
        for name in inspect.signature(call).parameters.keys() - {"self"}:
            wrong = name[:1] + name[2:] if len(name) > 3 else f"{name}{name}x"
            said = refused(functools.partial(call, **{wrong: 1}))
            assert f"got an unexpected keyword argument '{wrong}'; " in said
            assert (f"did you mean {name}?" in said) == (len(name) > 3), said


def test_an_unknown_argument_is_an_error_that_names_where_it_belongs(folder: Path) -> None:
    assert "'nonsense'; it takes path, " in refused(lambda: reader.load("nowhere", nonsense=3))  # type: ignore[call-arg]
    assert "missing a required argument: 'path'" in refused(reader.load)  # type: ignore[arg-type]
    calls: tuple[Any, ...] = (reader.load, reader.iterate, reader.distribute)
    for call in calls:
        said = refused(functools.partial(call, folder, image_size=(8, 8)))
        assert said.endswith("; give read_config=reader.ReadConfig(image_size=…)")
    said = refused(lambda: reader.Dataset(folder, batch_size=8))  # type: ignore[call-arg]
    assert said.endswith("; give it to batches: Dataset(…).batches(batch_size=…)")


def test_a_condition_for_records_is_an_error_that_says_to_select_them(folder: Path) -> None:
    dataset = reader.Dataset(folder)
    calls: tuple[Any, ...] = (
        reader.load, reader.iterate, reader.distribute, reader.Dataset, reader.folds, reader.table,
        dataset.batches, dataset.loader, dataset.keras,
    )  # fmt: skip
    for call in calls:
        for name, known in (("where", "where"), ("fold", "where"), ("keys", "keys")):
            said = refused(functools.partial(call, **{name: "fold != 0"}))
            assert said.endswith(f"; give reader.select(path, split, {known}=…) as the split")


def test_the_name_of_another_library_is_an_error_with_our_name(folder: Path) -> None:
    dataset = reader.Dataset(folder)
    cases: tuple[tuple[Any, str, str], ...] = (
        (reader.load, "batch", "did you mean batch_size?"),
        (reader.load, "transform", "did you mean augment?"),
        (reader.load, "epochs", "did you mean repeat?"),
        (reader.load, "workers", "give read_config=reader.ReadConfig(num_workers=…)"),
        (reader.load, "size", "give read_config=reader.ReadConfig(image_size=…)"),
        (reader.Dataset, "batch", "give it to batches: Dataset(…).batches(batch_size=…)"),
        (reader.Dataset, "augment", "did you mean transform?"),
        (dataset.loader, "augment", "did you mean transform?"),
        (dataset.loader, "workers", "did you mean num_workers?"),
        (dataset.loader, "drop_last", "did you mean drop_remainder?"),
        (dataset.batches, "repeat", "did you mean epochs?"),
        (dataset.batches, "augment", "give it to loader: Dataset(…).loader(transform=…)"),
        (dataset.batches, "device", "give it to loader: Dataset(…).loader(device=…)"),
        (reader.folds, "n_splits", "did you mean k?"),
        (reader.select, "fold", "did you mean where?"),
        (reader.select, "classes", "did you mean label?"),
    )
    for call, name, hint in cases:
        assert refused(functools.partial(call, **{name: 1})).endswith(f"; {hint}"), name


def test_a_misspelt_value_is_an_error_with_the_right_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value, meant in (
        ("cache", "ram", "memory"), ("cache", "RAM", "memory"), ("cache", "memroy", "memory"),
        ("cache", "Auto", "auto"), ("cache", "auot", "auto"), ("dtype", "UINT8", "uint8"),
        ("dtype", "float16", "float32"),
        ("weights", "balance", "balanced"), ("box_format", "xyhw", "xywh"),
    ):  # fmt: skip
        given: dict[str, Any] = {name: value}
        said = refused(functools.partial(reader.load, "nowhere", **given))
        assert f"; did you mean '{meant}'? use " in said
    assert not [*tmp_path.iterdir()]


def test_a_long_value_is_shortened_in_errors() -> None:
    for name, value, shown in (
        ("batch_size", "9" * 1_000_000, "batch_size='999"),
        ("split", ["train"] * 1_000_000, "split=['train', "),
        ("batch_size", 10**5000, "batch_size=<int>; use "),  # too long for Python's repr
        ("random_resized_crop", itertools.count(1), "random_resized_crop=count("),
    ):
        given: dict[str, Any] = {name: value}
        said = refused(functools.partial(reader.load, "x", **given))
        assert shown in said
        assert len(said) < 300


@pytest.mark.parametrize("split", ["train[:110%]", "train[-101%:]", f"train[:{'9' * 5000}]"])
def test_a_percentage_above_100_is_an_error_of_both_readers(folder: Path, split: str) -> None:
    for call in (reader.load, reader.Dataset):
        assert "is not a split; " in refused(lambda call=call: call(folder, split))  # type: ignore[misc]


def test_an_augmentation_that_does_not_return_images_is_an_error(folder: Path) -> None:
    for function, returned, as_supervised in (
        (lambda _: None, "None", True),
        (lambda _: None, "None", False),
        (lambda _, labels: (None, labels), "a tuple of 2", True),
        (lambda images, labels: (images, labels, labels), "a tuple of 3", True),
        (lambda images: [images], "a list of 1", True),
    ):
        load = functools.partial(reader.load, folder, batch_size=8, as_supervised=as_supervised)
        said = refused(functools.partial(load, augment=function))
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
def test_any_value_is_accepted_or_a_short_error(value: Any) -> None:
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
        check_state("Dataset.batches.load_state_dict", value, "", 1)


# Values that are allowed


def test_integers_of_numpy_are_allowed(folder: Path) -> None:
    eight, two, seed = np.int64(8), np.uint8(2), np.int32(3)
    plain = reader.Dataset(folder).batches(8, shuffle=True, seed=3, epochs=2)
    same = reader.Dataset(folder).batches(
        eight, shuffle=np.bool_(1), seed=seed, epochs=two  # type: ignore[arg-type]
    )  # fmt: skip
    assert json.dumps(same.state_dict()) == json.dumps(plain.state_dict())
    assert [labels.tolist() for _, labels in same] == [labels.tolist() for _, labels in plain]
    config = reader.ReadConfig(image_size=[eight, eight], num_shards=two, shard_index=1)  # type: ignore[arg-type]
    assert config == reader.ReadConfig(image_size=(8, 8), num_shards=2, shard_index=1)
    state = reader.iterate(folder, batch_size=eight, seed=seed).state_dict()  # type: ignore[arg-type]
    assert json.dumps(state) == json.dumps(
        reader.iterate(folder, batch_size=8, seed=3).state_dict()
    )


def test_an_object_url_and_autotune_are_allowed() -> None:
    """`Dataset.path` of a dataset in object storage is an `ObjectUrl`."""
    url = ObjectUrl.parse("s3://bucket/pets")
    arguments = Arguments("reader.Dataset", reader.Dataset.__init__)
    assert arguments.converted({"path": url}) == {"path": url}
    assert reader.ReadConfig(num_parallel_calls_for_decode=-1) == reader.ReadConfig()


def test_a_cache_folder_may_have_the_name_of_an_option_value_as_a_path(
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


def test_labels_may_be_a_keyword_only_parameter(folder: Path) -> None:
    def one_more(images: Any, *, labels: Any) -> Any:
        return images, labels + 1

    options: dict[str, Any] = {"batch_size": NUM_TRAIN, "shuffle": False}
    ((_, plain),) = reader.load(folder, **options)
    ((_, more),) = reader.load(folder, augment=one_more, **options)
    assert np.array_equal(more, plain + 1)


def test_a_batch_takes_no_more_memory_than_the_dataset(folder: Path) -> None:
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
def test_a_malformed_state_is_an_error_and_the_position_stays(folder: Path, kind: str) -> None:
    batches: Any = (
        reader.iterate(folder, batch_size=8, seed=0)
        if kind == "iterate"
        else reader.Dataset(folder).batches(8, epochs=2)
    )
    before = batches.state_dict()
    malformed = [("", state) for state in STATES]
    malformed += [(name, {**before, name: one}) for name in PLACES for one in PLACES[name]]
    for name, state in malformed:
        said = refused(functools.partial(batches.load_state_dict, state))
        assert f"load_state_dict: {name and f'{name}='}" in said
        assert batches.state_dict() == before


def test_a_state_beyond_the_last_epoch_is_an_error(folder: Path) -> None:
    three = reader.Dataset(folder).batches(8, epochs=3)
    for _ in three:
        pass
    two = reader.Dataset(folder).batches(8, epochs=2)
    assert "the state has epoch=3, but the iterator has epochs=2" in refused(
        lambda: two.load_state_dict(three.state_dict())
    )


# The length of batches, and the public names


def test_the_length_counts_the_batches_of_all_epochs(folder: Path) -> None:
    dataset, second = reader.Dataset(folder), {"num_shards": 2, "shard_index": 1}
    for options in ({}, {"epochs": 3}, {"epochs": 2, **second}, {"drop_remainder": True}):
        batches = dataset.batches(7, **options)
        length = len(batches)
        next(batches)
        assert len(batches) == length == 1 + len(list(batches))
    with pytest.raises(TypeError, match="epochs=None has no end; steps_per_epoch"):
        len(dataset.batches(8, epochs=None))


def test_distribute_asks_for_a_batch_size(folder: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    said = refused(lambda: reader.distribute(strategy, folder, batch_size=None))
    assert said.startswith("reader.distribute: no batch_size is given; use a multiple of 1")


def test_readers_have_class_names_element_spec_and_length(folder: Path) -> None:
    """Class names are in label order, as in Keras's `image_dataset_from_directory`."""
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


def test_the_module_has_its_public_names_alone() -> None:
    assert dir(reader) == sorted(reader.__all__)
    assert reader.__getattr__("augment") is augment  # without an import of the module
    assert {"Dataset", "StallMeter", "load"} <= set(dir(reader))


def test_a_missing_extra_is_an_error_that_names_it() -> None:
    """Arguments are checked before it."""
    uses = {
        "reader.load('nowhere')": "TensorFlow",
        "reader.iterate('nowhere')": "TensorFlow",
        "reader.distribute(Strategy(), 'nowhere')": "TensorFlow",
        "reader.diagnose(None, print)": "TensorFlow",
        "from shardprep.reader import augment": "TensorFlow",
        "reader.StallMeter()": "Keras",
        "from shardprep.reader import StallMeter": "Keras",
        "reader.ResumeInEpoch": "Keras",
    }
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("tensorflow", "keras", "tf_keras")))
from shardprep import errors, reader
class Strategy:
    num_replicas_in_sync = 1
    distribute_datasets_from_function = None
for use in {[*uses, "reader.load('nowhere', batch_size='64')"]}:
    try:
        exec(use)
    except errors.DatasetError as error:
        print(error)
"""
    command = [sys.executable, "-c", program]
    *lines, last = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    for said, missing in zip(lines, uses.values(), strict=True):
        assert said.startswith("reader")
        assert said.endswith(
            f": needs {missing}, which is not installed; pip install 'shardprep[reader]'"
        )
    assert "batch_size='64'; use " in last
