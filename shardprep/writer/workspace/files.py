"""The files of an unfinished build except shards, and the two folders that a build writes to."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from shardprep.dataset.documents import DocumentError, parse_document
from shardprep.dataset.manifest import Fingerprint
from shardprep.errors import BuildError, OptionName
from shardprep.storage.folder import Folder

BUILD_FILE = ".build.json"
"""File with the fingerprint of the build that owns the folder."""
RECEIPTS_DIR = ".parts"
OUTLINE_FILE = f"{RECEIPTS_DIR}/outline.json"
SKIPPED_FILE = f"{RECEIPTS_DIR}/skipped.parquet"
SCRATCH_DIR = ".work"


class Build(NamedTuple):
    """Content of `BUILD_FILE`."""

    fingerprint: Fingerprint
    token: str = ""
    """16 random hexadecimal digits in object storage, which name the draft; "" on a disk."""


class _BuildDocument(Fingerprint):
    token: str = Field(default="", pattern=r"^([0-9a-f]{16})?\z")


class DisturbedError(BuildError):
    """Files of the build were removed by the user, or by an equal run that published it."""


class LateError(DisturbedError):
    """Another dataset was published after this run began."""


def receipt_name(shard: str) -> str:
    """Return the name of a shard's receipt, relative to `Folders.state`."""
    return f"{RECEIPTS_DIR}/{shard}.parquet"


@dataclass(frozen=True, slots=True)
class Folders:
    """The two folders that a build writes to; pickled for every worker."""

    output: Folder
    state: Folder
    """Folder of `BUILD_FILE` and receipts; on a disk the same folder as `output`."""
    build: str = ""
    """`hash_of` the build's fingerprint; "" disables the checks."""
    token: str = ""

    def check_build(self) -> None:
        """Raise BuildError if another build owns the folder.

        DisturbedError if `BUILD_FILE` was removed, or was created again by an equal run.
        """
        if not self.build:
            return
        there = read_build(self.state)
        if there is not None and hash_of(there.fingerprint) != self.build:
            raise taken_over(self.state)
        if there is None or there.token != self.token:
            raise disturbed(self.state)

    def is_taken_over(self) -> bool:
        """Return whether another build owns the folder; False if no build owns it."""
        there = read_build(self.state) if self.build else None
        return there is not None and hash_of(there.fingerprint) != self.build


def taken_over(state: Folder) -> BuildError:
    """Return the error for a folder that another build has taken over."""
    hint = (
        f"end one of the two builds, or begin one again with another {OptionName('name')} or "
        f"{OptionName('version')}"
    )
    return BuildError(str(state), "another build has replaced this one", hint)


def disturbed(state: Folder) -> DisturbedError:
    """Return the error for a removed or replaced `BUILD_FILE`."""
    what, hint = "another run has removed this file", "try again"
    return DisturbedError(state.located(BUILD_FILE), what, hint)


def replace_hint() -> str:
    """Return the hint for errors about an existing dataset."""
    others = f"{OptionName('version')} or {OptionName('name')}"
    return f"add {OptionName('overwrite')} to replace it, or give another {others}"


def read_build(state: Folder) -> Build | None:
    """Return the content of `BUILD_FILE`, or None if it is missing; BuildError if it is damaged."""
    data = state.read(BUILD_FILE)
    return None if data is None else parse_build(state, data)


def parse_build(state: Folder, data: bytes) -> Build:
    """Return the content of a `BUILD_FILE` from its bytes; BuildError if it is damaged."""
    try:
        document = parse_document(_BuildDocument, data)
    except DocumentError as error:
        what, hint = f"is damaged ({error})", f"remove {state} to start again"
        raise BuildError(state.located(BUILD_FILE), what, hint) from error
    return Build(Fingerprint(**document.model_dump(exclude={"token"})), document.token)


def dump_build(build: Build) -> bytes:
    """Return the bytes of a `BUILD_FILE`."""
    document = _BuildDocument(**build.fingerprint.model_dump(), token=build.token)
    return document.model_dump_json(indent=2, exclude_defaults=True).encode()


def new_build(fingerprint: Fingerprint) -> bytes:
    """Return the bytes of a `BUILD_FILE` with a new random token."""
    return dump_build(Build(fingerprint, secrets.token_hex(8)))


def hash_of(fingerprint: Fingerprint) -> str:
    """Return the SHA-256 of a fingerprint in hexadecimal; receipts identify their build with it."""
    return hashlib.sha256(dump_build(Build(fingerprint))).hexdigest()
