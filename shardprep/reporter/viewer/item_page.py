"""The page of one item: picture, record, row of the item table, copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardprep.dataset.example import Features
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, MASKS, TARGET_IMAGE, Feature, Schema
from shardprep.errors import ShardprepError, counted
from shardprep.reporter.findings.copies import Copies
from shardprep.reporter.page import charts
from shardprep.reporter.page.html import Html, code, joined, key, pairs, section, table, tag
from shardprep.reporter.page.pictures import (
    Overlay,
    classes_of,
    copy_facts,
    copy_group,
    drawn_boxes,
    facts,
    switch,
)
from shardprep.reporter.record_columns import Contents
from shardprep.reporter.viewer.item_list import Filter, ItemList
from shardprep.reporter.viewer.list_page import PAGE_ITEMS, document, list_address, step, tile
from shardprep.reporter.viewer.pictures import RecordContent, RecordPictures

_LEAST_SIDE = 512
"""Smaller pictures are enlarged so that the longer side has about this many CSS pixels."""
_PIXELATED = 4
"""Pictures enlarged by at least this factor are drawn with sharp pixels."""
_MOST_VALUES, _MOST_OBJECTS, _MOST_COPIES = 12, 300, 24
"""Maximum number of values of a feature, objects of an image and copies of a group to show."""


def item_page(items: ItemList, pictures: RecordPictures, number: int, wanted: Filter) -> Html:
    """Return the page of an item, with links to the previous and next item of the filter."""
    name = items.key(number)
    parts = [_ways(items, number, wanted), tag("h2", key(name), class_="name")]
    if number < items.num_records:
        parts += _record(items, pictures, number)
    else:
        parts.append(tag("p", items.reason(number), class_="problem"))
    rows = [(code(column), _cell(value)) for column, value in items.row(number).items()]
    parts.append(section("row", "Row of items.parquet", table(("column", "value"), rows, left=2)))
    return document(items.contents, name.rpartition("/")[2] or name, tag("main", *parts))


def _ways(items: ItemList, number: int, wanted: Filter) -> Html:
    numbers = items.selected(wanted)
    if number not in numbers:  # the address was edited
        wanted = Filter()
        numbers = items.selected(wanted)
    place = int(np.flatnonzero(numbers == number)[0])

    def to(other: int) -> str | None:
        return wanted.address(f"/item/{numbers[other]}") if 0 <= other < len(numbers) else None

    which = "that fit" if wanted.conditions else "items"
    return tag(
        "nav",
        step("‹ previous", to(place - 1), "prev"),
        step("next ›", to(place + 1), "next"),
        tag("span", f"{place + 1:,} of {len(numbers):,} {which}"),
        tag("a", "all of them", href=list_address(wanted, place // PAGE_ITEMS + 1), rel="up"),
        aria_label="Items",
        class_="pager",
    )


def _record(items: ItemList, pictures: RecordPictures, number: int) -> Iterator[Html]:
    contents = items.contents
    try:
        record = pictures.record(number)
    except ShardprepError as error:
        record = RecordContent(None, None, error.what)
    overlay, size = record.overlay, None
    parts = []
    if overlay:
        width, height = overlay.image_size
        size = "stored", f"{width:,} × {height:,} pixels"
        parts.append(_picture(contents, number, overlay))
    if record.problem:
        parts.append(tag("p", record.problem, class_="problem", role="alert"))
    listed = pairs([*facts(contents, number, overlay, size), *_found(items, number)])
    yield tag("div", tag("div", *parts), listed, class_="one")
    if record.features is not None:
        if overlay:
            yield from _objects(contents.schema, record.features, overlay.image_size)
        yield _features(contents.schema, record.features)
    yield from _copies(items, number)


def _picture(contents: Contents, number: int, overlay: Overlay) -> Html:
    schema, alt = contents.schema, contents.place(number).title
    width, height = overlay.image_size
    scale = max(1, round(_LEAST_SIDE / max(width, height)))
    sizes = {"width": width * scale, "height": height * scale}
    layers = [tag("img", src=f"/image/{number}", alt=alt, **sizes,
                  class_="tiny" if scale >= _PIXELATED else None)]  # fmt: skip
    if overlay.mask:
        layers.append(tag("img", src=f"/mask/{number}", alt="its masks", **sizes, class_="over"))
    if overlay.boxes or overlay.points:
        layers.append(drawn_boxes(schema, overlay, overlay.size))
    shot = tag("div", *layers, class_="shot large")
    if not schema.annotations:
        return shot
    return joined(shot, switch(schema, classes_of(contents, number, overlay)))


def _found(items: ItemList, number: int) -> Iterator[tuple[str, Html]]:
    if items.findings.is_made:
        links = [
            tag("li", tag("a", name, href=Filter(finding=name).address("/")))
            for name, numbers in items.findings.get().numbers.items()
            if (numbers == number).any()
        ]
        if links:
            yield "findings", tag("ul", *links, class_="legend")


def _objects(schema: Schema, features: Features, size: tuple[int, int]) -> Iterator[Html]:
    boxes = np.array(features.get(BOX, ()), np.float64)
    if not len(boxes) or len(boxes) % 4:
        return
    width, height = size
    pixels = np.nan_to_num(boxes.reshape(-1, 4)).clip(-1, 2) * (height, width, height, width)
    names = schema.features[BOX_LABEL].labels if BOX_LABEL in schema.features else ()
    labels, crowds = features.get(BOX_LABEL, ()), features.get(CROWD, ())
    rows = []
    for i, (top, left, bottom, right) in enumerate(pixels[:_MOST_OBJECTS].round(1).tolist()):
        label = int(labels[i]) if i < len(labels) else -1
        name = names[label] if 0 <= label < len(names) else f"object {i + 1}"
        crowd = " (crowd)" if i < len(crowds) and crowds[i] else ""
        named = joined(charts.chip(max(label, 0)), tag("bdi", name), crowd)
        rows.append((named, f"{left:g}", f"{top:g}", f"{right - left:g} × {bottom - top:g}"))
    titles = ("object", "left", "top", "width × height")
    text = f"{counted(len(pixels), 'object')}, in pixels of the stored image"
    if len(pixels) > _MOST_OBJECTS:
        text += f"; the first {_MOST_OBJECTS:,}"
    yield section("objects", "Objects", tag("p", text, class_="dim"), table(titles, rows))


def _features(schema: Schema, features: Features) -> Html:
    rows = []
    for name in sorted(schema.features.keys() | features.keys()):
        feature = schema.features.get(name)
        kind = f"{feature.kind}, {feature.dtype}" if feature else "not in the schema"
        rows.append((code(name), kind, _value(schema, name, feature, features.get(name, []))))
    return section("features", "Features", table(("feature", "kind", "value"), rows, left=3))


def _value(schema: Schema, name: str, feature: Feature | None, values: list[Any]) -> str:
    first = values[:_MOST_VALUES]
    if name in {schema.image_name, *MASKS, TARGET_IMAGE}:
        texts = [f"{len(one):,} bytes" for one in first if isinstance(one, bytes)]
    elif feature is not None and feature.kind in ("label", "labels"):
        names = feature.labels or schema.labels
        texts = [_named(one, names) for one in first]
    else:
        texts = [_word(one) for one in first]
    if feature is not None and feature.kind == "vector":
        texts = [f"{title}: {text}" for title, text in zip(feature.labels, texts, strict=False)]
    return _listed(texts, len(values) - _MOST_VALUES)


def _listed(texts: list[str], rest: int) -> str:
    return (", ".join(texts) or "none") + (f" and {rest:,} more" if rest > 0 else "")


def _named(label: Any, names: tuple[str, ...]) -> str:
    is_known = isinstance(label, int) and 0 <= label < len(names)
    return f"{label} ({names[label]})" if is_known else str(label)


def _word(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        parts = [": ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in value]
        return _listed(parts[:_MOST_VALUES], len(parts) - _MOST_VALUES)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _copies(items: ItemList, number: int) -> Iterator[Html]:
    if not items.findings.is_made:
        text = "Copies and other findings are still being looked for: reload the page for them."
        yield tag("p", text, class_="dim")
        return
    known = items.findings.get()
    groups = [known.copies[place] for place in known.groups.get(number, ())]
    if groups:
        yield section("copies", "Copies", *(_group(items, one, number) for one in groups))


def _group(items: ItemList, group: Copies, number: int) -> Html:
    tiles = []
    for i, other in enumerate(group.numbers[:_MOST_COPIES]):
        name = tag("bdi", items.key(other).rpartition("/")[2])
        here = " · this one" if other == number else ""
        caption = joined(name, tag("br"), copy_facts(items.contents, group, i), here)
        tiles.append(tile(items, other, f"/item/{other}", caption, picture=f"/tile/{other}"))
    return copy_group(group, tag("ul", *tiles, class_="tiles"), _MOST_COPIES)
