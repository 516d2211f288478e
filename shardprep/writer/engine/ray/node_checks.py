"""Checks that every node meets the terms of a build: versions, the source, the output folder.

A node with another libjpeg would write other bytes, and one that cannot see the source would reject
every image. So both are checked before the first image of each node.

"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardprep.errors import BuildError, StorageError
from shardprep.source.byte_range import MemberError, RefusedExtent, StoredExtent
from shardprep.storage.folder import Folder
from shardprep.writer.plan.fingerprint import versions
from shardprep.writer.plan.shard_plan import ShardPlan

_MOST_FILES = 16
"""Files of the source that are compared."""
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Terms:
    """What every node must find as the node that started the build did."""

    versions: Mapping[str, str]
    samples: tuple[tuple[StoredExtent, str], ...]
    """Some items, with the hash of their beginning or why it cannot be read."""
    folder: Folder
    """Folder for receipts."""
    token: str
    """Content of a file in that folder."""


@contextlib.contextmanager
def terms(shards: Iterable[ShardPlan], folder: Folder) -> Iterator[Terms]:
    """Give the terms as this machine finds them; they hold until the end of the block."""
    token = os.urandom(8).hex()
    name = _token_file(token)
    folder.write(name, token.encode())
    try:
        yield Terms(_versions(), tuple(_samples(shards)), folder, token)
    finally:
        folder.remove([name])


def difference(terms: Terms) -> str:
    """Return the first difference of this machine from the terms, or ""."""
    here = _versions()
    for name, wanted in terms.versions.items():
        if here.get(name) != wanted:
            return f"has {name} {here.get(name, 'None')}, where the build was started {wanted}"
    for extent, wanted in terms.samples:
        content = _content(extent)
        if content != wanted:
            what = "other bytes" if len(content) == len(wanted) else content
            return f"does not read {extent.file} as where the build was started ({what})"
    return _trouble_with(terms.folder, terms.token)


def unfit(address: str, problem: str) -> BuildError:
    """Return the error of a node that does not meet the terms."""
    return BuildError(
        f"node {address}",
        problem,
        "all nodes need the same versions, and source and --out on storage that all of them share",
    )


def _versions() -> dict[str, str]:
    major, minor, _ = platform.python_version_tuple()
    return {"Python": f"{major}.{minor}", **versions()}


def _samples(shards: Iterable[ShardPlan]) -> Iterator[tuple[StoredExtent, str]]:
    """Yield the first item of each of the first files."""
    seen: set[str] = set()
    for shard in shards:
        for item in shard.items:
            if isinstance(item.extent, RefusedExtent) or item.extent.file in seen:
                continue
            seen.add(item.extent.file)
            yield item.extent, _content(item.extent)
            if len(seen) == _MOST_FILES:
                return


def _content(extent: StoredExtent) -> str:
    try:
        return hashlib.sha256(extent.read_head(_HEAD_BYTES)).hexdigest()
    except MemberError as error:
        return str(error)


def _trouble_with(folder: Folder, token: str) -> str:
    name = _token_file(token)
    mine = _token_file(f"{token}-{os.urandom(8).hex()}")
    try:
        if folder.read(name) != token.encode():
            return f"does not see {folder}, which the build writes to"
        folder.write(mine, token.encode())
        was_kept = folder.read(mine) == token.encode()
        folder.remove([mine])
    except (OSError, StorageError) as error:
        return f"cannot write to {folder} ({error})"
    return "" if was_kept else f"does not find in {folder} what it has written there"


def _token_file(token: str) -> str:
    """Return a name that is removed like other temporary files."""
    return f".machines-{token}.tmp"
