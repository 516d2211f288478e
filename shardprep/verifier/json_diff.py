"""Documents compared with what they should hold: the differences in words."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from shardprep.dataset.documents import check_size

if TYPE_CHECKING:
    from collections.abc import Iterator


def differences(here: Any, expected: Any, path: str = "") -> Iterator[str]:
    """Yield the differences of two JSON values: "splits.train.num_records is 3, not 4"."""
    if isinstance(here, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in here if key not in expected)]:
            where = f"{path}.{key}" if path else str(key)
            if key not in here:
                yield f"{where} is not there"
            elif key not in expected:
                yield f"{where} does not belong there"
            else:
                yield from differences(here[key], expected[key], where)
    elif isinstance(here, list) and isinstance(expected, list) and len(here) == len(expected):
        for i, (one, two) in enumerate(zip(here, expected, strict=True)):
            yield from differences(one, two, f"{path}[{i}]")
    elif here != expected or type(here) is not type(expected):
        yield f"{path or 'it'} is {quoted(here)}, not {quoted(expected)}"


def json_faults(data: bytes, text: str) -> Iterator[str]:
    """Yield the differences of a JSON document from the text that it should be."""
    try:
        check_size(data)
        here = from_json(data)
    except ValueError as error:
        yield f"is not JSON ({error}): TensorFlow Datasets cannot open the folder"
        return
    if text:
        yield from differences(here, json.loads(text))


def line_faults(data: bytes, text: str) -> Iterator[str]:
    """Yield the lines of a document that differ from those of the text that it should be."""
    here = data.decode(errors="replace").split("\n")
    for number, (line, wanted) in enumerate(zip_longest(here, text.split("\n")), 1):
        if line != wanted:
            yield f"line {number:,} is {quoted(line)}, not {quoted(wanted)}"


def quoted(value: object) -> str:
    """Return a value as an error shows it, at most 80 characters; None is nothing."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
