"""Encode a stack: read its files one by one, and store them in order as the images of one sample.

Only one original is in memory at a time. A file that cannot be stored rejects the whole sample, and
the reason begins with the name of the file. Black and white are the same values in all files: if
the files differ in them, the files are only measured, and then read again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from shardprep.catalog.items import Item
from shardprep.errors import counted
from shardprep.image.color import Levels
from shardprep.image.placement import Placement
from shardprep.image.process import Original, ProcessedImage, Rejection, process_image
from shardprep.image.signatures import is_dicom
from shardprep.image.spec import MAX_STACK_PIXELS, ImageSpec
from shardprep.profiling import stage
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member, StackExtent
from shardprep.writer.chunk import UNREADABLE, Outcome

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
    """For each image, the number of its file and its place in it; () for copied images."""
    outcome: Outcome
    """The outcome without the length of the record. Size and format are of the first file; the
    SHA-256 is of all files, joined in the order of `StackExtent`."""


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
    """Return the spec with the range from the lowest to the highest of all levels."""
    low = float(min(min(one.black, one.white) for one in found))
    high = float(max(max(one.black, one.white) for one in found))
    window = (low + high + 1) / 2, high - low + 1  # as PS3.3, C.11.2.1.2 defines it
    return replace(spec, depth_range=(low, high), window=window)


def order_fault(item: Item) -> str:
    """Return why the masks of an item do not belong to the images of its stack, or "" if they do.

    There must be as many, and numbers in their names may only differ by a constant.
    """
    files = item.extent.members if isinstance(item.extent, StackExtent) else ()
    if len(item.companions) != len(files):
        return f"it has {counted(len(item.companions), 'mask')}, and {counted(len(files), 'image')}"
    pairs = [
        [_DIGITS.findall(PurePosixPath(one.key).stem) for one in s]
        for s in (files, item.companions)
    ]
    steps = [int(two[-1]) - int(one[-1]) for one, two in zip(*pairs, strict=True) if one and two]
    what = "the numbers in the names of its masks are not those of its images"
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
        """Whether the files differ in their levels, so that no image is kept."""
        return len(self.levels) > 1 and not self._has_one_range

    def add(self, data: bytes) -> Rejection | None:
        """Add the image of the next file, or return the reason to reject the stack."""
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
            what = f"is {image.width}x{image.height} pixels, the first image "
            return f"{what}{first.width}x{first.height}; give --size"
        self._has_levels.add(image.levels is not None)
        if (
            self._is_series
            and len(self._has_levels) > 1
            and self._spec.depth_range in ("full", "auto")
        ):
            what = "has other bits than images before it, such as 8 and 16, and so another white"
            return f"{what}; give --depth-range MIN,MAX"
        return ""

    def images(self) -> StackImages | Rejection:
        first, images = self._images[0], self._images
        damaged = [one.damage for one in images if one.damage]
        order: Sequence[int] = range(len(images))
        if len(self._places) == len(images):
            from shardprep.image.dicom import mixture, series_order

            if mixed := mixture(self._places, is_series=self._is_series):
                hint = "sort them into folders, or leave some out with --exclude"
                return Rejection("bad_stack", f"is one of {mixed}: {hint}")
            order = series_order(self._places) if self._is_series else order
        stored = tuple(images[row].data for row in order)
        files = tuple((row, images[row].placement) for row in order)
        facts = *_facts(first.original), self._num_bytes, self._digest.hexdigest()
        is_dark = all(one.is_dark for one in images)
        outcome = Outcome("", damaged[0] if damaged else "", 0, *facts, is_dark)
        return StackImages(stored, first.height, first.width, files, outcome)


def _rejected(item: Item, member: Member, rejection: Rejection) -> Outcome:
    reason = f"{PurePosixPath(member.key).name}: {rejection.reason}"
    facts = _facts(rejection.original)
    return Outcome(rejection.kind, reason, 0, *facts, item.extent.num_bytes, "")


def _facts(original: Original) -> tuple[int, int, str]:
    return original.height, original.width, original.format


@stage("read")
def _read(member: Member) -> bytes:
    return member.extent.read()
