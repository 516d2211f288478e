"""Conversion of option values, which are text in a flag and TOML types in a file.

Each `read_…` function returns the converted value, or raises ValueError if the option does not take
the value. Some return a value of an unexpected type, which the caller rejects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from shardprep.errors import printable, shown

_MAX_BITS = 64
_MOST_DEEP = 1e30
"""Maximum size of a pixel value: the difference of two such values must fit in float32."""
_MAX_SHOWN = 60
"""Maximum number of characters of a value in an error, and of a number as text."""
_SIZE = re.compile(r"([0-9]{1,9})(?:\s*[xX\u00d7]\s*([0-9]{1,9}))?")
_NUM_BYTES = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*(?:([kKmMgGtT])(i?))?[bB]?")
_COLOUR = re.compile(r"\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*,\s*([0-9]{1,3})\s*")
_COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0), "grey": (128, 128, 128)}


def read_size(value: object) -> tuple[int, int] | None:
    """Return (height, width) for "WIDTHxHEIGHT", "SIDE" or [height, width]; None for "none"."""
    if value in ("none", None):
        return None
    if isinstance(value, str | int) and (match := _SIZE.fullmatch(str(value)[:_MAX_SHOWN].strip())):
        return int(match[2] or match[1]), int(match[1])
    height, width = _whole_numbers(value, 2)
    return height, width


def read_colour(value: object) -> tuple[int, int, int]:
    """Return red, green and blue, 0..255, for a name, "#RRGGBB", "R,G,B" or [R, G, B]."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _COLOURS:
            return _COLOURS[text]
        if re.fullmatch("#[0-9a-f]{6}", text):
            value = tuple(bytes.fromhex(text[1:]))
        elif match := _COLOUR.fullmatch(text):
            value = tuple(map(int, match.groups()))
    red, green, blue = levels = _whole_numbers(value, 3)
    if not all(0 <= level <= 255 for level in levels):
        raise ValueError
    return red, green, blue


def read_depth_range(value: object) -> object:
    """Return "full", "auto", or two floats for "MIN,MAX" or [MIN, MAX]; MIN < MAX."""
    return _word_or_numbers(value, lambda low, high: low < high)


def read_window(value: object) -> object:
    """Return "full", "auto", or two floats for "CENTER,WIDTH" or [CENTER, WIDTH]; WIDTH ≥ 1."""
    return _word_or_numbers(value, lambda _, width: width >= 1)


def _word_or_numbers(value: object, fit: Callable[[float, float], bool]) -> object:
    if value in ("full", "auto"):
        return value
    parts = value[:_MAX_SHOWN].split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) != 2 or bool in map(type, parts):
        raise ValueError
    first, second = (float(read_number(part, float, -_MOST_DEEP, _MOST_DEEP)) for part in parts)
    if not fit(first, second):
        raise ValueError
    return first, second


def _whole_numbers(value: object, count: int) -> list[int]:
    if not isinstance(value, list | tuple) or len(value) != count:
        raise ValueError
    if any(type(part) is not int for part in value):
        raise ValueError
    return list(value)


def read_num_bytes(value: object) -> object:
    """Return a size in bytes: 500,000,000 for "500MB", 2,147,483,648 for "2GiB"."""
    if not isinstance(value, str):
        return value
    match = _NUM_BYTES.fullmatch(value.strip())
    if not match:
        raise ValueError
    number, unit, binary = match.groups(default="")
    return int(float(number) * (1024 if binary else 1000) ** (" kmgt".index(unit.lower() or " ")))


def read_share(value: object) -> object:
    """Return a share: 0.05 for "5%", "0.05" or 0.05."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)


def read_ratios(value: object) -> object:
    """Return a table of ratios as text, such as "train=0.9,test=0.1"; a text is unchanged."""
    if isinstance(value, dict):
        return ",".join(f"{name}={ratio}" for name, ratio in value.items())
    return value


def read_names(value: object) -> object:
    """Return names as a tuple: ("cat", "dog") for "cat,dog"; a list is unchanged."""
    return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


def read_number(value: object, kind: type[int | float], least: float, most: float) -> float:
    """Return a number within bounds, for a number or its text; 3.0 is valid if `kind` is int."""
    try:
        if isinstance(value, str) and len(value) <= _MAX_SHOWN and value.isascii():
            value = kind(value)
        if isinstance(value, int | float) and kind(value) == value and least <= value <= most:
            return kind(value)
    except (ValueError, OverflowError):
        pass
    raise ValueError


def read_texts(value: object) -> tuple[str, ...]:
    """Return a text or a list of texts as a tuple."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise ValueError


def texts_in(value: object) -> Collection[str]:
    """Return the texts in a value: itself, elements of a list, or keys of a table."""
    if isinstance(value, str):
        return (value,)
    parts = value if isinstance(value, list | tuple | dict) else ()
    return [part for part in parts if isinstance(part, str)]


def value_shown(value: object) -> str:
    """Return a value as text for errors, shortened; "a list" or "a table" for a list or dict."""
    if isinstance(value, str):
        return shown(printable(repr(value)), _MAX_SHOWN)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "a number of twenty digits or more"
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, list | tuple) else shown(str(value), _MAX_SHOWN)
