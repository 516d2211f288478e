"""HTML as strings. Text is escaped unless it is `Html`, so that no name can become a tag."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

from shardprep.errors import printable, shown

_MOST_SHOWN = 240
"""Maximum length of a text on the page; a longer text is cut in the middle."""
_VOID = frozenset(("br", "img", "input", "link", "meta"))
_SHAPES = frozenset(("line", "path", "rect"))
"""SVG elements without children. If not self-closed, they would contain the next element."""


class Html(str):
    """Text that is already markup."""

    __slots__ = ()


def text(value: str | int) -> Html:
    """Return `Html` unchanged. Shorten other text and escape its markup and control characters."""
    if isinstance(value, Html):
        return value
    return _escaped(shown(str(value), _MOST_SHOWN))


def _escaped(value: str) -> Html:
    return Html(html.escape(printable(value), quote=True))


def tag(name: str, /, *children: str | int, **attributes: str | float | None) -> Html:
    """Return an element. Keywords `a_b` and `class_` become `a-b` and `class`. None is omitted."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if value is not None:
            shown_key = key.rstrip("_").replace("_", "-")
            number = f"{value:.6g}" if isinstance(value, float) else value
            parts.append(f' {shown_key}="{_escaped(str(number))}"')
    parts.append("/>" if name in _SHAPES else ">")
    if name not in _VOID | _SHAPES:
        parts += [text(child) for child in children]
        parts.append(f"</{name}>")
    return Html("".join(parts))


def joined(*children: str | int) -> Html:
    """Return the children as markup without an element around them. Texts are escaped."""
    return Html("".join(text(child) for child in children))


def capitalized(value: str) -> str:
    """Return a text with its first letter in upper case."""
    return f"{value[:1].upper()}{value[1:]}"


def key(value: str) -> Html:
    """Return the key of an item. `bdi` keeps a right-to-left key from reordering its context."""
    return tag("bdi", value, class_="key")


def code(value: str) -> Html:
    """Return a text as a `code` element."""
    return tag("code", value)


def block(value: str) -> Html:
    """Return a block of code. Unlike in `text`, the code is not shortened."""
    lines = Html(html.escape("\n".join(map(printable, value.split("\n"))), quote=True))
    return tag("pre", tag("code", lines), tabindex=0)


def picture(data: bytes, alt: str, side: int, class_: str | None = None) -> Html:
    """Return an embedded WebP image, `side` CSS pixels wide and high."""
    return Html(
        f'<img src="data:image/webp;base64,{base64.b64encode(data).decode()}" alt="{text(alt)}"'
        f' width="{side}" height="{side}"{f" class={class_!r}" if class_ else ""}>'
    )


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str | int]],
    left: int = 1,
    class_: str | None = None,
) -> Html:
    """Return a table. The first `left` columns are aligned as text, the others as numbers."""

    def class_of(column: int) -> str | None:
        return None if column < left else "n"

    head = [tag("th", one, scope="col", class_=class_of(i)) for i, one in enumerate(titles)]
    body = []
    for first, *others in rows:
        cells = [
            tag("td", f"{cell:,}" if isinstance(cell, int) else cell, class_=class_of(i))
            for i, cell in enumerate(others, 1)
        ]
        body.append(tag("tr", tag("th", first, scope="row"), *cells))
    thead, tbody = tag("thead", tag("tr", *head)), tag("tbody", *body)
    inside = tag("table", thead, tbody, class_=class_)
    return tag("div", inside, class_="wide", tabindex=0, role="group")


def pairs(facts: Iterable[tuple[str, str]]) -> Html:
    """Return a description list of titles and texts."""
    return tag("dl", *(joined(tag("dt", name), tag("dd", value)) for name, value in facts))


def more(title: str, *children: str | int) -> Html:
    """Return a collapsed part. A click on the title opens it."""
    return tag("details", tag("summary", title), *children)


def section(anchor: str, title: str, *children: str | int) -> Html:
    """Return a `section` element with the id `anchor` and a heading."""
    heading = tag("h2", title, id=f"{anchor}-title")
    return tag("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")
