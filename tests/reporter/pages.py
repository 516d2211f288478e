"""A page of a report or of the viewer, parsed and checked, and what a stranger may put on it."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from shardprep.dataset.open_dataset import open_dataset
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.reporter.report import Report, make_report
from shardprep.reporter.report_data import ReportOptions
from tests.support.builders import Quiet, build, write, zip_bytes

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

VOID = {"meta", "img", "input", "br", "link"}

MOST_BYTES = 5_000_000

HOSTILE = (
    "<script>alert(1)</script>", '"onload="x', "]]>", "--><b>", "\u202egnp.exe", "\0\x1b[31m", "🐈",
    "é" * 10_000, "&amp;", "'", "\ud800", "</title>", "javascript:alert(1)", "a\nb", "{{7*7}}",
)  # fmt: skip


class Page(HTMLParser):
    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.blocks: dict[str, str] = {}
        self.text = ""
        self.feed(data.decode("ascii"))
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.blocks[self.open[-1]] = data
        else:
            self.text += data

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def checked(data: bytes) -> Page:
    """Return a page after the checks that apply to every page."""
    page = Page(data)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {"lang": "en"} in [attrs for tag, attrs in page.tags if tag == "html"]
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "script", "header", "main", "footer",
        "nav", "section", "h1", "h2", "h3", "p", "small", "span", "ul", "li", "a", "bdi",
        "code", "pre", "div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary",
        "dl", "dt", "dd", "figure", "figcaption", "img", "svg", "path", "rect", "line", "g",
        "text", "label", "input",
    }  # fmt: skip
    for tag, attrs in page.tags:
        assert not {name for name in attrs if name.startswith("on") or name == "style"}, tag
        for name in ("src", "href"):
            target = attrs.get(name)
            is_local = target is None or re.fullmatch(r"#[a-z-]+", target) is not None
            assert is_local or (target or "").startswith("data:image/webp;base64,"), target
        if tag == "img":
            assert attrs["alt"]
        if tag == "a":
            assert (attrs["href"] or "").removeprefix("#") in ids
    policy = next(attrs["content"] or "" for tag, attrs in page.tags if "http-equiv" in attrs)
    for tag, block in page.blocks.items():
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert "unsafe" not in policy
    assert not re.search(r"url\(|@import|https?:", page.blocks["style"] + page.blocks["script"])
    assert len(page.blocks["script"]) <= 10_000
    assert len(data) <= MOST_BYTES
    return page


def packed(folder: Path, members: dict[str, bytes], **options: Any) -> Path:
    return build(write(folder / "any.zip", zip_bytes(members)), folder / "out", **options).path


def reported(path: Path, split: AnySplit | None = None, **options: Any) -> Report:
    return make_report(open_dataset(path), ReportOptions(**options), Quiet(), split)


def page_of(path: Path, **options: Any) -> Page:
    return checked(reported(path, **options).html().encode())


def page_file(path: Path, folder: Path) -> Path:
    return write(folder / "report.html", reported(path).html().encode())


_odd_ints = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, -1]))

_odd_texts = st.one_of(st.none(), st.sampled_from([one for one in HOSTILE if one != "\ud800"]))

ODD = {
    "key": (_odd_texts, pa.string()),
    "reason": (_odd_texts, pa.string()),
    "original_sha256": (_odd_texts, pa.string()),
    "original_format": (_odd_texts, pa.dictionary(pa.int32(), pa.string())),
    "label": (_odd_ints, pa.int64()),
    "original_width": (_odd_ints, pa.int64()),
    "original_height": (_odd_ints, pa.int64()),
    "original_bytes": (_odd_ints, pa.int64()),
}
"""Column of the item table → hostile values and type."""


def strange(path: Path, copy: Path, column: str, data: st.DataObject) -> Path:
    """Copy a dataset and change a column of its item table, except status "written"."""
    shutil.copytree(path, copy)
    table = pq.read_table(copy / "items.parquet")
    words = pa.dictionary(pa.int32(), pa.string())
    is_open = (st.sampled_from(["rejected", None, "", *HOSTILE[:3]]), words)
    values, kind = ODD.get(column, is_open)
    made = data.draw(st.lists(values, min_size=len(table), max_size=len(table)))
    if column == "status":
        known = table["status"].to_pylist()
        made = [old if old == "written" else new for old, new in zip(known, made, strict=True)]
    place = table.schema.get_field_index(column)
    table = table.set_column(place, table.schema.field(place), pa.array(made, kind))
    pq.write_table(table, copy / "items.parquet")
    return copy


WIDTHS = (360, 1280)

LUMINANCE = """
() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)
"""

UNSEEN = """
() => [...document.images].filter(one => one.complete && one.naturalWidth === 0).length
"""

CONTROLS = "a[href], summary, button, [tabindex='0']"


@contextmanager
def opened(
    browser: Browser, address: str, width: int = 1280, cookie: str = "", **options: Any
) -> Iterator[Tab]:
    """Open a page; what the browser complains of, or asks of others, is a failure.

    A page in a file has no network, and asks for nothing else.
    """
    is_file = address.startswith("file:")
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        offline=is_file,
        base_url=None if is_file else address,
        **options,
    )
    if cookie:
        name, _, value = cookie.partition("=")
        context.add_cookies([{"name": name, "value": value, "url": address}])
    page = context.new_page()
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if one.url[:5] != "data:" else None)
    page.on("console", lambda one: said.append(one.text))
    page.on("pageerror", lambda one: said.append(str(one)))
    page.goto(address)
    try:
        yield page
        if is_file:
            assert asked == [address]
        assert {urlsplit(one).netloc for one in asked} == {urlsplit(address).netloc}
        assert said == []
    finally:
        context.close()
