"""The viewer of a dataset: start it, stop it, and answer its requests."""

from __future__ import annotations

import hashlib
import html
import re
import textwrap
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self

from shardprep.dataset.card import Card, Link
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.errors import OptionName, RecipeError, ShardprepError, printable, shown
from shardprep.reporter.page.html import Html
from shardprep.reporter.record_columns import Contents, read_contents
from shardprep.reporter.viewer.item_list import Filter, ItemList
from shardprep.reporter.viewer.list_page import (
    ICON,
    PAGE_ITEMS,
    SCRIPT,
    STYLES,
    findings_page,
    list_page,
)
from shardprep.reporter.viewer.server import Answer, PageRequest, Server, plain

if TYPE_CHECKING:
    from shardprep.reporter.viewer.pictures import RecordPictures

_NUMBERED = re.compile(r"/(item|tile|image|mask)/([0-9]{1,12})", re.ASCII)
_PAGE = re.compile("[1-9][0-9]{0,8}", re.ASCII)
_ASSETS = {
    **dict.fromkeys(STYLES, "text/css; charset=utf-8"),
    SCRIPT: "text/javascript; charset=utf-8",
    ICON: "image/svg+xml",
}
_LINE, _MOST_LINES = 26, 9
"""Maximum line length and number of lines of a text tile."""
_END_S = 0.5


@dataclass(frozen=True, repr=False)
class Viewer(Card):
    """A server of a dataset for browsers on this machine, until `close` or the end of `with`."""

    url: str
    """Address to open. It contains a secret token."""
    name: str
    version: str
    num_records: int
    num_items: int
    """Number of records, rejected and skipped inputs."""
    ending: ExitStack = field(compare=False)

    def facts(self) -> dict[str, Any]:
        title = f"{self.name} {self.version}"
        return {"dataset": title, "items": self.num_items, "url": Link(self.url)}

    def close(self) -> None:
        """Stop the viewer within 2 s. Threads that are still reading or decoding end later."""
        self.ending.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(dataset: OpenDataset, port: int, ending: ExitStack) -> Viewer:
    """Start and return a viewer in a thread of this process; port 0 means any free port.

    The viewer runs the callbacks of `ending` when it is closed. RecipeError if the port is in use.
    """
    contents = read_contents(dataset)
    site = Site(contents)
    try:
        server = Server(port, site.answer)
    except OSError as error:
        site.close()
        what = f"cannot listen on port {port} ({(error.strerror or str(error)).lower()})"
        raise RecipeError(OptionName("port"), what, "give 0 for a free port") from error
    ending.callback(server.join, _END_S)
    ending.callback(site.close)
    ending.callback(server.close)  # an ExitStack runs the last callback first
    name = "shardprep-view"
    threading.Thread(target=server.serve_forever, args=(0.1,), name=name, daemon=True).start()
    manifest = contents.manifest
    return Viewer(
        url=server.url,
        name=manifest.name,
        version=manifest.version,
        num_records=len(contents),
        num_items=len(site.items),
        ending=ending.pop_all(),
    )


class Site:
    """Answers requests for pages and pictures of one dataset. Safe to use from many threads."""

    def __init__(self, contents: Contents) -> None:
        self.items = ItemList(contents)
        self._lock = threading.Lock()
        self._made: RecordPictures | None = None
        self._assets = {f"/static/{name}": _asset(name) for name in _ASSETS}

    def close(self) -> None:
        """Close the item table and the shards, and wait up to 0.5 s each for their threads."""
        self.items.contents.items.close()
        self.items.findings.close()
        if self._made is not None:
            self._made.close()

    @property
    def _pictures(self) -> RecordPictures:
        """The pictures. Their module is imported at first use, so that the first page is fast."""
        with self._lock:
            if self._made is None:
                from shardprep.reporter.viewer.pictures import RecordPictures

                self._made = RecordPictures(self.items.contents)
            return self._made

    def answer(self, request: PageRequest) -> Answer:
        if request.path in self._assets:
            asset = self._assets[request.path]
            etag = asset.headers["ETag"]
            return _not_modified(etag) if request.etag == etag else asset
        try:
            return self._made_of(request)
        except ShardprepError as error:
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))

    def _made_of(self, request: PageRequest) -> Answer:
        if Filter.of(request.query).fits(self.items.contents.schema):
            if request.path == "/":
                return self._list(request)
            if request.path == "/findings":
                return _page(findings_page(self.items))
            numbered = _NUMBERED.fullmatch(request.path)
            if numbered and int(numbered[2]) < len(self.items):
                return self._numbered(numbered[1], int(numbered[2]), request)
        return _nothing()

    def _list(self, request: PageRequest) -> Answer:
        wanted, page = Filter.of(request.query), request.query.get("page", "1")
        if not _PAGE.fullmatch(page):
            return _nothing()
        first = (int(page) - 1) * PAGE_ITEMS
        numbers = self.items.selected(wanted)[first : first + PAGE_ITEMS]
        if self.items.contents.dataset.is_remote:  # read all tiles of the page together
            self._pictures.request_tiles(numbers[numbers < self.items.num_records].tolist())
        answer = _page(list_page(self.items, wanted, int(page)))
        self.items.findings.begin()
        return answer

    def _numbered(self, what: str, number: int, request: PageRequest) -> Answer:
        if what == "item":
            from shardprep.reporter.viewer.item_page import item_page

            return _page(item_page(self.items, self._pictures, number, Filter.of(request.query)))
        if number >= self.items.num_records:
            message = "this input was not written, so the dataset has no image of it"
            return plain(HTTPStatus.NOT_FOUND, message)
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
        overlay = self._pictures.record(number).overlay
        if overlay is None or not overlay.mask:
            raise ShardprepError("", "this record has no mask")
        return overlay.mask, "image/webp"


def _nothing() -> Answer:
    return plain(HTTPStatus.NOT_FOUND, "there is no such page")


def _page(page: Html) -> Answer:
    return Answer(page.encode("ascii", "xmlcharrefreplace"))


def _tile_of_words(message: str) -> Answer:
    lines = textwrap.wrap(shown(printable(message), _LINE * _MOST_LINES), _LINE)[:_MOST_LINES]
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


def _not_modified(etag: str) -> Answer:
    return Answer(b"", status=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag})
