"""The pages and pictures of the viewer by address: whole numbers choose, and are compared first."""

from __future__ import annotations

import hashlib
import html
import re
import textwrap
import threading
from collections.abc import Callable
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING

from shardprep.errors import ShardprepError, printable, shown
from shardprep.reporter.record_columns import STATUSES
from shardprep.reporter.viewer.background_findings import Knowledge
from shardprep.reporter.viewer.items import Filter, Items
from shardprep.reporter.viewer.layout import ICON, SCRIPT, STYLES
from shardprep.reporter.viewer.list_page import PAGE_ITEMS, findings_page, list_page
from shardprep.reporter.viewer.server import Answer, Request, plain

if TYPE_CHECKING:
    from shardprep.reporter.page.html import Html
    from shardprep.reporter.record_columns import Contents
    from shardprep.reporter.viewer.pictures import RecordPictures

Originals = Callable[[str, str], bytes]
"""Function of the key and the kind of rejection of an item ("" for none) that gives the bytes of
its original; ShardprepError or OSError where it is not there."""
_NUMBERED = re.compile(r"/(item|tile|image|mask|original)/([0-9]{1,12})", re.ASCII)
_PAGE = re.compile("[1-9][0-9]{0,8}", re.ASCII)
_TYPES = {
    rb"\xff\xd8\xff": "image/jpeg",
    rb"\x89PNG\r\n\x1a\n": "image/png",
    rb"GIF8[79]a": "image/gif",
    rb"RIFF.{4}WEBP": "image/webp",
    rb"BM": "image/bmp",
    rb".{4}ftypavi[fs]": "image/avif",
}
"""First bytes of an original → its type: images that browsers show, and nothing else."""
_ASSETS = {
    **dict.fromkeys(STYLES, "text/css; charset=utf-8"),
    SCRIPT: "text/javascript; charset=utf-8",
    ICON: "image/svg+xml",
}
_LINE, _MOST_LINES = 26, 9
"""Characters and lines of a tile of words."""


class Site:
    """Answers to requests about one dataset; many threads may ask."""

    def __init__(self, contents: Contents, originals: Originals | None = None) -> None:
        """Read nothing yet; findings are looked for once the first page is made."""
        self.items = Items(contents, Knowledge(contents))
        self._lock = threading.Lock()
        self._made: RecordPictures | None = None
        self._originals = originals
        self._assets = {f"/static/{name}": _asset(name) for name in _ASSETS}

    def close(self) -> None:
        """Let the threads end; the one that looks for findings stops at its next column."""
        self.items.contents.items.close()
        self.items.knowledge.close()
        if self._made is not None:
            self._made.close()

    @property
    def _pictures(self) -> RecordPictures:
        """The pictures; what makes them is imported for the first, not for the first page."""
        with self._lock:
            if self._made is None:
                from shardprep.reporter.viewer.pictures import RecordPictures

                self._made = RecordPictures(self.items.contents)
            return self._made

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request: a page, a picture, or that there is none."""
        if request.path in self._assets:
            return _unless_there(request, self._assets[request.path])
        try:
            return self._made_of(request)
        except ShardprepError as error:
            return _page_of_error(error)

    def _made_of(self, request: Request) -> Answer:
        if Filter.of(request.query).fits(self.items.contents.schema):
            if request.path == "/":
                return self._list(request)
            if request.path == "/findings":
                return _page(findings_page(self.items))
            numbered = _NUMBERED.fullmatch(request.path)
            if numbered and int(numbered[2]) < len(self.items):
                return self._numbered(numbered[1], int(numbered[2]), request)
        return _nothing()

    def _list(self, request: Request) -> Answer:
        wanted, page = Filter.of(request.query), request.query.get("page", "1")
        if not _PAGE.fullmatch(page):
            return _nothing()
        first = (int(page) - 1) * PAGE_ITEMS
        numbers = self.items.selected(wanted)[first : first + PAGE_ITEMS]
        if self.items.contents.dataset.is_remote:  # where each tile would be waited for
            self._pictures.foresee(numbers[numbers < self.items.num_records].tolist())
        has_originals = self._originals is not None
        answer = _page(list_page(self.items, wanted, int(page), has_originals=has_originals))
        self.items.knowledge.begin()
        return answer

    def _numbered(self, what: str, number: int, request: Request) -> Answer:
        if what == "item":
            from shardprep.reporter.viewer.item_page import item_page

            has_originals = self._originals is not None
            wanted = Filter.of(request.query)
            page = item_page(
                self.items, self._pictures, number, wanted, has_originals=has_originals
            )
            return _page(page)
        if what == "original":
            return self._original(number)
        if number >= self.items.num_records:
            return plain(HTTPStatus.NOT_FOUND, "it was not written, so nothing is stored")
        etag = f'"{self._pictures.etag(number)}-{what}"'
        if request.etag == etag:
            return _not_modified(etag)
        try:
            data, kind = self._picture(what, number)
        except ShardprepError as error:
            return _tile_of_words(error.what)
        return Answer(data, kind, headers={"ETag": etag})

    def _picture(self, what: str, number: int) -> tuple[bytes, str]:
        if what == "tile":
            return self._pictures.tile(number), "image/webp"
        if what == "image":
            return self._pictures.image(number)
        drawing = self._pictures.record(number).drawing
        if drawing is None or not drawing.overlay.mask:
            raise ShardprepError("", "there is no mask")
        return drawing.overlay.mask, "image/webp"

    def _original(self, number: int) -> Answer:
        if self._originals is None:
            return plain(HTTPStatus.NOT_FOUND, "originals are shown with --source")
        row = self.items.row(number)
        kind = row["kind"] if STATUSES[self.items.status[number]] == "rejected" else ""
        try:
            data = self._originals(row["key"] or "", kind or "")
        except (ShardprepError, OSError) as error:
            return _tile_of_words(getattr(error, "what", "") or str(error))
        for start, type_ in _TYPES.items():
            if re.match(start, data, re.DOTALL):
                return Answer(data, type_)
        return _tile_of_words(f"{len(data):,} bytes that browsers do not show as an image")


def _nothing() -> Answer:
    return plain(HTTPStatus.NOT_FOUND, "there is no such page")


def _page(page: Html) -> Answer:
    return Answer(page.encode("ascii", "xmlcharrefreplace"))


def _page_of_error(error: ShardprepError) -> Answer:
    return plain(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))


def _tile_of_words(said: str) -> Answer:
    """Return a picture that says why there is none: one bad image is one bad tile."""
    lines = textwrap.wrap(shown(printable(said), _LINE * _MOST_LINES), _LINE)[:_MOST_LINES]
    spans = "".join(
        f'<text x="8" y="{22 + 16 * i}">{html.escape(line)}</text>' for i, line in enumerate(lines)
    )
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 176 176" width="176" height="176" '
        'font-family="monospace" font-size="10.5" fill="#8c1d18"><rect width="176" height="176" '
        f'fill="#fbe9e7"/>{spans}</svg>'
    )
    data = picture.encode("ascii", "xmlcharrefreplace")
    return Answer(data, "image/svg+xml", headers={"Cache-Control": "private, no-store"})


def _asset(name: str) -> Answer:
    room = "page" if name == "page.css" else "viewer"
    data = files(f"shardprep.reporter.{room}").joinpath(name).read_bytes()
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Answer(data, _ASSETS[name], headers={"ETag": etag})


def _unless_there(request: Request, answer: Answer) -> Answer:
    """Return an answer, or that the browser has it already."""
    etag = answer.headers["ETag"]
    return _not_modified(etag) if request.etag == etag else answer


def _not_modified(etag: str) -> Answer:
    return Answer(b"", status=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag})
