"""Datasets with boxes and masks, made of one without: every shard and document is written anew.

The images show what is annotated: filled rectangles, red ones of class 0 and blue ones of class 1,
on a grey ground.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from shardprep.catalog.objects.formats.annotated_source import AnnotatedSource
from shardprep.catalog.objects.known_formats import read_boxes, recognise
from shardprep.catalog.objects.object_table import Found
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.dataset import example, tfrecord
from shardprep.dataset import schema as names
from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE, index_name, read_schema
from shardprep.dataset.item_table import (
    ANNOTATION_COLUMNS,
    COLUMNS,
    POINT_COLUMNS,
    SKIPPED,
    columns_for,
    index_text,
    read_items,
    rows_by_shard,
    with_status,
    write_items,
)
from shardprep.dataset.manifest import MANIFEST_FILE, Manifest, Shard, load_manifest
from shardprep.dataset.schema import Schema
from shardprep.dataset.tally import Tally
from shardprep.dataset.tfds_metadata import tfds_files
from shardprep.image.annotation_types import Annotation, Skeleton
from shardprep.recipe.object_rules import parse_box_rule
from shardprep.recipe.recipe import make_recipe
from shardprep.source.listing import list_source
from shardprep.source.members import Member
from shardprep.storage.folder import LocalFolder
from shardprep.writer.plan.build_plan import recorded_recipe
from tests.support.builders import build, encoded, png, write, write_folder, zip_bytes

Mask = np.ndarray[Any, np.dtype[np.uint8]]

ANNOTATED_COLUMNS = pa.schema([*COLUMNS, *ANNOTATION_COLUMNS, *POINT_COLUMNS])
CLASSES = ("red", "blue")
MASK_CLASSES = ("ground", "red", "blue")
OF_OBJECT = Skeleton(("left", "right", "top"), ((0, 1),), (1, 0, 2))
OF_IMAGE = Skeleton(("centre", "corner"))
SKELETONS = {
    names.KEYPOINTS: OF_OBJECT,
    names.KEYPOINTS_VISIBLE: OF_OBJECT,
    names.POINTS: OF_IMAGE,
    names.POINTS_VISIBLE: OF_IMAGE,
}
HEIGHT, WIDTH = 48, 64
_COLOURS = ((220, 30, 30), (30, 30, 220))


@dataclass(frozen=True)
class Marked:
    rectangles: tuple[tuple[int, int, int, int], ...] = ()
    """Top, left, bottom, right in pixels."""
    labels: tuple[int, ...] = ()
    num_clipped: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def boxes(self) -> tuple[float, ...]:
        """The values of `objects/bbox`."""
        sides = (HEIGHT, WIDTH, HEIGHT, WIDTH)
        return tuple(
            float(np.float32(at / side))
            for one in self.rectangles
            for at, side in zip(one, sides, strict=True)
        )

    @property
    def keypoints(self) -> tuple[float, ...]:
        """The values of `objects/keypoints`: the middle of the left and right edge, and nothing."""
        found: list[float] = []
        for top, left, bottom, right in self.rectangles:
            middle = (top + bottom) / 2 / HEIGHT
            places = (middle, left / WIDTH, middle, right / WIDTH, 0.0, 0.0)
            found += [float(np.float32(at)) for at in places]
        return tuple(found)

    def masks(self) -> list[Mask]:
        found = []
        for top, left, bottom, right in self.rectangles:
            mask = np.zeros((HEIGHT, WIDTH), np.uint8)
            mask[top:bottom, left:right] = 1
            found.append(mask)
        return found

    def classes(self) -> Mask:
        """Return the mask of `MASK_CLASSES`; its last row has no class."""
        found = np.zeros((HEIGHT, WIDTH), np.uint8)
        for label, mask in zip(self.labels, self.masks(), strict=True):
            found[mask == 1] = label + 1
        found[-1] = 255
        return found

    def image(self) -> bytes:
        found = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
        for label, mask in zip(self.labels, self.masks(), strict=True):
            found[mask == 1] = _COLOURS[label]
        return encoded(Image.fromarray(found), "PNG")


def grey_png(mask: np.ndarray[Any, Any]) -> bytes:
    return encoded(Image.fromarray(mask), "PNG")


MARKED: dict[str, Marked] = {
    "train/a.png": Marked(((4, 8, 20, 40), (30, 2, 44, 12)), (0, 1), 1, {"zero size": 2}),
    "train/b.png": Marked(),
    "train/c.png": Marked(((0, 0, 48, 64),), (1,)),
    "train/d.png": Marked(((10, 10, 30, 30), (10, 10, 30, 31), (40, 40, 44, 44)), (0, 0, 1)),
    "train/e.png": Marked(((5, 5, 40, 60),), (0,), 0, {"outside": 1, "zero size": 1}),
    "test/f.png": Marked(((20, 20, 40, 50),), (1,)),
    "test/g.png": Marked(),
}
"""Key → objects. b and g have no objects; d has two nearly equal ones."""


def annotated(
    place: Path, *features: str, marked: Mapping[str, Marked] = MARKED, **keys: Any
) -> Path:
    source = write_folder(place / "source", {key: one.image() for key, one in marked.items()})
    defaults = {"size": f"{WIDTH}x{HEIGHT}", "format": "png", "labels": "none", "shards": 3}
    path = build(source, place / "out", name="marked", **{**defaults, **keys}).path
    return rewritten(path, features, marked)


def rewritten(path: Path, features: tuple[str, ...], marked: Mapping[str, Marked]) -> Path:
    manifest, before = load_manifest(path), read_schema(path)
    of = {names.BOX_LABEL: CLASSES, names.MASK: MASK_CLASSES}
    schema = before.filled(
        before.image_size,
        before.image.encoding or "png",
        before.labels,
        {},
        {name: of.get(name, ()) for name in features},
    ).with_keypoints({name: SKELETONS[name] for name in features if name in SKELETONS})
    items = read_items(path / ITEMS_FILE)
    rows = rows_by_shard(items)
    tally = Tally(recorded_recipe(manifest, "-", "-").image_spec)
    tables = []
    for split_name, split in manifest.splits.items():
        for shard in split.shards:
            table = _write_shard(path, shard, schema, rows[shard.name], marked)
            data = (path / shard.name).read_bytes()
            tally.add(
                shard.model_copy(
                    update={"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                ),
                split_name,
                table,
            )
            tables.append(table)
    skipped = with_status(items, SKIPPED).to_pylist()
    tables.append(pa.Table.from_pylist(skipped, schema=columns_for(schema)))
    write_items(LocalFolder(path), ITEMS_FILE, tables, columns_for(schema))
    _write_documents(path, manifest, schema, tally)
    return path


def _write_documents(path: Path, manifest: Manifest, schema: Schema, tally: Tally) -> None:
    write(path / SCHEMA_FILE, schema.dumps().encode())
    files = {
        name: hashlib.sha256((path / name).read_bytes()).hexdigest()
        for name in (ITEMS_FILE, SCHEMA_FILE)
    }
    splits = tally.splits(schema.labels)
    num_bytes = sum(split.num_bytes for split in splits.values())
    whole = manifest.model_copy(
        update={
            "splits": splits,
            "totals": manifest.totals.model_copy(update={"num_bytes": num_bytes}),
            "annotations": tally.annotations(schema),
            "files": files,
        }
    )
    for name, text in tfds_files(whole, schema).items():
        write(path / name, text.encode())
    write(path / MANIFEST_FILE, whole.dumps().encode())


def _write_shard(
    path: Path, shard: Shard, schema: Schema, rows: pa.Table, marked: Mapping[str, Marked]
) -> pa.Table:
    with (path / shard.name).open("rb") as file:
        records = [example.decode(one.payload) for one in tfrecord.read_records(file, shard.name)]
    found, data = rows.to_pylist(), bytearray()
    for row, features in zip(found, records, strict=True):
        one = marked[row["key"]]
        framed = tfrecord.frame(schema.encode({**_plain(features), **values_of(one)}))
        row.update(offset=len(data), length=len(framed), **_row(one, schema))
        data += framed
    write(path / shard.name, bytes(data))
    table = pa.Table.from_pylist(found, schema=columns_for(schema))
    write(path / index_name(shard.name), index_text(table).encode())
    return table


def _plain(features: Mapping[str, list[Any]]) -> dict[str, Any]:
    return {
        name: tuple(values) if name == names.LABELS else values[0]
        for name, values in features.items()
    }


def values_of(one: Marked) -> dict[str, Any]:
    return {
        names.BOX: one.boxes,
        names.BOX_LABEL: one.labels,
        names.CROWD: tuple(label for label in one.labels),
        names.OBJECT_MASK: tuple(grey_png(mask) for mask in one.masks()),
        names.MASK: grey_png(one.classes()),
        names.KEYPOINTS: one.keypoints,
        names.KEYPOINTS_VISIBLE: (2, 1, 0) * len(one.labels),
        names.POINTS: (0.5, 0.25, 0.0, 0.0),
        names.POINTS_VISIBLE: (2, 0),
    }


def _row(one: Marked, schema: Schema) -> dict[str, Any]:
    has_objects, has_mask = names.BOX in schema.features, names.MASK in schema.features
    labelled = [2] * (len(one.labels) * (names.KEYPOINTS in schema.features))
    labelled += [1] * (names.POINTS in schema.features)
    values, counts = np.unique(one.classes(), return_counts=True)
    return {
        "labelled_points": labelled,
        "lost_points": [],
        "num_objects": len(one.labels) if has_objects else None,
        "num_dropped": sum(one.dropped.values()),
        "num_clipped": one.num_clipped,
        "dropped": list(one.dropped.items()),
        "object_labels": list(one.labels) if has_objects else None,
        "mask_key": "masks/a.png" if has_mask else None,
        "mask_pixels": list(zip(values.tolist(), counts.tolist(), strict=True))
        if has_mask
        else None,
    }


PIXELS = png(30, 40)
Rows = list[tuple[str, tuple[float, ...]]]


@dataclass(frozen=True)
class Source:
    """The listing of a source, as a catalog has it."""

    index: KeyIndex
    documents: Documents
    images: list[Member]

    def read(self, option: str, *, outlines: bool = False, **wanted: bool) -> Found:
        source = AnnotatedSource(self.index, self.documents, self.images, outlines, **wanted)
        return read_boxes(parse_box_rule(option), source)

    def signs(self) -> list[str]:
        signs = recognise(AnnotatedSource(self.index, self.documents))
        return [sign.option for sign in signs if not sign.is_unclear]

    def of(self, found: Found, key: str) -> Annotation:
        annotation = found.annotations[list(self.index.keys).index(key)]
        assert annotation is not None, key
        return annotation

    def rows(self, found: Found) -> dict[str, Rows]:
        """Return class name and box of each object by key, for images that are listed."""
        return {
            key: [
                (found.names[label], tuple(box))
                for label, box in zip(one.labels, one.boxes.tolist(), strict=True)
            ]
            for key, one in zip(self.index.keys, found.annotations, strict=True)
            if one is not None
        }


def opened(path: Path, only: str = "", **keys: Any) -> Source:
    """Return the listing of an archive or folder, optionally of images below one folder."""
    with TemporaryDirectory() as work:
        listing = list_source(path, Path(work), print)
    images = [member for member in listing.images if member.key.startswith(only)]
    recipe = make_recipe({"source": str(path), **keys}, "test")
    index = KeyIndex([member.key for member in images])
    return Source(index, Documents(listing.others, recipe), images)


def source(folder: Path, documents: Mapping[str, str | bytes], *images: str, **keys: Any) -> Source:
    """Return a source with these documents, and images of 40×30 pixels with these keys."""
    texts = {k: t.encode() if isinstance(t, str) else t for k, t in documents.items()}
    path = write(folder / "set.zip", zip_bytes({**dict.fromkeys(images, PIXELS), **texts}))
    return opened(path, **keys)


def outlined(images: Mapping[str, bytes], seed: int = 14) -> dict[str, bytes]:
    """Return images, and a COCO document with up to five outlines of each."""
    draw = np.random.default_rng(seed)
    entries: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, (key, data) in enumerate(images.items()):
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
        entries.append({"id": number, "file_name": key, "width": width, "height": height})
        for i in range(number % 6):
            x, y = int(draw.integers(0, width - 8)), int(draw.integers(0, height - 8))
            w, h = int(draw.integers(4, width - x)), int(draw.integers(4, height - y))
            ring = [x, y, x + w, y, x + w, y + h, x, y + h]
            one = {"bbox": [x, y, w, h], "segmentation": [ring], "category_id": 1 + i % 2}
            found.append({"id": len(found), "image_id": number, "iscrowd": 0, **one})
    classes = [{"id": 1, "name": "cell"}, {"id": 2, "name": "dust"}]
    document = {"images": entries, "annotations": found, "categories": classes}
    return {**images, "annotations.json": json.dumps(document).encode()}
