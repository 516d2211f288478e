"""Make a dataset from the shards of a build: write tables and documents, and publish it."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.catalog.objects.object_table import NO_FAULTS
from shardprep.dataset import item_table, tfds_metadata
from shardprep.dataset.card import Card
from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, index_name
from shardprep.dataset.leak_check import RecordsSum
from shardprep.dataset.manifest import MANIFEST_FILE, Labels, Manifest
from shardprep.dataset.rejected import rejected_text
from shardprep.dataset.tally import Tally
from shardprep.errors import BuildError, DatasetError, OptionName, counted, some_of
from shardprep.image.boxes import SHORTFALLS
from shardprep.image.spec import ImageSpec
from shardprep.profiling import stage
from shardprep.writer.engine.job import NOTHING_DONE, ItemCounts
from shardprep.writer.plan.build_plan import Outline, read_outline
from shardprep.writer.plan.shard_plan import numbers_of
from shardprep.writer.shard import (
    Receipt,
    ReceiptFacts,
    read_receipt,
    read_skipped,
    written_receipt,
)
from shardprep.writer.workspace import states
from shardprep.writer.workspace.files import (
    SKIPPED_FILE,
    DisturbedError,
    Folders,
    receipt_name,
    taken_over,
)
from shardprep.writer.workspace.states import Workspace

if TYPE_CHECKING:
    import pyarrow as pa

_SHARD_FILE = re.compile(r"[^./][^/]*\.tfrecord-[^/]*")
_MANY = 0.9
"""Share of nearly black images in a split above which a warning is logged."""
_log = logging.getLogger("shardprep")
_NUM_THREADS = 16
_NUM_INDEXED = 3
"""Number of shard indexes to write at a time, with their receipts in memory."""


@dataclass(frozen=True, slots=True, repr=False)
class BuildResult(Card):
    """Result of a build: the finished dataset, and the work of this run."""

    location: str
    path: Path
    """Folder of the dataset; for object storage, a local copy of all files except shards."""
    manifest: Manifest
    was_there: bool = False
    """Whether the dataset was already finished, with the same inputs and options."""
    num_new_items: int = 0
    """Number of items that this run has written or rejected; earlier runs do not count."""
    num_copied: int = 0
    """Number of items of this run whose stored image was copied from the dataset of `reuse`."""
    elapsed_s: float = 0.0
    profile: dict[str, float] | None = None
    """Seconds by stage, summed over workers; None if they were not measured."""
    notes: tuple[str, ...] = ()
    """Remarks on the plan, a line each; empty if this run made no plan."""

    def facts(self) -> dict[str, Any]:
        return {
            "at": self.location,
            **self.manifest.facts(),
            **({"notes": list(self.notes)} if self.notes else {}),
            "this run": "nothing to do"
            if self.was_there
            else f"{self.done} in {self.elapsed_s:.1f} s",
        }

    @property
    def done(self) -> str:
        return images_done(self.num_new_items, self.num_copied)


def images_done(num_items: int, num_copied: int) -> str:
    """Return text such as "90 images" or "90 images (60 copied, 30 encoded)"."""
    how = f" ({num_copied:,} copied, {num_items - num_copied:,} encoded)" if num_copied else ""
    return f"{counted(num_items, 'image')}{how}"


def finalize_dataset(
    workspace: Workspace, *, num_threads: int, max_rejected: float | None = None
) -> BuildResult:
    """Make a dataset from the shards that the parts of a build have written.

    Every shard is compared with its receipt. Source and recipe are not needed. A finished dataset
    is not changed. `max_rejected` is the largest accepted share of rejected images, 0 to 1; None
    means the share in the recipe of the parts. DatasetError if neither build nor dataset exists.
    """
    start = time.monotonic()

    def attempt(old: bytes | None) -> BuildResult:
        if states.is_begun(workspace):
            with workspace.held(alone=True):
                if states.is_begun(workspace):
                    manifest = workspace.sealed()
                    outline = None if manifest else read_outline(workspace.state)
                    if outline is not None:
                        folders = states.folders_of(workspace, outline.fingerprint, old)
                        _check_shards(folders, outline, num_threads)
                        if max_rejected is not None:
                            outline = outline.model_copy(update={"max_rejected": max_rejected})
                        manifest = complete(workspace, folders, outline)
                    if manifest is not None:
                        return publish(workspace, manifest, old, start)
                else:
                    workspace.discard()  # another process published it before the lock was held
        finished = workspace.finished()
        if finished is None:
            what = "no part of a build was written here"
            hint = "run `shardprep build` with --part 1/N, 2/N, … first, or name another dataset"
            raise DatasetError(workspace.location, what, hint)
        states.end_publishing(workspace, finished)
        return finished_before(workspace, finished)

    result = states.shared(workspace, attempt)
    return finished_before(workspace, result) if isinstance(result, Manifest) else result


def finished_before(workspace: Workspace, manifest: Manifest) -> BuildResult:
    """Return the result for a dataset that was already finished."""
    return BuildResult(workspace.location, workspace.documents(), manifest, was_there=True)


def publish(
    workspace: Workspace,
    manifest: Manifest,
    old: bytes | None,
    start: float,
    counts: ItemCounts = NOTHING_DONE,
    notes: tuple[str, ...] = (),
) -> BuildResult:
    """Publish a sealed dataset, and return the result of this run.

    `old` is the manifest to replace, or None. `start` is the monotonic start time of this run, and
    `counts` are the items of this run.
    """
    with states.writing(workspace):
        workspace.publish(manifest, old)
    return BuildResult(
        workspace.location,
        workspace.documents(),
        manifest,
        num_new_items=counts.num_items,
        num_copied=counts.num_copied,
        elapsed_s=time.monotonic() - start,
        notes=notes,
    )


def complete(
    workspace: Workspace, folders: Folders, outline: Outline, expected: Manifest | None = None
) -> Manifest:
    """Write all files except shards, and return the manifest, which is written last.

    BuildError if the manifest differs from `expected`. Without `expected`, BuildError if more
    images or objects are bad than the outline allows.
    """
    with states.writing(workspace):
        folders.check_build()
        manifest = _write_documents(folders, outline).signed()
        if expected is None:
            check_rejections(workspace, folders, manifest, outline.max_rejected)
            check_dropped(folders, manifest, outline.max_dropped)
        else:  # the limits were checked when the dataset was first published
            # An earlier version recorded no leak check, or one by another method. Receipts of
            # intact shards lack the two counts.
            names = "leaks", "num_rescaled", "num_own_levels"
            same = {name: getattr(expected, name) for name in names}
            manifest = manifest.model_copy(update=same).signed()
            _check_same(workspace, manifest, expected)
        if not workspace.is_exclusive:
            workspace.remove_foreign(manifest, folders.output)
            _check_shards(folders, outline, _NUM_THREADS)
        workspace.seal(manifest, folders.output)
        if folders.is_taken_over():
            folders.output.remove([MANIFEST_FILE])
            raise taken_over(folders.state)
    return manifest


@stage("finish")
def _write_documents(folders: Folders, outline: Outline) -> Manifest:
    tally = Tally(outline.spec)
    folder, schema = folders.output, outline.dataset_schema
    written = list[ReceiptFacts]()
    records = RecordsSum() if outline.leaks else None
    columns = item_table.columns_for(schema)
    tables = _tables(folders, outline, tally, written, records)
    item_table.write_items(folder, ITEMS_FILE, tables, columns)
    num_dark = Counter[str]()
    for shard, facts in zip(outline.shards, written, strict=True):
        num_dark[shard.split] += facts.num_dark
    totals = tally.totals(Counter(outline.skipped))
    num_rescaled = outline.num_rescaled + sum(one.num_rescaled for one in written)
    num_own_levels = outline.num_own_levels + sum(one.num_own_levels for one in written)
    manifest = Manifest(
        name=outline.name,
        version=outline.version,
        seed=outline.fingerprint.options["seed"],
        fingerprint=outline.fingerprint,
        labels=Labels(
            names=schema.labels,
            found_by=outline.labels_from,
            num_rows_without_image=outline.num_rows_without_image,
            rows_without_image=outline.rows_without_image,
        ),
        totals=totals,
        splits=tally.splits(schema.labels),
        annotations=tally.annotations(schema),
        unmatched=outline.unmatched,
        num_rescaled=min(num_rescaled, totals.num_written),  # a repack may select fewer
        num_own_levels=min(num_own_levels, totals.num_written),
        num_encodings=outline.num_encodings,
    )
    _warn_of_darkness(manifest, num_dark, outline.spec)
    _warn_of_sizes(manifest)
    _warn_of_losses(written)
    _write(folders, SCHEMA_FILE, schema.dumps())
    for name, text in tfds_metadata.tfds_files(manifest, schema).items():
        _write(folders, name, text)
    hashes = {name: folder.sha256(name) for name in (ITEMS_FILE, SCHEMA_FILE)}
    more: dict[str, Any] = {"files": hashes}
    if outline.leaks and records:
        more["leaks"] = outline.leaks.model_copy(update={"records": records.text})
    return manifest.model_copy(update=more)


def _warn_of_darkness(manifest: Manifest, num_dark: Mapping[str, int], spec: ImageSpec) -> None:
    hint = ""
    if spec.window not in ("auto", "full"):
        hint = f"; for DICOM, another {OptionName('window')} may show more"
    elif spec.depth_range == "full":
        flag = OptionName("depth_range", "0,4095")
        hint = f"; if 16-bit grey files contain 12-bit values, add {flag}"
    for name, split in manifest.splits.items():
        if num_dark[name] > _MANY * split.num_records:
            line = "%s: %s of %s images are nearly black%s"
            _log.warning(line, name, f"{num_dark[name]:,}", f"{split.num_records:,}", hint)


def _warn_of_sizes(manifest: Manifest) -> None:
    if manifest.num_rescaled:
        line = (
            "%s of %s images have another size than their annotations state, so their annotations "
            "were scaled; "
            f"{OptionName('annotated_size', 'image')} takes them as pixels of the image"
        )
        _log.warning(line, f"{manifest.num_rescaled:,}", f"{manifest.totals.num_written:,}")


_LOSSES = {
    "frames": "have several frames or pages, of which only the first is stored",
    "bits": "have values of more than 8 bits, of which 8 are stored",
}


def _warn_of_losses(written: Sequence[ReceiptFacts]) -> None:
    num_lost = sum((Counter(one.losses) for one in written), Counter[str]())
    num_written = sum(one.shard.num_records for one in written)
    for name, text in _LOSSES.items():
        if num_lost[name]:
            _log.warning("%s of %s images %s", f"{num_lost[name]:,}", f"{num_written:,}", text)


def _tables(
    folders: Folders,
    outline: Outline,
    tally: Tally,
    written: list[ReceiptFacts],
    records: RecordsSum | None,
) -> Iterator[pa.Table]:
    """Yield the rows of each shard, then of skipped inputs; write indexes, update the counts."""
    names = (shard.name for shard in outline.shards)
    columns = item_table.columns_for(outline.dataset_schema)
    with ThreadPoolExecutor(_NUM_INDEXED) as pool:
        coming = deque(pool.submit(_indexed, folders, name) for name in islice(names, _NUM_INDEXED))
        for shard in outline.shards:
            receipt = coming.popleft().result()
            coming.extend(pool.submit(_indexed, folders, name) for name in islice(names, 1))
            facts = receipt.facts
            tally.add(facts.shard, shard.split, receipt.table)
            written.append(facts)
            if records is not None:
                records.add(item_table.with_status(receipt.table, item_table.WRITTEN))
            yield item_table.with_columns(receipt.table, columns)
    skipped = read_skipped(folders.state)
    if skipped is None:
        raise _missing(folders, SKIPPED_FILE)
    yield item_table.with_columns(skipped, columns)
    folders.check_build()  # the consumer of these rows writes a file next


def _indexed(folders: Folders, shard: str) -> Receipt:
    receipt = read_receipt(folders, shard)
    if receipt is None:
        raise _missing(folders, receipt_name(shard))
    _write(folders, index_name(shard), item_table.index_text(receipt.table))
    return receipt


def _write(folders: Folders, name: str, text: str) -> None:
    folders.check_build()
    folders.output.write(name, text.encode())


def _missing(folders: Folders, name: str) -> DisturbedError:
    return DisturbedError(folders.state.located(name), "is missing", "try again")


def _check_shards(folders: Folders, outline: Outline, num_threads: int) -> None:
    names = [shard.name for shard in outline.shards]
    foreign = sorted(set(filter(_SHARD_FILE.fullmatch, folders.output.names())).difference(names))
    if foreign:
        hint = "remove it: readers would read it as a shard"
        raise BuildError(folders.output.located(foreign[0]), "does not belong to this build", hint)
    with ThreadPoolExecutor(num_threads) as pool:
        whole = pool.map(lambda name: written_receipt(folders, name) is not None, names)
        lost = [i for i, is_whole in enumerate(whole) if not is_whole]
    if lost:
        again = "`shardprep build`"
        if outline.num_parts > 1:
            # A shard's number and the number of parts determine its part.
            numbers = numbers_of(lost, outline.num_parts)
            again = f"part{'' if numbers.isdecimal() else 's'} {numbers} of {outline.num_parts}"
        raise DisturbedError(
            str(folders.state),
            f"{len(lost):,} of {counted(len(names), 'shard')} are missing or incomplete: "
            f"{some_of([names[i] for i in lost])}",
            f"run {again} again: finished shards are not written again",
        )


def _check_same(workspace: Workspace, manifest: Manifest, expected: Manifest) -> None:
    if manifest.dumps() == expected.dumps():
        return
    hashes = {name: shard.sha256 for name, shard in manifest.shards.items()}
    other = [name for name, s in expected.shards.items() if hashes.get(name) != s.sha256]
    states.forget(workspace, manifest.shards)  # the shards must be written again
    what = f"rebuilt bytes differ from the manifest ({', '.join(other) or 'its documents'})"
    hint = f"the dataset is not changed: build it again with {OptionName('overwrite')}"
    raise BuildError(str(workspace.state), what, hint)


_NO_FAULTS = (*SHORTFALLS, *NO_FAULTS)


class TooManyRejectedError(BuildError):
    """All shards are written, but more images are rejected than the recipe accepts."""

    def __init__(
        self, where: str, what: str, hint: str, *, manifest: Manifest, draft: Path
    ) -> None:
        super().__init__(where, what, hint)
        self.manifest = manifest
        self.draft = draft

    def as_json(self, exit_code: int) -> dict[str, Any]:
        return {**super().as_json(exit_code), "totals": self.manifest.totals}


def check_rejections(
    workspace: Workspace, folders: Folders, manifest: Manifest, limit: float
) -> None:
    """Raise TooManyRejectedError if the share of rejected images is above `limit`, 0 to 1."""
    totals = manifest.totals
    num_items = totals.num_written + totals.num_rejected
    if totals.num_rejected > limit * num_items:
        draft = workspace.documents(folders.output)
        above = f" {_above(totals.num_rejected / num_items, limit)}"
        what, hint = rejected_text(draft / ITEMS_FILE, "run again", above)
        where = str(folders.state)
        raise TooManyRejectedError(where, what, hint, manifest=manifest, draft=draft)


def check_dropped(folders: Folders, manifest: Manifest, limit: float) -> None:
    """Raise BuildError if the share of bad objects is above `limit`, 0 to 1.

    Objects dropped for a reason in `_NO_FAULTS` are not bad. In a dataset without objects,
    keypoints of images count instead.
    """
    num_kept, lost = 0, Counter[str]()
    for counts in manifest.annotations.values():
        num_kept += counts.objects.num_objects if counts.objects else 0
        lost.update(counts.dropped)
        if counts.points and counts.objects is None:
            num_kept += counts.points.num_labelled
            lost.update(counts.points.lost)
    if all(one.objects is None and one.points is None for one in manifest.annotations.values()):
        return  # the catalog has checked the objects of class masks
    lost.update(manifest.unmatched.objects if manifest.unmatched else {})
    bad = Counter({why: count for why, count in lost.items() if why not in _NO_FAULTS})
    total = num_kept + bad.total()
    if bad.total() > limit * total:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(bad.items()))
        has_objects = any(counts.objects for counts in manifest.annotations.values())
        what = "objects" if has_objects else "keypoints"
        raise BuildError(
            str(folders.state),
            f"{bad.total():,} of {total:,} {what} are invalid "
            f"{_above(bad.total() / total, limit)}: {reasons}",
            "the work is kept: run `shardprep build`, or one of its parts, again with a higher "
            f"{OptionName('max_dropped')}",
        )


def _above(share: float, limit: float) -> str:
    """Return a share above a limit in words, with enough digits to see the difference."""
    digits = next(n for n in range(1, 18) if n == 17 or f"{share:.{n}%}" != f"{limit:.{n}%}")
    return f"({share:.{digits}%}), above the limit of {limit:.{digits}%}"
