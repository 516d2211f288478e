"""The pages with many items: sixty tiles and the filter above them, and the findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.dataset.schema import BOX_LABEL
from shardprep.reporter.page.html import Html, code, joined, tag
from shardprep.reporter.page.summary import REST, SIGNS, remedy
from shardprep.reporter.record_columns import STATUSES
from shardprep.reporter.viewer.items import NO_CLASS, Filter
from shardprep.reporter.viewer.layout import document, facts_line

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping

    from shardprep.reporter.findings.finding import Finding
    from shardprep.reporter.viewer.items import Items

PAGE_ITEMS = 60
"""Tiles of a page."""


def list_page(items: Items, wanted: Filter, page: int, *, has_originals: bool) -> Html:
    """Return a page of the items that fit a filter; `page` counts from 1."""
    found = items.selected(wanted)
    num_pages = max(1, -(-len(found) // PAGE_ITEMS))
    page = min(page, num_pages)
    first = (page - 1) * PAGE_ITEMS
    numbers = found[first : first + PAGE_ITEMS].tolist()
    said = (
        f"{len(found):,} of {len(items):,} items" if wanted.conditions else f"{len(found):,} items"
    )
    if len(found) > PAGE_ITEMS:
        said += f", {first + 1:,} to {first + len(numbers):,}"
    tiles = [_tile(items, number, wanted, has_originals=has_originals) for number in numbers]
    shown = tag("ul", *tiles, class_="tiles") if tiles else tag("p", "No item fits.", class_="good")
    pagers = [_pager(wanted, page, num_pages, where) for where in ("", ", at the end")]
    before, behind = pagers if num_pages > 1 else ("", "")
    status = tag("p", said, class_="dim", role="status")
    main = tag("main", _form(items, wanted), status, before, shown, behind)
    return document(items.contents, "items", joined(facts_line(items.contents), main))


def tile(items: Items, number: int, address: str, caption: str | Html, *, picture: str) -> Html:
    """Return a tile: the picture at an address of its own, or words where there is none."""
    name = items.key(number)
    if picture:
        shown = tag("img", src=picture, alt=name, width=160, height=160, loading="lazy")
    else:
        shown = tag("span", items.reason(number), class_="blank")
    return tag("li", tag("a", shown, tag("span", caption, class_="cap"), href=address))


def _tile(items: Items, number: int, wanted: Filter, *, has_originals: bool) -> Html:
    own = tag("bdi", items.key(number).rpartition("/")[2])
    status, split = STATUSES[items.status[number]], int(items.split[number])
    words = [items.contents.splits[split]] if split >= 0 and not wanted.split else []
    if number < items.num_records:
        picture = f"/tile/{number}"
        words += filter(None, [items.contents.target_text(number), items.objects_text(number)])
    else:
        picture = f"/original/{number}" if has_originals and status == "rejected" else ""
        words.append(status)
    rest = tag("span", " · ".join(words), class_=None if number < items.num_records else "out")
    address = wanted.address(f"/item/{number}")
    return tile(items, number, address, joined(own, tag("br"), rest), picture=picture)


def _form(items: Items, wanted: Filter) -> Html:
    """Return the filter as a form; it changes nothing but the address."""
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


def _findings(items: Items, wanted: Filter) -> Html:
    """Return the choice of findings; those that are still being made are not waited for."""
    options = [tag("option", "any", value="")]
    if items.knowledge.is_made or wanted.finding:
        known = items.knowledge.get()
        options += [
            _option(one.name, f"{one.name} ({len(known.numbers[one.name]):,})", wanted.finding)
            for one in known.findings
            if len(known.numbers[one.name])
        ]
    else:
        options.append(tag("option", "being looked for …", value="", disabled=""))
    return tag("label", "Finding", tag("select", *options, name="finding"))


def _pager(wanted: Filter, page: int, num_pages: int, where: str) -> Html:
    """Return the ways to other pages, the nearest and the outermost."""

    def link(to: int, words: str | Html, rel: str | None = None) -> Html:
        if not 1 <= to <= num_pages:
            return tag("span", words, class_="dim", aria_hidden="true")
        more = {} if to == 1 else {"page": to}
        return tag("a", words, href=wanted.address("/", **more), rel=rel)

    return tag(
        "nav",
        link(page - 1, "‹ previous", "prev"),
        link(page + 1, "next ›", "next"),
        tag("span", f"page {page:,} of {num_pages:,}"),
        link(1 if page > 1 else 0, "first"),
        link(num_pages if page < num_pages else 0, "last"),
        aria_label=f"Pages{where}",
        class_="pager",
    )


def findings_page(items: Items) -> Html:
    """Return the findings, those that harm most first, and the way to the items of each."""
    known, number = items.knowledge.get(), items.num_records
    rows = [tag("li", *lines, class_=one.severity) for one, lines in _lines(items)]
    looked = f"Pixels of {known.num_measured:,} of {number:,} images were looked at by a report."
    parts: Iterable[Html] = [tag("p", looked, class_="dim")]
    if not known.num_measured:
        command = code("shardprep report")
        said = "Near copies, and what is dark, light, flat, blurry or grey, are told by pixels: "
        parts = [tag("p", said, command, " looks at them, once, and then they stand here.",
                     class_="dim")]  # fmt: skip
    if any(one.flag for one in known.findings):
        parts = [*parts, tag("p", REST, class_="dim")]
    shown = tag("ul", *rows, class_="findings")
    if known.problem:
        shown = tag("p", f"They cannot be made: {known.problem}", class_="problem")
    elif not rows:
        shown = tag("p", "✔ Nothing was found.", class_="good")
    main = tag("main", tag("h2", "Findings"), *parts, shown)
    return document(items.contents, "findings", joined(facts_line(items.contents), main))


def _lines(items: Items) -> Iterable[tuple[Finding, list[Html]]]:
    known = items.knowledge.get()
    for one in known.findings:
        number = len(known.numbers[one.name])
        said = f"{one.what[:1].upper()}{one.what[1:]}."
        lines = [
            tag("p", tag("span", SIGNS[one.severity], class_="badge"), " · ", one.name),
            tag("p", said),
        ]
        lines += remedy(one, items.contents)
        if number:
            words = f"Show {number:,} item{'s' * (number != 1)}"
            lines.append(tag("p", tag("a", words, href=Filter(finding=one.name).address("/"))))
        yield one, lines
