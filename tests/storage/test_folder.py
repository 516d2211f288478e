"""Folders of files: names as datasets have them, on any system."""

from collections.abc import Iterator
from pathlib import PureWindowsPath
from typing import Any, cast

from shardprep.storage.folder import LocalFolder


class WindowsFolder(PureWindowsPath):
    """A folder of Windows with two files, seen from a system that has no such paths."""

    def rglob(self, _: str) -> Iterator[Any]:
        yield from (self / "index" / "one.idx", self / "a.json")

    def is_file(self) -> bool:
        return True


def test_names_have_slashes_on_windows_too() -> None:
    folder = LocalFolder(cast("Any", WindowsFolder("C:/sets/pets")))
    assert folder.names() == ["a.json", "index/one.idx"]
