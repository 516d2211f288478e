"""Names of members and archives: keys, junk and encodings; types are detected by content."""

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
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


@ZIP_AND_TAR
def test_junk_is_skipped_and_counted(tmp_path: Path, pack: Pack) -> None:
    names = [
        *(".DS_Store", "._in.zip", "__MACOSX/a.jpg", "train/._a.jpg", "train/__MACOSX/x/a.jpg"),
        *("x/Thumbs.db", "x/desktop.ini"),
    ]
    found = listed_bytes(tmp_path, pack({**dict.fromkeys(names, JPEG), "a.jpg": JPEG}))
    assert found.image_keys == ["a.jpg"]
    skipped = [(one.key, one.reason, one.num_bytes) for one in found.listing.skipped]
    assert skipped == [(name, "junk", len(JPEG)) for name in names]


EVIL_NAMES = [
    *("../evil.jpg", "a/../../evil.jpg", "a/..", "/evil.jpg", "//host/share/evil.jpg"),
    *("C:/evil.jpg", "c:evil.jpg", r"..\evil.jpg", r"a\..\..\evil.jpg", r"\evil.jpg"),
    *(r"\\host\share\evil.jpg", r"C:\evil.jpg", "../evil.zip"),
]


@ZIP_AND_TAR
def test_names_that_lead_out_are_skipped(tmp_path: Path, pack: Pack) -> None:
    inner = zip_bytes({"b.jpg": PNG})
    data = pack({**dict.fromkeys(EVIL_NAMES, inner), "a.jpg": JPEG})
    source = write(tmp_path / "x/y/z/source", data)
    before = tree(tmp_path)
    found = listed(source, tmp_path / "x/y/z/work")
    assert found.contents == {"a.jpg": JPEG}
    assert len(found.listing.skipped) == len(EVIL_NAMES)
    assert all(skipped.reason for skipped in found.listing.skipped)
    assert tree(tmp_path) == before
    assert not Path("/evil.jpg").exists()


KEYS = {
    "1\\cat.0.jpg": "1/cat.0.jpg",
    "./2/cat.0.jpg": "2/cat.0.jpg",
    "3//cat.0.jpg": "3/cat.0.jpg",
    "4/./cat.0.jpg": "4/cat.0.jpg",
    "日本/写真.jpg": "日本/写真.jpg",
    "n" * 300 + ".jpg": "n" * 300 + ".jpg",
    "line\nbreak.jpg": r"line\nbreak.jpg",
    "tab\there.jpg": r"tab\there.jpg",
    "\x1b[2J\x9b.jpg": r"\x1b[2J\x9b.jpg",
    "a\u2028b.jpg": r"a\u2028b.jpg",
    **{
        name: name for name in ("a/..b.jpg", "...jpg", "a..b/c.jpg", "~/a.jpg", "-r.jpg", "a;b.jpg")
    },
}


def by_system(system: int, members: Mapping[str, bytes]) -> bytes:
    """Return a zip as a system writes it; see 4.4.2 of the APPNOTE."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.create_system = system
            archive.writestr(info, data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("system", "key"), [(0, "1/cat.jpg"), (10, "1/cat.jpg"), (3, r"1\cat.jpg"), (19, r"1\cat.jpg")]
)
def test_a_backslash_is_a_separator_in_zips_of_windows(
    tmp_path: Path, system: int, key: str
) -> None:
    assert listed_bytes(tmp_path, by_system(system, {"1\\cat.jpg": JPEG})).image_keys == [key]


@pytest.mark.parametrize("system", [0, 3])
def test_a_backslash_inside_a_character_makes_no_folder(tmp_path: Path, system: int) -> None:
    """The second byte of these characters is 0x5C. Without an encoding, a notice asks for it."""
    name = "画像\\ソ表能.jpg" if system == 0 else "画像/ソ表能.jpg"
    raw = name.encode("cp932")
    assert raw.count(b"\\") == 3 + (system == 0)
    data = by_system(system, {"#" * len(raw): JPEG}).replace(b"#" * len(raw), raw)
    source = write(tmp_path / "source", data)
    assert listed(source, zip_encoding="cp932").image_keys == ["画像/ソ表能.jpg"]
    found = listed(source)
    (key,) = found.image_keys
    assert key.count("/") == name.count("/")
    (notice,) = found.notices
    assert "source: 1 name is not UTF-8, such as " in notice
    assert "encoding, such as cp932 or gbk" in notice


@ZIP_AND_TAR
def test_keys_are_posix_paths(tmp_path: Path, pack: Pack) -> None:
    found = listed_bytes(tmp_path, pack(dict.fromkeys(KEYS, JPEG)))
    assert found.image_keys == sorted(KEYS.values())


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
def test_two_members_with_one_key_are_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^x/a\.jpg: two members"):
        listed_bytes(tmp_path, data)


def test_a_file_name_that_is_not_utf8_becomes_an_escape(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "source", {"a.jpg": PNG})
    Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.jpg")).write_bytes(JPEG)
    Path(os.fsdecode(os.fsencode(folder) + b"/li\xe9")).symlink_to("absent")
    _check_not_utf8(listed(folder))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_a_tar_name_that_is_not_utf8_becomes_an_escape(tmp_path: Path, form: int) -> None:
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
def test_zip_names_without_a_flag_are_decoded_with_the_given_encoding(
    tmp_path: Path, encoding: str
) -> None:
    name = {"shift_jis": "写真.jpg", "cp866": "фото.jpg"}.get(encoding, "café.jpg")
    ascii_name = "#" * len(name.encode(encoding))
    data = zip_bytes({ascii_name: JPEG}).replace(ascii_name.encode(), name.encode(encoding))
    found = listed(write(tmp_path / "source", data), zip_encoding=encoding)
    assert found.contents == {name: JPEG}


def test_zip_names_with_the_utf8_flag_ignore_the_given_encoding(tmp_path: Path) -> None:
    source = write(tmp_path / "source", zip_bytes({"写真.jpg": JPEG}))
    assert listed(source, zip_encoding="cp866").image_keys == ["写真.jpg"]


def test_other_names_of_a_zip_are_code_page_437(tmp_path: Path) -> None:
    data = zip_bytes({"caf#.jpg": JPEG}).replace(b"caf#", b"caf\x82")
    assert listed_bytes(tmp_path, data).contents == by_zipfile(data) == {"café.jpg": JPEG}


def test_a_zip_name_with_a_false_utf8_flag_is_an_error(tmp_path: Path) -> None:
    data = zip_bytes({"é.jpg": JPEG}).replace("é".encode(), b"\xe9\xe9")
    with pytest.raises(SourceError, match=r"(?i)source\.bin: .*not utf-8"):
        listed_bytes(tmp_path, data)


# The type is detected by content


@pytest.mark.parametrize("name", ["photo", "photo.dat", "photo.txt", "photo.zip", "0"])
def test_an_image_is_recognised_by_its_content(tmp_path: Path, name: str) -> None:
    forms = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "JPEG2000")
    image = Image.fromarray(pixels(8, 8))
    members = {f"{form}/{name}": encoded(image, form) for form in forms}
    members[f"CMYK/{name}"] = encoded(image.convert("CMYK"), "JPEG")
    assert listed_bytes(tmp_path, zip_bytes(members)).image_keys == sorted(members)


def test_a_file_with_an_image_suffix_is_an_image_with_any_content(tmp_path: Path) -> None:
    names = ["a.JPG", "b.jpeg", "c.Png", "d.webp"]
    data = zip_bytes(dict.fromkeys(names, b"no image"))
    assert listed_bytes(tmp_path, data).image_keys == names


@pytest.mark.parametrize("name", ["data.bin", "data", "data.csv", "data.tar.gz", "data.zip"])
def test_an_archive_is_recognised_by_its_content(tmp_path: Path, name: str) -> None:
    packed = {kind: pack({"a.jpg": JPEG}) for kind, pack in {**ZIPS, **TARS}.items()}
    for data in packed.values():
        assert listed_bytes(tmp_path, data, name).contents == {"a.jpg": JPEG}
    outer = STORED_ZIP({f"{kind}/{name}": data for kind, data in packed.items()})
    expected = dict.fromkeys((f"{kind}/{name}/a.jpg" for kind in packed), JPEG)
    assert listed_bytes(tmp_path, outer, "o").contents == expected


TEXTS = {
    "plain": b"id,label\n1,cat\n",
    "like a bitmap": b"BMI,age,label\n1,2,3\n" * 40,
    "like bzip2": b"BZhang,1\nBZhou,2\n" * 40,
    "like gzip": b"\x1f\x8b is how gzip starts",
    "long": b"ustar" * 200,
}


def test_a_text_is_recognised_by_its_content(tmp_path: Path) -> None:
    names = ("in.zip", "a.csv", "x.tar.gz")
    members = {f"{kind}/{name}": text for kind, text in TEXTS.items() for name in names}
    found = listed_bytes(tmp_path, zip_bytes({**members, "a.jpg": JPEG}))
    assert [member.key for member in found.listing.others] == sorted(members)


def test_a_source_that_is_not_a_readable_archive_is_an_error(tmp_path: Path) -> None:
    texts = b"just text", b"", JPEG, bytes(10240)
    for data in (*texts, gzip.compress(b"just text"), gzip.compress(JPEG)):
        for name in ("source.zip", "source.txt"):
            line = rf"{name}: is neither a folder nor a supported archive"
            with pytest.raises(SourceError, match=line):
                listed_bytes(tmp_path, data, name)
    with pytest.raises(SourceError, match="no such file or folder"):
        listed(tmp_path / "absent.zip")
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
def test_every_archive_suffix_is_known_everywhere(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the name of the dataset, for the split of a folder, and for `init` without a source."""
    name = f"train{suffix}"
    assert make_recipe({"source": name}, "test").dataset_name == "train"
    assert given_split([name]) == "train"
    write_folder(tmp_path, {name: b"", "labels.csv.gz": b"", "train.zip.002": b""})
    monkeypatch.chdir(tmp_path)
    assert only_archive() == name
