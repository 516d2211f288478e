"""The last sections of the page: left-out inputs, channel statistics and provenance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardprep.dataset.item_table import REJECTED, SKIPPED, with_status
from shardprep.reporter.page.html import Html, block, code, key, more, section, table, tag

if TYPE_CHECKING:
    import pyarrow as pa

    from shardprep.reporter.report_data import ReportData

_MOST_KEYS = 20
"""Maximum number of inputs to show for each reason."""
_ABSOLUTE = re.compile(r"(?:(?<![\w.])[/~]|\b[A-Za-z]:[\\/])[^:,=]*[\\/]")
"""Folders of an absolute path. They describe the machine, not the dataset."""


def left_out(report: ReportData) -> Html:
    """Return the section on inputs that are not in the dataset, by reason."""
    totals, rows = report.contents.manifest.totals, report.contents.left_out
    if report.contents.scope is not None:
        text = "A report on a split does not cover left-out inputs. Report on the whole dataset."
        return section("left-out", "Rejected and skipped", tag("p", text))
    if not totals.num_rejected and not totals.num_skipped:
        text = f"✔ All {totals.num_inputs:,} inputs were written."
        return section("left-out", "Rejected and skipped", tag("p", text, class_="good"))
    text = (
        f"{totals.num_inputs:,} inputs = {totals.num_written:,} written + "
        f"{totals.num_rejected:,} rejected + {totals.num_skipped:,} skipped"
    )
    parts = [tag("p", text)]
    for title, status, column, counts in (
        ("rejected", REJECTED, "kind", totals.rejected),
        ("skipped", SKIPPED, "reason", totals.skipped),
    ):
        of_status = with_status(rows, status)
        kinds = of_status[column].cast("string").to_pylist()
        for kind, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            places = [i for i, one in enumerate(kinds) if one is not None and _is(one, kind)]
            parts.append(more(f"{title}, {kind}: {count:,}", _inputs(of_status, places)))
    return section("left-out", "Rejected and skipped", *parts)


def _is(value: str, kind: str) -> bool:
    """Return whether a reason is of a kind: the kind itself, or the kind with a detail."""
    return value == kind or value.startswith(f"{kind}: ")


def _inputs(table_: pa.Table, places: list[int]) -> Html:
    keys, reasons = table_["key"], table_["reason"]
    rows: list[tuple[str | int, ...]] = [
        (key(keys[i].as_py() or ""), reasons[i].as_py() or "") for i in places[:_MOST_KEYS]
    ]
    rest = len(places) - len(rows)
    last = [tag("p", f"and {rest:,} more, in items.parquet", class_="dim")] if rest else []
    return tag("div", table(("input", "reason"), rows, left=2), *last)


def channels(report: ReportData) -> Html | None:
    """Return the section on channel mean and standard deviation, ready to copy."""
    if report.measured is None or not report.measured.channels.num_pixels:
        return None
    sums = report.measured.channels
    mean, std = sums.mean_std()
    lines = [
        "# red, green, blue of pixels in 0..1",
        f"mean = {_row(mean, 1, 4)}",
        f"std = {_row(std, 1, 4)}",
        "# in 0..255",
        f"mean = {_row(mean, 255, 2)}",
        f"std = {_row(std, 255, 2)}",
    ]
    which = f"{sums.num_images:,} images at their stored size"
    if sums.num_images < len(report.contents):
        which = f"a sample of {which}, drawn by seed {report.options.seed}"
    return section(
        "channels",
        "Mean and deviation of channels",
        tag("p", f"Over every pixel of {which}, of all splits.", class_="dim"),
        block("\n".join(lines)),
    )


def _row(values: Iterable[float], white: int, digits: int) -> str:
    return f"({', '.join(f'{one * white:.{digits}f}' for one in values)})"


def provenance(report: ReportData) -> Html:
    """Return the section on the build: label rule, options, versions and hashes."""
    manifest = report.contents.manifest
    defaults = report.options.defaults
    options = [
        (name, code(plain(value)))
        for name, value in sorted(manifest.fingerprint.options.items())
        if plain(value) != plain(defaults.get(name))
    ]
    inputs = sorted(manifest.fingerprint.inputs.items())
    rows: list[tuple[str | int, ...]] = [
        ("labels", manifest.labels.found_by),
        ("seed", str(manifest.seed)),
        ("manifest SHA-256", code(manifest.sha256)),
        *((f"input {_without_folder(name)}", code(sign)) for name, sign in inputs),
        *((name, code(sign)) for name, sign in sorted(manifest.files.items())),
    ]
    versions = sorted(manifest.fingerprint.versions.items())
    return section(
        "provenance",
        "Provenance",
        table(("", ""), rows, left=2),
        tag("h3", "Build options that are not the default"),
        table(("option", "value"), [*options], left=2) if options else tag("p", "none"),
        more("versions that shaped the bytes", table(("library", "version"), [*versions], left=2)),
        more("features", table(("feature", "kind"), _features(report), left=2)),
    )


def _features(report: ReportData) -> list[tuple[str | int, ...]]:
    return [
        (name, f"{one.kind}, {one.dtype}") for name, one in report.contents.schema.features.items()
    ]


def plain(value: object) -> str:
    """Return the value of an option as text, without folders of the build machine."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _without_folder(text)


def _without_folder(text: str) -> str:
    return _ABSOLUTE.sub("…/", text)
