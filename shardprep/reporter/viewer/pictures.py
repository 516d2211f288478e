"""Pictures of records by number: tiles, stored images and overlays.

A shard is opened at the first request for one of its records. So a missing shard affects only its
own records. A damaged record raises a ShardprepError and does not affect other records.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from shardprep.dataset import example
from shardprep.dataset.annotated_pictures import annotated_picture
from shardprep.dataset.example import Features
from shardprep.dataset.schema import MASK, TARGET_IMAGE
from shardprep.dataset.stored_size import stored_codec
from shardprep.errors import RecordError, ShardprepError
from shardprep.image.drawing import Legend, draw_marked, thumbnail
from shardprep.image.jpeg_header import is_common
from shardprep.image.png import encoded_png
from shardprep.reader.records.records import Places
from shardprep.reader.records.subset import open_records
from shardprep.reporter.page.pictures import Overlay, draw_overlay
from shardprep.reporter.pixels import StoredImages
from shardprep.reporter.record_columns import Contents

TILE_SIDE = 176
"""Longest side of a tile in pixels."""
_TILE_QUALITY = 70
_OVERLAY_SIDE = 1024
"""Longest side of an overlay in pixels."""
_MOST_OPEN, _MOST_TILES = 64, 2_000
"""Maximum number of open shards, and of cached tiles of about 5 KB."""
_END_S = 0.5
_NUM_THREADS = 8
_RUN = 15
"""Maximum number of records of a shard that are read together."""


class RecordContent(NamedTuple):
    """Parsed content of a record."""

    features: Features | None
    """Features of the record, or None if it is not a valid Example."""
    overlay: Overlay | None
    """Overlay of its image, or None if the image cannot be drawn."""
    problem: str
    """Fault of the image or its masks, or ""."""


class RecordPictures:
    """Pictures of a dataset's records. Safe to use from many threads."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._shards = [*contents.manifest.shards.values()]
        self._ends = np.cumsum([one.num_records for one in self._shards])
        self._images = lru_cache(_MOST_OPEN)(self._opened)
        self._tiles: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_NUM_THREADS, "shardprep-view")

    def close(self) -> None:
        """Stop the threads and close the shards. A thread that waits for a tile gets an error."""
        with self._lock:
            for tile in self._tiles.values():
                tile.cancel()
        # Shut down in a thread: a read from object storage may block for a long time.
        end = threading.Thread(target=self._pool.shutdown, kwargs={"cancel_futures": True})
        end.start()
        end.join(_END_S)
        self._images.cache_clear()
        self._tiles.clear()  # exceptions in tiles refer to frames, which keep shards open

    def _place(self, number: int) -> tuple[int, int]:
        """Return the index of a record's shard, and the index of the record in the shard."""
        shard = int(np.searchsorted(self._ends, number, "right"))
        return shard, number - int(self._ends[shard]) + self._shards[shard].num_records

    def etag(self, number: int) -> str:
        shard, record = self._place(number)
        return f"{self._shards[shard].sha256[:32]}-{record}"

    def image(self, number: int) -> tuple[bytes, str]:
        """Return the stored image, or a PNG if browsers cannot show it, and the media type."""
        images, payload, record = self._payload(number)
        try:
            if TARGET_IMAGE in images.schema.features:
                return _png(annotated_picture(bytes(payload), images.schema).pixels), "image/png"
            data, is_raw = images.image(payload), images.schema.image.encoding == "raw"
            codec = None if is_raw else stored_codec(data)
            if codec == "png" or (codec and is_common(data)):
                return data, f"image/{codec}"
            if codec is None and not is_raw:
                raise ValueError("neither a JPEG nor a PNG")
            return _png(images.pixels(data)), "image/png"
        except Exception as error:  # decoders raise any type of exception
            raise images.damaged(record, error) from error

    def record(self, number: int) -> RecordContent:
        """Return the content of a record; RecordError if the record is not a valid Example."""
        images, payload, record = self._payload(number)
        features = example.decode(bytes(payload))
        try:
            picture = annotated_picture(bytes(payload), images.schema)
        except Exception as error:  # decoders raise any type of exception
            return RecordContent(features, None, images.damaged(record, error).what)
        try:
            return RecordContent(features, draw_overlay(picture, images.schema, _OVERLAY_SIDE), "")
        except Exception as error:
            bare = replace(picture, mask=b"", masks=())
            overlay = draw_overlay(bare, images.schema, _OVERLAY_SIDE)
            return RecordContent(features, overlay, images.damaged(record, error).what)

    def tile(self, number: int) -> bytes:
        return self.request_tiles((number,))[0].result()

    def request_tiles(self, numbers: Sequence[int]) -> list[Future[bytes]]:
        """Return futures of WebP tiles in the order of `numbers`. Start to read missing tiles."""
        tiles, new = [], []
        with self._lock:
            for number in numbers:
                tile = self._tiles.get(number)
                if tile is None or (tile.done() and tile.exception() is not None):
                    tile = self._tiles[number] = Future()
                    new.append((number, tile))
                self._tiles.move_to_end(number)
                tiles.append(tile)
            while len(self._tiles) > _MOST_TILES:
                self._tiles.popitem(last=False)
        shards = np.array([self._place(number)[0] for number, _ in new])
        for shard in np.unique(shards).tolist():
            own = [new[i] for i in np.flatnonzero(shards == shard).tolist()]
            for at in range(0, len(own), _RUN):
                self._pool.submit(self._make, shard, own[at : at + _RUN])
        return tiles

    def _make(self, shard: int, wanted: Sequence[tuple[int, Future[bytes]]]) -> None:
        try:
            images = self._images(shard)
            records = [self._place(number)[1] for number, _ in wanted]
            payloads = images.payloads(records)
        except Exception as error:
            for _, tile in wanted:
                tile.set_exception(error)
            return
        for record, payload, (_, tile) in zip(records, payloads, wanted, strict=True):
            try:
                if isinstance(payload, RecordError):
                    raise payload
                tile.set_result(_tile(images, payload))
            except Exception as error:
                is_ours = isinstance(error, ShardprepError) and error.where
                tile.set_exception(error if is_ours else images.damaged(record, error))

    def _payload(self, number: int) -> tuple[StoredImages, Any, int]:
        shard, record = self._place(number)
        images = self._images(shard)
        payload = images.payloads([record])[0]
        if isinstance(payload, RecordError):
            raise payload
        return images, payload, record

    def _opened(self, number: int) -> StoredImages:
        contents = self._contents
        places = Places.whole(self._shards[number])
        # staging_bytes=0: do not copy the shard to the local disk.
        records = open_records(contents.dataset, places, staging_bytes=0)
        return StoredImages(records, contents.schema)


def _tile(images: StoredImages, payload: Any) -> bytes:
    schema = images.schema
    if not schema.annotations:
        pixels = images.pixels(images.image(payload), TILE_SIDE)
    else:
        # A tile has no room for class names.
        legend = Legend(mask=schema.features[MASK].labels if MASK in schema.features else ())
        drawn, _ = draw_marked(annotated_picture(bytes(payload), schema), legend, TILE_SIDE)
        pixels = np.asarray(drawn)
    return thumbnail(pixels, TILE_SIDE, _TILE_QUALITY).data


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    return encoded_png(pixels, compress_level=1)
