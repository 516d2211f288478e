"""References to archives on Kaggle. They are parsed from text, without network requests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from shardprep.errors import RecipeError

SCHEME = "kaggle:"
SITE = "https://www.kaggle.com"

_HOSTS = ("www.kaggle.com", "kaggle.com")
_SLUG = "[A-Za-z0-9][A-Za-z0-9_.-]*"
_DATASET = rf"(?P<owner>{_SLUG})/(?P<name>{_SLUG})"
_VERSION = "(?P<version>[1-9][0-9]{0,8})"
_PAGES = (
    rf"(competitions|c)/(?P<name>{_SLUG})(/.*)?",
    rf"datasets/{_DATASET}(/versions/{_VERSION})?(/.*)?",
)
_NAMES = (
    rf"(?P<name>{_SLUG})",
    rf"(?!(competitions|c|datasets)/){_DATASET}(/(versions/)?{_VERSION})?",
)


@dataclass(frozen=True, slots=True)
class KaggleRef:
    """An archive on Kaggle. `str` returns the form that users write, such as `kaggle:NAME`."""

    kind: Literal["competition", "dataset"]
    owner: str
    """Owner of a dataset; "" for a competition."""
    name: str
    version: int | None = None
    """Version of a dataset; None for its newest version, or for a competition."""

    def __str__(self) -> str:
        return SCHEME + self.slug

    @property
    def slug(self) -> str:
        """Name for the client: `name`, `owner/name` or `owner/name/3`."""
        parts = (self.owner, self.name, str(self.version or ""))
        return "/".join(part for part in parts if part)

    @property
    def cache_path(self) -> Path:
        if self.kind == "competition":
            return Path("kaggle", "competitions", self.name)
        return Path("kaggle", "datasets", self.owner, self.name, str(self.version or "newest"))

    @property
    def page(self) -> str:
        if self.kind == "competition":
            return f"{SITE}/competitions/{self.name}"
        return f"{SITE}/datasets/{self.owner}/{self.name}"


def is_ref(source: str) -> bool:
    """Return True for a text that begins with `kaggle:`, and for a URL on kaggle.com."""
    return source.startswith(SCHEME) or _host(source) in _HOSTS


def parse_ref(text: str) -> KaggleRef:
    """Parse `[kaggle:]NAME`, `[kaggle:]OWNER/NAME[/VERSION]` or a URL; RecipeError if invalid."""
    path = text.removeprefix(SCHEME)
    is_page = _host(path) in _HOSTS
    parts = (urlsplit(path).path if is_page else path).split("/")
    patterns = _PAGES if is_page else (*_PAGES, *_NAMES)
    path = "/".join(filter(None, parts))
    matches = (re.fullmatch(pattern, path, re.DOTALL) for pattern in patterns)
    match = next(filter(None, matches), None)
    if match is None:
        raise RecipeError(
            repr(text),
            "names neither a competition nor a dataset of Kaggle",
            "write kaggle:COMPETITION, kaggle:OWNER/DATASET, kaggle:OWNER/DATASET/VERSION, or "
            f"paste its address ({SITE}/competitions/… or {SITE}/datasets/…)",
        )
    facts = match.groupdict()
    owner, version = facts.get("owner", ""), facts.get("version")
    kind: Literal["competition", "dataset"] = "dataset" if owner else "competition"
    return KaggleRef(kind, owner, facts["name"], int(version) if version else None)


def _host(text: str) -> str | None:
    try:
        return urlsplit(text).hostname
    except ValueError:  # brackets that hold no address
        return None
