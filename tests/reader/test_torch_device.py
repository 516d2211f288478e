"""`Dataset.loader(device=…)` on a device whose copies take their time: nothing is read too late.

The device is a fake: a copy is made when its event is reached, and not before. So memory that is
used again too early shows in the copy.
"""

from __future__ import annotations

import ctypes
import gc
from collections import deque
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.reader.config import Advice
from tests.reader.datasets import of_form, refused

torch = pytest.importorskip("torch")
loader = pytest.importorskip("shardprep.reader.torch.loader")
pytestmark = pytest.mark.usefixtures("by_workers")
NUM_BATCHES = 60
DELAY = 3
"""Number of later events that a copy waits for."""


class Event:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.is_reached = False

    def query(self) -> bool:
        self._cuda.calls += 1
        return self.is_reached

    def synchronize(self) -> None:
        self._cuda.until(self)


class FakeCuda:
    """A device that makes a copy some events after it was asked for it."""

    def __init__(self, of: Any = None) -> None:
        self.of = of
        self.calls = 0
        self.log: list[str] = []
        self.registered: dict[int, int] = {}
        self.code = 0
        self._work = deque[tuple[Event, list[tuple[Any, Any]]]]()

    def copies(self, tensors: list[Any]) -> tuple[list[Any], Event]:
        results = [torch.full_like(tensor, 77) for tensor in tensors]
        self.log.append("copy")
        return results, self._later(list(zip(results, tensors, strict=True)))

    def by_user(self, tensor: Any) -> Any:
        """Copy as a user does, with `non_blocking=True` on the current stream."""
        result = torch.full_like(tensor, 77)
        # As hardware does: the address is read later, and no object is kept.
        self._later([(result, tensor.numpy().__array_interface__["data"][0])])
        return result

    def wait(self, event: Event, copies: list[Any]) -> None:
        del copies
        self.log.append("wait")
        self.until(event)

    def event(self) -> Event:
        return self._later([])

    def pinned(self, num_bytes: int) -> Any:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def register(self, address: int, num_bytes: int) -> int:
        if not self.code:
            self.registered[address] = num_bytes
        return self.code

    def unregister(self, address: int) -> None:
        assert not self._work or not any(work for _, work in self._work), "copies were begun"
        del self.registered[address]

    def synchronize(self) -> None:
        while self._work:
            self._step()

    def until(self, event: Event) -> None:
        while not event.is_reached:
            self._step()

    def _later(self, work: list[tuple[Any, Any]]) -> Event:
        event = Event(self)
        self._work.append((event, work))
        while len(self._work) > DELAY:
            self._step()
        return event

    def _step(self) -> None:
        event, work = self._work.popleft()
        for result, source in work:
            result.copy_(_at(source, result) if isinstance(source, int) else source)
        event.is_reached = True


def _at(address: int, like: Any) -> Any:
    memory = (ctypes.c_uint8 * like.untyped_storage().nbytes()).from_address(address)
    return torch.from_numpy(np.frombuffer(memory, np.uint8)).as_strided(like.shape, like.stride())


@pytest.fixture(name="cuda")
def _cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(loader, "Cuda", lambda _: fake)
    monkeypatch.setattr(loader, "_device", lambda options: options.device and torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return fake


@pytest.fixture(name="dataset", scope="module")
def _dataset(tmp_path_factory: pytest.TempPathFactory) -> reader.Dataset:
    return reader.Dataset(of_form(tmp_path_factory, "raw"))


def endless(loader: Any) -> Any:
    while True:
        yield from loader


@pytest.fixture(name="wanted", scope="module")
def _wanted(dataset: reader.Dataset) -> list[tuple[Any, Any]]:
    """Return the batches of an ordinary loader."""
    plain = endless(dataset.loader(4, seed=1, num_workers=0, pin_memory=False))
    return [tuple(one.clone() for one in next(plain)) for _ in range(NUM_BATCHES)]


def equal(found: Any, wanted: Any) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def copied_by_user(batches: Any, cuda: FakeCuda) -> list[Any]:
    """Return copies of images that the user began and did not wait for."""
    stream, copies = endless(batches), []
    for _ in range(NUM_BATCHES):
        images, _ = next(stream)
        copies.append(cuda.by_user(images))
        del images
    cuda.synchronize()
    return copies


@pytest.mark.parametrize("num_workers", [0, 2])
def test_no_memory_is_used_again_before_its_copy_has_ended(
    dataset: reader.Dataset, cuda: FakeCuda, wanted: list[Any], num_workers: int
) -> None:
    batches = dataset.loader(4, seed=1, device="cuda", num_workers=num_workers, prefetch=3)
    stream = endless(batches)
    held = [next(stream) for _ in range(NUM_BATCHES)]
    assert all(equal(found, want) for found, want in zip(held, wanted, strict=True))
    assert held[0][0].is_contiguous(memory_format=torch.channels_last)
    assert bool(cuda.registered) == bool(num_workers), "slots of workers are registered"
    batches.close()
    assert not cuda.registered


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_memory_that_a_user_copies_is_not_used_again_too_early(
    dataset: reader.Dataset, cuda: FakeCuda, wanted: list[Any], num_workers: int
) -> None:
    batches = dataset.loader(4, seed=1, num_workers=num_workers, prefetch=3)
    assert equal(copied_by_user(batches, cuda), [images for images, _ in wanted])
    assert cuda.calls > 0
    batches.close()


def test_memory_without_a_guard_would_be_used_again_too_early(
    dataset: reader.Dataset, cuda: FakeCuda, wanted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above can fail."""
    monkeypatch.setattr(loader.PinnedMemory, "fence", lambda _: lambda: True)
    copies = copied_by_user(dataset.loader(4, seed=1, num_workers=2, prefetch=3), cuda)
    assert not equal(copies, [images for images, _ in wanted])


def test_a_copy_begins_before_its_batch_is_asked_for(
    dataset: reader.Dataset, cuda: FakeCuda
) -> None:
    batches = dataset.loader(4, seed=1, device="cuda", num_workers=0)
    stream = endless(batches)
    for _ in range(5):
        next(stream)
        begun: Any
        for _, begun in batches._batches._started:
            begun._filling.wait()  # so that it is filled when it may be copied
    assert cuda.log[-2:] == ["copy", "wait"]
    assert cuda.log.count("copy") == cuda.log.count("wait") + 1
    state = batches.state_dict()
    assert state["batch"] == 5, "a batch that was only copied is not counted"


def test_a_state_goes_on_with_the_batch_that_was_copied_ahead(
    dataset: reader.Dataset, cuda: FakeCuda, wanted: list[Any]
) -> None:
    del cuda
    batches = dataset.loader(4, seed=1, device="cuda", num_workers=0)
    stream = iter(batches)
    for _ in range(3):
        next(stream)
    other = dataset.loader(4, seed=9, device="cuda", num_workers=0)
    next(iter(other))
    other.load_state_dict(batches.state_dict())
    rest = iter(other)
    assert all(equal(next(rest), want) for want in wanted[3:8])


def test_memory_that_cannot_be_registered_is_copied_all_the_same(
    dataset: reader.Dataset, cuda: FakeCuda, wanted: list[Any]
) -> None:
    cuda.code = 2
    batches = dataset.loader(4, seed=1, device="cuda", num_workers=1)
    stream = endless(batches)
    with pytest.warns(Advice, match=r"cannot be pinned \(CUDA error 2\)") as warned:
        held = [next(stream) for _ in range(9)]
    assert len(warned) == 1
    assert all(equal(found, want) for found, want in zip(held, wanted[:9], strict=True))
    batches.close()


@pytest.mark.parametrize("way", ["garbage", "close"])
def test_registered_memory_ends_after_its_copies(
    dataset: reader.Dataset, cuda: FakeCuda, way: str
) -> None:
    batches = dataset.loader(4, seed=1, device="cuda", num_workers=1)
    stream = iter(batches)
    for _ in range(4):
        next(stream)
    assert cuda.registered
    if way == "close":
        batches.close()
    del batches, stream
    gc.collect()
    assert not cuda.registered


def test_what_torch_cannot_use_here_is_one_line(dataset: reader.Dataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    said = refused(lambda: dataset.loader(4, device="cuda"))
    assert said.startswith("Dataset.loader: device='cuda': ")
    assert "give a device that torch can use here" in said
    assert "device='gpu'" in refused(lambda: dataset.loader(4, device="gpu"))
    said = refused(lambda: dataset.loader(4, pin_memory=True))
    what = "pin_memory=True, but torch sees no CUDA device; leave out pin_memory"
    assert said == f"Dataset.loader: {what}"


def test_other_devices_get_their_batches(dataset: reader.Dataset) -> None:
    images, labels = next(iter(dataset.loader(4, device="meta", num_workers=0)))
    assert (images.device.type, labels.device.type) == ("meta", "meta")
    images, _ = next(iter(dataset.loader(4, device="cpu", num_workers=0)))
    assert images.device.type == "cpu"
