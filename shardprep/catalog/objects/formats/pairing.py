"""Match annotation documents to images by names in the documents, or by their paths."""

from __future__ import annotations

import contextlib
import glob
import re
from collections.abc import Sequence

from shardprep.catalog.names import IMAGE_FOLDER, folder_splits, stated_split, stem
from shardprep.catalog.tables.key_index import AmbiguousIdError, KeyIndex
from shardprep.errors import OptionName, SourceError, counted, some_of
from shardprep.image.signatures import IMAGE_SUFFIXES
from shardprep.source.names import composed, without_archive_suffix

_MOST_FOLDERS = 8
_ABSOLUTE = re.compile(r"^([A-Za-z]:)?/|(^|(?<=/))\.{1,2}/")
"""Matches the start of an absolute path, and steps such as ./ and ../, which keys do not have."""


class Pairing:
    """Find the image that a document describes.

    These folders are searched in turn: the folder of the document; its path with one folder left
    out or replaced by a folder of images (`labels/a/1.txt`, `images/a/1.jpg`); its last folders;
    all folders. In each folder, images of the split that the document states come before images
    without a split. An image of another split never fits.
    """

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._paths = sorted({composed(key.rpartition("/")[0]) for key in index.keys})
        self._has_near = False
        """Whether an image has been found in a folder near its document."""
        self._all_paths = "".join(f"/{path}/\n" for path in self._paths[:_MOST_FOLDERS])
        names = {name for path in self._paths for name in path.split("/")}
        is_image = (n for n in sorted(names) if IMAGE_FOLDER.fullmatch(without_archive_suffix(n)))
        self._image_folders = list(is_image)[:_MOST_FOLDERS]
        self._splits = folder_splits(index.keys)
        self.documents: dict[int, str] = {}
        """Position of an image → key of the document that describes it."""
        self._entries: dict[int, tuple[str, str, str]] = {}
        """Position of an image → document, name and split of the last entry for it."""
        self._places: dict[tuple[str, str], tuple[str | None, list[str]]] = {}
        self._unlike: list[str] = []
        """Documents that name another image of the source than the image of their own name."""

    def of_document(self, key: str, stated: str) -> int | None:
        """Return the position of the image named like the document, else of `stated`, or None.

        AmbiguousIdError if several images fit.
        """
        try:
            found = self.find(stem(key), key)
        except AmbiguousIdError:
            if not stated:
                raise
            found = None
        if found is None:
            return self.find(stated, key) if stated else None
        name = stated.replace("\\", "/").rpartition("/")[2]
        if stated and stem(key) not in (name, stem(name)):
            with contextlib.suppress(AmbiguousIdError):
                if self.find(stated, key) not in (None, found):
                    self._unlike.append(f"{key} states {name}")
        return found

    @property
    def findings(self) -> list[str]:
        documents = counted(len(self._unlike), "document", "states", "state")
        what = "another image than the one of the same name, which is used"
        return [f"{documents} {what}: {some_of(self._unlike, 2)}"] if self._unlike else []

    def find(self, name: str, document: str, split: str = "") -> int | None:
        """Return the position of the image that a document calls `name`, or None.

        `name` may lack folders or have another image extension. `split` "" means the split that
        the folders of the document name, if any. AmbiguousIdError if several images fit.
        """
        path = name.replace("\\", "/")
        if "/" in path:
            path = _ABSOLUTE.sub("", path)
        base = path.rpartition("/")[2]
        bare, _, suffix = base.rpartition(".")
        names = [path, base]
        if f".{suffix.lower()}" in IMAGE_SUFFIXES:  # images may have been converted
            names += [f"{path.rpartition('/')[0]}/{bare}".lstrip("/"), bare]
        for one in dict.fromkeys(names):
            image = self._find(one, document, split)
            if image is not None:
                return image
        return None

    def claim(self, image: int, document: str) -> None:
        """Record which document describes an image; SourceError if it has another one already."""
        if (other := self.documents.setdefault(image, document)) != document:
            what = f"{self._index.keys[image]} is also annotated in {other}"
            folder = document.rpartition("/")[0]
            is_apart = folder != other.rpartition("/")[0]
            out = glob.escape(folder) + "/*" if folder and is_apart else glob.escape(document)
            flag = OptionName("exclude", out)
            raise SourceError(document, what, f"leave one document out: {flag}")

    def find_listed(self, name: str, document: str, split: str) -> int | None:
        """Return the position of the image `name`; if several fit, of the image in `split`."""
        try:
            return self.find(name, document)
        except AmbiguousIdError:
            return self.find(name, document, split)

    def claim_entry(self, image: int, document: str, name: str, split: str = "") -> None:
        """Record that an entry of a shared document belongs to an image.

        SourceError if the last entry of the image is in the same document or for another split.
        """
        other, known, of_split = self._entries.get(image, ("", "", split))
        self._entries[image] = document, name, split
        if other == document or (of_split and split and of_split != split):
            where = f" in {other}" if other != document else ""
            raise two_entries(document, self._index.keys[image], f"{known!r}{where}", repr(name))

    def _find(self, path: str, document: str, split: str) -> int | None:
        folder = composed(document.rpartition("/")[0])
        if (folder, split) not in self._places:
            meant = split or stated_split(folder)
            self._places[folder, split] = meant, self._ways(folder)
        meant, places = self._places[folder, split]
        several: Sequence[int] = ()
        is_near = False
        for place in places:
            found = self._index.find(f"{place}/{path}" if place else path)
            if meant:
                found = [i for i in found if self._splits[i] == meant] or [
                    i for i in found if self._splits[i] is None
                ]
            if len(found) == 1:
                self._has_near |= bool(place)
                return found[0]
            if found and not several:
                several, is_near = found, bool(place)
        # If other documents have images nearby, several distant images count as no match.
        if several and (is_near or not self._has_near):
            one, two = self._index.keys[several[0]], self._index.keys[several[1]]
            hint = f"leave out one of them, with {OptionName('exclude')} or {OptionName('root')}"
            what = f"{path!r} fits several images: {one} and {two}"
            error = AmbiguousIdError(document, what, hint)
            error.found = several
            raise error
        return None

    def _ways(self, folder: str) -> list[str]:
        names = folder.split("/") if folder else []
        ways = [names]
        for i in reversed(range(len(names))):
            ways += [[*names[:i], other, *names[i + 1 :]] for other in self._image_folders]
            ways.append([*names[:i], *names[i + 1 :]])
        ways += [names[i:] for i in range(1, len(names))]
        paths = ["/".join(way) for way in ways if way]
        if len(self._paths) <= _MOST_FOLDERS:  # skip folders that have no image
            paths = [path for path in paths if f"/{path}/" in self._all_paths]
        return list(dict.fromkeys([*paths, ""]))


def two_entries(document: str, key: str, one: str, other: str) -> SourceError:
    """Return the error for two quoted names in a document that fit the same image."""
    if one == other:
        return SourceError(document, f"has two entries for {one}", "delete one of them")
    what = f"{one} and {other} both match the image {key}"
    return SourceError(document, what, "add the missing image file, or delete one of the entries")
