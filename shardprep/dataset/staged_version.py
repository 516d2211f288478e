"""The draft: a dataset in object storage that is to replace a finished one.

Nothing can be renamed there. So the files of a draft are written below a prefix of its own, the
manifest last; then the same manifest is written over that of the old dataset, and the draft is in
force: a file of the dataset is the one in the draft, if there is one, else the one under the final
name. Afterwards the files are copied to their final names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.folder import belongs, is_own
from shardprep.dataset.manifest import MANIFEST_FILE, parse_manifest
from shardprep.errors import DatasetError
from shardprep.storage import objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.dataset.manifest import Manifest
    from shardprep.storage.objects import ObjectFacts
    from shardprep.storage.url import ObjectUrl

DRAFT_PREFIX = ".draft-"
_SEAL = re.compile(rf"{re.escape(DRAFT_PREFIX)}[^/]*/{re.escape(MANIFEST_FILE)}")


def draft_in_force(url: ObjectUrl, found: Mapping[str, ObjectFacts]) -> tuple[str, Manifest] | None:
    """Return the prefix and the manifest of the draft in force, None where there is none.

    The dataset is read from it until its files have their final names. `found` is everything below
    the dataset, by name. A manifest that has changed since it was found is a StorageError.
    """
    seals = [name for name in found if _SEAL.fullmatch(name)]
    if MANIFEST_FILE not in found or not seals:
        return None
    if found[MANIFEST_FILE].num_bytes > MAX_DOCUMENT_BYTES:
        return None  # as below
    data = _read(url, found[MANIFEST_FILE])
    try:
        manifest = parse_manifest(data, str(url / MANIFEST_FILE))
    except DatasetError:
        return None  # whoever opens it is told
    for seal in seals:
        if found[seal].num_bytes == len(data) and _read(url, found[seal]) == data:
            return seal.removesuffix(f"/{MANIFEST_FILE}"), manifest
    return None


def in_force(url: ObjectUrl, found: Mapping[str, ObjectFacts]) -> Mapping[str, ObjectFacts]:
    """Return the files of a dataset by the names they have in it; a draft in force hides others.

    Arguments and errors are those of `draft_in_force`.
    """
    draft = draft_in_force(url, found)
    if draft is None:
        return found
    prefix, manifest = draft
    stay = {
        name: facts
        for name, facts in found.items()
        if not name.startswith(f"{prefix}/") and (belongs(name, manifest) or not is_own(name))
    }
    return {**stay, **under(prefix, found), MANIFEST_FILE: found[MANIFEST_FILE]}


def under(prefix: str, found: Mapping[str, ObjectFacts]) -> dict[str, ObjectFacts]:
    """Return the objects below a prefix, by the rest of their names."""
    start = f"{prefix}/"
    return {name.removeprefix(start): f for name, f in found.items() if name.startswith(start)}


def _read(url: ObjectUrl, facts: ObjectFacts) -> bytes:
    return b"".join(objects.read_whole(url / facts.name, facts.etag))
