"""A dataset read to its last record: by `verify`, by both readers, and by its item table."""

import io
import json
import os
import time
from typing import Any, NamedTuple
from unittest import mock

import pyarrow.parquet as pq

from shardprep import reader
from tests.soak.place import Place
from tests.soak.truth import Tally, Truth, is_whole, looks_alike
from tests.support.command import invoke

_BATCH = 256
_SAMPLES = 2000


class Reading(NamedTuple):
    verify: str
    num_written: int
    num_rejected: int
    lost: list[str]
    """Images that are missing, duplicated, or rejected without a reason."""
    wrong: list[str]
    """Records whose label or bytes differ from the source."""
    elapsed_s: float


def read_all(place: Place, truth: Truth) -> Reading:
    begun = time.monotonic()
    with mock.patch.dict(os.environ, place.environment, clear=True):
        verified = invoke("verify", place.out, "--decode")
        lines = (verified.output.strip() or str(verified.exception)).splitlines()
        said = next((line for line in lines if " checked: " in line), lines[-1])
        ended = f"verify ended with {verified.exit_code}: {said}"
        lost = [ended] if verified.exit_code else []
        manifest = json.loads(place.read("manifest.json"))
        totals = manifest["totals"]
        rejected = _rejected(io.BytesIO(place.read("items.parquet")), truth)
        stored, shown = Tally(truth), Tally(truth)
        for split in manifest["splits"]:
            _read_stored(place, split, stored)
            _read_shown(place, split, shown, every=max(1, len(truth.images) // _SAMPLES))
    lost += [*stored.lost(rejected), *shown.lost(rejected), *_unaccounted(totals, truth)]
    wrong = [*stored.wrong, *shown.wrong, *_unlike(truth, shown.pixels)]
    elapsed_s = time.monotonic() - begun
    return Reading(said, totals["num_written"], len(rejected), lost, wrong, elapsed_s)


def _unaccounted(totals: dict[str, Any], truth: Truth) -> list[str]:
    inputs = totals["num_written"] + sum(totals["rejected"].values())
    skipped = sum(totals["skipped"].values())
    expected = len(truth.images), truth.num_others
    if (inputs, skipped) == expected:
        return []
    return [f"totals: {inputs} images and {skipped} others, not {expected}"]


def _rejected(items: Any, truth: Truth) -> set[str]:
    """Return the rejected keys, except images that Pillow can read completely."""
    table = pq.read_table(items, columns=["key", "status"])
    statuses = table.column("status").cast("string").to_pylist()
    keys = table.column("key").to_pylist()
    said = {key for key, status in zip(keys, statuses, strict=True) if status == "rejected"}
    return {key for key, data in truth.members() if key in said and not is_whole(data)}


def _read_stored(place: Place, split: str, tally: Tally) -> None:
    ds = reader.Dataset(place.out, split, decode=False, as_supervised=False)
    batches = ds.batches(_BATCH, shuffle=False, as_supervised=False)
    for batch in batches:
        rows = zip(batch["image/filename"], batch["label"], batch["image"], strict=True)
        for key, label, data in rows:
            tally.add(str(key), ds.class_names[int(label)])
            tally.add_bytes(str(key), bytes(data))


def _read_shown(place: Place, split: str, tally: Tally, *, every: int) -> None:
    """Read every record with tf.data, shuffled and decoded; keep the pixels of some."""
    ds = reader.load(place.out, split=split, batch_size=_BATCH, shuffle=True, as_supervised=False)
    for batch in ds.as_numpy_iterator():
        rows = zip(batch["image/filename"], batch["label"], batch["image"], strict=True)
        for key, label, pixels in rows:
            tally.add(key.decode(), ds.class_names[int(label)])
            if sum(key) % every == 0:
                tally.pixels[key.decode()] = pixels.copy()


def _unlike(truth: Truth, pixels: dict[str, Any]) -> list[str]:
    return [
        f"{key}: not its pixels"
        for key, data in truth.members()
        if key in pixels and not looks_alike(key, data, pixels[key])
    ]
