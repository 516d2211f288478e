"""The documents beside the shards, each against what it follows from."""

from __future__ import annotations

import hashlib
import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from shardprep.dataset import SCHEMA_FILE, index_name, read_schema
from shardprep.errors import DatasetError, ShardprepError
from shardprep.manifest import MANIFEST_FILE, load_manifest
from shardprep.plan import shard_name
from shardprep.tfds import DOCUMENTS as TFDS_FILES
from shardprep.tfds import tfds_files
from shardprep.verify.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from shardprep.manifest import Manifest
    from shardprep.schema import Schema
    from shardprep.verify.rows import Rows


def checked_manifest(folder: Path, problems: list[Problem]) -> Manifest | None:
    """Return the manifest, None where there is none to read; what is wrong joins the problems."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        problems.append(Problem("missing", MANIFEST_FILE, "is not there"))
        return None
    try:
        manifest = load_manifest(folder)
    except DatasetError as error:
        problems.append(Problem("manifest", MANIFEST_FILE, error.what))
        return None
    if path.read_bytes() != manifest.dumps().encode():
        what = "is not what the build wrote: its own SHA-256 differs"
        problems.append(Problem("manifest", MANIFEST_FILE, what))
    problems += [Problem("manifest", MANIFEST_FILE, what) for what in _contradictions(manifest)]
    return manifest


def read_document(
    folder: Path, name: str, manifest: Manifest | None, problems: list[Problem]
) -> bytes | None:
    """Return the bytes of a file, None where there are none to read.

    That, and bytes other than those of which the manifest has the hash, join the problems.
    """
    path = folder / name
    if not path.is_file():
        problems.append(Problem("missing", name, "is not there"))
        return None
    try:
        data = path.read_bytes()
    except OSError as error:
        problems.append(Problem("unreadable", name, f"cannot be read ({error.strerror})"))
        return None
    expected = manifest.files.get(name) if manifest else None
    digest = hashlib.sha256(data).hexdigest()
    if expected not in (None, digest):
        what = f"has SHA-256 {digest[:12]}…, the manifest says {str(expected)[:12]}…"
        problems.append(Problem("hash", name, what))
    return data


def checked_schema(
    folder: Path, manifest: Manifest | None, problems: list[Problem]
) -> Schema | None:
    """Return the schema, None where there is none to read; what is wrong joins the problems."""
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
    """See that the files of TensorFlow Datasets are those of this dataset, or at least JSON."""
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
    """Return where the index of a shard is wrong about the places of its records.

    Where nothing else says them it must be there, and may say what it likes.
    """
    name = index_name(shard)
    problems: list[Problem] = []
    data = read_document(folder, name, None, problems)
    if data is None:
        return problems[0]
    if places is None:
        return None
    expected = "".join(f"{offset} {length}\n" for offset, length in places)
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
    """Yield in words where two JSON values differ: "splits.train.num_records is 3, not 4"."""
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
        here = json.loads(data)
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


def _contradictions(manifest: Manifest) -> Iterator[str]:
    """Yield where the manifest's numbers do not add up."""
    for name, split in manifest.splits.items():
        for field in ("num_records", "num_bytes"):
            said, total = getattr(split, field), sum(getattr(s, field) for s in split.shards)
            if said != total:
                yield f"splits.{name}.{field} is {said:,}, its shards make {total:,}"
        count = len(split.shards)
        for i, shard in enumerate(split.shards):
            wanted = shard_name(manifest.name, name, i, count)
            if shard.name != wanted:
                yield f"splits.{name}.shards[{i}] is called {shard.name}, not {wanted}"
        if tuple(split.label_counts) != manifest.labels.names:
            yield f"splits.{name}.label_counts are not of the classes"
    totals = manifest.totals
    sums = {
        "num_inputs": totals.num_written + totals.num_rejected + totals.num_skipped,
        "num_written": sum(split.num_records for split in manifest.splits.values()),
        "num_bytes": sum(split.num_bytes for split in manifest.splits.values()),
        "num_rejected": sum(totals.rejected.values()),
        "num_skipped": sum(totals.skipped.values()),
    }
    for field, total in sums.items():
        if getattr(totals, field) != total:
            yield f"totals.{field} is {getattr(totals, field):,}, its parts make {total:,}"


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
