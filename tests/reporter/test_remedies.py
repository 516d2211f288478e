"""The commands of a report work as printed, and drop no image that a submission needs."""

import html
import io
import re
import shlex
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.dataset.manifest import load_manifest
from shardprep.reporter.findings.finding import Finding, of_the_set
from tests.reporter.pages import packed, reported
from tests.support.builders import SHARED_DATA, build, write, zip_bytes
from tests.support.command import run
from tests.support.planted import file, photo, resized

IS_HERE = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="the real archives are not here")
ODD = {
    f"train/{name}.jpg"
    for name in (
        "cat.4126", "cat.4522", "cat.4575", "cat.4577", "cat.4821",
        "dog.4127", "dog.4218", "dog.4367", "dog.4388", "dog.4690",
    )
}  # fmt: skip
"""Real photos that are flat, blurry, grey, narrow or copies."""


def found_in(path: Path) -> dict[str, Finding]:
    return {one.name: one for one in reported(path, thumbs=0).findings}


def commands_of(page: str) -> list[str]:
    section = page.partition('id="findings"')[2].partition("</section>")[0]
    return [html.unescape(one) for one in re.findall(r"<code>(shardprep [^<]*)</code>", section)]


def try_each_remedy(source: Path, folder: Path, *options: str) -> int:
    """Run each command that the page of a report prints; return the number of builds.

    Each build leaves out as many images as the report says, and no record without a label.
    """
    first = [str(source), *options, "--out", "out", "--name", "pets"]
    assert run("build", *first, cwd=folder).returncode == 0
    report = reported(folder / "out/pets/1.0.0", thumbs=0)
    before = report.contents.manifest
    dropped = {one.flag: one.num_dropped for one in report.findings if one.num_dropped}
    num_builds = 0
    for command in commands_of(report.html()):
        line, _, target = command.partition(" > ")
        words = shlex.split(line)[1:]
        at = words.index("…")
        if words[0] == "report":
            words[at : at + 1] = ["out/pets/1.0.0"]
            done = run(*words, cwd=folder)
            (folder / target).write_text(done.stdout)
        else:
            words[at : at + 1] = first
            done = run(*words, "--overwrite", cwd=folder)
            assert done.returncode == 0, (command, done.stderr)
            flag = command.partition(" … ")[2].partition(" --version")[0]
            after = load_manifest(folder / "out/pets/1.0.1")
            assert before.totals.num_written - after.totals.num_written == dropped[flag], command
            for name, split in before.splits.items():
                if name != "train":
                    assert after.splits[name].num_unlabelled == split.num_unlabelled, command
            num_builds += 1
        assert done.returncode == 0, (command, done.stderr)
    return num_builds


def real_photos() -> dict[str, bytes]:
    """Return some of the photos, and all that a report of the whole set names."""
    found = dict[str, bytes]()
    with zipfile.ZipFile(SHARED_DATA / "dogs-vs-cats.zip") as whole:
        for name in ("train.zip", "test1.zip"):
            with zipfile.ZipFile(io.BytesIO(whole.read(name))) as inner:
                keys = [key for key in inner.namelist() if key.endswith(".jpg")]
                kept = {*keys[::24], *(key for key in keys if key in ODD)}
                found[name] = zip_bytes({key: inner.read(key) for key in sorted(kept)}, method=0)
    return found


@pytest.mark.thorough
@IS_HERE
def test_each_remedy_for_real_photos_works_as_printed(tmp_path: Path) -> None:
    source = write(tmp_path / "dogs-vs-cats.zip", zip_bytes(real_photos(), method=0))
    assert try_each_remedy(source, tmp_path, "--size", "160x160") >= 6


def competition() -> dict[str, bytes]:
    found = {f"train/{('cat', 'dog')[i % 2]}.{i}.jpg": file(photo(i)) for i in range(24)}
    found |= {f"test/{i}.jpg": file(photo(100 + i)) for i in range(24)}
    grey = [file(photo(200 + i)[..., :1].repeat(3, axis=2), "PNG") for i in range(3)]
    found |= {"train/cat.90.png": grey[0], "test/90.png": grey[1], "test/91.png": grey[2]}
    found |= {"train/dog.91.jpg": file(photo(210, 40, 40)), "test/92.jpg": file(photo(211, 40, 40))}
    found["train/dog.92.jpg"] = file(photo(212, 40, 200))
    found["test/93.jpg"] = file(photo(213, 40, 200))
    found["test/94.jpg"] = found["test/0.jpg"]
    found["train/cat.94.jpg"] = found["train/cat.0.jpg"]
    found["train/cat.95.jpg"] = found["test/2.jpg"]
    found["test/96.jpg"] = file(resized(photo(103), 140), quality=60)
    return found


@pytest.mark.thorough
def test_each_remedy_for_a_competition_works_and_keeps_its_test_images(tmp_path: Path) -> None:
    source = write(tmp_path / "pets.zip", zip_bytes(competition()))
    assert try_each_remedy(source, tmp_path, "--size", "64x64", "--labels", "prefix") >= 5


def test_lists_omit_unlabelled_test_images_and_count_by_split(tmp_path: Path) -> None:
    path = packed(tmp_path, competition(), size="64x64", labels="prefix")
    found = found_in(path)
    assert not [key for one in found.values() for key in one.keys if key.startswith("test/")]
    assert found["grey"].num_found == 3
    assert found["grey"].keys == ("train/cat.90.png",)
    assert "2 are unlabelled images of test, which --list does not print" in found["grey"].what
    assert found["grey"].dropped == {"train": 1}
    assert (found["duplicates"].num_found, found["leaks"].num_found) == (2, 1)
    for name in ("duplicates", "leaks"):  # --dedup would leave out one of the test set
        assert found[name].flag == f"--exclude-list {name}.csv"
        assert found[name].dropped == {"train": 1}
    near = found["near-duplicates"]
    assert (near.num_found, near.keys, near.flag, near.dropped) == (1, (), "", {})
    for name in ("odd-aspect", "enlarged"):
        assert (found[name].num_dropped, found[name].dropped) == (1, {"train": 1})
    page = reported(path, thumbs=0).html()
    assert "leaves out 1 image of train" in page
    assert "&#8230; means" in page


def test_test_images_without_annotations_are_not_listed(tmp_path: Path) -> None:
    """The only labels of this dataset are boxes."""
    members, rows = {}, ["image,xmin,ymin,xmax,ymax,class"]
    for i in range(12):
        image = photo(i)[..., :1].repeat(3, axis=2) if i == 3 else photo(i)
        members[f"train/{i}.png"] = file(image, "PNG")
        rows.append(f"{i}.png,10,10,50,50,cat")
    members |= {f"test/t{i}.png": file(photo(50 + i), "PNG") for i in range(6)}
    members["test/t9.png"] = file(photo(60)[..., :1].repeat(3, axis=2), "PNG")
    members["boxes.csv"] = "\n".join(rows).encode()
    rule = "csv:boxes.csv:image:xmin,ymin,xmax,ymax:class"
    path = packed(tmp_path, members, size="64x64", labels="none", boxes=rule)
    found = found_in(path)["grey"]
    assert (found.num_found, found.keys) == (2, ("train/3.png",))


def test_images_that_are_all_unlabelled_are_listed(tmp_path: Path) -> None:
    members = {f"test/{i}.png": file(photo(i), "PNG") for i in range(12)}
    members["test/12.png"] = file(photo(12)[..., :1].repeat(3, axis=2), "PNG")
    path = packed(tmp_path, members, size="64x64", labels="none")
    assert found_in(path)["grey"].keys == ("test/12.png",)


@pytest.mark.parametrize("kind", ["dark", "light"])
def test_in_a_dataset_near_a_threshold_only_the_blank_image_is_found(
    tmp_path: Path, kind: str
) -> None:
    """Cells that glow on black, and pale cells on white."""
    rng = np.random.default_rng(0)
    images = np.zeros((25, 96, 96, 3), np.uint8)
    for image in images[1:]:
        for y, x in rng.integers(8, 88, (6, 2)):
            image[y - 6 : y + 6, x - 6 : x + 6] = rng.integers(20, 70)
    images = images if kind == "dark" else 255 - images // 3
    members = {f"{i}.png": file(image, "PNG") for i, image in enumerate(images)}
    found = found_in(packed(tmp_path, members, size="64x64", labels="none"))
    expected = dict.fromkeys((kind, "flat", "blurry"), ("0.png",))
    assert {name: one.keys for name, one in found.items()} == expected


@IS_HERE
def test_real_nuclei_are_neither_blank_nor_dark(tmp_path: Path) -> None:
    with tarfile.open(SHARED_DATA / "tasks.tar") as tar:
        members = [one for one in tar.getmembers() if one.name.startswith("nuclei16/")]
        tar.extractall(tmp_path, members, filter="data")
    path = build(tmp_path / "nuclei16", tmp_path / "out", masks="auto").path
    assert not {"dark", "light", "flat", "blurry"} & found_in(path).keys()


@pytest.mark.parametrize(
    ("fit", "expected"),
    [("crop", {"small", "thin"}), ("pad", {"small"}), ("stretch", {"small", "thin"})],
)
def test_originals_with_fewer_pixels_than_stored_are_enlarged(
    tmp_path: Path, fit: str, expected: set[str]
) -> None:
    """One short side is not enough, and padding does not count."""
    sizes = {"large": (200, 100), "exact": (64, 64), "long": (40, 200), "thin": (40, 90),
             "small": (50, 60)}  # fmt: skip
    files = {f"{name}.png": file(photo(i, *size), "PNG")
             for i, (name, size) in enumerate(sizes.items())}  # fmt: skip
    files |= {f"{i}.png": file(photo(20 + i, 100, 100), "PNG") for i in range(4)}
    path = packed(tmp_path, files, size="64x64", labels="none", fit=fit)
    keys = found_in(path)["enlarged"].keys
    assert {key.rpartition("/")[2].removesuffix(".png") for key in keys} == expected


def finding(num_found: int, **keys: Any) -> Finding:
    values = {"name": "dark", "severity": "note", "what": "they are dark", **keys}
    return Finding(num_found=num_found, num_looked_at=30, **values)


def test_a_note_on_a_third_of_the_images_describes_the_dataset() -> None:
    assert of_the_set(finding(10)).what == (
        "they are dark: a third or more, so it is a property of this set"
    )
    assert of_the_set(finding(9)) == finding(9)
    assert of_the_set(finding(30, severity="serious")) == finding(30, severity="serious")


def test_a_property_of_a_set_has_no_remedy(tmp_path: Path) -> None:
    members = {f"{i}.png": file(photo(i, 40 if i < 4 else 100, 40), "PNG") for i in range(10)}
    found = found_in(packed(tmp_path, members, size="64x64", labels="none"))["enlarged"]
    assert found.what.endswith("a property of this set")
    assert (found.flag, found.num_dropped, len(found.keys)) == ("", 0, found.num_found)
