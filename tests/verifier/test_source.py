"""A dataset is compared with the present state of a source.

The oracle is the dictionary of members that each source is made of.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardprep
from shardprep.api.json_types import VerifyJson
from shardprep.dataset.diff import SOURCE_MEANINGS, SourceDifference
from shardprep.dataset.folder import read_schema
from shardprep.dataset.item_table import read_items
from shardprep.dataset.open_dataset import open_dataset
from shardprep.errors import DatasetError, SourceError
from shardprep.verifier.dataset import compare_source
from shardprep.writer.originals import _AT_ONCE
from tests.support.annotated import grey_png
from tests.support.builders import (
    Quiet,
    animals,
    build,
    jpeg,
    tar_bytes,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import error_of, run
from tests.support.json_page import printed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.object_store import Bucket

KEYS: dict[str, Any] = {
    "shards": 2, "size": "16x16", "labels": "prefix", "exclude": ["drafts/*"], "max_rejected": 1.0,
}  # fmt: skip
BAD = {"train/cat.90.jpg": b"\xff\xd8\xff no more", "train/dog.91.jpg": b""}
IMAGES = {**animals(_AT_ONCE + 10), **BAD, "drafts/cat.1.jpg": jpeg(seed=70), "notes.txt": b"so"}
"""Two of them are rejected, one is not wanted."""
NUM_ITEMS = len(IMAGES) - 2


@pytest.fixture(name="pets", scope="module")
def _pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write(tmp_path_factory.mktemp("pets") / "pets.zip", zip_bytes(IMAGES))
    return build(source, source.parent / "out", **KEYS).path


def compared(dataset: Path | str, source: Path | str, num_threads: int = 2) -> SourceDifference:
    watcher = Quiet()
    found = compare_source(
        open_dataset(dataset), str(source), num_threads=num_threads, watcher=watcher
    )
    num = found.num_changes
    assert watcher.num_new == found.num_before - num["gone"] + num["new"]
    return found


def differences(found: SourceDifference) -> dict[str, tuple[str, str, str]]:
    """Return kind, before and after of each by its key; their numbers are those that it says."""
    rows = [one for kind in SOURCE_MEANINGS for one in found.some(kind, 1000)]
    counts = {kind: sum(one.kind == kind for one in rows) for kind in SOURCE_MEANINGS}
    assert (counts, len(rows)) == (found.num_changes, found.changes.num_rows)
    assert found.is_equal == (not rows)
    return {one.key: one[1:] for one in rows}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


FORMS: dict[str, Callable[[Path], Path]] = {
    "zip": lambda at: write(at / "again.zip", zip_bytes(IMAGES)),
    "folder": lambda at: write_folder(at / "folder", IMAGES),
    "compressed tar": lambda at: write(at / "again.tar.gz", tar_bytes(IMAGES, "gz")),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_source_with_the_same_bytes_is_equal_in_any_form(
    form: str, pets: Path, tmp_path: Path
) -> None:
    found = compared(pets, FORMS[form](tmp_path))
    assert differences(found) == {}
    assert (found.num_before, found.num_same) == (NUM_ITEMS, NUM_ITEMS)


def test_changed_missing_moved_and_new_images_are_named(pets: Path, tmp_path: Path) -> None:
    now = dict(IMAGES)
    cut = bytearray(now["train/cat.0.jpg"])
    cut[-1] ^= 1
    now["train/cat.0.jpg"] = bytes(cut)
    gone = now.pop("train/dog.1.jpg")
    now["other/cat.2.jpg"] = moved = now.pop("train/cat.2.jpg")
    now["train/cat.90.jpg"] = mended = jpeg(seed=90)
    now["train/new.jpg"] = new = jpeg(seed=91)
    now["drafts/more.jpg"] = jpeg(seed=92)  # which the options of the dataset leave out
    source = write(tmp_path / "now.zip", zip_bytes(now))
    found = compared(pets, source, num_threads=3)
    assert differences(found) == differences(compared(pets, source, num_threads=1))
    before = IMAGES["train/cat.0.jpg"], BAD["train/cat.90.jpg"]
    assert differences(found) == {
        "train/cat.0.jpg": ("changed", sha256(before[0]), sha256(bytes(cut))),
        "train/cat.90.jpg": ("changed", sha256(before[1]), sha256(mended)),
        "train/dog.1.jpg": ("gone", sha256(gone), ""),
        "train/cat.2.jpg": ("moved", sha256(moved), "other/cat.2.jpg"),
        "train/new.jpg": ("new", "", sha256(new)),
    }
    assert found.num_same == NUM_ITEMS - 4


def test_copies_that_move_are_paired_once_each(tmp_path: Path) -> None:
    same, other = jpeg(seed=1), jpeg(seed=2)
    before = {"a/cat.1.jpg": same, "a/cat.2.jpg": same, "a/dog.3.jpg": other}
    now = {"b/cat.1.jpg": same, "b/dog.3.jpg": other, "b/dog.4.jpg": other}
    dataset = build(write(tmp_path / "pets.zip", zip_bytes(before)), tmp_path / "out", **KEYS).path
    found = compared(dataset, write(tmp_path / "now.zip", zip_bytes(now)))
    assert {key: row[0::2] for key, row in differences(found).items()} in [
        {
            one: ("moved", "b/cat.1.jpg"),
            two: ("gone", ""),
            "a/dog.3.jpg": ("moved", "b/dog.3.jpg"),
            "b/dog.4.jpg": ("new", sha256(other)),
        }
        for one, two in (("a/cat.1.jpg", "a/cat.2.jpg"), ("a/cat.2.jpg", "a/cat.1.jpg"))
    ]


def test_an_unreadable_image_has_a_reason_and_is_equal_if_it_was_always_unreadable(
    tmp_path: Path,
) -> None:
    """A member of a zip whose bytes are not those of its CRC-32."""
    images = {"cat.1.jpg": jpeg(seed=1), "dog.2.jpg": jpeg(seed=2), "dog.3.jpg": jpeg(seed=3)}
    good = zip_bytes(images, method=zipfile.ZIP_STORED)
    spoilt = good.replace(images["dog.2.jpg"], images["dog.2.jpg"][:-1] + b"x")
    assert spoilt != good
    whole, damaged = write(tmp_path / "pets.zip", good), write(tmp_path / "bad.zip", spoilt)
    dataset = build(whole, tmp_path / "out", **KEYS).path
    (key, (kind, before, after)), *more = differences(compared(dataset, damaged)).items()
    assert (key, kind, before, more) == ("dog.2.jpg", "unreadable", sha256(images[key]), [])
    assert re.match("CRC-32 is [0-9a-f]{8}, the archive says", after)
    other = build(damaged, tmp_path / "other", name="pets", **KEYS).path
    assert differences(compared(other, damaged)) == {}
    changed = differences(compared(other, whole))
    assert changed == {"dog.2.jpg": ("changed", "", sha256(images["dog.2.jpg"]))}


def test_images_in_inner_archives_are_compared(tmp_path: Path) -> None:
    def source(name: str, images: dict[str, bytes]) -> Path:
        return write(tmp_path / name, zip_bytes({"in.zip": zip_bytes(images), "x.jpg": jpeg()}))

    pets = source("pets.zip", animals(6))
    dataset = build(pets, tmp_path / "out", size="16x16", labels="none").path
    now = {**animals(6), "train/dog.2.jpg": jpeg(seed=50)}
    found = compared(dataset, source("now.zip", now))
    before, after = sha256(animals(6)["train/dog.2.jpg"]), sha256(jpeg(seed=50))
    assert differences(found) == {"in.zip/train/dog.2.jpg": ("changed", before, after)}


def test_masks_and_images_that_were_left_out_are_not_new(tmp_path: Path) -> None:
    """Masks that the build has recognised, an image without a label, and a near copy."""
    images = {f"images/{i}.jpg": jpeg(seed=i, height=40, width=40) for i in range(4)}
    mask = grey_png(np.arange(1600, dtype=np.uint8).reshape(40, 40) % 2)
    members = {**images, **{f"masks/{i}.png": mask for i in range(4)}}
    out = tmp_path / "out"
    dataset = build(write(tmp_path / "masked.zip", zip_bytes(members)), out, size="16x16").path
    assert read_schema(dataset).annotations
    members["images/9.jpg"] = new = jpeg(seed=9)
    found = compared(dataset, write(tmp_path / "masked.zip", zip_bytes(members)))
    assert differences(found) == {"images/9.jpg": ("new", "", sha256(new))}
    images = {**animals(6), "train/copy.jpg": animals(6)["train/cat.0.jpg"]}
    table = "".join(f"{key},pet\n" for key in images if "dog.1" not in key)
    labelled = {**images, "labels.csv": f"id,label\n{table}".encode()}
    source = write(tmp_path / "labelled.zip", zip_bytes(labelled))
    keys: dict[str, Any] = {"labels": "csv:labels.csv:id:label", "dedup": "near", "size": "16x16"}
    dataset = build(source, out, **keys).path
    status = read_items(dataset / "items.parquet")["status"].to_pylist()
    assert (status.count("written"), status.count("skipped")) == (5, 3)
    del labelled["labels.csv"]  # what an image is need not be known
    assert differences(compared(dataset, write(source, zip_bytes(labelled)))) == {}


def test_a_source_in_object_storage_is_compared(pets: Path, bucket: Bucket) -> None:
    now = {**IMAGES, "train/cat.0.jpg": jpeg(seed=99)}
    address = bucket.put("pets/now.zip", zip_bytes(now))
    found = compared(pets, address)
    before, after = sha256(IMAGES["train/cat.0.jpg"]), sha256(now["train/cat.0.jpg"])
    assert differences(found) == {"train/cat.0.jpg": ("changed", before, after)}


def test_a_repacked_dataset_and_a_source_without_images_are_errors(
    pets: Path, tmp_path: Path
) -> None:
    again = shardprep.repack(pets, tmp_path / "out").path
    source = pets.parents[2] / "pets.zip"
    with pytest.raises(DatasetError, match="was repacked from other datasets"):
        compared(again, source)
    folder = write_folder(tmp_path / "empty", {"notes.txt": b"so"})
    with pytest.raises(SourceError, match="no image"):
        compared(pets, folder)


def test_the_command_reports_differences_and_exits_with_3(pets: Path, tmp_path: Path) -> None:
    source = pets.parents[2] / "pets.zip"
    same = run("verify", pets, "--against", source, cwd=tmp_path)
    assert (same.returncode, same.stderr) == (0, "")
    assert f"all {NUM_ITEMS} images are equal to the source, byte for byte" in same.stdout
    now = {**IMAGES, "train/dog.1.jpg": jpeg(seed=99)}
    other = write(tmp_path / "now.zip", zip_bytes(now))
    differs = run("verify", pets, "--against", other, cwd=tmp_path)
    assert differs.returncode == 3
    assert "checked: no problem found" in differs.stdout
    assert re.search(r"^changed +1  images of the dataset", differs.stdout, re.MULTILINE)
    as_json = run("verify", pets, "--against", other, "--json", cwd=tmp_path)
    found = printed(as_json.stdout, VerifyJson)
    assert (as_json.returncode, found["problems"]) == (3, [])
    assert [one["key"] for one in found["against"]["changes"]] == ["train/dog.1.jpg"]
    in_python = shardprep.verify(pets, against=other, workers=1)
    assert in_python.against is not None
    assert (in_python.problems, in_python.against.num_changes["changed"]) == ((), 1)
    assert "against: " in repr(in_python)
    lost = run("verify", pets, "--against", "nowhere.zip", cwd=tmp_path)
    assert error_of(lost, 1).startswith("nowhere.zip: no such file or folder")
