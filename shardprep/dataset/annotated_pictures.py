"""Pictures of some records of a dataset, with their boxes and masks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.example import ExampleDecoder
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    FILENAME,
    HEIGHT,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    POINTS,
    POINTS_VISIBLE,
    TARGET_IMAGE,
    WIDTH,
    Schema,
)
from shardprep.dataset.stored_size import open_stored
from shardprep.errors import RecordError
from shardprep.image.decode import rgb_pixels
from shardprep.image.drawing import AnnotatedPicture, Legend, draw_contact_sheet
from shardprep.image.resample import resize

if TYPE_CHECKING:
    import pyarrow as pa


def annotated_pictures(dataset: OpenDataset, number: int) -> Iterator[AnnotatedPicture]:
    """Yield the pictures of up to `number` evenly spread records, preferably annotated.

    RecordError if a record is damaged.
    """
    for record in _spread(dataset.record_rows(("num_objects", "mask_pixels")), number):
        payload = dataset.read(record)
        try:
            yield annotated_picture(payload, dataset.schema)
        except RecordError as error:
            raise dataset.damaged(record, error.what) from error


def contact_sheet(dataset: OpenDataset, number: int) -> bytes:
    """Return a PNG that shows at most `number` records with their boxes and masks in a grid."""
    sheet = draw_contact_sheet(annotated_pictures(dataset, number), legend_of(dataset.schema))
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def legend_of(schema: Schema) -> Legend:
    """Return the class names of objects and masks, and the edges that connect keypoints."""
    named = {name: feature.labels for name, feature in schema.annotations.items()}
    edges = schema.features[KEYPOINTS].edges if KEYPOINTS in schema.features else ()
    return Legend(objects=named.get(BOX_LABEL, ()), mask=named.get(MASK, ()), edges=edges)


def _spread(table: pa.Table, number: int) -> list[int]:
    objects, pixels = table["num_objects"].to_pylist(), table["mask_pixels"].to_pylist()
    has_some = np.array(
        [bool(n) or len(counts or ()) > 1 for n, counts in zip(objects, pixels, strict=True)], bool
    )
    shown, others = np.flatnonzero(has_some), np.flatnonzero(~has_some)
    chosen = _evenly(shown, number)
    chosen = np.sort(np.concatenate((chosen, _evenly(others, number - len(chosen)))))
    numbers: list[int] = chosen.tolist()
    return numbers


def _evenly(numbers: np.ndarray[Any, np.dtype[np.int64]], most: int) -> Any:
    most = min(most, len(numbers))
    return numbers[np.arange(most) * len(numbers) // max(most, 1)]


def annotated_picture(payload: bytes, schema: Schema) -> AnnotatedPicture:
    """Return a record's image, boxes and masks; RecordError if the record is damaged.

    A stack is shown by its middle image and mask. A target image is appended on the right.
    """
    dtypes = schema.dtypes
    values: dict[str, Any] = dict(ExampleDecoder(dtypes, dtypes).decode(payload))
    masks = values.get(MASK) or (b"",)
    try:
        return AnnotatedPicture(
            title=values[FILENAME][0].decode(errors="replace") if FILENAME in values else "",
            pixels=_pixels(values, schema),
            boxes=np.array(values.get(BOX, ()), np.float64).reshape(-1, 4),
            labels=values.get(BOX_LABEL, ()),
            crowds=values.get(CROWD, ()),
            masks=values.get(OBJECT_MASK, ()),
            mask=masks[len(masks) // 2],
            **_points(values, schema),
        )
    except Exception as error:  # decoders raise anything
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise RecordError("", f"its image or annotations cannot be drawn ({what})") from error


def _points(values: dict[str, Any], schema: Schema) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for field, name, of_visible in (
        ("keypoints", KEYPOINTS, KEYPOINTS_VISIBLE),
        ("points", POINTS, POINTS_VISIBLE),
    ):
        if name in schema.features and of_visible in schema.features:
            number = len(schema.features[name].points)
            places = np.array(values[name], np.float64).reshape(-1, number, 2)
            visible = np.array(values[of_visible], np.float64).reshape(-1, number, 1)
            points = np.concatenate([places, visible], axis=-1)
            found[field] = points if field == "keypoints" else points[0]
    return found


def _pixels(values: dict[str, Any], schema: Schema) -> np.ndarray[Any, np.dtype[np.uint8]]:
    images = values[schema.image_name]
    data = images[len(images) // 2]
    if schema.image.encoding == "raw":
        size = schema.image_size or (values[HEIGHT][0], values[WIDTH][0])
        pixels = np.frombuffer(data, np.uint8).reshape(*size, 3)
    else:
        with open_stored(data, "JPEG", "PNG") as image:
            pixels = rgb_pixels(image)
    if TARGET_IMAGE not in schema.features:
        return pixels
    with open_stored(values[TARGET_IMAGE][0], "PNG") as image:
        target, height = rgb_pixels(image), len(pixels)
    width = max(1, round(target.shape[1] * height / len(target)))
    return np.concatenate([pixels, resize(target, (height, width))], axis=1)
