"""Documents of a dataset as a stranger might write them, with their right own SHA-256."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Json = dict[str, Any]


def resigned(document: Json) -> bytes:
    """Return a manifest with its right own SHA-256, made without the program's code."""
    text = json.dumps({**document, "sha256": ""}, indent=2, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return (
        json.dumps({**document, "sha256": digest}, indent=2, ensure_ascii=False) + "\n"
    ).encode()


def changed(document: Json, path: str, value: Any) -> Json:
    """Return a copy with a value, or what a function makes of it, at "a.0.b"."""
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


def _swapped(shards: list[Json]) -> list[Json]:
    return [shards[1], shards[0], *shards[2:]]


def _other_split(splits: Json) -> Json:
    return {"../../../x": splits["train"]}


FIRST = "splits.train.shards.0"
_OUTSIDE = "../../../../outside"
MANIFESTS: dict[str, tuple[str, Any]] = {
    "a name that leaves the folder": ("name", _OUTSIDE),
    "an absolute name": ("name", "/tmp/outside"),
    "a name that is a folder above": ("name", ".."),
    "a name with a folder in it": ("name", "a/b"),
    "an empty name": ("name", ""),
    "a name with a NUL": ("name", "a\0b"),
    "a name that steers a terminal": ("name", "a\x1b[2Jb"),
    "a name with a line feed": ("name", "shapes\n"),
    "a name of 10,000 letters": ("name", "a" * 10_000),
    "a name that is a number": ("name", 7),
    "a version that leaves the folder": ("version", "../../1.0.0"),
    "a version with a suffix": ("version", "1.0.0.incomplete"),
    "a version of other digits": ("version", "١.٠.٠"),
    "a version of 5,000 digits": ("version", "1" * 5000 + ".0.0"),
    "a split that leaves the folder": ("splits", _other_split),
    "no split": ("splits", {}),
    "a split without shards": ("splits.train.shards", []),
    "a shard that leaves the folder": (f"{FIRST}.name", _OUTSIDE),
    "shards in another folder": ("splits", _every_name(lambda name: f"../{name}")),
    "shards of another dataset": ("splits", _every_name(lambda name: f"x{name}")),
    "a shard under its neighbour's name": (
        f"{FIRST}.name", lambda name: name.replace("00000", "00001", 1)
    ),
    "two shards swapped": ("splits.train.shards", _swapped),
    "one shard twice": ("splits.train.shards", lambda shards: [shards[0], shards[0], *shards[2:]]),
    "a hash that is a path": (f"{FIRST}.sha256", "../../jail/pwn"),
    "a hash of 64 dots and slashes": (f"{FIRST}.sha256", "../" * 21 + "x"),
    "a hash in capitals": (f"{FIRST}.sha256", str.upper),
    "no hash": (f"{FIRST}.sha256", ""),
    "a negative size": (f"{FIRST}.num_bytes", -1),
    "a size beyond 64 bits": (f"{FIRST}.num_bytes", 1 << 70),
    "a size of 4,000 digits": (f"{FIRST}.num_bytes", int("9" * 4000)),
    "fewer records than there are": (f"{FIRST}.num_records", lambda count: count - 1),
    "more records than bytes": (f"{FIRST}.num_records", 10**12),
    "a count that is a text": (f"{FIRST}.num_records", "ten"),
    "a count that is true": (f"{FIRST}.num_records", True),
    "fewer records of a split": ("splits.train.num_records", lambda count: count - 1),
    "a class that is not counted": (
        "splits.train.label_counts", lambda counts: dict([*counts.items()][1:])
    ),
    "a class too many": ("labels.names", lambda names: [*names, "x"]),
    "inputs that do not add up": ("totals.num_inputs", lambda count: count + 1),
    "rejections without a kind": ("totals.num_rejected", 7),
    "a document that is a path": ("files", {"../../x": "0" * 64, "schema.json": "x"}),
    "a key that nobody knows": ("hook", "rm -rf"),
    "another format": ("format_version", 2),
    "more rescaled images than there are": ("num_rescaled", 10**6),
    "unmatched objects that are a text": (
        "unmatched", {"objects": {"x": "ten"}, "num_unlisted": 0}
    ),
    "unmatched objects below 0": ("unmatched", {"objects": {"x": -1}, "num_unlisted": 0}),
    "labels that are a number": ("labels", 7),
    "a seed that is a list": ("seed", [1]),
}  # fmt: skip
"""Case → where in the manifest, and the hostile value or how it is made of the true one."""
