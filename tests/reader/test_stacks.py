"""Both readers yield stacks and their masks as arrays, cut, padded and cropped alike."""

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
IGNORED = 255


def picture(name: str, number: int) -> Array:
    return pixels(HEIGHT, WIDTH, seed=100 * sum(name.encode()) + number)


def deep(name: str, number: int) -> Array:
    rng = np.random.default_rng(100 * sum(name.encode()) + number)
    return rng.integers(0, 65536, (HEIGHT, WIDTH), np.uint16)


def mask(name: str, number: int) -> Array:
    """Return classes 0 to 2 that follow the brightness of the image, [height, width, 1]."""
    return (picture(name, number)[..., :1] // 86).astype(np.uint8)


def stored(image: Array) -> bytes:
    return encoded(Image.fromarray(image.squeeze()), "PNG")


def dataset(folder: Path, image: Any, *, num_masks: int = 0, **keys: Any) -> Path:
    """Build a dataset of stacks; the first `num_masks` images of each have masks."""
    files = {
        f"{name}/{kind}/{i}.png": stored(make(name, i))
        for kind, make, most in (("images", image, 99), ("masks", mask, num_masks))
        for name, number in LENGTHS.items()
        for i in range(min(number, most))
    }
    keys |= {"masks": "{id}/masks/*.png"} if num_masks else {}
    source = write_folder(folder / "source", files)
    return build(
        source, folder / "out", stack="{id}/images/*.png", labels=r"regex:(?P<label>[ab])\d",
        size=(HEIGHT, WIDTH), shards=2, **keys,
    ).path  # fmt: skip


@pytest.fixture(name="stacks", scope="module")
def _stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("stacks"), picture, num_masks=99, format="png")


@pytest.fixture(name="deep_stacks", scope="module")
def _deep_stacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("deep"), deep, depth=16)


def whole(key: str, image: Any = picture) -> Array:
    """Return the expected images of a stack."""
    return np.array([image(key, i) for i in range(LENGTHS[key])])


def loaded(path: Path, **options: Any) -> list[Any]:
    return list(reader.load(path, **options).as_numpy_iterator())


def test_items_and_ragged_batches_are_whole_stacks(stacks: Path) -> None:
    data = reader.Dataset(stacks, as_supervised=False)
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "as_supervised": False}
    (ragged,) = data.batches(ragged=True, **options)
    (raw,) = reader.Dataset(stacks, decode=False).batches(**options)
    for row, item in enumerate(data):
        key = item["image/filename"]
        assert item["num_images"] == ragged["num_images"][row] == len(whole(key))
        for name, make in (("images", picture), ("segmentation_mask", mask)):
            assert np.array_equal(item[name], whole(key, make))
            assert np.array_equal(ragged[name][row], whole(key, make))
            assert len(raw[name][row]) == len(whole(key))
            assert raw[name][row][0].startswith(b"\x89PNG")


PARTS: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda images: images),
    ({"every": 3}, lambda images: images[::3]),
    ({"max_length": 4}, lambda images: images[1:5] if len(images) == 7 else images),
    ({"every": 2, "max_length": 3}, lambda images: images[: 5 if len(images) == 7 else 4 : 2]),
]


@pytest.mark.parametrize(("options", "part"), PARTS)
def test_both_readers_cut_and_pad_stacks_and_masks(
    options: dict[str, Any], part: Any, stacks: Path
) -> None:
    """In one order, and from memory. Images are padded with zeros, masks with ignored pixels."""
    common: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 7, **options}
    named = list(reader.Dataset(stacks).batches(as_supervised=False, **common))
    supervised = [
        list(reader.Dataset(stacks).batches(**common)),
        *(loaded(stacks, cache=cache, **common) for cache in (False, "memory")),
    ]
    streams = [
        *([(images, target["segmentation_mask"]) for images, target in one] for one in supervised),
        *(
            [(one["images"], one["segmentation_mask"]) for one in batches]
            for batches in (named, loaded(stacks, as_supervised=False, **common))
        ),
    ]
    for stream in streams:
        for (images, masks), of in zip(stream, named, strict=True):
            assert images.dtype == masks.dtype == np.uint8
            length = options.get("max_length") or max(of["num_images"])
            assert images.shape == (len(of["label"]), length, HEIGHT, WIDTH, 3)
            assert masks.shape == (*images.shape[:-1], 1)
            for row, key in enumerate(of["image/filename"]):
                number = of["num_images"][row]
                assert np.array_equal(images[row, :number], part(whole(key)))
                assert np.array_equal(masks[row, :number], part(whole(key, mask)))
                assert not images[row, number:].any()
                assert (masks[row, number:] == IGNORED).all()


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
    one = next(reader.Dataset(path).batches(as_supervised=False, **random))
    for cache in (False, "memory"):
        (two,) = loaded(path, cache=cache, as_supervised=False, **random)
        assert one["images"].shape[:4] == (8, 7, 16, 20)
        for part in {"images", "segmentation_mask"} & one.keys():
            assert np.array_equal(one[part], two[part])


def test_one_mask_of_a_stack_is_a_mask_of_one_image(tmp_path: Path) -> None:
    path = dataset(tmp_path, picture, num_masks=1, format="png")
    options: dict[str, Any] = {"batch_size": 8, "shuffle": False, "as_supervised": False}
    (named,) = reader.Dataset(path).batches(**options)
    expected = np.array([whole(key, mask)[0] for key in named["image/filename"]])
    (other,) = loaded(path, **options)
    for batch in (named, other):
        assert np.array_equal(batch["segmentation_mask"], expected)
    (cropped,) = reader.Dataset(path).batches(center_crop=(HEIGHT, HEIGHT), **options)
    assert np.array_equal(cropped["segmentation_mask"], expected[:, :, 4:28])


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
def test_the_transform_of_a_loader_gets_a_video_and_its_masks(stacks: Path) -> None:
    pytest.importorskip("torch")
    need_module("torchvision")
    import_torchvision()
    from torchvision.transforms import v2

    data = reader.Dataset(stacks)
    flip = v2.RandomHorizontalFlip(1)
    ((images, target),) = data.loader(8, shuffle=False, max_length=7, transform=flip, num_workers=0)
    flipped = zip(images.numpy(), target["segmentation_mask"].numpy(), strict=True)
    for (video, masks), (stack, of) in zip(flipped, data, strict=True):
        own = of["segmentation_mask"]
        assert (video[: len(stack)] == stack[:, :, ::-1].transpose(0, 3, 1, 2)).all()
        assert (masks[: len(own), 0] == own[:, :, ::-1, 0]).all()
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
    black = encoded(Image.new("L", (1000, 1000)), "PNG")
    with pytest.raises(ValueError, match="600 images of 1,000x1,000 pixels, more than"):
        decoder.item(payload([black] * 600))


def test_a_stack_with_too_few_masks_is_damaged(stacks: Path) -> None:
    schema = open_dataset(stacks).schema
    decoder = FeatureDecoder(schema, ("images", "segmentation_mask"), decode=True)
    own, small = stored(mask("a0", 0)), stored(np.zeros((8, 8), np.uint8))
    for masks, what in (([own], "holds 1 value, not 2"), ([own, small], "is 8x8")):
        values: dict[str, Any] = {name: [0] for name in schema.features}
        values |= {"images": [stored(picture("a0", 0))] * 2, "segmentation_mask": masks}
        values["image/filename"] = [b"a"]
        with pytest.raises((ValueError, RecordError), match=what):
            decoder.item(memoryview(encode(values, schema.dtypes)))


def test_channel_statistics_count_all_images(stacks: Path) -> None:
    every = np.concatenate([whole(name) for name in LENGTHS]).reshape(-1, 3) / 255
    mean, std = reader.mean_std(stacks)
    assert np.allclose(mean, every.mean(axis=0))
    assert np.allclose(std, every.std(axis=0))
