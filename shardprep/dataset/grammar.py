"""The names that the format allows for datasets, versions, splits, shard files and hashes.

Documents of strangers are checked against these when they are parsed, before any of the names
becomes a path, a key or a line on a terminal. Digits are those of ASCII.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, StringConstraints

_NAME = "[a-z][a-z0-9_]{0,99}"
_VERSION = r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}"
MAX_NAME = 100
"""Largest number of characters in the name of a dataset or split."""

NAME = re.compile(_NAME)
VERSION = re.compile(_VERSION)
SHARD = re.compile(
    rf"(?P<name>{_NAME})-(?P<split>{_NAME})\.tfrecord-(?P<index>[0-9]{{5}})-of-(?P<count>[0-9]{{5}})"
)

Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
Version = Annotated[str, StringConstraints(pattern=f"^{_VERSION}$")]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hex, as it may stand in a file name."""
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
"""A count of things or bytes, small enough that sums fit int64."""


def shard_name(dataset: str, split: str, index: int, count: int) -> str:
    """Return the file name of a shard, as TFDS's default template has it."""
    return f"{dataset}-{split}.tfrecord-{index:05d}-of-{count:05d}"


def version_key(version: str) -> tuple[int, ...]:
    """Return a sort key under which 1.9.0 stands before 1.10.0."""
    return tuple(int(number) for number in version.split("."))
