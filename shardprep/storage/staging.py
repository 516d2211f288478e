"""Copies of objects on this machine, made once and shared by all processes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.storage import objects
from shardprep.storage.folder import LocalFolder

if TYPE_CHECKING:
    from shardprep.storage.url import ObjectUrl

_SHARD = ".tfrecord-"
_INDEX = "index/"


def staged_documents(url: ObjectUrl) -> Path:
    """Return a folder of this machine with everything below an address but the shards."""
    listing = objects.listing(url)
    wanted = [
        facts for facts in listing if _SHARD not in facts.name or facts.name.startswith(_INDEX)
    ]
    state = "\n".join([str(url), *(f"{facts.name} {facts.etag}" for facts in wanted)])
    folder = _cache() / "documents" / hashlib.sha256(state.encode()).hexdigest()[:32]
    for facts in wanted:
        path = folder / facts.name
        if not path.is_file() or path.stat().st_size != facts.num_bytes:
            LocalFolder(folder).write(facts.name, objects.get(url / facts.name) or b"")
    return folder


def _cache() -> Path:
    root = os.environ.get("SHARDPREP_CACHE") or Path.home() / ".cache" / "shardprep"
    return Path(root).expanduser()
