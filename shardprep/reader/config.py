"""Options of the reader, as values; TensorFlow is not imported here."""

from __future__ import annotations

import inspect
import math
import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from shardprep.errors import DatasetError
from shardprep.machine import usable_cores
from shardprep.reader.selection.split_argument import AnySplit, is_training
from shardprep.reader.validators import (
    Address,
    AnyWeights,
    Augmentation,
    Buckets,
    Calls,
    Count,
    Folder,
    Kind,
    Location,
    Number,
    Seed,
    Share,
    Size,
    check_position,
    kind_of,
    like,
    number,
    pair,
    validated_fields,
)

InputContext = Annotated[
    Any,
    like(
        "a tf.distribute.InputContext",
        "input_pipeline_id",
        "num_input_pipelines",
        "num_replicas_in_sync",
    ),
]
_TRIES = 10
"""Boxes that are drawn before the whole image is taken, as torchvision does."""

Scale = Annotated[
    tuple[float, float],
    pair(number(1e-6, 1), "(smallest, largest), two numbers above 0 up to 1", rising=True),
]
Ratio = Annotated[
    tuple[float, float],
    pair(number(1e-6), "(smallest, largest), two numbers above 0", rising=True),
]
BoxFormat = Literal[
    "rel_yxyx", "rel_xyxy", "rel_xywh", "rel_center_xywh",
    "yxyx", "xyxy", "xywh", "center_xywh", "center_yxhw",
]  # fmt: skip
"""Keras's names of the formats of boxes: those that begin with rel_ are 0 to 1, others pixels."""


DataOptions = Annotated[Any, like("a tf.data.Options", "threading", "autotune")]


class Advice(UserWarning):
    """Something is allowed and works, but slower or worse than it need be; says what to do."""


def warn(line: str) -> None:
    """Warn of something, as an `Advice`, at the line of the caller outside of this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("shardprep."):
        level, frame = level + 1, frame.f_back
    warnings.warn(line, Advice, stacklevel=level + 1)


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that could not be read or decoded, and was left out."""

    shard: str
    record: int
    """Counts from 0 in its shard."""
    offset: int
    """Offset of its frame in the shard, in bytes."""
    reason: str

    def __str__(self) -> str:
        return f"{self.shard}: record {self.record} (offset {self.offset:,}): {self.reason}"


TellOfBadRecord = Callable[[BadRecord], None]


class Window(NamedTuple):
    """The part of an image that a crop shows, in whole pixels of the image."""

    top: int
    left: int
    height: int
    width: int


@validated_fields("reader.RandomResizedCrop")
@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A box of each image, drawn anew in every epoch, and resized.

    The box is torchvision's: its share of the area is drawn evenly from `scale`, its aspect evenly
    in its logarithm from `ratio`, its sides are rounded, and it lies anywhere in the image. After
    ten draws that do not fit, it is the largest in the middle whose aspect is within `ratio`.

    Args:
        size: height and width of the results.
        scale: the smallest and the largest share of the area.
        ratio: the smallest and the largest aspect, width to height.
        min_visible: the share of an object's box below which it is cut away; so is what has a side
            below a pixel.

    """

    size: Size
    scale: Scale = (0.08, 1.0)
    ratio: Ratio = (3 / 4, 4 / 3)
    min_visible: Share = 0.1

    def window(self, height: int, width: int, draws: Iterator[float]) -> Window:
        """Return the box of an image of that size; `draws` yields numbers of 0 to below 1."""
        smallest, largest = self.scale
        low, high = map(math.log, self.ratio)
        for _ in range(_TRIES):
            area = (smallest + (largest - smallest) * next(draws)) * height * width
            aspect = math.exp(low + (high - low) * next(draws))
            tall, wide = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
            if 0 < tall <= height and 0 < wide <= width:
                top, left = height - tall + 1, width - wide + 1
                return Window(int(next(draws) * top), int(next(draws) * left), tall, wide)
        return _middle(height, width, min(max(width / height, self.ratio[0]), self.ratio[1]), 1.0)


@validated_fields("reader.CenterCrop")
@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of each image in the aspect of the result, and resized; nothing is drawn.

    Args:
        size: height and width of the results.
        fraction: sides of the box as a share of those of the largest that fits: 0.875 is what
            "resize to 256, cut out 224" shows.
        min_visible: as of `RandomResizedCrop`.

    """

    size: Size
    fraction: Annotated[float, number(0.01, 1)] = 1.0
    min_visible: Share = 0.1

    def window(self, height: int, width: int, draws: Iterator[float]) -> Window:
        """Return the box of an image of that size; nothing is taken from `draws`."""
        del draws
        return _middle(height, width, self.size[1] / self.size[0], self.fraction)


Crop = RandomResizedCrop | CenterCrop


def _middle(height: int, width: int, aspect: float, fraction: float) -> Window:
    """Return the box of an aspect, width to height, in the middle: a share of the largest."""
    tall = max(1, round(min(height, width / aspect) * fraction))
    wide = max(1, round(min(width, height * aspect) * fraction))
    return Window((height - tall) // 2, (width - wide) // 2, tall, wide)


def _taking(crop: Any) -> Kind:
    def take(value: Any) -> Any:
        return value if isinstance(value, crop) else crop(size.take(value))

    size = kind_of(Size)
    return Kind(take, (*size.expected, f"reader.{crop.__name__}(…)"))


AnyRandomResizedCrop = Annotated[Any, _taking(RandomResizedCrop)]
AnyCenterCrop = Annotated[Any, _taking(CenterCrop)]


def crop_of(where: str, drawn: RandomResizedCrop | None, center: CenterCrop | None) -> Crop | None:
    """Return the crop that is given, if any; raise DatasetError where there are two."""
    if drawn is not None and center is not None:
        what = "random_resized_crop and center_crop"
        raise DatasetError(where, what, "give the one to train, the other to evaluate")
    return center if drawn is None else drawn


@validated_fields("reader.ReadConfig")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Options of `load` beside its arguments; those that `tfds.ReadConfig` has bear its names.

    Attributes:
        interleave_cycle_length: Blocks that `shuffle=True` mixes at a time. None: as many as are 32
            MiB or 16,384 records, at least 16; a set of that size is mixed as a whole. With
            `shuffle=N`, shards that are read side by side (None: 16).
        interleave_block_length: Records of a block, which lie together in a shard. None: 64, fewer
            where 64 are more than 2 MiB. With `shuffle=N`, records taken from one shard before the
            next has its turn (None: 16).
        num_parallel_calls_for_interleave_files: Calls that read records at the same time, some tens
            of records each; None: 2.
        num_parallel_calls_for_decode: Images decoded at the same time; None: one for each core, or
            for each thread of the pipeline where each image is a call of its own.
        shuffle_reshuffle_each_iteration: Another order each epoch; with a seed, the same sequence
            of orders each run.
        image_size: (height, width) in pixels to which each whole image is stretched, antialiased:
            nothing is cut off or padded, the aspect is not kept (`shardprep build --size --fit`
            does other than that). Needed for batches where the stored images differ in size.
        num_shards: Readers that share the records, such as hosts; each reads a range of its own.
        shard_index: Number of this reader among them, from 0.
        input_context: A `tf.distribute.InputContext`, in place of the two above.
        pad_batches: For evaluation: fill the last batch up with zeros and yield a third component,
            sample weights for Keras, float32[batch]: 0 where there is no record, and where there is
            one the rows of all batches of all readers, divided by their records. So the loss of
            `evaluate` is the mean over the records, and so is each of
            `compile(weighted_metrics=…)`; plain `metrics` count what was filled up. All readers of
            `num_shards` then yield the same number of batches.
        on_error: "skip" puts the next good record in the place of one that is damaged or does not
            decode, and logs its name; a callable is told of each, once. Slower: every image passes
            through Python.
        service: Address of a tf.data service, "grpc://host:port", whose workers read, decode and
            batch. They must see the dataset under the same path.
        staging_bytes: Bytes that copies of shards in object storage may take on this machine's
            disk, together with those of all other datasets. None: SHARDPREP_CACHE_BYTES, else half
            of the disk's free space. A shard that does not fit is read from the store in each
            epoch; 0 keeps none.
        cache_ram_share: Share of the memory free at `load` that `cache="auto"` may fill.
        private_threadpool_size: Threads of this pipeline. None: two for each processor, for some
            wait for files or for each other while others decode; measured faster than one.
        assert_cardinality: Tell tf.data the number of records, and let it fail if the shards hold
            another.
        options: A `tf.data.Options` to apply last.

    """

    interleave_cycle_length: Count | None = None
    interleave_block_length: Count | None = None
    num_parallel_calls_for_interleave_files: Calls = None
    num_parallel_calls_for_decode: Calls = None
    shuffle_reshuffle_each_iteration: bool = True
    image_size: Size | None = None
    num_shards: Count = 1
    shard_index: Number = 0
    input_context: InputContext | None = None
    pad_batches: bool = False
    on_error: Literal["raise", "skip"] | TellOfBadRecord = "raise"
    service: Address | None = None
    staging_bytes: Number | None = None
    cache_ram_share: Share = 0.5
    private_threadpool_size: Count | None = None
    assert_cardinality: bool = True
    options: DataOptions | None = None

    def __post_init__(self) -> None:
        """Raise DatasetError where there is no such reader."""
        index, number = self.shard_of
        check_position("reader.ReadConfig", shard_index=index, num_shards=number)

    @property
    def shard_of(self) -> tuple[int, int]:
        """Number of this reader, and the number of all."""
        if self.input_context is not None:
            return (
                self.input_context.input_pipeline_id,
                self.input_context.num_input_pipelines,
            )
        return self.shard_index, self.num_shards

    @property
    def replicas(self) -> int:
        """Replicas that this reader feeds."""
        context = self.input_context
        return 1 if context is None else context.num_replicas_in_sync // context.num_input_pipelines

    @property
    def threads(self) -> int:
        """Threads of the pipeline."""
        return self.private_threadpool_size or max(4, 2 * usable_cores())


@dataclass(frozen=True)
class Request:
    """The arguments of `reader.load`: name, type, default and check of each. It says what they do.

    Inside, a field whose default follows from others is read by its property.
    """

    path: Location
    split: AnySplit = "train"
    _: KW_ONLY
    batch_size: Count | None = None
    shuffle: bool | Count | None = None
    weights: AnyWeights | None = None
    seed: Seed | None = None
    repeat: bool | Count = False
    cache: Literal[False, "auto", "memory"] | Folder = False
    random_resized_crop: AnyRandomResizedCrop | None = None
    center_crop: AnyCenterCrop | None = None
    augment: Augmentation | None = None
    dtype: Literal["uint8", "float32"] = "uint8"
    as_supervised: bool = True
    box_format: BoxFormat = "rel_yxyx"
    max_boxes: Count | None = None
    drop_remainder: bool = False
    read_config: ReadConfig | None = None

    @cached_property
    def config(self) -> ReadConfig:
        """The `read_config`, or that of all defaults."""
        return self.read_config or ReadConfig()

    @cached_property
    def crop(self) -> Crop | None:
        """The part of each image that is read, None for the whole."""
        return crop_of("reader", self.random_resized_crop, self.center_crop)

    @property
    def window(self) -> int | None:
        """Records of a plain shuffle window, None where blocks or nothing is shuffled."""
        return None if self.shuffle is None or isinstance(self.shuffle, bool) else self.shuffle

    @property
    def is_shuffled(self) -> bool:
        """Whether the order of an epoch is another than that of the shards."""
        if self.shuffle is None:
            return self.weights is not None or is_training(self.split)
        return bool(self.shuffle)

    @property
    def num_epochs(self) -> int | None:
        """Epochs of an iteration, None for no end."""
        return None if self.repeat is True else int(self.repeat) or 1


@dataclass(frozen=True)
class BatchOptions:
    """The arguments of `Dataset.batches`: name, type, default and check of each."""

    batch_size: Count
    _: KW_ONLY
    shuffle: bool | None = None
    weights: AnyWeights | None = None
    seed: Seed | None = None
    epochs: Count | None = 1
    drop_remainder: bool = False
    as_supervised: bool = True
    box_format: BoxFormat = "rel_yxyx"
    max_boxes: Count | None = None
    random_resized_crop: AnyRandomResizedCrop | None = None
    center_crop: AnyCenterCrop | None = None
    ragged: bool = False
    buckets: Buckets | None = None
    num_shards: Count = 1
    shard_index: Number = 0
    on_error: Literal["raise", "skip"] = "raise"
    num_threads: Count | None = None
    prefetch: Number | None = None

    @cached_property
    def crop(self) -> Crop | None:
        """The part of each image that is read, None for the whole."""
        return crop_of("Dataset.batches", self.random_resized_crop, self.center_crop)


def draw_seed() -> int:
    """Return a seed where none is given: another order in each run."""
    return secrets.randbits(31)


def check_weights(where: str, options: Request | BatchOptions) -> None:
    """Raise DatasetError where records are to be drawn by weight, and in an order as well."""
    if options.weights is not None and options.shuffle not in (None, True):
        what = f"shuffle={options.shuffle} is an order, and weights draw records at random"
        raise DatasetError(where, what, "leave out shuffle or weights")


def check_request(request: Request) -> None:
    """Raise DatasetError where arguments contradict each other."""
    config = request.config
    check_weights("reader", request)
    if request.weights is not None and (config.pad_batches or config.service):
        raise _refused(
            "weights draw the records of one training",
            "leave out pad_batches and service, or weights",
        )
    if config.pad_batches and (
        request.batch_size is None or request.drop_remainder or request.repeat
    ):
        raise _refused(
            "pad_batches fills the last batch of one epoch",
            "give batch_size, and neither repeat nor drop_remainder",
        )
    if request.crop is not None and config.image_size is not None:
        raise _refused("a crop and image_size, and a crop has its own size", "give one of them")
    if config.service is None:
        return
    if request.crop is not None:
        raise _refused(
            "the workers of a service decode whole images",
            "pass augment=augment.RandomResizedCrop((height, width)) in its place",
        )
    if request.batch_size is None:
        raise _refused("a service sends batches", "give batch_size")
    if request.cache == "memory":
        raise _refused("a service does not see this process's memory", "give cache a folder")
    if config.on_error != "raise":
        raise _refused("a service cannot skip bad records", "use on_error='raise'")
    if request.window:
        raise _refused(
            f"shuffle={request.shuffle} is a window of one reader, a service has many",
            "use shuffle=True or False",
        )


def _refused(what: str, hint: str) -> DatasetError:
    return DatasetError("reader", what, hint)
