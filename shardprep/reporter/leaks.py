"""Search a dataset for images with a copy in another split, and check its certificate."""

from __future__ import annotations

import pyarrow as pa

from shardprep.dataset.leak_check import Leak, LeakSearch, RecordsSum
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.image.near_pairs import METHOD
from shardprep.progress import Watcher
from shardprep.reporter.findings.copies import exact_copies, near_copies
from shardprep.reporter.record_columns import Contents, read_contents
from shardprep.reporter.report import measure_contents


def find_leaks(dataset: OpenDataset, watcher: Watcher) -> LeakSearch:
    """Return the leaks of a dataset; images are decoded unless this machine has measured them."""
    contents = read_contents(dataset)
    measured = measure_contents(contents, watcher)
    groups = (*exact_copies(contents), *near_copies(contents, measured))
    divided = [one for one in groups if one.is_leak]
    leaks = tuple(
        Leak(one.kind, contents.keys_of(one.numbers), _splits(contents, one.numbers), one.changes)
        for one in divided
        if one.kind != "scene"
    )
    certificate, found = dataset.manifest.leaks, list[str]()
    if certificate is not None:
        records = RecordsSum()
        names = ("key", "split", "original_sha256")
        records.add(pa.table({name: contents.written.read(name) for name in names}))
        num_near = sum(one.kind == "near" for one in leaks)
        found += certificate.contradictions(METHOD, records.text, num_near)
    num_images = int(measured.measures["decoded"].sum())
    return LeakSearch(
        num_images,
        len(contents) - num_images,
        leaks,
        len(divided) - len(leaks),
        certificate is not None,
        tuple(found),
    )


def _splits(contents: Contents, numbers: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(contents.splits[code] for code in contents.split[list(numbers)].tolist())
