"""What a build's bytes follow from: inputs, options, versions. Cheap: no image is read."""

from __future__ import annotations

import hashlib
import os
import struct
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import features

from shardprep.catalog.documents import named_files
from shardprep.errors import SourceError
from shardprep.manifest import Fingerprint
from shardprep.schema import shipped_schemas

if TYPE_CHECKING:
    from shardprep.recipe import Recipe

_NOT_IN_THE_BYTES = {"source", "out", "name", "version", "max_rejected"}
_PACKAGES = ("shardprep", "pillow", "simplejpeg", "pyarrow")
_END_OF_DIRECTORY = b"PK\5\6"
_MAX_TAIL_BYTES = 1 << 16


def make_fingerprint(recipe: Recipe) -> Fingerprint:
    """Return the fingerprint of what a recipe would build now.

    Raises:
        SourceError: the source is not there.

    """
    source = Path(recipe.source)
    inputs = {"source": source_signature(source)}
    for file in named_files(recipe):
        if Path(file).is_file():
            inputs[file] = _sha256(Path(file).read_bytes())
    if recipe.schema_ != "auto" and recipe.schema_ not in shipped_schemas():
        schema = Path(recipe.schema_)
        inputs["schema"] = _sha256(schema.read_bytes()) if schema.is_file() else "missing"
    return Fingerprint(
        inputs=inputs,
        options=recipe.model_dump(mode="json", by_alias=True, exclude=_NOT_IN_THE_BYTES),
        versions=versions(),
    )


def source_signature(source: Path) -> str:
    """Return a hash that changes when the source does.

    A zip is told by its size and its central directory, which holds the CRC-32 of every member;
    another file by size and modification time; a folder by names, sizes and modification times of
    all its files.

    Raises:
        SourceError: there is no such file or folder.

    """
    if source.is_dir():
        return _sha256("\n".join(sorted(_listing(source))).encode(errors="surrogateescape"))
    if not source.is_file():
        raise SourceError(
            str(source),
            "no such file or folder",
            "give a folder, a zip, or a tar (plain, .gz, .bz2, .xz)",
        )
    status = source.stat()
    directory = _zip_directory(source, status.st_size)
    if directory is None:
        return _sha256(b"%d %d" % (status.st_size, status.st_mtime_ns))
    return _sha256(b"%d " % status.st_size + directory)


def versions() -> dict[str, str]:
    """Return the versions of everything that shapes the bytes of a dataset."""
    found = {name: version(name) for name in _PACKAGES}
    for library in ("libjpeg_turbo", "zlib", "webp", "avif", "jpg_2000", "libtiff", "littlecms2"):
        found[library] = str(features.version(library))
    return found


def differences(one: Fingerprint, two: Fingerprint) -> list[str]:
    """Return what differs, in words: "quality (90, now 95)"."""
    found = []
    for part in ("inputs", "options", "versions"):
        before, now = getattr(one, part), getattr(two, part)
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                short = part != "inputs"
                values = f" ({_shown(before.get(key))}, now {_shown(now.get(key))})"
                found.append(key + (values if short else " (its content)"))
    return found


def _shown(value: object) -> str:
    if isinstance(value, list):
        return "x".join(str(side) for side in reversed(value)) or "none"
    return str(value)


def _listing(folder: Path) -> list[str]:
    lines = []
    for place, _, files in os.walk(folder, followlinks=True):
        for name in files:
            path = os.path.join(place, name)  # noqa: PTH118 - a million Paths are slow
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            relative = os.path.relpath(path, folder)
            lines.append(f"{relative} {status.st_size} {status.st_mtime_ns}")
    return lines


def _zip_directory(path: Path, size: int) -> bytes | None:
    """Return the bytes of a zip's central directory and what follows it, None for no zip."""
    if not zipfile.is_zipfile(path):
        return None
    with path.open("rb") as file:
        tail_bytes = min(size, _MAX_TAIL_BYTES + 22)
        file.seek(size - tail_bytes)
        tail = file.read()
        at = tail.rfind(_END_OF_DIRECTORY)
        if at < 0:
            return None
        (start,) = struct.unpack_from("<I", tail, at + 16)
        # zip64 keeps the true start elsewhere; its directory lies before the tail all the same
        (num_bytes,) = struct.unpack_from("<I", tail, at + 12)
        if start == 0xFFFFFFFF or num_bytes == 0xFFFFFFFF:
            with zipfile.ZipFile(path) as archive:
                start = archive.start_dir
        file.seek(min(start, size))
        return file.read()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
