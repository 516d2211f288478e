"""HTML as text: what is not marked as markup is escaped, so that no name can become a tag."""

from __future__ import annotations

import base64
import html

from shardprep.errors import printable, shown

_MOST_SHOWN = 240
"""Characters of a name of others on the page; of a longer one its two ends."""
_VOID = frozenset(("br", "img", "input", "link", "meta"))
_SHAPES = frozenset(("line", "path", "rect"))
"""Elements of SVG that have no children; they close themselves, for others would be inside."""


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: str | int) -> Html:
    """Return a text as markup: escaped, nothing in it steers or turns the line, and not too long.

    Markup stays as it is.
    """
    if isinstance(value, Html):
        return value
    return _escaped(shown(str(value), _MOST_SHOWN))


def _escaped(value: str) -> Html:
    return Html(html.escape(printable(value), quote=True))


def tag(name: str, /, *children: str | int, **attributes: str | float | None) -> Html:
    """Return an element. `class_` stands for class, `_` for - in other names; None is left out."""
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
    """Return several pieces as one."""
    return Html("".join(text(child) for child in children))


def key(value: str) -> Html:
    """Return a key: of any script, and in its own direction."""
    return tag("bdi", value, class_="key")


def code(value: str) -> Html:
    """Return a piece of code in a line."""
    return tag("code", value)


def block(value: str) -> Html:
    """Return lines of code to copy, whole."""
    lines = Html(html.escape("\n".join(map(printable, value.split("\n"))), quote=True))
    return tag("pre", tag("code", lines), tabindex=0)


def picture(data: bytes, alt: str, side: int, class_: str | None = None) -> Html:
    """Return a WebP image that is in the page itself; `side` is in CSS pixels."""
    return Html(
        f'<img src="data:image/webp;base64,{base64.b64encode(data).decode()}" alt="{text(alt)}"'
        f' width="{side}" height="{side}"{f" class={class_!r}" if class_ else ""}>'
    )


def table(
    titles: tuple[str, ...], rows: list[tuple[str | int, ...]], left: int = 1, class_: str = ""
) -> Html:
    """Return a table; the first `left` columns are of text, the others of numbers."""
    head = tag(
        "tr",
        *(
            tag("th", one, scope="col", class_=None if i < left else "n")
            for i, one in enumerate(titles)
        ),
    )
    body = [
        tag(
            "tr",
            *(
                tag("th", cell, scope="row")
                if i == 0
                else tag("td", _number(cell), class_=None if i < left else "n")
                for i, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    inside = tag("table", tag("thead", head), tag("tbody", *body), class_=class_ or None)
    return tag("div", inside, class_="wide", tabindex=0, role="group")


def _number(cell: str | int) -> str:
    return f"{cell:,}" if isinstance(cell, int) else cell


def more(title: str, *children: str | int) -> Html:
    """Return what is shown once it is asked for."""
    return tag("details", tag("summary", title), *children)


def section(anchor: str, title: str, *children: str | int) -> Html:
    """Return a section with its heading."""
    heading = tag("h2", title, id=f"{anchor}-title")
    return tag("section", heading, *children, id=anchor, aria_labelledby=f"{anchor}-title")
