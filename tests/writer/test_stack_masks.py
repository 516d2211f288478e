"""Masks of stacks and masks in arrays, built from miniatures of four competitions.

The originals are read independently, by Pillow and NumPy, and compared with the stored masks.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardprep
from shardprep.dataset.item_table import read_items
from shardprep.dataset.open_dataset import open_dataset
from tests.support.builders import build, encoded, write, zip_bytes
from tests.writer.records import png, records

Array = np.ndarray[Any, np.dtype[Any]]
HEIGHT, WIDTH = 12, 16


def blocks(seed: int, number: int, values: int = 2) -> Array:
    """Return masks of squares of 4 pixels, so that half of the size has no mixed pixels."""
    small = np.random.default_rng(seed).integers(0, values, (number, HEIGHT // 4, WIDTH // 4))
    return small.repeat(4, axis=1).repeat(4, axis=2).astype(np.uint8)


def deep(seed: int, number: int) -> Array:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 65_536, (number, HEIGHT, WIDTH), np.uint16)


def tiff(pixels: Array) -> bytes:
    return encoded(Image.fromarray(pixels), "TIFF")


def npy(array: Array) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def rows_of(path: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in read_items(path / "items.parquet").to_pylist()}


KIDNEYS = {"kidney_1_dense": 11, "kidney_2": 3}


def sennet() -> dict[str, bytes]:
    """As in SenNet: slices of 16 bits and their labels, black and white, in a folder each.

    One sample lacks a label. Another lacks an image and the label of another image.
    """
    members: dict[str, bytes] = {}
    for seed, (name, number) in enumerate((*KIDNEYS.items(), ("kidney_3", 4), ("kidney_4", 4))):
        for i, (image, mask) in enumerate(
            zip(deep(seed, number), blocks(seed, number), strict=True)
        ):
            members[f"train/{name}/images/{i}.tif"] = tiff(image)
            members[f"train/{name}/labels/{i}.tif"] = tiff(mask * 255)
    for lost in ("kidney_3/labels/1", "kidney_4/images/1", "kidney_4/labels/2"):
        del members[f"train/{lost}.tif"]
    return members | {"train/kidney_5/labels/0.tif": tiff(blocks(5, 1)[0])}


SENNET: dict[str, Any] = {
    "stack": "train/{id}/images/*.tif",
    "masks": "{id}/labels/*.tif",
    "depth": 16,
    "size": "none",
    "shards": 1,
    "max_rejected": 0.5,
}


@pytest.fixture(name="kidneys", scope="module")
def _kidneys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sennet")
    return build(write(folder / "sennet.zip", zip_bytes(sennet())), folder / "out", **SENNET).path


def test_each_image_of_a_stack_has_its_mask(kidneys: Path) -> None:
    found = records(kidneys)
    assert found.keys() == {f"train/{name}" for name in KIDNEYS}
    counts = {0: 0, 1: 0}
    for seed, (name, number) in enumerate(KIDNEYS.items()):
        row = found[f"train/{name}"]
        assert (np.array([*map(png, row["images"])]) == deep(seed, number)).all()
        masks = np.array([*map(png, row["segmentation_mask"])])
        assert masks.dtype == np.uint8
        assert (masks == blocks(seed, number)).all()
        pixels = dict(rows_of(kidneys)[f"train/{name}"]["mask_pixels"])
        assert pixels == {value: int((masks == value).sum()) for value in (0, 1)}
        counts = {value: counts[value] + pixels[value] for value in counts}
    dataset = open_dataset(kidneys)
    assert dataset.schema.features["segmentation_mask"].repeated
    assert dataset.schema.features["segmentation_mask"].labels == ("background", "object")
    assert dataset.manifest.annotations["train"].masks.pixels == {
        "background": counts[0],
        "object": counts[1],
    }
    assert not shardprep.verify(kidneys, decode=True).problems


def test_masks_that_do_not_fit_the_images_reject_the_sample(kidneys: Path) -> None:
    rows = rows_of(kidneys)
    reasons = {
        "train/kidney_3": "it has 3 masks, and 4 images",
        "train/kidney_4": "its mask 1.tif does not belong to the image 2.tif",
    }
    for key, reason in reasons.items():
        assert (rows[key]["kind"], rows[key]["reason"]) == ("bad_mask", reason)
    totals = open_dataset(kidneys).manifest.totals
    assert totals.rejected == {"bad_mask": 2}
    assert totals.skipped == {"a mask without its image": 1}
