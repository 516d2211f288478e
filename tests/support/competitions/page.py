"""The table of docs/competitions.md: `python -m tests.support.competitions.page` writes it."""

import itertools
import shlex
from typing import Any

from tests.support.competitions.documents import DOCUMENTS
from tests.support.competitions.photos import PHOTOS
from tests.support.competitions.series import SERIES
from tests.support.competitions.twin import Competition, Outside
from tests.support.competitions.volumes import VOLUMES
from tests.support.layouts import markdown_table
from tests.support.paths import ROOT, with_part

PAGE = ROOT / "docs" / "competitions.md"
COMPETITIONS = (*PHOTOS, *SERIES, *DOCUMENTS, *VOLUMES)
OUTSIDE = (
    Outside(
        "g2net-detecting-continuous-gravitational-waves", "HDF5 of complex numbers",
        "Write the power of the complex numbers to `.npy` files first.",
    ),
    Outside(
        "waveform-inversion", "`.npy` files of 5 recordings, and of a velocity map for them",
        "Target images belong to single images: write the 5 recordings side by side first.",
    ),
)  # fmt: skip
_MARKS = "<!-- competitions -->\n", "<!-- end of competitions -->\n"
_CHOICES = frozenset(
    ("columns", "depth", "depth_range", "format", "group", "overlap", "size", "split", "tile")
) | {"window"}
"""Options that are a choice: nothing in a source says which value is right."""
_MOST_SHOWN = 180


def options_of(flags: str) -> dict[str, Any]:
    """Return key of a recipe → its value, or its values if the flag is repeated."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, value in itertools.pairwise([*shlex.split(flags), "--"]):
        if name.startswith("--"):
            key = name[2:].replace("-", "_")
            found[key] = (*found.get(key, ()), True if value.startswith("--") else value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def is_right(twin: Competition) -> bool:
    """Return whether every flag is proposed that is not a choice of the user."""
    options = options_of(twin.flags).items()
    wanted = {key: value for key, value in options if key not in _CHOICES}
    return bool(wanted) and wanted == options_of(twin.proposal)


def page_text(page: str) -> str:
    header = ("competition", "layout", "flags", "stored", "proposed")
    rows = [
        [
            twin.slug,
            twin.special,
            f"`{_shortened(twin.flags)}`",
            twin.stored + (f". Not stored: {twin.missing}" if twin.missing else ""),
            "all" if is_right(twin) else f"`{_shortened(twin.proposal)}`" * bool(twin.proposal),
        ]
        for twin in COMPETITIONS
    ]
    outside = [[one.slug, one.special, one.reason] for one in OUTSIDE]
    text = markdown_table(header, rows) + "\nNot with flags alone:\n\n"
    text += markdown_table(("competition", "layout", "what to do"), outside)
    return with_part(page, _MARKS, text)


def _shortened(flags: str) -> str:
    """Return flags without the columns in the middle of a long list."""
    parts = [part.split(",") for part in flags.split(" --")]
    shown = [
        [*part[:2], "…", part[-1]] if len(",".join(part)) > _MOST_SHOWN else part for part in parts
    ]
    return " --".join(map(",".join, shown))


if __name__ == "__main__":
    PAGE.write_text(page_text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
