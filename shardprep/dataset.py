"""Where datasets lie: `<out>/<name>/<version>/`, an unfinished build in a folder beside it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.errors import BuildError, DatasetError
from shardprep.grammar import VERSION, version_key
from shardprep.json_document import MAX_DOCUMENT_BYTES
from shardprep.manifest import MANIFEST_FILE
from shardprep.schema import parse_schema
from shardprep.storage.regular_file import read_regular
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardprep.manifest import Manifest
    from shardprep.recipe import Recipe
    from shardprep.schema import Schema

ITEMS_FILE = "items.parquet"
SCHEMA_FILE = "schema.json"
INDEX_DIR = "index"
INCOMPLETE_SUFFIX = ".incomplete"
LOCK_FILE = ".lock"
OUTLINE_FILE = ".parts/outline.json"
FETCHING_SUFFIX = ".fetching"
COPY_AGAIN = "copy it again, or build the set again"
"""The way out where a file of a dataset is missing or damaged."""
_FLAG = {"build": "--out", "fetch": "--to"}
_NO_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What file systems answer that have no locks: Lustre without `flock`, NFS without its daemon."""


@dataclass(frozen=True, slots=True)
class DatasetFolder:
    """The two places of a dataset that is being built."""

    out: Path
    name: str
    version: str

    @property
    def final(self) -> Path:
        """Exists only when the dataset is complete."""
        return self.out / self.name / self.version

    @property
    def incomplete(self) -> Path:
        """Where a build works; what is done here is not done again."""
        return self.out / self.name / f"{self.version}{INCOMPLETE_SUFFIX}"

    @property
    def fetching(self) -> Path:
        """Where a copy of one that lies elsewhere comes to be."""
        return self.out / self.name / f"{self.version}{FETCHING_SUFFIX}"

    @property
    def old(self) -> Path:
        """Where a dataset that is being replaced stands for a moment."""
        return self.out / self.name / f"{self.version}.old"

    @property
    def is_finished(self) -> bool:
        """Whether the final folder holds a manifest, which is written last."""
        return has_manifest(self.final)


def has_manifest(folder: Path) -> bool:
    """Tell whether something has the name of a manifest; reading it says whether it is one."""
    return os.path.lexists(folder / MANIFEST_FILE)


def outputs(recipe: Recipe) -> tuple[str, ...]:
    """Return the folders or addresses that a build writes, which are never part of its source."""
    out = recipe.out.rstrip("/") if is_url(recipe.out) else str(Path(recipe.out))
    final = f"{out}/{recipe.dataset_name}/{recipe.version}"
    return out, final, final + INCOMPLETE_SUFFIX, f"{final}.old"


def read_schema(folder: Path, manifest: Manifest | None = None) -> Schema:
    """Return the schema of a dataset folder; with a manifest, only that which it has the hash of.

    Raises:
        DatasetError: it is missing, or not what the manifest says.
        SchemaError: it is no schema.

    """
    path = folder / SCHEMA_FILE
    try:
        data = read_regular(path, MAX_DOCUMENT_BYTES)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DatasetError(str(path), what, COPY_AGAIN) from error
    if manifest is not None:
        expected = manifest.files.get(SCHEMA_FILE)
        if expected not in (None, hashlib.sha256(data).hexdigest()):
            what = "is not what the build wrote: its SHA-256 differs"
            raise DatasetError(str(path), what, COPY_AGAIN)
    return parse_schema(data, str(path))


def index_name(shard: str) -> str:
    """Return the path of a shard's index inside a dataset folder."""
    return f"{INDEX_DIR}/{shard}.idx"


@contextlib.contextmanager
def locked(folder: Path, *, alone: bool = True, who: str = "build") -> Iterator[bool]:
    """Hold a folder, made if need be, against others; the lock goes with the process.

    Those that need not be `alone` hold it together. Yields whether it is held: on a file system
    without locks, where it cannot be, the work goes on all the same. The lock is that of a file
    open for writing, for which network file systems ask the other machines. `who` is what an error
    calls the others: whatever works in folders of this kind.

    Raises:
        BuildError: another holds it, or it cannot be made.

    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BuildError(
            str(folder), f"cannot be made ({error.strerror})", f"choose another {_FLAG[who]}"
        ) from error
    try:
        is_held = _lock(descriptor, folder, who, alone=alone)
        if not _is_file(descriptor, folder / LOCK_FILE):
            raise BuildError(
                str(folder), f"another {who} has just finished here", "run the command again"
            )
        yield is_held
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, who: str, *, alone: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        part = ", or a part of this one" if who == "build" else ""
        raise BuildError(
            str(folder), f"another {who} is at work here{part}", "wait for it, or end it"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


def _is_file(descriptor: int, path: Path) -> bool:
    """Tell whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def find_dataset(place: Path) -> Path:
    """Return the dataset folder that a path means: itself, or the newest version below it.

    Below a folder of several datasets there must be just one.

    Raises:
        DatasetError: there is none, or several.

    """
    if has_manifest(place):
        return place
    if not place.is_dir():
        raise DatasetError(str(place), "no such folder", "give the folder that a build has written")
    versions = _versions(place)
    if versions:
        return versions[-1]
    found = [below for child in sorted(place.iterdir()) for below in _versions(child)[-1:]]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(str(path.parent) for path in found[:5])
        raise DatasetError(str(place), f"holds several datasets: {names}", "name one of them")
    unfinished = sorted(place.glob(f"**/*{INCOMPLETE_SUFFIX}"))
    if place.name.endswith(INCOMPLETE_SUFFIX) or unfinished:
        work = unfinished[0] if unfinished else place
        raise DatasetError(str(work), "the build is not finished", _way_on(work))
    raise DatasetError(str(place), "holds no dataset", "write one with `shardprep build`")


def _way_on(work: Path) -> str:
    """Return what ends the build in a folder; those in parts say in their outline what they are."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if json.loads((work / OUTLINE_FILE).read_bytes()).get("num_parts", 1) > 1:
            return f"when all its parts are done, run `shardprep finalize {work}`"
    return "run the same `shardprep build` again: it goes on where it stopped"


def find_damaged(place: Path) -> Path:
    """Return the dataset folder that a path means, though it may have lost its manifest.

    Raises:
        DatasetError: there is none, or several.

    """
    remains = ("*.tfrecord*", ITEMS_FILE, SCHEMA_FILE, "dataset_info.json")
    is_one = not place.name.endswith(INCOMPLETE_SUFFIX) and any(
        True for pattern in remains for _ in place.glob(pattern)
    )
    return place if is_one else find_dataset(place)


def _versions(folder: Path) -> list[Path]:
    """Return the finished versions in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = (
        path for path in folder.iterdir() if VERSION.fullmatch(path.name) and has_manifest(path)
    )
    return sorted(found, key=lambda path: (version_key(path.name), path.name))
