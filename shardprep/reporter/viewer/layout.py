"""The frame of every page of the viewer: head, name of the dataset and links to other pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.reporter.page.html import Html, joined, tag
from shardprep.reporter.page.summary import dataset_line

if TYPE_CHECKING:
    from shardprep.reporter.record_columns import Contents

STYLES, SCRIPT, ICON = ("page.css", "view.css"), "view.js", "icon.svg"
"""Names of the files that pages ask for, below /static/."""
_PAGES = {"items": "/", "findings": "/findings"}


def document(contents: Contents, current: str, body: Html) -> Html:
    """Return a whole page; `current` is the name of one of the main ones, or a title."""
    manifest = contents.manifest
    links = [
        tag("li", tag("a", name, href=path, aria_current="page" if name == current else None))
        for name, path in _PAGES.items()
    ]
    title = f"{current} · {manifest.name} {manifest.version}"
    head = joined(
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("link", rel="icon", href=f"/static/{ICON}", type="image/svg+xml"),
        *(tag("link", rel="stylesheet", href=f"/static/{one}") for one in STYLES),
        tag("script", src=f"/static/{SCRIPT}", defer=""),
    )
    name = joined(manifest.name, " ", tag("small", manifest.version))
    top = tag(
        "header",
        tag("h1", tag("a", name, href="/")),
        tag("nav", tag("ul", *links), aria_label="Pages of the dataset"),
    )
    page = tag("html", tag("head", head), tag("body", top, body), lang="en")
    return Html(f"<!doctype html>\n{page}\n")


def facts_line(contents: Contents) -> Html:
    """Return the dataset in a line."""
    return tag("div", tag("p", dataset_line(contents), class_="sum"), class_="facts")
