"""The tf.data pipeline. The one module that imports TensorFlow.

files → interleave → shuffle → repeat → parse and decode → batch → dtype → augment → prefetch;
`make_dataset` says why each stands where it does.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from shardprep.dataset import find_dataset, read_schema
from shardprep.errors import DatasetError
from shardprep.manifest import Manifest, load_manifest
from shardprep.reader.slices import ShardSlice, select
from shardprep.schema import IMAGE, LABELS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardprep.reader import ReadConfig
    from shardprep.schema import Schema

_DTYPES = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
_WHITE = 255.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `load`, resolved."""

    split: str
    batch_size: int | None
    shuffle: bool | int
    seed: int | None
    repeat: bool | int
    cache: str
    """"" for none, "memory", or a file."""
    augment: Callable[[Any], Any] | None
    dtype: str
    as_supervised: bool
    drop_remainder: bool


def make_dataset(path: Path, request: Request, config: ReadConfig) -> Any:
    """Return the `tf.data.Dataset` of a request. Raises as `reader.load` says."""
    folder = find_dataset(path)
    manifest = load_manifest(folder)
    schema = read_schema(folder)
    _check_request(folder, request, schema, config)
    slices = select(manifest, request.split)
    _check_shards(folder, manifest, slices)
    num_records = sum(one.take for one in slices)
    decode = _Decoder(schema, request, config)

    # Records: shards in a new order each epoch, several read side by side.
    dataset = _records(folder, slices, request, config)
    if config.assert_cardinality:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(num_records))
    by_batch = schema.image.encoding == "raw" and request.batch_size is not None

    if request.cache:
        # Once decoded, never again. Raw pixels need no decoding: their records are cached.
        if not by_batch:
            dataset = dataset.map(decode.one, num_parallel_calls=_calls(config))
        dataset = dataset.cache(_cache_file(manifest, slices, request, config))
    if request.shuffle:
        # Without a cache this holds encoded bytes, a tenth of the pixels. Behind a cache it must
        # stand here: before it, the first epoch's order would be kept for ever.
        window = config.shuffle_window if request.shuffle is True else request.shuffle
        dataset = dataset.shuffle(
            min(window, num_records),
            seed=request.seed,
            reshuffle_each_iteration=config.shuffle_reshuffle_each_iteration,
        )
    if request.repeat:
        # After the shuffle: every record is seen once before any is seen again. What follows keeps
        # the order, or the end of an epoch would mix with the start of the next.
        dataset = dataset.repeat(None if request.repeat is True else request.repeat)
    if not request.cache and not by_batch:
        in_order = True if request.repeat else None
        dataset = dataset.map(decode.one, num_parallel_calls=_calls(config), deterministic=in_order)
    if request.batch_size is not None:
        dataset = dataset.batch(
            request.batch_size,
            drop_remainder=request.drop_remainder,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    if by_batch:
        # One parse and one reshape for a whole batch: per record they would cost more than all.
        dataset = dataset.map(decode.batch, num_parallel_calls=_calls(config))
    if request.dtype != "uint8" or request.augment is not None:
        dataset = dataset.map(decode.finished, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.with_options(_options(request, config)).prefetch(tf.data.AUTOTUNE)


def _check_request(folder: Path, request: Request, schema: Schema, config: ReadConfig) -> None:
    for name in ("batch_size", "shuffle", "repeat"):
        value = getattr(request, name)
        if value is not None and value is not False and value < 1:
            raise DatasetError("reader.load", f"{name}={value!r} means nothing", "use 1 or more")
    if request.cache == "True":
        raise DatasetError("reader.load", "cache=True", "use 'memory' or the name of a file")
    if request.dtype not in ("uint8", "float32"):
        raise DatasetError(
            "reader.load", f"dtype={request.dtype!r} is neither 'uint8' nor 'float32'"
        )
    if schema.image_size is None and config.image_size is None and request.batch_size is not None:
        raise DatasetError(
            str(folder),
            "its images differ in size, so they cannot be batched as they are",
            "pass read_config=ReadConfig(image_size=(height, width)), leave out batch_size, "
            "or build with --size",
        )


def _check_shards(folder: Path, manifest: Manifest, slices: list[ShardSlice]) -> None:
    """Compare sizes: a file cut exactly between two records passes every checksum."""
    sizes = {
        shard.name: shard.num_bytes for split in manifest.splits.values() for shard in split.shards
    }
    for name in {one.shard for one in slices}:
        path = folder / name
        actual = path.stat().st_size if path.is_file() else None
        if actual != sizes[name]:
            what = "is missing" if actual is None else f"has {actual:,} bytes"
            raise DatasetError(
                str(path),
                f"{what}, the manifest says {sizes[name]:,}",
                "copy it again, or build the set again",
            )


def _records(folder: Path, slices: list[ShardSlice], request: Request, config: ReadConfig) -> Any:
    files = tf.data.Dataset.from_tensor_slices(
        (
            [str(folder / one.shard) for one in slices],
            tf.constant([one.skip for one in slices], tf.int64),
            tf.constant([one.take for one in slices], tf.int64),
        ),
    )
    if request.shuffle:
        files = files.shuffle(
            len(slices),
            seed=request.seed,
            reshuffle_each_iteration=config.shuffle_reshuffle_each_iteration,
        )
    if not request.shuffle:
        # File order is what was asked for: one shard after the other.
        return files.flat_map(_read_slice)
    cycle = min(config.interleave_cycle_length, len(slices))
    calls = config.num_parallel_calls_for_interleave_files
    return files.interleave(
        _read_slice,
        cycle_length=cycle,
        block_length=config.interleave_block_length,
        num_parallel_calls=min(calls, cycle) if calls else tf.data.AUTOTUNE,
    )


def _cache_file(
    manifest: Manifest, slices: list[ShardSlice], request: Request, config: ReadConfig
) -> str:
    """Return the name of a cache, "" for memory. What it is made of is in the name.

    tf.data takes whatever it finds under a name, also what another dataset has left there.
    """
    if request.cache == "memory":
        return ""
    sha256 = {shard.name: shard.sha256 for s in manifest.splits.values() for shard in s.shards}
    made_of = [(sha256[one.shard], one.skip, one.take) for one in slices]
    options = (config.image_size, request.as_supervised, request.batch_size is None)
    digest = hashlib.sha256(repr((made_of, options)).encode()).hexdigest()
    path = Path(f"{request.cache}-{digest[:12]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return str(path)


def _read_slice(file: Any, skip: Any, take: Any) -> Any:
    return tf.data.TFRecordDataset(file).skip(skip).take(take)


def _calls(config: ReadConfig) -> int:
    calls: int = config.num_parallel_calls_for_decode or tf.data.AUTOTUNE
    return calls


def _options(request: Request, config: ReadConfig) -> Any:
    options = tf.data.Options()
    # Waiting for the slowest of the parallel reads buys an order that nobody asked for.
    options.deterministic = (
        not request.shuffle
        or request.seed is not None
        or not config.shuffle_reshuffle_each_iteration
    )
    # The map runs many images at once; threads inside one image's ops only get in their way.
    options.threading.max_intra_op_parallelism = 1
    return options.merge(config.options) if config.options is not None else options


class _Decoder:
    """From serialized Examples to what `load` yields, by the dataset's own schema."""

    def __init__(self, schema: Schema, request: Request, config: ReadConfig) -> None:
        self.schema = schema
        self.request = request
        self.resize = None if config.image_size == schema.image_size else config.image_size
        wanted = (IMAGE, schema.target) if request.as_supervised else tuple(schema.features)
        self.features = {
            name: (
                tf.io.VarLenFeature(tf.int64)
                if feature.kind == "labels"
                else tf.io.FixedLenFeature((), _DTYPES[feature.dtype])
            )
            for name, feature in schema.features.items()
            if name in wanted
        }

    def one(self, record: Any) -> Any:
        """Parse one record and decode its image."""
        features = tf.io.parse_single_example(record, self.features)
        features[IMAGE] = self._resized(self._pixels(features[IMAGE]))
        return self._as_asked(self._multi_hot(features))

    def batch(self, records: Any) -> Any:
        """Parse a batch of records whose images are raw pixels."""
        features = tf.io.parse_example(records, self.features)
        height, width = self._size()
        flat = tf.io.decode_raw(features[IMAGE], tf.uint8, fixed_length=height * width * 3)
        features[IMAGE] = self._resized(tf.reshape(flat, (-1, height, width, 3)))
        return self._as_asked(self._multi_hot(features))

    def finished(self, *features: Any) -> Any:
        """Apply dtype and augmentation to the images of a batch."""
        if isinstance(features[0], dict):
            return {**features[0], IMAGE: self._augmented(features[0][IMAGE])}
        images = self._augmented(features[0])
        return (images, *features[1:]) if len(features) > 1 else images

    def _pixels(self, data: Any) -> Any:
        encoding = self.schema.image.encoding
        if encoding == "raw":
            height, width = self._size()
            return tf.reshape(tf.io.decode_raw(data, tf.uint8), (height, width, 3))
        if encoding == "jpeg":
            # The accurate transform is as fast as any here, and is what the writer used.
            pixels = tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE")
        elif encoding == "png":
            pixels = tf.io.decode_png(data, channels=3)
        else:
            pixels = tf.cond(
                tf.io.is_jpeg(data),
                lambda: tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE"),
                lambda: tf.io.decode_png(data, channels=3),
            )
        pixels.set_shape((*(self.schema.image_size or (None, None)), 3))
        return pixels

    def _size(self) -> tuple[int, int]:
        if self.schema.image_size is None:
            raise DatasetError(self.schema.name, "raw images without a size cannot be read")
        return self.schema.image_size

    def _resized(self, pixels: Any) -> Any:
        if self.resize is None:
            return pixels
        resized = tf.image.resize(pixels, self.resize, antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0.0, _WHITE), tf.uint8)

    def _multi_hot(self, features: dict[str, Any]) -> dict[str, Any]:
        """Turn the class indices of multi-label sets into float32[…, classes] of 0 and 1."""
        if LABELS in features:
            indicator = tf.sparse.to_indicator(features[LABELS], len(self.schema.labels))
            features[LABELS] = tf.cast(indicator, tf.float32)
        return features

    def _as_asked(self, features: dict[str, Any]) -> Any:
        if not self.request.as_supervised:
            return features
        target = self.schema.target
        return features[IMAGE] if target is None else (features[IMAGE], features[target])

    def _augmented(self, images: Any) -> Any:
        if self.request.dtype == "float32":
            images = tf.cast(images, tf.float32) / _WHITE
        augment = self.request.augment
        if augment is None:
            return images
        if _takes_training(augment):
            return augment(images, training=True)  # type: ignore[call-arg]
        return augment(images)


def _takes_training(augment: Callable[[Any], Any]) -> bool:
    try:
        return "training" in inspect.signature(getattr(augment, "call", augment)).parameters
    except ValueError:  # written in C
        return False
