"""torch, Grain and Keras take a `reader.Dataset` as the documents say."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.errors import DatasetError, RecordError
from tests.reader.datasets import flip, keys_of
from tests.support.examples import thorough
from tests.support.paths import ROOT

PAGES = ("without_tensorflow", "keras")
DOCUMENT = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES)
EXAMPLES = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
assert any("import keras" in one for one in EXAMPLES)
NUM_TRAIN = 509
COLUMNS = ("image/filename", "image", "label")
SPAWNED = {"num_workers": 1, "multiprocessing_context": "spawn"}


@pytest.fixture(name="folder")
def _folder(place: Path) -> Path:
    return place / "tfrecords" / "shapes"


@pytest.fixture(scope="module", name="torch")
def _torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(scope="module", name="grain")
def _grain() -> Any:
    return pytest.importorskip("grain")


def run(example: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run an example of the documents; return its names."""
    if "import keras\n" in example:
        pytest.importorskip("keras")
    monkeypatch.chdir(place)
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "example", "exec"), names)
    return names


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_runs(number: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "submission.csv" in EXAMPLES[number]:
        return  # the next test runs it
    names = run(EXAMPLES[number], place, monkeypatch)
    for comment in re.findall(r"# (\w+\[.*\]), int64\[64\]", EXAMPLES[number]):
        dtype, shape = comment.rstrip("]").split("[")
        images, labels = names["images"], names["labels"]
        assert dtype in str(images.dtype)
        assert [*map(int, shape.split(", "))][1:] == list(images.shape)[1:]
        assert "int64" in str(labels.dtype)


def test_the_submission_of_the_page_has_the_order_of_the_sample(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = reader.Dataset(place / "tfrecords" / "shapes", split="test", as_supervised=False)
    items = {Path(item["image/filename"]).stem: item["image"] for item in test}
    ids = sorted(items, reverse=True)
    assert ids != [*items]
    lines = ["id,label", *(f"{one},0" for one in ids)]
    (place / "sample_submission.csv").write_text("\n".join(lines))
    (example,) = (one for one in EXAMPLES if "submission.csv" in one)
    model = run(example, place, monkeypatch)["model"]
    header, *rows = csv.reader((place / "submission.csv").read_text().splitlines())
    assert (header, [name for name, _ in rows]) == (["id", "label"], ids)
    scores = model.predict(np.stack([items[name] for name in ids]), verbose=0)
    assert [label for _, label in rows] == [test.class_names[one.argmax()] for one in scores]


# torch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch forks a process with threads
@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, thorough(SPAWNED)])
def test_a_data_loader_reads_every_item_once(
    folder: Path, torch: Any, options: dict[str, Any]
) -> None:
    dataset = reader.Dataset(folder, as_supervised=False)
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, **options)
    items, keys = {item["image/filename"]: item for item in dataset}, []
    for batch in loader:
        assert (batch["image"].dtype, batch["label"].dtype) == (torch.uint8, torch.int64)
        keys += batch["image/filename"]
        for key, image, label in zip(*(batch[name] for name in COLUMNS), strict=True):
            assert np.array_equal(image.numpy(), items[key]["image"])
            assert label == items[key]["label"]
    assert sorted(keys) == sorted(keys_of(folder))
    assert len(keys) == NUM_TRAIN


def test_a_distributed_sampler_divides_the_items(folder: Path, torch: Any) -> None:
    dataset = reader.Dataset(folder, as_supervised=False)
    keys = []
    for rank in range(3):
        sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=3, rank=rank)
        loader = torch.utils.data.DataLoader(dataset, batch_size=64, sampler=sampler)
        keys += [key for batch in loader for key in batch["image/filename"]]
    assert len(keys) == 510  # torch pads the last round
    assert len(set(keys)) == NUM_TRAIN


def read_all(dataset: Any, torch: Any, context: str) -> list[Any]:
    loader = torch.utils.data.DataLoader(dataset, num_workers=1, multiprocessing_context=context)
    iterator = iter(loader)
    try:
        return list(iterator)
    finally:  # garbage collection would wait 5 s for workers that it does not stop
        iterator._shutdown_workers()


@pytest.fixture(name="hurt")
def _hurt(folder: Path, tmp_path: Path) -> Path:
    """Return the first shard of a copy of the dataset, with a wrong CRC of its first length."""
    (version,) = shutil.copytree(folder, tmp_path / "shapes").iterdir()
    shard = min(version.glob("*-train.tfrecord*"))
    flip(shard, 9)
    return shard


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch forks a process with threads
@pytest.mark.parametrize("context", ["fork", thorough("forkserver")])
def test_an_error_of_a_worker_keeps_its_type_and_text(hurt: Path, torch: Any, context: str) -> None:
    with pytest.raises(RecordError) as error:
        read_all(reader.Dataset(hurt.parent), torch, context)
    said = str(error.value)
    assert "\n" not in said
    assert said.startswith(f"{hurt}, record 0: offset 0: length CRC is ")
    assert said.endswith(
        f"copy the dataset again, or run `shardprep verify {hurt.parent} --repair --source SOURCE`"
    )
    assert "in __getitems__" in error.value.__notes__[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch forks a process with threads
def test_a_shard_that_is_missing_in_a_worker_is_an_error(hurt: Path, torch: Any) -> None:
    dataset = reader.Dataset(hurt.parent)
    hurt.unlink()
    with pytest.raises(DatasetError, match=rf"^{hurt}: is missing, .* --repair --source SOURCE`"):
        read_all(dataset, torch, "fork")


def test_torch_shares_the_memory_of_batches(folder: Path, torch: Any) -> None:
    held = []
    for images, _ in reader.Dataset(folder).batches(50, shuffle=True, epochs=2, prefetch=1):
        for tensor in (torch.from_dlpack(images), torch.from_numpy(images)):
            assert tensor.data_ptr() == images.ctypes.data
            held.append((tensor[1:], tensor[1:].clone()))
    assert len(held) == 44
    assert all(torch.equal(one, copy) for one, copy in held)


# Grain


def test_a_dataset_is_a_data_source_of_grain(folder: Path, grain: Any) -> None:
    source = reader.Dataset(folder, as_supervised=False)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    pipeline = grain.MapDataset.source(source).shuffle(seed=1)
    keys = [pipeline[number]["image/filename"] for number in range(len(pipeline))]
    assert sorted(keys) == sorted(keys_of(folder))
    assert keys != sorted(keys)


def test_a_data_loader_of_grain_resumes_only_with_the_same_records(
    folder: Path, grain: Any
) -> None:
    def loader(source: Any) -> Any:
        sampler = grain.samplers.IndexSampler(300, seed=3, shuffle=True, num_epochs=1)
        return iter(grain.DataLoader(data_source=source, sampler=sampler, worker_count=0))

    iterator = loader(reader.Dataset(folder, as_supervised=False))
    for _ in range(5):
        next(iterator)
    state = iterator.get_state()
    expected = next(iterator)["image/filename"]
    later = loader(reader.Dataset(folder, as_supervised=False))
    later.set_state(state)
    assert next(later)["image/filename"] == expected
    with pytest.raises(ValueError, match="source"):
        loader(reader.Dataset(folder)[1:]).set_state(state)


def test_an_elastic_iterator_of_grain_continues_on_another_number_of_shards(
    folder: Path, grain: Any
) -> None:
    source = reader.Dataset(folder, as_supervised=False)
    records = grain.MapDataset.source(source).shuffle(seed=1)

    def iterators(number: int) -> list[Any]:
        shards = [grain.sharding.ShardOptions(index, number) for index in range(number)]
        return [iter(grain.experimental.ElasticIterator(records, 60, one)) for one in shards]

    def step(shards: list[Any]) -> list[str]:
        parts = [next(shard)["image/filename"].tolist() for shard in shards]
        return [key for keys in zip(*parts, strict=True) for key in keys]

    expected = [records[number]["image/filename"] for number in range(5 * 60)]
    before, found = iterators(2), []
    for _ in range(3):
        found += step(before)
    (state, other) = (one.get_state() for one in before)
    assert state == other
    for number in (3, 1):
        after = iterators(number)
        for one in after:
            one.set_state(json.loads(json.dumps(state)))
        assert found + step(after) + step(after) == expected
