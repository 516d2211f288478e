"""The whole page: a report and its pictures as one HTML file.

Each section is a function of the report, and of the pictures if needed. It returns markup, or None
if the section does not apply.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from shardprep.reporter.page import boxes, classes, images, provenance, summary
from shardprep.reporter.page.html import Html, joined, tag
from shardprep.reporter.pixels.page_pictures import draw_pictures

if TYPE_CHECKING:
    from shardprep.reporter.report_data import ReportData


def render(report: ReportData) -> bytes:
    """Return the page in ASCII. Equal datasets and options give equal bytes."""
    pictures = draw_pictures(report)
    sections = {
        "Findings": summary.findings(report),
        "Splits": summary.splits(report),
        "Classes": classes.targets(report),
        "Boxes": boxes.boxes(report),
        "Masks": boxes.masks(report),
        "Gallery": images.gallery(report, pictures),
        "Copies": images.copies(report, pictures),
        "Quality": images.quality(report, pictures),
        "Originals": images.originals(report, pictures),
        "Left out": provenance.left_out(report),
        "Channels": provenance.channels(report),
        "Provenance": provenance.provenance(report),
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
    """Return the source expression of an inline block for the Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
