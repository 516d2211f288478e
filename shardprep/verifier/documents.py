"""Checks of the documents of a dataset: manifest, schema, item table, indexes, files for TFDS."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from shardprep.dataset import item_table
from shardprep.dataset.documents import MAX_DOCUMENT_BYTES, check_size
from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, index_name, read_schema
from shardprep.dataset.item_table import WRITTEN, ShardRows, columns_of, with_status
from shardprep.dataset.manifest import (
    MANIFEST_FILE,
    Manifest,
    Shard,
    contradictions,
    decode_manifest,
)
from shardprep.dataset.schema import Schema
from shardprep.dataset.tally import Tally
from shardprep.dataset.tfds_metadata import DOCUMENTS as TFDS_FILES
from shardprep.dataset.tfds_metadata import tfds_files
from shardprep.errors import DatasetError, ShardprepError
from shardprep.storage.regular_file import read_regular, sha256_of
from shardprep.verifier.problem import Kind, Problem, hash_problem
from shardprep.writer.plan.build_plan import recorded_recipe

_Result = TypeVar("_Result")

_SPARE_BYTES = 64 << 20
_UNCOUNTABLE = (DatasetError, ValueError, TypeError, KeyError, ArithmeticError, pa.ArrowException)


class CheckedDocuments:
    """The documents of a folder, read and checked, and their `problems`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self.manifest: Manifest | None = None
        """The manifest, or None if it cannot be read. Likewise for `schema`."""
        self.shards: Mapping[str, Shard] = {}
        """Shards of the manifest by name; empty if the manifest cannot be read."""
        self.schema: Schema | None = None
        self.rows: dict[str, pa.Table] = {}
        """Rows of the item table by shard, in order; empty if `items.parquet` cannot be read."""
        self._read_manifest()
        self._read_schema()
        self._read_items()
        self._check_tfds()

    @property
    def most_shard_bytes(self) -> int | None:
        """Maximum size in bytes of a file to read as a shard; None without a manifest."""
        sizes = [shard.num_bytes for shard in self.shards.values()]
        return 2 * max(sizes) + _SPARE_BYTES if sizes else None

    def _read_manifest(self) -> None:
        data = self._read(MANIFEST_FILE)
        if data is None:
            return
        try:
            self.manifest = decode_manifest(data, "")
        except DatasetError as error:
            self._add("manifest", MANIFEST_FILE, error.what)
            return
        self.shards = self.manifest.shards
        for what in contradictions(self.manifest, data):
            self._add("manifest", MANIFEST_FILE, what)

    def _read_schema(self) -> None:
        if self._read(SCHEMA_FILE) is None:
            return
        try:
            self.schema = read_schema(self.folder)
        except ShardprepError as error:
            self._add("schema", SCHEMA_FILE, error.what)
            return
        if self.manifest is not None and self.schema.labels != self.manifest.labels.names:
            what = f"has other classes than the manifest ({len(self.schema.labels):,} classes)"
            self._add("schema", SCHEMA_FILE, what)

    def _read_items(self) -> None:
        digest = _attempt(ITEMS_FILE, lambda: sha256_of(self.folder / ITEMS_FILE))
        if isinstance(digest, Problem):
            self.problems.append(digest)
            return
        self._check_hash(ITEMS_FILE, digest)
        try:
            table = item_table.read_items(self.folder / ITEMS_FILE)
        except DatasetError as error:
            self._add("items", ITEMS_FILE, error.what)
            return
        self.rows = item_table.rows_by_shard(table)
        if "object_labels" in table.column_names:
            self.problems += _sum_problems(table)
        if self.manifest is not None:
            self.problems += _table_problems(self.manifest, self.schema, table, self.rows)

    def _check_tfds(self) -> None:
        expected = dict.fromkeys(TFDS_FILES, "")
        if self.manifest is not None and self.schema is not None:
            expected = tfds_files(self.manifest, self.schema)
        for name, text in expected.items():
            data = self._read(name)
            if data is None or data == text.encode():
                continue
            compare = json_faults if name.endswith(".json") else line_faults
            faults = list(compare(data, text))
            if text and not faults:
                faults.append("is not the text that the build wrote")
            for what in faults:
                self._add("tfds", name, what)

    def _read(self, name: str) -> bytes | None:
        data = read_document(self.folder, name)
        if isinstance(data, Problem):
            self.problems.append(data)
            return None
        self._check_hash(name, hashlib.sha256(data).hexdigest())
        return data

    def _check_hash(self, name: str, digest: str) -> None:
        expected = self.manifest.files.get(name) if self.manifest else None
        if expected not in (None, digest):
            self.problems.append(hash_problem(name, digest, str(expected)))

    def _add(self, kind: Kind, name: str, what: str) -> None:
        self.problems.append(Problem(kind, name, what))


def read_document(folder: Path, name: str, most_bytes: int = MAX_DOCUMENT_BYTES) -> bytes | Problem:
    """Return the bytes of a file, or a problem if the file is missing or cannot be read."""
    return _attempt(name, lambda: read_regular(folder / name, most_bytes))


def _attempt(name: str, read: Callable[[], _Result]) -> _Result | Problem:
    try:
        return read()
    except FileNotFoundError:
        return Problem("missing", name, "is missing")
    except OSError as error:
        return Problem("unreadable", name, f"cannot be read ({error.strerror})")


def index_problem(
    folder: Path, shard: str, places: Sequence[tuple[int, int]] | None, rows: ShardRows | None
) -> Problem | None:
    """Return the first problem of a shard's index, or None.

    `places` are the offset and length of each record. If None, the index is only read.
    """
    name = index_name(shard)
    expected = "".join(f"{offset} {length}\n" for offset, length in places or ())
    data = read_document(folder, name, 2 * len(expected) + MAX_DOCUMENT_BYTES)
    if isinstance(data, Problem):
        return data
    if places is None or data == expected.encode():
        return None
    here = data.decode(errors="replace").splitlines(keepends=True)
    pairs = list(zip_longest(here, expected.splitlines(keepends=True)))
    wrong = [number for number, (line, wanted) in enumerate(pairs) if line != wanted]
    if not wrong:
        return Problem("index", name, "is not the text that the build wrote")
    line, wanted = (text and text.rstrip("\n") for text in pairs[wrong[0]])
    what = f"says {quoted(line)}, the shard {quoted(wanted)}"
    if len(wrong) > 1:
        what += f", and {len(wrong) - 1:,} more lines differ"
    number = wrong[0] if wrong[0] < len(places) else None
    offset = places[number][0] if number is not None else None
    key = rows.key(number) if rows is not None and number is not None else ""
    return Problem("index", name, what, number, offset, key)


def _sum_problems(table: pa.Table) -> Iterator[Problem]:
    names = ("key", "num_objects", "object_labels", "num_dropped", "dropped")
    for key, number, labels, dropped, reasons in zip(
        *(table[name].to_pylist() for name in names), strict=True
    ):
        sums = {"num_objects": (number, labels and len(labels))}
        sums["num_dropped"] = (dropped, reasons and sum(count or 0 for _, count in reasons))
        for name, (said, there) in sums.items():
            if (said or 0) != (there or 0):
                what = f"says that {name} is {said}, but lists {there or 0:,}"
                yield Problem("items", ITEMS_FILE, what, key=key or "")


def _table_problems(
    manifest: Manifest, schema: Schema | None, table: pa.Table, rows: dict[str, pa.Table]
) -> Iterator[Problem]:
    """Yield problems: rows of unknown shards, repeated keys, counts other than the manifest's."""
    for shard in rows:
        if shard not in manifest.shards:
            what = f"has rows of {shard}, which the manifest does not name"
            yield Problem("items", ITEMS_FILE, what)
    keys = with_status(table, WRITTEN)["key"]
    if pc.count_distinct(keys).as_py() != len(keys):
        for key, count in Counter(keys.to_pylist()).items():
            if count > 1:
                what = f"has {count} written rows with the same key"
                yield Problem("items", ITEMS_FILE, what, key=key or "")
    try:
        counted = _counted(manifest, schema, table, rows)
    except _UNCOUNTABLE as error:
        what = f"cannot be counted ({str(error).splitlines()[0]})"
        yield Problem("items", ITEMS_FILE, what)
        return
    before, now = (
        one.model_dump(mode="json", include={"splits", "totals", "annotations"})
        for one in (manifest, manifest.model_copy(update=counted))
    )
    for what in differences(before, now):
        yield Problem("items", ITEMS_FILE, f"its rows disagree with the manifest: {what}")


def _counted(
    manifest: Manifest, schema: Schema | None, table: pa.Table, rows: dict[str, pa.Table]
) -> dict[str, object]:
    """Return `splits`, `totals` and, with a schema, `annotations` of a manifest for these rows."""
    recipe = recorded_recipe(manifest, "-", "-").settled(annotated=bool(manifest.annotations))
    tally = Tally(recipe.image_spec)
    statuses = (WRITTEN, item_table.REJECTED, item_table.SKIPPED)
    if {*table["status"].cast("string").unique().to_pylist()} - {*statuses}:
        raise ValueError(f"a status is not one of {', '.join(statuses)}")
    for name, split in manifest.splits.items():
        for shard in split.shards:
            here = rows.get(shard.name, columns_of(table.schema).empty_table())
            if {*here["split"].cast("string").unique().to_pylist()} - {name}:
                raise ValueError(f"a row of {shard.name} has another split than {name}")
            written = with_status(here, WRITTEN)
            if written["record"].to_pylist() != list(range(len(written))):
                raise ValueError(f"the records of {shard.name} are not numbered 0, 1, 2 …")
            measured = Shard(
                name=shard.name,
                num_records=len(written),
                num_bytes=pc.sum(written["length"]).as_py() or 0,
                sha256=shard.sha256,
            )
            tally.add(measured, name, here)
    texts = with_status(table, item_table.SKIPPED)["reason"].to_pylist()
    reasons = Counter(manifest.totals.reason_of(text or "") for text in texts)
    counted = {"splits": tally.splits(manifest.labels.names), "totals": tally.totals(reasons)}
    return {
        **counted,
        **({"annotations": tally.annotations(schema, manifest.annotations)} if schema else {}),
    }


def differences(here: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Yield each difference from the expected JSON, such as "totals.num_written is 3, not 4"."""
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
        yield f"{path or 'it'} is {quoted(here)}, not {quoted(expected)}"


def json_faults(data: bytes, text: str) -> Iterator[str]:
    """Yield why a document is not JSON, or its differences from the JSON `text` (if not empty)."""
    try:
        check_size(data)
        here = from_json(data)
    except ValueError as error:
        yield f"is not JSON ({error}): TensorFlow Datasets cannot open the folder"
        return
    if text:
        yield from differences(here, json.loads(text))


def line_faults(data: bytes, text: str) -> Iterator[str]:
    """Yield a description of each line of a document that differs from the expected `text`."""
    here = data.decode(errors="replace").split("\n")
    for number, (line, wanted) in enumerate(zip_longest(here, text.split("\n")), 1):
        if line != wanted:
            yield f"line {number:,} is {quoted(line)}, not {quoted(wanted)}"


def quoted(value: object) -> str:
    """Return a value as text for an error message, cut to 80 characters."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
