"""From rates to the stage that bounds training, and the changes that are worth a try. Pure.

A stage costs what it adds to the time of an image when the pipeline is run up to it: the time of a
pipeline is that of its slowest stage, and of all its stages where they share cores that are busy.
What a change gives is never computed: it is tried, and what cannot be tried here is not promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardprep.reader.diagnosis.diagnosis import Diagnosis
from shardprep.reader.diagnosis.timing import RESTART_COUNTS, STALL_COUNTS, restart_advice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.reader.diagnosis.diagnosis import Bound, Change, Measured

Trial = Literal["memory", "folder", "in step", "repeat", "prefetch"]

_KEEPS_UP = 2.0
"""Ratio of the rates of pipeline and model, each alone, from which the two contend for cores."""
_WORTH = 0.05
"""Share of the time from which a stage, or a change, is worth a try, 0 to 1."""
_SAVES = 0.1
"""Share of the processor time from which saving it is advised, where nothing is faster."""
_FITS = 0.5
"""Share of what is free that a cache may fill, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Facts that decide which changes are possible."""

    num_steps: int | None
    """Steps of an epoch, None without an end."""
    decoded_bytes: int | None
    """Bytes of all images, decoded; None where they differ in size."""
    cache: str
    """Place of the cache: "" for none, "memory", or a folder."""
    dtype: str
    augments: bool
    free_bytes: int
    """Bytes of memory."""
    disk: str
    """A folder for temporary files."""
    free_disk_bytes: int


class Candidate(NamedTuple):
    """A change that is worth a try."""

    trial: Trial
    name: str
    advice: str
    options: dict[str, Any]
    """Arguments of `load` that are others then."""


class _Costs(NamedTuple):
    """Seconds that each stage adds to an image."""

    read: float
    decode: float
    augment: float


def reading_counts(found: Measured) -> bool:
    """Tell whether training would gain from a faster pipeline: in time, or in that of cores."""
    spent = 1 - found.model_cpu_s / found.training_cpu_s if found.training_cpu_s else 0.0
    ahead = _ceiling(found) >= (1 + _WORTH) * found.training
    return found.waiting >= STALL_COUNTS or ahead or spent >= _SAVES


def candidates(found: Measured, here: Circumstances) -> list[Candidate]:
    """Return the changes that are worth a try, the most likely first."""
    every = []
    costs = _costs(found, here)
    if reading_counts(found):
        if here.cache != "memory" and costs.read + costs.decode >= _WORTH * sum(costs):
            every += _caches(here)
        if _finishes(here) and costs.augment >= _WORTH * sum(costs):
            every.append(_in_step(here))
    if found.restart >= RESTART_COUNTS and here.num_steps is not None:
        advice = restart_advice(here.num_steps)
        every.append(Candidate("repeat", "repeat=True", advice, {"repeat": True}))
    if found.model_on_device and found.model_on_device >= (1 + _WORTH) * found.model:
        advice = (
            "dataset.apply(tf.data.experimental.prefetch_to_device('/GPU:0')), as the last step"
        )
        every.append(Candidate("prefetch", "prefetch_to_device", advice, {}))
        if _finishes(here) and all(one.trial != "in step" for one in every):
            every.append(_in_step(here))  # uint8 is a quarter of the bytes of float32
    return every


def conclude(found: Measured, here: Circumstances, tried: Sequence[Change]) -> Diagnosis:
    """Return the stage that bounds training, and the change that was worth most when tried."""
    bound = _bound(found, here)
    ranked = tuple(sorted(tried, key=lambda change: -change.images_s))
    best = next((change for change in ranked if _is_faster(change, found)), None)
    if best is None:
        saving = [change for change in ranked if _is_cheaper(change, found)]
        best = min(saving, key=lambda change: change.cpu_s, default=None)
    if best is None:
        return Diagnosis(bound, found, _unchanged(bound, found), 1.0, changes=ranked)
    gain = max(1.0, best.images_s / found.training)
    saved = max(0.0, 1 - best.cpu_s / found.training_cpu_s) if found.training_cpu_s else 0.0
    return Diagnosis(bound, found, best.advice, gain, saved, ranked)


def _is_faster(change: Change, found: Measured) -> bool:
    least = RESTART_COUNTS if "repeat" in change.options else _WORTH
    return change.images_s >= (1 + least) * found.training


def _is_cheaper(change: Change, found: Measured) -> bool:
    as_fast = change.images_s >= (1 - _WORTH) * found.training
    return as_fast and change.cpu_s <= (1 - _SAVES) * found.training_cpu_s


def _ceiling(found: Measured) -> float:
    return max(found.model, found.model_on_device or 0.0)


def _costs(found: Measured, here: Circumstances) -> _Costs:
    whole = 1 / found.pipeline
    if found.read is None or found.decode is None:  # a cache: its reading, and what comes after
        return _Costs(0.0, 0.0, whole) if here.augments else _Costs(whole, 0.0, 0.0)
    read, decoded = 1 / found.read, 1 / found.decode
    if not _finishes(here):  # then these are the same pipeline
        decoded = whole = min(decoded, whole)
    return _Costs(read, max(0.0, decoded - read), max(0.0, whole - decoded))


def _finishes(here: Circumstances) -> bool:
    return here.augments or here.dtype != "uint8"


def _bound(found: Measured, here: Circumstances) -> Bound:
    if found.waiting >= STALL_COUNTS:
        if found.restart > found.waiting / 2:
            return "restart"
        if found.pipeline < _KEEPS_UP * found.model:
            costs = _costs(found, here)._asdict()
            stages: tuple[Bound, ...] = ("read", "decode", "augment")
            return max(stages, key=lambda stage: costs[stage])
    if found.model_on_device is None:
        return "model"
    on_device = 1 / found.model_on_device
    return "transfer" if 1 / found.model - on_device > on_device else "model"


def _caches(here: Circumstances) -> list[Candidate]:
    needed = here.decoded_bytes
    if needed is None:
        return []
    if needed < _FITS * here.free_bytes:
        advice = f"cache='memory': {_size(needed)}, {_size(here.free_bytes)} are free"
        return [Candidate("memory", "cache='memory'", advice, {"cache": "memory"})]
    if here.cache or needed >= _FITS * here.free_disk_bytes:
        return []
    free = _size(here.free_disk_bytes)
    advice = f"cache='{here.disk}' or another folder: {_size(needed)}, {free} are free there"
    return [Candidate("folder", "cache in a folder", advice, {"cache": here.disk})]


def _in_step(here: Circumstances) -> Candidate:
    options: dict[str, Any] = {"augment": None, "dtype": "uint8"}
    if here.augments:
        advice = "augment in the model, as its first layers"
        return Candidate("in step", "augment in the model", advice, options)
    advice = "dtype='uint8', with a Rescaling layer in the model"
    return Candidate("in step", "dtype='uint8'", advice, options)


def _unchanged(bound: Bound, found: Measured) -> str:
    """Return what there is to say where nothing that was tried helps; it promises nothing."""
    if bound == "model":
        times = found.pipeline / found.model
        return f"nothing about reading, the pipeline gives {times:.1f} times what the model takes"
    return {
        "restart": "nothing that was tried helps; longer epochs restart less often",
        "read": "nothing that was tried helps; the disk or the store decides",
        "decode": "nothing that was tried helps; smaller stored images (--size) decode sooner",
        "augment": "nothing that was tried helps; a lighter augmentation costs less",
        "transfer": "nothing that was tried helps; smaller images are sooner there",
    }[bound]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
