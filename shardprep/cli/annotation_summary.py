"""Summaries of objects, keypoints and masks, and bars and sums of counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from shardprep.cli.console import Terminal, counts_line, plain_table
from shardprep.dataset.manifest import Manifest
from shardprep.errors import counted, shown

if TYPE_CHECKING:
    from rich.table import Table

    from shardprep.api.json_types import AnnotationFacts
    from shardprep.dataset.manifest import MaskCounts, ObjectCounts, PointCounts, Unmatched

_BAR_CELLS = 24
MOST_CLASSES = 20
NAMED_CLASSES = 6


def print_planned(terminal: Terminal, facts: AnnotationFacts) -> None:
    """Print the classes, keypoints and objects of a plan, and dropped or unmatched annotations."""
    spec = facts.spec
    stored = ["boxes"] if spec.boxes else []
    stored += ["masks"] if spec.masks == "classes" else []
    title = "instances" if spec.masks == "instances" else " and ".join(stored)
    if stored or spec.masks == "instances":
        terminal.entry(title, f"{classes_text(facts.names)} (by {facts.how})")
    for skeleton, of in ((spec.keypoints, "each object"), (spec.points, "each image")):
        if skeleton is not None:
            by = "" if stored else f" (by {facts.how})"
            terminal.entry("keypoints", f"{classes_text(skeleton.names, 'keypoint')} of {of}{by}")
    if total := sum(facts.num_objects.values()):
        counts = {name: f"{count:,} {name}" for name, count in facts.num_objects.items()}
        some = ", ".join(list(counts.values())[:NAMED_CLASSES])
        number = facts.num_background
        more = f"; {counted(number, 'image')} without any" if number else ""
        terminal.entry("objects", f"{total:,}: {some}{more}")
    if facts.dropped:
        terminal.entry("dropped", counts_line(facts.dropped))
    _print_unmatched(terminal, facts.unmatched)


def print_counts(terminal: Terminal, manifest: Manifest) -> None:
    """Print the numbers of objects, keypoints and masks in a dataset: stored, dropped or lost."""
    objects, masks = objects_of(manifest), masks_of(manifest)
    if objects:
        number = sum(one.num_objects for one in objects.values())
        text = f"{counted(number, 'object')} in {counted(manifest.totals.num_written, 'image')}"
        num_background = sum(one.num_background for one in objects.values())
        terminal.entry("objects", f"{text}; {counted(num_background, 'image')} without any")
    counts = manifest.annotations.values()
    if dropped := sums(one.dropped for one in counts):
        text = f"{counted(sum(dropped.values()), 'object')}: {counts_line(dropped)}"
        terminal.entry("dropped", text, style="yellow")
    _print_unmatched(terminal, manifest.unmatched)
    if number := manifest.num_rescaled:
        text = f"annotations of {counted(number, 'image')} state another size than the image has"
        terminal.entry("rescaled", text, style="yellow")
    if num_clipped := sum(one.num_clipped for one in counts):
        terminal.entry("clipped", f"{counted(num_clipped, 'object')} at the edge of the image")
    _print_points(terminal, [one.points for one in counts if one.points])
    if masks:
        num_ignored = sum(one.num_ignored for one in masks.values())
        total = sum(sum(one.pixels.values()) for one in masks.values()) + num_ignored
        if num_ignored:
            terminal.entry("ignored", f"{_share(num_ignored, total)} of the pixels of masks")
        if num_uniform := sum(one.num_uniform for one in masks.values()):
            text = f"{counted(num_uniform, 'mask')} with a single value, ignored pixels excepted"
            terminal.entry("one value", text)


def _print_points(terminal: Terminal, counts: Sequence[PointCounts]) -> None:
    if not counts:
        return
    number = sum(one.num_labelled for one in counts)
    without = sum(one.num_without for one in counts)
    lacking = f"; {counted(without, 'object or image', several='')} without any" if without else ""
    terminal.entry("keypoints", f"{number:,} labelled{lacking}")
    if lost := sums(one.lost for one in counts):
        terminal.entry("lost", f"keypoints: {counts_line(lost)}", style="yellow")


def _print_unmatched(terminal: Terminal, unmatched: Unmatched | None) -> None:
    if unmatched is not None and unmatched.objects:
        text = f"{counted(sum(unmatched.objects.values()), 'object')}: "
        terminal.entry("unmatched", text + counts_line(unmatched.objects), style="yellow")
    if unmatched is not None and unmatched.num_unlisted:
        text = f"{counted(unmatched.num_unlisted, 'image')} that no annotation lists"
        terminal.entry("unlisted", f"{text}, taken as images without objects")


def objects_of(manifest: Manifest) -> dict[str, ObjectCounts]:
    """Return the counts of objects by split, without splits that have none."""
    counts = manifest.annotations.items()
    return {split: one.objects for split, one in counts if one.objects}


def masks_of(manifest: Manifest) -> dict[str, MaskCounts]:
    """Return the counts of masks by split, without splits that have none."""
    return {split: one.masks for split, one in manifest.annotations.items() if one.masks}


def mask_table(masks: Mapping[str, MaskCounts]) -> Table:
    """Return a table of the pixels, their share and the images of the first 20 classes."""
    pixels = sums(one.pixels for one in masks.values())
    total = sum(pixels.values()) + sum(one.num_ignored for one in masks.values())
    table = plain_table("label", "mask", "pixels", "share", "images", "", left=("mask", ""))
    table.columns[1].overflow = "ellipsis"
    images, most = sums(one.images for one in masks.values()), max(pixels.values(), default=0)
    for label, (name, count) in enumerate(pixels.items()):
        if label == MOST_CLASSES:
            table.add_row("", f"… {len(pixels) - label:,} more classes")
            break
        share = f"{count / max(total, 1):.2%}"
        table.add_row(str(label), name, f"{count:,}", share, f"{images[name]:,}", bar(count, most))
    return table


def bar(count: int, most: int) -> Text:
    """Return a bar for `count` out of `most`. The bar of `most` has 24 cells."""
    return Text("█" * round(_BAR_CELLS * count / max(most, 1)), style="cyan")


def sums(splits: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums of counts by name."""
    totals: dict[str, int] = {}
    for counts in splits:
        for name, count in counts.items():
            totals[name] = totals.get(name, 0) + count
    return totals


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / max(total, 1):.1%})"


def classes_text(names: Sequence[str], what: str = "class") -> str:
    """Return the first names with their labels, or a range if the names are 0, 1, 2 and so on."""
    if len(names) > 1 and all(name == str(i) for i, name in enumerate(names)):
        return f"{counted(len(names), what)}, 0 to {len(names) - 1:,}"
    few = [f"{i} {shown(name)}" for i, name in enumerate(names[:NAMED_CLASSES])]
    more = [f"… {counted(len(names), what)}"] if len(names) > NAMED_CLASSES else []
    return ", ".join(few + more)
