"""`shardprep leaks` names the images of a dataset that have a copy in another one."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
from PIL import Image, ImageOps

import shardprep
from tests.support.builders import build, encoded, write, zip_bytes
from tests.support.command import error_of, invoke, run
from tests.support.planted import file, photo


def dataset(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    source = write(folder / f"{name}.zip", zip_bytes(files))
    return build(source, folder / name, labels="none", size="64x64", fit="stretch").path


def image(number: int) -> Image.Image:
    return Image.fromarray(photo(number, 120, 160))


@pytest.fixture(name="mine")
def _mine(tmp_path: Path) -> Path:
    files = {f"test/{i:02d}.jpg": file(photo(i, 120, 160), quality=92) for i in range(8)}
    return dataset(tmp_path, "mine", files)


@pytest.fixture(name="public")
def _public(tmp_path: Path) -> Path:
    """Twelve other photos; and of mine: 0 itself, 1 smaller, 2 mirrored, 3 turned, 4 cropped."""
    files = {f"train/{i:02d}.jpg": file(photo(i, 120, 160), quality=92) for i in range(20, 32)}
    files["train/same.jpg"] = file(photo(0, 120, 160), quality=92)
    files["train/small.png"] = encoded(image(1).resize((80, 60)), "PNG")
    files["train/mirror.png"] = encoded(ImageOps.mirror(image(2)), "PNG")
    files["train/turned.png"] = encoded(image(3).transpose(Image.Transpose.ROTATE_90), "PNG")
    files["train/crop.png"] = encoded(image(4).crop((16, 12, 150, 112)), "PNG")
    return dataset(tmp_path, "public", files)


def found(one: Path, other: Path) -> list[tuple[str, str, str]]:
    overlap = shardprep.leaks(one, other)
    assert (overlap.num_first, overlap.num_second) == (8, 17)
    return sorted((one.kind, one.key, one.copy) for one in overlap.shared)


command = partial(invoke, "leaks", catch_exceptions=False)


def test_copies_in_another_dataset_are_found_also_mirrored_turned_and_cropped(
    mine: Path, public: Path
) -> None:
    assert found(mine, public) == [
        ("exact", "test/00.jpg", "train/same.jpg"),
        ("near", "test/01.jpg", "train/small.png"),
        ("near", "test/02.jpg", "train/mirror.png"),
        ("near", "test/03.jpg", "train/turned.png"),
        ("near", "test/04.jpg", "train/crop.png"),
    ]


def test_the_command_exits_with_3_if_images_are_shared_and_with_0_if_not(
    mine: Path, public: Path, tmp_path: Path
) -> None:
    shared = command(mine, public)
    assert shared.exit_code == 3
    assert "test/01.jpg (test) is train/small.png (train, same picture)" in " ".join(
        shared.stdout.split()
    )
    assert "test/02.jpg (test) is train/mirror.png (train, mirrored)" in shared.stdout
    assert "is train/crop.png (train, cropped to " in " ".join(shared.stdout.split())
    back = " ".join(command(public, mine).stdout.split())
    assert "train/crop.png (train) is test/04.jpg (test, the first is cropped to " in back
    assert "5 of 8 images have a copy among 17" in shared.stdout
    others = {f"a/{i:02d}.jpg": file(photo(i, 120, 160), quality=92) for i in range(50, 56)}
    clean = command(mine, dataset(tmp_path, "clean", others), "--json")
    assert clean.exit_code == 0
    assert json.loads(clean.stdout)["shared"] == []


def test_a_dataset_is_not_compared_with_itself(mine: Path, tmp_path: Path) -> None:
    for other in (f"{mine}/", mine.parent, os.path.relpath(mine, tmp_path)):
        done = run("leaks", mine, other, cwd=tmp_path)
        assert "is given twice" in error_of(done, done.returncode)


def test_each_of_several_copies_in_a_dataset_is_named(tmp_path: Path) -> None:
    several = {f"a/{i}.png": encoded(image(7), "PNG") + bytes(i) for i in range(3)}
    several |= {"a/crop.png": encoded(image(7).crop((16, 12, 150, 112)), "PNG")}
    several |= {"a/other.jpg": file(photo(8, 120, 160), quality=92)}
    once = {"b/once.jpg": file(photo(7, 120, 160), quality=60)}
    once |= {"b/more.jpg": file(photo(9, 120, 160), quality=60)}
    overlap = shardprep.leaks(
        dataset(tmp_path, "several", several), dataset(tmp_path, "once", once)
    )
    assert {(one.key, one.copy) for one in overlap.shared} == {
        (key, "b/once.jpg") for key in ("a/0.png", "a/1.png", "a/2.png", "a/crop.png")
    }
