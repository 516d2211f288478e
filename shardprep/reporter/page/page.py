"""The whole page: a report and its pictures as one HTML file.

A function for each section takes the report and, if needed, the pictures. It returns None if the
section does not apply. This module has the sections on left-out inputs, channels and provenance.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

import pyarrow as pa

from shardprep.dataset.item_table import REJECTED, SKIPPED, with_status
from shardprep.errors import counted
from shardprep.reporter.page import classes, images, summary
from shardprep.reporter.page.html import Html, block, code, joined, key, more, section, table, tag
from shardprep.reporter.page.pictures import draw_pictures
from shardprep.reporter.report_data import ReportData

_MOST_KEYS = 20
_ABSOLUTE = re.compile(r"(?:(?<![\w.])[/~]|\b[A-Za-z]:[\\/])[^:,=]*[\\/]")
"""Matches the folders of an absolute path, which describe the machine and not the dataset."""


def render(report: ReportData) -> bytes:
    """Return the page as ASCII bytes. Equal datasets and options give equal bytes."""
    pictures = draw_pictures(report)
    sections = {
        "Findings": summary.findings(report),
        "Splits": summary.splits(report),
        "Classes": classes.targets(report),
        "Boxes": classes.boxes(report),
        "Masks": classes.masks(report),
        "Gallery": images.gallery(report, pictures),
        "Copies": images.copies(report, pictures),
        "Wrong labels": images.wrong_labels(report, pictures),
        "Quality": images.quality(report, pictures),
        "Originals": images.originals(report, pictures),
        "Left out": _left_out(report),
        "Channels": _channels(report),
        "Provenance": _provenance(report),
    }
    there = {title: one for title, one in sections.items() if one is not None}
    links = [
        tag("li", tag("a", title, href=f"#{title.lower().replace(' ', '-')}")) for title in there
    ]
    body = joined(
        summary.head(report),
        tag("nav", tag("ul", *links), aria_label="Sections"),
        tag("main", *there.values()),
        tag("footer", "Made by shardprep report. This page loads nothing from a network."),
    )
    return _document(report.contents.manifest.name, body).encode("ascii", "xmlcharrefreplace")


def _document(title: str, body: Html) -> Html:
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    head = joined(
        tag("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title} · shardprep report"),
        Html(f"<style>{style}</style>"),
    )
    page = tag("html", tag("head", head), tag("body", body, Html(f"<script>{script}</script>")),
               lang="en")  # fmt: skip
    return Html(f"<!doctype html>\n{page}\n")


def _asset(name: str) -> str:
    return files("shardprep.reporter.page").joinpath(name).read_text("ascii")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _left_out(report: ReportData) -> Html:
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
        values = [f"{one}: " for one in of_status[column].cast("string").to_pylist()]
        for kind, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])):
            # A reason is the kind alone, or the kind, a colon and a detail.
            places = [i for i, one in enumerate(values) if one.startswith(f"{kind}: ")]
            parts.append(more(f"{title}, {kind}: {count:,}", _inputs(of_status, places)))
    return section("left-out", "Rejected and skipped", *parts)


def _inputs(items: pa.Table, places: Sequence[int]) -> Html:
    keys, reasons = items["key"], items["reason"]
    rows = [(key(keys[i].as_py() or ""), reasons[i].as_py() or "") for i in places[:_MOST_KEYS]]
    rest = len(places) - len(rows)
    last = [tag("p", f"and {rest:,} more, in items.parquet", class_="dim")] if rest else []
    return tag("div", table(("input", "reason"), rows, left=2), *last)


def _channels(report: ReportData) -> Html | None:
    sums = report.channels
    if sums is None:
        return None
    mean, std = sums.mean_std()
    lines = [
        "# red, green, blue of pixels in 0..1",
        f"mean = {_row(mean, 1, 4)}",
        f"std = {_row(std, 1, 4)}",
        "# in 0..255",
        f"mean = {_row(mean, 255, 2)}",
        f"std = {_row(std, 255, 2)}",
    ]
    which = f"{counted(sums.num_images, 'image')} at their stored size"
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


def _provenance(report: ReportData) -> Html:
    manifest = report.contents.manifest
    defaults = report.options.defaults
    options = [
        (name, code(_plain(value)))
        for name, value in sorted(manifest.fingerprint.options.items())
        if _plain(value) != _plain(defaults.get(name))
    ]
    inputs = sorted(manifest.fingerprint.inputs.items())
    rows = [
        ("labels", manifest.labels.found_by),
        ("seed", str(manifest.seed)),
        ("manifest SHA-256", code(manifest.sha256)),
        *((f"input {_without_folder(name)}", code(sign)) for name, sign in inputs),
        *((name, code(sign)) for name, sign in sorted(manifest.files.items())),
    ]
    versions = sorted(manifest.fingerprint.versions.items())
    features = [
        (name, f"{one.kind}, {one.dtype}") for name, one in report.contents.schema.features.items()
    ]
    return section(
        "provenance",
        "Provenance",
        table(("", ""), rows, left=2),
        tag("h3", "Build options that are not the default"),
        table(("option", "value"), options, left=2) if options else tag("p", "none"),
        more("versions that shaped the bytes", table(("library", "version"), versions, left=2)),
        more("features", table(("feature", "kind"), features, left=2)),
    )


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _without_folder(text)


def _without_folder(text: str) -> str:
    return _ABSOLUTE.sub("…/", text)
