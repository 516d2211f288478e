"""Find out whether annotations were made on images turned upright by EXIF, or on stored pixels.

A turn by 90° swaps height and width, so the size that an annotation or mask file states shows it.
Images that are turned by 180° or mirrored are assumed to be annotated in the same frame.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardprep.catalog.objects.formats.box_format import image_head, image_size
from shardprep.catalog.source_images import SourceImages
from shardprep.errors import OptionName, counted
from shardprep.image.annotation_types import FRAMES, Annotation, Frame
from shardprep.image.placement import Placement
from shardprep.source.byte_range import StoredExtent
from shardprep.source.members import Member
from shardprep.storage.url import is_url

_MOST, _MOST_BY_URL = 512, 64
"""Maximum number of images to read, local and remote; they are evenly spaced."""
_ORIENTATIONS = range(2, 9)


def annotated_frames(
    images: SourceImages,
    annotations: Sequence[Annotation | None],
    masks: Sequence[Sequence[Member]],
) -> tuple[tuple[Frame, ...], list[str]]:
    """Return the possible frames, the likeliest first, and a finding if sizes prove neither."""
    annotated = images.recipe.annotated
    if annotated != "auto":
        return (annotated,), []
    stored = [
        i
        for i, one in enumerate(annotations)
        if (masks[i] or one is not None) and isinstance(images.members[i].extent, StoredExtent)
    ]
    is_far = bool(stored) and is_url(images.members[stored[0]].extent.span.file)
    some = stored[:: -(-len(stored) // (_MOST_BY_URL if is_far else _MOST)) or 1]
    proven: set[Frame] = set()
    num_open = 0
    for i in some:
        head = image_head(images.members[i].extent)
        if head is None or head.orientation not in _ORIENTATIONS:
            continue
        one = annotations[i]
        size = (one and one.size) or (image_size(masks[i][0].extent) if masks[i] else None)
        placement = Placement.whole(*head)
        fits = [frame for frame in FRAMES if size and placement.frame(size, (frame,))]
        proven.update(fits if len(fits) == 1 else ())
        num_open += len(fits) != 1
    if len(proven) == 1 or not num_open:
        return FRAMES[::-1] if proven == {"stored"} else FRAMES, []
    how = "their sizes disagree" if proven else "no size shows"
    finding = (
        f"{num_open:,} of {counted(len(some), 'image')} with annotations have an EXIF orientation, "
        f"and {how} whether they were annotated upright; upright is assumed: set "
        f"{OptionName('annotated')} upright or stored"
    )
    return FRAMES, [finding]
