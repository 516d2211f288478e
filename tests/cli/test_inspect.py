"""`inspect` counts boxes and masks, and draws a contact sheet."""

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardprep.dataset import item_table
from shardprep.dataset.annotated_pictures import annotated_pictures
from shardprep.dataset.describe import Facts, measure_objects, near_duplicates, read_facts
from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import load_manifest
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import ANNOTATIONS, BOX, BOX_LABEL, MASK
from shardprep.image.drawing import AnnotatedPicture
from shardprep.storage.folder import LocalFolder
from tests.support.annotated import HEIGHT, MARKED, WIDTH, Marked, annotated
from tests.support.builders import SHARED_DATA, animals, build, jpeg, tree, write_folder
from tests.support.command import Done
from tests.support.command import run as command
from tests.support.json_page import printed
from tests.support.object_store import Bucket


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated(tmp_path_factory.mktemp("whole"), *ANNOTATIONS)


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Callable[..., Done]:
    return partial(command, cwd=tmp_path)


ALL = [*MARKED.values()]
RECTANGLES = np.array([r for one in ALL for r in one.rectangles])
SIDES = np.stack([RECTANGLES[:, 2] - RECTANGLES[:, 0], RECTANGLES[:, 3] - RECTANGLES[:, 1]], 1)


def test_inspect_shows_the_worst_findings_without_pixels(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    members = {f"{'cat' if i else 'dog'}/{i}.jpg": jpeg(30, 40 if i else 120, i) for i in range(12)}
    members |= dict.fromkeys(("cat/copy.jpg", "test/1.jpg", "test/2.jpg"), members["cat/1.jpg"])
    path = build(write_folder(tmp_path / "pets", members), tmp_path / "out", labels="folder").path
    said = run("inspect", path).stdout
    assert "15 images have originals with fewer pixels than are stored" in said.split("findings")[1]
    assert said.count("byte for byte") == 0, "the copies are counted above"
    assert "3 images are copies, in 1 case across splits; --dedup keeps one" in said
    table = item_table.read_items(path / "items.parquet")
    item_table.write_items(LocalFolder(path), "items.parquet", [table.slice(1)])
    done = run("inspect", path)
    assert (done.returncode, "findings" in done.stdout) == (0, False)


# --- facts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"size": "none"}], ids=["one size", "each its own"])
def test_json_measures_the_boxes_of_the_shards(
    run: Callable[..., Done], tmp_path: Path, more: dict[str, Any]
) -> None:
    folder = annotated(tmp_path / "set", BOX, BOX_LABEL, **more)
    facts = printed(run("inspect", folder, "--json").stdout, Facts)["boxes"]
    areas, shorter = SIDES.prod(axis=1), SIDES.min(axis=1)
    counts = sorted(len(one.labels) for one in ALL)
    assert facts["boxes_per_image"] == {"smallest": 0, "median": counts[3], "largest": 3}
    assert facts["shorter_side"]["smallest"] == shorter.min()
    assert facts["shorter_side"]["largest"] == shorter.max()
    assert facts["shorter_side"]["median"] == sorted(shorter)[(len(shorter) - 1) // 2]
    assert facts["num_below_8"] == (areas < 64).sum() == 1
    assert facts["num_below_32"] == (areas < 1024).sum()
    assert facts["num_at_edge"] == 1
    assert facts["num_near_duplicates"] == 1


def test_large_records_are_measured_without_their_images(tmp_path: Path) -> None:
    """The results equal those of small records."""
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)

    class Noisy(Marked):
        def image(self) -> bytes:
            from tests.support.builders import encoded

            return encoded(Image.fromarray(noise ^ len(self.labels)), "PNG")

    noisy = {
        key: Noisy(one.rectangles, one.labels) for key, one in MARKED.items() if "train" in key
    }
    large = annotated(tmp_path / "large", BOX, BOX_LABEL, marked=noisy)
    small = annotated(
        tmp_path / "small",
        BOX,
        BOX_LABEL,
        marked={key: Marked(one.rectangles, one.labels) for key, one in noisy.items()},
    )
    found = [measure_objects(f, load_manifest(f), read_schema(f)) for f in (large, small)]
    assert load_manifest(large).totals.num_bytes > 5 * 8 << 10
    assert found[0] == found[1]
    assert found[0] is not None


@given(st.data())
def test_near_duplicates_equal_a_comparison_of_all_pairs(data: st.DataObject) -> None:
    side = st.integers(0, 40)
    number = data.draw(st.integers(0, 25))
    low = [(data.draw(side), data.draw(side)) for _ in range(number)]
    size = [(data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))) for _ in range(number)]
    boxes = np.array([(a, b, a + c, b + d) for (a, b), (c, d) in zip(low, size, strict=True)])
    boxes = boxes.reshape(-1, 4) / 80.0
    if number and data.draw(st.booleans()):
        boxes = np.concatenate([boxes, boxes[: number // 2 + 1] + 0.0005])
    image = np.array(
        data.draw(st.lists(st.integers(0, 1), min_size=len(boxes), max_size=len(boxes))), int
    )
    label = np.zeros(len(boxes), int)
    expected = 0
    for i, j in itertools.combinations(range(len(boxes)), 2):
        a, b = boxes[i], boxes[j]
        inner = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None).prod()
        union = (a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inner
        expected += bool(image[i] == image[j] and inner > 0.9 * union)
    assert len(near_duplicates(image, label, boxes)) == expected


def test_the_terminal_shows_objects_and_masks(run: Callable[..., Done], whole: Path) -> None:
    shown = run("inspect", whole, environment={"COLUMNS": "200"}).stdout
    for line in (
        "0      red         4     0       3",
        "8 objects in 7 images, 0 to 3 an image, median 1; 2 images without any",
        "shorter side 4 to 48 pixels, median 20",
        "1 (12.5%) below 8x8 pixels, 6 (75.0%) below 32x32",
        "1 (12.5%) touch the edge of the image",
        "1 pair of boxes of one class have more than 90% in common",
        "4 objects: 1 outside, 3 zero size",
        "1 object at the edge of the image",
        "448 (2.1%) of the pixels of masks",
    ):
        assert line in shown, shown
    ground = sum(int((one.classes() == 0).sum()) for one in ALL)
    assert f"0      ground  {ground:,}" in shown


def test_a_dataset_of_masks_alone_has_no_word_of_boxes(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    shown = run("inspect", annotated(tmp_path / "set", MASK)).stdout
    assert "ground" in shown
    assert "\nobjects" not in shown
    assert "\nboxes" not in shown


def test_a_dataset_without_annotations_is_shown_as_ever(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    source = write_folder(tmp_path / "pets", animals(4))
    folder = build(source, tmp_path / "out", size="16x16").path
    shown = run("inspect", folder).stdout
    assert "\nobjects" not in shown
    facts = json.loads(run("inspect", folder, "--json").stdout)
    assert facts["boxes"] is None
    assert "annotations" not in facts["manifest"]
    done = run("inspect", folder, "--boxes", "sheet.png")
    assert done.returncode == 2
    assert "has neither boxes nor masks" in done.stderr


def test_a_damaged_shard_is_one_line_with_its_record(
    run: Callable[..., Done], whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "marked" / "1.0.0")
    (shard, *_) = sorted(folder.glob("*-train.tfrecord-*"))
    data = bytearray(shard.read_bytes())
    data[12:40] = b"\xff" * 28
    shard.write_bytes(bytes(data))
    done = run("inspect", folder)
    assert done.returncode == 1
    assert f"{shard.name}, record 0" in done.stderr
    shard.write_bytes(bytes(data[:-9]))
    done = run("inspect", folder)
    assert done.returncode == 1
    assert "bytes, the manifest says" in done.stderr
    shard.unlink()
    assert "is missing" in run("inspect", folder).stderr


# --- contact sheet ------------------------------------------------------------------------------


def test_a_sheet_is_drawn_from_the_shards(
    run: Callable[..., Done], whole: Path, tmp_path: Path
) -> None:
    done = run("inspect", whole, "--boxes", "sheet.png")
    assert done.returncode == 0, done.stderr
    assert "drawn: sheet.png" in done.stderr
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width == 6 * 328 + 8  # 7 pictures in two rows
        assert sheet.height > 2 * 240


def pictured(folder: Path, number: int) -> Iterator[AnnotatedPicture]:
    return annotated_pictures(open_dataset(folder), number)


def test_pictures_show_the_records(whole: Path) -> None:
    """Pixels, boxes and labels of all images."""
    found = {one.title: one for one in pictured(whole, 100)}
    assert found.keys() == MARKED.keys()
    for key, one in MARKED.items():
        picture = found[key]
        assert picture.boxes.ravel().tolist() == list(one.boxes)
        assert list(picture.labels) == list(one.labels)
        assert len(picture.masks) == len(one.labels)
        assert bool(picture.mask)
        for (top, left, bottom, right), label in zip(one.rectangles, one.labels, strict=True):
            colour = picture.pixels[(top + bottom) // 2, (left + right) // 2]
            assert colour.argmax() == (0, 2)[label]


def test_pictures_with_objects_are_first(tmp_path: Path) -> None:
    folder = annotated(tmp_path, BOX, BOX_LABEL)
    found = [one.title for one in pictured(folder, 5)]
    assert {*found} == {key for key, one in MARKED.items() if one.labels}
    few = [one.title for one in pictured(folder, 2)]
    assert few == [found[0], found[2]]  # from all over the dataset


@pytest.mark.parametrize("form", ["jpeg", "raw", "keep"])
def test_every_encoding_is_drawn(run: Callable[..., Done], tmp_path: Path, form: str) -> None:
    more: dict[str, Any] = {"size": "none"} if form == "keep" else {}
    folder = annotated(tmp_path / "set", BOX, BOX_LABEL, format=form, **more)
    assert run("inspect", folder, "--boxes", "sheet.png").returncode == 0
    assert (tmp_path / "sheet.png").is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [("sheet.jpg", "does not end with .png; write sheet.png"), ("no/such/sheet.png", "written")],
)
def test_a_file_that_cannot_be_written_is_one_line(
    run: Callable[..., Done], whole: Path, tmp_path: Path, name: str, said: str
) -> None:
    done = run("inspect", whole, "--boxes", name)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("**/sheet*"))


@pytest.mark.thorough
def test_a_sheet_is_drawn_from_object_storage(
    run: Callable[..., Done], whole: Path, tmp_path: Path, bucket: Bucket
) -> None:
    """Each picture is one read. Sizes of boxes need whole shards, so they are omitted."""
    for name, data in tree(whole).items():
        bucket.put(f"marked/1.0.0/{name}", data)
    done = run("inspect", f"{bucket.url}/marked", "--boxes", "there.png")
    assert done.returncode == 0, done.stderr
    assert "sizes need a local copy of the dataset; use shardprep fetch" in done.stdout
    assert "8 objects in 7 images; 2 images without any" in done.stdout
    run("inspect", whole, "--boxes", "here.png")
    assert (tmp_path / "there.png").read_bytes() == (tmp_path / "here.png").read_bytes()


@pytest.mark.skipif(not (SHARED_DATA / "bccd.zip").is_file(), reason="needs the photographs")
def test_real_boxes_are_measured(tmp_path: Path) -> None:
    """The expected numbers were counted in the XML files."""
    folder = build(SHARED_DATA / "bccd.zip", tmp_path / "out", boxes="voc", size="none").path
    facts = read_facts(open_dataset(folder))
    assert facts.boxes is not None
    assert facts.boxes.num_near_duplicates == 7
    assert (facts.boxes.boxes_per_image.smallest, facts.boxes.boxes_per_image.largest) == (1, 30)
    totals = Counter[str]()
    for counts in facts.manifest.annotations.values():
        assert counts.objects is not None
        totals.update(counts.objects.objects)
        totals.update(counts.dropped)
    assert totals == {"RBC": 4153, "WBC": 372, "Platelets": 361, "zero size": 2}


def test_sizes_of_originals_are_not_mixed(run: Callable[..., Done], tmp_path: Path) -> None:
    """No image has 94x94 or 130x130 pixels."""
    members = {f"{i}.jpg": jpeg(*((130, 94) if i % 2 else (94, 130)), seed=i) for i in range(4)}
    path = build(write_folder(tmp_path / "pets", members), tmp_path / "out", labels="none").path
    (line,) = (
        one for one in run("inspect", path).stdout.splitlines() if one.startswith("originals")
    )
    assert line.startswith("originals width 94 to 130 (median 130), height 94 to 130 (median 130)")
    one = write_folder(tmp_path / "one", {"1.jpg": jpeg(94, 130)})
    path = build(one, tmp_path / "out", labels="none").path
    assert "originals 130x94 pixels (1 jpeg)" in run("inspect", path).stdout
