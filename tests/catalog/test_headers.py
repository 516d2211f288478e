"""Columns and groups of DICOM headers, where no table has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.dataset.item_table import read_items
from shardprep.errors import RecipeError
from shardprep.reader import Dataset
from tests.support.builders import build, png, write_folder
from tests.support.dicom import dicom

SPLIT = "train=0.5,validation=0.5"


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    """Return a folder of two slices for each of four patients, a PNG and a table of labels."""
    slices = {
        f"slices/{i}.dcm": dicom(
            np.full((8, 8), i * 20, np.uint8), PatientID=f"p{i // 2}", SeriesInstanceUID=f"1.2.{i}",
            SliceThickness=str(i + 0.5),
        )
        for i in range(8)
    }  # fmt: skip
    labels = "".join(f"{i},{'ab'[i % 2]}\n" for i in range(8))
    return write_folder(tmp_path / "s", {**slices, "labels.csv": f"id,label\n{labels}".encode()})


def test_ids_of_headers_are_features_and_keep_patients_together(
    source: Path, tmp_path: Path
) -> None:
    columns = ["dicom/PatientID", "dicom/SeriesInstanceUID", "dicom/SliceThickness"]
    built = build(
        source, tmp_path / "out", size="8x8", columns=columns, group="dicom/PatientID", split=SPLIT
    )
    found: dict[str, Any] = {}
    for split in ("train", "validation"):
        for one in Dataset(built.path, split, as_supervised=False):
            number = int(one["image/filename"].split("/")[-1].removesuffix(".dcm"))
            assert one["dicom/PatientID"] == f"p{number // 2}"
            assert one["dicom/SeriesInstanceUID"] == f"1.2.{number}"
            assert one["dicom/SliceThickness"] == number + 0.5
            assert one["label"] == number % 2
            assert found.setdefault(one["dicom/PatientID"], split) == split
    assert len(found) == 4
    groups = read_items(built.path / "items.parquet", ["key", "group"]).to_pylist()
    assert {row["group"] for row in groups if row["key"].endswith("dcm")} == {*found}


def test_an_image_without_the_element_has_an_empty_cell(source: Path, tmp_path: Path) -> None:
    (source / "slices" / "8.png").write_bytes(png())
    built = build(source, tmp_path / "out", labels="none", size="8x8", columns="dicom/PatientID")
    ids = [one["dicom/PatientID"] for one in Dataset(built.path, "train", as_supervised=False)]
    assert sorted(ids) == sorted(["", *(f"p{i // 2}" for i in range(8))])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dicom/PatientId", "is dicom/PatientID meant"),
        ("dicom/PixelData", "not an element of DICOM"),
    ],
)
def test_an_unknown_keyword_is_an_error(source: Path, tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        build(source, tmp_path / "out", size="8x8", columns=name)
