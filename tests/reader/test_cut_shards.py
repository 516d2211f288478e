"""A shard that is cut in place while it is read is an error with its name, no end by SIGBUS."""

from __future__ import annotations

import errno
import shutil
from typing import TYPE_CHECKING

import pytest

from shardprep import reader
from shardprep.errors import DatasetError
from shardprep.reader.records import shards
from tests.reader.datasets import pets
from tests.support.builders import animals
from tests.support.processes import Program

if TYPE_CHECKING:
    from pathlib import Path

CUT = """
import os, sys
from pathlib import Path
from shardprep import reader
folder = Path(sys.argv[1])
batches = iter({batches})
next(batches)
for shard in folder.glob("*.tfrecord-*"):
    os.truncate(shard, 0)
try:
    for _ in batches:
        pass
except Exception as error:
    print(error)
"""
LOAD = "reader.load(folder, batch_size=8, shuffle=False, repeat=True)"
ARRAYS = "reader.Dataset(folder).batches(8, shuffle=True, epochs=None)"


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, form: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = pets(tmp_path_factory, animals(60), shards=1, size="64x48", format=form)
    return shutil.copytree(whole, tmp_path / "pets")


@pytest.mark.parametrize("form", ["jpeg", "raw"])
@pytest.mark.parametrize("batches", [LOAD, ARRAYS])
def test_a_cut_shard_is_an_error_and_no_signal(folder: Path, batches: str) -> None:
    code = CUT.replace("{batches}", batches)
    if batches == LOAD:  # images that small are else left to TensorFlow
        code = (
            "from shardprep.reader.tf import decode\n"
            "decode._PIXELS_A_CORE, decode._MOST_CORES = 0, {'jpeg': 99, 'raw': 99}\n"
        ) + code
    done = Program(code, folder).wait()
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "its shard was truncated while it was read: 0 of " in done.stdout
    assert f"{folder}/" in done.stdout


@pytest.mark.parametrize("form", ["raw"])
def test_an_error_of_the_disk_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = reader.Dataset(folder)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(shards, "read_at", fail)
    with pytest.raises(DatasetError, match=r"tfrecord-0.*cannot be read \(Input/output error\)"):
        dataset[0]
