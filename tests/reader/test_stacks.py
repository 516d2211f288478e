"""Both readers yield stacks as arrays [length, height, width, channels], cut and padded alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shardprep import reader
from shardprep.dataset.example import encode
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import DatasetError, RecordError
from shardprep.reader.decode.features import FeatureDecoder
from tests.support.builders import build, encoded, pixels, png, write_folder
from tests.support.torchvision import import_torchvision, need_module

Array = np.ndarray[Any, np.dtype[Any]]

HEIGHT, WIDTH = 24, 32
LENGTHS = {f"{kind}{i}": number for i, number in enumerate((2, 7, 1, 4)) for kind in "ab"}


def picture(name: str, number: int) -> Array:
    return pixels(HEIGHT, WIDTH, seed=100 * sum(name.encode()) + number)


def deep(name: str, number: int) -> Array:
    rng = np.random.default_rng(100 * sum(name.encode()) + number)
    return rng.integers(0, 65536, (HEIGHT, WIDTH), np.uint16)


def dataset(folder: Path, image: Any, **keys: Any) -> Path:
    members = {
        f"{name[0]}/{name}/{i}.png": encoded(Image.fromarray(image(name, i)), "PNG")
        for name, number in LENGTHS.items()
        for i in range(number)
    }
    source = write_folder(folder / "source", members)
    keys = {"stack": "{kind}/{id}/*.png", "labels": "folder", "size": (HEIGHT, WIDTH), **keys}
    return build(source, folder / "out", shards=2, **keys).path


@pytest.fixture(name="stacks", scope="module")
def _stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("stacks"), picture, format="png")


@pytest.fixture(name="deep_stacks", scope="module")
def _deep_stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("deep"), deep, depth=16)


def whole(key: str, image: Any = picture) -> Array:
    """Return the expected images of a stack."""
    name = key.rpartition("/")[2]
    return np.array([image(name, i) for i in range(LENGTHS[name])])


def loaded(path: Path, **options: Any) -> list[Any]:
    return list(reader.load(path, **options).as_numpy_iterator())


def test_items_and_batches_are_whole_stacks_padded_with_zeros(stacks: Path) -> None:
    items = reader.Dataset(stacks, as_supervised=False)
    for item in items:
        assert item["num_images"] == len(item["images"])
        assert (item["images"] == whole(item["image/filename"])).all()
    keys = [item["image/filename"] for item in items]
    batches = [
        *items.batches(3, shuffle=False, as_supervised=False),
        *loaded(stacks, batch_size=3, shuffle=False, as_supervised=False),
    ]
    assert len(batches) == 6
    rows: list[str] = []
    for batch in batches:
        longest = 0
        for key, images, number in zip(
            batch["image/filename"], batch["images"], batch["num_images"], strict=True
        ):
            name = key if isinstance(key, str) else key.decode()
            rows.append(name)
            assert number == len(whole(name))
            assert (images[:number] == whole(name)).all()
            assert not images[number:].any()
            longest = max(longest, number)
        assert batch["images"].shape == (len(batch["label"]), longest, HEIGHT, WIDTH, 3)
    assert rows == keys * 2


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, lambda images: images),
        ({"every": 3}, lambda images: images[::3]),
        ({"max_length": 4}, lambda images: images[1:5] if len(images) == 7 else images),
        ({"every": 2, "max_length": 3}, lambda images: images[: 5 if len(images) == 7 else 4 : 2]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cache", [False, "memory"])
def test_both_readers_read_the_same_part_of_stacks(
    options: dict[str, Any], part: Any, stacks: Path, cache: Any
) -> None:
    """The order of batches is one of both readers too."""
    common: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 7, **options}
    one = list(reader.Dataset(stacks).batches(**common))
    two = loaded(stacks, cache=cache, **common)
    keys = list(reader.Dataset(stacks).batches(as_supervised=False, **common))
    for (images, labels), (others, other_labels), named in zip(one, two, keys, strict=True):
        assert images.dtype == np.uint8
        assert (images == others).all()
        assert (labels == other_labels).all()
        length = options.get("max_length") or max(named["num_images"])
        for row, key, number in zip(
            images, named["image/filename"], named["num_images"], strict=True
        ):
            expected = part(whole(key))
            assert number == len(expected)
            assert len(row) == length
            assert (row[:number] == expected).all()
            assert not row[number:].any()


def test_16_bit_stacks_are_read_as_they_were(deep_stacks: Path) -> None:
    assert reader.Dataset(deep_stacks)[0][0].dtype == np.uint16
    several: list[dict[str, Any]] = [{}, {"max_length": 5}]
    for options in several:
        rows = reader.Dataset(deep_stacks).batches(3, shuffle=False, as_supervised=False, **options)
        for batch, (images, _) in zip(
            rows, loaded(deep_stacks, batch_size=3, shuffle=False, **options), strict=True
        ):
            assert images.dtype == batch["images"].dtype == np.uint16
            assert (images == batch["images"]).all()
            for row, key, number in zip(
                images, batch["image/filename"], batch["num_images"], strict=True
            ):
                expected = whole(key, deep)[..., None]
                start = (len(expected) - number) // 2
                assert (row[:number] == expected[start : start + number]).all()
    floats = next(iter(reader.load(deep_stacks, dtype="float32", batch_size=2, shuffle=False)))[0]
    first = next(iter(reader.Dataset(deep_stacks).batches(2, shuffle=False)))[0]
    assert np.allclose(floats.numpy(), first / 65535)


@pytest.mark.parametrize("name", ["stacks", "deep_stacks"])
def test_all_images_of_a_stack_have_one_crop(name: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(name)
    image = picture if name == "stacks" else lambda *key: deep(*key)[..., None]
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "max_length": 7}
    for batch in reader.Dataset(path).batches(as_supervised=False, center_crop=(16, 16), **options):
        for row, key, number in zip(
            batch["images"], batch["image/filename"], batch["num_images"], strict=True
        ):
            middle = whole(key, image)[:, :, 4:28]
            assert row.shape[1:3] == (16, 16)
            shrunk = [
                np.asarray(Image.fromarray(one[..., 0].astype(np.float32)).resize((16, 16), 3))
                for one in middle
            ]
            scale = 1 if name == "stacks" else 257
            assert np.abs(row[:number, ..., 0] - np.array(shrunk)).max() < 40 * scale
    random: dict[str, Any] = {"random_resized_crop": (16, 20), "seed": 3, **options}
    one, two = (
        next(iter(reader.Dataset(path).batches(**random)))[0],
        loaded(path, cache="memory", **random)[0][0],
    )
    assert (one == two).all()


def test_identical_images_stay_identical_in_a_random_crop(tmp_path: Path) -> None:
    path = dataset(tmp_path, lambda name, _: picture(name, 0), format="jpeg")
    crop: dict[str, Any] = {
        "random_resized_crop": (8, 8),
        "seed": 5,
        "batch_size": 2,
        "shuffle": False,
    }
    for images, _ in (*reader.Dataset(path).batches(**crop), *loaded(path, **crop)):
        for row in images:
            there = row[row.any(axis=(1, 2, 3))]
            assert (there == there[0]).all()
    assert len({images.tobytes() for images, _ in reader.Dataset(path).batches(**crop)}) > 1


@pytest.mark.thorough
def test_the_transform_of_a_loader_gets_a_video(stacks: Path) -> None:
    pytest.importorskip("torch")
    need_module("torchvision")
    import_torchvision()
    from torchvision.transforms import v2

    data = reader.Dataset(stacks)
    flip = v2.RandomHorizontalFlip(1)
    ((images, _),) = data.loader(8, shuffle=False, max_length=7, transform=flip, num_workers=0)
    for flipped, (stack, _) in zip(images.numpy(), data, strict=True):
        assert (flipped[: len(stack)] == stack[:, :, ::-1].transpose(0, 3, 1, 2)).all()
    with pytest.raises(DatasetError, match="give max_length"):
        data.loader(8, transform=flip)


def test_options_that_stacks_do_not_allow_are_errors(
    stacks: Path, deep_stacks: Path, tmp_path: Path
) -> None:
    data, config = reader.Dataset(stacks), reader.ReadConfig
    plain = build(
        write_folder(tmp_path / "plain", {"a/1.png": png(), "b/2.png": png()}), tmp_path / "out"
    ).path
    for call, what in (
        (lambda: reader.load(stacks, cache=str(tmp_path / "c")), "a cache in a folder"),
        (lambda: reader.load(stacks, read_config=config(image_size=(8, 8))), "image_size"),
        (lambda: reader.load(plain, every=2), "every=2, but the dataset has no stacks"),
        (lambda: reader.Dataset(plain).batches(2, max_length=2), "max_length=2, but the"),
        (lambda: reader.mean_std(deep_stacks), "images of 8 bits"),
        (lambda: data.keras(2), "Keras needs stacks of a fixed length; give max_length"),
    ):
        with pytest.raises(DatasetError, match=what):
            call()


def test_a_damaged_stack_is_skipped_or_an_error(stacks: Path) -> None:
    """A hostile record may say any number of images of any size."""
    schema = open_dataset(stacks).schema
    decoder = FeatureDecoder(schema, ("images", "num_images"), decode=True)
    good = png(HEIGHT, WIDTH)

    def payload(images: list[bytes]) -> memoryview:
        values: dict[str, Any] = {"images": images, "label": [0], "num_images": [len(images)]}
        values |= {"image/filename": [b"x"], "image/height": [1], "image/width": [1]}
        return memoryview(encode(values, schema.dtypes))

    assert decoder.item(payload([good] * 3))["images"].shape == (3, HEIGHT, WIDTH, 3)
    for images, what in (
        ([], "holds no image"),
        ([good, good[:50]], "cannot be decoded"),
        ([good, png(8, 8)], "the image is 8x8"),
    ):
        with pytest.raises((ValueError, RecordError), match=what):
            decoder.item(payload(images))
    own = schema.model_copy(
        update={"features": {**schema.features, "images": schema.image.model_copy(
            update={"shape": (None, None, 3)})}}
    )  # fmt: skip
    decoder = FeatureDecoder(own, ("images",), decode=True)
    with pytest.raises(ValueError, match="differ in size"):
        decoder.item(payload([good, png(8, 8)]))
    black = encoded(Image.new("L", (8000, 8000)), "PNG")
    with pytest.raises(ValueError, match="9 images of 8,000x8,000 pixels, more than"):
        decoder.item(payload([black] * 9))


def test_channel_statistics_count_all_images(stacks: Path) -> None:
    every = np.concatenate([whole(f"{name[0]}/{name}") for name in LENGTHS]).reshape(-1, 3) / 255
    mean, std = reader.mean_std(stacks)
    assert np.allclose(mean, every.mean(axis=0))
    assert np.allclose(std, every.std(axis=0))
