"""Files are written in small pieces, and are complete or absent."""

import io
import os
from pathlib import Path

import pytest

from shardprep.storage.atomic_file import DurableFile, write_pieces


class Told(io.RawIOBase):
    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        self.pieces.append(bytes(data))  # type: ignore[call-overload]
        return len(self.pieces[-1])


@pytest.mark.parametrize("num_bytes", [0, 1, 131_072, 131_073, 1_000_000])
def test_at_most_128_kib_are_written_at_once(num_bytes: int) -> None:
    data, file = os.urandom(num_bytes), Told()
    with io.BufferedWriter(file) as stream:
        write_pieces(stream, data)
    assert b"".join(file.pieces) == data
    assert max(map(len, file.pieces), default=0) <= 131_072


def test_several_writes_are_one_file(tmp_path: Path) -> None:
    parts = [os.urandom(size) for size in (5, 300_000, 0, 9_000)]
    with DurableFile(tmp_path / "shard") as file:
        for part in parts:
            file.write(bytearray(part))
        file.commit()
    assert (tmp_path / "shard").read_bytes() == b"".join(parts)


@pytest.mark.parametrize("name", ["", "folder"])
def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        DurableFile(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_file_that_was_handed_over_is_committed_later_or_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(descriptor)

    files = [DurableFile(tmp_path / name) for name in ("shard", "other")]
    commits = []
    for handed_over in files:
        with handed_over as file:
            file.write(b"abc")
            commits.append(file.hand_over())
        assert not file.path.exists()
    commits[0]()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"\d"):
        commits[1]()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"shard": b"abc"}
    assert all(file.stream.closed for file in files)
