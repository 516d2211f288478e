"""Summaries of plans, builds and datasets, for a terminal of at least 80 columns."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from shardprep.cli.annotation_summary import (
    MOST_CLASSES,
    NAMED_CLASSES,
    bar,
    classes_text,
    mask_table,
    masks_of,
    objects_of,
    print_counts,
    print_planned,
    sums,
)
from shardprep.cli.console import Terminal, counts_line, plain_table
from shardprep.cli.streams import console, picked, print_json
from shardprep.dataset.describe import (
    LACKING,
    MOST_EXAMPLES,
    ComponentFacts,
    Example,
    Facts,
    LeftOutExamples,
    read_examples,
    size_text,
)
from shardprep.dataset.folder import read_schema
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.schema import (
    LABEL,
    MASK,
    OBJECTS,
    POINTS,
    PROVIDED,
    TARGET_IMAGE,
    TARGETS,
    TEXTS,
    Schema,
)
from shardprep.errors import (
    BuildError,
    ShardprepError,
    command_line,
    counted,
    some_of,
    typed,
)
from shardprep.storage.space import megabytes

if TYPE_CHECKING:
    from rich.table import Table

    from shardprep.api.json_types import BuildPlan, BuildResult, PartResult

ANNOTATE = "annotate"
WORKER_STAGES = ("read", "hash", "decode", "resize", "encode", ANNOTATE, "frame", "store", "other")
"""Stages in a worker, in order. "frame" makes the record, "store" writes the shard."""
PARENT_STAGES = ("plan", "wait", "write", "finish")
"""Stages in the parent process, in order. "wait" is the time spent waiting for workers."""


def _was_there(location: str) -> str:
    verify = command_line("verify", location)
    return f" already exists: nothing to do. {verify} checks its files."


def _to_name(location: str) -> str:
    """Return the dataset's folder if this version is its newest, else the folder of the version."""
    from shardprep.dataset.locate import versions_below
    from shardprep.storage.url import parse_place

    folder, _, version = location.rpartition("/")
    with contextlib.suppress(ShardprepError):
        names = [one.names[-1] for one in versions_below(parse_place(folder)) if one.is_finished]
        return folder if names[-1:] == [version] else location
    return folder


def print_plan(terminal: Terminal, plan: BuildPlan) -> None:
    """Print images and shards by split, objects, classes, notes, skipped inputs and total size."""
    table = plain_table("split", "images", "shards", "labelled")
    for split in dict.fromkeys(shard.split for shard in plan.shards):
        shards = [shard for shard in plan.shards if shard.split == split]
        number = sum(len(shard.items) for shard in shards)
        labelled = sum(int(shard.columns.are_labelled.sum()) for shard in shards)
        table.add_row(split, f"{number:,}", f"{len(shards):,}", f"{labelled:,}")
    terminal.print(table)
    if plan.annotations is not None:
        print_planned(terminal, plan.annotations)
    if plan.annotations is None or plan.schema.has_target:
        _print_labels(terminal, plan.schema, plan.schema.labels, plan.labels_from)
    for line in plan.findings:
        terminal.entry("note", line)
    terminal.entry("images", image_line(plan.schema, plan.spec.size, plan.spec.fit))
    _print_own_sizes(terminal, plan.schema)
    if plan.skipped:
        terminal.entry("skipped", counts_line(Counter(item.reason for item in plan.skipped)))
        skipped = (item for item in plan.skipped if re.match(LACKING, item.reason))
        some = islice(skipped, MOST_EXAMPLES)
        _print_examples(terminal, (Example(item.key, item.reason) for item in some))
    _print_missing(terminal, len(plan.rows_without_image), plan.rows_without_image)
    terminal.entry("size", f"about {megabytes(plan.estimated_bytes)}")


def show_result(result: BuildResult, *, as_json: bool) -> None:
    """Print splits, classes, images, inputs, sizes and time of a build, or all facts as JSON."""
    if as_json:
        from shardprep.api.json_types import BuildJson

        summary = picked(BuildJson, result, path=result.location)
        if result.profile is None:
            del summary["profile"]
        else:
            summary["profile"] = {name: round(value, 4) for name, value in result.profile.items()}
        print_json(summary)
        return
    terminal, manifest, schema = console(), result.manifest, read_schema(result.path)
    terminal.heading(result.location, _was_there(result.location) if result.was_there else "")
    terminal.print(_split_table(manifest))
    names = manifest.labels.names or schema.annotation_labels
    _print_labels(terminal, schema, names, manifest.labels.found_by)
    if manifest.annotations:
        print_counts(terminal, manifest)
    terminal.entry("images", image_line(schema, *_fit_of(manifest)))
    _print_own_sizes(terminal, schema)
    _print_inputs(terminal, manifest, read_examples(result.path))
    _print_sizes(terminal, manifest)
    if number := result.num_new_items:
        rate = number / result.elapsed_s
        terminal.entry("time", f"{result.done} in {result.elapsed_s:.1f} s, {rate:,.0f} images/s")
    terminal.entry("next", typed("inspect", _to_name(result.location)))
    if number and result.profile is not None:
        _print_profile(terminal, result.profile, number, result.elapsed_s)


def show_refused(error: BuildError) -> None:
    """Print on stderr the counts of inputs of a build that rejected too many images."""
    from shardprep.writer.finalize import TooManyRejectedError

    if isinstance(error, TooManyRejectedError):
        _print_inputs(console(stderr=True), error.manifest, read_examples(error.draft))


def show_part(result: PartResult, *, as_json: bool) -> None:
    """Print the shards of `build --part` and the command to join all parts, or facts as JSON."""
    if as_json:
        from shardprep.api.json_types import PartJson

        print_json(picked(PartJson, result, path=result.location, part=str(result.part)))
        return
    terminal = console()
    if result.was_there:
        terminal.heading(result.location, _was_there(result.location))
        return
    terminal.print(
        f"part {result.part} is done: {result.num_shards:,} of "
        f"{counted(result.num_all_shards, 'shard')}; {result.done} by this run in "
        f"{result.elapsed_s:.1f} s",
        soft_wrap=True,
    )
    terminal.entry("next", "when all parts are done:")
    terminal.entry("", typed("finalize", result.location))


def print_facts(terminal: Terminal, facts: Facts) -> None:
    """Print the splits, classes and totals of a dataset."""
    manifest = facts.manifest
    terminal.heading(f"{manifest.name} {manifest.version}", f"  {facts.path}")
    terminal.print(_split_table(manifest))
    if manifest.labels.names:
        terminal.print(_label_table(manifest, one_label=facts.schema.target == LABEL))
    elif facts.schema.has_target:
        _print_target(terminal, facts)
    if manifest.annotations:
        objects, masks = objects_of(manifest), masks_of(manifest)
        if any(one.objects for one in objects.values()):
            counts = {split: one.objects for split, one in objects.items()}
            images = sums(one.images for one in objects.values())
            terminal.print(_class_table("object", counts, images))
        if masks:
            terminal.print(mask_table(masks))
        print_counts(terminal, manifest)
    known = {*PROVIDED, *facts.schema.class_features}
    columns = [name for name in facts.schema.features if name not in known]
    if columns:
        terminal.entry("columns", ", ".join(columns))
    terminal.entry("images", image_line(facts.schema, *_fit_of(manifest)))
    if facts.original_width and facts.original_height:
        sizes = size_text(facts.original_width, facts.original_height)
        terminal.entry("originals", f"{sizes} ({counts_line(facts.formats)})")
    examples = LeftOutExamples(rejections=facts.rejections, skipped=facts.skipped)
    _print_inputs(terminal, manifest, examples)
    _print_sizes(terminal, manifest)
    terminal.entry("labels by" if facts.schema.has_target else "labels", manifest.labels.found_by)


def _print_inputs(terminal: Terminal, manifest: Manifest, found: LeftOutExamples) -> None:
    totals = manifest.totals
    parts = [f"{totals.num_written:,} written"]
    parts += [f"{totals.num_rejected:,} rejected"] if totals.num_rejected else []
    parts += [f"{totals.num_skipped:,} skipped"] if totals.num_skipped else []
    terminal.entry("inputs", f"{totals.num_inputs:,} = {' + '.join(parts)}")
    if totals.num_rejected:
        terminal.entry("rejected", counts_line(totals.rejected))
        for examples in found["rejections"].values():
            _print_examples(terminal, examples)
    if totals.num_damaged:
        written = counted(totals.num_damaged, "written image", "is", "are")
        text = f"{written} damaged; items.parquet says how"
        terminal.entry("damaged", text, style="yellow")
    if totals.num_skipped:
        terminal.entry("skipped", counts_line(totals.skipped))
        _print_examples(terminal, found["skipped"])
    if totals.num_copies:
        leaks = (
            f", in {counted(totals.num_leaks, 'case')} across splits" if totals.num_leaks else ""
        )
        copies = counted(totals.num_copies, "image", "is a copy", "are copies")
        text = f"{copies}{leaks}; build --dedup keeps one"
        terminal.entry("copies", text, style="yellow" if totals.num_leaks else "")
    if manifest.leaks is not None:
        terminal.entry("near", str(manifest.leaks))
    labels = manifest.labels
    _print_missing(terminal, labels.num_rows_without_image, labels.rows_without_image)


def _print_examples(terminal: Terminal, examples: Iterable[Example]) -> None:
    for example in examples:
        terminal.entry("", f"{example.key}: {example.reason}", style="dim")


def _fit_of(manifest: Manifest) -> tuple[Sequence[int] | None, str]:
    options = manifest.fingerprint.options
    fit = options.get("fit", "")
    return options.get("size"), "pad" if fit == "auto" and manifest.annotations else fit


def image_line(schema: Schema, size: Sequence[int] | None, fit: str) -> str:
    """Return the size and encoding of the stored images as text, with a `fit` that does not crop.

    `size` is (height, width); with the fit "within", it is the maximum.
    """
    shape = "original sizes"
    if schema.image_size or size:
        height, width = schema.image_size or size or ()
        shape = f"{'' if schema.image_size else 'at most '}{width}x{height}"
        shape += f" ({fit})" if fit not in ("", "auto", "crop") else ""
    encoding = {"any": "original bytes, JPEG or PNG", "raw": "raw uint8"}
    image = schema.image
    values = "16-bit grey" if image.is_deep else "RGB"
    more = f", stacks of {', '.join(image.channels) or 'images'}" if schema.is_stack else ""
    if (target := schema.features.get(TARGET_IMAGE)) is not None:
        more = f", target images of {'16-bit grey' if target.is_deep else 'RGB'}"
    return f"{shape}, {values}, {encoding.get(image.encoding or '', image.encoding)}{more}"


def _print_own_sizes(terminal: Terminal, schema: Schema) -> None:
    if schema.image_size is None:
        hint = "build with --size 224x224 --fit crop, or read with center_crop=(224, 224)"
        if any(name.startswith((OBJECTS, MASK, POINTS)) for name in schema.features):
            hint = "build with --size 224x224 --fit pad, because a crop may cut objects"
        terminal.entry(
            "note",
            "batches need one image size, and this dataset does not state one, even if all images "
            f"are equally large: {hint}",
        )


def _split_table(manifest: Manifest) -> Table:
    table = plain_table("split", "records", "shards", "size", "records a shard")
    for name, split in manifest.splits.items():
        counts = [shard.num_records for shard in split.shards]
        low, high = min(counts), max(counts)
        spread = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        size = megabytes(split.num_bytes)
        table.add_row(name, f"{split.num_records:,}", f"{len(counts):,}", size, spread)
    return table


def _print_target(terminal: Terminal, facts: Facts) -> None:
    text = "a text each"
    if facts.target:
        low, high = facts.target.smallest, facts.target.largest
        text = f"a number each, {low:g} to {high:g}, median {facts.target.median:g}"
    elif facts.schema.target_lists:
        text = _target_words(facts.schema)
    if facts.num_texts:
        low, high = facts.num_texts.smallest, facts.num_texts.largest
        text = f"{low:,} to {high:,} texts each, median {facts.num_texts.median:,}"
    if facts.components:
        terminal.print(_component_table(facts.components))
    without = {name: split.num_unlabelled for name, split in facts.manifest.splits.items()}
    missing = ", ".join(f"{count:,} in {name}" for name, count in without.items() if count)
    terminal.entry("target", f"{text}; none: {missing}" if missing else text)


def _counted_classes(counts: Mapping[str, int]) -> str:
    shown = [f"{name}: {count:,}" for name, count in list(counts.items())[:NAMED_CLASSES]]
    more = [f"… {len(counts):,} classes"] if len(counts) > NAMED_CLASSES else []
    return ", ".join(shown + more)


def _component_table(components: Mapping[str, ComponentFacts]) -> Table:
    table = plain_table("target", "least", "median", "largest", "missing", "", left=("target", ""))
    for name, one in list(components.items())[:MOST_CLASSES]:
        spread, more = ("", "", ""), _counted_classes(one.classes)
        if one.numbers is not None:
            low, middle, high = one.numbers.smallest, one.numbers.median, one.numbers.largest
            spread, more = (f"{low:g}", f"{middle:g}", f"{high:g}"), ""
        table.add_row(name, *spread, f"{one.num_missing:,}", more)
    return table


def _class_table(
    title: str,
    splits: Mapping[str, Mapping[str, int]],
    images: Mapping[str, int] | None = None,
    unit: str = "",
) -> Table:
    others = [] if images is None else ["images"]
    table = plain_table("label", title, *splits, *others, "", left=(title, ""))
    table.columns[1].overflow = "ellipsis"
    totals = sums(splits.values())
    most = max(totals.values(), default=0)
    for label, (name, total) in enumerate(totals.items()):
        if label == MOST_CLASSES:
            rest = list(totals.values())[label:]
            numbers = f"{min(rest):,} to {max(rest):,}{unit} each"
            table.add_row("", f"… {len(rest):,} more classes, {numbers}")
            break
        row = [f"{counts[name]:,}" for counts in splits.values()]
        row += [] if images is None else [f"{images[name]:,}"]
        table.add_row(str(label), name, *row, bar(total, most))
    return table


def _label_table(manifest: Manifest, *, one_label: bool) -> Table:
    names, splits = manifest.labels.names, manifest.splits
    counts = {
        split: {name: one.label_counts[name] for name in names} for split, one in splits.items()
    }
    table = _class_table("class", counts, unit=" records")
    unlabelled = [split.num_unlabelled for split in splits.values()]
    if any(unlabelled):
        table.add_row("-1" if one_label else "", "(no label)", *(f"{n:,}" for n in unlabelled))
    return table


def _target_words(schema: Schema) -> str:
    feature, classes = schema.features.get(TARGETS), len(schema.class_features)
    if schema.target == TEXTS:
        return "several texts each"
    parts = [counted(classes, "class") + " each"] if classes else []
    if feature is not None:
        noun = "share" if feature.soft else "number"
        parts.insert(0, f"{counted(feature.num_values, noun)} each")
    return " and ".join(parts)


def _print_labels(terminal: Terminal, schema: Schema, names: Sequence[str], found_by: str) -> None:
    target = schema.target
    if not names:
        kinds = {"target": "a number each, by ", "text": "a text each, by "}
        words = f"{_target_words(schema)}, by " if schema.target_lists else ""
        terminal.entry("labels", kinds.get(target or "", words) + found_by)
        return
    several = ", any number an image" if target == "labels" else ""
    terminal.entry("labels", f"{classes_text(names)}{several} (by {found_by})")


def _print_missing(terminal: Terminal, number: int, ids: Sequence[str]) -> None:
    if number:
        few = some_of(ids[:2], 2)
        terminal.entry("no image", f"{number:,} labels, rows or annotations, such as {few}")


def _print_sizes(terminal: Terminal, manifest: Manifest) -> None:
    totals = manifest.totals
    ratio = totals.num_bytes / totals.original_bytes if totals.original_bytes else 0.0
    sizes = f"{megabytes(totals.original_bytes)} of images → {megabytes(totals.num_bytes)}"
    terminal.entry("bytes", f"{sizes} of shards ({ratio:.2f}x)")
    if number := manifest.num_own_levels:
        text = f"{counted(number, 'stack')} scaled by their own values or windows"
        terminal.entry("levels", f"{text}: compare brightness only within a stack")
    if totals.num_enlarged > totals.num_written // 2:
        terminal.entry(
            "note",
            f"{counted(totals.num_enlarged, 'original', 'is', 'are')} smaller than --size; "
            "a smaller --size keeps the shards small",
            style="yellow",
        )


def _print_profile(
    terminal: Terminal, seconds: Mapping[str, float], num_items: int, elapsed_s: float
) -> None:
    stages = [name for name in WORKER_STAGES if name != ANNOTATE or name in seconds]
    busy = sum(seconds.get(name, 0.0) for name in stages)
    table = plain_table("in workers", "seconds", "share", "µs an image")
    for name in stages:
        value = seconds.get(name, 0.0)
        share, each = value / (busy or 1.0), value / num_items * 1e6
        table.add_row(name, f"{value:.2f}", f"{share:.0%}", f"{each:,.0f}")
    terminal.print(table)
    table = plain_table("in the parent", "seconds", "share")
    spent = {name: seconds.get(name, 0.0) for name in PARENT_STAGES}
    for name, value in {**spent, "other": elapsed_s - sum(spent.values())}.items():
        table.add_row(name, f"{value:.2f}", f"{value / elapsed_s:.0%}")
    terminal.print(table)
