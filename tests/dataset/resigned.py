"""Change an untrusted dataset and sign it again: every hash, size and offset is correct.

Anyone who serves a dataset can do this, so a hash is not a reason to trust content.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import shutil
import tomllib
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.dataset import example, tfrecord
from shardprep.dataset.schema import parse_schema
from tests.support.odd_images import png_by_hand
from tests.support.paths import DATA

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Features = dict[str, list[Any]]


@dataclass
class Signed:
    """The content of a dataset, to be changed and signed."""

    folder: Path
    """The dataset that it was read from."""
    manifest: dict[str, Any]
    schema: dict[str, Any]
    rows: pa.Table
    """The item table."""
    payloads: dict[str, list[bytes]]
    """Shard → its records, without frames."""
    dtypes: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Signed:
        """Read a sound dataset."""
        manifest = json.loads((folder / "manifest.json").read_bytes())
        shards = [one["name"] for split in manifest["splits"].values() for one in split["shards"]]
        payloads = {}
        for name in shards:
            with (folder / name).open("rb") as file:
                payloads[name] = [bytes(one.payload) for one in tfrecord.read_records(file, name)]
        schema = (folder / "schema.json").read_bytes()
        return cls(
            folder,
            manifest,
            json.loads(schema),
            pq.read_table(folder / "items.parquet"),
            payloads,
            parse_schema(schema, "schema.json").dtypes,
        )

    def features(self, shard: str, record: int) -> Features:
        """Return the values of a record."""
        return {
            name: [*values] for name, values in example.decode(self.payloads[shard][record]).items()
        }

    def replace(self, shard: str, record: int, features: Features) -> None:
        """Put other values into a record."""
        self.payloads[shard][record] = example.encode(features, self.dtypes)

    def write(self, to: Path) -> Path:
        """Write the dataset, all of it signed, to its own or a new folder; return the folder."""
        if to != self.folder:
            shutil.copytree(self.folder, to)
        columns = {name: self.rows[name].to_pylist() for name in ("shard", "offset", "length")}
        facts = {}
        for name, payloads in self.payloads.items():
            frames = [tfrecord.frame(payload) for payload in payloads]
            ends = np.cumsum([0, *map(len, frames)]).tolist()
            (to / name).write_bytes(b"".join(frames))
            index = [f"{at} {len(one)}\n" for at, one in zip(ends, frames, strict=False)]
            (to / "index" / f"{name}.idx").write_text("".join(index))
            facts[name] = {"num_bytes": ends[-1], "sha256": _sha256(to / name)}
            own = [i for i, shard in enumerate(columns["shard"]) if shard == name]
            written = [i for i in own if columns["offset"][i] is not None]
            for i, at, one in zip(written, ends, frames, strict=False):
                columns["offset"][i], columns["length"][i] = at, len(one)
        rows = self.rows
        for name in ("offset", "length"):
            at = rows.schema.get_field_index(name)
            rows = rows.set_column(at, rows.schema.field(at), pa.array(columns[name], pa.int64()))
        with pq.ParquetWriter(to / "items.parquet", rows.schema, compression="zstd") as writer:
            writer.write_table(rows)
        (to / "schema.json").write_text(json.dumps(self.schema, indent=2))
        self._sign(to, facts)
        return to

    def _sign(self, to: Path, facts: Mapping[str, Mapping[str, Any]]) -> None:
        manifest = json.loads(json.dumps(self.manifest))
        splits = manifest.get("splits")
        for split in splits.values() if isinstance(splits, dict) else ():
            shards = split.get("shards") if isinstance(split, dict) else None
            shards = shards if isinstance(shards, list) else []
            known = [one for one in shards if isinstance(one, dict)]
            for one in known:
                one.update(facts.get(str(one.get("name")), {}))
            if known and len(known) == len(shards):
                split["num_bytes"] = sum(one.get("num_bytes") or 0 for one in known)
        if isinstance(manifest.get("totals"), dict) and isinstance(splits, dict):
            sizes = [one.get("num_bytes") for one in splits.values() if isinstance(one, dict)]
            manifest["totals"]["num_bytes"] = sum(one for one in sizes if isinstance(one, int))
        if isinstance(manifest.get("files"), dict):
            for name in ("items.parquet", "schema.json"):
                manifest["files"][name] = _sha256(to / name)
        (to / "manifest.json").write_bytes(resigned(manifest))
        info = json.loads((to / "dataset_info.json").read_text())
        for split in info["splits"]:
            split["numBytes"] = str(
                sum(facts[one]["num_bytes"] for one in facts if f"-{split['name']}." in one)
            )
        (to / "dataset_info.json").write_text(json.dumps(info, indent=2) + "\n")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def huge_png(width: int, height: int) -> bytes:
    """Return a PNG of one grey bit a pixel that is small as a file, and sound."""
    packer, line, out = zlib.compressobj(9), bytes(1 + -(-width // 8)), io.BytesIO()
    for _ in range(height):
        out.write(packer.compress(line))
    out.write(packer.flush())
    return png_by_hand(width, height, 1, 0, b"", out.getvalue())


Json = dict[str, Any]


def resigned(document: Json) -> bytes:
    """Return a manifest with its right own SHA-256, made without the program's code."""
    text = json.dumps({**document, "sha256": ""}, indent=2, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (
        json.dumps({**document, "sha256": digest}, indent=2, ensure_ascii=False) + "\n"
    ).encode()


def changed(document: Json, path: str, value: Any) -> Json:
    """Return a copy with `value`, or the result of that function, at a place such as "a.0.b"."""
    whole = copy.deepcopy(document)
    *above, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place: Any = whole
    for part in above:
        place = place[part]
    place[last] = value(place[last]) if callable(value) else value
    return whole


def _every_name(make: Callable[[str], str]) -> Callable[[Json], Json]:
    """Return a change of the name of every shard."""

    def change(splits: Json) -> Json:
        for split in splits.values():
            for shard in split["shards"]:
                shard["name"] = make(shard["name"])
        return splits

    return change


FIRST = "splits.train.shards.0"
MANIFESTS: dict[str, tuple[str, Any]] = {
    **tomllib.loads((DATA / "manifests.toml").read_text(encoding="utf-8")),
    "a name of 10,000 letters": ("name", "a" * 10_000),
    "a version of 5,000 digits": ("version", "1" * 5000 + ".0.0"),
    "a split that leaves the folder": ("splits", lambda splits: {"../../../x": splits["train"]}),
    "shards in another folder": ("splits", _every_name(lambda name: f"../{name}")),
    "shards of another dataset": ("splits", _every_name(lambda name: f"x{name}")),
    "a shard under its neighbour's name": (
        f"{FIRST}.name", lambda name: name.replace("00000", "00001", 1)
    ),
    "two shards swapped": ("splits.train.shards", lambda some: [some[1], some[0], *some[2:]]),
    "one shard twice": ("splits.train.shards", lambda shards: [shards[0], shards[0], *shards[2:]]),
    "a hash of 64 dots and slashes": (f"{FIRST}.sha256", "../" * 21 + "x"),
    "a hash in capitals": (f"{FIRST}.sha256", str.upper),
    "a size of 4,000 digits": (f"{FIRST}.num_bytes", int("9" * 4000)),
    "fewer records than there are": (f"{FIRST}.num_records", lambda count: count - 1),
    "fewer records of a split": ("splits.train.num_records", lambda count: count - 1),
    "a class that is not counted": (
        "splits.train.label_counts", lambda counts: dict([*counts.items()][1:])
    ),
    "a class too many": ("labels.names", lambda names: [*names, "x"]),
    "inputs that do not add up": ("totals.num_inputs", lambda count: count + 1),
    "a document that is a path": ("files", {"../../x": "0" * 64, "schema.json": "x"}),
}  # fmt: skip
"""Case → place in the manifest, and the hostile value or a function of the true value."""
