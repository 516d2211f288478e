"""Images with a target image, built from miniatures of LOL, waveform-inversion and NYU Depth.

Pillow, h5py and NumPy read the originals independently.
"""

import io
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep import reader
from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset.annotated_pictures import annotated_pictures
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import Schema
from shardprep.errors import DatasetError, SourceError
from shardprep.verifier.examples import ExampleCheck
from tests.support.arrays import decoded, npy
from tests.support.builders import (
    SHARED_DATA,
    build,
    encoded,
    jpeg,
    pixels,
    png,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.torchvision import import_torchvision, need_module
from tests.writer.records import records, rows

HEIGHT, WIDTH, SIDE = 24, 36, 16
MIDDLE = ((WIDTH - HEIGHT) / 2, 0, (WIDTH + HEIGHT) / 2, HEIGHT)


def lol() -> dict[str, bytes]:
    """As in LOL: two sets of pairs of equal names. A target, an image, some bytes are missing."""
    members = {}
    for seed, folder in enumerate(("our485", "eval15")):
        for i in range(5):
            members[f"{folder}/low/{i}.png"] = png(HEIGHT, WIDTH, i + 10 * seed)
            members[f"{folder}/high/{i}.png"] = png(HEIGHT, WIDTH, i + 10 * seed + 50)
    del members["our485/high/3.png"], members["eval15/low/4.png"]
    members["our485/high/4.png"] = members["our485/high/4.png"][:-200]
    members["our485/high/2.png"] = png(HEIGHT, HEIGHT)
    return members


KEYS: dict[str, Any] = {
    "target_image": "high/{name}", "size": f"{SIDE}", "format": "png", "max_rejected": 0.5,
}  # fmt: skip


@pytest.fixture(name="pairs", scope="module")
def _pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lol")
    return build(write(folder / "lol.zip", zip_bytes(lol())), folder / "out", **KEYS).path


def test_a_target_is_placed_and_resampled_like_its_image(pairs: Path) -> None:
    found, members = records(pairs), lol()
    assert len(found) == 6
    for key, row in found.items():
        for name, source in (("image", key), ("target_image", key.replace("low", "high"))):
            photo = Image.open(io.BytesIO(members[source]))
            fitted = photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC, MIDDLE)
            assert np.array_equal(decoded(row[name][0]), np.asarray(fitted))


def test_every_pair_without_a_usable_target_is_counted_with_its_reason(pairs: Path) -> None:
    totals = open_dataset(pairs).manifest.totals
    assert totals.skipped == {"no target image": 1, "a target image without its image": 1}
    assert totals.rejected == {"bad_target": 2}
    items = rows(pairs)
    assert items["our485/low/0.png"]["mask_key"] == "our485/high/0.png"
    reason = "its target image has another aspect ratio: 24x24, but the image has 36x24 pixels"
    assert items["our485/low/2.png"]["reason"] == reason
    assert items["our485/low/4.png"]["reason"].startswith("its target image: the file ends before")
    assert not shardprep.verify(pairs, decode=True).problems


def test_several_images_may_have_one_target(tmp_path: Path) -> None:
    names = ("hazy/14_1", "hazy/14_2", "hazy/15_1", "clear/14", "clear/15")
    keys = [f"{split}/{name}.png" for split in ("train", "val") for name in names]
    members = {key: png(8, 8, seed) for seed, key in enumerate(keys)}
    source = write_folder(tmp_path / "source", members)
    pattern = r"clear/{stem:(\d+)_\d}.png"
    made = build(source, tmp_path / "out", target_image=pattern, size="none", format="png")
    found = records(made.path)
    assert len(found) == 6
    for key, row in found.items():
        target = key.replace("hazy", "clear").partition("_")[0] + ".png"
        assert np.array_equal(decoded(row["target_image"][0]), decoded(members[target]))
    write(source / "train/clean/14.png", png(8, 8))
    with pytest.raises(SourceError, match=r"hazy/14_1\.png has several target images"):
        build(source, tmp_path / "bad", target_image=pattern.replace("clear", "c*"))


def test_a_larger_target_keeps_its_size_and_is_cropped_alike(tmp_path: Path) -> None:
    """As in DIV2K: the targets are twice as large; flat quarters show which part a crop has."""
    quarters = np.zeros((8, 12, 3), np.uint8)
    quarters[:4, :6], quarters[4:, :6], quarters[4:, 6:] = 250, 120, 60
    both = {"lr": quarters, "hr": quarters.repeat(2, 0).repeat(2, 1)}
    members = {
        f"{name}/{i}.png": encoded(Image.fromarray(one), "PNG")
        for name, one in both.items()
        for i in range(3)
    }
    source = write_folder(tmp_path / "source", members)
    made = build(source, tmp_path / "out", target_image="hr/{name}", size="none", format="png")
    image, target = reader.Dataset(made.path)[0]
    assert (image.shape, target.shape) == ((8, 12, 3), (16, 24, 3))
    crops = reader.Dataset(made.path).batches(3, random_resized_crop=(8, 8), seed=3)
    images, targets = next(iter(crops))
    assert targets.shape == (3, 8, 8, 3)
    # Levels differ only next to the edges of the quarters.
    assert (np.abs(images.astype(int) - targets) < 30).mean() > 0.8


def depth(i: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return np.random.default_rng(i).integers(0, 10_001, (HEIGHT, WIDTH)).astype(np.uint16)


def test_depth_maps_keep_16_bits_beside_jpegs(tmp_path: Path) -> None:
    members = {f"rgb/{i}.jpg": jpeg(HEIGHT, WIDTH, i) for i in range(4)}
    members |= {f"depth/{i}_depth.png": encoded(Image.fromarray(depth(i)), "PNG") for i in range(4)}
    members["t.csv"] = b"id,room\n" + b"".join(b"%d,r%d\n" % (i, i % 2) for i in range(4))
    source = write_folder(tmp_path / "source", members)
    keys: dict[str, Any] = {
        "target_image": "depth/{stem}_depth.png", "depth": 16, "depth_range": "0,10000",
        "size": "none", "labels": "csv:t.csv:id:room", "format": "jpeg",
    }  # fmt: skip
    made = build(source, tmp_path / "out", **keys)
    for key, row in records(made.path).items():
        expected = np.rint(depth(int(key[-5])) / 10_000 * 65_535)
        assert np.array_equal(decoded(row["target_image"][0]), expected)
        assert decoded(row["image"][0]).shape == (HEIGHT, WIDTH, 3)
    _, target = reader.Dataset(made.path)[0]
    assert target.keys() == {"target_image", "label"}
    assert target["target_image"].dtype == np.uint16
    assert target["target_image"].shape == (HEIGHT, WIDTH, 1)


def test_a_depth_range_is_for_files_also_beside_images_in_arrays(tmp_path: Path) -> None:
    """Targets in arrays keep their own levels; uint16 is stored exactly."""
    deep = np.stack([depth(i) for i in range(5)])
    grey = np.random.default_rng(5).integers(0, 255, deep.shape, np.uint8)
    members = {f"depth/{i:06d}.png": encoded(Image.fromarray(deep[i]), "PNG") for i in range(5)}
    keys: dict[str, Any] = {
        "depth": 16, "depth_range": "0,10000", "size": "none", "format": "png",
    }  # fmt: skip
    source = write_folder(tmp_path / "files", {"in.npy": npy(grey), **members})
    pattern = "depth/{name}.png"
    made = build(source, tmp_path / "a", images="in.npy", target_image=pattern, **keys)
    source = write_folder(tmp_path / "arrays", {"in.npy": npy(grey), "depth.npy": npy(deep)})
    pattern = "depth.npy/{name}"
    both = build(source, tmp_path / "b", images="*.npy", target_image=pattern, **keys)
    for out, white in ((made, 10_000), (both, 65_535)):
        for key, row in records(out.path).items():
            expected = np.rint(deep[int(key[-1])] / white * 65_535)
            assert np.array_equal(decoded(row["target_image"][0]), expected)
        assert len(records(out.path)) == 5


def volumes() -> dict[str, np.ndarray[Any, Any]]:
    """As in waveform-inversion: files of rows in pairs, floats, another shape, own units."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part in (2, 10):
        arrays[f"a/data{part}.npy"] = rng.normal(0, 9, (5, 3, 40, 14)).astype(np.float32)
        arrays[f"a/model{part}.npy"] = rng.uniform(1500, 4500, (5, 1, 14, 14)).astype(np.float32)
    return arrays


def test_rows_of_arrays_pair_and_velocities_have_their_own_levels(tmp_path: Path) -> None:
    arrays = volumes()
    (tmp_path / "s/a").mkdir(parents=True)
    for key, array in arrays.items():
        np.save(tmp_path / "s" / key, array)
    made = build(
        tmp_path / "s", tmp_path / "out", images=("data*.npy", "model*.npy"), depth=16,
        target_image="model{folder:data(.+)}/{name}", depth_range="-30,30", size="14",
        fit="stretch", format="png",
    )  # fmt: skip
    models = np.concatenate([arrays[f"a/model{part}.npy"] for part in (2, 10)])
    low, high = float(models.min()), float(models.max())
    assert any(f"black is {low:g}, white is {high:g}" in note for note in made.notes)
    found = records(made.path)
    assert len(found) == 10
    for key, row in found.items():
        name, _, number = key.rpartition("/")
        speed = decoded(row["target_image"][0]) / 65_535 * (high - low) + low
        expected = arrays[name.replace("data", "model")][int(number), 0]
        assert np.abs(speed - expected).max() <= (high - low) / 65_535 * 0.51
    assert not shardprep.verify(made.path, decode=True).problems


@pytest.mark.skipif(not (SHARED_DATA / "modern.tar").exists(), reason="real data are not here")
def test_picture_and_depth_of_one_file_of_nyu_are_a_pair(tmp_path: Path) -> None:
    with tarfile.open(SHARED_DATA / "modern.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "modern" / "nyu_depth_h5"
    made = build(
        folder, tmp_path / "out", images=("*.h5:rgb:CHW", "*.h5:depth:HW"), size="none", depth=16,
        target_image="{stem}.h5:depth", format="png",
    )  # fmt: skip
    maps = {}
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as file:
            maps[f"{path.name}:rgb"] = file["depth"][()].astype(np.float64)
    low, high = min(map(np.min, maps.values())), max(map(np.max, maps.values()))
    found = records(made.path)
    assert found.keys() == maps.keys()
    for key, row in found.items():
        level = decoded(row["target_image"][0]) / 65_535
        step = (high - low) / 65_535
        assert np.abs(level * (high - low) + low - maps[key]).max() <= 0.51 * step


@pytest.fixture(name="twins", scope="module")
def _twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset whose targets equal their images, so that both must move alike."""
    folder = tmp_path_factory.mktemp("twins")
    members = {f"{name}/{i}.png": png(20, 20, i) for name in ("in", "gt") for i in range(8)}
    source = write_folder(folder / "source", members)
    return build(source, folder / "out", target_image="gt/{name}", size="20", format="png").path


def test_both_readers_crop_and_move_image_and_target_alike(twins: Path) -> None:
    plain = reader.Dataset(twins)
    assert all(np.array_equal(image, target) for image, target in plain)
    options: tuple[dict[str, Any], ...] = (
        {},
        {"random_resized_crop": (9, 9), "seed": 0},
        {"center_crop": (9, 9), "cache": "memory"},
        {"augment": reader.augment.Flip(1.0), "shuffle": False},
    )
    images = targets = np.empty(0)
    for option in options:
        images, targets = next(iter(reader.load(twins, batch_size=8, **option)))
        assert images.shape == targets.shape
        assert np.array_equal(images, targets), option
    assert np.array_equal(images[:, :, ::-1], [image for image, _ in plain])
    crops = reader.Dataset(twins).batches(8, seed=0, random_resized_crop=(9, 9))
    assert all(np.array_equal(images, targets) for images, targets in crops)
    with pytest.raises(DatasetError, match="image_size does not resize target images"):
        reader.load(twins, batch_size=8, read_config=reader.ReadConfig(image_size=(8, 8)))


def test_ops_of_augment_move_a_target_by_the_same_draws(twins: Path) -> None:
    ops = reader.augment
    images, targets = next(iter(reader.Dataset(twins).batches(8)))
    for op in (
        ops.Flip(0.5, 0.5), ops.QuarterTurn(), ops.RandomResizedCrop((12, 12)), ops.Zoom(),
        ops.Letterbox((24, 32)), ops.Mosaic(),
    ):  # fmt: skip
        one, two = op(images, targets, seed=(1, 2))
        assert np.array_equal(one, two), op
        assert not np.array_equal(one[:, :12, :12], images[:, :12, :12])
        again, labels = op(images, {"target_image": targets}, seed=(1, 2))
        assert np.array_equal(again, labels["target_image"])
    with pytest.raises(DatasetError, match="boxes and masks cannot be mixed"):
        ops.MixUp(0.2)(images, targets, seed=(1, 2))


@pytest.mark.thorough
def test_transforms_of_torchvision_get_two_images(twins: Path) -> None:
    need_module("torchvision")
    import_torchvision()
    from torchvision import tv_tensors

    def flip(image: Any, target: Any) -> tuple[Any, Any]:
        assert isinstance(image, tv_tensors.Image)
        assert isinstance(target, tv_tensors.Image)
        return image.flip(-1), target.flip(-1)

    loader = reader.Dataset(twins).loader(batch_size=4, transform=flip, num_workers=0)
    images, targets = next(iter(loader))
    assert images.shape == (4, 3, 20, 20)
    assert (images == targets).all()


def test_export_writes_targets_to_their_own_folder(pairs: Path, tmp_path: Path) -> None:
    made = shardprep.export(pairs, to="folder", out=tmp_path / "out").path
    written = sorted(path.read_bytes() for path in made.glob("*-target/*"))
    assert written == sorted(row["target_image"][0] for row in records(pairs).values())


@pytest.mark.thorough
def test_tfds_and_pages_show_both_images(pairs: Path, tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(pairs))
    for image, target in builder.as_dataset(split="train", as_supervised=True).as_numpy_iterator():
        assert image.shape == target.shape == (SIDE, SIDE, 3)
    shardprep.report(pairs, output=tmp_path / "report.html")
    shardprep.inspect(pairs, boxes=tmp_path / "sheet.png")
    (picture,) = annotated_pictures(open_dataset(pairs), 1)
    own = records(pairs)[picture.title]
    both = [decoded(own[name][0]) for name in ("image", "target_image")]
    assert np.array_equal(picture.pixels, np.concatenate(both, axis=1))


def test_folders_of_equal_pictures_are_not_decided(tmp_path: Path) -> None:
    members = {f"{name}/{i}.png": png(8, 8, i) for name in ("input", "GT") for i in range(3)}
    source = write_folder(tmp_path / "source", members)
    survey = survey_source(source, tmp_path, lambda _: None)
    assert "\ntarget_image" not in recipe_text(survey)


def test_target_images_that_an_option_leaves_out_are_an_error_with_a_count(tmp_path: Path) -> None:
    members = {f"{kind}/{i}.png": png(24, 32, i) for kind in ("rgb", "depth") for i in range(3)}
    source = write_folder(tmp_path / "source", members)
    with pytest.raises(SourceError, match=r"every image is left out \(3 no target image\)"):
        build(source, tmp_path / "out", target_image="depth/{name}", exclude=("depth/*",))


def test_verify_reports_a_damaged_target(pairs: Path) -> None:
    schema = open_dataset(pairs).schema
    row = next(iter(records(pairs).values()))
    check = ExampleCheck(schema, decode=True)
    for bad, what in (
        (encoded(Image.fromarray(pixels(8, 8)), "PNG"), "is 8x8 pixels of 3 channels"),
        (jpeg(SIDE, SIDE), "is not a PNG"),
        (row["target_image"][0][:-30], "is a PNG without an end"),
    ):
        faults = list(check.faults({**row, "target_image": [bad]}, None, 0))
        assert [fault.kind for fault in faults] == ["image"]
        assert what in faults[0].what
    features = {**schema.features, "target_image": schema.image.model_copy(update={"shape": ()})}
    with pytest.raises(ValueError, match=r"target_image.shape: must be height, width, 3"):
        Schema.model_validate(schema.model_copy(update={"features": features}).model_dump())


@pytest.mark.parametrize(("form", "top"), [("floats", 1.5), ("32 bits", 70_000)])
@pytest.mark.parametrize("given", ["full", "auto"])
def test_target_images_never_have_a_range_of_their_own(
    form: str, top: float, given: str, tmp_path: Path
) -> None:
    """Depths up to 1, 2, 3 and 4 times `top` are refused until a range for all is given."""
    dtype = np.float32 if form == "floats" else np.int32
    maps = [np.linspace(0, top * (i + 1), 24).reshape(4, 6).astype(dtype) for i in range(4)]
    members = {
        f"depth/{i}.tif": encoded(Image.fromarray(one), "TIFF") for i, one in enumerate(maps)
    }
    members |= {f"rgb/{i}.png": png(4, 6, i) for i in range(4)}
    source = write_folder(tmp_path / "in", members)
    keys: dict[str, Any] = {
        "target_image": "depth/{stem}.tif", "depth": 16, "size": "none", "format": "png",
    }  # fmt: skip
    refused = build(source, tmp_path / given, depth_range=given, max_rejected=1, **keys)
    assert refused.manifest.totals.rejected == {"bad_target": 4}
    assert all("--depth-range MIN,MAX" in row["reason"] for row in rows(refused.path).values())
    high = 4 * top
    made = build(source, tmp_path / "out", depth_range=f"0,{high}", **keys)
    for key, row in records(made.path).items():
        expected = np.rint(maps[int(key[-5])].astype(np.float64) / high * 65_535)
        assert np.array_equal(decoded(row["target_image"][0]), expected)
