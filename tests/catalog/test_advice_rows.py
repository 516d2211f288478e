"""Each flag that a note or an error names works, and the build with it is right."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardprep.errors import ShardprepError
from shardprep.recipe.options import BUILD_DEFAULTS
from tests.catalog.advice_rows import LEFT_OUT, SAID, Own, Row
from tests.catalog.advice_rows_objects import ROWS
from tests.catalog.builders import catalog
from tests.support.advice_sites import Site


def message(folder: Path, row: Row) -> str:
    """Return all that a build of the source prints: its error, or its notes."""
    try:
        made = catalog(folder, row.members, **row.keys)
    except ShardprepError as error:
        return str(error)
    return "\n".join([made.labels_from, *made.findings])


def options(row: Row, text: str) -> dict[str, Any]:
    """Return the options of the build that follows the advice, and check that it names them."""
    keys = dict(row.keys)
    for name, value in row.then.items():
        flag = f"--{name.replace('_', '-')}"
        given = re.findall(rf"{flag}(?![\w-])(?: ('[^']*'|[^\s;,]+))?", text)
        assert given, f"{flag} is not in {text!r}"
        words = [word for one in given if (word := "".join(shlex.split(one)))]
        if value == LEFT_OUT:
            del keys[name]
        elif value is True:
            keys[name] = True
        elif isinstance(value, Own):
            keys[name] = value.value
        else:
            assert value in (SAID, *words)
            word = words[0] if value == SAID else value
            several = isinstance(BUILD_DEFAULTS[name], tuple) and name != "classes"
            keys[name] = (word,) if several else word
    return keys


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says[:60])
def test_the_flags_of_a_message_build_what_is_right(row: Row, tmp_path: Path) -> None:
    text = message(tmp_path / "first", row)
    found = Site("", row.says).in_message().search(text)
    assert found, text
    made = catalog(
        tmp_path / "then", row.members, **options(row, f"{text[found.start() :]}\n{text}")
    )
    assert row.see(made) == row.right
