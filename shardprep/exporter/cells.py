"""The values of an image by column: in `labels.csv`, and in the JSON of WebDataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from shardprep.dataset.schema import (
    CLASS_PREFIX,
    LABEL,
    LABELS,
    POINTS,
    TARGETS,
    UNLABELLED,
    Schema,
)
from shardprep.exporter.coco import pixel_points
from shardprep.exporter.samples import ExportSample, table_columns

Role = Literal["target", "number", "points", "column"]
"""What a build reads of a column: the target, nothing (a class index), keypoints, or a feature."""

VISIBLE = "visible"
TAKEN = {
    "webdataset": ("key", "height", "width", "objects"),
    "parquet": ("image", "key", "width", "height"),
}
"""Layout → its own fields, which no column may have as its name."""


def titles(
    schema: Schema, taken: Iterable[str], more: Sequence[str] = ()
) -> list[tuple[str, Role]]:
    """Return the columns and their roles; `more` are further columns at the end.

    A name that is among `taken`, or that an earlier column has, starts with what it is.
    """
    found: list[tuple[str, Role]] = []
    known = {*taken}

    def add(role: Role, kind: str, names: Iterable[str]) -> None:
        found.extend((f"{kind}/{name}" if name in known else name, role) for name in names)
        known.update(title for title, _ in found)

    target = schema.target
    if target == TARGETS:
        add("target", TARGETS, schema.features[TARGETS].labels)
    elif target is not None:
        add("number" if target in (LABEL, LABELS) else "target", "target", [target])
    for name in schema.class_features:
        add("number", "class", [name])
        add("target", "class", [name.removeprefix(CLASS_PREFIX)])
    add("target", "target", {LABEL: ["class"], LABELS: ["classes"]}.get(target or "", []))
    add("points", "point", point_titles(schema))
    add("column", "column", (*table_columns(schema), *more))
    return found


def point_titles(schema: Schema) -> list[str]:
    """Return the columns of the keypoints of images: x, y and visibility of each."""
    names = schema.features[POINTS].points if POINTS in schema.features else ()
    return [f"{name}_{part}" for name in names for part in ("x", "y", VISIBLE)]


def point_cells(sample: ExportSample) -> list[float | None]:
    """Return x and y in pixels and visibility of each keypoint; None for an unknown place."""
    flat = pixel_points(sample, sample.points)
    cells: list[float | None] = []
    for i in range(0, len(flat), 3):
        cells += flat[i : i + 3] if flat[i + 2] else [None, None, 0]
    return cells


def cells_of(sample: ExportSample, schema: Schema) -> list[object]:
    """Return the values of the columns of `titles`; None if missing, a list for several values."""
    target, cells = sample.target, list[object]()
    if schema.target == TARGETS and isinstance(target, list):
        cells += target
    elif schema.target is not None:
        cells.append([*target] if isinstance(target, tuple) else target)
    for name, label in sample.classes.items():
        cells += [label, _name(label, schema.features[name].labels)]
    if isinstance(target, tuple):
        cells.append([schema.labels[one] for one in target])
    elif schema.target == LABEL and isinstance(target, int):
        cells.append(_name(target, schema.labels))
    return [*cells, *point_cells(sample), *sample.columns.values()]


def _name(label: int, names: Sequence[str]) -> str | None:
    return None if label == UNLABELLED else names[label]
