"""The options that build an export again, for its `export.json`: what each layout says where."""

from __future__ import annotations

from typing import Any

from shardprep.dataset.schema import (
    BOX_LABEL,
    CLASS_PREFIX,
    KEYPOINTS,
    LABEL,
    LABELS,
    MASK,
    OBJECT_MASK,
    POINTS,
    TARGET_FEATURES,
    TARGET_IMAGE,
    TARGETS,
    Schema,
)
from shardprep.exporter.samples import FILE_COLUMNS, table_columns

_KINDS = {feature: kind for kind, feature in TARGET_FEATURES.items() if feature != TARGETS}
_NO_MARK = frozenset(",:;{}[]|\n")
"""Characters that a rule of options cannot have in a name."""
_ROWS_OF = {"parquet": "column:", "webdataset": "csv:{folder}/{id}.json:{folder}/{id}:"}
_TABLE = "csv:labels.csv:file_name:"
_MASKS = {
    "folder": "{folder}-masks/{stem}.png",
    "coco": "masks/{folder}/{stem}.png",
    "yolo": "masks/{folder}/{stem}.png",
    "webdataset": "{folder}/{stem}.segmentation_mask.png",
    "parquet": f"{{folder:(.+):image}}:{MASK}/{{name}}",
}
_OBJECTS = {"folder": "coco", "coco": "coco", "yolo": "yolo"}
_LOST = {
    "parquet": {OBJECT_MASK, KEYPOINTS, POINTS},
    "webdataset": {OBJECT_MASK, KEYPOINTS, POINTS},
    "yolo": {OBJECT_MASK},
}
"""Layout → features that it has, and that no option reads again."""


def options_of(layout: str, schema: Schema) -> dict[str, Any]:
    """Return the options of a build that reads an export.

    {} if a name does not fit into a rule, and for stacks and target images.
    """
    if schema.is_stack or TARGET_IMAGE in schema.features:
        return {}
    start = _ROWS_OF.get(layout, _TABLE)
    titles, kind = _titles(layout, schema)
    columns = [*table_columns(schema)]
    own = [*FILE_COLUMNS, *titles] if start == _TABLE else []
    if layout == "webdataset" or any(one in own or one.startswith("rows/") for one in columns):
        columns = []
    names = [*columns, *titles]
    mask = schema.features.get(MASK)
    names += mask.labels if mask else ()
    if any(_NO_MARK & set(name) or not name for name in names):
        return {}
    made: dict[str, Any] = {"labels": start + ",".join(titles) if titles else "none"}
    made |= {"target": kind} if titles and kind else {}
    if schema.target in (LABEL, LABELS) and mask is None:  # they would name those of masks
        made["classes"] = [*schema.labels]
    made |= {"columns": columns} if columns else {}
    lost = lost_in(layout, schema)
    if layout == "folder" and MASK in lost:
        made["exclude"] = ["*-masks/*"]
    if mask is not None and MASK not in lost:
        values = dict(enumerate(mask.labels)) | {mask.ignored: "ignore"}
        made["masks"] = _MASKS[layout]
        if layout == "parquet":
            made["images"] = ["*.parquet:image", f"*.parquet:{MASK}"]
        made["mask_values"] = ",".join(f"{value}={name}" for value, name in values.items())
    if POINTS in schema.features and start == _TABLE:
        made["points"] = "csv:labels.csv:file_name"
    return made | _objects(layout, schema)


def lost_in(layout: str, schema: Schema) -> list[str]:
    """Return the features of an export that no option of a build reads again."""
    lost = {*_LOST.get(layout, ()), *(table_columns(schema) if layout == "webdataset" else ())}
    if layout == "folder" and schema.target == LABEL:  # their names have no folder of the class
        lost.add(MASK)
    return sorted(lost & schema.features.keys())


def _titles(layout: str, schema: Schema) -> tuple[list[str], str]:
    """Return the columns or fields with the target of an image, and its kind."""
    target = schema.target
    if schema.class_features:
        short = [one.removeprefix(CLASS_PREFIX) for one in schema.class_features]
        named = {"parquet": "label/{}", "webdataset": "classes.{}"}.get(layout, "{}")
        numbers = schema.features[TARGETS].labels if target == TARGETS else ()
        return [*map(named.format, short), *numbers], "classes"
    if target == TARGETS:
        feature = schema.features[TARGETS]
        named = {"parquet": TARGETS, "webdataset": "targets.{}"}.get(layout, "{}")
        titles = dict.fromkeys(map(named.format, feature.labels))
        return [*titles], "soft" if feature.soft else "vector"
    if target is None:
        return [], ""
    names = {LABEL: "class", LABELS: "classes"} if layout != "parquet" else {}
    return [names.get(target, target)], _KINDS[target]


def _objects(layout: str, schema: Schema) -> dict[str, Any]:
    if BOX_LABEL not in schema.features:
        return {}
    if layout == "parquet":
        return {"boxes": "column:xywh(objects.bbox):objects.category"}
    if layout == "webdataset":
        return {"boxes": f"{_ROWS_OF[layout]}yxyx(objects.bbox):objects.class"}
    kind = _OBJECTS[layout]
    made: dict[str, Any] = {"boxes": kind, "unlisted": "background"}
    made |= {"points": kind} if KEYPOINTS in schema.features else {}
    if OBJECT_MASK in schema.features:
        made["exclude"] = ["*object-masks/*"]
        made |= {"masks": kind, "instances": True} if kind == "coco" else {}
    return made
