"""Some records of a dataset as pictures with their boxes and masks."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from shardprep.dataset.example_decoder import ExampleDecoder
from shardprep.dataset.folder import ITEMS_FILE
from shardprep.dataset.frames import read_frames
from shardprep.dataset.index import way_out
from shardprep.dataset.item_table import WRITTEN, read_items, with_status
from shardprep.dataset.remote import documents_of, opened
from shardprep.dataset.schema import (
    BOX,
    BOX_LABEL,
    CROWD,
    FILENAME,
    HEIGHT,
    IMAGE,
    MASK,
    OBJECT_MASK,
    WIDTH,
)
from shardprep.dataset.stored_size import open_stored
from shardprep.dataset.tfrecord import unframe
from shardprep.errors import RecordError
from shardprep.image.drawing import AnnotatedPicture, Legend, draw_contact_sheet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.dataset.schema import Schema

_COLUMNS = ("key", "status", "shard", "record", "offset", "length", "num_objects", "mask_pixels")


def annotated_pictures(
    found: Path | RemoteDataset, manifest: Manifest, schema: Schema, number: int
) -> Iterator[AnnotatedPicture]:
    """Yield at most `number` pictures from all over a dataset with boxes or masks, in its order.

    Those with an object, or a mask of several classes, come before those without. Each is read and
    decoded when it is asked for; from object storage, it alone.

    Raises:
        DatasetError: a document or a shard is missing or damaged.
        RecordError: a record is damaged.

    """
    with documents_of(found, manifest, (ITEMS_FILE,)) as folder:
        table = read_items(folder / ITEMS_FILE, _COLUMNS)
    dataset = opened(found, manifest)
    for row in _spread(with_status(table, WRITTEN), number):
        try:
            frame = read_frames(dataset, str(row["shard"]), row["offset"] or 0, row["length"] or 0)
            payload = unframe(frame, row["shard"], row["offset"])
            yield annotated_picture(payload, schema)
        except RecordError as error:
            where = f"{found}/{row['shard']}, record {row['record']}"
            hint = way_out(str(found))
            raise RecordError(where, error.what, hint, offset=row["offset"]) from error


def contact_sheet(
    found: Path | RemoteDataset, manifest: Manifest, schema: Schema, number: int
) -> bytes:
    """Return the PNG with the pictures that `annotated_pictures` yields; raises as that."""
    pictures = annotated_pictures(found, manifest, schema, number)
    sheet = draw_contact_sheet(pictures, legend_of(schema))
    out = io.BytesIO()
    sheet.save(out, "PNG")
    return out.getvalue()


def legend_of(schema: Schema) -> Legend:
    """Return the class names of a dataset's objects and masks."""
    named = {name: feature.labels for name, feature in schema.annotations.items()}
    return Legend(objects=named.get(BOX_LABEL, ()), mask=named.get(MASK, ()))


def _spread(table: pa.Table, number: int) -> list[dict[str, Any]]:
    """Return rows at equal distances, those that have something to show first."""
    numbers, pixels = table["num_objects"].to_pylist(), table["mask_pixels"].to_pylist()
    has_some = np.array(
        [bool(n) or len(counts or ()) > 1 for n, counts in zip(numbers, pixels, strict=True)], bool
    )
    shown, others = np.flatnonzero(has_some), np.flatnonzero(~has_some)
    chosen = _evenly(shown, number)
    chosen = np.sort(np.concatenate((chosen, _evenly(others, number - len(chosen)))))
    rows: list[dict[str, Any]] = table.take(chosen).to_pylist()
    return rows


def _evenly(numbers: np.ndarray[Any, np.dtype[np.int64]], most: int) -> Any:
    most = min(most, len(numbers))
    return numbers[np.arange(most) * len(numbers) // max(most, 1)]


def annotated_picture(payload: bytes, schema: Schema) -> AnnotatedPicture:
    """Return the image of a record with its boxes and masks; RecordError where it has none."""
    dtypes = schema.dtypes
    values: dict[str, Any] = dict(ExampleDecoder(dtypes, dtypes).decode(payload))
    try:
        return AnnotatedPicture(
            title=values[FILENAME][0].decode(errors="replace") if FILENAME in values else "",
            pixels=_pixels(values, schema),
            boxes=np.array(values.get(BOX, ()), np.float64).reshape(-1, 4),
            labels=values.get(BOX_LABEL, ()),
            crowds=values.get(CROWD, ()),
            masks=values.get(OBJECT_MASK, ()),
            mask=next(iter(values.get(MASK, ())), b""),
        )
    except Exception as error:  # decoders raise anything
        what = " ".join(str(error).split())[:200] or type(error).__name__
        raise RecordError("", f"cannot be drawn ({what})") from error


def _pixels(values: dict[str, Any], schema: Schema) -> np.ndarray[Any, np.dtype[np.uint8]]:
    data = values[IMAGE][0]
    if schema.image.encoding == "raw":
        size = schema.image_size or (values[HEIGHT][0], values[WIDTH][0])
        return np.frombuffer(data, np.uint8).reshape(*size, 3)
    with open_stored(data, "JPEG", "PNG") as image:
        return np.asarray(image.convert("RGB"))
