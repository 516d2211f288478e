"""The system is asked to read files ahead, so that a cold disk reads in parallel."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.range_reads import read_ahead

MEGABYTE = 1 << 20
pytestmark = pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="this system cannot be told of reads"
)


@pytest.fixture
def told() -> Iterator[list[tuple[int, int, int, int]]]:
    """The calls of posix_fadvise: file by inode, offset, bytes, advice."""
    calls: list[tuple[int, int, int, int]] = []

    def record(descriptor: int, offset: int, num_bytes: int, advice: int) -> None:
        calls.append((os.fstat(descriptor).st_ino, offset, num_bytes, advice))

    with patch.object(os, "posix_fadvise", record):
        yield calls


def files(folder: Path, sizes: Sequence[int]) -> list[PlainExtent]:
    """Write files that hold nothing, and return them whole."""
    found = []
    for i, num_bytes in enumerate(sizes):
        path = folder / f"{i}"
        path.touch()
        os.truncate(path, num_bytes)
        found.append(PlainExtent(str(path), 0, num_bytes))
    return found


def num_open(spans: list[PlainExtent]) -> int:
    """Return how many descriptors of these files are open."""
    inodes = {Path(span.file).stat().st_ino for span in spans}
    found = 0
    for descriptor in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself, closed by now
            found += os.fstat(int(descriptor.name)).st_ino in inodes
    return found


def most_ahead(spans: list[PlainExtent], told: list[tuple[int, int, int, int]]) -> list[int]:
    """Return for each span how many are announced and not yet used."""
    return [len(told) - i for i, _ in enumerate(read_ahead(spans))]


def test_each_file_is_announced_once_in_order(
    tmp_path: Path, told: list[tuple[int, int, int, int]]
) -> None:
    spans = files(tmp_path, [1000 + i for i in range(200)])
    ahead = most_ahead(spans, told)
    wanted = [(Path(s.file).stat().st_ino, 0, s.num_bytes, os.POSIX_FADV_WILLNEED) for s in spans]
    assert told == wanted
    assert ahead[:136] == [64] * 136
    assert ahead[136:] == list(range(64, 0, -1))


def test_read_ahead_has_a_limit_in_bytes_and_skips_empty_members(
    tmp_path: Path, told: list[tuple[int, int, int, int]]
) -> None:
    assert max(most_ahead(files(tmp_path, [3 * MEGABYTE] * 9), told)) == 3
    told.clear()
    assert max(most_ahead(files(tmp_path, [100 * MEGABYTE] * 3), told)) == 1
    assert {num_bytes for _, _, num_bytes, _ in told} == {8 * MEGABYTE}
    told.clear()
    (whole,) = files(tmp_path, [1000])
    spans = [whole._replace(offset=700, num_bytes=10), whole._replace(offset=30, num_bytes=0)]
    assert list(read_ahead(spans)) == spans
    assert [call[1:3] for call in told] == [(700, 10)]


def test_an_unreadable_file_is_an_error_only_when_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    names = ("pipe", "link", "missing", "folder")
    (tmp_path / "folder").mkdir()
    spans = [PlainExtent(str(tmp_path / name), 0, 2**63 - 1) for name in names]
    for span in read_ahead(spans):
        with pytest.raises(MemberError):
            span.read()


def test_files_are_read_on_a_system_without_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = files(tmp_path, [5, 6])
    monkeypatch.delattr(os, "posix_fadvise")
    assert [span.read() for span in read_ahead(spans)] == [bytes(5), bytes(6)]


def test_bytes_are_read_into_a_buffer_with_and_without_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    spans = [PlainExtent(str(path), at, 10) for at in (0, 50, 90)]
    monkeypatch.setattr(PlainExtent, "read", None)  # ahead, nothing is read but into the buffer
    for span in read_ahead(spans):
        buffer = bytearray(12)
        span.read_into(memoryview(buffer)[1:11])
        assert buffer == bytes((0, *range(span.offset, span.offset + 10), 0))
    monkeypatch.undo()
    buffer = bytearray(10)
    spans[1].read_into(memoryview(buffer))
    assert buffer == bytes(range(50, 60))
    for span in read_ahead([PlainExtent(str(path), 95, 10)]):
        with pytest.raises(MemberError, match="is truncated: it has 5 of 10 bytes"):
            span.read_into(memoryview(buffer))


def test_files_are_opened_once_and_closed_after_reading(tmp_path: Path) -> None:
    spans = files(tmp_path, [4] * 300)
    most = 0
    with patch.object(os, "open", side_effect=os.open) as opened:
        for span in read_ahead(spans):
            assert span.read() == bytes(4)
            most = max(most, num_open(spans))
    paths = [call.args[0] for call in opened.call_args_list]
    assert sorted(path for path in paths if str(path).startswith(str(tmp_path))) == sorted(
        span.file for span in spans
    )
    assert 1 < most <= 128
    assert num_open(spans) == 0


def test_an_archive_is_open_only_while_its_members_are_read(tmp_path: Path) -> None:
    (whole,) = files(tmp_path, [1000])
    spans = [whole._replace(offset=10 * i, num_bytes=10) for i in range(100)]
    with patch.object(os, "open", side_effect=os.open) as opened:
        with closing(read_ahead(spans)) as ahead:
            assert [next(ahead).read() for _ in spans[:50]] == 50 * [bytes(10)]
        assert opened.call_count == 1
    Path(whole.file).write_bytes(b"replaced")
    assert whole._replace(num_bytes=8).read() == b"replaced"
