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

TRUNCATED, PNG, CMYK, SIDEWAYS = ODD_IMAGES


@pytest.fixture(autouse=True)
def _few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test draw few images. The archive of the fixture has all."""
    monkeypatch.setattr(sample_archive, "NUM_IMAGES", 40)


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


def test_the_bytes_of_an_image_are_always_the_same(tmp_path: Path, train: dict[str, bytes]) -> None:
    """An image does not depend on the number of images. A small archive has all odd ones."""
    for name in "ab":
        write_sample(tmp_path / name)
    assert written(tmp_path / "a") == written(tmp_path / "b")
    some = members(tmp_path / "a" / "shapes.zip", "train.zip")
    assert ODD_IMAGES.keys() < some.keys()
    assert some.items() < train.items()


def test_the_archive_nests_as_kaggle_nests_it(archive: Path) -> None:
    with zipfile.ZipFile(archive) as outer:
        assert outer.namelist() == ["train.zip", "test.zip", "sampleSubmission.csv"]
        infos = outer.infolist()
        for inner in ("train.zip", "test.zip"):
            with zipfile.ZipFile(io.BytesIO(outer.read(inner))) as zipped:
                infos += zipped.infolist()
        submission = outer.read("sampleSubmission.csv").decode()
    assert {info.compress_type for info in infos} == {zipfile.ZIP_DEFLATED}
    assert list(members(archive, "test.zip")) == [f"test/{i}.jpg" for i in range(1, 91)]
    assert submission == "id,label\n" + "".join(f"{i},0\n" for i in range(1, 91))


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


def test_odd_files_are_junk_truncated_a_png_cmyk_and_sideways(train: dict[str, bytes]) -> None:
    assert JUNK.keys() <= train.keys()
    for name in JUNK:
        with pytest.raises(OSError, match="cannot identify"):
            opened(train[name])
    with pytest.raises(OSError, match="truncated"):
        opened(train[TRUNCATED]).load()
    assert opened(train[PNG]).format == "PNG"
    assert opened(train[CMYK]).mode == "CMYK"
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
def test_a_shape_is_within_the_centre_square(shape: str) -> None:
    rng = random.Random(0)
    for _ in range(200):
        polygon = sample_archive._polygon(CORNERS[shape], (300, 480), rng)
        assert all(0 <= x <= 300 and 90 <= y <= 390 for x, y in polygon)


def test_the_recipe_has_all_options_of_the_build(archive: Path) -> None:
    keys = tomllib.loads(archive.with_name("shardprep.toml").read_text())
    assert keys == {
        "source": archive.name,
        "size": "64x64",
        "labels": "prefix",
        "split": "train=0.8,validation=0.2",
        "seed": 0,
    }
    assert make_recipe(keys, "shardprep.toml").dataset_name == "shapes"


def test_only_missing_files_are_written_again(tmp_path: Path) -> None:
    archive = write_sample(tmp_path)
    files, before = written(tmp_path), archive.stat()
    assert write_sample(tmp_path) == archive
    after = archive.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    archive.unlink()
    write_sample(tmp_path)
    assert written(tmp_path) == files


@pytest.mark.parametrize("name", ["shapes.zip", "shardprep.toml"])
def test_a_file_with_other_contents_is_an_error_and_nothing_is_written(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(SourceError, match=rf"{name}: already exists .*; move it away"):
        write_sample(tmp_path)
    assert written(tmp_path) == {name: b"mine"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match="file: is a file; name a folder"):
        write_sample(tmp_path / "file")
