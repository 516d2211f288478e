"""Cells of tables for spreadsheets: no foreign text becomes a formula.

Spreadsheets run cells that begin with one of a few characters. OWASP recommends an apostrophe
before it (https://owasp.org/www-community/attacks/CSV_Injection). Numbers stay numbers.
"""

from __future__ import annotations

import re
from typing import TypeVar

_Value = TypeVar("_Value")
# Also behind apostrophes, so that each text has another cell, and can be read back.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|nan)", re.ASCII)


def to_cell(value: _Value) -> _Value | str:
    """Return a value for a table; text that could be a formula gets a leading `'`."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def from_cell(cell: str) -> str:
    """Return the text that `to_cell` wrote."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell[1:]) else cell


def _is_formula(text: str) -> bool:
    return _FORMULA.match(text) is not None and not _NUMBER.fullmatch(text)
