"""The samples of an export, and the interface of the layouts that write them.

`read_samples` yields the parsed records of a shard in order, and checks their checksums. If records
are damaged, the export fails with an error that names them, so that no record is lost silently.
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from shardprep.dataset import tfrecord
from shardprep.dataset.example import ExampleDecoder, decode
from shardprep.dataset.item_table import ShardRows
from shardprep.dataset.manifest import Manifest, Shard
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.dataset.schema import (
    ATTRIBUTES,
    BOX,
    BOX_LABEL,
    CROWD,
    FILENAME,
    HEIGHT,
    KEYPOINTS,
    KEYPOINTS_VISIBLE,
    MASK,
    OBJECT_MASK,
    OBJECTS,
    POINTS,
    POINTS_VISIBLE,
    PRESENT,
    ROWS,
    TARGET_IMAGE,
    UNLABELLED,
    WIDTH,
    Feature,
    Schema,
)
from shardprep.dataset.stored_size import stored_codec
from shardprep.errors import DatasetError, RecordError, command_line, counted, some_of

Buffer = bytes | memoryview
"""Stored bytes. A view keeps its block of the shard in memory."""
Target = int | tuple[int, ...] | float | str | list[float | None] | list[str] | None


Keypoints = Sequence[tuple[float, float, int]]
"""y and x of each keypoint as shares of the stored image, and its visibility: 0, 1 or 2."""


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects of an image, as lists of equal length; () for a value that the dataset lacks."""

    boxes: Sequence[tuple[float, float, float, float]] = ()
    """ymin, xmin, ymax, xmax as shares of the stored image, 0 to 1."""
    labels: Sequence[int] = ()
    masks: Sequence[Buffer] = ()
    """PNG of 0 and 1 for each object, as large as the image; () if the dataset has none."""
    keypoints: Sequence[Keypoints] = ()
    """Keypoints of each object; () if the dataset has none."""
    more: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Other features: name without `objects/` → the value of each object, as stored."""

    @property
    def crowds(self) -> Sequence[int]:
        """1 for each object that is a crowd, else 0; () if the dataset does not mark crowds."""
        return self.more.get(CROWD.removeprefix(f"{OBJECTS}/"), ())


class ExportSample(NamedTuple):
    """A parsed record, to write in another layout."""

    key: str
    name: str
    """File name without suffix, unique in the split."""
    images: Sequence[Buffer]
    """One image, or all images of a stack: stored JPEG or PNG files, or PNGs made of raw pixels."""
    encoding: Literal["jpeg", "png"]
    size: tuple[int, int]
    """Height and width in pixels."""
    target: Target
    """Class index (−1 if missing), class indices, number (None if missing), text, numbers or texts.
    None for a dataset without a target."""
    objects: Objects = Objects()
    """Objects of the image; empty lists if the dataset has no boxes."""
    class_masks: Sequence[Buffer] = ()
    """Grey PNG of the pixel classes, for a stack one per image; () without class masks."""
    points: Keypoints = ()
    """Keypoints of the image; () if the dataset has none."""
    columns: Mapping[str, int | float | str | None] = MappingProxyType({})
    """Cells of the label table by column; None for an empty cell, "" for an empty text."""
    classes: Mapping[str, int] = MappingProxyType({})
    """Class index of each feature `label/NAME`, −1 if missing."""
    target_image: Buffer | None = None
    """PNG of the target image; None if the dataset has none."""

    @property
    def image(self) -> Buffer:
        return self.images[0]

    @property
    def mask(self) -> Buffer | None:
        return next(iter(self.class_masks), None)

    @property
    def suffix(self) -> str:
        return "jpg" if self.encoding == "jpeg" else "png"


@dataclass(frozen=True)
class Export:
    """An export in progress."""

    work: Path
    """Working folder, which is renamed to the final folder at the end."""
    manifest: Manifest
    schema: Schema

    @cached_property
    def places(self) -> dict[str, list[ShardPlace]]:
        places: dict[str, list[ShardPlace]] = {}
        for name, split in self.manifest.splits.items():
            first = 0
            places[name] = []
            for index, shard in enumerate(split.shards):
                places[name].append(ShardPlace(name, index, len(split.shards), first))
                first += shard.num_records
        return places


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """Position of a shard in its split."""

    split: str
    index: int
    count: int
    """Number of shards of the split."""
    first: int
    """Number of records in earlier shards of the split."""


FILE_COLUMNS = ("file_name", "split", "key", "width", "height")
"""First columns of `labels.csv`."""
PARTS = ".parts"
"""Subfolder of the working folder for files that are joined after the last shard."""


@dataclass(frozen=True, slots=True)
class Layout:
    """An export layout: the functions that write it, and its properties."""

    write_shard: Callable[[Export, ShardPlace, Iterable[ExportSample]], Callable[[], None]]
    """Writes a shard. Returns a function to commit it, called while the next shard is written."""
    done: Callable[[Export, ShardPlace], str]
    """Returns the path in `work` of a file that exists only if the whole shard is on the disk."""
    write_documents: Callable[[Export], None] | None
    """Writes the files about the whole export, after the last shard. None without such files."""
    record_bytes: int
    """Maximum bytes that a record takes in addition to its stored bytes."""
    dots: bool = True
    """Whether file names may have dots before the suffix."""
    needs_boxes: bool = False
    takes_stacks: bool = False
    version: int = 1
    """Version of the written files. An incomplete export of another version is started again."""


def further_objects(schema: Schema) -> dict[str, Feature]:
    """Return the features of objects whose stored values are written unchanged."""
    return {name: schema.features[name] for name in ATTRIBUTES if name in schema.features}


def table_columns(schema: Schema) -> dict[str, str]:
    """Return label table column → dtype. Columns of `--rows` become JSON texts, so bytes."""
    named = schema.columns
    return {
        name: named.get(name, "bytes")
        for name in schema.features
        if name in named or name.startswith(ROWS)
    }


def sample_parser(schema: Schema) -> Callable[[memoryview, str, str], ExportSample]:
    """Return a function from payload, key and name to a sample, which has views of the payload.

    The function raises RecordError for an invalid payload.
    """
    size, is_raw, pictures = schema.image_size, schema.image.encoding == "raw", schema.image_name
    known = {FILENAME} if size is None else {FILENAME, HEIGHT, WIDTH}
    decoder = ExampleDecoder(schema.dtypes, {*schema.dtypes} - known)
    target, columns = schema.target, table_columns(schema)
    classes = {name: len(schema.features[name].labels) for name in schema.class_features}
    kind = "" if target is None else schema.features[target].kind
    is_plain = not (
        columns or classes or {BOX, MASK, POINTS, TARGET_IMAGE} & schema.features.keys()
    )

    def parse(payload: memoryview, key: str, name: str) -> ExportSample:
        quick = decoder.find(payload)
        values: dict[str, Any] = decode(payload.tobytes()) if quick is None else quick
        try:
            files = [_image(data, values, size, is_raw=is_raw) for data in values[pictures]]
            images, encodings, sizes = zip(*files, strict=True)
            goal = None if target is None else _target(values[target], kind, len(schema.labels))
            sample = ExportSample(key, name, images, encodings[0], sizes[0], goal)
            if is_plain:
                return sample
            return sample._replace(
                objects=_objects(values, schema),
                class_masks=[values[MASK][0], *values[MASK][1:]] if MASK in schema.features else (),
                points=next(iter(_keypoints(values, schema, POINTS, POINTS_VISIBLE)), ()),
                columns=_columns(values, columns),
                classes={name: _class(values[name][0], one) for name, one in classes.items()},
                target_image=values[TARGET_IMAGE][0] if TARGET_IMAGE in schema.features else None,
            )
        except (LookupError, ValueError, TypeError, OSError) as error:
            what = " ".join(str(error).split())[:200] or type(error).__name__
            raise RecordError("", f"does not match the schema ({what})") from error

    return parse


def _image(
    data: Buffer, values: dict[str, Any], size: tuple[int, int] | None, *, is_raw: bool
) -> tuple[Buffer, Literal["jpeg", "png"], tuple[int, int]]:
    if size is None and HEIGHT in values and WIDTH in values:
        size = values[HEIGHT][0], values[WIDTH][0]
    if is_raw:
        if size is None:
            raise ValueError("its image is raw pixels without a height and width")
        from PIL import Image

        out = io.BytesIO()
        Image.fromarray(np.frombuffer(data, np.uint8).reshape(*size, 3)).save(out, "PNG")
        return out.getvalue(), "png", size
    codec = stored_codec(data)
    if codec is None:
        raise ValueError("its image is neither JPEG nor PNG")
    if size is None:
        from PIL import Image

        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
            size = image.height, image.width
    return data, codec, size


def _target(stored: Sequence[Any], kind: str, num_classes: int) -> Target:
    if kind == "labels":
        return tuple(_known(one, num_classes) for one in stored)
    if kind == "label":
        return _class(stored[0], num_classes)
    cells: list[Any] = [*map(_cell, stored)]
    return cells if kind in ("vector", "texts") else cells[0]


def _class(label: int, num_classes: int) -> int:
    return UNLABELLED if label == UNLABELLED else _known(label, num_classes)


def _known(label: int, num_classes: int) -> int:
    if not 0 <= label < num_classes:
        raise ValueError(f"label {label} is not a class; there are {num_classes:,}")
    return label


def _objects(values: dict[str, Any], schema: Schema) -> Objects:
    if BOX not in schema.features:
        return Objects()
    flat, labels = values[BOX], values[BOX_LABEL]
    boxes = [(flat[i], flat[i + 1], flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4)]
    if not all(map(math.isfinite, flat)):
        raise ValueError("a corner of a box is not a finite number")
    num_classes = len(schema.features[BOX_LABEL].labels)
    lists = [boxes, *(values[n] for n in (BOX_LABEL, OBJECT_MASK) if n in schema.features)]
    keypoints = _keypoints(values, schema, KEYPOINTS, KEYPOINTS_VISIBLE)
    lists += [keypoints] if KEYPOINTS in schema.features else []
    more = {name: _rows(values[name], one) for name, one in further_objects(schema).items()}
    lists += more.values()
    if any(len(one) != len(labels) for one in lists):
        raise ValueError("its boxes and other features of objects differ in number")
    return Objects(
        boxes,
        [_known(one, num_classes) for one in labels],
        values[OBJECT_MASK] if OBJECT_MASK in schema.features else (),
        keypoints,
        {name.removeprefix(f"{OBJECTS}/"): several for name, several in more.items()},
    )


def _rows(values: Sequence[Any], feature: Feature) -> list[Any]:
    rows: list[Any] = np.array(values).reshape(-1, *feature.value_shape).tolist()
    return rows


def _keypoints(
    values: dict[str, Any], schema: Schema, places: str, visible: str
) -> list[Keypoints]:
    """Return the keypoints of each object, or one entry with the keypoints of the image."""
    if places not in schema.features or visible not in schema.features:
        return []
    number = len(schema.features[places].points)
    flat, seen = values[places], values[visible]
    if not number or len(flat) != 2 * len(seen) or len(seen) % number:
        values_of = counted(len(flat), "value")
        raise ValueError(f"{places} has {values_of}, not {2 * number} for each object")
    if not all(map(math.isfinite, flat)):
        raise ValueError("a coordinate of a keypoint is not a finite number")
    points = [*zip(flat[::2], flat[1::2], seen, strict=True)]
    return [points[i : i + number] for i in range(0, len(points), number)]


def _columns(
    values: dict[str, Any], dtypes: Mapping[str, str]
) -> dict[str, int | float | str | None]:
    columns: dict[str, int | float | str | None] = {}
    for name, dtype in dtypes.items():
        if name.startswith(ROWS):
            columns[name] = json.dumps([*map(_cell, values[name])], ensure_ascii=False)
        else:
            is_known = dtype != "int64" or values.get(name + PRESENT, (1,))[0]
            columns[name] = _cell(values[name][0]) if is_known else None
    return columns


def _cell(value: Any) -> int | float | str | None:
    if isinstance(value, int | float):
        return None if math.isnan(value) else value
    return str(value, "utf-8")


_BLOCK_BYTES = 1 << 20
"""Minimum bytes to read at once, except at the end. Blocks have whole records."""


def read_samples(
    dataset: OpenDataset,
    shard: Shard,
    rows: ShardRows,
    names: Sequence[str | None],
    moved: Callable[[int], None],
) -> Iterator[ExportSample]:
    """Yield the samples of a shard in record order.

    `names` are the file names without suffix of all records. None leaves a record out. `moved` is
    called with the size of each block read. After a damaged record, the others are only checked,
    then RecordError names the damaged ones. DatasetError if `rows` do not match the shard.
    """
    where, hint = f"{dataset}/{shard.name}", f"run {command_line('verify', dataset)}"
    ends = list(itertools.accumulate(rows.lengths, initial=0))
    is_chain = ends == [*rows.offsets, shard.num_bytes]
    if len(rows.keys) != shard.num_records or not is_chain or min(rows.lengths, default=1) <= 0:
        raise DatasetError(where, "its records do not match items.parquet", hint)
    parse = sample_parser(dataset.schema)
    damaged: list[str] = []
    first: RecordError | None = None
    runs = _runs(rows.lengths)
    sizes = [ends[run.stop] - ends[run.start] for run in runs]
    for run, block in zip(runs, dataset.files.blocks(shard, sizes), strict=True):
        moved(len(block))
        data, start = memoryview(block), ends[run.start]
        are_sound = [False] * len(run)
        if len(block) == ends[run.stop] - start:
            lengths = np.array(rows.lengths[run.start : run.stop])
            are_sound = tfrecord.are_sound(np.frombuffer(block, np.uint8), lengths).tolist()
        for number, is_sound in zip(run, are_sound, strict=True):
            name = names[number]
            if name is None:
                continue
            framed, key = data[ends[number] - start : ends[number + 1] - start], rows.keys[number]
            try:
                if not is_sound:
                    tfrecord.unframe(bytes(framed), "", ends[number])  # raises the precise error
                sample = parse(framed[tfrecord.HEADER_BYTES : -tfrecord.FOOTER_BYTES], key, name)
            except RecordError as error:
                damaged.append(f"{number} ({key})")
                first = first or error
                continue
            if first is None:
                yield sample
    if first is not None:
        noun = "record" if len(damaged) == 1 else "records"
        raise RecordError(where, f"damaged {noun} {some_of(damaged)}: {first.what}", hint)


def _runs(lengths: Sequence[int]) -> list[range]:
    runs, start, num_bytes = [], 0, 0
    for number, length in enumerate(lengths):
        num_bytes += length
        if num_bytes >= _BLOCK_BYTES:
            runs.append(range(start, number + 1))
            start, num_bytes = number + 1, 0
    return [*runs, range(start, len(lengths))] if start < len(lengths) else runs
