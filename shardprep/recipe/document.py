"""Read and write `shardprep.toml`. An untrusted file has limits on its size and depth of keys."""

from __future__ import annotations

import json
import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

from shardprep.errors import RecipeError, printable_json, shown
from shardprep.recipe.options import BUILD_OPTIONS
from shardprep.storage.regular_file import read_named

RECIPE_FILE = "shardprep.toml"
_MOST_FILE_BYTES = 1 << 20
_MOST_PARTS = 16
"""Maximum number of parts of a dotted key; the time of Python's parser grows quadratically."""
_COMMENT_WIDTH = 97
_MOST_SHOWN = 200
_STRINGS = re.compile(
    "#[^\n]*"
    r'|"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"'
    r"|'''.*?'''|'[^'\n]*'",
    re.DOTALL,
)
_BETWEEN_KEYS = re.compile(r"[^\w.\"-]+")


def key_lines(key: str, value: object, *, is_set: bool = True) -> list[str]:
    """Return a key as lines: comments with its help, then KEY = VALUE, commented out if not set."""
    text = textwrap.wrap(BUILD_OPTIONS[key].help, _COMMENT_WIDTH, break_on_hyphens=False)
    return [*(f"# {line}" for line in text), f"{'' if is_set else '# '}{key} = {toml_value(value)}"]


def toml_value(value: object) -> str:
    """Return a string, number, boolean or list in TOML syntax, which has the escapes of JSON."""
    return printable_json(json.dumps(value, ensure_ascii=False))


def read_recipe(path: Path) -> dict[str, Any]:
    """Return key → value of a recipe file, with _ for - in keys; RecipeError if it is invalid."""
    where = str(path)
    try:
        num_bytes = path.stat().st_size
        if num_bytes > _MOST_FILE_BYTES:
            what = f"has {num_bytes:,} bytes, more than 1 MiB"
            raise RecipeError(where, what, "shorten the file")
        text = read_named(path, _MOST_FILE_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        text = getattr(error, "strerror", None) or str(error)
        is_unread = isinstance(error, OSError)
        hint = "make it a readable file" if is_unread else "save it as UTF-8 text"
        raise RecipeError(where, f"cannot be read ({text})", hint) from error
    plain = _STRINGS.sub('"', text).replace(" ", "").replace("\t", "")
    if any(part.count(".") >= _MOST_PARTS for part in _BETWEEN_KEYS.split(plain)):
        raise RecipeError(where, f"has a key of more than {_MOST_PARTS} parts", "use a short key")
    try:
        keys = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of 5,000 digits
        what = f"is not TOML ({shown(str(error), _MOST_SHOWN)})"
        raise RecipeError(where, what, "write lines such as size = 224") from error
    options: dict[str, Any] = {}
    for key, value in keys.items():
        name = key.replace("-", "_")
        if name in options:
            what = f"has {shown(name, _MOST_SHOWN)} twice, with - and with _"
            raise RecipeError(where, what, "keep one of them")
        options[name] = value
    return options
