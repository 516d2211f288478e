"""The manifest: the one document that says what a dataset folder holds. Written last.

Nothing in it depends on time, machine, number of workers or where the folder stands, so that two
builds of one recipe have equal manifests.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from shardprep.errors import DatasetError

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST_FILE = "manifest.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Shard(_Model):
    """One shard file."""

    name: str
    num_records: int
    num_bytes: int
    sha256: str
    """Hex."""


class Split(_Model):
    """The shards of one split, in order."""

    num_records: int
    num_bytes: int
    label_counts: dict[str, int]
    """Records by class name, in label order; classes without a record are there with 0."""
    num_unlabelled: int
    shards: tuple[Shard, ...]


class Totals(_Model):
    """What became of all inputs: written + rejected + skipped = inputs."""

    num_inputs: int
    num_written: int
    num_rejected: int
    num_skipped: int
    rejected: dict[str, int]
    """By kind."""
    skipped: dict[str, int]
    """By reason."""
    num_copies: int
    """Written images with the very bytes of another one, not counting the first of each."""
    num_leaks: int
    """Of these, those that are in another split than an image they are equal to."""
    num_damaged: int
    """Written images that were damaged or cut; their `reason` in the item table says how."""
    num_enlarged: int
    """Written images that had fewer pixels than they were scaled to."""
    original_bytes: int
    """Of the written images, as they were."""
    num_bytes: int
    """Of all shards."""


class Labels(_Model):
    """The classes."""

    names: tuple[str, ...]
    """A label is an index into them."""
    found_by: str
    num_rows_without_image: int
    """Rows of the label table for which the source has no image."""
    rows_without_image: tuple[str, ...]
    """Ids of some of them."""


class Fingerprint(_Model):
    """What the bytes of a dataset follow from."""

    inputs: dict[str, str]
    """Name of each input → its signature."""
    options: dict[str, Any]
    """The keys of the recipe that shape the bytes."""
    versions: dict[str, str]
    """Of everything that shapes the bytes."""


class Manifest(_Model):
    """A whole dataset."""

    format_version: Literal[1] = 1
    name: str
    version: str
    seed: int
    fingerprint: Fingerprint
    labels: Labels
    totals: Totals
    splits: dict[str, Split]
    """Train, validation, test, then others by name."""
    files: dict[str, str] = {}
    """SHA-256 of the files that follow from nothing else in the folder, hex."""
    sha256: str = ""
    """Of this document's text with nothing between these quotes, hex."""

    @property
    def shards(self) -> dict[str, Shard]:
        """All shards by name, in order."""
        return {shard.name: shard for split in self.splits.values() for shard in split.shards}

    def signed(self) -> Manifest:
        """Return the manifest with its own hash, made anew."""
        unsigned = self.model_copy(update={"sha256": ""}).model_dump_json(indent=2)
        return self.model_copy(update={"sha256": hashlib.sha256(unsigned.encode()).hexdigest()})

    def dumps(self) -> str:
        """Return the signed manifest as the text of a JSON file."""
        return self.signed().model_dump_json(indent=2) + "\n"


def load_manifest(folder: Path) -> Manifest:
    """Return the manifest of a dataset folder.

    Raises:
        DatasetError: there is none, or it is not one that this version reads.

    """
    path = folder / MANIFEST_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DatasetError(
            str(folder),
            f"has no {MANIFEST_FILE}: it is no finished shardprep dataset",
            "run the build again",
        ) from error
    except OSError as error:
        raise _unreadable(str(path), error) from error
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest that a document holds.

    Raises:
        DatasetError: it is not one that this version reads.

    """
    try:
        return Manifest.model_validate(json.loads(data.decode()))
    except (ValueError, ValidationError) as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> DatasetError:
    what = str(error).splitlines()[0]
    return DatasetError(where, f"cannot be read ({what})", "build the set again")
