# ruff: noqa: NPY002 - users draw from NumPy's generator of the process
"""`Dataset.loader(transform=…)` with torchvision's transforms of images, boxes and masks."""

import functools
import operator
import os
import random
import sys
import threading
import time
import types
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import processes, reader
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, OBJECT_MASK
from shardprep.reader.arrays import team, worker_pool
from shardprep.reader.config import Advice
from tests.reader.datasets import refused, saved
from tests.support.annotated import WIDTH, annotated
from tests.support.torchvision import import_torchvision, need_module

torch = pytest.importorskip("torch")
FEATURES = {"all": (BOX, BOX_LABEL, CROWD, OBJECT_MASK, MASK), "masks": (MASK,), "labels": ()}


@pytest.fixture(name="v2", scope="module")
def _v2() -> Any:
    need_module("torchvision")
    import_torchvision()
    from torchvision.transforms import v2

    return v2


@pytest.fixture(name="sets", scope="module")
def _sets(tmp_path_factory: pytest.TempPathFactory, shapes: Path) -> dict[str, Path]:
    sets = {
        kind: annotated(tmp_path_factory.mktemp(kind), *features)
        for kind, features in FEATURES.items()
        if features
    }
    return {**sets, "labels": shapes / "tfrecords" / "shapes"}


def test_boxes_and_masks_are_mirrored_with_their_image(sets: dict[str, Path], v2: Any) -> None:
    dataset = reader.Dataset(sets["all"])
    loader = dataset.loader(3, shuffle=False, transform=v2.RandomHorizontalFlip(1), num_workers=0)
    found = [sample for batch in loader for sample in zip(*batch, strict=True)]
    assert len(found) == len(dataset)
    for (image, target), (pixels, stored) in zip(found, dataset, strict=True):
        assert np.array_equal(image.numpy(), pixels[:, ::-1].transpose(2, 0, 1))
        assert np.array_equal(target["masks"].numpy(), stored["masks"][:, :, ::-1])
        mask = stored["segmentation_mask"][:, ::-1].transpose(2, 0, 1)
        assert np.array_equal(target["segmentation_mask"].numpy(), mask)
        top, left, bottom, right = stored["boxes"].T * np.array([[48, 64, 48, 64]]).T
        sides = np.stack([WIDTH - right, top, WIDTH - left, bottom], axis=1)
        assert np.allclose(target["boxes"].numpy(), sides, atol=1e-4)
        assert np.array_equal(target["labels"].numpy(), stored["labels"])
        assert np.array_equal(target["crowds"].numpy(), stored["crowds"])


def test_boxes_have_the_formats_of_the_page_of_pytorch(sets: dict[str, Path], v2: Any) -> None:
    dataset = reader.Dataset(sets["all"])
    options: dict[str, Any] = {"shuffle": False, "num_workers": 0}
    (_, stored), size = dataset[0], np.array([48, 64, 48, 64])
    pixels = (stored["boxes"] * size)[:, [1, 0, 3, 2]]
    number = len(pixels)

    def first(loader: Any) -> Any:
        return next(iter(loader))[1]

    assert number
    assert np.allclose(first(dataset.loader(3, **options))["boxes"][0][:number], stored["boxes"])
    given = first(dataset.loader(3, box_format="xyxy", **options))["boxes"][0][:number]
    ragged = first(dataset.loader(3, ragged=True, **options))["boxes"][0]
    turned = first(dataset.loader(3, transform=v2.Identity(), **options))[0]["boxes"]
    collated = reader.collate([dataset[0]])[1][0]["boxes"]
    item = reader.Dataset(sets["all"], transform=v2.Identity())[0][1]["boxes"]
    assert np.allclose(ragged, stored["boxes"])
    for one in (given, turned, collated, item):
        assert np.allclose(one, pixels, atol=1e-4)


@pytest.mark.parametrize("kind", FEATURES)
def test_items_get_a_transform_of_torchvision_as_batches_do(
    kind: str, sets: dict[str, Path], v2: Any
) -> None:
    """These transforms ignore arrays, so items are tensors for them."""
    flip = v2.RandomHorizontalFlip(1)
    items = reader.Dataset(sets[kind], transform=flip)
    batches = reader.Dataset(sets[kind]).loader(3, shuffle=False, transform=flip, num_workers=0)
    found = [sample for batch in batches for sample in zip(*batch, strict=True)]
    for (image, target), (wanted, facts) in zip(items, found, strict=True):
        assert torch.equal(image, wanted)
        several = isinstance(facts, dict)
        for one in facts if several else [""]:
            values = (target[one], facts[one]) if several else (target, facts)
            assert torch.equal(*map(torch.as_tensor, values))


def samples(batch: Any) -> Any:
    """Return the samples of a batch, stacked or in lists, with lists of numbers for tensors."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(one) for name, one in value.items()}
        return value.tolist()

    return [tuple(map(plain, sample)) for sample in zip(*batch, strict=True)]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", FEATURES)
def test_a_random_transform_is_the_same_after_a_resume_on_two_hosts(
    sets: dict[str, Path], v2: Any, kind: str
) -> None:
    """The random numbers of the model are not touched."""
    dataset = reader.Dataset(sets[kind])[:12]
    options: dict[str, Any] = {"seed": 3, "num_workers": 0}
    options["transform"] = v2.RandomResizedCrop((20, 30))
    loader = dataset.loader(2, drop_remainder=True, **options)
    before = torch.get_rng_state()
    whole = [samples(batch) for _ in range(2) for batch in loader]
    assert torch.equal(torch.get_rng_state(), before)
    iterator = iter(loader)
    loader.set_epoch(0)
    next(iterator)
    hosts = []
    for index in range(2):
        host = dataset.loader(1, num_shards=2, shard_index=index, drop_remainder=True, **options)
        host.load_state_dict(saved(loader))
        hosts.append([samples(batch) for _ in range(2) for batch in host])
    assert [one + other for one, other in zip(*hosts, strict=True)] == whole[1:]
    again = dataset.loader(len(dataset), shuffle=False, **options)
    first, second = (samples(batch) for _ in range(2) for batch in again)
    assert sum(map(operator.ne, first, second)) > len(first) / 2, "an epoch has its own crops"


def test_wrong_transforms_are_one_line(sets: dict[str, Path]) -> None:
    dataset = reader.Dataset(sets["all"])
    wrong: dict[str, Any] = {"box_format": "xyxy", "as_supervised": False}
    for name, value in wrong.items():
        said = refused(functools.partial(dataset.loader, 2, transform=max, **{name: value}))
        start = f"Dataset.loader: transform cannot be used with {name}={value!r}; leave out {name}="
        assert said.startswith(start)
    said = refused(lambda: dataset.loader(2, transform=np.flipud))
    assert "transform must take image and target, which <function flipud" in said


# Worker processes


@pytest.fixture(name="_workers_with_torchvision", scope="module")
def _workers_with_torchvision(v2: Any) -> Iterator[None]:
    del v2
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    processes.start_server(["tests.support.torchvision_in_workers"])
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


in_workers = pytest.mark.usefixtures("_workers_with_torchvision", "by_workers")


def jittered(image: Any, target: Any) -> Any:
    """Draw from all three generators."""
    shift = random.random() + np.random.random() + float(torch.rand(()))
    return image.float() / 255 + shift, target


@in_workers
@pytest.mark.parametrize("kind", FEATURES)
def test_workers_transform_as_the_thread_of_training_does(sets: dict[str, Path], kind: str) -> None:
    """A sample has the same numbers, and other samples have others."""
    dataset = reader.Dataset(sets[kind])[:7]
    random.seed(1)
    np.random.seed(1)
    expected = (random.random(), np.random.random())
    read = []
    for number in (0, 2):
        random.seed(1)
        np.random.seed(1)
        loader = dataset.loader(2, seed=3, transform=jittered, num_workers=number)
        batches = [*loader, *loader]
        assert (random.random(), np.random.random()) == expected
        kinds = [type(one) for one in leaves(batches[0])]
        read.append(([samples(batch) for batch in batches], kinds))
        loader.close()
    assert read[0] == read[1]
    means = [np.mean(image) for batch in read[0][0] for image, *_ in batch]
    assert len({round(float(mean), 9) for mean in means}) == len(means)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one)
    else:
        yield value


@in_workers
def test_a_lambda_of_the_notebook_runs_in_workers(sets: dict[str, Path], v2: Any) -> None:
    flip, scale = v2.RandomHorizontalFlip(1), 2.0
    make = functools.partial(reader.Dataset(sets["labels"]).loader, 4, seed=3)
    loader = make(
        num_workers=2,
        transform=lambda image, label: {
            "half": flip(image).to(torch.bfloat16),
            "pair": (label * scale, [str(int(label)), os.getpid()]),
        },
    )
    batch = next(iter(loader))
    images, labels = next(iter(make()))
    assert type(batch["half"]) is torch.Tensor
    assert torch.equal(batch["half"], images.flip(-1).to(torch.bfloat16))
    assert torch.equal(batch["pair"][0], labels * scale)
    assert batch["pair"][1][0] == tuple(str(int(label)) for label in labels)
    assert os.getpid() not in batch["pair"][1][1].tolist()
    loader.close()


class _OwnError(Exception):
    """It cannot be pickled: it has two arguments, and keeps one."""

    def __init__(self, name: str, value: int) -> None:
        super().__init__(f"{name}={value}")


def broken(image: Any, label: Any) -> Any:
    del image
    raise ValueError(f"no picture of {label}")


def unsendable(image: Any, label: Any) -> Any:
    del image, label
    raise _OwnError("depth", 3)


@in_workers
@pytest.mark.parametrize(
    ("transform", "error", "text"),
    [
        (broken, ValueError, "no picture of"),
        (unsendable, RuntimeError, "_OwnError: depth=3"),
        (lambda image, label: (image[:, : 5 + int(label)], label), RuntimeError, "equal size"),
    ],
)
def test_an_error_of_a_transform_in_a_worker_is_raised_as_it_is(
    sets: dict[str, Path], transform: Any, error: Any, text: str
) -> None:
    """With the traceback of the worker."""
    loader = reader.Dataset(sets["labels"]).loader(16, seed=1, num_workers=1, transform=transform)
    with pytest.raises(error, match=text) as raised:
        next(iter(loader))
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    assert "in a worker process:" in told
    assert "Traceback (most recent call last)" in told
    loader.close()


def endless(image: Any, label: Any) -> Any:
    del image, label
    while True:
        time.sleep(1)


@pytest.mark.thorough
@in_workers
def test_a_transform_that_hangs_is_an_error_that_names_the_records(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "_SILENT_S", 8.0)  # a start has to be faster
    loader = reader.Dataset(sets["labels"]).loader(4, num_workers=1, transform=endless)
    said = refused(lambda: next(iter(loader)))
    assert "and 3 others of its batch: worker processes ended twice with this batch" in said
    assert "sent no message for 8 s" in said
    loader.close()


def test_a_transform_that_cannot_be_sent_needs_the_thread_of_training(
    sets: dict[str, Path], v2: Any
) -> None:
    flip, lock = v2.RandomHorizontalFlip(1), threading.Lock()

    def locked(image: Any, label: Any) -> Any:
        with lock:
            return flip(image), label

    dataset = reader.Dataset(sets["labels"])
    said = refused(functools.partial(dataset.loader, 4, transform=locked, num_workers=2))
    assert "transform cannot be sent to worker processes (TypeError: cannot pickle" in said
    with pytest.warns(Advice, match=r"so the thread of the training loop runs it"):
        loader = dataset.loader(4, seed=1, transform=locked)
    images, _ = next(iter(loader))
    assert torch.equal(images, next(iter(dataset.loader(4, seed=1)))[0].flip(-1))


@in_workers
def test_a_transform_that_only_this_process_can_import_runs_here(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_here")
    exec("def same(image, label): return image, label", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    dataset = reader.Dataset(sets["labels"])
    loader = dataset.loader(4, seed=1, transform=module.same, num_workers=1)
    said = refused(lambda: next(iter(loader)))
    assert "a worker cannot start (ModuleNotFoundError: No module named 'only_here')" in said
    monkeypatch.setattr(team, "usable_cores", lambda: 2)
    loader = dataset.loader(4, seed=1, transform=module.same)
    with pytest.warns(Advice, match="threads fill the batches"):
        images, _ = next(iter(loader))
    assert torch.equal(images, next(iter(dataset.loader(4, seed=1)))[0])


@in_workers
def test_texts_of_a_transform_are_lists(sets: dict[str, Path]) -> None:

    def named(image: Any, target: dict[str, Any]) -> Any:
        return image, {"names": np.array(["a", "é"], object), "codes": np.array(["x"]), **target}

    for number in (0, 1):
        loader = reader.Dataset(sets["all"]).loader(2, seed=1, transform=named, num_workers=number)
        _, targets = next(iter(loader))
        assert targets[0]["names"] == ["a", "é"]
        assert targets[0]["codes"] == ["x"]
        assert type(targets[0]["boxes"]).__name__ == "BoundingBoxes"
        loader.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ModuleNotFoundError("No module"), "import fails (No module); "),
        (RuntimeError("operator torchvision::nms does not exist"), "import fails (operator "),
        (
            OSError("libjpeg.so.8: no such file"),
            "import fails (libjpeg.so.8: no such file); ",
        ),
    ],
)
def test_a_torchvision_that_cannot_be_imported_is_an_error_with_two_ways_out(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "torchvision":
                raise error

    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    dataset = reader.Dataset(sets["labels"])
    text = refused(lambda: dataset.loader(4, transform=lambda image, target: (image, target)))
    assert said in text
    assert (
        f"install the torchvision for torch {torch.__version__}, or use random_resized_crop="
        in text
    )
