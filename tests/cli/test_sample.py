from __future__ import annotations

import io
import random
import re
import tomllib
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from shardprep.api import sample_archive
from shardprep.api.sample_archive import CORNERS, JUNK, ODD_IMAGES, write_sample
from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import sample

SMALL = sample_archive.MIN_IMAGES
TRUNCATED, PNG, CMYK, SIDEWAYS = ODD_IMAGES


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("sample"))


@pytest.fixture(scope="module")
def train(archive: Path) -> dict[str, bytes]:
    return members(archive, "train.zip")


def members(archive: Path, inner: str) -> dict[str, bytes]:
    with (
        zipfile.ZipFile(archive) as outer,
        zipfile.ZipFile(io.BytesIO(outer.read(inner))) as zipped,
    ):
        return {name: zipped.read(name) for name in zipped.namelist()}


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def written(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write_sample(tmp_path / name, num_images=SMALL, seed=7)
    assert written(tmp_path / "a") == written(tmp_path / "b")


def test_other_seed_other_images_same_names(tmp_path: Path) -> None:
    one, two = (
        members(write_sample(tmp_path / str(seed), num_images=SMALL, seed=seed), "train.zip")
        for seed in (1, 2)
    )
    assert one.keys() == two.keys()
    assert {name for name in one if one[name] == two[name]} == JUNK.keys()


@pytest.mark.thorough
def test_an_image_does_not_depend_on_how_many_are_drawn(
    tmp_path: Path, train: dict[str, bytes]
) -> None:
    small = members(write_sample(tmp_path, num_images=SMALL), "train.zip")
    assert small.items() < train.items()


def test_the_archive_nests_as_kaggle_nests_it(archive: Path) -> None:
    with zipfile.ZipFile(archive) as outer:
        assert outer.namelist() == ["train.zip", "test.zip", "sampleSubmission.csv"]
        infos = outer.infolist()
        for inner in ("train.zip", "test.zip"):
            with zipfile.ZipFile(io.BytesIO(outer.read(inner))) as zipped:
                infos += zipped.infolist()
    assert {info.compress_type for info in infos} == {zipfile.ZIP_DEFLATED}


def test_train_images_are_numbered_per_class_and_balanced(train: dict[str, bytes]) -> None:
    images = [name for name in train if name not in JUNK]
    assert len(images) == 510
    assert images[:4] == [
        "train/circle.0.jpg",
        "train/square.0.jpg",
        "train/triangle.0.jpg",
        "train/circle.1.jpg",
    ]
    labels = [re.fullmatch(r"train/([a-z]+)\.\d+\.jpg", name) for name in images]
    assert Counter(match[1] for match in labels if match) == dict.fromkeys(CORNERS, 170)


def test_the_submission_has_a_row_for_every_test_image(archive: Path) -> None:
    test = members(archive, "test.zip")
    assert list(test) == [f"test/{number}.jpg" for number in range(1, 91)]
    with zipfile.ZipFile(archive) as outer:
        header, *rows = outer.read("sampleSubmission.csv").decode().splitlines()
    assert header == "id,label"
    assert rows == [f"{number},0" for number in range(1, 91)]


def test_junk_lies_beside_the_images_and_is_no_image(train: dict[str, bytes]) -> None:
    assert JUNK.keys() <= train.keys()
    for name in JUNK:
        with pytest.raises(OSError, match="cannot identify"):
            opened(train[name])


def test_one_jpeg_is_cut_one_is_a_png_and_one_is_cmyk(train: dict[str, bytes]) -> None:
    with pytest.raises(OSError, match="truncated"):
        opened(train[TRUNCATED]).load()
    assert opened(train[PNG]).format == "PNG"
    assert opened(train[CMYK]).mode == "CMYK"


def test_one_jpeg_stands_upright_only_by_its_orientation(train: dict[str, bytes]) -> None:
    stored = opened(train[SIDEWAYS])
    assert stored.getexif()[ExifTags.Base.Orientation] == 6
    rng = random.Random(f"0/{SIDEWAYS}")
    drawn = np.asarray(sample_archive.draw_shape("triangle", rng), np.float32)
    shown = np.asarray(ImageOps.exif_transpose(stored), np.float32)
    assert np.abs(shown - drawn).mean() < 10


def test_every_other_image_is_a_sound_rgb_jpeg_of_its_own_size(
    archive: Path, train: dict[str, bytes]
) -> None:
    images = {**train, **members(archive, "test.zip")}
    sizes = set()
    for name in images.keys() - JUNK.keys() - ODD_IMAGES.keys():
        image = opened(images[name])
        image.load()
        assert (image.format, image.mode, len(image.getexif())) == ("JPEG", "RGB", 0), name
        sizes.add(image.size)
    assert {side for size in sizes for side in size} <= set(range(96, 161))
    assert len(sizes) > 300


@pytest.mark.parametrize("shape", CORNERS)
def test_a_shape_lies_within_the_centre_square(shape: str) -> None:
    rng = random.Random(0)
    for _ in range(200):
        polygon = sample_archive._polygon(CORNERS[shape], (300, 480), rng)
        assert all(0 <= x <= 300 and 90 <= y <= 390 for x, y in polygon)


def test_the_recipe_says_all_that_a_build_needs(archive: Path) -> None:
    keys = tomllib.loads(archive.with_name("shardprep.toml").read_text())
    assert keys == {
        "source": archive.name,
        "size": "64x64",
        "labels": "prefix",
        "split": "train=0.8,validation=0.2",
        "seed": 0,
    }
    assert make_recipe(keys, "shardprep.toml").dataset_name == "shapes"


def test_writing_the_same_again_leaves_the_files_alone(tmp_path: Path) -> None:
    archive = write_sample(tmp_path, num_images=SMALL)
    before = archive.stat()
    assert write_sample(tmp_path, num_images=SMALL) == archive
    after = archive.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_missing_file_is_written_beside_one_that_is_there(tmp_path: Path) -> None:
    archive = write_sample(tmp_path, num_images=SMALL)
    files = written(tmp_path)
    archive.unlink()
    write_sample(tmp_path, num_images=SMALL)
    assert written(tmp_path) == files


@pytest.mark.parametrize("name", ["shapes.zip", "shardprep.toml"])
def test_a_file_with_other_contents_is_an_error_and_nothing_is_written(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(SourceError, match=rf"{name}: already exists .*; move it away"):
        write_sample(tmp_path, num_images=SMALL)
    assert written(tmp_path) == {name: b"mine"}


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match=r"file: .*; name a folder"):
        write_sample(tmp_path / "file", num_images=SMALL)


def test_too_few_images_for_the_odd_ones_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"at least {SMALL}"):
        write_sample(tmp_path / "new", num_images=SMALL - 1)
    assert not (tmp_path / "new").exists()


def test_the_smallest_archive_has_every_odd_image(tmp_path: Path) -> None:
    assert ODD_IMAGES.keys() < members(write_sample(tmp_path, num_images=SMALL), "train.zip").keys()
