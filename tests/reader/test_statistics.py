"""`reader.mean_std` against NumPy."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep import reader
from shardprep.errors import DatasetError, RecordError
from tests.reader.datasets import damage, pets
from tests.support.builders import animals


@pytest.fixture(scope="module", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return one source as JPEG of mixed sizes and as raw pixels of one size."""
    options: dict[str, dict[str, Any]] = {
        "mixed": {"fit": "none", "format": "jpeg"}, "raw": {"size": "16x12", "format": "raw"},
    }  # fmt: skip
    return {
        name: pets(tmp_path_factory, animals(70), shards=2, **one) for name, one in options.items()
    }


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("form", ["mixed", "raw"])
def test_mean_and_deviation_are_equal_to_those_of_numpy(
    folders: dict[str, Path], form: str
) -> None:
    for split in ("train", "train[:7]", reader.select(folders[form], label="cat")):
        images = [image for image, _ in reader.Dataset(folders[form], split)]
        pixels = np.concatenate([one.reshape(-1, 3) for one in images]) / 255
        mean, std = reader.mean_std(folders[form], split)
        np.testing.assert_allclose(mean, pixels.mean(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(std, pixels.std(axis=0), rtol=0, atol=1e-9)


def test_mean_std_is_cached_by_the_hash_of_the_manifest(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reader.mean_std(folders["raw"])
    (cached,) = (tmp_path / "cache" / "channels").iterdir()
    with monkeypatch.context() as patch:  # a cache that cannot be created
        patch.setenv("SHARDPREP_CACHE", str(cached))
        assert reader.mean_std(folders["raw"]) == found

    def refused(*_: Any) -> Any:
        raise AssertionError("decoded again")

    monkeypatch.setattr("shardprep.reader.selection.statistics.ExampleReader", refused)
    assert reader.mean_std(folders["raw"]) == found
    with pytest.raises(AssertionError):
        reader.mean_std(folders["raw"], "train[:-1]")
    np.savez(empty := tmp_path / "empty.npz", counts=np.zeros((3, 256), np.int64))
    for damaged in (b"[1, 2", empty.read_bytes()):
        cached.write_bytes(damaged)
        with pytest.raises(AssertionError):
            reader.mean_std(folders["raw"])


def test_a_damaged_record_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["raw"], tmp_path / "copy")
    damage(folder, 0)
    with pytest.raises(RecordError, match="record 0"):
        reader.mean_std(folder)
    with pytest.raises(DatasetError, match="no split 'trian'"):
        reader.mean_std(folder, "trian")
