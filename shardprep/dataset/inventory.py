"""The files of a dataset, and the names in its folder that the format takes for its own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardprep.dataset.folder import INDEX_DIR, ITEMS_FILE, SCHEMA_FILE, index_name
from shardprep.dataset.manifest import MANIFEST_FILE
from shardprep.dataset.tfds_metadata import DOCUMENTS, tfds_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema
    from shardprep.storage.objects import ObjectFacts

_SHARD = r"[^./][^/]*\.tfrecord[^/]*"
_LABELS = r"[^./][^/]*\.labels\.txt"
_OWN = re.compile(rf"{_SHARD}|{INDEX_DIR}/{_SHARD}\.idx|{_LABELS}")
_DOCUMENTS = (SCHEMA_FILE, ITEMS_FILE, *DOCUMENTS, MANIFEST_FILE)


def inventory(manifest: Manifest, schema: Schema) -> set[str]:
    """Return the names of all files of a dataset."""
    return {
        *manifest.shards,
        *map(index_name, manifest.shards),
        *_DOCUMENTS,
        *tfds_files(manifest, schema),
    }


def is_own(name: str) -> bool:
    """Tell whether a file of this name is one of some dataset, though it need not be of this."""
    return name in _DOCUMENTS or _OWN.fullmatch(name) is not None


def belongs(name: str, manifest: Manifest) -> bool:
    """Tell whether a file is one of a dataset, as far as its manifest alone says it.

    Files with the names of classes follow from the schema: any of them may belong.
    """
    shard = name.removeprefix(f"{INDEX_DIR}/").removesuffix(".idx")
    known = name in _DOCUMENTS or re.fullmatch(_LABELS, name) is not None
    return known or (shard in manifest.shards and name in (shard, index_name(shard)))


def lacking(manifest: Manifest, schema: Schema, there: Mapping[str, ObjectFacts]) -> list[str]:
    """Return the files of a dataset that are not there, or not as long as they were; none is read.

    Documents are as long as they are: only their absence is seen.
    """
    gone = [name for name in sorted(inventory(manifest, schema)) if name not in there]
    cut = [
        name
        for name, shard in manifest.shards.items()
        if name in there and there[name].num_bytes != shard.num_bytes
    ]
    return gone + cut
