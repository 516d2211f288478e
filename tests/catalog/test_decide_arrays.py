"""Masks and splits in files of arrays, which a question shows as flags."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.catalog.survey import recipe_text, survey_source
from shardprep.dataset import example, tfrecord
from tests.support.arrays import npy, npz
from tests.support.builders import jpeg, write_folder
from tests.support.first_contact import outcome
from tests.support.scenes import picture


def _asked(folder: Path, members: dict[str, bytes]) -> str:
    return outcome(write_folder(folder / "source", members), {}).error


def test_masks_in_npy_files_are_of_images_of_their_names(tmp_path: Path) -> None:
    masks = {f"train_masks/{i}.npy": npy(np.zeros((48, 64), np.uint8)) for i in range(6)}
    images = {f"train_images/{i}.png": picture("scene", "a.png", str(i)) for i in range(6)}
    found = _asked(tmp_path / "a", images | masks)
    assert "--masks 'train_masks/{stem}.npy' (" in found
    twice = {f"{name}/{i}.png": data for name in ("real", "forged") for i, data in
             enumerate(images.values())}  # fmt: skip
    found = _asked(tmp_path / "b", twice | masks)
    assert "--exclude 'real/*' --masks 'train_masks/{stem}.npy' (" in found
    assert "--labels folder (" in found
    proposed = survey_source(tmp_path / "b/source", tmp_path / "work", lambda _: None)
    assert '# masks = "train_masks/{stem}.npy"' in recipe_text(proposed)


def test_the_score_of_a_search_is_no_label_without_a_question(tmp_path: Path) -> None:
    for title, is_asked in (("sim_score", True), ("mos_score", False)):
        columns = {
            "image": [jpeg(16, 16, i) for i in range(8)],
            "name": [f"the {i * 7}th of them" for i in range(8)],
            "found": [f"near the river {i}" for i in range(8)],
            title: [0.8 + i / 100 for i in range(8)],
        }
        pq.write_table(pa.table(columns), tmp_path / "train.parquet")
        error = _asked(
            tmp_path / title, {"train.parquet": (tmp_path / "train.parquet").read_bytes()}
        )
        assert ("--labels none (" in error) == is_asked


def test_arrays_that_are_not_named_like_images_are_no_masks(tmp_path: Path) -> None:
    arrays = {f"masks/{i}.npy": npy(np.zeros((48, 64), np.uint8)) for i in range(6)}
    images = {f"{name}/{name}{i}.png": picture("scene", "a.png", f"{name}{i}")
              for name in ("cat", "dog") for i in range(6)}  # fmt: skip
    assert not _asked(tmp_path, arrays | images)


def test_a_split_that_is_in_an_hdf5_file_alone_is_asked_for(tmp_path: Path) -> None:
    images = {f"train/{name}/{i}.png": picture("scene", "a.png", f"{name}{i}")
              for name in ("cat", "dog") for i in range(6)}  # fmt: skip
    found = _asked(tmp_path, images | {"test-image.hdf5": b"\x89HDF\r\n\x1a\n"})
    assert "--images test-image.hdf5 (" in found


def _npz(**arrays: Any) -> bytes:
    return npz(x=np.random.default_rng(1).integers(0, 256, (12, 9, 16), np.uint8), **arrays)


def test_two_arrays_of_classes_are_asked_about_and_y_is_the_label(tmp_path: Path) -> None:
    fine, coarse = np.arange(12) % 4, np.arange(12) % 2
    found = _asked(tmp_path / "a", {"d.npz": _npz(fine_labels=fine, coarse_labels=coarse)})
    assert "--labels column:coarse_labels (" in found
    assert "--labels column:fine_labels (" in found
    source = write_folder(tmp_path / "b", {"d.npz": _npz(y=coarse, z=fine)})
    made = outcome(source, {})
    assert made.facts["d.npz/x.npy/000001"]["label"] == "1"
    assert any("--labels column:y is decided" in note for note in made.notes)


def test_one_of_several_sizes_of_records_is_asked_for_and_ids_are_no_classes(
    tmp_path: Path,
) -> None:
    """The sample submission has the title `id`, too. Other numbers of images are other images."""
    members: dict[str, bytes] = {"sample_submission.csv": b"id,label\nid0,0\n"}
    for size, i in itertools.product((16, 32), range(4)):
        photo = picture("scene", "a.jpg", str(i), (size, size))
        own: dict[str, Any] = {"image": [photo], "id": [b"id%d" % i], "class": [i % 2]}
        examples = [own, *({**own, "id": [b"id%d" % (i + k)]} for k in (4, 8))]
        frames = [tfrecord.frame(example.encode(one)) for one in examples]
        members[f"set-{size}x{size}/train/{i:02d}-{size}x{size}-3.tfrec"] = b"".join(frames)
    asked = _asked(tmp_path / "a", members)
    assert "--root set-16x16 (set-16x16, set-32x32 differ only in a size" in asked
    assert "--root set-32x32 (" in asked
    del members["set-32x32/train/03-32x32-3.tfrec"]
    found = outcome(write_folder(tmp_path / "b", members), {})
    assert {one["label"] for one in found.facts.values()} == {"0", "1"}
    assert len(found.facts) == 21


def test_two_images_in_each_file_of_records_are_no_pairs(tmp_path: Path) -> None:
    members = dict[str, bytes]()
    for i in range(8):
        photos = [picture("scene", "a.jpg", f"{i} {k}", (16, 16)) for k in range(2)]
        each: list[dict[str, Any]] = [{"image": [photos[k]], "label": [k]} for k in range(2)]
        frames = [tfrecord.frame(example.encode(one)) for one in each]
        members[f"train/{i}.tfrec"] = b"".join(frames)
    found = outcome(write_folder(tmp_path / "source", members), {})
    assert found.facts["train/3.tfrec/000001"] == {"split": "train", "label": "1"}


def test_a_large_file_of_images_beside_one_picture_is_asked_for(tmp_path: Path) -> None:
    """A small file beside it, or one beside many pictures, is not."""
    photos = {f"pets/{i}.jpg": picture("scene", "a.jpg", str(i), (64, 48)) for i in range(12)}
    logo, file = {"logo.jpg": photos["pets/0.jpg"]}, b"PAR1" + bytes(50_000) + b"PAR1"
    found = _asked(tmp_path / "1", {**logo, "data/train.parquet": file})
    assert "--images '*.parquet' (1 file such as data/train.parquet may have images)" in found
    assert "--exclude '*.parquet' (1 picture without these files)" in found
    assert not _asked(tmp_path / "2", {**photos, "train.parquet": file})
    assert not _asked(tmp_path / "3", {**logo, "train.parquet": file[-400:]})
