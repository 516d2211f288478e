"""The first sections of the page: title, findings and splits."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from shardprep.dataset.leak_check import ratios_like
from shardprep.dataset.schema import ALL_POINTS, BOX, MASK
from shardprep.errors import counted
from shardprep.reporter.findings.finding import (
    MEANINGS,
    OF_ANNOTATIONS,
    OF_BOXES,
    OF_MASKS,
    OF_POINTS,
    Finding,
    excluding,
)
from shardprep.reporter.page import charts
from shardprep.reporter.page.html import (
    Html,
    capitalized,
    code,
    joined,
    key,
    more,
    section,
    table,
    tag,
)
from shardprep.storage.space import megabytes

if TYPE_CHECKING:
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.report_data import ReportData

_MOST_KEYS = 200
_MOST_SHARDS = 200
_RATIOS = re.compile(r"\w+=[\d.]")
"""Matches the beginning of a `--split` of ratios, such as "train=0.8"."""
SIGNS = {"serious": "✖ serious", "warning": "▲ warning", "note": "● note"}
REST = (
    "In a command, … means the dataset and the options of this report, or the source and "
    "the options that the dataset was built with."
)
SECTION_OF = {
    "leaks": "copies", "near-leaks": "copies", "scene-leaks": "copies", "same-scene": "copies",
    "label-conflicts": "copies", "duplicates": "copies", "near-duplicates": "copies",
    "missing-classes": "classes",
    "unlabelled": "classes", "imbalance": "classes", "rejected": "left-out",
    "not-used": "left-out", "dark": "quality", "light": "quality", "flat": "quality",
    "blurry": "quality", "grey": "quality", "odd-aspect": "originals", "enlarged": "originals",
    "wrong-labels": "wrong-labels",
    **dict.fromkeys(OF_BOXES, "boxes"), **dict.fromkeys(OF_MASKS, "masks"),
}  # fmt: skip
"""Kind of finding → anchor of the section that shows it."""


def head(report: ReportData) -> Html:
    """Return the page header: title and facts."""
    manifest, scope = report.contents.manifest, report.contents.scope
    return tag(
        "header",
        tag("h1", manifest.name, " ", tag("small", manifest.version)),
        tag("p", scope.title, class_="sum") if scope is not None else "",
        tag("p", dataset_line(report.contents), class_="sum"),
        tag("p", "manifest SHA-256 ", code(manifest.sha256), class_="dim"),
    )


def dataset_line(contents: Contents) -> str:
    """Return a one-line summary of a dataset: images, splits, image format, size and shards."""
    manifest, totals = contents.manifest, contents.manifest.totals
    size = contents.schema.image_size
    encoding = {"any": "JPEG or PNG", "jpeg": "JPEG", "png": "PNG", "raw": "raw uint8"}
    shape = f"{size[1]} × {size[0]}" if size else "original sizes"
    form = f"{shape}, {encoding.get(contents.schema.image.encoding or '', 'images')}"
    form += ", stacks" if contents.schema.is_stack else ""
    return (
        f"{counted(totals.num_written, 'image')} written, {totals.num_rejected:,} rejected, "
        f"{totals.num_skipped:,} skipped · {counted(len(manifest.splits), 'split')} · {form} · "
        f"{megabytes(totals.num_bytes)} in {counted(len(manifest.shards), 'shard')}"
    )


def findings(report: ReportData) -> Html:
    """Return the section with the ranked findings, and the kinds that were not found."""
    items = [_finding(one, report.contents) for one in report.findings]
    names = {one.name for one in report.findings}
    schema = report.contents.schema
    cannot = {
        *(OF_ANNOTATIONS if not schema.annotations else ()),
        *(OF_BOXES if BOX not in schema.features else ()),
        *(OF_MASKS if MASK not in schema.features else ()),
        *(() if report.options.predicted else ("wrong-labels",)),
        *(OF_POINTS if not {*ALL_POINTS} & schema.features.keys() else ()),
    }
    others = [meaning for name, meaning in MEANINGS.items() if name not in names | cannot]
    counts = Counter(one.severity for one in report.findings)
    summary = (
        f"{counts['serious']:,} serious, {counted(counts['warning'], 'warning')}, "
        f"{counted(counts['note'], 'note')}"
    )
    if not counts["serious"] and not counts["warning"]:
        items = [tag("li", tag("p", "✔ Nothing serious and no warning."), class_="note"), *items]
    return section(
        "findings",
        "Findings",
        tag("p", f"{summary}. {_looked_at(report)}", class_="dim"),
        tag("p", REST, class_="dim") if any(one.flag for one in report.findings) else "",
        tag("ul", *items, class_="findings"),
        more("looked for and not found", tag("ul", *(tag("li", one) for one in others))),
    )


def _looked_at(report: ReportData) -> str:
    number = len(report.contents)
    if report.measured is None:
        return (
            f"Pixels were not measured, so near copies, damaged records, and dark, light, flat, "
            f"blurry and grey images are unknown. All {number:,} records were compared by the "
            "dataset's documents."
        )
    looked, which = report.num_measured, f"all {number:,} images"
    if looked < number:
        which = f"a sample of {looked:,} of {number:,} images (seed {report.options.seed})"
    return (
        f"Pixels of {which} were looked at. Near copies are found in any size and encoding, also "
        "if they are mirrored, turned by 90°, or show at least 70% of the picture."
    )


def _finding(finding: Finding, contents: Contents) -> Html:
    share = finding.num_found / max(finding.num_looked_at, 1)
    of = f"{share:.1%} of {finding.num_looked_at:,}" if finding.num_looked_at else ""
    anchor = SECTION_OF.get(finding.name)
    name = tag("a", finding.name, href=f"#{anchor}") if anchor else tag("span", finding.name)
    lines = lines_of(finding, contents, joined(name, " ", tag("span", of, class_="dim")))
    if 0 < len(finding.keys) <= _MOST_KEYS:
        keys = tag("ul", *(tag("li", key(each)) for each in finding.keys), class_="keys")
        lines.append(more(f"keys ({len(finding.keys):,})", keys))
    elif finding.keys and finding.flag != excluding(finding.name):
        lines.append(tag("p", "All keys: ", _list_command(finding), class_="dim"))
    return tag("li", *lines, class_=finding.severity, id=f"finding-{finding.name}")


def lines_of(finding: Finding, contents: Contents, name: str) -> list[Html]:
    """Return paragraphs on a finding: severity and name, sentence, and commands to resolve it."""
    badge = tag("span", SIGNS[finding.severity], class_="badge")
    what = tag("p", f"{capitalized(finding.what)}.")
    return [tag("p", badge, " · ", name), what, *_remedy(finding, contents)]


def _remedy(finding: Finding, contents: Contents) -> list[Html]:
    if not finding.flag:
        return []
    if not finding.num_dropped:
        return [tag("p", code(f"shardprep build … {finding.flag}"), " shows them.", class_="dim")]
    is_listed = finding.flag == excluding(finding.name)
    first = joined(_list_command(finding), " and ") if is_listed else ""
    major, minor, patch = map(int, contents.manifest.version.split("."))
    build = code(f"shardprep build … {finding.flag} --version {major}.{minor}.{patch + 1}")
    shares = [f"{counted(count, 'image')} of {name}" for name, count in finding.dropped.items()]
    options = contents.manifest.fingerprint.options
    has_ratios = _RATIOS.match(f"{options.get('split')}")
    anew = ", and the ratios divide the others anew" if has_ratios else ""
    would = f" leaves out {' and '.join(shares)}{anew}."
    if finding.name == "near-leaks":
        splits = contents.manifest.splits.items()
        ratios = ratios_like({name: split.num_records for name, split in splits})
        would += f" To keep them in one split instead: --split {ratios} --group near."
    if is_listed and options.get("exclude_list"):
        would += " It replaces the list that this dataset was built with: add that list's lines."
    return [tag("p", first, build, would, class_="dim")]


def _list_command(one: Finding) -> Html:
    return code(f"shardprep report … --list {one.name} > {one.name}.csv")


def splits(report: ReportData) -> Html:
    """Return the section on splits and their shards."""
    manifest = report.contents.manifest
    counts = {name: entry.num_records for name, entry in manifest.splits.items()}
    names = list(counts)
    total, has_target = sum(counts.values()), report.contents.schema.has_target
    rows = []
    for name, entry in manifest.splits.items():
        numbers = [shard.num_records for shard in entry.shards]
        low, high = min(numbers), max(numbers)
        even = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        share = f"{entry.num_records / max(total, 1):.1%}"
        size, labelled = megabytes(entry.num_bytes), entry.num_records - entry.num_unlabelled
        targets = (labelled,) if has_target else ()
        rows.append((name, entry.num_records, share, *targets, len(entry.shards), size, even))
    targets_title = ("with a target",) if has_target else ()
    titles = ("split", "records", "share", *targets_title, "shards", "size", "records a shard")
    shards = [
        (shard.name, shard.num_records, shard.num_bytes, shard.sha256[:16])
        for shard in manifest.shards.values()
    ]
    shown = f"the first {_MOST_SHARDS:,} of " if len(shards) > _MOST_SHARDS else ""
    text = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return section(
        "splits",
        "Splits and shards",
        charts.stacked_bar(counts, total, names, f"Records by split: {text}", 18),
        charts.legend(names),
        table(titles, rows),
        more(
            f"{shown}{counted(len(shards), 'shard')}",
            table(("shard", "records", "bytes", "SHA-256"), shards[:_MOST_SHARDS]),
        ),
    )
