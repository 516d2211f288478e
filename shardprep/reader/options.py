"""Options of the reader, as values; TensorFlow is not imported here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from shardprep.errors import DatasetError
from shardprep.machine import usable_cores
from shardprep.reader.arguments import check_position, checked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardprep.reader.splits import EvenSplit


class Advice(UserWarning):
    """Something is allowed and works, but slower or worse than it need be; says what to do."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Options that are seldom varied; names are those of `tfds.ReadConfig` for the same thing."""

    interleave_cycle_length: int | None = None
    """Blocks that `shuffle=True` mixes at a time. None: as many as are 32 MiB or 16,384 records, at
    least 16; a set of that size is mixed as a whole. With `shuffle=N`, shards that are read side
    by side (None: 16)."""
    interleave_block_length: int | None = None
    """Records of a block: what lies together in a shard and is read at once. None: 64, fewer where
    64 are more than 2 MiB. With `shuffle=N`, records taken from one shard before the next has its
    turn (None: 16)."""
    num_parallel_calls_for_interleave_files: int | None = None
    """Shards read at the same time by `shuffle=N`; None lets tf.data decide."""
    num_parallel_calls_for_decode: int | None = None
    """Images decoded at the same time; None: one for each core, or what tf.data decides."""
    shuffle_reshuffle_each_iteration: bool = True
    """Another order each epoch; with a seed, the same sequence of orders each run."""
    image_size: tuple[int, int] | None = None
    """Height and width to which images are resized (antialiased, aspect not kept); needed for
    batches where the stored images differ in size."""
    num_shards: int = 1
    """Readers that share the records, such as hosts; each reads a range of its own."""
    shard_index: int = 0
    """Number of this reader among them, from 0."""
    input_context: Any = None
    """A `tf.distribute.InputContext`, in place of the two above."""
    pad_batches: bool = False
    """For evaluation: fill the last batch up with zeros and yield a third component, float32[batch]
    that is 1 where there is a record and 0 where there is none: Keras takes it as sample weights.
    All readers of `num_shards` then yield the same number of batches."""
    on_error: Literal["raise", "skip"] | Callable[[BadRecord], None] = "raise"
    """"skip" puts the next good record in the place of one that is damaged or does not decode, and
    logs its name; a callable is told of each, once. Slower: every image passes through Python."""
    service: str | None = None
    """Address of a tf.data service, "grpc://host:port", whose workers read, decode and batch. They
    must see the dataset under the same path."""
    staging_bytes: int | None = None
    """Bytes that copies of shards in object storage may take on this machine's disk, together with
    those of all other datasets. None: SHARDPREP_CACHE_BYTES, else half of the disk's free space.
    A shard that does not fit is read from the store in each epoch; 0 keeps none."""
    cache_ram_share: float = 0.5
    """Share of the memory free at `load` that `cache="auto"` may fill."""
    private_threadpool_size: int | None = None
    """Threads of this pipeline. None: two for each processor, for some wait for files or for each
    other while others decode; measured faster than one."""
    assert_cardinality: bool = True
    """Tell tf.data the number of records, and let it fail if the shards hold another."""
    options: Any = None
    """A `tf.data.Options` to apply last."""

    def __post_init__(self) -> None:
        """Check the fields; raise DatasetError where one, or a pair of them, means nothing."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        for name, value in checked("reader.ReadConfig", given).items():
            object.__setattr__(self, name, value)
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


class LoadOptions(TypedDict, total=False):
    """Options that `load` takes by name."""

    batch_size: int | None
    shuffle: bool | int | None
    seed: int | None
    repeat: bool | int
    cache: Literal[False] | str | Path
    augment: Callable[..., Any] | None
    dtype: Literal["uint8", "float32"]
    as_supervised: bool
    drop_remainder: bool
    read_config: ReadConfig | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `load`, resolved."""

    split: str | EvenSplit
    batch_size: int | None
    shuffle: bool | int
    seed: int | None
    repeat: bool | int
    cache: str
    """"" for none, "auto", "memory", or a folder."""
    augment: Callable[..., Any] | None
    dtype: str
    as_supervised: bool
    drop_remainder: bool

    @property
    def window(self) -> int | None:
        """The size of a plain shuffle window, None where blocks or nothing is shuffled."""
        return None if isinstance(self.shuffle, bool) else self.shuffle


def make_request(split: str | EvenSplit, options: LoadOptions) -> tuple[Request, ReadConfig]:
    """Return the options of `load` with its defaults."""
    shuffle, cache = options.get("shuffle"), options.get("cache", False)
    request = Request(
        split=split,
        batch_size=options.get("batch_size"),
        shuffle=shuffles(split) if shuffle is None else shuffle,
        seed=options.get("seed"),
        repeat=options.get("repeat", False),
        cache=str(cache or ""),
        augment=options.get("augment"),
        dtype=options.get("dtype", "uint8"),
        as_supervised=options.get("as_supervised", True),
        drop_remainder=options.get("drop_remainder", False),
    )
    return request, options.get("read_config") or ReadConfig()


def shuffles(split: str | EvenSplit) -> bool:
    """Tell whether a split is shuffled by default, in both readers."""
    return (split if isinstance(split, str) else split.split).startswith("train")


def draw_seed() -> int:
    """Return a seed where none is given: another order in each run."""
    return secrets.randbits(31)


def check_request(request: Request, config: ReadConfig) -> None:
    """See that no argument contradicts another; `arguments` says what each may be for itself.

    Raises:
        DatasetError: says which do.

    """
    if config.pad_batches and (
        request.batch_size is None or request.drop_remainder or request.repeat
    ):
        raise _refused(
            "pad_batches fills the last batch of one epoch",
            "give batch_size, and neither repeat nor drop_remainder",
        )
    if config.service and request.batch_size is None:
        raise _refused("a service sends batches", "give batch_size")
    if config.service and request.cache == "memory":
        raise _refused("a service does not see this process's memory", "give cache a folder")
    if config.service and config.on_error != "raise":
        raise _refused("a service cannot skip bad records", "use on_error='raise'")
    if config.service and request.window:
        raise _refused(
            f"shuffle={request.shuffle} is a window of one reader, a service has many",
            "use shuffle=True or False",
        )


def _refused(what: str, hint: str) -> DatasetError:
    return DatasetError("reader", what, hint)
