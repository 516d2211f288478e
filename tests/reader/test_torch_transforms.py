"""`Dataset.loader(transform=…)` with torchvision's transforms of images, boxes and masks."""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASK, OBJECT_MASK
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
    loader = dataset.loader(3, shuffle=False, transform=v2.RandomHorizontalFlip(1))
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
    options: dict[str, Any] = {"seed": 3, "transform": v2.RandomResizedCrop((20, 30))}
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
    for wrong in ({"box_format": "xyxy"}, {"as_supervised": False}):
        said = refused(functools.partial(dataset.loader, 2, transform=max, **wrong))
        assert said.startswith("Dataset.loader: transform with as_supervised=False, decode=False")
    said = refused(lambda: dataset.loader(2, transform=np.flipud))
    assert "transform is called with image and target, not <function flipud" in said
