"""Members that must not or cannot be read: links, devices, false sizes, damaged bytes."""

import io
import os
import re
import shutil
import stat
import struct
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import SourceError
from shardprep.source import byte_range
from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.members import Extent
from tests.source.hostile import GOOD, odd_zip_entry, patched, tar_entry, tar_of, with_damage
from tests.source.listed import JPEG, MEMBERS, PNG, STORED_ZIP, ZIPS, Pack, listed, listed_bytes
from tests.support.builders import tar_bytes, tree, write, write_folder, zip_bytes


def only_image(folder: Path, data: bytes) -> Extent:
    (member,) = listed_bytes(folder, data).listing.images
    return member.extent


def data_offset(data: bytes, name: str) -> int:
    """Return where the stored bytes of a zip member start."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        at = archive.getinfo(name).header_offset
    name_bytes, extra_bytes = struct.unpack_from("<2H", data, at + 26)
    return at + 30 + int(name_bytes) + int(extra_bytes)


def test_links_and_devices_of_a_tar_are_skipped(tmp_path: Path) -> None:
    kinds = {
        "soft.jpg": (tarfile.SYMTYPE, "a.jpg"),
        "out": (tarfile.SYMTYPE, "../../.."),
        "hard.jpg": (tarfile.LNKTYPE, "a.jpg"),
        "gone.jpg": (tarfile.LNKTYPE, "absent.jpg"),
        "char.jpg": (tarfile.CHRTYPE, ""),
        "block.jpg": (tarfile.BLKTYPE, ""),
        "fifo.jpg": (tarfile.FIFOTYPE, ""),
    }
    entries = [(tar_entry(name, *kind), b"") for name, kind in kinds.items()]
    data = tar_of((tar_entry("a.jpg"), JPEG), *entries, (tar_entry("out/evil.jpg"), PNG))
    source = write(tmp_path / "x/y/z/source", data)
    before = tree(tmp_path)
    found = listed(source)
    assert found.contents == {"a.jpg": JPEG, "out/evil.jpg": PNG}
    assert set(found.reasons) == set(kinds)
    assert all(found.reasons.values())
    assert tree(tmp_path) == before


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_links_and_devices_of_a_zip_are_skipped(tmp_path: Path, kind: int) -> None:
    found = listed_bytes(tmp_path, odd_zip_entry(kind))
    assert found.contents == GOOD
    assert found.reasons == {"odd.jpg": "a link or a device"}


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
def test_sparse_files_of_a_tar_are_skipped(tmp_path: Path) -> None:
    sparse = tmp_path / "f" / "sparse.jpg"
    write(tmp_path / "f" / "a.jpg", JPEG)
    with sparse.open("wb") as out:
        out.seek(1 << 20)
        out.write(b"end")
    source = tmp_path / "source"
    subprocess.run(["tar", "-Scf", source, "-C", tmp_path / "f", "."], check=True)
    with tarfile.open(source) as archive:
        assert any(info.issparse() for info in archive)
    found = listed(source)
    assert found.contents == {"a.jpg": JPEG}
    assert len(found.reasons) == 1


def test_a_folder_is_listed_without_pipes_broken_links_and_loops(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", {"a/x.jpg": JPEG, "b/y.jpg": PNG})
    (folder / "a" / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "b" / "self").symlink_to(".", target_is_directory=True)
    os.mkfifo(folder / "fifo.jpg")
    (folder / "broken.jpg").symlink_to("absent")
    found = listed(folder)
    assert found.contents == {"a/x.jpg": JPEG, "b/y.jpg": PNG}
    assert found.reasons == dict.fromkeys(("broken.jpg", "fifo.jpg"), "not a regular file")


def _locked(monkeypatch: pytest.MonkeyPatch, call: str, name: str) -> None:
    """Let a call of `os` fail for one path; the tests may run as root, whom no mode stops."""
    real = getattr(os, call)

    def fake(path: Any, *rest: Any, **named: Any) -> Any:
        if not isinstance(path, int) and os.fsdecode(path).endswith(name):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest, **named)

    monkeypatch.setattr(os, call, fake)


@pytest.mark.parametrize(("name", "call"), [("locked", "scandir"), ("locked.zip", "open")])
def test_a_folder_or_archive_without_permission_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    folder = write_folder(tmp_path / "s", {"locked/x.jpg": JPEG, "locked.zip": zip_bytes(MEMBERS)})
    _locked(monkeypatch, call, f"/{name}")
    with pytest.raises(SourceError, match=rf"{re.escape(name)}: .*Permission denied"):
        listed(folder if call == "scandir" else folder / name)


def test_a_file_without_permission_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "source", {"a.jpg": JPEG, "locked.txt": b"text"})
    _locked(monkeypatch, "open", "/locked.txt")
    reason = "unreadable: cannot be read (Permission denied)"
    assert listed(folder).reasons == {"locked.txt": reason}


# Members that cannot be read


def _bad_members() -> Iterable[tuple[str, bytes, str]]:
    for method, pack in ZIPS.items():
        good = pack({"a.jpg": JPEG})
        yield f"{method}, wrong CRC-32", patched(good, crc=1), "has the CRC-32 .* says 0{7}1"
        yield f"{method}, encrypted", patched(good, flags=1), "is encrypted"
        yield f"{method}, strongly encrypted", patched(good, flags=0x41), "is encrypted"
        yield f"{method}, Deflate64", patched(good, method=9), "packed with Deflate64"
        yield f"{method}, PPMd", patched(good, method=98), "packed with PPMd"
        yield f"{method}, unheard of", patched(good, method=77), "packed with method 77"
        yield f"{method}, no size", patched(good, size=0), "bytes, but the archive says 0"
        yield f"{method}, size too small", patched(good, size=10), "bytes, but the archive says 10$"
        yield f"{method}, size too large", patched(good, size=9**7), "says 4,782,969"
        yield f"{method}, cut short", patched(good, packed=9), "has|damaged|cut"
        yield f"{method}, nothing stored", patched(good, packed=0), "has|damaged|cut"
        beyond = patched(good, packed=9**7)
        yield f"{method}, beyond the file", beyond, "is truncated: it has .* of 4,782,969"
        yield f"{method}, no header", patched(good, header=1), "no local header at offset 1"
        yield f"{method}, header beyond the file", patched(good, header=2**32 - 2), "is truncated"
        for at in (0, 4, 40):
            damaged = with_damage(good, data_offset(good, "a.jpg") + at, b"\xff\xfe\xff\xfe\0")
            yield f"{method}, damaged at {at}", damaged, "damaged|has .* bytes|CRC"


@pytest.mark.parametrize(
    ("data", "reason"), [pytest.param(*case[1:], id=case[0]) for case in _bad_members()]
)
def test_reading_a_bad_member_raises_an_error_with_the_reason(
    tmp_path: Path, data: bytes, reason: str
) -> None:
    with pytest.raises(MemberError) as caught:
        only_image(tmp_path, data).read()
    assert re.search(reason, str(caught.value))


@pytest.mark.parametrize("number", [2**31, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("field", ["size", "packed", "header"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_false_sizes_and_offsets_of_64_bits_are_errors_of_the_member(
    tmp_path: Path, method: int, field: str, number: int
) -> None:
    info = zipfile.ZipInfo("a.jpg")
    info.extra = struct.pack("<HHQ", 1, 8, number)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(info, JPEG, compress_type=method)
    extent = only_image(tmp_path, patched(out.getvalue(), **{field: 2**32 - 1}))
    with pytest.raises(MemberError):
        extent.read()


def test_a_bomb_is_not_unpacked_past_its_stated_size(tmp_path: Path) -> None:
    bomb = zip_bytes({"a.jpg": bytes(64 << 20)})
    extent = only_image(tmp_path, patched(bomb, size=1000))
    with pytest.raises(MemberError, match="has 1,001 bytes, but the archive says 1,000"):
        extent.read()


@pytest.mark.parametrize("flags", [0, 1])
def test_a_member_without_suffix_that_cannot_be_read_is_skipped(tmp_path: Path, flags: int) -> None:
    data = patched(zip_bytes({"odd": JPEG, "a.jpg": JPEG}), method=98, flags=flags)
    found = listed_bytes(tmp_path, data)
    assert found.image_keys == ["a.jpg"]
    assert found.reasons["odd"].startswith("unreadable: is " + ("encrypted" if flags else "packed"))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda path: os.truncate(path, 100), f"is truncated: it has 100 of {len(JPEG):,} bytes"),
        (Path.unlink, r"cannot be read \(No such file or directory\)"),
    ],
    ids=["cut", "gone"],
)
def test_a_file_that_is_truncated_or_removed_after_the_listing_is_an_error(
    tmp_path: Path, change: Callable[[Path], object], line: str
) -> None:
    folder = write_folder(tmp_path / "source", {"a.jpg": JPEG})
    (member,) = listed(folder).listing.images
    change(folder / "a.jpg")
    with pytest.raises(MemberError, match=line):
        member.extent.read()


@pytest.mark.parametrize("pack", [tar_bytes, STORED_ZIP], ids=["tar", "zip"])
def test_a_replaced_file_is_opened_again(tmp_path: Path, pack: Pack) -> None:
    for data in (JPEG, bytes(reversed(JPEG))):
        packed = pack({"a.jpg": data})
        source = write(tmp_path / "new", packed).replace(tmp_path / "source")
        assert listed(source).contents == {"a.jpg": data}
        assert PlainExtent(str(source), 0, len(packed)).read() == packed


def test_a_member_is_read_in_several_calls_if_necessary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux reads at most 2.1 GB in one call. The file may shrink in between."""
    path, real = write(tmp_path / "a", bytes(range(100))), os.pread
    monkeypatch.setattr(
        byte_range, "read_at", lambda file, size, at: real(file, min(size, 7, 91 - at), at)
    )
    assert PlainExtent(str(path), 10, 80).read() == bytes(range(10, 90))
    with pytest.raises(MemberError, match="is truncated: it has 91 of 100 bytes"):
        PlainExtent(str(path), 0, 100).read()
