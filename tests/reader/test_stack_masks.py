"""Both readers cut, pad and crop the masks of stacks together with the images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep import reader
from shardprep.dataset.example import encode
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import RecordError
from shardprep.reader.decode.features import FeatureDecoder
from tests.support.builders import build, encoded, pixels, write_folder
from tests.support.torchvision import import_torchvision, need_module

Array = np.ndarray[Any, np.dtype[Any]]
HEIGHT, WIDTH = 24, 32
LENGTHS = {"a": 2, "b": 7, "c": 1}
IGNORED = 255


def image(name: str, number: int) -> Array:
    return pixels(HEIGHT, WIDTH, seed=100 * ord(name) + number)


def mask(name: str, number: int) -> Array:
    """Return classes 0 to 2 that follow the brightness of the image."""
    return (image(name, number)[..., 0] // 86).astype(np.uint8)


def dataset(folder: Path, *, each: bool) -> Path:
    members: dict[str, bytes] = {}
    for name, number in LENGTHS.items():
        for i in range(number):
            members[f"{name}/images/{i}.png"] = encoded(Image.fromarray(image(name, i)), "PNG")
            if each or not i:
                found = encoded(Image.fromarray(mask(name, i)), "PNG")
                members[f"{name}/masks/{i}.png"] = found
    keys: dict[str, Any] = {
        "stack": "{id}/images/*.png",
        "masks": "{id}/masks/*.png",
        "format": "png",
    }
    source = write_folder(folder / "source", members)
    return build(source, folder / "out", size=(HEIGHT, WIDTH), shards=1, **keys).path


@pytest.fixture(name="stacks", scope="module")
def _stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("each"), each=True)


def whole(key: str) -> tuple[Array, Array]:
    numbers = range(LENGTHS[key])
    masks = np.array([mask(key, i) for i in numbers])[..., np.newaxis]
    return np.array([image(key, i) for i in numbers]), masks


def test_items_and_batches_have_the_masks_of_the_images(stacks: Path) -> None:
    data = reader.Dataset(stacks, as_supervised=False)
    for item in data:
        images, masks = whole(item["image/filename"])
        assert (item["images"] == images).all()
        assert (item["segmentation_mask"] == masks).all()
    options: dict[str, Any] = {"batch_size": 3, "shuffle": False, "as_supervised": False}
    (ragged,) = data.batches(ragged=True, **options)
    (raw,) = reader.Dataset(stacks, decode=False).batches(**options)
    for key, masks, files in zip(
        raw["image/filename"], *(one["segmentation_mask"] for one in (ragged, raw)), strict=True
    ):
        assert (masks == whole(key)[1]).all()
        assert len(files) == LENGTHS[key]


PARTS = [
    ({}, lambda rows: rows),
    ({"every": 3}, lambda rows: rows[::3]),
    ({"max_length": 4}, lambda rows: rows[1:5] if len(rows) == 7 else rows),
]


@pytest.mark.parametrize(("options", "part"), PARTS)
def test_both_readers_cut_masks_and_pad_them_with_ignored_pixels(
    options: dict[str, Any], part: Any, stacks: Path
) -> None:
    common: dict[str, Any] = {"batch_size": 3, "shuffle": False, **options}
    (named,) = reader.Dataset(stacks).batches(as_supervised=False, **common)
    batches = [next(iter(reader.Dataset(stacks).batches(**common)))]
    batches += reader.load(stacks, **common).as_numpy_iterator()
    batches += reader.load(stacks, cache="memory", **common).as_numpy_iterator()
    (other,) = reader.load(stacks, as_supervised=False, **common).as_numpy_iterator()
    batches.append((other["images"], other["segmentation_mask"]))
    assert len(batches) == 4
    for images, masks in batches:
        assert masks.shape == (*images.shape[:-1], 1)
        for row, key in enumerate(named["image/filename"]):
            expected, classes = map(part, whole(key))
            length = len(expected)
            assert (images[row, :length] == expected).all()
            assert (masks[row, :length] == classes).all()
            assert not images[row, length:].any()
            assert (masks[row, length:] == IGNORED).all()


def test_a_crop_moves_images_and_masks(stacks: Path) -> None:
    crop: dict[str, Any] = {"batch_size": 3, "seed": 5, "shuffle": False, "max_length": 5}
    center = {**crop, "center_crop": (HEIGHT, HEIGHT)}
    (cut,) = reader.Dataset(stacks).batches(as_supervised=False, **center)
    for row, key in enumerate(cut["image/filename"]):
        masks = whole(key)[1][-6:-1] if key == "b" else whole(key)[1]
        assert (cut["segmentation_mask"][row, : len(masks)] == masks[:, :, 4:28]).all()
    random = {**crop, "random_resized_crop": (16, 20)}
    one = next(iter(reader.Dataset(stacks).batches(**random)))
    for cache in (False, "memory"):
        (two,) = reader.load(stacks, cache=cache, **random).as_numpy_iterator()
        for mine, other in zip(one, two, strict=True):
            assert (mine == other).all()
    assert one[1].shape == (3, 5, 16, 20, 1)


def test_one_mask_of_a_stack_is_a_mask_of_one_image(tmp_path: Path) -> None:
    path = dataset(tmp_path, each=False)
    options: dict[str, Any] = {"batch_size": 3, "shuffle": False}
    (named,) = reader.Dataset(path).batches(as_supervised=False, **options)
    expected = np.array([whole(key)[1][0] for key in named["image/filename"]])
    (loaded,) = reader.load(path, **options).as_numpy_iterator()
    for masks in (named["segmentation_mask"], loaded[1]):
        assert (masks == expected).all()
    crop: dict[str, Any] = {**options, "center_crop": (HEIGHT, HEIGHT)}
    ((_, masks),) = reader.Dataset(path).batches(**crop)
    assert (masks == expected[:, :, 4:28]).all()


def test_a_stack_with_too_few_masks_is_damaged(stacks: Path) -> None:
    schema = open_dataset(stacks).schema
    decoder = FeatureDecoder(schema, ("images", "segmentation_mask"), decode=True)
    picture = encoded(Image.fromarray(image("a", 0)), "PNG")
    own = encoded(Image.fromarray(mask("a", 0)), "PNG")
    small = encoded(Image.fromarray(np.zeros((8, 8), np.uint8)), "PNG")
    for masks, what in (([own], "holds 1 values, not 2"), ([own, small], "is 8x8")):
        values: dict[str, Any] = {name: [0] for name in schema.features}
        values |= {"images": [picture] * 2, "segmentation_mask": masks, "image/filename": [b"a"]}
        with pytest.raises((ValueError, RecordError), match=what):
            decoder.item(memoryview(encode(values, schema.dtypes)))


@pytest.mark.thorough
def test_the_transform_of_a_loader_flips_images_and_masks(stacks: Path) -> None:
    pytest.importorskip("torch")
    need_module("torchvision")
    import_torchvision()
    from torchvision.transforms import v2

    data = reader.Dataset(stacks)
    flip = v2.RandomHorizontalFlip(1)
    ((_, masks),) = data.loader(3, shuffle=False, max_length=7, transform=flip, num_workers=0)
    for flipped, (_, own) in zip(masks.numpy(), data, strict=True):
        assert (flipped[: len(own), 0] == own[:, :, ::-1, 0]).all()
