"""Diagnosis from rates: the stage that bounds training, and the one thing to change. Pure.

A stage costs what it adds to the time of an image when the pipeline is run up to it: the time of a
pipeline is that of its slowest stage, and of all its stages where they share cores that are busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Bound = Literal["read", "decode", "augment", "transfer", "model"]

_WAITING_COUNTS = 0.1
"""Share of the time below which the pipeline keeps up, 0 to 1."""
_KEEPS_UP = 2.0
"""Ratio of the rates of pipeline and model, each alone, from which the two contend for cores."""
_MEMORY_SHARE = 0.5
_MANY = 10
_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates of all runs, images a second."""

    waiting: float
    """Share of the time of training that went by until the next batch was there, 0 to 1."""
    training: float
    """Rate as it is: waiting and steps."""
    model: float
    """Rate of steps alone, on one batch in the host's memory."""
    model_on_device: float | None
    """Rate on one batch in the accelerator's memory; None where there is no accelerator."""
    pipeline: float
    """Rate of the pipeline alone."""
    decode: float | None
    """Rate of the pipeline without `augment` and `dtype`; None behind a cache."""
    read: float | None
    """Rate of the records alone; None behind a cache."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts that decide which changes are possible."""

    num_records: int
    record_bytes: float
    """Mean bytes of a record."""
    encoding: str
    stored_pixels: int | None
    """Height × width of the stored images; None where they differ."""
    asked_size: tuple[int, int] | None
    """Height and width that images are resized to; None where they are not."""
    dtype: str
    augments: bool
    free_bytes: int

    @property
    def pixels(self) -> int | None:
        """Height × width of the images that are yielded."""
        return self.asked_size[0] * self.asked_size[1] if self.asked_size else self.stored_pixels

    @property
    def decoded_bytes(self) -> int | None:
        """Bytes of memory of all images, decoded; None where that is not known."""
        return None if self.pixels is None else 3 * self.pixels * self.num_records


class Change(NamedTuple):
    """One change, and the rate that is predicted of it."""

    advice: str
    images_s: float
    """Images a second of training after it, predicted."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The stage that bounds training; `str()` is a short report."""

    bound: Bound
    measured: Measured
    advice: str
    gain: float
    """How many times as fast training would be, predicted; 1.0 where reading cannot help."""

    def __str__(self) -> str:
        found = self.measured
        rates = {
            "training": found.training,
            "model alone": found.model,
            "model alone, batch on the device": found.model_on_device,
            "pipeline alone": found.pipeline,
            "  read and decode": found.decode,
            "  read": found.read,
        }
        rows = [f"{name:<34}{rate:>10,.0f}" for name, rate in rates.items() if rate is not None]
        times = f"about {self.gain:.1f}" if self.gain < _MANY else f"more than {_MANY}"
        gain = f" ({times} times as fast)" if self.gain > 1 else ""
        return "\n".join(
            (
                f"bound by {self.bound}: {found.waiting:.0%} of the time is waiting for data",
                f"{'':<34}{'images/s':>10}",
                *rows,
                f"do this: {self.advice}{gain}",
            )
        )


def conclude(found: Measured, here: Circumstances) -> Diagnosis:
    """Return the stage that bounds training, and the change that is worth most."""
    bound = _bound(found, here)
    change = _CHANGES[bound](found, here)
    gain = max(1.0, change.images_s / found.training)
    return Diagnosis(bound, found, change.advice, gain)


class _Costs(NamedTuple):
    """Seconds that each stage adds to an image."""

    read: float
    decode: float
    augment: float


def _costs(found: Measured, here: Circumstances) -> _Costs:
    whole = 1 / found.pipeline
    if found.read is None or found.decode is None:  # a cache: its reading, and what comes after
        return _Costs(0.0, 0.0, whole) if here.augments else _Costs(whole, 0.0, 0.0)
    read, decoded = 1 / found.read, 1 / found.decode
    if not here.augments and here.dtype == "uint8":  # then these are the same pipeline
        decoded = whole = min(decoded, whole)
    return _Costs(read, max(0.0, decoded - read), max(0.0, whole - decoded))


def _bound(found: Measured, here: Circumstances) -> Bound:
    if found.waiting >= _WAITING_COUNTS and found.pipeline < _KEEPS_UP * found.model:
        costs = _costs(found, here)._asdict()
        stages: tuple[Bound, ...] = ("read", "decode", "augment")
        return max(stages, key=lambda stage: costs[stage])
    if found.model_on_device is None:
        return "model"
    on_device = 1 / found.model_on_device
    return "transfer" if 1 / found.model - on_device > on_device else "model"


def _for_read(found: Measured, here: Circumstances) -> Change:
    costs = _costs(found, here)
    rest = costs.decode + costs.augment
    if found.read is None:
        return Change("put the cache on a faster disk, or use cache='memory'", found.model)
    if _fits(here):
        return Change(_cache_advice(here), _slower_of(found.model, costs.augment))
    return Change(
        "copy the dataset to a local disk and load it there", _slower_of(found.model, rest)
    )


def _for_decode(found: Measured, here: Circumstances) -> Change:
    costs = _costs(found, here)
    size = here.asked_size
    if size and here.stored_pixels and here.stored_pixels >= 2 * size[0] * size[1]:
        share = size[0] * size[1] / here.stored_pixels
        left = (costs.read + costs.decode) * share + costs.augment
        advice = f"build the set with --size {size[1]}x{size[0]}: larger images are decoded now"
        return Change(advice, _slower_of(found.model, left))
    if _fits(here):  # records that are decoded take longer to copy, but nothing to check or parse
        return Change(_cache_advice(here), _slower_of(found.model, costs.read + costs.augment))
    if here.encoding != "raw" and here.pixels:
        larger = max(1.0, 3 * here.pixels / here.record_bytes)
        left = costs.read * larger + costs.augment
        after = _slower_of(found.model, left)
        if after > found.training:
            advice = f"build the set with --format raw: {larger:.0f} times the bytes, no decoding"
            return Change(advice, after)
    return Change("build the set with a smaller --size", found.training)


def _for_augment(found: Measured, here: Circumstances) -> Change:
    costs = _costs(found, here)
    left = costs.read + costs.decode
    if not here.augments:
        advice = "dtype='uint8', with a Rescaling layer in the model: casting costs most now"
        return Change(advice, _slower_of(found.model, left))
    advice = "augment in the model, as its first layers: there the accelerator does it"
    return Change(advice, _slower_of(found.model, left))


def _for_transfer(found: Measured, here: Circumstances) -> Change:
    on_device = 1 / (found.model_on_device or found.model)
    transfer = 1 / found.model - on_device
    if here.dtype == "float32":
        left = on_device + transfer / _FLOAT32_BYTES
        return Change("dtype='uint8', with a Rescaling layer in the model", 1 / left)
    advice = "dataset.apply(tf.data.experimental.prefetch_to_device('/GPU:0')), as the last step"
    return Change(advice, 1 / max(on_device, transfer))


def _for_model(found: Measured, here: Circumstances) -> Change:
    del here
    times = found.pipeline / found.model
    advice = (
        f"nothing about reading, the pipeline gives {times:.1f} times what the model takes; "
        "mixed precision, a larger batch or a smaller model would help"
    )
    return Change(advice, found.training)


_CHANGES = {
    "read": _for_read,
    "decode": _for_decode,
    "augment": _for_augment,
    "transfer": _for_transfer,
    "model": _for_model,
}


def _fits(here: Circumstances) -> bool:
    needed = here.decoded_bytes
    return needed is not None and needed < _MEMORY_SHARE * here.free_bytes


def _cache_advice(here: Circumstances) -> str:
    needed = (here.decoded_bytes or 0) / 1e9
    return f"cache='memory': {needed:.1f} GB, {here.free_bytes / 1e9:.1f} GB are free"


def _slower_of(model: float, seconds_an_image: float) -> float:
    """Return the images a second of a model and a pipeline that run side by side."""
    return min(model, 1 / seconds_an_image) if seconds_an_image else model
