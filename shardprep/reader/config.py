"""Options of the readers: arguments, `ReadConfig` and crops, without TensorFlow and NumPy."""

from __future__ import annotations

import inspect
import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from shardprep.errors import DatasetError, counted
from shardprep.machine import usable_cores
from shardprep.reader.selection.split_argument import AnySplit, Mix, Place, is_training
from shardprep.reader.validators import (
    MERGE_HINT,
    AnyWeights,
    Augmentation,
    Calls,
    Count,
    Folder,
    Function,
    Kind,
    Number,
    Seed,
    Share,
    Size,
    kind_of,
    like,
    number,
    pair,
    position_of,
    validated_fields,
)

InputContext = Annotated[Any, like(
    "a tf.distribute.InputContext", "input_pipeline_id", "num_input_pipelines",
    "num_replicas_in_sync",
)]  # fmt: skip
Sharding = Annotated[Any, like("a jax.sharding.Sharding", "devices_indices_map", "num_devices")]
DataOptions = Annotated[Any, like("a tf.data.Options", "threading", "autotune")]
BoxFormat = Literal[
    "rel_yxyx", "rel_xyxy", "rel_xywh", "rel_center_xywh",
    "yxyx", "xyxy", "xywh", "center_xywh", "center_yxhw",
]  # fmt: skip
"""Box formats by their names in Keras. Formats with rel_ are in 0 to 1, others in pixels."""
Scale = Annotated[
    tuple[float, float],
    pair(number(1e-6, 1), "(smallest, largest), two numbers above 0 up to 1", rising=True),
]
Ratio = Annotated[
    tuple[float, float], pair(number(1e-6), "(smallest, largest), two numbers above 0", rising=True)
]
_CONFIG = "reader.ReadConfig"
_MAX_DRAWS = 10
"""Number of boxes drawn before a crop uses a box in the middle, as in torchvision."""


class Advice(UserWarning):
    """Warning that a call works but could be faster or better, with a hint on what to change."""


def warn(line: str, category: type[Warning] = Advice) -> None:
    """Issue a warning at the line of the caller outside this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("shardprep."):
        level, frame = level + 1, frame.f_back
    warnings.warn(line, category, stacklevel=level + 1)


def warn_of_no_batch(size: int, num_records: int) -> None:
    """Warn that `drop_remainder` drops all records; `size` is the length of a global batch."""
    what = f"batches of {size:,} with drop_remainder=True yield nothing, because an epoch has "
    warn(f"{what}{counted(num_records, 'record')}; give a smaller batch_size")


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was left out because it could not be read or decoded."""

    shard: str
    record: int
    """Number of the record in its shard, from 0."""
    offset: int
    """Offset of the record in its shard, in bytes."""
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}: record {self.record} (offset {self.offset:,}): {self.reason}"


class StackPart(NamedTuple):
    """Images of a stack to read: every `every`-th one, then the middle `max_length` of these."""

    every: int = 1
    max_length: int | None = None

    def of(self, images: Sequence[Any]) -> Sequence[Any]:
        """Return the selected images of a stack, at least one unless the stack is empty."""
        images = images[:: self.every]
        if self.max_length is None or len(images) <= self.max_length:
            return images
        start = (len(images) - self.max_length) // 2
        return images[start : start + self.max_length]


class CropWindow(NamedTuple):
    """The part of an image that a crop shows, in pixels of the image before resizing."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False


@validated_fields("reader.RandomResizedCrop")
@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random box of each image, resized; another box in every epoch.

    Boxes are drawn as in torchvision: uniform in the area (`scale`, a share of the image), in the
    logarithm of the aspect ratio (`ratio`), and in the offset. Sides are rounded to pixels. If ten
    boxes in a row do not fit into the image, the crop is the largest box in the middle of the image
    with an aspect ratio in `ratio`.

    Args:
        size: height and width of the result.
        scale: smallest and largest share of the area.
        ratio: smallest and largest aspect ratio, width to height.
        min_visible: an object is dropped if less than this share of its box is in the crop, or if
            a side of the visible part is shorter than one pixel of the result.
        flip: probability of exchanging left and right of the result. Boxes, masks and keypoints
            are mirrored too. It does not change which boxes are drawn.
    """

    size: Size
    scale: Scale = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    min_visible: Share = 0.1
    flip: Share = 0.0

    def window(self, height: int, width: int, draws: Iterator[float]) -> CropWindow:
        """Return the box in an image of this size; `draws` yields random numbers in [0, 1)."""
        window = self._box(height, width, draws)
        return window._replace(mirrored=next(draws) < self.flip) if self.flip else window

    def _box(self, height: int, width: int, draws: Iterator[float]) -> CropWindow:
        smallest, largest = self.scale
        low, high = map(math.log, self.ratio)
        for _ in range(_MAX_DRAWS):
            area = (smallest + (largest - smallest) * next(draws)) * height * width
            aspect = math.exp(low + (high - low) * next(draws))
            tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < tall <= height and 0 < wide <= width:
                top, left = height - tall + 1, width - wide + 1
                return CropWindow(int(next(draws) * top), int(next(draws) * left), tall, wide)
        aspect = min(max(width / height, self.ratio[0]), self.ratio[1])
        return _middle(height, width, aspect, 1.0)


@validated_fields("reader.CenterCrop")
@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The largest box in the middle of each image with the aspect ratio of the result, resized.

    Args:
        size: height and width of the result.
        fraction: sides of the box as a share of the sides of the largest box that fits. 0.875
            corresponds to "resize to 256, crop to 224".
        min_visible: as in `RandomResizedCrop`.
    """

    size: Size
    fraction: Annotated[float, number(0.01, 1)] = 1.0
    min_visible: Share = 0.1

    def window(self, height: int, width: int, draws: Iterator[float]) -> CropWindow:
        del draws
        return _middle(height, width, self.size[1] / self.size[0], self.fraction)


@dataclass(frozen=True, slots=True)
class WholeImage:
    """The whole image at another size: the `image_size` of `ReadConfig`."""

    size: tuple[int, int]
    min_visible: float = 0.0

    def window(self, height: int, width: int, draws: Iterator[float]) -> CropWindow:
        del draws
        return CropWindow(0, 0, height, width)


Crop = RandomResizedCrop | CenterCrop | WholeImage


def _middle(height: int, width: int, aspect: float, fraction: float) -> CropWindow:
    tall = max(1, round(min(height, width / aspect) * fraction))
    wide = max(1, round(min(width, height * aspect) * fraction))
    return CropWindow((height - tall) // 2, (width - wide) // 2, tall, wide)


def _crop_kind(crop: Any) -> Kind:
    def take(value: Any) -> Any:
        return value if isinstance(value, crop) else crop(size.take(value))

    size = kind_of(Size)
    return Kind(take, (*size.expected, f"reader.{crop.__name__}(…)"))


AnyRandomResizedCrop = Annotated[Any, _crop_kind(RandomResizedCrop)]
AnyCenterCrop = Annotated[Any, _crop_kind(CenterCrop)]


@validated_fields("reader.ReadConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Further options of `load`. Options of `tfds.ReadConfig` have the same names here.

    Attributes:
        interleave_cycle_length: With `shuffle=True`, the number of blocks mixed at a time; large
            splits mix twice as many or more. None: the number of blocks in 32 MiB, with at most
            16,384 records, but at least 16 blocks. A smaller split is mixed as a whole.
        interleave_block_length: With `shuffle=True`, the number of neighbouring records of a
            block. None: 64, or fewer if 64 are more than 2 MiB, at least 8.
        num_parallel_calls_for_interleave_files: Number of concurrent calls that read records for
            TensorFlow's graph, which decodes small whole images on many cores. None: 2.
        num_parallel_calls_for_decode: Number of images decoded concurrently. None: one per core,
            or one per thread of the pipeline if each image is decoded by a call of its own.
        num_workers: Number of processes that fill batches, or 0 for none. None: the number that
            `Dataset.batches` has by default; 0 for single elements, and for batches that
            TensorFlow's graph decodes: whole images without annotations, if they have fewer than
            8,192 pixels per core, or if there are more than 8 cores (3 for raw images).
        shuffle_reshuffle_each_iteration: True for another order in each epoch. With a seed, the
            orders of all epochs are the same in every run.
        image_size: (height, width) in pixels to which each whole image is stretched, antialiased.
            The aspect ratio is not kept; `shardprep build --size` can crop or pad instead. Required
            for batches if the stored images differ in size and are not cropped.
        num_shards: Number of hosts; needs `shard_index`. A global batch has `batch_size` records
            for each host, and each host takes its part. The global batches do not depend on the
            number of hosts if `batch_size` × `num_shards` stays the same.
        shard_index: Number of this host, from 0.
        input_context: A `tf.distribute.InputContext`, instead of `num_shards` and `shard_index`.
        pad_batches: For evaluation. Pads incomplete batches and yields a third component,
            float32[batch] sample weights for Keras. Padding rows have weight 0. Each record has
            weight rows / records, both counted over all batches of all hosts. So the loss of
            `evaluate` and each metric of `compile(weighted_metrics=…)` are means over the records;
            plain `metrics` also count padding rows. All hosts yield the same number of batches.
        on_error: "skip" logs each record that is damaged or cannot be decoded, and yields the next
            good record instead. A function does the same, and is called once with each `BadRecord`
            instead of logging it.
        staging_bytes: Disk space for copies of shards from object storage, for all datasets on
            this machine together. None: the environment variable SHARDPREP_CACHE_BYTES, or half of
            the space that is free or taken by copies. A shard that does not fit is read from object
            storage in each epoch. 0 keeps no copies.
        cache_ram_share: Share of the free memory that `cache="auto"` may fill.
        private_threadpool_size: Number of threads of this pipeline. None: two per core, at least 4,
            because some threads wait for files or for each other.
        assert_cardinality: Tell tf.data the number of elements, and fail if the pipeline yields
            another number.
        options: A `tf.data.Options` that overrides the options of this pipeline.
    """

    interleave_cycle_length: Count | None = None
    interleave_block_length: Count | None = None
    num_parallel_calls_for_interleave_files: Calls = None
    num_parallel_calls_for_decode: Calls = None
    num_workers: Number | None = None
    shuffle_reshuffle_each_iteration: bool = True
    image_size: Size | None = None
    num_shards: Count | None = None
    shard_index: Number | None = None
    input_context: InputContext | None = None
    pad_batches: bool = False
    on_error: Literal["raise", "skip"] | Callable[[BadRecord], None] = "raise"
    staging_bytes: Number | None = None
    cache_ram_share: Share = 0.5
    private_threadpool_size: Count | None = None
    assert_cardinality: bool = True
    options: DataOptions | None = None

    def __post_init__(self) -> None:
        if self.input_context is not None and (self.shard_index, self.num_shards) != (None, None):
            what = "input_context already decides num_shards and shard_index"
            raise DatasetError(_CONFIG, what, "leave out both")
        position_of(_CONFIG, *self.shard_of)

    @property
    def shard_of(self) -> tuple[int, int]:
        """Number of this host from 0, and number of hosts."""
        context = self.input_context
        if context is None:
            return position_of(_CONFIG, self.shard_index, self.num_shards)
        return context.input_pipeline_id, context.num_input_pipelines

    @property
    def replicas(self) -> int:
        """Number of replicas that this host feeds."""
        context = self.input_context
        return 1 if context is None else context.num_replicas_in_sync // context.num_input_pipelines

    @property
    def threads(self) -> int:
        return self.private_threadpool_size or max(4, 2 * usable_cores())


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The arguments that `reader.load` and the methods of `Dataset` share."""

    batch_size: Count | None = None
    shuffle: bool | None = None
    weights: AnyWeights | None = None
    seed: Seed | None = None
    random_resized_crop: AnyRandomResizedCrop | None = None
    center_crop: AnyCenterCrop | None = None
    every: Count = 1
    max_length: Count | None = None
    as_supervised: bool = True
    box_format: BoxFormat = "rel_yxyx"
    max_boxes: Count | None = None
    drop_remainder: bool = False

    where = "reader"  # without an annotation, because it is not a field
    """Name of the call in errors."""

    @cached_property
    def crop(self) -> Crop | None:
        """The given crop, or None for whole images. DatasetError if two crops are given."""
        if self.random_resized_crop is not None and self.center_crop is not None:
            what = "random_resized_crop and center_crop are both given"
            raise DatasetError(self.where, what, "give the first to train, the second to evaluate")
        crop: Crop | None = self.center_crop or self.random_resized_crop
        return crop

    @property
    def part(self) -> StackPart:
        return StackPart(self.every, self.max_length)

    def shuffles(self, split: AnySplit) -> bool:
        if self.shuffle is None:
            return self.weights is not None or is_training(split)
        return self.shuffle

    def check_source(self, path: object, no_mix: Mapping[str, object]) -> None:
        """Raise DatasetError for options that contradict each other or the dataset.

        If `path` is a mix, all values of `no_mix` must be None or False.
        """
        given = [name for name, value in no_mix.items() if value is not None and value is not False]
        if isinstance(path, Mix) and given:
            hint = f"leave out {given[0]}, or {MERGE_HINT}"
            raise DatasetError(self.where, f"{given[0]} cannot be used with a mix", hint)
        if self.weights is not None and self.shuffle is False:
            what = "shuffle=False keeps the stored order, but weights draw records at random"
            raise DatasetError(self.where, what, "leave out shuffle or weights")


@dataclass(frozen=True)
class Request(ReadOptions):
    """The arguments of `reader.load`, with their types, defaults and checks."""

    path: Place
    split: AnySplit = "train"
    _: KW_ONLY
    repeat: bool | Count = False
    cache: Literal[False, "auto", "memory"] | Folder = False
    augment: Augmentation | None = None
    dtype: Literal["uint8", "float32"] = "uint8"
    read_config: ReadConfig | None = None

    @cached_property
    def config(self) -> ReadConfig:
        return self.read_config or ReadConfig()

    @property
    def is_shuffled(self) -> bool:
        return self.shuffles(self.split)

    @property
    def num_epochs(self) -> int | None:
        """Number of epochs of an iteration, or None for no end."""
        return None if self.repeat is True else int(self.repeat) or 1


@dataclass(frozen=True)
class EpochOptions(ReadOptions):
    """The arguments that `Dataset.batches`, `loader` and `keras` share."""

    batch_size: Count = field()  # without the default of `load`
    _: KW_ONLY
    num_shards: Count | None = None
    shard_index: Number | None = None
    ragged: bool = False
    on_error: Literal["raise", "skip"] = "raise"
    num_workers: Number | None = None
    num_threads: Count | None = None
    prefetch: Number | None = None

    where = "Dataset.batches"

    @property
    def shard_of(self) -> tuple[int, int]:
        """Number of this reader from 0, and number of readers."""
        return position_of(self.where, self.shard_index, self.num_shards)


@dataclass(frozen=True)
class BatchOptions(EpochOptions):
    """The arguments of `Dataset.batches`."""

    _: KW_ONLY
    epochs: Count | None = 1
    sharding: Sharding | None = None


class LoaderBatchOptions(BatchOptions):
    """The options of the batches that a loader makes; errors name `Dataset.loader`."""

    where = "Dataset.loader"


class KerasBatchOptions(BatchOptions):
    """The options of the batches that Keras gets; errors name `Dataset.keras`."""

    where = "Dataset.keras"


@dataclass(frozen=True)
class LoaderOptions(EpochOptions):
    """The arguments of `Dataset.loader`."""

    _: KW_ONLY
    transform: Function | None = None
    device: Any = None
    pin_memory: bool | None = None


@dataclass(frozen=True)
class KerasOptions(EpochOptions):
    """The arguments of `Dataset.keras`."""

    _: KW_ONLY
    sample_weight: Function | None = None


def seed_of(given: int | None, num_hosts: int) -> int:
    """Return the given seed; by default 0 for several hosts, random for a single host.

    Hosts do not communicate: with different seeds, records would be read twice or not at all.
    """
    if given is not None:
        return given
    return 0 if num_hosts > 1 else secrets.randbits(31)
