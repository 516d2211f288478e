"""The annotations of all images of a source, as every format gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardprep.dataset.manifest import ELSEWHERE, LEFT_OUT

if TYPE_CHECKING:
    from shardprep.image.annotation_types import Annotation
    from shardprep.recipe.object_rules import BoxColumns

NOT_ASKED_FOR = "not among --classes"
"""Reason for which an object is dropped that is sound, but of a class that is not wanted."""
NO_FAULTS = (NOT_ASKED_FOR, LEFT_OUT, ELSEWHERE)
"""Reasons that do not count against `--max-dropped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Annotations by image, and what else their documents say."""

    annotations: list[Annotation | None]
    """For each key of the index, in its order; None where no document lists the image."""
    names: tuple[str, ...]
    """Class names; labels are indices into them."""
    how: str
    """Format and dialect, in one line for the user."""
    documents: tuple[str, ...] = ()
    """Keys of the members that were read."""
    without_image: Mapping[str, int] = field(default_factory=dict)
    """Name of each annotated image that the source does not have → number of its objects."""
    num_elsewhere: int = 0
    """Objects of documents of which the source has no image at all; not in `without_image`."""
    splits: list[str | None] | None = None
    """Split of each image where the format gives one; None where it does not."""
    notation: BoxColumns | None = None
    """Meaning of the four numbers of a box; None where shapes are no four numbers."""
    is_table: bool = False
    """Whether these numbers are columns of a table, of which `--boxes` says how to read them."""
    is_complete: bool = False
    """Whether an image that is not listed has no objects, as in YOLO's format."""
    segments: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """Position of an image → panoptic document, and name of the mask file with its segments."""
    findings: list[str] = field(default_factory=list)
    """Remarks for the user, a line each."""
