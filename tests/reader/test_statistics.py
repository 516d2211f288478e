"""`reader.mean_std` is what NumPy says of all pixels, and is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.errors import DatasetError, RecordError
from tests.reader.datasets import pets
from tests.support.builders import animals

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one source as JPEG of mixed sizes and as raw pixels of one size."""
    options: dict[str, dict[str, Any]] = {
        "mixed": {"fit": "none", "format": "jpeg"}, "raw": {"size": "16x12", "format": "raw"},
    }  # fmt: skip
    return {
        name: pets(tmp_path_factory, animals(90), shards=2, **one) for name, one in options.items()
    }


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("form", ["mixed", "raw"])
def test_mean_and_deviation_are_those_of_numpy(folders: dict[str, Path], form: str) -> None:
    for split in ("train", "train[:7]", reader.select(folders[form], label="cat")):
        images = [
            item["image"] for item in reader.Dataset(folders[form], split, as_supervised=False)
        ]
        pixels = np.concatenate([one.reshape(-1, 3) for one in images]) / 255
        mean, std = reader.mean_std(folders[form], split)
        np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(std, pixels.std(axis=0), rtol=0, atol=1e-9)


def test_what_was_counted_is_kept_by_the_hash_of_the_manifest(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reader.mean_std(folders["raw"])
    (kept,) = (tmp_path / "cache" / "channels").iterdir()

    def refused(*_: Any) -> Any:
        raise AssertionError("decoded again")

    monkeypatch.setattr("shardprep.reader.selection.statistics.ExampleReader", refused)
    assert reader.mean_std(folders["raw"]) == found
    with pytest.raises(AssertionError):
        reader.mean_std(folders["raw"], "train[:-1]")
    kept.write_bytes(b"[1, 2")
    with pytest.raises(AssertionError):
        reader.mean_std(folders["raw"])


def test_without_a_place_to_keep_it_it_is_counted_all_the_same(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "file"))
    assert reader.mean_std(folders["raw"]).mean[0] > 0


def test_a_damaged_record_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(folders["raw"], tmp_path / "copy")
    shard = next(folder.glob("*train.tfrecord*"))
    data = bytearray(shard.read_bytes())
    data[300] ^= 255
    shard.write_bytes(data)
    with pytest.raises(RecordError, match="record 0"):
        reader.mean_std(folder)
    with pytest.raises(DatasetError, match="no split 'trian'"):
        reader.mean_std(folder, "trian")
