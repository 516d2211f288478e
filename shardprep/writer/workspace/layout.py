"""The files that an unfinished build keeps beside its shards, until it is published.

All of them lie in `<version>.incomplete/`: on a disk the shards do too, in object storage they
lie where `Workspace.output` says.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.dataset.json_document import DocumentError, parse_document
from shardprep.dataset.manifest import Fingerprint
from shardprep.errors import BuildError

if TYPE_CHECKING:
    from shardprep.storage.folder import Folder

BUILD_FILE = ".build.json"
"""The fingerprint of the build that owns the folder."""
RECEIPTS_DIR = ".parts"
OUTLINE_FILE = f"{RECEIPTS_DIR}/outline.json"
SKIPPED_FILE = f"{RECEIPTS_DIR}/skipped.parquet"
"""Rows of the inputs that never became items."""
SCRATCH_DIR = ".work"
"""Unpacked archives, on a disk only."""


def receipt_name(shard: str) -> str:
    """Return the name of the receipt of a shard."""
    return f"{RECEIPTS_DIR}/{shard}.parquet"


@dataclass(frozen=True, slots=True)
class Folders:
    """The two folders that a build writes to; a small value that travels to every worker."""

    output: Folder
    """Shards and documents: the files of the future dataset."""
    state: Folder
    """The files of this module; the same folder on a disk."""
    build: str = ""
    """`build_hash` of the `BUILD_FILE`, by which receipts are told from another build's.

    Checks nothing where it is ""."""

    def check_build(self) -> None:
        """Check that this build still owns the folder.

        Raises:
            BuildError: another build has taken the folder over, or published its dataset.

        """
        if self.build and build_hash(self.state.read(BUILD_FILE) or b"") != self.build:
            raise taken_over(self.state)

    def is_taken_over(self) -> bool:
        """Tell whether another build owns the folder now; False where none does."""
        there = self.state.read(BUILD_FILE)
        return bool(self.build) and there is not None and build_hash(there) != self.build


def taken_over(state: Folder) -> BuildError:
    """Return the error of a build whose folder another build has taken over."""
    return BuildError(
        str(state),
        "another build has taken the place of this one",
        "end one of them, or give another --name or --version",
    )


def dump_build(fingerprint: Fingerprint) -> bytes:
    """Return the bytes of the `BUILD_FILE` of a fingerprint."""
    return fingerprint.model_dump_json(indent=2).encode()


def build_hash(build: bytes) -> str:
    """Return the SHA-256 of the bytes of a `BUILD_FILE`, hex."""
    return hashlib.sha256(build).hexdigest()


def read_build(state: Folder) -> Fingerprint | None:
    """Return the fingerprint in the `BUILD_FILE`, None where there is no such file.

    Raises:
        BuildError: the file is damaged.

    """
    data = state.read(BUILD_FILE)
    return None if data is None else parse_build(state, data)


def parse_build(state: Folder, data: bytes) -> Fingerprint:
    """Return the fingerprint in the bytes of a `BUILD_FILE`; raises as `read_build`."""
    try:
        return parse_document(Fingerprint, data)
    except DocumentError as error:
        raise BuildError(
            state.located(BUILD_FILE), f"is damaged ({error})", f"remove {state} to start again"
        ) from error
