"""Untrusted JSON documents of a dataset: bounded before they are parsed.

The parser (pydantic's) bounds the depth of nesting, at 200, and refuses lone surrogates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from shardprep.errors import printable, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

MAX_DOCUMENT_BYTES = 64 << 20
"""Largest size of a manifest or a schema in bytes; 100,000 shards take 25 MB."""
_MAX_VALUES = 2_000_000
"""Largest number of values in a document; a parsed value takes up to 150 bytes of memory."""
_MAX_SHOWN = 3
_MAX_PROBLEM = 300

_Model = TypeVar("_Model", bound=BaseModel)


class DocumentError(ValueError):
    """A document that cannot be parsed; `str()` says why in one line."""


def parse_document(model: type[_Model], data: bytes | str) -> _Model:
    """Return what a JSON document says, as an instance of a model.

    Raises:
        DocumentError: it is too large, is no JSON, or breaks a rule of the model; the first few
            that are broken are named with their places.

    """
    check_size(data)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise DocumentError(_in_words(problems)) from None


def check_size(data: bytes | str) -> None:
    """Check that a JSON text is small enough to be parsed.

    Raises:
        DocumentError: it is too large, or has too many values.

    """
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise DocumentError(f"has {len(raw):,} bytes, more than {MAX_DOCUMENT_BYTES:,}")
    if sum(raw.count(mark) for mark in (b",", b"[", b"{")) > _MAX_VALUES:
        raise DocumentError(f"has more than {_MAX_VALUES:,} values")


def _in_words(problems: Sequence[ErrorDetails]) -> str:
    words = []
    for problem in problems[:_MAX_SHOWN]:
        place = ".".join(map(str, problem["loc"]))
        text = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "json_invalid":
            text = f"is not JSON ({text.removeprefix('Invalid JSON: ')})"
        words.append(shown(f"{place}: {text}" if place else text, _MAX_PROBLEM))
    more = len(problems) - _MAX_SHOWN
    return printable("; ".join(words) + (f"; and {more:,} more" if more > 0 else ""))
