"""The limits of a dataset: how many images may be rejected, and how many objects may be bad."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shardprep.catalog.objects.parsed import NO_FAULTS
from shardprep.dataset.manifest import Manifest
from shardprep.errors import BuildError
from shardprep.image.boxes import SHORTFALLS
from shardprep.writer.workspace.files import Folders
from shardprep.writer.workspace.states import Workspace

if TYPE_CHECKING:
    from pathlib import Path

_NO_FAULTS = (*SHORTFALLS, *NO_FAULTS)
"""Reasons to leave an object out that are no fault of the source."""


class TooManyRejectedError(BuildError):
    """The images are all encoded, but more of them are bad than the recipe accepts."""

    def __init__(
        self, where: str, what: str, hint: str, *, manifest: Manifest, draft: Path
    ) -> None:
        """`manifest` is the one that was not published, `draft` a folder with its item table."""
        super().__init__(where, what, hint)
        self.manifest = manifest
        self.draft = draft

    def as_json(self, exit_code: int) -> dict[str, Any]:
        """Return the error, and the totals of all inputs beside it."""
        return {**super().as_json(exit_code), "totals": self.manifest.totals}


def check_rejections(
    workspace: Workspace, folders: Folders, manifest: Manifest, limit: float
) -> None:
    """Check that few enough images are rejected, else TooManyRejectedError."""
    totals = manifest.totals
    num_items = totals.num_written + totals.num_rejected
    if totals.num_rejected > limit * num_items:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in totals.rejected.items())
        raise TooManyRejectedError(
            str(folders.state),
            f"{totals.num_rejected:,} of {num_items:,} images are rejected "
            f"({totals.num_rejected / num_items:.1%}), the limit is {limit:.1%}: {kinds}",
            "the work is kept: run again with a higher --max-rejected to accept it",
            manifest=manifest,
            draft=workspace.documents(folders.output),
        )


def check_dropped(folders: Folders, manifest: Manifest, limit: float) -> None:
    """Check that few enough objects are bad; those that a crop cut away are not."""
    kept, lost = 0, Counter[str]()
    for counts in manifest.annotations.values():
        kept += counts.objects.num_objects if counts.objects else 0
        lost.update(counts.dropped)
    lost.update(manifest.unmatched.objects if manifest.unmatched else {})
    bad = Counter({why: count for why, count in lost.items() if why not in _NO_FAULTS})
    total = kept + bad.total()
    if bad.total() > limit * total:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(bad.items()))
        raise BuildError(
            str(folders.state),
            f"{bad.total():,} of {total:,} objects are bad ({bad.total() / total:.1%}), the limit "
            f"is {limit:.1%}: {reasons}",
            "the work is kept: run again with a higher --max-dropped to accept it",
        )
