"""`Dataset.batches(…, sharding=)` on devices that XLA simulates, against plain `batches`.

JAX starts threads, and tests of torch fork this process. So JAX runs in other processes only.
"""

import importlib.util
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.dataset.schema import BOX, BOX_LABEL
from shardprep.errors import RecordError
from tests.reader.datasets import damage, of_form
from tests.support.annotated import annotated
from tests.support.processes import Program

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed", allow_module_level=True)
OPTIONS: dict[str, Any] = {"shuffle": True, "seed": 5, "as_supervised": False}
EPOCHS: dict[str, Any] = {**OPTIONS, "epochs": 3, "drop_remainder": True}
SHORT: dict[str, Any] = {"split": "train[:88]"}
HEAD = f"""
import json, sys, time
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
from shardprep import reader
from shardprep.errors import DatasetError, RecordError

def refused(dataset, size, sharding, **options):
    try:
        dataset.batches(size, sharding=sharding, **options)
    except DatasetError as error:
        return str(error)

def sums(images):
    return images.astype("int32").sum(axis=(1, 2, 3))

OPTIONS, EPOCHS, SHORT = {OPTIONS}, {EPOCHS}, {SHORT}
"""
ONE_PROCESS = """
shapes, damaged, mixed = sys.argv[1:]
line = Mesh(np.array(jax.devices()), ("data",))
square = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
rows = NamedSharding(line, P("data"))
shardings = {
    "rows": rows,
    "rows on two axes": NamedSharding(square, P(("data", "model"))),
    "rows on one of two axes": NamedSharding(square, P("data")),
    "replicated": NamedSharding(square, P()),
    "one device": SingleDeviceSharding(jax.devices()[3]),
}
dataset, found = reader.Dataset(shapes), {}
for name, sharding in shardings.items():
    held = list(dataset.batches(64, sharding=sharding, prefetch=1, **EPOCHS))
    assert all(batch[key].sharding == sharding for batch in held for key in ("image", "label"))
    found[name] = {
        "height of a shard": held[0]["image"].addressable_shards[0].data.shape[0],
        "sums": [jax.jit(sums)(batch["image"]).tolist() for batch in held],
        "labels": [batch["label"].tolist() for batch in held],
        "keys": [batch["image/filename"].tolist() for batch in held],
    }

transferred, make = [], jax.make_array_from_process_local_data
def counted(sharding, value):
    transferred.append(value.ndim)
    return make(sharding, value)
jax.make_array_from_process_local_data = counted
batches = dataset.batches(64, sharding=rows, **EPOCHS)
next(batches)
for _, begun in batches._started:
    begun._filling.wait()
next(batches)
found["images transferred"] = transferred.count(4)
found["state"] = batches.state_dict()
batches.load_state_dict(found["state"])
rest = [*batches.rest_of_epoch(), *batches]
found["rest"] = [batch["image/filename"].tolist() for batch in rest]

batches = reader.Dataset(damaged).batches(8, sharding=rows, num_threads=1, **EPOCHS)
found["before damage"] = 0
try:
    for _ in batches:
        found["before damage"] += 1
        for _, begun in batches._started:
            begun._filling.wait()
except RecordError:
    found["state at damage"] = batches.state_dict()

own = reader.Dataset(mixed)
found["refused"] = [
    refused(dataset, 64, rows),
    refused(dataset, 60, rows),
    refused(dataset, 64, rows, num_shards=2, shard_index=0),
    refused(dataset, 64, NamedSharding(square, P("data", "model"))),
    refused(dataset, 64, rows, ragged=True),
]
try:
    batches._moved({"image/bytes": np.array([2**31])})
except DatasetError as error:
    found["refused"].append(str(error))
print(json.dumps(found))
"""
TWO_PROCESSES = """
shapes, boxes, port, process = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(process))
devices, found = np.array(jax.devices()), {}

def stream(devices, spec, dataset, size, **options):
    mesh = Mesh(devices, ("data",))
    everywhere = NamedSharding(mesh, P())
    sums_of = jax.jit(sums, out_shardings=everywhere)
    batches = dataset.batches(size, sharding=NamedSharding(mesh, spec), **options)
    for batch in batches:
        yield np.asarray(sums_of(batch["image"])).tolist()  # needs both processes
        if process == "1":
            time.sleep(0.02)
        if "state" not in found:
            found["state"] = batches.state_dict()

dataset = reader.Dataset(shapes)
found["rows"] = list(stream(devices, P("data"), dataset, 32, **EPOCHS))
found["reversed"] = list(stream(devices[::-1], P("data"), dataset, 32, **EPOCHS))
found["replicated"] = list(stream(devices, P(), dataset, 64, **EPOCHS))
found["short"] = list(stream(devices, P("data"), reader.Dataset(shapes, **SHORT), 32, **OPTIONS))

def rows(devices):
    return NamedSharding(Mesh(devices, ("data",)), P("data"))

one_each = rows(devices[[0, 4]])
marked, few = reader.Dataset(boxes), {"seed": 1, "drop_remainder": True}
(image, target), *_ = marked.batches(1, sharding=one_each, max_boxes=4, **few)
found["boxes"] = target["boxes"].shape
found["refused"] = [
    refused(dataset, 32, rows(devices[:7]), seed=1),
    refused(marked, 1, one_each, **few),
    refused(dataset, 32, rows(devices[:4]), seed=1),
]
print(json.dumps(found), flush=True)
jax.distributed.shutdown()  # waits for the other: the first to end would break its last sum
"""


def started(program: str, num_devices: int, *arguments: object) -> Program:
    device_count = f"--xla_force_host_platform_device_count={num_devices}"
    return Program(HEAD + program, *arguments, framework="jax", XLA_FLAGS=device_count)


def result(program: Program) -> Any:
    done = program.wait(120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(name="shapes", scope="module")
def _shapes(shapes: Path) -> Path:
    return shapes / "tfrecords" / "shapes"


@pytest.fixture(name="damaged", scope="module")
def _damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = tmp_path_factory.mktemp("damaged") / "pets" / "1.0.0"
    shutil.copytree(of_form(tmp_path_factory, "jpeg"), copied)
    damage(copied, 20)
    return copied


@pytest.fixture(name="one", scope="module")
def _one(tmp_path_factory: pytest.TempPathFactory, shapes: Path, damaged: Path) -> Any:
    """Return what one process with eight devices finds."""
    return result(started(ONE_PROCESS, 8, shapes, damaged, of_form(tmp_path_factory, "own sizes")))


@pytest.fixture(name="two", scope="module")
def _two(tmp_path_factory: pytest.TempPathFactory, shapes: Path) -> list[Any]:
    """Return what each of two processes with four devices finds."""
    boxes = annotated(tmp_path_factory.mktemp("boxes"), BOX, BOX_LABEL)
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    processes = [started(TWO_PROCESSES, 4, shapes, boxes, port, number) for number in range(2)]
    return [result(process) for process in processes]


@pytest.fixture(name="plain", scope="module")
def _plain(shapes: Path) -> dict[str, Any]:
    batches = [*reader.Dataset(shapes).batches(64, **EPOCHS)]
    return {
        "sums": [sums_of(batch) for batch in batches],
        "labels": [batch["label"].tolist() for batch in batches],
        "keys": [batch["image/filename"].tolist() for batch in batches],
    }


def sums_of(batch: Any) -> list[int]:
    sums: list[int] = batch["image"].sum(axis=(1, 2, 3), dtype=np.int64).tolist()
    return sums


@pytest.mark.parametrize(
    ("sharding", "height"),
    [
        ("rows", 8),
        ("rows on two axes", 8),
        ("rows on one of two axes", 16),
        ("replicated", 64),
        ("one device", 64),
    ],
)
def test_global_arrays_keep_the_rows_of_plain_batches(
    one: Any, plain: dict[str, Any], sharding: str, height: int
) -> None:
    """All batches are held until the end, and on CPU they share the memory of the reader."""
    assert len(plain["sums"]) >= 20
    assert one[sharding] == {**plain, "height of a shard": height}


def test_a_batch_is_transferred_ahead_and_a_state_does_not_count_it(
    one: Any, plain: dict[str, Any], shapes: Path
) -> None:
    assert one["images transferred"] == 3
    assert one["state"]["batch"] == 2
    assert one["rest"] == plain["keys"][2:]
    batches = reader.Dataset(shapes).batches(64, **EPOCHS)
    batches.load_state_dict(one["state"])
    assert [batch["image/filename"].tolist() for batch in batches] == plain["keys"][2:]


def test_a_damaged_record_is_an_error_of_its_own_batch(one: Any, damaged: Path) -> None:
    batches, number = reader.Dataset(damaged).batches(8, **EPOCHS), 0
    with pytest.raises(RecordError):
        for number, _ in enumerate(batches, 1):  # noqa: B007 - the number at the error counts
            pass
    assert one["before damage"] == number
    assert one["state at damage"] == batches.state_dict()


@pytest.mark.thorough
@pytest.mark.parametrize("mesh", ["rows", "reversed", "replicated"])
def test_processes_form_the_global_batches_of_one_process(
    two: list[Any], plain: dict[str, Any], mesh: str
) -> None:
    """One of the processes is slower."""
    assert [process[mesh] for process in two] == [plain["sums"]] * 2


@pytest.mark.thorough
def test_processes_divide_a_short_last_batch(two: list[Any], shapes: Path) -> None:
    batches = reader.Dataset(shapes, **SHORT).batches(64, **OPTIONS)
    expected = [sums_of(batch) for batch in batches]
    assert [len(sums) for sums in expected] == [64, 24]
    assert [process["short"] for process in two] == [expected] * 2


@pytest.mark.thorough
def test_a_state_of_two_processes_continues_in_one(
    two: list[Any], plain: dict[str, Any], shapes: Path
) -> None:
    assert two[0]["state"] == two[1]["state"]
    batches = reader.Dataset(shapes).batches(64, **EPOCHS)
    batches.load_state_dict(two[0]["state"])
    assert [sums_of(batch) for batch in batches] == plain["sums"][1:]


@pytest.mark.thorough
def test_padded_boxes_of_processes_are_sharded(two: list[Any]) -> None:
    assert [process["boxes"] for process in two] == [[2, 4, 4]] * 2


def test_what_cannot_be_divided_is_one_line(one: Any) -> None:
    where = "Dataset.batches: "
    last, size, given, spec, ragged, large = one["refused"]
    assert last.startswith(f"{where}sharding cannot divide the last batch of ")
    assert last.endswith(" into 8 parts; give drop_remainder=True")
    assert size == f"{where}sharding cannot divide batch_size=60 into 8 parts; use a multiple of 8"
    assert given == f"{where}sharding already decides num_shards and shard_index; leave out both"
    assert spec.endswith("divide only rows; use NamedSharding(mesh, PartitionSpec('data'))")
    assert ragged.endswith("but ragged=True makes lists; leave out ragged=True or sharding")
    hint = "call jax.config.update('jax_enable_x64', True)"
    assert f"image/bytes has values that JAX cannot store as int32; {hint}" in large


@pytest.mark.thorough
def test_what_processes_cannot_share_is_one_line(two: list[Any]) -> None:
    where = "Dataset.batches: "
    uneven, boxes, absent = two[1]["refused"]
    assert uneven.startswith(f"{where}the rows of the processes overlap or differ in number; ")
    assert boxes.endswith("different numbers of boxes; give max_boxes")
    assert absent.startswith(f"{where}process 1 has no device of the sharding; ")
