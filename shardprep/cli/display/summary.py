"""A dataset in words and tables, for a terminal of 80 columns or more."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from shardprep.dataset.schema import LABEL, PROVIDED
from shardprep.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from shardprep.dataset.describe import Example, Facts
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema
    from shardprep.writer.build import PartResult
    from shardprep.writer.finalize import BuildResult
    from shardprep.writer.plan import BuildPlan

_TITLE_CELLS = 10
_BAR_CELLS = 24
_MOST_CLASSES = 20
_NAMED_CLASSES = 6
_KILO = 1000
_IS_THERE = " is there already: nothing to do."


def megabytes(num_bytes: float) -> str:
    """Return a size in the decimal unit that fits it: "812 kB", "45.5 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < _KILO:
            return (
                f"{num_bytes:.0f} {unit}"
                if num_bytes >= 100 or unit == "B"
                else (f"{num_bytes:.1f} {unit}")
            )
        num_bytes /= _KILO
    return f"{num_bytes:.1f} TB"


def print_plan(console: Console, plan: BuildPlan) -> None:
    """Show what a build would do."""
    table = plain_table("split", "images", "shards", "labelled")
    for split in dict.fromkeys(shard.split for shard in plan.shards):
        shards = [shard for shard in plan.shards if shard.split == split]
        members = [item for shard in shards for item in shard.items]
        labelled = sum(item.target is not None for item in members)
        table.add_row(split, f"{len(members):,}", f"{len(shards):,}", f"{labelled:,}")
    console.print(table)
    _print_labels(console, plan.schema.labels, plan.labels_from, plan.schema.target)
    for line in plan.findings:
        print_line(console, "note", line)
    print_line(console, "images", image_line(plan.schema))
    if plan.skipped:
        reasons: dict[str, int] = {}
        for one in plan.skipped:
            reasons[one.reason] = reasons.get(one.reason, 0) + 1
        print_line(console, "skipped", counts_line(reasons))
    _print_missing(console, len(plan.rows_without_image), plan.rows_without_image)
    print_line(console, "size", f"about {megabytes(plan.estimated_bytes)}")


def print_result(
    console: Console,
    result: BuildResult,
    schema: Schema,
    rejections: Mapping[str, Sequence[Example]],
) -> None:
    """Show what a build has come to."""
    manifest = result.manifest
    print_title(console, result.location, _IS_THERE if result.was_there else "")
    console.print(_split_table(manifest))
    _print_labels(console, manifest.labels.names, manifest.labels.found_by, schema.target)
    print_line(console, "images", image_line(schema))
    print_inputs(console, manifest, rejections)
    _print_sizes(console, manifest)
    if result.num_new_items:
        rate = result.num_new_items / result.elapsed_s
        print_line(
            console,
            "time",
            f"{result.num_new_items:,} images in {result.elapsed_s:.1f} s, {rate:,.0f} images/s",
        )
    print_line(console, "next", f"shardprep inspect {result.location.rpartition('/')[0]}")


def print_part(console: Console, result: PartResult) -> None:
    """Show what the build of a part has come to."""
    if result.was_there:
        print_title(console, result.workspace.location, _IS_THERE)
        return
    console.print(
        f"part {result.part} is done: {result.num_shards:,} of {result.num_all_shards:,} shards; "
        f"{result.num_new_items:,} images by this run in {result.elapsed_s:.1f} s",
        soft_wrap=True,
    )
    print_line(console, "next", "when all parts are done:")
    print_line(console, "", f"shardprep finalize {result.workspace.location}")


def print_facts(console: Console, facts: Facts) -> None:
    """Show a finished dataset."""
    manifest = facts.manifest
    print_title(console, f"{manifest.name} {manifest.version}", f"  {facts.location}")
    console.print(_split_table(manifest))
    if manifest.labels.names:
        console.print(_class_table(manifest, one_label=facts.schema.target == LABEL))
    elif facts.schema.target:
        _print_target(console, facts)
    columns = [name for name in facts.schema.features if name not in PROVIDED]
    if columns:
        print_line(console, "columns", ", ".join(columns))
    print_line(console, "images", image_line(facts.schema))
    if facts.original_width and facts.original_height:
        width, height = facts.original_width, facts.original_height
        print_line(
            console,
            "originals",
            f"{width.smallest}x{height.smallest} to {width.largest}x{height.largest} pixels, "
            f"median {width.median}x{height.median} ({counts_line(facts.formats)})",
        )
    print_inputs(console, manifest, facts.rejections)
    _print_sizes(console, manifest)
    print_line(console, "labels by", manifest.labels.found_by)


def print_inputs(
    console: Console, manifest: Manifest, rejections: Mapping[str, Sequence[Example]]
) -> None:
    """Show what became of the inputs: the totals add up, and every rejection has a reason."""
    totals = manifest.totals
    parts = [f"{totals.num_written:,} written"]
    parts += [f"{totals.num_rejected:,} rejected"] if totals.num_rejected else []
    parts += [f"{totals.num_skipped:,} skipped"] if totals.num_skipped else []
    print_line(console, "inputs", f"{totals.num_inputs:,} = {' + '.join(parts)}")
    if totals.num_rejected:
        print_line(console, "rejected", counts_line(totals.rejected))
        for examples in rejections.values():
            for example in examples:
                print_line(console, "", f"{example.key}: {example.reason}", style="dim")
    if totals.num_damaged:
        text = f"{totals.num_damaged:,} written images are damaged; items.parquet says how"
        print_line(console, "damaged", text, style="yellow")
    if totals.num_skipped:
        print_line(console, "skipped", counts_line(totals.skipped))
    if totals.num_copies:
        leaks = f", {totals.num_leaks:,} of them in another split" if totals.num_leaks else ""
        text = f"{totals.num_copies:,} images are there already{leaks}; --dedup leaves them out"
        print_line(console, "copies", text, style="yellow" if totals.num_leaks else "")
    labels = manifest.labels
    _print_missing(console, labels.num_rows_without_image, labels.rows_without_image)


def image_line(schema: Schema) -> str:
    """Return size and encoding of the stored images."""
    size = schema.image_size
    shape = f"{size[1]}x{size[0]}" if size else "each its own size"
    encoding = {"any": "original bytes, JPEG or PNG", "raw": "raw uint8"}
    return f"{shape}, RGB, {encoding.get(schema.image.encoding or '', schema.image.encoding)}"


def counts_line(counts: Mapping[str, int]) -> str:
    """Return "3 junk, 1 not an image"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _split_table(manifest: Manifest) -> Table:
    table = plain_table("split", "records", "shards", "size", "records a shard")
    for name, split in manifest.splits.items():
        counts = [shard.num_records for shard in split.shards]
        low, high = min(counts), max(counts)
        spread = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        size = megabytes(split.num_bytes)
        table.add_row(name, f"{split.num_records:,}", f"{len(counts):,}", size, spread)
    return table


def _print_target(console: Console, facts: Facts) -> None:
    text = "a text each"
    if facts.target:
        low, high = facts.target.smallest, facts.target.largest
        text = f"a number each, {low:g} to {high:g}, median {facts.target.median:g}"
    without = {name: split.num_unlabelled for name, split in facts.manifest.splits.items()}
    missing = ", ".join(f"{count:,} in {name}" for name, count in without.items() if count)
    print_line(console, "target", f"{text}; none: {missing}" if missing else text)


def _class_table(manifest: Manifest, *, one_label: bool) -> Table:
    splits = list(manifest.splits)
    table = plain_table("label", "class", *splits, "")
    table.columns[1].justify = "left"
    table.columns[1].overflow = "ellipsis"
    counts = {
        name: [manifest.splits[split].label_counts[name] for split in splits]
        for name in manifest.labels.names
    }
    most = max((sum(row) for row in counts.values()), default=0) or 1
    for label, (name, row) in enumerate(counts.items()):
        if label == _MOST_CLASSES:
            break
        bar = "█" * round(_BAR_CELLS * sum(row) / most)
        table.add_row(str(label), name, *(f"{n:,}" for n in row), Text(bar, style="cyan"))
    rest = [sum(row) for row in list(counts.values())[_MOST_CLASSES:]]
    if rest:
        note = f"… {len(rest):,} more classes, {min(rest):,} to {max(rest):,} records each"
        table.add_row("", note, *("" for _ in splits), "")
    unlabelled = [manifest.splits[split].num_unlabelled for split in splits]
    if any(unlabelled):
        table.add_row("-1" if one_label else "", "(no label)", *(f"{n:,}" for n in unlabelled), "")
    return table


def plain_table(*titles: str) -> Table:
    """Return a table without lines: the first column to the left, the others to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for i, title in enumerate(titles):
        table.add_column(title, justify="left" if i == 0 else "right")
    if titles[-1] == "":
        table.columns[-1].justify = "left"
    return table


def _print_labels(
    console: Console, names: Sequence[str], found_by: str, target: str | None
) -> None:
    if not names:
        kinds = {"target": "a number each, by ", "text": "a text each, by "}
        print_line(console, "labels", kinds.get(target or "", "") + found_by)
        return
    shown = ", ".join(f"{i} {name}" for i, name in enumerate(names[:_NAMED_CLASSES]))
    if len(names) > _NAMED_CLASSES:
        shown += f", … {len(names):,} classes"
    several = ", any number an image" if target == "labels" else ""
    print_line(console, "labels", f"{shown}{several} (by {found_by})")


def _print_missing(console: Console, number: int, ids: Sequence[str]) -> None:
    if number:
        shown = ", ".join(ids[:2])
        print_line(console, "no image", f"{number:,} rows of the label table, such as {shown}")


def _print_sizes(console: Console, manifest: Manifest) -> None:
    totals = manifest.totals
    ratio = totals.num_bytes / totals.original_bytes if totals.original_bytes else 0.0
    sizes = f"{megabytes(totals.original_bytes)} of images → {megabytes(totals.num_bytes)}"
    print_line(console, "bytes", f"{sizes} of shards ({ratio:.2f}x)")
    if totals.num_enlarged > totals.num_written // 2:
        print_line(
            console,
            "note",
            f"{totals.num_enlarged:,} images are smaller than this and were enlarged; "
            "a smaller --size keeps the shards small",
            style="yellow",
        )


def print_title(console: Console, title: str, rest: str = "") -> None:
    """Print what a report is of, and what there is to say at once."""
    line = Text.assemble((printable(title), "bold"), printable(rest))
    console.print(line, soft_wrap=True)


def print_line(console: Console, title: str, text: str, style: str = "") -> None:
    """Print a titled line, its continuation below its beginning."""
    lines = textwrap.wrap(
        printable(text), max(20, console.width - _TITLE_CELLS), break_on_hyphens=False
    )
    for i, line in enumerate(lines or [""]):
        head = f"{title if i == 0 else '':<{_TITLE_CELLS}}"
        console.print(Text.assemble((head, "bold"), (line, style)), soft_wrap=True)
