"""Names of members and archives: keys, junk and encodings; types are detected by content."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from shardprep.api.arguments import only_archive
from shardprep.catalog.names import given_split
from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from tests.source.hostile import tar_entry, tar_of
from tests.source.listed import (
    JPEG,
    PNG,
    STORED_ZIP,
    TARS,
    ZIP_AND_TAR,
    ZIPS,
    Listed,
    Pack,
    by_zipfile,
    listed,
    listed_bytes,
)
from tests.support.builders import encoded, pixels, tar_bytes, tree, write, write_folder, zip_bytes


@pytest.mark.parametrize(
    "name",
    [
        *("__MACOSX/a.jpg", "train/__MACOSX/x/a.jpg", "train/._a.jpg", "._in.zip"),
        *(".DS_Store", "x/Thumbs.db", "x/desktop.ini"),
    ],
)
@ZIP_AND_TAR
def test_junk_is_skipped_and_counted(tmp_path: Path, pack: Pack, name: str) -> None:
    found = listed_bytes(tmp_path, pack({name: JPEG, "a.jpg": JPEG}))
    assert found.image_keys == ["a.jpg"]
    assert [(s.key, s.reason, s.num_bytes) for s in found.listing.skipped] == [
        (name, "junk", len(JPEG))
    ]


EVIL_NAMES = [
    *("../evil.jpg", "a/../../evil.jpg", "a/..", "/evil.jpg", "//host/share/evil.jpg"),
    *("C:/evil.jpg", "c:evil.jpg", r"..\evil.jpg", r"a\..\..\evil.jpg", r"\evil.jpg"),
    *(r"\\host\share\evil.jpg", r"C:\evil.jpg", "../evil.zip"),
]


@pytest.mark.parametrize("name", EVIL_NAMES)
@ZIP_AND_TAR
def test_a_name_that_leads_out_is_skipped(tmp_path: Path, pack: Pack, name: str) -> None:
    data = pack({name: zip_bytes({"b.jpg": PNG}), "a.jpg": JPEG})
    source = write(tmp_path / "x/y/z/source", data)
    before = tree(tmp_path)
    found = listed(source, tmp_path / "x/y/z/work")
    assert found.contents == {"a.jpg": JPEG}
    assert [bool(skipped.reason) for skipped in found.listing.skipped] == [True]
    assert tree(tmp_path) == before
    assert not Path("/evil.jpg").exists()


@pytest.mark.parametrize(
    "name", ["a/..b.jpg", "...jpg", "a..b/c.jpg", "~/a.jpg", "-rf.jpg", "a;b.jpg"]
)
@ZIP_AND_TAR
def test_an_odd_name_that_leads_nowhere_is_kept(tmp_path: Path, pack: Pack, name: str) -> None:
    assert listed_bytes(tmp_path, pack({name: JPEG})).image_keys == [name]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("train\\cat.0.jpg", "train/cat.0.jpg"),
        ("./train/cat.0.jpg", "train/cat.0.jpg"),
        ("train//cat.0.jpg", "train/cat.0.jpg"),
        ("train/./cat.0.jpg", "train/cat.0.jpg"),
        ("日本/写真.jpg", "日本/写真.jpg"),
        ("n" * 300 + ".jpg", "n" * 300 + ".jpg"),
        ("line\nbreak.jpg", r"line\nbreak.jpg"),
        ("tab\there.jpg", r"tab\there.jpg"),
        ("\x1b[2J\x9b.jpg", r"\x1b[2J\x9b.jpg"),
        ("a\u2028b.jpg", r"a\u2028b.jpg"),
    ],
)
@ZIP_AND_TAR
def test_keys_are_posix_paths(tmp_path: Path, pack: Pack, name: str, key: str) -> None:
    assert listed_bytes(tmp_path, pack({name: JPEG})).image_keys == [key]


@pytest.mark.parametrize(
    "data",
    [
        tar_of((tar_entry("x/a.jpg"), JPEG), (tar_entry("x/a.jpg"), PNG)),
        tar_bytes({"./x/a.jpg": JPEG, "x/a.jpg": JPEG}),
        zip_bytes({"x/a.jpg": JPEG, "x\\a.jpg": PNG}),
        zip_bytes({"x/a.jpg": JPEG, "x//a.jpg": PNG}),
    ],
    ids=["tar, twice", "tar, ./", "zip, backslash", "zip, double slash"],
)
def test_two_members_with_one_key_are_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^x/a\.jpg: two members"):
        listed_bytes(tmp_path, data)


def test_a_file_name_that_is_not_utf8_does_no_harm(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", {"a.jpg": PNG})
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jpg")).write_bytes(JPEG)
    Path(os.fsdecode(os.fsencode(folder) + b"/li\xe9")).symlink_to("absent")
    _check_not_utf8(listed(folder))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_a_tar_name_that_is_not_utf8_does_no_harm(tmp_path: Path, form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="latin-1") as archive:
        for name, data in {"a.jpg": PNG, "café.jpg": JPEG}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        archive.addfile(tar_entry("lié", tarfile.SYMTYPE, "a.jpg"))
    _check_not_utf8(listed_bytes(tmp_path, out.getvalue()))


def _check_not_utf8(found: Listed) -> None:
    keys = [*found.contents, *found.reasons]
    assert len(keys) == 3
    assert "a.jpg" in found.image_keys
    assert [key.encode().decode() for key in keys] == keys
    assert not any("/" in key for key in keys)


@pytest.mark.parametrize("encoding", ["utf-8", "shift_jis", "cp866", "latin-1"])
def test_names_of_a_zip_without_a_flag_are_read_in_the_given_encoding(
    tmp_path: Path, encoding: str
) -> None:
    name = {"shift_jis": "写真.jpg", "cp866": "фото.jpg"}.get(encoding, "café.jpg")
    ascii_name = "#" * len(name.encode(encoding))
    data = zip_bytes({ascii_name: JPEG}).replace(ascii_name.encode(), name.encode(encoding))
    found = listed(write(tmp_path / "source", data), zip_encoding=encoding)
    assert found.contents == {name: JPEG}


def test_names_of_a_zip_with_the_utf8_flag_are_utf8_whatever_is_given(tmp_path: Path) -> None:
    source = write(tmp_path / "source", zip_bytes({"写真.jpg": JPEG}))
    assert listed(source, zip_encoding="cp866").image_keys == ["写真.jpg"]


def test_other_names_of_a_zip_are_code_page_437(tmp_path: Path) -> None:
    data = zip_bytes({"caf#.jpg": JPEG}).replace(b"caf#", b"caf\x82")
    assert listed_bytes(tmp_path, data).contents == by_zipfile(data) == {"café.jpg": JPEG}


def test_a_zip_name_that_lies_about_utf8_is_an_error(tmp_path: Path) -> None:
    data = zip_bytes({"é.jpg": JPEG}).replace("é".encode(), b"\xe9\xe9")
    with pytest.raises(SourceError, match=r"(?i)source\.bin: .*not utf-8"):
        listed_bytes(tmp_path, data)


# The type is detected by content


@pytest.mark.parametrize("name", ["photo", "photo.dat", "photo.txt", "photo.zip", "0"])
@pytest.mark.parametrize(
    ("form", "mode"),
    [
        *(("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGB"), ("GIF", "P"), ("BMP", "RGB")),
        *(("WEBP", "RGB"), ("TIFF", "RGB"), ("JPEG2000", "RGB")),
    ],
)
def test_an_image_is_found_whatever_its_name(
    tmp_path: Path, form: str, mode: str, name: str
) -> None:
    data = encoded(Image.fromarray(pixels(8, 8)).convert(mode), form)
    assert listed_bytes(tmp_path, zip_bytes({name: data})).image_keys == [name]


@pytest.mark.parametrize("name", ["a.JPG", "b.jpeg", "c.Png", "d.webp"])
def test_what_is_named_an_image_is_an_item_whatever_it_holds(tmp_path: Path, name: str) -> None:
    assert listed_bytes(tmp_path, zip_bytes({name: b"no image"})).image_keys == [name]


@pytest.mark.parametrize("pack", [*ZIPS.values(), *TARS.values()], ids=[*ZIPS, *TARS])
@pytest.mark.parametrize("name", ["data.bin", "data", "data.csv", "data.tar.gz", "data.zip"])
def test_an_archive_is_opened_whatever_its_name(tmp_path: Path, pack: Pack, name: str) -> None:
    data = pack({"a.jpg": JPEG})
    assert listed_bytes(tmp_path, data, name).contents == {"a.jpg": JPEG}
    assert listed_bytes(tmp_path, STORED_ZIP({name: data}), "o").contents == {f"{name}/a.jpg": JPEG}


TEXTS = {
    "plain": b"id,label\n1,cat\n",
    "like a bitmap": b"BMI,age,label\n1,2,3\n" * 40,
    "like bzip2": b"BZhang,1\nBZhou,2\n" * 40,
    "like gzip": b"\x1f\x8b is how gzip starts",
    "long": b"ustar" * 200,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", ["in.zip", "a.csv", "x.tar.gz"])
def test_a_text_is_other_whatever_its_name(tmp_path: Path, name: str, text: bytes) -> None:
    found = listed_bytes(tmp_path, zip_bytes({name: text, "a.jpg": JPEG}))
    assert [member.key for member in found.listing.others] == [name]


@pytest.mark.parametrize(
    "data",
    [b"just text", b"", JPEG, gzip.compress(b"just text"), gzip.compress(JPEG), bytes(10240)],
    ids=["text", "nothing", "image", "gzipped text", "gzipped image", "zeros"],
)
@pytest.mark.parametrize("name", ["source.zip", "source.txt"])
def test_a_source_that_is_no_archive_is_an_error(tmp_path: Path, data: bytes, name: str) -> None:
    line = r"source\.(zip|txt): is neither a folder nor a supported archive"
    with pytest.raises(SourceError, match=line):
        listed_bytes(tmp_path, data, name)


def test_a_source_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or folder"):
        listed(tmp_path / "absent.zip")


def test_an_archive_that_cannot_be_read_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"^in\.dat: is a rar archive.*; unpack it first"):
        listed_bytes(tmp_path, zip_bytes({"in.dat": b"Rar!\x1a\x07\1\0" + bytes(600)}))


# Names of archives


@pytest.mark.parametrize(
    "suffix",
    [
        *(".zip", ".7z", ".tar", ".tgz", ".tbz2", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz"),
        *(".tar.7z", ".zip.001", ".7z.001", ".ZIP"),
    ],
)
def test_every_suffix_of_archives_is_one_everywhere(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the name of the dataset, for the split of a folder, and for `init` without a source."""
    name = f"train{suffix}"
    assert make_recipe({"source": name}, "test").dataset_name == "train"
    assert given_split([name]) == "train"
    write_folder(tmp_path, {name: b"", "labels.csv.gz": b"", "train.zip.002": b""})
    monkeypatch.chdir(tmp_path)
    assert only_archive() == name
