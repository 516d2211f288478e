"""Encode the items of a build as framed records, with one outcome per item.

A stack is read file by file, and its images are stored in order in one record. Only one original
is in memory at a time. A file that cannot be stored rejects the whole stack, and the reason begins
with the file's name. All files of a stack get the same values for black and white. If the files
state different values, the first pass only finds their common range, and a second pass reads again.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from shardprep.catalog.items import Item
from shardprep.catalog.target_values import TargetValues
from shardprep.dataset import schema as names
from shardprep.dataset import tfrecord
from shardprep.dataset.schema import Schema, Value
from shardprep.errors import counted
from shardprep.image.annotation_types import Annotation, AnnotationSpec
from shardprep.image.annotations import PlacedObjects, place_objects
from shardprep.image.color import Levels
from shardprep.image.placement import Placement
from shardprep.image.process import Original, ProcessedImage, Rejection, process_image
from shardprep.image.signatures import is_dicom
from shardprep.image.spec import MAX_STACK_PIXELS, ImageSpec
from shardprep.profiling import stage
from shardprep.source.byte_range import MemberError, RefusedExtent
from shardprep.source.members import Member, StackExtent
from shardprep.source.range_reads import read_ahead
from shardprep.writer.chunk import UNREADABLE, ChunkTask, EncodedChunk, ImageObjectCounts, Outcome

if TYPE_CHECKING:
    from shardprep.image.dicom import SlicePlace

_DIGITS = re.compile(r"[0-9]{1,18}")
MOST_BYTES: Final = 1 << 30
"""Maximum bytes of the stored images of a stack: a serialized Example has less than 2 GiB."""


class StackImages(NamedTuple):
    """The stored images of a stack."""

    images: tuple[bytes, ...]
    height: int
    width: int
    files: tuple[tuple[int, Placement], ...]
    """File number (from 0) and placement of each image; () for copied images."""
    outcome: Outcome
    """Outcome with record length 0. Height, width and format describe the first file. The SHA-256
    covers all files, in the order of `StackExtent`."""


def read_stack(
    item: Item, stack: StackExtent, spec: ImageSpec, before_item: Callable[[], None]
) -> StackImages | Outcome:
    """Return the stored images of a stack, or its rejection.

    A series of DICOM images is stored in the order of `series_order`. `before_item` is called
    before each file, so that each file has the time limit of an item.
    """
    reader, found = _StackReader(spec, stack), set[Levels]()
    while True:
        member = stack.members[0]
        try:
            for member in stack.members:
                before_item()
                rejection = reader.add(_read(member))
                if rejection is not None:
                    return _rejected(item, member, rejection)
        except MemberError as error:
            return _rejected(item, member, Rejection(UNREADABLE, str(error)))
        except MemoryError:
            what = "needs more memory than a worker may use"
            return _rejected(item, member, Rejection("crashed", what))
        found |= reader.levels
        if not reader.only_measures:
            break
        reader = _StackReader(_with_one_range(spec, found), stack, has_one_range=True)
    made = reader.images()
    if isinstance(made, Rejection):
        return _rejected(item, member, made)
    has_own = stack.is_scaled or len(found) > 1 or any(one.is_own for one in found)
    return made._replace(outcome=made.outcome._replace(has_own_levels=has_own))


def _with_one_range(spec: ImageSpec, found: Collection[Levels]) -> ImageSpec:
    low = float(min(min(one.black, one.white) for one in found))
    high = float(max(max(one.black, one.white) for one in found))
    window = (low + high + 1) / 2, high - low + 1  # as PS3.3, C.11.2.1.2 defines it
    return replace(spec, depth_range=(low, high), window=window)


def order_fault(item: Item) -> str:
    """Return why the masks of an item do not match the images of its stack, or "" if they match.

    There must be one mask per image, and the last numbers in their names must differ by a constant.
    """
    files = item.extent.members if isinstance(item.extent, StackExtent) else ()
    if len(item.companions) != len(files):
        return f"it has {counted(len(item.companions), 'mask')}, but {counted(len(files), 'image')}"
    pairs = [
        [_DIGITS.findall(PurePosixPath(one.key).stem) for one in s]
        for s in (files, item.companions)
    ]
    steps = [int(two[-1]) - int(one[-1]) for one, two in zip(*pairs, strict=True) if one and two]
    what = "the numbers in the names of its masks differ from its images"
    return what if len({*steps}) > 1 else ""


class _StackReader:
    def __init__(self, spec: ImageSpec, stack: StackExtent, *, has_one_range: bool = False) -> None:
        self._spec, self._has_one_range = spec, has_one_range
        self._is_series = not stack.has_channels
        self._digest, self._num_bytes, self._num_stored = hashlib.sha256(), 0, 0
        self._images: list[ProcessedImage] = []
        self.levels: set[Levels] = set()
        self._measure = replace(spec, size=(1, 1), fit="stretch", format="raw", depth=8)
        self._places: list[SlicePlace] = []
        self._has_levels: set[bool] = set()

    @property
    def only_measures(self) -> bool:
        """Whether the files state different levels, so that this pass only collects the levels."""
        return len(self.levels) > 1 and not self._has_one_range

    def add(self, data: bytes) -> Rejection | None:
        self._digest.update(data)
        self._num_bytes += len(data)
        image = process_image(data, self._measure if self.only_measures else self._spec)
        if isinstance(image, Rejection):
            return image
        if image.levels is not None:
            self.levels.add(image.levels)
        if fault := self._fault(image):
            return Rejection("bad_stack", fault)
        if self.only_measures:
            self._images.clear()
            return None
        if is_dicom(data):
            from shardprep.image.dicom import SlicePlace

            self._places.append(SlicePlace.of(data))
        self._images.append(image)
        self._num_stored += len(image.data)
        if len(self._images) * image.height * image.width > MAX_STACK_PIXELS:
            what = f"with this image, the stack has more than {MAX_STACK_PIXELS:,} pixels"
            return Rejection("too_many_pixels", what)
        if self._num_stored > MOST_BYTES:
            what = f"with this image, the stack has more than {MOST_BYTES:,} bytes of images"
            return Rejection("bad_stack", what)
        return None

    def _fault(self, image: ProcessedImage) -> str:
        """Return how an image differs from the images before it, or ""."""
        first = self._images[0] if self._images else image
        if (image.height, image.width) != (first.height, first.width):
            what, size = f"is {image.width}x{image.height} pixels", f"{first.width}x{first.height}"
            return f"{what}, but the first image is {size}; give --size {size}"
        self._has_levels.add(image.levels is not None)
        if (
            self._is_series
            and len(self._has_levels) > 1
            and self._spec.depth_range in ("full", "auto")
        ):
            what = "has another bit depth than the images before it, so white has another value"
            return f"{what}; give --depth-range MIN,MAX"
        return ""

    def images(self) -> StackImages | Rejection:
        first, images = self._images[0], self._images
        damaged = [one.damage for one in images if one.damage]
        order: Sequence[int] = range(len(images))
        if len(self._places) == len(images):
            from shardprep.image.dicom import mixture, series_order

            if mixed := mixture(self._places, is_series=self._is_series):
                hint = "give --exclude to leave some out, or sort them into folders"
                return Rejection("bad_stack", f"is one of {mixed}; {hint}")
            order = series_order(self._places) if self._is_series else order
        stored = tuple(images[row].data for row in order)
        files = tuple((row, images[row].placement) for row in order)
        facts = *_facts(first.original), self._num_bytes, self._digest.hexdigest()
        is_dark = all(one.is_dark for one in images)
        losses = tuple(sorted({loss for one in images for loss in one.losses}))
        outcome = Outcome("", damaged[0] if damaged else "", 0, *facts, is_dark, losses=losses)
        return StackImages(stored, first.height, first.width, files, outcome)


def _rejected(item: Item, member: Member, rejection: Rejection) -> Outcome:
    reason = f"{PurePosixPath(member.key).name}: {rejection.reason}"
    num_bytes = item.extent.num_bytes
    return Outcome(rejection.kind, reason, 0, *_facts(rejection.original), num_bytes, "")


def _facts(original: Original) -> tuple[int, int, str]:
    return original.height, original.width, original.format


@dataclass(frozen=True, slots=True)
class ChunkEncoder:
    """Encodes the items of a chunk; implements `Encode`."""

    spec: ImageSpec
    schema: Schema
    columns: tuple[str, ...] = ()
    annotations: AnnotationSpec | None = None
    """How boxes and masks are stored, or None if the dataset has neither."""
    target: ImageSpec | None = None
    """How target images are stored, or None if the dataset has none."""
    has_target_lists: bool = field(init=False)
    """Whether there are target lists; cached, because `Schema.target_lists` scans all features."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "has_target_lists", bool(self.schema.target_lists))

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        records: list[bytes] = []
        outcomes: list[Outcome] = []
        items = list(task.items)
        with closing(read_ahead([item.extent.span for item in items])) as ahead:
            for item in items:
                wait_for(ahead)
                before_item()
                if isinstance(item.extent, StackExtent):
                    record, outcome = self.stack(item, item.extent, before_item)
                elif isinstance(data := read_item(item), Outcome):
                    record, outcome = b"", data
                else:
                    record, outcome = encode_item(item, data, sha256_of(data), self)
                records.append(record)
                outcomes.append(outcome)
        return EncodedChunk(b"".join(records), tuple(outcomes))

    def stack(
        self, item: Item, stack: StackExtent, before_item: Callable[[], None]
    ) -> tuple[bytes, Outcome]:
        """Return the framed record of a stack, b"" if the stack is rejected, and the outcome."""
        read = read_stack(item, stack, self.spec, before_item)
        if isinstance(read, Outcome):
            return b"", read
        return encode_stack(item, read, self, before_item)


wait_for = stage("read")(next)


def encode_item(
    item: Item,
    data: bytes,
    sha256: str,
    encoder: ChunkEncoder,
    stored: ProcessedImage | None = None,
) -> tuple[bytes, Outcome]:
    """Return the framed record of an item, b"" if the item is rejected, and the outcome.

    `data` is the content of the original and `sha256` its hash in hexadecimal. `stored` is the
    result of `process_image` if the image was copied from another dataset.
    """
    image = stored or process_image(data, encoder.spec)
    facts = *_facts(image.original), len(data)
    objects = counts = None
    if isinstance(image, ProcessedImage) and encoder.annotations is not None:
        placed = _objects(item, image.placement, encoder.annotations)
        if isinstance(placed, Rejection):
            image = placed
        else:
            objects, counts = placed, ImageObjectCounts.of(placed, encoder.annotations)
    target: bytes | Rejection = b""
    if isinstance(image, ProcessedImage) and encoder.target is not None:
        target = _target_image(item, image, encoder.target)
        image = target if isinstance(target, Rejection) else image
    if isinstance(image, Rejection):
        return b"", Outcome(image.kind, image.reason, 0, *facts, sha256)
    pictures: dict[str, Value] = {
        names.IMAGE: image.data,
        names.HEIGHT: image.height,
        names.WIDTH: image.width,
    }
    if isinstance(target, bytes):
        pictures[names.TARGET_IMAGE] = target
    framed = _framed(item, pictures, objects, encoder)
    more = image.is_dark, counts, stored is not None
    return framed, Outcome(
        "", image.damage, len(framed), *facts, sha256, *more, losses=image.losses
    )


def encode_stack(
    item: Item, stack: StackImages, encoder: ChunkEncoder, before_item: Callable[[], None]
) -> tuple[bytes, Outcome]:
    """Return the framed record of a stack, b"" if a mask is bad, and the outcome."""
    pictures: dict[str, Value] = {
        names.IMAGES: stack.images,
        names.HEIGHT: stack.height,
        names.WIDTH: stack.width,
    }
    outcome = stack.outcome
    if encoder.annotations is not None:
        placed = _stack_masks(item, stack, encoder, before_item)
        if isinstance(placed, Rejection):
            outcome = outcome._replace(is_dark=False, has_own_levels=False, losses=())
            return b"", outcome._replace(kind=placed.kind, reason=placed.reason)
        pictures[names.MASK] = tuple(one.segmentation_mask for one in placed)
        total = sum((Counter(one.pixels) for one in placed), Counter[int]())
        every = replace(placed[0], pixels=total, num_ignored=sum(one.num_ignored for one in placed))
        outcome = outcome._replace(objects=ImageObjectCounts.of(every, encoder.annotations))
    framed = _framed(item, pictures, None, encoder)
    return framed, outcome._replace(length=len(framed))


def _stack_masks(
    item: Item, stack: StackImages, encoder: ChunkEncoder, before_item: Callable[[], None]
) -> list[PlacedObjects] | Rejection:
    """Return a mask per image if the schema repeats `mask`, else one mask, or a rejection."""
    spec = encoder.annotations or AnnotationSpec()
    is_each = encoder.schema.features[names.MASK].repeated
    placed: list[PlacedObjects] = []
    num_bytes = sum(map(len, stack.images))
    if is_each and item.companions and (fault := order_fault(item)):
        return Rejection("bad_mask", fault)
    for number, placement in stack.files if is_each else stack.files[:1]:
        before_item()
        masks = item.companions[number : number + 1] if is_each else item.companions
        one = _objects(item._replace(companions=masks), placement, spec)
        if isinstance(one, Rejection):
            name = PurePosixPath(masks[0].key).name if masks else ""
            return replace(one, reason=f"{name}: {one.reason}".removeprefix(": "))
        placed.append(one)
        num_bytes += len(one.segmentation_mask)
        if num_bytes > MOST_BYTES:
            return Rejection("bad_stack", f"with its masks, it has more than {MOST_BYTES:,} bytes")
    return placed


def _objects(item: Item, placement: Placement, spec: AnnotationSpec) -> PlacedObjects | Rejection:
    files = read_files(item, "mask")
    if isinstance(files, Rejection):
        return files
    return _placed(item.annotation or Annotation(), files, placement, spec)


_placed = stage("annotate")(place_objects)


def _target_image(item: Item, image: ProcessedImage, spec: ImageSpec) -> bytes | Rejection:
    files = read_files(item, "target image")
    if isinstance(files, Rejection):
        return files
    target = process_image(files[0], spec)
    if isinstance(target, Rejection):
        kind = target.kind if target.kind == "crashed" else "bad_target"
        return Rejection(kind, f"its target image: {target.reason}")
    if target.levels is not None and target.levels.is_own:
        low, high = sorted(target.levels[:2])
        hint = "give --depth-range MIN,MAX (DICOM: --window CENTER,WIDTH) for all target images"
        return Rejection("bad_target", f"its target image has values {low:g} to {high:g}; {hint}")
    size, own = image.placement.upright, target.placement.upright
    if spec.fit != "stretch" and image.placement.frame(own, ("upright",)) is None:
        sizes = f"{own[1]}x{own[0]}, but the image has {size[1]}x{size[0]} pixels"
        return Rejection("bad_target", f"its target image has another aspect ratio: {sizes}")
    return target.data


def read_files(item: Item, noun: str) -> list[bytes] | Rejection:
    """Return the bytes of an item's masks or target image, or a rejection if one is unreadable."""
    try:
        return [_read(member) for member in item.companions]
    except MemberError as error:
        is_bad = any(getattr(one.extent, "kind", "") == "bad_mask" for one in item.companions)
        return Rejection("bad_mask" if is_bad else UNREADABLE, f"its {noun}: {error}")
    except MemoryError:
        return Rejection("crashed", f"its {noun} is larger than the memory a worker may use")


def read_item(item: Item | Member) -> bytes | Outcome:
    """Return the bytes of an item's original, or a rejection if the original is unreadable."""
    try:
        return _read(item)
    except MemberError as error:
        extent = item.extent
        kind = extent.kind if isinstance(extent, RefusedExtent) else UNREADABLE
        return Outcome.unread(item, kind, str(error))
    except MemoryError:
        return Outcome.unread(item, "crashed", "is larger than the memory a worker may use")


@stage("read")
def _read(item: Item | Member) -> bytes:
    return item.extent.read()


@stage("hash")
def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@stage("frame")
def _framed(
    item: Item, pictures: Mapping[str, Value], objects: PlacedObjects | None, encoder: ChunkEncoder
) -> bytes:
    target = item.target
    values: dict[str, Value] = {
        **pictures,
        names.FILENAME: item.key.encode(),
        # Each kind of target has its feature, which is empty if the item's target has another kind.
        names.LABEL: item.label,
        names.LABELS: target if isinstance(target, tuple) else (),
        names.TARGET: target if isinstance(target, float) else math.nan,
        names.TEXT: target.encode() if isinstance(target, str) else b"",
    }
    if encoder.has_target_lists:
        several = target if isinstance(target, TargetValues) else TargetValues()
        values |= several.features(encoder.schema)
    if objects is not None:
        for name, numbers in objects.attributes.items():
            feature = f"{names.OBJECTS}/{name}"
            of_type = numbers.astype(encoder.schema.features[feature].dtype)
            values[feature] = tuple(of_type.ravel().tolist())
        values[names.BOX] = array("f", objects.boxes.tobytes())
        values[names.BOX_LABEL] = objects.labels
        values[names.OBJECT_MASK] = objects.masks
        values[names.MASK] = objects.segmentation_mask
        for (places, visible), points in (
            ((names.KEYPOINTS, names.KEYPOINTS_VISIBLE), objects.keypoints),
            ((names.POINTS, names.POINTS_VISIBLE), objects.points),
        ):
            if points is not None:
                values[places] = array("f", points.places.tobytes())
                values[visible] = tuple(points.visible.ravel().tolist())
    for name, value in zip(encoder.columns, item.columns, strict=True):
        values[name] = value.encode() if isinstance(value, str) else value
    return tfrecord.frame(encoder.schema.encode(values))
