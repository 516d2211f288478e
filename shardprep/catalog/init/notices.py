"""Remarks of a catalog for the user, and the errors that ask instead."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.catalog.filters import MOST_SHOWN
from shardprep.catalog.init.candidates import label_findings
from shardprep.catalog.items import Items
from shardprep.catalog.labels.labels import ENOUGH, Labelling
from shardprep.catalog.labels.targets import Targets
from shardprep.catalog.objects.combine import NO_ANNOTATION, NO_MASK, Annotated
from shardprep.catalog.objects.detect_by_name import annotation_findings
from shardprep.catalog.objects.known_formats import holds_boxes
from shardprep.catalog.splits import group_findings
from shardprep.errors import SourceError, shown, some_of
from shardprep.source.file_listing import LEADS_OUTSIDE
from shardprep.source.listing import Listing, Skipped

if TYPE_CHECKING:
    from shardprep.catalog.source_images import SourceImages

NO_LABEL = "no label"
"""Reason for leaving out an image without a label in a split that has labels."""


def catalog_findings(
    wanted: SourceImages,
    listing: Listing,
    targets: Targets,
    annotated: Annotated | None,
    made: tuple[Items, Sequence[Skipped]],
) -> list[str]:
    """Return remarks for the user, a line each; `made` are the items, and images left out.

    Raises:
        SourceError: `--labels auto` would leave out more than a tenth of the images.

    """
    recipe, labelling = wanted.recipe, wanted.labelling
    items, unlabelled = made
    findings: list[str] = []
    if num_links := _num_links_outside(listing):
        links = "1 link that leads" if num_links == 1 else f"{num_links:,} links that lead"
        findings.append(f"{links} outside skipped; --follow-links follows")
    unmapped = targets.unmapped
    if annotated is not None:
        has_labels = targets.kind != "none"
        unmapped = tuple(n for n in annotated.unmapped if not has_labels or n in unmapped)
    if unmapped:
        findings.append(f"--class-map: no class is called {some_of(unmapped)}")
    if recipe.rules.group.kind != "none":
        findings += group_findings(items, recipe.rules.group.text, recipe.rules.split.ratios)
    if annotated is not None:
        findings += annotated.findings
        lost = sum(one.reason in (NO_ANNOTATION, NO_MASK) for one in unlabelled)
        if lost:
            hint = "; --unlisted background takes them" if annotated.has_background else ""
            findings.append(f"{lost:,} images that no annotation lists are skipped{hint}")
    elif recipe.labels == "auto":
        _ask_about(unlabelled, labelling, len(wanted.members))
        findings += labelling.findings
        others = [member.key for member in listing.others]
        holds = partial(holds_boxes, wanted.documents)
        findings += annotation_findings(wanted.index.keys, others, holds)
        if labelling.rule == "none":
            findings += label_findings(wanted.index, wanted.tables)
    return findings


def no_image(source: str, listing: Listing) -> SourceError:
    """Return the error for a source without an image."""
    if num_links := _num_links_outside(listing):
        what = f"holds no image, but {num_links:,} links that lead outside of it"
        return SourceError(source, what, "add --follow-links if they are to be followed")
    suffixes = Counter(Path(member.key).suffix or "no suffix" for member in listing.others)
    found = ", ".join(f"{count} {suffix}" for suffix, count in suffixes.most_common(4))
    what = f"holds no image ({found or 'it is empty'})"
    return SourceError(source, what, "is it the right archive?")


def _num_links_outside(listing: Listing) -> int:
    return sum(one.reason == LEADS_OUTSIDE for one in listing.skipped)


def _ask_about(unlabelled: Sequence[Skipped], labelling: Labelling, num_images: int) -> None:
    """Raise a SourceError if `auto` would leave out more than a tenth of all images."""
    lost = [one.key for one in unlabelled if one.reason == NO_LABEL]
    if num_images - len(lost) < ENOUGH * num_images:
        rule = shlex.quote(labelling.rule)
        raise SourceError(
            "--labels auto",
            f"finds no label for {len(lost):,} of {num_images:,} images, such as "
            f"{shown(lost[0], MOST_SHOWN)} (labels by {labelling.how})",
            f"--labels {rule} leaves them out, --labels none takes all without labels",
        )
