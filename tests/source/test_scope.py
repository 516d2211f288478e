"""Only the wanted part of a source is opened: damage elsewhere does not end a build."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.errors import SourceError
from tests.support.arrays import npy
from tests.support.builders import build, jpeg, png, tar_bytes, write_folder, zip_bytes

IMAGES = {f"a/{name}/{i}.png": png(seed=i) for name in "xy" for i in range(3)}
BROKEN = b"PK\3\4" + b"x" * 200
_CUT_TAR = tar_bytes({f"a/x/{i}.jpg": jpeg(seed=i) for i in range(8)})[:9000]
DAMAGED = {
    "b/broken.zip": BROKEN,
    "b/cut.tar": _CUT_TAR,
    "b/old.rar": b"Rar!\x1a\x07\0" + bytes(99),
    "b/volumes.zip.001": BROKEN,
}


def summary(source: Path, **keys: Any) -> tuple[int, dict[str, int], str]:
    result = build(source, source.with_name("out"), **keys)
    totals = result.manifest.totals
    return totals.num_written, totals.skipped, " ".join(result.notes)


@pytest.mark.parametrize("pack", [None, zip_bytes, tar_bytes], ids=["folder", "zip", "tar"])
@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"root": "a"}, "not below --root"),
        ({"include": ("a/*",)}, "not matched by --include"),
        ({"exclude": ("b/*",)}, "matched by --exclude"),
    ],
    ids=["root", "include", "exclude"],
)
def test_a_damaged_archive_that_is_not_wanted_is_skipped(
    tmp_path: Path, pack: object, damaged: str, option: dict[str, Any], reason: str
) -> None:
    members = {**IMAGES, damaged: DAMAGED[damaged]}
    source = tmp_path / "source"
    if callable(pack):
        source.write_bytes(pack(members))
    else:
        write_folder(source, members)
    with pytest.raises(SourceError):
        build(source, tmp_path / "all")
    written, skipped, notes = summary(source, **option)
    assert (written, skipped) == (6, {reason: 1})
    assert "root" in option or f"{damaged.removesuffix('.001')} is {reason} and not opened" in notes


def test_members_and_bytes_of_a_skipped_archive_do_not_count_to_the_limits(tmp_path: Path) -> None:
    many = zip_bytes({f"{i}.txt": b"" for i in range(50)})
    source = write_folder(tmp_path / "source", {**IMAGES, "0/many.zip": many})
    with pytest.raises(SourceError, match="more than 40 members"):
        build(source, tmp_path / "all", max_members=40)
    written, skipped, _ = summary(source, include=("a/*",), max_members=40)
    assert (written, skipped) == (6, {"not matched by --include": 1})


def test_a_table_in_an_archive_outside_of_the_root_labels_the_images(tmp_path: Path) -> None:
    table = "".join(["id,kind\n", *(f"{i},{'odd' if i % 2 else 'even'}\n" for i in range(6))])
    members = {f"a/{i}.png": png(seed=i) for i in range(6)}
    for name, labels in (("kinds.csv.zip", "auto"), ("b/t.zip", "csv:t.zip/kinds.csv:id:kind")):
        packed = zip_bytes({"kinds.csv": table.encode()})
        source = write_folder(tmp_path / name[:1] / "source", {**members, name: packed})
        result = build(source, tmp_path / name[:1] / "out", root="a", labels=labels)
        assert result.manifest.labels.names == ("even", "odd")


def test_a_damaged_archive_that_an_option_names_is_an_error(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", {**IMAGES, "b/t.zip": BROKEN})
    with pytest.raises(SourceError, match=r"b/t\.zip: is truncated"):
        build(source, tmp_path / "out", root="a", labels="csv:t.zip/kinds.csv:id:kind")


@pytest.mark.parametrize(
    ("option", "reason"),
    [({"root": "a"}, "not below --root"), ({"include": ("a/*",)}, "not matched by --include")],
)
def test_arrays_that_are_not_wanted_are_not_opened(
    tmp_path: Path, option: dict[str, Any], reason: str
) -> None:
    members = {"a/x.npy": npy(np.zeros((6, 8, 8, 3), np.uint8)), "b/y.h5": b"\x89HDF\r\n\x1a\n"}
    source = write_folder(tmp_path / "source", members)
    with pytest.raises(SourceError):
        build(source, tmp_path / "all")
    assert summary(source, **option)[:2] == (6, {reason: 1})


def test_a_folder_outside_of_the_root_that_cannot_be_read_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "source", {**IMAGES, "b/c/0.png": png()})
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path == str(source / "b"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match="cannot be read"):
        build(source, tmp_path / "all")
    assert summary(source, root="a")[:2] == (6, {"unreadable": 1})


def test_of_the_whole_machine_only_the_root_is_listed(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", IMAGES)
    root = str(source / "a").lstrip("/")
    result = build(Path("/"), tmp_path / "out", root=root, name="pets")
    assert (result.manifest.totals.num_inputs, result.manifest.labels.names) == (6, ("x", "y"))


@pytest.mark.parametrize("start", [b"<!DOCTYPE html><html>", b"\xef\xbb\xbf\n <html lang=en>"])
def test_a_web_page_that_is_called_an_archive_is_named(tmp_path: Path, start: bytes) -> None:
    page = start + b"<body>Sign in</body></html>"
    alone = tmp_path / "data.zip"
    alone.write_bytes(page)
    folder = write_folder(tmp_path / "source", {**IMAGES, "b/data.tar.gz": page})
    for source in (alone, folder):
        with pytest.raises(SourceError, match=r"data\..*: looks like a web page \(a login\?\)"):
            build(source, tmp_path / "out")
    assert summary(folder, root="a")[0] == 6


def test_a_dataset_as_a_source_names_repack(tmp_path: Path) -> None:
    dataset = build(write_folder(tmp_path / "source", IMAGES), tmp_path / "out").path
    with pytest.raises(SourceError) as caught:
        build(dataset, tmp_path / "again", name="again")
    line = "a dataset of shardprep, which shardprep repack reads; run `shardprep repack {}` instead"
    assert str(caught.value).endswith(line.format(dataset))
