"""The fingerprint of a build: the inputs, options and versions that determine its bytes."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path

from PIL import features

from shardprep.catalog.source_images import scope_of
from shardprep.catalog.tables.metadata_files import read_table
from shardprep.dataset.documents import MAX_DOCUMENT_BYTES
from shardprep.dataset.manifest import Fingerprint
from shardprep.dataset.schema import shipped_schemas
from shardprep.errors import BuildError, SourceError
from shardprep.image.signatures import HEAD_BYTES, archive_type
from shardprep.processes import start_server
from shardprep.recipe.recipe import Recipe
from shardprep.source import range_reads
from shardprep.source.byte_range import MemberError, PlainExtent
from shardprep.source.file_listing import find_files
from shardprep.source.zip_directory import read_end
from shardprep.storage.cache import without_cache
from shardprep.storage.regular_file import read_named
from shardprep.storage.url import is_url
from shardprep.writer.engine import PRELOADED

SPLIT_RATIOS = "split ratios"
_SPLIT_RATIOS_VERSION = "2"
"""Version of the rule for `--split` ratios. Since 2, ratios cut only train and named splits."""
_FIT_VERSION = {"fit": "3"}
"""Version of the rule for resizing. Since 2, sizes of `--fit within` follow from the image size in
the file. Since 3, no stored pixel shows the padding of a decoder that rounds sides up."""
_PACKAGES = ("shardprep", "pillow", "simplejpeg", "pyarrow")
_EXTRAS = {
    "pydicom": "dicom",
    "pylibjpeg": "dicom",
    "pylibjpeg-libjpeg": "dicom",
    "pylibjpeg-openjpeg": "dicom",
    "pillow-heif": "heif",
}
"""Optional package that decodes a format → name of the format in item tables."""
_CODECS = ("libjpeg_turbo", "zlib", "webp", "avif", "jpg_2000", "libtiff", "littlecms2")
_WITH_CODECS = frozenset({"tensorflow", "torch", "jax", "cv2"})
"""Packages that load their own copies of `_CODECS` into the process."""
_BLOCK_BYTES = 1 << 20


def make_fingerprint(recipe: Recipe) -> Fingerprint:
    """Return the fingerprint of a recipe and its inputs; SourceError if the source is missing."""
    inputs = {"source": source_signature(recipe), **named_files(recipe)}
    if recipe.schema != "auto" and recipe.schema not in shipped_schemas():
        schema = Path(recipe.schema)
        inputs["schema"] = (
            _sha256(read_named(schema, MAX_DOCUMENT_BYTES)) if schema.is_file() else "missing"
        )
    used = versions() | fit_version(recipe.fit)
    if recipe.rules.masks.kind == "format":
        used["pycocotools"] = version("pycocotools")
    if recipe.tile is not None:
        used |= {name: _version(name) for name in ("tifffile", "imagecodecs")}
    if recipe.rules.split.kind == "ratio":
        used[SPLIT_RATIOS] = _SPLIT_RATIOS_VERSION
    return Fingerprint(inputs=inputs, options=recipe.fingerprint_options(), versions=used)


def named_files(recipe: Recipe) -> dict[str, str]:
    """Return file name → SHA-256 of each file on this machine that an option names."""
    files = filter(lambda file: Path(file).is_file(), recipe.named_files)
    return {
        without_cache(file): _sha256(read_table(file, recipe.max_member_size)) for file in files
    }


def source_signature(recipe: Recipe) -> str:
    """Return a hash that changes when the source does; SourceError if the source does not exist.

    For a zip, the hash covers the size and the central directory, which has the CRC-32 of every
    member. For another file, it covers size and modification time. For a folder, it covers names,
    sizes and modification times of all files except outputs, and the names of skipped entries. In
    object storage the ETag replaces the modification time.
    """
    source = recipe.source
    is_object = is_url(str(source))
    if is_object:
        range_reads.forget()  # the current state must be read, not a cached one
    files = list(find_files(source, scope_of(recipe), follow_links=recipe.follow_links))
    if not files or files[0].relative:
        lines = [
            f"{file.relative} {file.problem or f'{file.num_bytes} {file.mark}'}" for file in files
        ]
        text = "\n".join(lines if is_object else sorted(lines))
        return _sha256(text.encode(errors="surrogateescape"))
    try:
        whole = PlainExtent.named(files[0].path, files[0].num_bytes)
        return _file_signature(whole, str(files[0].mark))
    except MemberError as error:
        raise SourceError(str(source), str(error), "download or copy it again") from error


def _file_signature(whole: PlainExtent, mark: str) -> str:
    is_zip = archive_type(whole.read_head(HEAD_BYTES)) == "zip"
    end = read_end(whole) if is_zip else None
    if end is None:
        return _sha256(f"{whole.num_bytes} {mark}".encode())
    digest = hashlib.sha256(b"%d " % whole.num_bytes)
    for at in range(end.directory, whole.num_bytes, _BLOCK_BYTES):
        digest.update(whole.read_range(at, _BLOCK_BYTES))
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of installed packages and codecs that can change stored images."""
    known = {name: there for name in (*_PACKAGES, *_EXTRAS) if (there := _version(name))}
    # In a process that has loaded these packages, Pillow reports the version of their zlib.
    is_shared = not _WITH_CODECS.isdisjoint(sys.modules)
    return known | (_codecs_of_workers() if is_shared else _codecs())


def fit_version(fit: str) -> dict[str, str]:
    """Return the entry for a fit in `Fingerprint.versions`, or {} for the fit "none"."""
    return {} if fit == "none" else _FIT_VERSION


def used_versions(of: Mapping[str, str], formats: Collection[str]) -> dict[str, str]:
    """Return the entries of `of` that can affect images of these formats."""
    return {name: number for name, number in of.items() if _EXTRAS.get(name) in (None, *formats)}


def _codecs() -> dict[str, str]:
    return {library: str(features.version(library)) for library in _CODECS}


@functools.cache
def _codecs_of_workers() -> dict[str, str]:
    context = start_server(PRELOADED)
    here, there = context.Pipe(duplex=False)
    worker = context.Process(target=_tell_codecs, args=(there,), daemon=True)
    worker.start()
    there.close()
    with here:
        try:
            codecs: dict[str, str] = here.recv()
        except EOFError as error:
            how = f"a worker process could not be started (exit code {worker.exitcode})"
            raise BuildError("shardprep", how, "free some memory, and try again") from error
    worker.join()
    return codecs


def _tell_codecs(pipe: Connection) -> None:
    pipe.send(_codecs())


@functools.cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
