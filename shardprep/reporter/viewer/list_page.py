"""The frame of all pages of the viewer, the page of the item list, and the page of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shardprep.dataset.schema import BOX_LABEL
from shardprep.errors import counted
from shardprep.reporter.page.html import Html, code, joined, tag
from shardprep.reporter.page.summary import REST, dataset_line, lines_of
from shardprep.reporter.record_columns import STATUSES, Contents
from shardprep.reporter.viewer.item_list import NO_CLASS, Filter, ItemList

STYLES, SCRIPT, ICON = ("page.css", "view.css"), "view.js", "icon.svg"
"""Names of the files below /static/ that pages load."""
_PAGES = {"items": "/", "findings": "/findings"}
PAGE_ITEMS = 60


def document(contents: Contents, current: str, body: Html) -> Html:
    """Return a whole page. `current` is the name of the page in `_PAGES`, or another title."""
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


def _facts_line(contents: Contents) -> Html:
    return tag("div", tag("p", dataset_line(contents), class_="sum"), class_="facts")


def list_page(items: ItemList, wanted: Filter, page: int) -> Html:
    """Return page `page` (from 1, at most the last) of the items that match a filter."""
    selected = items.selected(wanted)
    num_pages = max(1, -(-len(selected) // PAGE_ITEMS))
    page = min(page, num_pages)
    first = (page - 1) * PAGE_ITEMS
    numbers = selected[first : first + PAGE_ITEMS].tolist()
    of_all = f" of {len(items):,}" if wanted.conditions else ""
    text = f"{len(selected):,}{of_all} items" if of_all else counted(len(selected), "item")
    if num_out := int((selected >= items.num_records).sum()):
        text += f", {num_out:,} of them not in the dataset"
    if len(selected) > PAGE_ITEMS:
        text += f", {first + 1:,} to {first + len(numbers):,}"
    tiles = [_tile(items, number, wanted) for number in numbers]
    shown = tag("ul", *tiles, class_="tiles") if tiles else tag("p", "No item fits.", class_="good")
    pagers = [_pager(wanted, page, num_pages, where) for where in ("", ", at the end")]
    before, behind = pagers if num_pages > 1 else ("", "")
    status = tag("p", text, class_="dim", role="status")
    main = tag("main", _form(items, wanted), status, before, shown, behind)
    return document(items.contents, "items", joined(_facts_line(items.contents), main))


def tile(items: ItemList, number: int, address: str, caption: str | Html, *, picture: str) -> Html:
    """Return a linked tile: the image at `picture`, or for "" the reason why it was left out."""
    name = items.key(number)
    if picture:
        shown = tag("img", src=picture, alt=name, width=160, height=160, loading="lazy")
    else:
        shown = tag("span", items.reason(number), class_="blank")
    return tag("li", tag("a", shown, tag("span", caption, class_="cap"), href=address))


def _tile(items: ItemList, number: int, wanted: Filter) -> Html:
    own = tag("bdi", items.key(number).rpartition("/")[2])
    picture, split = "", int(items.split[number])
    words = [items.contents.splits[split]] if split >= 0 and not wanted.split else []
    if number < items.num_records:
        picture = f"/tile/{number}"
        words += filter(None, [items.contents.target_text(number), items.objects_text(number)])
    else:
        words.append(STATUSES[items.status[number]])
    rest = tag("span", " · ".join(words), class_=None if number < items.num_records else "out")
    address = wanted.address(f"/item/{number}")
    return tile(items, number, address, joined(own, tag("br"), rest), picture=picture)


def _form(items: ItemList, wanted: Filter) -> Html:
    schema, counts = items.contents.schema, items.counts(wanted)
    names = {str(i): name for i, name in enumerate(schema.labels)}
    objects = {str(i): name for i, name in enumerate(schema.annotation_labels)}
    fields = [
        _select(
            "split", "Split", wanted.split, counts["split"], dict.fromkeys(items.contents.splits)
        ),
        _select("status", "Status", wanted.status, counts["status"], dict.fromkeys(STATUSES)),
    ]
    if names:
        fields.append(_select("label", "Class", wanted.label, counts["label"],
                              {**names, NO_CLASS: "without a class"}))  # fmt: skip
    if objects:
        title = "Objects" if BOX_LABEL in schema.features else "In the mask"
        fields.append(_select("object", title, wanted.object, counts["object"], objects))
    fields += [
        _findings(items, wanted),
        tag("label", "Key", tag("input", name="key", type="search", value=wanted.key or None,
                                placeholder="part of it")),
        tag("button", "Show", type="submit"),
    ]  # fmt: skip
    if wanted.conditions:
        fields.append(tag("a", "All items", href="/"))
    return tag("form", *fields, action="/", method="get", class_="filter", role="search")


def _select(
    name: str, title: str, chosen: str, counts: Counter[str], values: Mapping[str, str | None]
) -> Html:
    options = [
        _option(value, f"{words or value} ({counts[value]:,})", chosen)
        for value, words in values.items()
        if counts[value] or value == chosen
    ]
    return tag("label", title, tag("select", tag("option", "any", value=""), *options, name=name))


def _option(value: str, words: str, chosen: str) -> Html:
    return tag("option", words, value=value, selected="" if value == chosen else None)


def _findings(items: ItemList, wanted: Filter) -> Html:
    options = [tag("option", "any", value="")]
    if items.findings.is_made or wanted.finding:
        known = items.findings.get()
        options += [
            _option(one.name, f"{one.name} ({len(known.numbers[one.name]):,})", wanted.finding)
            for one in known.findings
            if len(known.numbers[one.name])
        ]
    else:
        options.append(tag("option", "being looked for …", value="", disabled=""))
    return tag("label", "Finding", tag("select", *options, name="finding"))


def list_address(wanted: Filter, page: int) -> str:
    """Return the address of page `page` of the items that match a filter."""
    return wanted.address("/", **({"page": page} if page > 1 else {}))


def step(words: str, address: str | None, rel: str | None = None) -> Html:
    """Return a link with the text `words`, or only the text if there is no address."""
    if address is None:
        return tag("span", words, class_="dim", aria_hidden="true")
    return tag("a", words, href=address, rel=rel)


def _pager(wanted: Filter, page: int, num_pages: int, where: str) -> Html:
    def to(other: int) -> str | None:
        is_there = 1 <= other <= num_pages and other != page
        return list_address(wanted, other) if is_there else None

    return tag(
        "nav",
        step("‹ previous", to(page - 1), "prev"),
        step("next ›", to(page + 1), "next"),
        tag("span", f"page {page:,} of {num_pages:,}"),
        step("first", to(1)),
        step("last", to(num_pages)),
        aria_label=f"Pages{where}",
        class_="pager",
    )


def findings_page(items: ItemList) -> Html:
    """Return the page of findings, most harmful first, with links to their items."""
    known, number = items.findings.get(), items.num_records
    rows = []
    for finding in known.findings:
        lines = lines_of(finding, items.contents, finding.name)
        if count := len(known.numbers[finding.name]):
            address = Filter(finding=finding.name).address("/")
            lines.append(tag("p", tag("a", f"Show {counted(count, 'item')}", href=address)))
        rows.append(tag("li", *lines, class_=finding.severity))
    looked = f"Pixels of {known.num_measured:,} of {number:,} images were looked at by a report."
    parts = [tag("p", looked, class_="dim")]
    if not known.num_measured:
        text = (
            "Near copies, and dark, light, flat, blurry and grey images are found by a report: run "
        )
        command = code("shardprep report")
        parts = [tag("p", text, command, " once, then start the viewer again.", class_="dim")]
    if any(one.flag for one in known.findings):
        parts.append(tag("p", REST, class_="dim"))
    shown = tag("ul", *rows, class_="findings")
    if known.problem:
        shown = tag("p", f"The findings cannot be computed: {known.problem}", class_="problem")
    elif not rows:
        shown = tag("p", "✔ Nothing was found.", class_="good")
    main = tag("main", tag("h2", "Findings"), *parts, shown)
    return document(items.contents, "findings", joined(_facts_line(items.contents), main))
