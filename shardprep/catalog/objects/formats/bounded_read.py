"""The bytes of annotation documents, member by member, within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shardprep.source.byte_range import MemberError
from shardprep.source.range_reads import read_ahead
from shardprep.storage.text_file import as_utf8

if TYPE_CHECKING:
    from shardprep.source.members import Member

MOST_BYTES = 16 << 20
"""Size in bytes of the largest document of one image that is read."""

MOST_VALUES = 2_000_000
"""Number of values in a JSON document that is parsed as a whole; each takes up to 100 bytes."""


def has_many_values(data: bytes) -> bool:
    """Tell whether a JSON document may have more than `MOST_VALUES`."""
    return data.count(b",") + data.count(b"[") + data.count(b"{") > MOST_VALUES


class Text(NamedTuple):
    """A document, or the reason for which it cannot be read."""

    key: str
    data: bytes
    fault: str = ""


def read_each(members: Sequence[Member], most_bytes: int = MOST_BYTES) -> Iterator[Text]:
    """Yield the members' bytes in their order, one at a time; JSON as UTF-8."""
    spans = read_ahead([member.extent.span for member in members])
    for member, _ in zip(members, spans, strict=True):
        num_bytes = member.extent.num_bytes
        if num_bytes > most_bytes:
            fault = f"is larger than {most_bytes >> 20} MiB ({num_bytes:,} bytes)"
            yield Text(member.key, b"", fault)
            continue
        try:
            data = member.extent.read()
        except MemberError as error:
            yield Text(member.key, b"", str(error))
            continue
        yield Text(member.key, as_utf8(data) if member.key.lower().endswith(".json") else data)
