"""What `export.json` says of objects: all classes in their order, and names of keypoints."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardprep.catalog.objects.formats.coco import skeleton_of
from shardprep.catalog.objects.object_table import Found
from shardprep.image.annotation_types import Skeleton
from shardprep.image.boxes import united


def as_exported(found: Found, facts: Mapping[str, Any]) -> Found:
    """Return the objects with the classes and keypoints that `facts` state, if they fit."""
    stated = facts.get("object_labels")
    names = tuple(stated) if isinstance(stated, list) else ()
    if all(isinstance(one, str) for one in names) and {*found.names} <= {*names}:
        names = tuple(dict.fromkeys(names))
        place = [names.index(name) for name in found.names]
        annotations = [
            one
            and replace(
                one,
                labels=tuple(place[label] for label in one.labels),
                areas=tuple((area, place[label]) for area, label in one.areas),
            )
            for one in found.annotations
        ]
        found = replace(found, annotations=annotations, names=names)
    with contextlib.suppress(LookupError, TypeError, ValueError):
        skeleton, mirrored = skeleton_of(facts["keypoints"])[0], facts["keypoints"]["flip_idx"]
        known = found.skeleton or Skeleton()
        if len(skeleton.names) == len(known.names) and sorted(mirrored) == [*range(len(mirrored))]:
            whole = united([skeleton._replace(mirrored=tuple(mirrored))])
            found = replace(found, skeleton=whole)
    return found
