"""Tables and lines about the objects and masks of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.text import Text

from shardprep.cli.show.console import Terminal, counts_line, plain_table
from shardprep.errors import counted

if TYPE_CHECKING:
    from rich.table import Table

    from shardprep.dataset.describe import ObjectFacts
    from shardprep.dataset.manifest import Manifest, MaskCounts, ObjectCounts, Unmatched

_BAR_CELLS = 24
_MOST_CLASSES = 20


def print_annotation_tables(terminal: Terminal, manifest: Manifest) -> None:
    """Print tables of the objects and mask pixels of each class."""
    objects, masks = _objects(manifest), _masks(manifest)
    if any(counts.objects for counts in objects.values()):
        counts = {split: counts.objects for split, counts in objects.items()}
        images = _sums(counts.images for counts in objects.values())
        terminal.print(_object_table(counts, images))
    if masks:
        terminal.print(_mask_table(masks))


def print_annotations(terminal: Terminal, manifest: Manifest, boxes: ObjectFacts | None) -> None:
    """Print lines about objects and masks; `boxes` is None if the shards were not read."""
    objects, masks = _objects(manifest), _masks(manifest)
    if objects:
        number = sum(one.num_objects for one in objects.values())
        num_written = manifest.totals.num_written
        text = f"{counted(number, 'object')} in {counted(num_written, 'image')}"
        if boxes:
            per = boxes.boxes_per_image
            text += f", {per.smallest:,} to {per.largest:,} an image, median {per.median:,}"
        num_background = sum(one.num_background for one in objects.values())
        terminal.entry("objects", f"{text}; {counted(num_background, 'image')} without any")
        if boxes:
            _print_boxes(terminal, boxes, number)
    counts = manifest.annotations.values()
    if dropped := _sums(one.dropped for one in counts):
        text = f"{counted(sum(dropped.values()), 'object')}: {counts_line(dropped)}"
        terminal.entry("dropped", text, style="yellow")
    print_unmatched(terminal, manifest.unmatched)
    if number := manifest.num_rescaled:
        text = f"annotations of {counted(number, 'image')} state another size than the image has"
        terminal.entry("rescaled", text, style="yellow")
    if num_clipped := sum(one.num_clipped for one in counts):
        terminal.entry("clipped", f"{counted(num_clipped, 'object')} at the edge of the image")
    if masks:
        num_ignored = sum(one.num_ignored for one in masks.values())
        total = sum(sum(one.pixels.values()) for one in masks.values()) + num_ignored
        if num_ignored:
            terminal.entry("ignored", f"{_share(num_ignored, total)} of the pixels of masks")
        if num_uniform := sum(one.num_uniform for one in masks.values()):
            text = f"{counted(num_uniform, 'mask')} with one value in all pixels"
            terminal.entry("one value", text)


def print_unmatched(terminal: Terminal, unmatched: Unmatched | None) -> None:
    """Print the numbers of annotations without an image and of images without an annotation."""
    if unmatched is not None and unmatched.objects:
        text = f"{counted(sum(unmatched.objects.values()), 'object')}: "
        terminal.entry("unmatched", text + counts_line(unmatched.objects), style="yellow")
    if unmatched is not None and unmatched.num_unlisted:
        text = f"{counted(unmatched.num_unlisted, 'image')} that no annotation lists"
        terminal.entry("unlisted", f"{text}, taken as images without objects")


def _objects(manifest: Manifest) -> dict[str, ObjectCounts]:
    counts = manifest.annotations.items()
    return {split: one.objects for split, one in counts if one.objects}


def _masks(manifest: Manifest) -> dict[str, MaskCounts]:
    return {split: one.masks for split, one in manifest.annotations.items() if one.masks}


def _print_boxes(terminal: Terminal, boxes: ObjectFacts, number: int) -> None:
    side = boxes.shorter_side
    if side is None:
        return
    text = f"shorter side {side.smallest:,.3g} to {side.largest:,.3g} pixels"
    terminal.entry("boxes", f"{text}, median {side.median:,.3g}")
    is_tiny = boxes.num_below_8 > number // 20
    terminal.entry(
        "small",
        f"{_share(boxes.num_below_8, number)} below 8x8 pixels, "
        f"{_share(boxes.num_below_32, number)} below 32x32, in the stored image"
        + ("; a larger --size keeps more of them" if is_tiny else ""),
        style="yellow" if is_tiny else "",
    )
    terminal.entry("at edge", f"{_share(boxes.num_at_edge, number)} touch the edge of the image")
    if boxes.num_near_duplicates:
        pairs = counted(boxes.num_near_duplicates, "pair")
        text = f"{pairs} of boxes of one class have more than 90% in common"
        terminal.entry("doubles", text, style="yellow")


def _mask_table(masks: Mapping[str, MaskCounts]) -> Table:
    """Return a table with a row for each class: pixels, share, images and a bar."""
    pixels = _sums(one.pixels for one in masks.values())
    total = sum(pixels.values()) + sum(one.num_ignored for one in masks.values())
    table = plain_table("label", "mask", "pixels", "share", "images", "", left=("mask", ""))
    table.columns[1].overflow = "ellipsis"
    images, most = _sums(one.images for one in masks.values()), max(pixels.values(), default=0)
    for label, (name, count) in enumerate(pixels.items()):
        if label == _MOST_CLASSES:
            table.add_row("", f"… {len(pixels) - label:,} more classes", "", "", "", "")
            break
        share = f"{count / max(total, 1):.2%}"
        table.add_row(str(label), name, f"{count:,}", share, f"{images[name]:,}", _bar(count, most))
    return table


def _object_table(splits: Mapping[str, Mapping[str, int]], images: Mapping[str, int]) -> Table:
    """Return a table with a row for each class: objects by split, images and a bar."""
    table = plain_table("label", "object", *splits, "images", "", left=("object", ""))
    table.columns[1].overflow = "ellipsis"
    totals = _sums(splits.values())
    most = max(totals.values(), default=0)
    for label, (name, total) in enumerate(totals.items()):
        if label == _MOST_CLASSES:
            rest = list(totals.values())[label:]
            note = f"… {len(rest):,} more classes, {min(rest):,} to {max(rest):,} each"
            table.add_row("", note, *("" for _ in splits), "", "")
            break
        row = (f"{counts[name]:,}" for counts in splits.values())
        table.add_row(str(label), name, *row, f"{images[name]:,}", _bar(total, most))
    return table


def _bar(count: int, most: int) -> Text:
    return Text("█" * round(_BAR_CELLS * count / max(most, 1)), style="cyan")


def _sums(splits: Iterable[Mapping[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for counts in splits:
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
    return totals


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / max(total, 1):.1%})"
