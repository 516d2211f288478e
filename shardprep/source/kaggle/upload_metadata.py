"""The metadata of an upload, checked against Kaggle's rules before anything is sent.

The rules are from the client (title, slug), the documentation (licences) and the server (sizes).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardprep.errors import OptionName, RecipeError, SourceError
from shardprep.source.kaggle.client_error import no_credentials
from shardprep.source.kaggle.credentials import credentials
from shardprep.source.kaggle.ref import KaggleRef
from shardprep.storage.space import megabytes

LICENSES = (
    *("CC0-1.0", "CC-BY-3.0", "CC-BY-3.0-IGO", "CC-BY-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0"),
    *("CC-BY-NC-4.0", "CC-BY-NC-SA-4.0", "CC-BY-NC-SA-3.0-IGO", "CC-BY-ND-4.0", "CC-BY-NC-ND-4.0"),
    *("ODbL-1.0", "DbCL-1.0", "ODC-BY-1.0", "PDDL", "CDLA-Permissive-1.0", "CDLA-Sharing-1.0"),
    *("GPL-2.0", "GPL-3.0", "LGPL-3.0", "AGPL-3.0", "FDL-1.3", "apache-2.0"),
    *("US-Government-Works", "EU-ODP-Legal-Notice", "copyright-authors", "other", "unknown"),
)
_UNKNOWN = "unknown"
_LENGTHS = range(6, 51)
_SLUG = re.compile("[a-z0-9]+(-[a-z0-9]+)*")
_MAX_BYTES = 200 * 10**9
_MAX_FILES = 1000
"""Maximum number of uploaded files. A folder counts as one file."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A dataset to upload, with its metadata for Kaggle."""

    folder: Path
    sizes: Mapping[str, int]
    """Path → size in bytes."""
    ref: KaggleRef
    message: str
    """Notes of a new version. For the first version, Kaggle writes its own notes."""
    title: str | None = None
    """Title of a new dataset. None: the name with spaces instead of hyphens."""
    license: str | None = None
    """Licence of a new dataset. None is allowed for a private dataset."""
    is_public: bool = False

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes.values())

    def metadata(self, *, is_new: bool) -> dict[str, object]:
        if not is_new:
            return {"id": self.ref.slug}
        title = _checked_title(self.title or self.ref.name.replace("-", " "))
        licenses = [{"name": _checked_license(self.license or _UNKNOWN)}]
        return {"id": self.ref.slug, "title": title, "licenses": licenses}


def check_publication(wanted: Publication) -> None:
    """Raise RecipeError or SourceError if Kaggle would reject the upload; send no request.

    The names, licence, sizes and credentials are checked.
    """
    _check_target(wanted.ref)
    if wanted.title is not None:
        _checked_title(wanted.title)
    if wanted.license is not None:
        _checked_license(wanted.license)
    num_bytes, num_files = wanted.num_bytes, len({path.split("/")[0] for path in wanted.sizes})
    if num_bytes > _MAX_BYTES:
        what = f"the dataset has {megabytes(num_bytes)}, Kaggle accepts {megabytes(_MAX_BYTES)}"
        hint = f"build it with a smaller {OptionName('size')} or {OptionName('quality')}"
        raise SourceError(str(wanted.ref), what, hint)
    if num_files > _MAX_FILES:
        what = f"the dataset has {num_files:,} files, Kaggle accepts {_MAX_FILES:,}"
        raise SourceError(str(wanted.ref), what, f"build it with fewer {OptionName('shards')}")
    if not credentials():
        raise no_credentials(wanted.ref)


def check_new(wanted: Publication) -> None:
    """Raise RecipeError if a new dataset would break Kaggle's rules for name or licence."""
    ref = wanted.ref
    if len(ref.name) not in _LENGTHS:
        what = f"the name of a new dataset must have {_LENGTHS[0]} to {_LENGTHS[-1]} characters"
        raise RecipeError(str(ref), f"{what}, this name has {len(ref.name)}", "choose another name")
    if wanted.is_public and wanted.license is None:
        what = "is missing, but a public dataset needs a licence"
        hint = f"add {OptionName('license', 'CC-BY-4.0')}, or another"
        raise RecipeError(OptionName("license"), what, hint)


def _check_target(ref: KaggleRef) -> None:
    if ref.kind == "competition":
        what, hint = "is a competition, not a dataset", "write kaggle:OWNER/NAME"
    elif ref.version is not None:
        what = f"names version {ref.version}, but Kaggle numbers new versions itself"
        hint = f"write kaggle:{ref.owner}/{ref.name}"
    elif not _SLUG.fullmatch(ref.name):
        good = "-".join(re.findall("[a-z0-9]+", ref.name.lower())) or "NAME"
        what = f"the name {ref.name!r} may contain only a-z, 0-9 and single hyphens"
        hint = f"write kaggle:{ref.owner}/{good}"
    else:
        return
    raise RecipeError(str(ref), what, hint)


def _checked_title(title: str) -> str:
    title = " ".join(title.split())
    if len(title) not in _LENGTHS:
        what = f"a title must have {_LENGTHS[0]} to {_LENGTHS[-1]} characters"
        raise RecipeError(OptionName("title"), f"{what}, {title!r} has {len(title)}")
    return title


def _checked_license(name: str) -> str:
    known = {one.casefold(): one for one in LICENSES}
    if name.casefold() not in known:
        hint = f"the names are {', '.join(LICENSES)}"
        raise RecipeError(OptionName("license"), f"Kaggle has no licence {name!r}", hint)
    return known[name.casefold()]
