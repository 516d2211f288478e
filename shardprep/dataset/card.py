"""Show results in a terminal, in a notebook (as an HTML card) and in tables for spreadsheets.

Names and reasons come from untrusted files. Control characters and HTML are escaped. A spreadsheet
treats cells that begin with certain characters as formulas, so such cells get a leading
apostrophe, as OWASP recommends (https://owasp.org/www-community/attacks/CSV_Injection).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from shardprep.errors import printable, shown

if TYPE_CHECKING:
    import numpy as np

    Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_MOST_ROWS = 30
_MOST_CHARACTERS = 500
_MOST_HTML = 60_000
"""Maximum number of HTML characters in the rows of a card; further rows are only counted."""
_MOST_BYTES = 100_000
"""Maximum size in bytes of a card with pictures; above it, all pictures are left out."""
MOST_PICTURES = 8
_Value = TypeVar("_Value")
# Apostrophes before a formula match too: otherwise `to_cell` would return one cell for two texts,
# `=1` and `'=1`.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|nan)", re.ASCII)
_CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0"


class Link(str):
    """The address of a page or a file, shown as a link in a notebook."""

    __slots__ = ()


class Card:
    """Base class of results, shown as text in a terminal and as HTML in a notebook."""

    __slots__ = ()

    def facts(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    def pictures(self) -> Iterable[Pixels]:
        """Return the images to show below the facts, uint8[height, width, 3]."""
        return ()

    def __repr__(self) -> str:
        try:
            lines = (f"{title}: {_line(value)}" for title, value in self.facts().items())
            return f"<{type(self).__name__} {'; '.join(lines)}>"
        except Exception:
            return object.__repr__(self)

    def _repr_html_(self) -> str:
        try:
            return card(type(self).__name__, self.facts(), self.pictures())
        except Exception:
            return f"<code>{escape(object.__repr__(self))}</code>"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return shown(printable(str(value)), _MOST_CHARACTERS)


def _line(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{_text(key)} {_text(number)}" for key, number in islice(value.items(), 6)]
        return ", ".join(pairs) + _more(value, 6)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_text(one) for one in value[:8]) + _more(value, 8)
    return _text(value)


def _more(values: Any, most: int) -> str:
    return f", … {len(values):,} in all" if len(values) > most else ""


def card(name: str, facts: Mapping[str, Any], pictures: Iterable[Pixels] = ()) -> str:
    """Return an HTML table of `facts`, and up to `MOST_PICTURES` pictures within `_MOST_BYTES`."""
    rows: list[str] = []
    num_characters = 0
    for title, value in facts.items():
        row = f'<tr><th style="{_CELL}">{escape(_text(title))}</th>'
        row += f'<td style="{_CELL}">{_html(value)}</td></tr>'
        num_characters += len(row)
        if num_characters > _MOST_HTML:
            rows.append(f"<tr><td>… {len(facts) - len(rows):,} more</td></tr>")
            break
        rows.append(row)
    table = f"<table><caption>{escape(name)}</caption><tbody>{''.join(rows)}</tbody></table>"
    shown_below = _pictures(pictures)
    is_small = len(table.encode()) + len(shown_below) <= _MOST_BYTES
    return table + shown_below if is_small else table


def _pictures(pictures: Iterable[Pixels]) -> str:
    from shardprep.image.drawing import thumbnail

    images = ""
    for pixels in islice(pictures, MOST_PICTURES):
        small = thumbnail(pixels)
        data = b64encode(small.data).decode()
        images += (
            f'<img src="data:image/webp;base64,{data}" alt="" width="{small.width}" '
            f'height="{small.height}" style="margin:2px">'
        )
    return f"<div>{images}</div>" if images else ""


def _html(value: object) -> str:
    if isinstance(value, Link):
        to = escape(value if value.startswith("http://") else quote(value))
        return f'<a href="{to}" target="_blank" rel="noopener">{escape(_text(value))}</a>'
    if isinstance(value, Mapping):
        rows = [
            f'<tr><td style="{_CELL}">{escape(_text(key))}</td>'
            f'<td style="{_CELL}">{escape(_line(one))}</td></tr>'
            for key, one in islice(value.items(), _MOST_ROWS)
        ]
        return f"<table>{''.join(rows)}</table>{_more(value, _MOST_ROWS).removeprefix(', ')}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        lines = [escape(_line(one)) for one in value[:_MOST_ROWS]]
        rest = _more(value, _MOST_ROWS).removeprefix(", ")
        return "<br>".join([*lines, rest] if rest else lines)
    return escape(_text(value))


def to_cell(value: _Value) -> _Value | str:
    """Return a value for a spreadsheet; text that could be a formula gets a leading `'`."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def from_cell(cell: str) -> str:
    """Return the text that `to_cell` turned into this cell."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    return _FORMULA.match(text) is not None and not _NUMBER.fullmatch(text)
