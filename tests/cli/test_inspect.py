"""`inspect` counts boxes and masks, and draws a contact sheet."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shardprep.dataset import item_table
from shardprep.dataset.annotated_pictures import annotated_pictures
from shardprep.dataset.describe import read_facts
from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import ANNOTATIONS, BOX, BOX_LABEL, MASK
from shardprep.image.drawing import AnnotatedPicture
from shardprep.storage.folder import LocalFolder
from tests.support.annotated import MARKED, annotated
from tests.support.builders import SHARED_DATA, animals, build, jpeg, tree, write_folder
from tests.support.command import Done
from tests.support.command import run as command
from tests.support.object_store import Bucket


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return annotated(tmp_path_factory.mktemp("whole"), *ANNOTATIONS)


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> Callable[..., Done]:
    return partial(command, cwd=tmp_path)


ALL = [*MARKED.values()]


def test_inspect_shows_the_worst_findings_without_pixels(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    members = {f"{'cat' if i else 'dog'}/{i}.jpg": jpeg(30, 40 if i else 120, i) for i in range(12)}
    members |= dict.fromkeys(("cat/copy.jpg", "test/1.jpg", "test/2.jpg"), members["cat/1.jpg"])
    path = build(write_folder(tmp_path / "pets", members), tmp_path / "out", labels="folder").path
    said = run("inspect", path).stdout
    assert "15 images have originals with fewer pixels than are stored" in said.split("findings")[1]
    assert said.count("byte for byte") == 0, "the copies are counted above"
    assert "3 images are copies, in 1 case across splits; build --dedup keeps one" in said
    table = item_table.read_items(path / "items.parquet")
    item_table.write_items(LocalFolder(path), "items.parquet", [table.slice(1)])
    done = run("inspect", path)
    assert (done.returncode, "findings" in done.stdout) == (0, False)


def test_inspect_names_missing_shards(
    run: Callable[..., Done], whole: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(whole, tmp_path / "copy"))
    shard = next(copy.glob("*.tfrecord*"))
    shard.unlink()
    done = run("inspect", copy)
    assert done.returncode == 3
    assert f"missing   1 shard is missing: {shard.name}" in done.stdout
    assert json.loads(run("inspect", copy, "--json").stdout)["missing"] == [shard.name]


# --- facts --------------------------------------------------------------------------------------


def test_the_terminal_shows_objects_and_masks(run: Callable[..., Done], whole: Path) -> None:
    shown = run("inspect", whole, environment={"COLUMNS": "200"}).stdout
    for line in (
        "0      red         4     0       3",
        "8 objects in 7 images; 2 images without any",
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
    assert "annotations" not in facts["manifest"]
    done = run("inspect", folder, "--boxes", "sheet.png")
    assert done.returncode == 2
    assert "has neither boxes nor masks" in done.stderr


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


def test_a_damaged_shard_is_one_line_with_its_record(
    run: Callable[..., Done], whole: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "marked" / "1.0.0")
    (shard, *_) = sorted(folder.glob("*-train.tfrecord-*"))
    data = bytearray(shard.read_bytes())
    data[12:40] = b"\xff" * 28
    shard.write_bytes(bytes(data))
    done = run("inspect", folder, "--boxes", "sheet.png")
    assert done.returncode == 1
    assert f"{shard.name}, record 0" in done.stderr
    shard.unlink()
    assert run("inspect", folder, "--boxes", "sheet.png").stderr.count("\n") == 1
    assert run("inspect", folder).returncode == 3


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
    [("sheet.jpg", "does not end with .png; use sheet.png"), ("no/such/sheet.png", "written")],
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
    """Each picture is one read."""
    for name, data in tree(whole).items():
        bucket.put(f"marked/1.0.0/{name}", data)
    done = run("inspect", f"{bucket.url}/marked", "--boxes", "there.png")
    assert done.returncode == 0, done.stderr
    assert "8 objects in 7 images; 2 images without any" in done.stdout
    run("inspect", whole, "--boxes", "here.png")
    assert (tmp_path / "there.png").read_bytes() == (tmp_path / "here.png").read_bytes()


@pytest.mark.skipif(not (SHARED_DATA / "bccd.zip").is_file(), reason="needs the photographs")
def test_real_boxes_are_counted(tmp_path: Path) -> None:
    """The expected numbers were counted in the XML files."""
    folder = build(SHARED_DATA / "bccd.zip", tmp_path / "out", boxes="voc", size="none").path
    facts = read_facts(open_dataset(folder))
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


def test_a_build_names_the_version_to_inspect_unless_it_is_the_newest(
    run: Callable[..., Done], tmp_path: Path
) -> None:
    write_folder(tmp_path / "pets", animals(2))
    for version, named in (("1.5.0", "pets\n"), ("1.4.5", "pets/1.4.5\n")):
        made = run("build", "pets", "--version", version).stdout
        assert f"next      shardprep inspect tfrecords/{named}" in made
    again = run("build", "pets", "--version", "1.4.5").stdout
    assert "nothing to do. `shardprep verify tfrecords/pets/1.4.5` checks its files." in again
