"""A page of a report or of the viewer, parsed and checked, and what a stranger may put on it."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import strategies as st

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

VOID = {"meta", "img", "input", "br", "link"}

MOST_BYTES = 5_000_000

HOSTILE = (
    "<script>alert(1)</script>", '"onload="x', "]]>", "--><b>", "\u202egnp.exe", "\0\x1b[31m", "🐈",
    "é" * 10_000, "&amp;", "'", "\ud800", "</title>", "javascript:alert(1)", "a\nb", "{{7*7}}",
)  # fmt: skip


class Page(HTMLParser):
    """A page as a parser of the standard library reads it; errors are assertions."""

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
        """Return the values of an attribute."""
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def checked(data: bytes) -> Page:
    """Return a page after a look at everything that must hold of any."""
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
"""Column of the item table → what a stranger may write there, and its type."""

WIDTHS = (360, 1280)

LUMINANCE = """
() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((a, b) => a + +b, 0)
"""

UNSEEN = """
() => [...document.images].filter(one => one.complete && one.naturalWidth === 0).length
"""

CONTROLS = "a[href], summary, button, [tabindex='0']"


def serious(page: Tab) -> list[tuple[str, str]]:
    """Return what axe finds serious in a page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [
        (one["id"], one["nodes"][0]["html"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
