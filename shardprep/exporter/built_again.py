"""The options that build an export again, for its `export.json`: what each layout says where."""

from __future__ import annotations

import itertools
from typing import Any

from shardprep.dataset.schema import (
    BOX_LABEL,
    CROWD,
    KEYPOINTS,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    POINTS,
    ROWS,
    TARGET_FEATURES,
    TARGET_IMAGE,
    TARGETS,
    Schema,
)
from shardprep.exporter.cells import TAKEN, VISIBLE, Role, titles
from shardprep.exporter.samples import FILE_COLUMNS

_KINDS = {feature: kind for kind, feature in TARGET_FEATURES.items() if feature != TARGETS}
_NO_MARK = frozenset(",:;{}|\n")
"""Characters that a rule of options cannot have in a name."""
_ROWS_OF = {"parquet": "column:", "webdataset": "csv:{folder}/{id}.json:{folder}/{id}:"}
_TABLE = "csv:labels.csv:file_name:"
_MASKS = {
    "folder": "class-masks/{dir}/{stem}.png",
    "coco": "masks/{folder}/{stem}.png",
    "yolo": "masks/{folder}/{stem}.png",
    "webdataset": "{folder}/{stem}.segmentation_mask.png",
    "parquet": f"{{folder:(.+):image}}:{MASK}/{{name}}",
}
_OBJECTS = {
    "folder": "coco",
    "coco": "coco",
    "yolo": "yolo",
    "parquet": "column:xywh(objects.bbox):objects.category",
    "webdataset": f"{_ROWS_OF['webdataset']}yxyx(objects.bbox):objects.class",
}


def options_of(layout: str, schema: Schema) -> dict[str, Any]:
    """Return the options of a build that reads an export.

    {} if a name does not fit into a rule, and for stacks and target images.
    """
    if schema.is_stack or TARGET_IMAGE in schema.features:
        return {}
    start = _ROWS_OF.get(layout, _TABLE)
    roles = _titles(layout, schema)
    targets, points, columns = (
        [title for title, role in roles if role == one] for one in ("target", "points", "column")
    )
    columns = [one for one in columns if not one.startswith(ROWS)]
    mask = schema.features.get(MASK)
    names = [*targets, *points, *columns, *(mask.labels if mask else ())]
    if any(_NO_MARK & set(name) or not name for name in names):
        return {}
    made: dict[str, Any] = {"labels": start + ",".join(targets) if targets else "none"}
    if targets:
        made["target"] = _kind(schema)
    elif columns and layout != "parquet":
        made |= {"labels": f"{start}key", "target": "none"}
    if classes := _classes(layout, schema):
        made["classes"] = [*classes]
    made |= {"columns": columns} if columns else {}
    if mask is not None:
        values = dict(enumerate(mask.labels)) | {mask.ignored: "ignore"}
        made["masks"] = _MASKS[layout]
        if layout == "parquet":
            made["images"] = ["*.parquet:image", f"*.parquet:{MASK}"]
        made["mask_values"] = ",".join(f"{value}={name}" for value, name in values.items())
    if points:
        made["points"] = start + ",".join(one for one in points if not one.endswith(VISIBLE))
    return made | (_objects(layout, schema) if BOX_LABEL in schema.features else {})


def lost_in(layout: str, schema: Schema) -> list[str]:
    """Return the features of an export that no option of a build reads again."""
    lost = {one for one in schema.features if one.startswith(ROWS)}
    if layout == "yolo":
        lost |= {CROWD, *([OBJECT_MASK] if KEYPOINTS in schema.features else ())}
    return sorted(lost & schema.features.keys())


def _kind(schema: Schema) -> str:
    if schema.class_features:
        return "auto" if TARGETS in schema.features else "classes"
    if schema.target == TARGETS:
        return "soft" if schema.features[TARGETS].soft else "vector"
    return _KINDS[schema.target or ""]


def _classes(layout: str, schema: Schema) -> tuple[str, ...]:
    """Return the classes to state, in order; () if they would also name those of objects."""
    parts = [one for one in (BOX_LABEL, MASK) if one in schema.features]
    has_more = parts or POINTS in schema.features
    labels: tuple[str, ...] = schema.labels if schema.target in (LABEL, LABELS) else ()
    if layout == "parquet" and schema.target == TARGETS and not has_more:
        labels = schema.features[TARGETS].labels
    others = (schema.features[one].labels for one in parts)
    return labels if {*labels}.isdisjoint(itertools.chain(*others)) else ()


def _titles(layout: str, schema: Schema) -> list[tuple[str, Role]]:
    """Return the columns or fields of the values of an image, and their roles."""
    found = titles(schema, TAKEN.get(layout, FILE_COLUMNS))
    if layout == "parquet":  # a class is one column there, and the numbers of a vector are a list
        own = [*schema.class_features, *filter(None, [schema.target])]
        others = [one for one in found if one[1] in ("points", "column")]
        return [*((one, "target") for one in own), *others]
    return found


def _objects(layout: str, schema: Schema) -> dict[str, Any]:
    kind, features = _OBJECTS[layout], schema.features
    made: dict[str, Any] = {"boxes": kind}
    made |= {"unlisted": "background"} if layout not in _ROWS_OF else {}
    made |= {"crowds": "objects"} if kind == "coco" and CROWD not in features else {}
    made |= {"points": kind} if KEYPOINTS in features else {}
    if OBJECT_MASK in features and OBJECT_MASK not in lost_in(layout, schema):
        made |= {"masks": kind, "instances": True}
    if OBJECT_MASK in features and (layout == "folder" or "masks" not in made):
        made["exclude"] = ["*object-masks/*"]
    return made
