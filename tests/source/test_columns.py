"""Columns are equal to objects: the directory of a zip as zipfile reads it, texts and values."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.source import string_column
from shardprep.source.byte_range import PlainExtent, RefusedExtent, ZipExtent
from shardprep.source.limits import SourceLimits
from shardprep.source.listing import list_source
from shardprep.source.members import Extent, Member, Members
from shardprep.source.string_column import Coded, Texts, positions
from shardprep.source.zip_directory import read_end, read_entries
from tests.support.builders import write, zip_bytes
from tests.support.examples import examples

THIRTY = examples(30, database=None)
NAMES = st.text(st.sampled_from("ab./\\:_PK\1\2é\u2028"), min_size=1, max_size=12)
WORDS = st.lists(st.text("ab/.é", max_size=6), max_size=30)


# The files of a folder


def test_files_as_columns_are_equal_to_files_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [
        "cat/1.jpg", "cat/2.PNG", "dog/é.jpeg", "dog/a\\b.jpg", "dog/.hidden.jpg", "._1.jpg",
        "__MACOSX/1.jpg", "notes.txt", "dog/line\n.jpg", ".git/3.jpg", "large.jpg",
    ]  # fmt: skip
    folder = tmp_path / "photos"
    for number, name in enumerate(names):
        write(folder / name, b"x" * (number + 1))
    write(folder / "large.jpg", bytes(2000))
    (folder / "dog/link.jpg").symlink_to(folder / "cat/1.jpg")
    limits = SourceLimits(max_member_size=1000)
    found = list_source(folder, tmp_path, print, limits=limits)
    monkeypatch.setattr(
        "shardprep.source.members.are_ordinary", lambda keys: np.zeros(len(keys), bool)
    )
    apart = list_source(folder, tmp_path, print, limits=limits)
    assert found == apart
    extents = {member.key: member.extent for member in found.images}
    assert extents["cat/1.jpg"] == PlainExtent(str(folder / "cat/1.jpg"), 0, 1)
    assert extents["dog/link.jpg"] == extents["cat/1.jpg"]
    assert isinstance(extents["large.jpg"], RefusedExtent)
    assert {"dog/é.jpeg", "dog/a/b.jpg", "dog/.hidden.jpg"} <= extents.keys()
    assert {one.key for one in found.skipped} == {"._1.jpg", "__MACOSX/1.jpg"}
    assert [one.key for one in found.others] == ["notes.txt"]


# The directory of a zip


def zipped(names: list[str], extra: bytes = b"", comment: bytes = b"") -> bytes:
    """Return a zip of members with these names, sizes that differ, an extra field and a comment."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for i, name in enumerate(names):
            info = zipfile.ZipInfo(name)
            info.extra, info.comment = extra, comment
            info.external_attr = (0o100644, 0o120777, 0)[i % 3] << 16
            archive.writestr(info, b"x" * i, zipfile.ZIP_DEFLATED if i % 2 else zipfile.ZIP_STORED)
    return out.getvalue()


def read(folder: Path, data: bytes) -> list[tuple[object, ...]] | None:
    """Return name, extent and mode of each entry as columns have them, None where they do not."""
    place = PlainExtent.named(str(write(folder / "a.zip", data)), len(data))
    end = read_end(place)
    assert end is not None
    found = read_entries(place, end.directory, end.directory_stop, end.num_listed)
    if found is None:
        return None
    found.places["offset"] += end.shift
    members = Members(found.names, found.places, ("",)).listed()
    return [(*one, mode) for one, mode in zip(members, found.modes.tolist(), strict=True)]


def by_zipfile(data: bytes) -> list[tuple[object, ...]]:
    """Return what `read` does, by zipfile."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found: list[tuple[object, ...]] = []
        for one in archive.infolist():
            numbers = one.header_offset, one.compress_size, one.file_size, one.CRC
            extent = ZipExtent("", *numbers, one.compress_type, one.flag_bits)
            found.append((one.filename, extent, one.external_attr >> 16))
        return found


@given(st.lists(NAMES, max_size=12, unique=True), st.binary(max_size=8), st.binary(max_size=8))
@THIRTY
def test_a_directory_is_read_as_zipfile_reads_it(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], comment: bytes, before: bytes
) -> None:
    data = before + zipped(names, struct.pack("<HH3s", 0xCAFE, 3, b"abc"), comment)
    found = read(tmp_path_factory.mktemp("zip"), data)
    assert found is None or found == by_zipfile(data)
    assert found is not None or not names


def test_entries_across_blocks_are_read(tmp_path: Path) -> None:
    data = zipped([f"folder/{'n' * (i % 400)}{i}.jpg" for i in range(4000)])
    found = read(tmp_path, data)
    assert found == by_zipfile(data)
    assert len(found) == 4000


@pytest.mark.parametrize("is_with_sizes", [False, True])
def test_sizes_and_offsets_of_64_bits_are_read_as_zipfile_reads_them(
    tmp_path: Path, *, is_with_sizes: bool
) -> None:
    data = bytearray(zipped(["a.jpg", "b.jpg"], struct.pack("<HHQQQ", 1, 24, 5, 6, 7)))
    start = data.rindex(b"PK\1\2")
    if is_with_sizes:
        data[start + 20 : start + 28] = b"\xff" * 8
    data[start + 42 : start + 46] = b"\xff" * 4
    found = read(tmp_path, bytes(data))
    assert found == by_zipfile(bytes(data))
    assert found is not None
    assert found[1][1][1:4] == ((7, 6, 5) if is_with_sizes else (5, 3, 1))  # type: ignore[index]


ODD: dict[str, Callable[[bytes], bytes]] = {
    "a name of another code page": lambda data: data.replace(b"1.jpg", b"\x82.jpg"),
    "a name that ends early": lambda data: data.replace(b"1.jpg", b"1\0jpg"),
    "a version of the future": lambda data: _changed(data, 6, 99),
    "a length past the directory": lambda data: _changed(data, 28, 200),
    "an extra field past its entry": lambda data: data.replace(b"\xfe\xca\3\0", b"\xfe\xca\x30\0"),
    "a name in an extra field": lambda data: data.replace(b"\xfe\xca", b"\x75\x70"),
}


def _changed(data: bytes, at: int, value: int) -> bytes:
    start = data.rindex(b"PK\1\2") + at
    return data[:start] + struct.pack("<H", value) + data[start + 2 :]


@pytest.mark.parametrize("odd", ODD)
def test_an_unusual_directory_is_read_by_zipfile(tmp_path: Path, odd: str) -> None:
    data = zipped(["0.jpg", "1.jpg"], struct.pack("<HH3s", 0xCAFE, 3, b"abc"))
    assert read(tmp_path, data) is not None
    assert read(tmp_path, ODD[odd](data)) is None


@given(st.lists(NAMES, min_size=1, max_size=12, unique=True))
@THIRTY
def test_names_as_columns_have_the_keys_of_names_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("zip")
    members = {f"{name}x{i}.JPG": b"" for i, name in enumerate(names)}
    source = write(folder / "a.zip", zip_bytes(members))
    one_by_one, at_once = (
        list_source(source, folder, print, zip_encoding=encoding) for encoding in ("utf-8", None)
    )
    assert at_once == one_by_one


# Texts


@given(WORDS, WORDS)
@THIRTY
def test_positions_of_texts_are_those_of_the_first_equal_text(
    wanted: list[str], among: list[str]
) -> None:
    first = [among.index(one) if one in among else -1 for one in wanted]
    with pytest.MonkeyPatch.context() as patch:
        for most in (string_column._FEW_ROWS, 0):
            patch.setattr(string_column, "_FEW_ROWS", most)
            found, is_many = positions(Texts.of(wanted), Texts.of(among))
            assert found.tolist() == first
            assert is_many.tolist() == [among.count(one) > 1 for one in wanted]
        # all hashes collide
        patch.setattr(string_column, "_WEIGHTS", np.zeros(1, np.uint64))
        found, is_many = positions(Texts.of(wanted), Texts.of(among))
    assert found.tolist() == first
    assert all(many for one, many in zip(wanted, is_many, strict=True) if among.count(one) > 1)


@given(WORDS)
@THIRTY
def test_texts_are_a_sequence_of_strings(words: list[str]) -> None:
    texts = Texts.of(words)
    assert list(texts) == words == [texts[i] for i in range(len(words))]
    assert list(texts[1:7:2]) == words[1:7:2]
    assert list(texts.folders) == [word.rpartition("/")[0] for word in words]
    assert list(texts.ends(0)) == [word.rpartition("/")[2] for word in words]
    assert list(texts.coded()) == words


# Values


@given(st.lists(st.sampled_from([None, "a", "b", 1, -2, (1, 2), ()]), max_size=20))
@THIRTY
def test_a_column_is_a_sequence_of_values(values: list[object]) -> None:
    column = Coded.of(values)
    assert list(column) == values == list(pickle.loads(pickle.dumps(column)))
    assert list(column.map(repr)) == [None if one is None else repr(one) for one in values]
    assert list(column.filled("x")) == ["x" if one is None else one for one in values]
    assert list(column.take(np.arange(len(values))[::2])) == values[::2]
    there = [one for one in values if one is not None]
    assert column.counts() == {one: there.count(one) for one in there}
    assert list(column.counts()) == list(dict.fromkeys(there))


def test_equal_numbers_with_different_texts_are_not_merged() -> None:
    numbers = [0.0, -0.0, float("nan"), 0.0]
    assert list(map(repr, Coded.of(numbers))) == list(map(repr, numbers))


def test_members_of_every_kind_can_be_pickled() -> None:
    extents: list[Extent] = [
        PlainExtent("/data/a/b.jpg", 0, 7),
        PlainExtent("/data/c.tar", 512, 9),
        ZipExtent("/data/d.zip", 3, 4, 5, 6, 8, 0x800),
        RefusedExtent(1 << 40, "is too large"),
        ZipExtent("/data/d.zip", 1 << 63, 4, 5, 6, 8, 0),
    ]
    members = [Member(f"a/b{'' if i == 0 else i}.jpg", one) for i, one in enumerate(extents)]
    found = Members.of(members)
    assert list(found) == members == list(pickle.loads(pickle.dumps(found)))
    assert list(found.take(np.array([3, 1]))) == [members[3], members[1]]
    assert found.are_refused.tolist() == [False, False, False, True, False]
    assert len(pickle.dumps(found[:1])) < len(pickle.dumps(found))
