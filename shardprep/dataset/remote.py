"""Datasets in object storage: which one an address means, and copies of what is beside its shards.

One listing says all that is there, how long it is, and by which ETag it is known from then on.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.draft import in_force
from shardprep.dataset.folder import (
    INCOMPLETE_SUFFIX,
    INDEX_DIR,
    ITEMS_FILE,
    SCHEMA_FILE,
    find_damaged,
    find_dataset,
    read_schema,
)
from shardprep.dataset.grammar import VERSION, version_key
from shardprep.dataset.json_document import MAX_DOCUMENT_BYTES
from shardprep.dataset.manifest import MANIFEST_FILE, load_manifest
from shardprep.errors import DatasetError, RecipeError
from shardprep.storage import objects
from shardprep.storage.shard_cache import RemoteShard, is_document, stage_documents
from shardprep.storage.url import ObjectUrl, parse_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest, Shard
    from shardprep.dataset.schema import Schema
    from shardprep.storage.objects import ObjectFacts

_BELOW = re.compile(rf"(?P<above>(?:[^/]+/)?)(?P<version>{VERSION.pattern})/")
_UNFINISHED = re.compile(rf"(?:[^/]+/){{0,2}}[^/]*{re.escape(INCOMPLETE_SUFFIX)}/")
_NAMED = 5
_SPARE_ITEM_BYTES = 4 << 30
"""Size in bytes that an item table may have beyond that of the shards: of inputs left out."""
_REPAIR = "`shardprep verify --repair` builds what is damaged again"
_REMAINS = (ITEMS_FILE, SCHEMA_FILE, "dataset_info.json")


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """A dataset as one listing has found it."""

    url: ObjectUrl
    objects: Mapping[str, ObjectFacts]
    """Everything below it, by the name it has in the dataset; its own name says where it lies."""

    def __str__(self) -> str:
        return str(self.url)

    def documents(self, wanted: Sequence[str] | None = None) -> Path:
        """Return a folder with copies of documents, of all or of those of some names.

        They are what lies there, right or wrong. Raises as `stage_documents`.

        Raises:
            DatasetError: one is larger than any document of its kind beside such shards.

        """
        for name, facts in self.objects.items():
            is_wanted = is_document(name) and (wanted is None or name in wanted)
            if is_wanted and facts.num_bytes > self._most_bytes(name):
                what = f"has {facts.num_bytes:,} bytes, more than the {self._most_bytes(name):,}"
                raise DatasetError(str(self.url / name), f"{what} it may have", _REPAIR)
        return stage_documents(self.url, self.objects, wanted)

    def _most_bytes(self, name: str) -> int:
        """Return the size in bytes that a document may have, by those of the shards."""
        if name == ITEMS_FILE:
            shards = sum(one.num_bytes for key, one in self.objects.items() if not is_document(key))
            return shards + _SPARE_ITEM_BYTES
        folder, _, file = name.rpartition("/")
        shard = self.objects.get(file.removesuffix(".idx")) if folder == INDEX_DIR else None
        return MAX_DOCUMENT_BYTES + (3 * shard.num_bytes if shard else 0)

    def manifest(self) -> Manifest:
        """Return the manifest.

        Raises:
            DatasetError: it is not what a build wrote.

        """
        folder = self.documents((MANIFEST_FILE,))
        with addressed(folder, self.url):
            return load_manifest(folder)

    def schema(self, manifest: Manifest) -> Schema:
        """Return the schema. Raises as `checked`."""
        folder = self.checked(manifest, (SCHEMA_FILE,))
        with addressed(folder, self.url):
            return read_schema(folder)

    def checked(self, manifest: Manifest, wanted: Sequence[str]) -> Path:
        """Return a folder with copies of documents that are what the manifest says.

        Raises:
            DatasetError: one is missing or differs.

        """
        for name in wanted:
            if name not in self.objects:
                raise DatasetError(str(self.url / name), "is not there", _REPAIR)
        folder = self.documents((MANIFEST_FILE, *wanted))
        for name in manifest.files.keys() & set(wanted):
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != manifest.files[name]:
                raise self._changed(name)
        return folder

    def shard(self, shard: Shard) -> RemoteShard:
        """Return a shard of the manifest, as it lies here.

        Raises:
            DatasetError: it is missing, or has another size.

        """
        found = self.objects.get(shard.name)
        if found is None or found.num_bytes != shard.num_bytes:
            here = "is missing" if found is None else f"has {found.num_bytes:,} bytes"
            raise DatasetError(
                str(self.url / shard.name),
                f"{here}, the manifest says {shard.num_bytes:,}",
                _REPAIR,
            )
        return RemoteShard(self.url / found.name, found.etag, shard.num_bytes, shard.sha256)

    def is_beside_unfinished(self) -> bool:
        """Tell whether something of an unfinished build lies beside it; asks the store."""
        return bool(objects.listing(self.url._replace(key=self.url.key + INCOMPLETE_SUFFIX)))

    def _changed(self, name: str) -> DatasetError:
        return DatasetError(
            str(self.url / name),
            "is not what the build wrote: its SHA-256 differs",
            _REPAIR,
        )


@contextlib.contextmanager
def addressed(folder: Path, where: object) -> Iterator[None]:
    """Let errors about copies in a folder name what they are copies of."""
    try:
        yield
    except DatasetError as error:
        here, there = str(folder), str(where)
        raise DatasetError(
            error.where.replace(here, there), error.what, error.hint.replace(here, there)
        ) from error


def find(place: str | Path, *, damaged: bool = False) -> Path | RemoteDataset:
    """Return the dataset that an argument means: a folder, or in object storage.

    Args:
        place: the dataset, or what it lies in.
        damaged: let one be found that has lost its manifest.

    Raises:
        RecipeError: it is neither a path nor an address.
        DatasetError: there is none, or several.

    """
    where = parse_place(str(place))
    if isinstance(where, ObjectUrl):
        return find_remote(where, damaged=damaged)
    return find_damaged(where) if damaged else find_dataset(where)


def documents_of(found: Path | RemoteDataset, names: Sequence[str]) -> Path:
    """Return a folder with documents of a dataset; raises as `RemoteDataset.checked`."""
    return found.checked(found.manifest(), names) if isinstance(found, RemoteDataset) else found


def described(found: Path | RemoteDataset) -> tuple[Manifest, Schema]:
    """Return the manifest and the schema of a dataset.

    Raises:
        DatasetError: one of them is missing or damaged.

    """
    if isinstance(found, RemoteDataset):
        manifest = found.manifest()
        return manifest, found.schema(manifest)
    manifest = load_manifest(found)
    return manifest, read_schema(found, manifest)


def find_remote(url: ObjectUrl, *, damaged: bool = False) -> RemoteDataset:
    """Return the dataset that an address means: itself, or the newest version below it.

    Below a key of several datasets there must be just one.

    Args:
        url: the address.
        damaged: let one be found that has lost its manifest.

    Raises:
        DatasetError: there is none, or several.
        StorageError: there is no such bucket, or it cannot be read.

    """
    found = {facts.name: facts for facts in objects.listing(url)}
    is_unfinished = url.key.endswith(INCOMPLETE_SUFFIX)
    if MANIFEST_FILE in found or (damaged and not is_unfinished and found.keys() & set(_REMAINS)):
        return RemoteDataset(url, in_force(url, found))
    newest: dict[str, str] = {}
    for name in found:
        match = _BELOW.match(name)
        if match and name == match[0] + MANIFEST_FILE:
            above, version = match["above"], match["version"]
            newest[above] = max(newest.get(above, "0.0.0"), version, key=version_key)
    if "" in newest:
        newest = {"": newest[""]}
    if len(newest) > 1:
        names = ", ".join(str(url / above.rstrip("/")) for above in sorted(newest)[:_NAMED])
        raise DatasetError(str(url), f"holds several datasets: {names}", "name one of them")
    for above, version in newest.items():
        below = f"{above}{version}/"
        inside = {
            name.removeprefix(below): facts._replace(name=name.removeprefix(below))
            for name, facts in found.items()
            if name.startswith(below)
        }
        dataset = url / below.rstrip("/")
        return RemoteDataset(dataset, in_force(dataset, inside))
    if is_unfinished or any(_UNFINISHED.match(name) for name in found):
        raise DatasetError(
            str(url), "the build is not finished", "run the same `shardprep build` again"
        )
    raise DatasetError(
        str(url), "holds no dataset", "give the address that `shardprep build --out` wrote to"
    )


def local_only(found: Path | RemoteDataset, what: str) -> Path:
    """Return a dataset's folder.

    Raises:
        RecipeError: it lies in object storage, where `what` cannot be done.

    """
    if isinstance(found, RemoteDataset):
        raise RecipeError(
            str(found), f"{what} works on this machine's files", f"shardprep fetch {found} first"
        )
    return found
