"""Checks of the documents beside the shards, each against what it is derived from."""

from __future__ import annotations

import contextlib
import hashlib
import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from shardprep.dataset.folder import SCHEMA_FILE, index_name, read_schema
from shardprep.dataset.json_document import MAX_DOCUMENT_BYTES, check_size
from shardprep.dataset.manifest import MANIFEST_FILE, contradictions, decode_manifest
from shardprep.dataset.tfds_metadata import DOCUMENTS as TFDS_FILES
from shardprep.dataset.tfds_metadata import tfds_files
from shardprep.errors import DatasetError, ShardprepError
from shardprep.storage.regular_file import read_regular, sha256_of
from shardprep.verifier.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema
    from shardprep.verifier.rows import Rows


def checked_manifest(folder: Path, problems: list[Problem]) -> Manifest | None:
    """Return the manifest, None where it cannot be read; faults are added to the problems."""
    data = read_document(folder, MANIFEST_FILE, None, problems)
    if data is None:
        return None
    try:
        manifest = decode_manifest(data, "")
    except DatasetError as error:
        problems.append(Problem("manifest", MANIFEST_FILE, error.what))
        return None
    said = contradictions(manifest, data)
    problems += [Problem("manifest", MANIFEST_FILE, what) for what in said]
    return manifest


def read_document(
    folder: Path,
    name: str,
    manifest: Manifest | None,
    problems: list[Problem],
    most_bytes: int = MAX_DOCUMENT_BYTES,
) -> bytes | None:
    """Return the bytes of a file, None where it cannot be read.

    That, or another hash than the manifest has, is added to the problems.
    """
    with _noting(name, problems):
        data = read_regular(folder / name, most_bytes)
        problems += _hash_problems(name, manifest, hashlib.sha256(data).hexdigest())
        return data
    return None


def is_readable(
    folder: Path, name: str, manifest: Manifest | None, problems: list[Problem]
) -> bool:
    """Tell whether a file of any size can be read; faults are added to the problems."""
    with _noting(name, problems):
        problems += _hash_problems(name, manifest, sha256_of(folder / name))
        return True
    return False


@contextlib.contextmanager
def _noting(name: str, problems: list[Problem]) -> Iterator[None]:
    """Add a file that cannot be read to the problems, in place of an error."""
    try:
        yield
    except FileNotFoundError:
        problems.append(Problem("missing", name, "is not there"))
    except OSError as error:
        problems.append(Problem("unreadable", name, f"cannot be read ({error.strerror})"))


def _hash_problems(name: str, manifest: Manifest | None, digest: str) -> Iterator[Problem]:
    expected = manifest.files.get(name) if manifest else None
    if expected not in (None, digest):
        what = f"has SHA-256 {digest[:12]}…, the manifest says {str(expected)[:12]}…"
        yield Problem("hash", name, what)


def checked_schema(
    folder: Path, manifest: Manifest | None, problems: list[Problem]
) -> Schema | None:
    """Return the schema, None where it cannot be read; faults are added to the problems."""
    if read_document(folder, SCHEMA_FILE, manifest, problems) is None:
        return None
    try:
        schema = read_schema(folder)
    except ShardprepError as error:
        problems.append(Problem("schema", SCHEMA_FILE, error.what))
        return None
    if manifest is not None and schema.labels != manifest.labels.names:
        what = f"has other classes than the manifest ({len(schema.labels):,} classes)"
        problems.append(Problem("schema", SCHEMA_FILE, what))
    return schema


def check_tfds(
    folder: Path, manifest: Manifest | None, schema: Schema | None, problems: list[Problem]
) -> None:
    """Check the files of TensorFlow Datasets; faults are added to the problems.

    Without manifest and schema they are only parsed.
    """
    expected = dict.fromkeys(TFDS_FILES, "")
    if manifest is not None and schema is not None:
        expected = tfds_files(manifest, schema)
    for name, text in expected.items():
        data = read_document(folder, name, manifest, problems)
        if data is None or data == text.encode():
            continue
        faults = list(_json_faults(data, text) if name.endswith(".json") else _lines(data, text))
        if text and not faults:
            faults.append("is not the text that the build wrote")
        problems += [Problem("tfds", name, what) for what in faults]


def index_problem(
    folder: Path, shard: str, places: Sequence[tuple[int, int]] | None, rows: Rows | None
) -> Problem | None:
    """Return the first fault of a shard's index, None where it is right.

    With `places` None, its content is not checked.
    """
    name = index_name(shard)
    problems: list[Problem] = []
    expected = "".join(f"{offset} {length}\n" for offset, length in places or ())
    most_bytes = 2 * len(expected) + MAX_DOCUMENT_BYTES
    data = read_document(folder, name, None, problems, most_bytes)
    if data is None:
        return problems[0]
    if places is None:
        return None
    if data == expected.encode():
        return None
    here = data.decode(errors="replace").splitlines(keepends=True)
    pairs = list(zip_longest(here, expected.splitlines(keepends=True)))
    wrong = [number for number, (line, wanted) in enumerate(pairs) if line != wanted]
    if not wrong:
        return Problem("index", name, "is not the text that the build wrote")
    line, wanted = pairs[wrong[0]]
    line, wanted = (text and text.rstrip("\n") for text in (line, wanted))
    what = f"says {_shown(line)}, the shard {_shown(wanted)}"
    if len(wrong) > 1:
        what += f", and {len(wrong) - 1:,} more lines differ"
    number = wrong[0] if wrong[0] < len(places) else None
    offset = places[number][0] if number is not None else None
    key = rows.key(number) if rows is not None and number is not None else ""
    return Problem("index", name, what, number, offset, key)


def differences(here: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Yield the differences of two JSON values: "splits.train.num_records is 3, not 4"."""
    if isinstance(here, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in here if key not in expected)]:
            where = f"{path}.{key}" if path else str(key)
            if key not in here:
                yield f"{where} is not there"
            elif key not in expected:
                yield f"{where} does not belong there"
            else:
                yield from differences(here[key], expected[key], where)
    elif isinstance(here, list) and isinstance(expected, list) and len(here) == len(expected):
        for i, (one, two) in enumerate(zip(here, expected, strict=True)):
            yield from differences(one, two, f"{path}[{i}]")
    elif here != expected or type(here) is not type(expected):
        yield f"{path or 'it'} is {_shown(here)}, not {_shown(expected)}"


def _json_faults(data: bytes, text: str) -> Iterator[str]:
    try:
        check_size(data)
        here = from_json(data)
    except ValueError as error:
        yield f"is not JSON ({error}): TensorFlow Datasets cannot open the folder"
        return
    if text:
        yield from differences(here, json.loads(text))


def _lines(data: bytes, text: str) -> Iterator[str]:
    here = data.decode(errors="replace").split("\n")
    for number, (line, wanted) in enumerate(zip_longest(here, text.split("\n")), 1):
        if line != wanted:
            yield f"line {number:,} is {_shown(line)}, not {_shown(wanted)}"


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
