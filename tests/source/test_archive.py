"""Archives of every kind and depth are listed like other libraries read them, or are an error."""

import bz2
import gzip
import io
import lzma
import pickle
import re
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardprep.errors import SourceError
from shardprep.source.byte_range import ZipExtent
from shardprep.source.limits import DEFAULT_LIMITS
from shardprep.source.listing import Listing
from shardprep.source.members import Members
from shardprep.source.unpack import member_stream
from tests.source.hostile import HOSTILE, patched, tar_entry, with_damage
from tests.source.listed import (
    INNER,
    JPEG,
    MEMBERS,
    PNG,
    STORED_ZIP,
    TARS,
    ZIP_AND_TAR,
    ZIPS,
    Pack,
    by_zipfile,
    listed,
    listed_bytes,
)
from tests.support.builders import jpeg, tar_bytes, tree, write, write_folder, zip_bytes
from tests.support.examples import examples
from tests.support.paths import DATA


def by_tarfile(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = [info for info in archive if info.isreg()]
        return {info.name: archive.extractfile(info).read() for info in files}  # type: ignore[union-attr]


# Containers of one kind


@pytest.mark.parametrize(
    "command",
    [
        *(f"tar --format={form} -cf - ." for form in ("gnu", "oldgnu", "pax", "ustar", "v7")),
        "zip -qr - .",
    ],
)
def test_archives_of_the_tar_and_zip_programs_are_listed(tmp_path: Path, command: str) -> None:
    program, *arguments = command.split()
    if not shutil.which(program):
        pytest.skip(f"needs {program}")
    members = {"x/cat.0.jpg": JPEG, "n" * 90 + ".png": PNG, "notes.txt": b"text"}
    members |= {"é.jpg": JPEG} if program == "zip" else {}
    folder = write_folder(tmp_path / "folder", members)
    packed = subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)
    source = write(tmp_path / "source", packed.stdout)
    assert listed(source, zip_encoding="utf-8").contents == members


def test_members_of_a_folder_are_sorted_into_images_and_others(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", MEMBERS)
    found = listed(folder)
    assert found.contents == tree(folder) == MEMBERS
    assert found.image_keys == ["a/b/c/d/é ü.jpg", "train/cat.0.jpg", "train/dog.0.png"]
    others = [member.key for member in found.listing.others]
    assert others == ["empty.txt", "labels.csv", "no_suffix"]
    assert found.listing.skipped == []


def test_a_listing_can_be_pickled(tmp_path: Path) -> None:
    members = {"a.jpg": JPEG, "in.tar": tar_bytes({"b.jpg": PNG})}
    found = pickle.loads(pickle.dumps(listed_bytes(tmp_path, zip_bytes(members)).listing))
    assert [m.extent.read() for m in found.images] == [JPEG, PNG]


# Archives in archives


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("outer", [STORED_ZIP, tar_bytes], ids=["stored zip", "tar"])
def test_a_stored_inner_archive_is_read_in_place(tmp_path: Path, outer: Pack, inner: Pack) -> None:
    found = listed_bytes(tmp_path, outer({"first.txt": b"x", "train.arc": inner(MEMBERS)}))
    assert found.contents == {"first.txt": b"x"} | {f"train.arc/{k}": v for k, v in MEMBERS.items()}
    assert not found.work.exists()
    assert found.notices == []


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("outer", ["deflated", "bzip2", "lzma"])
def test_a_packed_inner_archive_is_unpacked_once(tmp_path: Path, outer: str, inner: Pack) -> None:
    packed = inner(MEMBERS)
    found = listed_bytes(tmp_path, ZIPS[outer]({"../evil.arc": packed, "train.arc": packed}))
    assert found.contents == {f"train.arc/{k}": v for k, v in MEMBERS.items()}
    assert list(tree(found.work).values()) == [packed]
    assert all(re.fullmatch(r"\d+", name) for name in tree(found.work))


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("outer", [STORED_ZIP, zip_bytes, tar_bytes])
def test_a_compressed_tar_inside_an_archive_is_opened(
    tmp_path: Path, outer: Pack, compress: Callable[[bytes], bytes]
) -> None:
    plain = tar_bytes(MEMBERS)
    found = listed_bytes(tmp_path, outer({"x/train.tgz": compress(plain)}))
    assert found.contents == {f"x/train.tgz/{k}": v for k, v in MEMBERS.items()}
    assert plain in tree(found.work).values()
    assert [line for line in found.notices if "x/train.tgz" in line]


def _nested(depth: int, pack: Pack) -> bytes:
    data = JPEG
    for level in range(depth):
        data = pack({f"{level}.zip" if level else "a.jpg": data})
    return data


@pytest.mark.parametrize("pack", [STORED_ZIP, zip_bytes, tar_bytes])
def test_archives_are_opened_up_to_the_depth_limit(tmp_path: Path, pack: Pack) -> None:
    found = listed_bytes(tmp_path, _nested(DEFAULT_LIMITS.max_depth, pack))
    assert found.contents == {"7.zip/6.zip/5.zip/4.zip/3.zip/2.zip/1.zip/a.jpg": JPEG}
    with pytest.raises(SourceError, match=r"^8\.zip/.*/1\.zip: .*nested more than 8 levels deep"):
        listed_bytes(tmp_path, _nested(DEFAULT_LIMITS.max_depth + 1, pack))


def test_compression_is_removed_up_to_the_depth_limit(tmp_path: Path) -> None:
    assert listed_bytes(tmp_path, gzip.compress(zip_bytes(MEMBERS))).contents == MEMBERS
    data = tar_bytes({"a.jpg": JPEG})
    for _ in range(1200):
        data = gzip.compress(data, 0)
    with pytest.raises(SourceError, match="nested"):
        listed_bytes(tmp_path, data)


def test_a_compressed_member_without_an_archive_leaves_no_file(tmp_path: Path) -> None:
    packed = gzip.compress(b"id,label\n" * 400, 0)
    found = listed_bytes(tmp_path, zip_bytes({"labels.csv.gz": packed, "a.jpg": JPEG}))
    assert found.contents == {"labels.csv.gz": packed, "a.jpg": JPEG}
    assert not found.work.exists() or tree(found.work) == {}


@pytest.mark.parametrize("tail", [0, 1, 15, 39, 258, 1000])
def test_a_deflated_member_is_streamed_to_its_last_byte(tmp_path: Path, tail: int) -> None:
    data = bytes((1 << 20) + tail)
    extent = listed_bytes(tmp_path, zip_bytes({"zeros": data})).listing.others[0].extent
    assert isinstance(extent, ZipExtent)
    with member_stream(extent) as stream:
        assert sum(map(len, iter(lambda: stream.read(1 << 20), b""))) == len(data)


# Archives that are unusual but valid


VALID: dict[str, bytes] = {
    **{path.stem: path.read_bytes() for path in sorted(DATA.glob("zips/*.zip"))},
    **{name: pack(MEMBERS) for name, pack in {**ZIPS, **TARS}.items()},
    "entries for folders": zip_bytes({"train/": b"", "a/": b"", "a/b/": b"", **MEMBERS}),
    "junk before it": b"#!/bin/sh\nexit\n" * 150 + zip_bytes(MEMBERS),
    "junk after it": zip_bytes(MEMBERS) + b"\0" * 500,
    "tar, followed by zeros": tar_bytes(MEMBERS) + bytes(3 << 20),
}
"""The sample files have data descriptors, ZIP64 fields, a comment with a signature, unused bytes
before the directory, and members aligned by padding in local headers only.
"""


@pytest.mark.parametrize("data", VALID.values(), ids=VALID)
def test_an_archive_lists_what_other_libraries_read(tmp_path: Path, data: bytes) -> None:
    read = by_zipfile if zipfile.is_zipfile(io.BytesIO(data)) else by_tarfile
    assert listed_bytes(tmp_path, data).contents == read(data)
    assert read(data).keys() == MEMBERS.keys()


@pytest.mark.parametrize("outer", [STORED_ZIP, zip_bytes, tar_bytes])
@pytest.mark.parametrize("inner", ["streamed-deflated", "zip64", "comment"])
def test_an_unusual_zip_inside_an_archive_is_listed(
    tmp_path: Path, outer: Pack, inner: str
) -> None:
    found = listed_bytes(tmp_path, outer({"pad": b"x" * 77, "in.zip": VALID[inner]}))
    expected = {f"in.zip/{key}": data for key, data in by_zipfile(VALID[inner]).items()}
    assert found.contents == expected | {"pad": b"x" * 77}


@pytest.mark.thorough
def test_a_zip_with_a_16_bit_member_count_is_listed(tmp_path: Path) -> None:
    names = [f"{i}.jpg" for i in range(2**16 + 3)]
    data = zip_bytes(dict.fromkeys(names, b""), method=zipfile.ZIP_STORED)
    end64, end = data.rindex(b"PK\6\6"), data.rindex(b"PK\5\6")
    size, start = struct.unpack_from("<2Q", data, end64 + 40)
    old_end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 3, 3, size, start, 0)
    assert len(data) == end + len(old_end)
    found = listed_bytes(tmp_path, data[:end64] + old_end)
    assert found.image_keys == sorted(names)


@ZIP_AND_TAR
def test_similar_keys_are_not_merged(tmp_path: Path, pack: Pack) -> None:
    names = ["a.jpg", "A.JPG", "caf\u00e9.jpg", "cafe\u0301.jpg", "a.jpg/b.jpg"]
    members = {name: jpeg(8, 8, seed=i) for i, name in enumerate(names)}
    assert listed_bytes(tmp_path, pack(members)).contents == members


def test_an_empty_zip_has_no_members(tmp_path: Path) -> None:
    assert listed_bytes(tmp_path, zip_bytes({})).listing == Listing(Members.of([]), [], [])
    data = tar_bytes({"in.zip": zip_bytes({}), "a.jpg": JPEG})
    assert listed_bytes(tmp_path, data).contents == {"a.jpg": JPEG}


def test_a_zip_member_without_a_name_is_skipped(tmp_path: Path) -> None:
    data = zip_bytes({"a.jpg": JPEG, "b.txt": b"x"})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        second = archive.start_dir + 46 + len("a.jpg")
    nameless = bytearray(data)
    struct.pack_into("<HH", nameless, second + 28, 0, 5)  # its name becomes an extra field
    nameless[second + 46 : second + 51] = b"\xfe\xca\1\0x"
    found = listed_bytes(tmp_path, bytes(nameless))
    assert found.image_keys == ["a.jpg"]
    assert len(found.listing.skipped) == 1


# Archives in parts


def parts_of(data: bytes, name: str, number: int = 3) -> dict[str, bytes]:
    """Return the parts that `split` or 7-Zip makes of a file."""
    size = -(-len(data) // number)
    return {f"{name}.{i + 1:03d}": data[i * size : (i + 1) * size] for i in range(number)}


@pytest.mark.parametrize("pack", [zip_bytes, *TARS.values()], ids=["zip", *TARS])
def test_a_split_archive_is_opened_by_its_first_part(tmp_path: Path, pack: Pack) -> None:
    """An unescaped glob would look for data1.arc."""
    folder = write_folder(tmp_path / "f", parts_of(pack(MEMBERS), "data[1].arc"))
    assert listed(folder / "data[1].arc.001", tmp_path / "work").contents == MEMBERS


@pytest.mark.parametrize("outer", [zip_bytes, tar_bytes])
def test_a_split_archive_inside_a_source_is_opened(tmp_path: Path, outer: Pack) -> None:
    """The source is a folder with a split archive that contains a split zip."""
    inner = parts_of(zip_bytes(MEMBERS), "x/in.zip")
    parts = parts_of(outer({**inner, "a.jpg": JPEG}), "out.arc")
    found = listed(write_folder(tmp_path / "source", parts))
    expected = {"a.jpg": JPEG} | {f"x/in.zip/{k}": v for k, v in MEMBERS.items()}
    assert found.contents == {f"out.arc/{key}": data for key, data in expected.items()}


@pytest.mark.parametrize("missing", ["001", "002"])
def test_a_missing_part_is_an_error_with_its_name(tmp_path: Path, missing: str) -> None:
    parts = parts_of(zip_bytes(MEMBERS), "in.zip", 4)
    if missing == "001":  # without its start nothing tells that it is an archive
        parts["in.zip.002"] = parts["in.zip.001"]
    del parts[f"in.zip.{missing}"]
    line = rf"^in\.zip\.{missing}: is missing; download all volumes"
    with pytest.raises(SourceError, match=line):
        listed(write_folder(tmp_path / "source", parts))


def test_a_damaged_part_is_an_error_with_its_name(tmp_path: Path) -> None:
    parts = parts_of(zip_bytes(MEMBERS), "in.zip", 4)
    data = zip_bytes(parts, method=zipfile.ZIP_STORED)
    at = data.index(parts["in.zip.003"])
    broken = data[:at] + bytes(8) + data[at + 8 :]
    line = r"^in\.zip\.003: its bytes do not match their size and CRC-32; download or pack"
    with pytest.raises(SourceError, match=line):
        listed_bytes(tmp_path, broken)


@pytest.mark.parametrize(
    "name", ["labels.xlsx", "labels.XLS", "READ ME.docx", "viewer.jar", "best.pt"]
)
@pytest.mark.parametrize("data", [zip_bytes({"media/image1.png": PNG}), b"PK\3\4 broken"])
def test_pictures_in_documents_and_programs_are_no_images(
    tmp_path: Path, name: str, data: bytes
) -> None:
    found = listed_bytes(tmp_path, zip_bytes({"1.png": PNG, name: data}))
    assert found.image_keys == ["1.png"]
    assert found.contents == {"1.png": PNG, name: data}


def test_numbered_files_that_are_not_archives_are_members(tmp_path: Path) -> None:
    members = {"photo.001": JPEG, "photo.002": PNG, "text.001": b"text", "in.zip.007": b"x"}
    found = listed_bytes(tmp_path, zip_bytes(members))
    assert found.image_keys == ["photo.001", "photo.002"]
    assert found.contents == members


def test_a_part_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    packed = zip_bytes(parts_of(zip_bytes(MEMBERS), "in.zip"))
    for index in (0, 1):
        source = write(tmp_path / str(index), patched(packed, index, method=98))
        try:
            found = listed(source)
        except SourceError as error:
            assert error.where.startswith("in.zip")  # noqa: PT017 - either is right
        else:
            assert found.reasons["in.zip.001"].startswith("unreadable")


# 7z


@pytest.fixture(scope="module")
def pack_7z() -> Pack:
    """Return what makes a 7z of members."""
    py7zr = pytest.importorskip("py7zr")

    def pack(members: Mapping[str, bytes], password: str | None = None) -> bytes:
        out = io.BytesIO()
        with py7zr.SevenZipFile(out, "w", password=password) as archive:
            for name, data in members.items():
                archive.writestr(data, name)
        return out.getvalue()

    return pack


def test_a_7z_lists_what_was_packed(tmp_path: Path, pack_7z: Pack) -> None:
    members = {**MEMBERS, "b.zip": zip_bytes({"b.jpg": JPEG}), "c.7z": pack_7z({"d.jpg": PNG})}
    expected = {**MEMBERS, "b.zip/b.jpg": JPEG, "c.7z/d.jpg": PNG}
    assert listed_bytes(tmp_path, pack_7z(members)).contents == expected
    for outer in (STORED_ZIP, zip_bytes, tar_bytes):
        found = listed_bytes(tmp_path, outer({"x/in.dat": pack_7z(MEMBERS)}))
        assert found.contents == {f"x/in.dat/{k}": v for k, v in MEMBERS.items()}


def test_a_damaged_or_encrypted_7z_is_an_error(tmp_path: Path, pack_7z: Pack) -> None:
    data = pack_7z(MEMBERS)
    damaged = data[: len(data) // 2], with_damage(data, 60, b"\xff" * 20), data[:-1]
    for bad in (*damaged, pack_7z({"a.jpg": JPEG}, "secret")):
        with pytest.raises(SourceError, match=r"^source\.bin: "):
            listed_bytes(tmp_path, bad)


def test_a_7z_writes_nothing_outside_the_work_folder(tmp_path: Path) -> None:
    py7zr = pytest.importorskip("py7zr")
    folder = write_folder(tmp_path / "f", {"a.jpg": JPEG})
    (folder / "link.jpg").symlink_to("a.jpg")
    source = tmp_path / "x/y/z/source.7z"
    source.parent.mkdir(parents=True)
    with py7zr.SevenZipFile(source, "w") as archive:
        archive.write(folder / "a.jpg", "a.jpg")
        archive.write(folder / "link.jpg", "link.jpg")
        archive.writestr(PNG, "b.jpg")
        archive.header.files_info.files[-1]["filename"] = "../../b.jpg"
    before = tree(tmp_path)
    try:
        found = listed(source, tmp_path / "work")
    except SourceError:
        pass
    else:
        assert found.image_keys == ["a.jpg"]
        assert set(found.reasons) == {"link.jpg", "../../b.jpg"}
    assert {k: v for k, v in tree(tmp_path).items() if not k.startswith("work/")} == before


# Archives that are damaged


def _tar_at(data: bytes, name: str, *, header: bool) -> int:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        info = archive.getmember(name)
        return info.offset if header else info.offset_data


TAR = tar_bytes({f"{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)})
ZIP = zip_bytes({f"{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)})
DAMAGED = {
    **{
        name: HOSTILE[name]() for name in HOSTILE if re.match(r"(cut|damage): (?!.*in a zip)", name)
    },
    "tar, cut after a header": TAR[: _tar_at(TAR, "2.jpg", header=False)],
    "tar, damaged first header": with_damage(TAR, 0, b"damage"),
    "tar.gz, of a cut tar": gzip.compress(TAR[: _tar_at(TAR, "2.jpg", header=True)]),
    "tar.gz, wrong CRC-32": with_damage(gzip.compress(TAR), -8, b"\0\0\0\0"),
    "tar.gz, junk inside": with_damage(gzip.compress(TAR), 200, b"\xff" * 40),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize(
    "outer", [None, STORED_ZIP, zip_bytes], ids=["alone", "stored", "deflated"]
)
def test_a_damaged_archive_is_an_error_that_names_it(
    tmp_path: Path, data: bytes, outer: Pack | None
) -> None:
    packed = outer({"pad.txt": b"text", "in.arc": data, "z.jpg": JPEG}) if outer else data
    line = r"^in\.arc: is (damaged|truncated)" if outer else "is (damag|trunc)"
    with pytest.raises(SourceError, match=line):
        listed_bytes(tmp_path, packed)


@pytest.mark.parametrize(
    ("fields", "reason"), [({"crc": 1}, "do not match"), ({"size": 100}, "do not match|damaged")]
)
def test_a_deflated_inner_zip_with_wrong_crc_or_size_is_an_error(
    tmp_path: Path, fields: dict[str, int], reason: str
) -> None:
    with pytest.raises(SourceError, match=rf"^in\.zip: .*({reason})"):
        listed_bytes(tmp_path, patched(zip_bytes({"in.zip": ZIP}), **fields))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [-512, -(2**40)])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.LNKTYPE, b"Z"])
def test_a_tar_member_of_negative_size_is_an_error(tmp_path: Path, size: int, kind: bytes) -> None:
    info = tar_entry("b.jpg", kind)
    info.size = size
    head = TAR[: _tar_at(TAR, "2.jpg", header=True)]
    with pytest.raises(SourceError, match=r"source\.bin: is (damaged|cut)"):
        listed_bytes(tmp_path, head + info.tobuf(tarfile.GNU_FORMAT) + bytes(10240))


def test_an_archive_that_does_not_fit_the_disk_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 1000
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - free, free)
    )
    line = (
        rf"in\.zip: does not fit .*: {len(ZIP) / 1000:.1f} kB are needed and 1\.0 MB must "
        r"stay free, but the disk has 1\.0 kB left; free some"
    )
    with pytest.raises(SourceError, match=line):
        listed_bytes(tmp_path, zip_bytes({"in.zip": ZIP}))
    free = len(ZIP) + (1 << 20)  # little work needs a small reserve
    assert listed_bytes(tmp_path, zip_bytes({"in.zip": ZIP})).contents


# Properties

_NAMES = st.text("ab.é 0_-", min_size=1, max_size=5).filter(
    lambda name: name not in (".", "..") and not name.startswith("._")
)
_SUFFIXED = st.builds("{}{}".format, _NAMES, st.sampled_from(["", ".csv", ".zip", ".d"]))
_LEAVES = st.sampled_from([JPEG, PNG]) | st.binary(max_size=300).map(lambda data: b"#" + data)
_PACKERS: dict[str, Pack] = {**ZIPS, **TARS}


class Container(NamedTuple):
    """A folder or an archive; the kind of a folder is ""."""

    kind: str
    nodes: dict[str, Any]


def _containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Container]:
    nodes = st.dictionaries(_SUFFIXED, children, min_size=1, max_size=3)
    return st.builds(Container, st.sampled_from(["", "", *_PACKERS]), nodes)


_TREES = st.recursive(_LEAVES, _containers, max_leaves=8)


def _entries(nodes: dict[str, Any], prefix: str = "") -> dict[str, bytes]:
    """Return the entries of an archive, or the files of a folder, for the nodes."""
    entries: dict[str, bytes] = {}
    for name, node in nodes.items():
        if isinstance(node, bytes):
            entries[prefix + name] = node
        elif node.kind:
            entries[prefix + name] = _PACKERS[node.kind](_entries(node.nodes))
        else:
            entries |= _entries(node.nodes, f"{prefix}{name}/")
    return entries


def _leaves(nodes: dict[str, Any], prefix: str = "") -> dict[str, bytes]:
    leaves: dict[str, bytes] = {}
    for name, node in nodes.items():
        if isinstance(node, bytes):
            leaves[prefix + name] = node
        else:
            leaves |= _leaves(node.nodes, f"{prefix}{name}/")
    return leaves


@given(_containers(_TREES))
@examples(30, database=None)
def test_any_tree_in_any_containers_is_listed(container: Container) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        entries = _entries(container.nodes)
        if container.kind:
            source.write_bytes(_PACKERS[container.kind](entries))
        else:
            write_folder(source, entries)
        found = listed(source)
        assert found.contents == _leaves(container.nodes)
        assert found.listing.skipped == []
        assert found.image_keys == sorted(found.image_keys)
        assert all(PurePosixPath(key).as_posix() == key for key in found.contents)
