"""Write the items of a plan as a table, from which `--items` builds the same shards."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardprep.catalog.items import Item
from shardprep.catalog.objects.combine import AnnotationFacts
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.tables.columns import DICOM
from shardprep.catalog.target_values import TargetValues
from shardprep.catalog.targets import Target
from shardprep.dataset.schema import (
    CLASS_PREFIX,
    NUM_IMAGES,
    PRESENT,
    ROWS,
    TARGETS,
    UNLABELLED,
    Schema,
)
from shardprep.errors import OptionName, RecipeError
from shardprep.image.annotation_types import IS_CROWD, Counts, Outline, Polygons, Runs
from shardprep.source.members import StackExtent
from shardprep.storage.atomic_file import write_durably
from shardprep.writer.plan.build_plan import BuildPlan

_IN_ARRAY = re.compile(r"(\.[^/.]+)/\d{6,}$")
"""Matches the end of the key of a mask, if its file holds several masks."""
_OWN = (NUM_IMAGES, "spacing/", DICOM)
"""Prefixes of columns that a build computes from the files, so that the table omits them."""


def write_items(plan: BuildPlan, file: Path) -> None:
    """Write `items_table` as .csv or .parquet; RecipeError if `file` has another suffix."""
    table, stream = items_table(plan), io.BytesIO()
    if file.suffix.lower() == ".csv":
        text = io.TextIOWrapper(stream, "utf-8", newline="", write_through=True)
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow(table.column_names)
        lines.writerows(map(_cells, table.to_pylist()))
    elif file.suffix.lower() == ".parquet":
        pq.write_table(table, stream)
    else:
        raise RecipeError(_option(file), "is neither .csv nor .parquet", "use one of these endings")
    write_durably(file, stream.getvalue())


def _cells(row: dict[str, Any]) -> list[Any]:
    return [json.dumps(one) if isinstance(one, list) else one for one in row.values()]


def items_table(plan: BuildPlan) -> Any:
    """Return a row for each image, or for each file of a stack, in the order of the keys.

    RecipeError for items that a table cannot describe: tiles, panoptic masks, mask files of several
    classes, and outlines without boxes together with boxes.
    """
    if "tile/y" in plan.columns:
        raise _unstated("tiles")
    items = sorted((one for shard in plan.shards for one in shard.items), key=lambda one: one.key)
    rows = [row for item in items for row in _rows(item, plan)]
    if any(isinstance(row.get("mask"), list) for row in rows):
        rows = [row | {"mask": _listed(row["mask"])} if "mask" in row else row for row in rows]
    are_known = [bool(np.isfinite(row["boxes"]).all()) for row in rows if row.get("boxes")]
    if any(are_known) and not all(are_known):
        raise _unstated("outlines without boxes beside boxes")
    if are_known and not any(are_known):
        rows = [_without_boxes(row) if "boxes" in row else row for row in rows]
    titles = dict.fromkeys(title for row in rows for title in row)
    return pa.table({title: pa.array([row.get(title) for row in rows]) for title in titles})


def _without_boxes(row: dict[str, Any]) -> dict[str, Any]:
    outlines = {"segmentation": row.get("segmentation", [])}
    return {title: one for title, one in row.items() if title != "boxes"} | outlines


def _rows(item: Item, plan: BuildPlan) -> Iterator[dict[str, Any]]:
    row = {"image": item.key, "split": item.split, **_target(item.target, plan.schema)}
    row |= {"group": item.group} if item.group else {}
    values = dict(zip(plan.columns, item.columns, strict=True))
    for name, value in values.items():
        if isinstance(value, int | float | str) and not name.startswith(_OWN):
            is_there = values.get(f"{name}{PRESENT}", 1)
            row |= {} if name.endswith(PRESENT) else {name: value if is_there else None}
        elif not isinstance(value, int | float | str) and name.startswith(ROWS):
            row[name] = [one.decode() if isinstance(one, bytes) else one for one in value]
    files = [_IN_ARRAY.sub(r"\1", one.key) for one in item.companions]
    files = files if len({*files}) > 1 else files[:1]
    if plan.target is not None:
        row["target_image"] = files[0]
    elif plan.annotations is not None:
        row |= _annotation(item, files, plan.annotations)
    if not isinstance(item.extent, StackExtent) or _is_file(item.key, item.extent):
        yield row
        return
    for place, member in enumerate(item.extent.members):
        mask = {"mask": files[place]} if len(files) == len(item.extent.members) else {}
        yield {**row, "image": member.key, **mask, "sample": item.key, "order": place}


def _is_file(key: str, stack: StackExtent) -> bool:
    """Return whether a stack consists of the images of one file, such as the pages of a TIFF."""
    return bool(re.fullmatch(rf"{re.escape(key)}/\d{{6,}}", stack.members.keys[0]))


def _listed(mask: str | list[str]) -> list[str]:
    return mask if isinstance(mask, list) else [mask]


def _target(target: Target, schema: Schema) -> dict[str, Any]:
    if isinstance(target, TargetValues):
        names = schema.features[TARGETS].labels if TARGETS in schema.features else ()
        found: dict[str, Any] = dict(
            zip(map("target/{}".format, names), target.numbers, strict=True)
        )
        for name, code in zip(schema.class_features, target.classes, strict=True):
            title = f"target/{name.removeprefix(CLASS_PREFIX)}"
            found[title] = None if code == UNLABELLED else schema.features[name].labels[code]
        return found or {"texts": list(target.texts)}
    if isinstance(target, tuple):
        return {"labels": [schema.labels[code] for code in target]}
    if isinstance(target, int):
        return {"label": schema.labels[target]}
    if target is None:
        return {}
    return {"text": target} if isinstance(target, str) else {"target/value": target}


def _annotation(item: Item, files: list[str], facts: AnnotationFacts) -> dict[str, Any]:
    spec, one = facts.spec, item.annotation
    if spec.is_panoptic:
        raise _unstated("panoptic masks")
    found: dict[str, Any] = {}
    if files:
        found["mask"] = files if len(files) > 1 else files[0]
    if one is None:
        return found
    if files and len({*one.labels}) > 1 and not len(one.boxes):
        raise _unstated("mask files of several classes")
    if (spec.boxes or one.outlines) and not (files and spec.masks == "instances"):
        found["boxes"] = one.boxes.tolist()
        found["box_labels"] = [facts.names[label] for label in one.labels]
        found |= {"iscrowd": [*map(int, one.crowds)]} if IS_CROWD in spec.attributes else {}
        if one.outlines:
            are_runs = any(isinstance(own, Runs) for own in one.outlines)
            size = one.size or (are_runs and image_size(item.extent)) or (0, 0)
            found["segmentation"] = [_outline(own, size) for own in one.outlines]
        if one.keypoints is not None:
            names = spec.keypoints.names if spec.keypoints else ()
            found["keypoints"] = [_named(names, own.tolist()) for own in one.keypoints]
        found |= dict(zip(("height", "width"), one.size, strict=True)) if one.size else {}
    if one.points is not None:
        names = spec.points.names if spec.points else ()
        points = [[x, y] if seen else None for x, y, seen in one.points.tolist()]
        found["points"] = _named(names, points)
    return found


def _named(names: Sequence[str], points: list[Any]) -> list[Any] | str:
    """Return the keypoints with their names as JSON; unchanged if the names are numbers."""
    are_numbers = all(map(str.isdecimal, names))
    return points if are_numbers else json.dumps(dict(zip(names, points, strict=True)))


def _outline(outline: Outline, size: tuple[int, int]) -> str:
    if isinstance(outline, Polygons):
        return json.dumps([ring.ravel().tolist() for ring in outline.rings])
    if isinstance(outline, Counts):
        return json.dumps({"size": outline.size, "counts": outline.counts})
    if outline is None:
        return "[]"
    if isinstance(outline, Runs):
        return json.dumps({"size": size, "counts": _counts(outline, size)})
    raise _unstated("masks of panoptic files")


def _counts(runs: Runs, size: tuple[int, int]) -> str | list[int]:
    """Return compressed run lengths of COCO, or [] for invalid runs, which a build also rejects."""
    from pycocotools import mask as coco

    from shardprep.image.masks import MaskError
    from shardprep.image.rasterize import outline_mask

    try:
        pixels = outline_mask(runs, size)
    except MaskError:
        return []
    counts: str = coco.encode(np.asfortranarray(pixels))["counts"].decode()
    return counts if pixels.size else []


def _unstated(what: str) -> RecipeError:
    return RecipeError(_option(""), f"a table cannot state {what}", "leave this option out")


def _option(file: str | Path) -> OptionName:
    return OptionName("items_out", str(file))
