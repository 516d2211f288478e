"""List the members of a folder or an archive, and of the archives in it.

Zip and tar members are read in place. Compressed inner archives (a deflated zip, the tar in a .gz),
split archives (.zip.001) and 7z archives are first unpacked or joined, once, into the work folder.
"""

from __future__ import annotations

import glob
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow.compute as pc

from shardprep.errors import OptionName, SourceError, shown
from shardprep.image.signatures import (
    HEAD_BYTES,
    IMAGE_SUFFIXES,
    archive_type,
    array_type,
    is_image,
    is_page,
)
from shardprep.source.byte_range import (
    MOST_BYTES,
    UNPACK_ERRORS,
    MemberError,
    PlainExtent,
    RefusedExtent,
    StoredExtent,
)
from shardprep.source.containers import entries
from shardprep.source.file_listing import (
    EVERYTHING,
    GIVE_A_SOURCE,
    NOT_BELOW,
    FoundFile,
    Scope,
    find_files,
)
from shardprep.source.limits import DEFAULT_LIMITS, Budget, SourceLimits
from shardprep.source.members import Member, Members, MembersBuilder, OrdinaryImages, ordinary_files
from shardprep.source.names import (
    MAX_KEY_LENGTH,
    clean_key,
    is_archive_name,
    is_array_name,
    is_junk,
    is_package_name,
)
from shardprep.source.string_column import booleans, integers, release
from shardprep.source.unpack import Unpacker, buffered, decompressed, member_stream
from shardprep.storage.url import is_url

_COMPRESSED = ("gz", "bz2", "xz")
_DAMAGE = (
    *UNPACK_ERRORS, zipfile.BadZipFile, tarfile.TarError, NotImplementedError, RecursionError,
    MemberError,
)  # fmt: skip
_AT_ONCE = 1 << 12
_SHOWN_ERROR = 100
_ZIP_SUFFIXES = (".zip", ".exe")
_ZARR = re.compile(r"\.zarr(\.zip)?/", re.IGNORECASE)
_VOLUME = re.compile(r"(?P<whole>.*[^/])\.(?P<number>\d{3})", re.DOTALL)
_NUMBER = re.compile(r"\.\d{3}$")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A member of the source that does not become an item."""

    key: str
    reason: str
    """One of a few texts, used to count skipped members."""
    num_bytes: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """The members of a source."""

    images: Members
    others: list[Member]
    """Members that are neither images nor archives, such as label tables."""
    skipped: list[Skipped]
    unpacker: Unpacker | None = field(default=None, compare=False, repr=False)
    """Unpacks further members; its budget includes the bytes that the listing unpacked."""


def list_source(  # noqa: PLR0913 - options of the walk and callbacks
    source: Path | str,
    work_dir: Path,
    notice: Callable[[str], None],
    *,
    zip_encoding: str | None = None,
    limits: SourceLimits = DEFAULT_LIMITS,
    scope: Scope = EVERYTHING,
    check: Callable[[Sequence[Member]], None] = lambda _: None,
) -> Listing:
    """Return all members of a source, sorted by key; SourceError if two images have the same key.

    A source is a folder, an archive (recognised by its content), a volume of a split archive, the
    address of an archive, or an address with objects below it. The caller removes `work_dir`.
    Without `zip_encoding`, a name is UTF-8 if that is valid, otherwise cp437. SourceError if an
    archive cannot be opened; but an inner archive is skipped if the `scope` does not want it, and
    rejected as an item if it is one sample. `check` is called with the `others` found so far,
    before inner archives are unpacked, and may raise.
    """
    walk = _Walk(Unpacker(work_dir, notice, Budget(limits)), zip_encoding, scope)
    walk.root = str(source) if is_url(str(source)) else Path(source).name
    walk.files(find_files(source, scope, follow_links=limits.follow_links), walk.root)
    if walk.packed or walk.volumes:
        check(walk.others)
    walk.open_packed()
    walk.join_volumes()
    return walk.listing()


class _Walk:
    def __init__(self, unpacker: Unpacker, zip_encoding: str | None, scope: Scope) -> None:
        self.scope = scope
        self.unopened: list[str] = []
        self.unpacker = unpacker
        self.budget = unpacker.budget
        self.zip_encoding = zip_encoding
        self.volumes: dict[tuple[str, int], dict[int, StoredExtent]] = defaultdict(dict)
        self.packed: list[tuple[str, StoredExtent, int]] | None = []  # None: open at once
        self.images = MembersBuilder()
        self.others: list[Member] = []
        self.skipped: list[Skipped] = []
        self.root = ""

    def listing(self) -> Listing:
        self.others.sort(key=attrgetter("key"))
        self.skipped.sort(key=attrgetter("key"))
        images = self.images.members()
        for prefix in self.unopened:  # drop members listed before the archive failed
            self.others = [one for one in self.others if not one.key.startswith(prefix)]
            is_in = booleans(pc.starts_with(images.keys.array, prefix))
            images = images.take(np.flatnonzero(~is_in))
        images = in_order(images)
        release()
        return Listing(images, self.others, self.skipped, self.unpacker)

    def files(self, found: Iterable[FoundFile], root: str) -> None:
        source = iter(found)
        while some := list(islice(source, _AT_ONCE)):
            images, others = ordinary_files(some)
            self.budget.add_source(int(images.stored_bytes.sum()))
            self.ordinary(images, root)
            for file in others:
                if not file.relative:
                    self.file(file.path, file.num_bytes)
                    continue
                self.budget.add_members(1, root)
                if file.problem:
                    self.skip(file.relative, file.problem, 0)
                else:
                    self.budget.add_source(file.num_bytes)
                    extent = PlainExtent(file.path, 0, file.num_bytes)
                    self.member(clean_key(file.relative.replace("\\", "/")), extent, depth=1)

    def file(self, place: str, num_bytes: int) -> None:
        """Add the members of a source that is an archive, or a volume of a split archive."""
        volume = _VOLUME.fullmatch(place)
        if volume and is_url(place):
            what = "is one volume of a split archive"
            raise SourceError(place, what, "give the address of the folder with all volumes")
        if volume:
            whole = Path(volume["whole"])
            for path in sorted(whole.parent.glob(f"{glob.escape(whole.name)}.[0-9][0-9][0-9]")):
                extent = PlainExtent.named(str(path), path.stat().st_size)
                self.budget.add_source(extent.num_bytes)
                self.volume(path.name, extent, depth=0)
            return
        extent = PlainExtent.named(place, num_bytes)
        self.budget.add_source(num_bytes)
        name = place.rpartition("/")[2]
        if self.archive(extent, name, prefix="", depth=1):
            return
        is_table = name.lower().endswith((".csv", ".tsv"))  # perhaps of pixels
        if not (is_table or array_type(inner_head(extent)[0])):
            raise SourceError(place, "is neither a folder nor a supported archive", GIVE_A_SOURCE)
        self.others.append(Member(clean_key(name), extent))

    def skip(self, name: str, reason: str, num_bytes: int, detail: str = "") -> None:
        key = shown(clean_key(name), MAX_KEY_LENGTH)
        self.skipped.append(Skipped(key, reason, min(num_bytes, MOST_BYTES), detail))

    def image(self, key: str, extent: StoredExtent) -> None:
        self.images.add(key, self.budget.readable(extent, key))

    def ordinary(self, found: OrdinaryImages, name: str, prefix: str = "") -> None:
        keys, places = found.keys, found.places
        self.budget.add_members(len(keys), name)
        if prefix:
            keys = keys.after(prefix)
        fits = self.budget.readable_all(found.stored_bytes, places["num_bytes"])
        others = np.flatnonzero(~fits)
        if len(others):
            for member in Members(keys, places, (found.file,)).take(others):
                self.image(member.key, cast("StoredExtent", member.extent))
            keys, places = keys.take(np.flatnonzero(fits)), places[fits]
        self.images.add_all(keys, places, found.file)

    def member(self, key: str, extent: StoredExtent, depth: int) -> None:
        name = key.rpartition("/")[2]
        if is_junk(key, name):
            self.skip(key, "junk", extent.num_bytes)
        elif _ZARR.search(f"{self.root}/{key}"):  # many chunks, which may look like anything
            self.others.append(Member(key, self.budget.readable(extent, key)))
        elif name[name.rfind(".") :].lower() in IMAGE_SUFFIXES:
            self.image(key, extent)
        elif is_package_name(name):
            self.other(key, extent, is_array=False)
        elif self.scope.is_outside(key) and not self.scope.is_named(key):
            self.closed(key, extent)
        elif is_archive_name(_NUMBER.sub("", name)) and (reason := self.scope.unopened(key)):
            self.skip(key, reason, extent.num_bytes)
        elif not self.volume(key, extent, depth):
            self.unnamed(key, extent, depth)

    def closed(self, key: str, extent: StoredExtent) -> None:
        """Add a member outside of the root by its name, without opening it."""
        if is_archive_name(key) or key.lower().endswith(".rar"):
            self.skip(key, NOT_BELOW, extent.num_bytes)
        else:
            self.other(key, extent, is_array=is_array_name(key.rpartition("/")[2]))

    def other(self, key: str, extent: StoredExtent, *, is_array: bool) -> None:
        # A file of arrays can have any size: it is not read as a whole.
        self.others.append(Member(key, extent if is_array else self.budget.readable(extent, key)))

    def unnamed(self, key: str, extent: StoredExtent, depth: int) -> None:
        """Add a member without an image suffix. Its first bytes show its type."""
        try:
            head = extent.read_head(HEAD_BYTES)
        except MemberError as error:
            self.skip(key, "unreadable", extent.num_bytes, str(error))
            return
        if is_image(head):
            self.image(key, extent)
        elif self.packed is not None and _is_packed_archive(extent, key, head):
            self.packed.append((key, extent, depth))
        elif not self.inner_archive(extent, key, depth, head):
            self.other(key, extent, is_array=array_type(head) is not None)

    def open_packed(self) -> None:
        packed, self.packed = self.packed or [], None
        for key, extent, depth in packed:
            self.unnamed(key, extent, depth)

    def inner_archive(
        self, extent: StoredExtent, key: str, depth: int, head: bytes | None = None
    ) -> bool:
        """Add members as `archive` does. Skip or reject a broken archive if the scope says so."""
        before = dict(vars(self.budget))
        try:
            return self.archive(extent, key, f"{key}/", depth + 1, head)
        except SourceError as error:
            reason, is_sample = self.scope.unwanted(key), self.scope.is_sample(key)
            if not (reason or is_sample):
                raise
            vars(self.budget).update(before)
            self.unopened.append(f"{key}/")
            if reason:
                self.skip(key, reason, extent.num_bytes, f"{error.where}: {error.what}")
            else:
                self.images.add(key, RefusedExtent(extent.num_bytes, error.what))
            return True

    def archive(
        self, extent: StoredExtent, name: str, prefix: str, depth: int, head: bytes | None = None
    ) -> bool:
        """Add the members of an archive that begins with `head`; return False if it is not one."""
        kind = _head_type(extent, name) if head is None else archive_type(head)
        if kind is None and (depth == 1 or name.lower().endswith(_ZIP_SUFFIXES)):
            # A zip may have data in front, such as a self-extractor: its directory is at its end.
            with buffered(self.unpacker.in_place(extent, name)) as whole:
                kind = "zip" if zipfile.is_zipfile(whole) else None
        _refuse(kind, extent, name)
        if kind is None:
            return False
        self.budget.check_depth(depth, name)
        try:
            if kind in _COMPRESSED:
                return self._compressed(extent, name, prefix, depth, kind)
            place = self.unpacker.in_place(extent, name, check=kind == "tar")
            for entry in entries(place, name, kind, self.zip_encoding, self.unpacker):
                if isinstance(entry, OrdinaryImages):
                    self.ordinary(entry, name, prefix)
                    continue
                self.budget.add_members(1, name)
                if entry.extent is None:
                    self.skip(prefix + entry.name, entry.problem, entry.num_bytes)
                else:
                    self.member(clean_key(prefix + entry.name), entry.extent, depth)
        except UnicodeDecodeError as error:
            what = f"has a member name that is not {error.encoding}"
            raise SourceError(name, what, f"give another {OptionName('zip_encoding')}") from error
        except _DAMAGE as error:
            what = shown(str(getattr(error, "strerror", None) or error), _SHOWN_ERROR)
            what = what if isinstance(error, MemberError) else f"is damaged ({what})"
            raise SourceError(name, what, "download or pack it again") from error
        return True

    def _compressed(
        self, extent: StoredExtent, name: str, prefix: str, depth: int, kind: str
    ) -> bool:
        with member_stream(extent) as packed:
            within = archive_type(decompressed(packed, kind).read(HEAD_BYTES))
        if within is None:
            return False
        with member_stream(extent) as packed:
            inner = self.unpacker.unpack(decompressed(packed, kind), extent.num_bytes, name)
        return self.archive(inner, name, prefix, depth + (within in _COMPRESSED))

    def volume(self, name: str, extent: StoredExtent, depth: int) -> bool:
        """Store a volume for `join_volumes`; return False if `name` is not the name of a volume."""
        match = _VOLUME.fullmatch(name)
        if match is not None:
            self.volumes[match["whole"], depth][int(match["number"])] = extent
        return match is not None

    def join_volumes(self) -> None:
        """Add the members of every split archive; add other numbered files as single members."""
        while self.volumes:
            name, depth = min(self.volumes)
            volumes = self.volumes.pop((name, depth))
            first = min(volumes)
            if _head_type(volumes[first], f"{name}.{first:03d}") is None:
                for number, extent in volumes.items():
                    self.unnamed(f"{name}.{number:03d}", extent, depth)
                continue
            missing = sorted(set(range(1, max(volumes) + 1)) - volumes.keys())
            if missing:
                hint = "download all volumes of the archive"
                raise SourceError(f"{name}.{missing[0]:03d}", "is missing", hint)
            parts = {f"{name}.{number:03d}": volumes[number] for number in sorted(volumes)}
            place = self.unpacker.join(parts, name)
            if depth:
                self.inner_archive(place, name, depth)
            else:
                self.archive(place, name, prefix="", depth=1)


def in_order(images: Members) -> Members:
    """Return the images sorted by key; SourceError if two have the same key."""
    keys = images.keys.array
    if pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py():
        return images
    images = images.take(integers(pc.sort_indices(keys)))
    keys = images.keys.array
    twice = np.flatnonzero(booleans(pc.equal(keys[:-1], keys[1:])))
    if len(twice):
        what = "two members of the source have this path"
        raise SourceError(images.keys[int(twice[0])], what, "remove one of them from the archive")
    return images


def inner_head(extent: StoredExtent) -> tuple[bytes, str]:
    """Return the first bytes of a member, decompressed, and its compression ("" for none)."""
    head = extent.read_head(HEAD_BYTES)
    kind = archive_type(head)
    if kind not in _COMPRESSED:
        return head, ""
    with member_stream(extent) as packed:
        return decompressed(packed, kind).read(HEAD_BYTES), kind


def _is_packed_archive(extent: StoredExtent, key: str, head: bytes) -> bool:
    kind = archive_type(head)
    is_packed = not isinstance(extent, PlainExtent) and extent.is_packed
    is_zip = kind is not None or key.lower().endswith(_ZIP_SUFFIXES)
    return kind in (*_COMPRESSED, "7z") or (is_packed and is_zip)


def _refuse(kind: str | None, extent: StoredExtent, name: str) -> None:
    if kind == "rar":
        raise SourceError(name, "is a rar archive, which is not supported", "unpack it first")
    if kind is None and is_archive_name(name) and is_page(extent.read_head(HEAD_BYTES)):
        what = "looks like a web page (a login?), not an archive"
        raise SourceError(name, what, "sign in and download it again")


def _head_type(extent: StoredExtent, name: str) -> str | None:
    try:
        return archive_type(extent.read_head(HEAD_BYTES))
    except MemberError as error:
        raise SourceError(name, str(error), "download or pack it again") from error
