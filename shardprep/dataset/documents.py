"""The names that the format allows, and a parser for untrusted JSON documents.

The size of a document is checked before it is parsed. The parser (pydantic) limits the depth of
nesting to 200 and refuses lone surrogates. Names are checked before they are used in a path or
printed. Digits are ASCII only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
)

from shardprep.errors import printable, shown

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_DOCUMENT_BYTES = 64 << 20
"""Maximum size of a manifest or a schema in bytes; 100,000 shards take 25 MB."""
_MAX_VALUES = 2_000_000
"""Maximum number of values in a document; a parsed value takes up to 150 bytes of memory."""
_MAX_SHOWN = 3
_MAX_PROBLEM = 300

_NAME = "[a-z][a-z0-9_]{0,99}"
_VERSION = r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}"
MAX_NAME = 100

NAME = re.compile(_NAME)
VERSION = re.compile(_VERSION)
SHARD = re.compile(
    rf"(?P<name>{_NAME})-(?P<split>{_NAME})\.tfrecord-(?P<index>[0-9]{{5}})-of-(?P<count>[0-9]{{5}})"
)

Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
Version = Annotated[str, StringConstraints(pattern=f"^{_VERSION}$")]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
"""Number of things or bytes, less than 2**62; the sum of two fits into int64."""


def shard_name(dataset: str, split: str, index: int, count: int) -> str:
    """Return the file name of a shard, in TFDS's default form."""
    return f"{dataset}-{split}.tfrecord-{index:05d}-of-{count:05d}"


def version_key(version: str) -> tuple[int, ...]:
    """Return a sort key that puts 1.9.0 before 1.10.0."""
    return tuple(int(number) for number in version.split("."))


class Document(BaseModel):
    """Base class of JSON documents and of their parts; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SparseDocument(Document):
    """Base class of documents that omit some keys if they are empty."""

    sparse_keys: ClassVar[frozenset[str]] = frozenset()
    """Keys that are omitted if their value is 0, empty or None."""

    @model_serializer(mode="wrap")
    def _without_empty_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {
            key: value for key, value in written.items() if value or key not in self.sparse_keys
        }


_Document = TypeVar("_Document", bound=Document)


class DocumentError(ValueError):
    """A document cannot be parsed; the message gives the reason in one line."""

    hint = ""


def parse_document(model: type[_Document], data: bytes | str) -> _Document:
    """Return the model parsed from a JSON document; DocumentError names the first faults."""
    check_size(data)
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        newer = [one for one in problems if one["loc"] == ("format_version",)]
        fault = DocumentError(_in_words(newer or problems))
        fault.hint = "install a newer version of shardprep" if newer else ""
        raise fault from None


def check_size(data: bytes | str) -> None:
    """Raise DocumentError if a JSON text is too large to be parsed."""
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
