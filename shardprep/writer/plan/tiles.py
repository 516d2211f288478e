"""Cut the images of a build into tiles, once, before its shards are planned.

The tiles of an image are spread over all shards, and a JPEG cannot be decoded in parts. So workers
write all tiles of an image as Netpbm to one file of the work folder.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from shardprep.catalog.items import Item, Items
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.mask_files import skipped
from shardprep.catalog.selection import EXCLUDED, WholeKeyIndex
from shardprep.catalog.tables.columns import Value
from shardprep.errors import ShardprepError, SourceError, counted, some_of
from shardprep.image.annotation_types import Annotation, AnnotationSpec
from shardprep.image.annotations import Scene, attempted
from shardprep.image.netpbm import netpbm_start
from shardprep.image.placement import Placement
from shardprep.image.process import Rejection, process_image, words_of
from shardprep.image.resample import Pixels
from shardprep.image.signatures import NotAnImageError
from shardprep.image.spec import ImageSpec
from shardprep.image.tiff import TIFF_STARTS, TiffBands, needs_bands
from shardprep.image.tiles import ObjectCutter, Window, windows
from shardprep.machine import usable_cores
from shardprep.processes import WorkerLimits
from shardprep.progress import Watch
from shardprep.recipe.recipe import Recipe
from shardprep.source.byte_range import MemberError, PlainExtent, RefusedExtent, ZipExtent
from shardprep.source.limits import Budget, SourceLimits
from shardprep.source.listing import Skipped
from shardprep.source.members import Extent, Member, MembersBuilder
from shardprep.source.string_column import Coded
from shardprep.source.unpack import UnpackedFile, buffered
from shardprep.storage.cache import FRAME, without_cache
from shardprep.writer.chunk import ChunkTask, EncodedChunk, Outcome
from shardprep.writer.chunk_encoder import read_files
from shardprep.writer.engine.job import ItemCounts
from shardprep.writer.engine.pool import run_chunks

_AT_ONCE, _TASKS_A_WORKER = 16, 8


class _Tile(NamedTuple):
    window: Window
    annotation: Annotation | None = None
    pixels: PlainExtent | None = None
    """Pixels of the tile; None to store the original."""
    mask: PlainExtent | None = None
    damage: str = ""


class _Whole(NamedTuple):
    placement: Placement
    rows: Callable[[int, int], Pixels]
    """Takes the first row and the number of rows; returns the pixels of these rows."""
    damage: str = ""


@dataclass(frozen=True, slots=True)
class TileCutter:
    """Cuts images into tiles in files; implements `Encode`, with pickled lists of tiles as data."""

    tile: tuple[int, int]
    overlap: tuple[int, int]
    spec: ImageSpec
    form: AnnotationSpec | None
    folder: Path
    limits: SourceLimits

    def __call__(self, task: ChunkTask, before_item: Callable[[], None]) -> EncodedChunk:
        data, outcomes = bytearray(), list[Outcome]()
        for number, item in enumerate(task.items, task.start):
            before_item()
            try:
                cut = self._cut(item, self.folder / f"{number:06d}", before_item)
            except (NotAnImageError, MemberError) as error:
                is_read = isinstance(error, NotAnImageError)
                cut = Rejection("undecodable" if is_read else "unreadable", str(error))
            if isinstance(cut, Rejection):
                outcomes.append(Outcome.unread(item, cut.kind, cut.reason))
            else:
                data += pickle.dumps(cut)
                outcomes.append(Outcome("", "", 0, 0, 0, "", 0, ""))
        return EncodedChunk(data, tuple(outcomes))

    def _cut(
        self, item: Item, file: Path, before_row: Callable[[], None]
    ) -> list[_Tile] | Rejection:
        with ExitStack() as ending:
            whole = self._opened(item, ending)
            if not isinstance(whole, _Whole):
                return whole
            place = whole.placement
            objects = self._objects(item, place)
            if isinstance(objects, Rejection):
                return objects
            budget, num_bytes = Budget(self.limits), item.extent.num_bytes
            budget.add_source(num_bytes)
            packed = max(num_bytes, 4 * self.spec.max_pixels)  # base of the limit on overlaps
            out = ending.enter_context(closing(UnpackedFile(file, item.key, (packed, 0), budget)))
            made: list[_Tile] = []
            parts = windows(place.upright, self.tile, self.overlap)
            for top, row in groupby(parts, itemgetter(0)):
                before_row()
                band = None if len(parts) == 1 else whole.rows(top, parts[0].height)
                for window in row:
                    annotation, mask = item.annotation, b""
                    if objects is not None:
                        annotation, mask = objects.tile(window, is_first=not made)
                    pixels = None if band is None else _written(out, *_netpbm(band, window))
                    mask_place = _written(out, mask) if mask else None
                    made.append(_Tile(window, annotation, pixels, mask_place, whole.damage))
        return made

    def _opened(self, item: Item, ending: ExitStack) -> _Whole | list[_Tile] | Rejection:
        """Return the image, a rejection, or the only tile if nothing need be decoded."""
        extent = item.extent
        if extent.read_head(4) in TIFF_STARTS:
            stream = ending.enter_context(_stream(extent))
            if needs_bands(stream, self.spec.max_pixels):
                bands = _decoding()(TiffBands)(stream, self.spec)
                return _Whole(Placement.whole(bands.size), _decoding()(bands.rows))
        size = image_size(extent)
        has_masks = self.form is not None and self.form.masks != "none"
        is_drawn = has_masks and item.annotation is not None
        is_small = size is not None and len(windows(size, self.tile, self.overlap)) == 1
        if size and is_small and not is_drawn:
            return [_Tile(Window(0, 0, *size), item.annotation)]
        spec = replace(self.spec, size=None, fit="none", format="raw")
        image = process_image(extent.read(), spec)
        if isinstance(image, Rejection):
            return image
        pixels = np.frombuffer(image.data, np.uint8).reshape(*image.placement.size, 3)
        return _Whole(image.placement, lambda top, number: pixels[top : top + number], image.damage)

    def _objects(self, item: Item, place: Placement) -> ObjectCutter | Rejection | None:
        if self.form is None or item.annotation is None:
            return None
        files = read_files(item, "mask")
        if isinstance(files, Rejection):
            return files
        scene = Scene.of(item.annotation, files, place, self.form)
        return scene if isinstance(scene, Rejection) else attempted(lambda: ObjectCutter(scene))


@contextmanager
def _decoding() -> Iterator[None]:
    try:
        yield
    except (MemoryError, MemberError, NotAnImageError, ShardprepError):
        raise
    except Exception as error:  # decoders raise anything
        raise NotAnImageError(words_of(error)) from error


def _stream(extent: Extent) -> BinaryIO:
    if isinstance(extent, ZipExtent) and not extent.is_packed:
        extent = extent.stored()
    return buffered(extent) if isinstance(extent, PlainExtent) else io.BytesIO(extent.read())


def _netpbm(band: Pixels, window: Window) -> tuple[bytes, bytes]:
    part = band[:, window.left : window.left + window.width]
    return netpbm_start(window.height, window.width, part.shape[2], 255), part.tobytes()


def _written(out: UnpackedFile, *blocks: bytes) -> PlainExtent:
    file, _, start = out.place
    return PlainExtent(file, start, sum(map(out.write, blocks)))


def cut_tiles(
    items: Items,
    recipe: Recipe,
    form: AnnotationSpec | None,
    work_dir: Path,
    num_workers: int,
    watcher: Watch,
) -> tuple[Items, list[str]]:
    """Write tiles into `work_dir`; return an item for each tile, with its y and x, and remarks.

    `form` describes the annotations in the source. An image that is not larger than a tile keeps
    its key. An image that cannot be cut becomes one item, which is rejected with the reason.
    """
    assert recipe.tile is not None  # noqa: S101 - the caller asks for tiles
    folder = work_dir / "tiles"
    folder.mkdir(exist_ok=True)
    cutter = TileCutter(
        recipe.tile, recipe.overlap, recipe.image_spec, form, folder, recipe.source_limits
    )
    budget = Budget(recipe.source_limits)
    budget.add_source(int(items.members.num_bytes.sum()))
    watcher.start("cutting tiles", len(items), "images")
    num_workers = min(num_workers, usable_cores(), len(items))
    size = max(1, min(_AT_ONCE, len(items) // (num_workers * _TASKS_A_WORKER)))
    starts = range(0, len(items), size)
    tasks = (ChunkTask("tiles", start, items[start : start + size]) for start in starts)
    builder, made, rows = MembersBuilder(), list[_Tile](), list[int]()
    masks: list[tuple[Member, ...]] = []
    numbers = iter(range(len(items)))

    def on_chunk(chunk: EncodedChunk) -> None:
        pickled = io.BytesIO(chunk.data)
        for outcome, number in zip(chunk.outcomes, numbers, strict=False):
            key, extent = items.members[number]
            tiles = [_Tile(Window(0, 0, 0, 0))]
            if outcome.kind:
                extent = RefusedExtent(extent.num_bytes, outcome.reason, outcome.kind)
            else:
                tiles = pickle.load(pickled)  # noqa: S301 - a worker of this build made it
            budget.add_members(len(tiles), key)
            for tile in tiles:
                top, left, _, _ = tile.window
                name = key if len(tiles) == 1 else f"{key}/y{top:06d}_x{left:06d}"
                builder.add(name, tile.pixels or extent)
                masks.append((Member(name, tile.mask),) if tile.mask else ())
                budget.unpack(sum(one.num_bytes for one in (tile.pixels, tile.mask) if one), key)
            made.extend(tiles)
            rows.extend([number] * len(tiles))
        counts = ItemCounts.of(chunk)
        watcher.advance(counts.num_items, counts.num_rejected)

    limits = WorkerLimits.of(recipe.timeout, recipe.max_pixels)
    run_chunks(cutter, tasks, num_workers, limits, on_chunk)
    tiles_of = np.bincount(rows)
    num_parts = int(tiles_of[tiles_of > 1].sum())
    height, width = recipe.tile
    found = f"{counted(int((tiles_of > 1).sum()), 'image')} cut into {num_parts:,} tiles"
    findings = [f"{found} of {width}x{height} pixels, {len(made) - num_parts:,} not cut"]
    if damaged := {
        items.members.keys[row] for row, tile in zip(rows, made, strict=True) if tile.damage
    }:
        findings.append(f"cut although damaged: {some_of(sorted(damaged))}")
    every = items.take(np.array(rows))
    places = [Coded[Value].of(tile.window[axis] for tile in made) for axis in (0, 1)]
    names = zip(every.group, every.members.keys, strict=True)
    cut = replace(
        every,
        group=Coded.of(group or key for group, key in names),  # a reader keeps a group in one fold
        members=builder.members(),
        annotation=Coded.apart(tile.annotation for tile in made),
        companions=Coded.apart(masks),
        columns=(*every.columns, *places),
    )
    return cut, findings


def without_listed(
    items: Items, entries: Sequence[str], recipe: Recipe
) -> tuple[Items, list[Skipped], list[str]]:
    """Return unlisted items, listed tiles and unused entries; SourceError if no item is left."""
    if not entries:
        return items, [], []
    found = WholeKeyIndex(items.members.keys).find_keys(entries, recipe.exclude_list)
    out = np.unique(found[found >= 0])
    if len(out) == len(items):
        name = FRAME.sub("the exclude list", without_cache(recipe.exclude_list))
        raise SourceError(name, "names all tiles", "remove some tiles from the list")
    unused = [text for text, at in zip(entries, found.tolist(), strict=True) if at < 0]
    listed = [skipped(member, EXCLUDED) for member in items.members.take(out)]
    return items.take(np.delete(np.arange(len(items)), out)), listed, unused
