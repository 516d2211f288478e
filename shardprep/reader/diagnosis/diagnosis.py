"""The diagnosis: what bounds training, what was measured, and the changes that were tried."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from shardprep.reader.diagnosis.timing import RESTART_COUNTS

Bound = Literal["restart", "read", "decode", "augment", "transfer", "model"]

_IN_TIMES = 1.1
"""Ratio from which a gain is told as one, below as a share."""
_SAVING_COUNTS = 0.1
"""Share of the processor time from which saving it is worth a word, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Figures of all runs; rates are images a second."""

    waiting: float
    """Share of the time of training that goes by until batches are there, 0 to 1."""
    restart: float
    """Share of it until the first batch of an epoch is there, 0 to 1; a part of `waiting`."""
    training: float
    """Rate as it is: restarts, waiting and steps."""
    training_cpu_s: float
    """Seconds of one core for an image of that."""
    model: float
    """Rate of steps alone, on one batch in the host's memory."""
    model_cpu_s: float
    """Seconds of one core for an image of that."""
    model_on_device: float | None = None
    """Rate on one batch in the accelerator's memory; None where there is no accelerator."""
    pipeline: float
    """Rate of the pipeline alone, without restarts."""
    decode: float | None = None
    """Rate of the pipeline without `augment` and `dtype`; None where the pipeline keeps up, or
    behind a cache."""
    read: float | None = None
    """Rate of the records alone; None as `decode`."""


class Change(NamedTuple):
    """One change, tried for a moment."""

    name: str
    advice: str
    """Advice, in full."""
    options: dict[str, Any]
    """Arguments of `load` that are others then; empty where it is not `load` that changes."""
    images_s: float
    """Rate of training with it, measured."""
    cpu_s: float
    """Seconds of one core for an image, measured."""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """The stage that bounds training; `str()` is a short report, in a notebook a table."""

    bound: Bound
    measured: Measured
    advice: str
    gain: float
    """How many times as fast training was when the advice was tried; 1.0 where none makes it so."""
    saved: float = 0.0
    """Share of the processor time of an image that the advice saved, 0 to 1."""
    changes: tuple[Change, ...] = field(default=())
    """All that was tried, the best first."""

    def __str__(self) -> str:
        rows = [f"{name:<34}{rate:>10,.0f}" for name, rate in self._rates()]
        return "\n".join((self._headline(), f"{'':<34}{'images/s':>10}", *rows, *self._advised()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the report as a table, for a notebook."""
        rows = "".join(
            f"<tr><td style='text-align: left'>{html.escape(name.strip())}</td>"
            f"<td style='text-align: right'>{rate:,.0f}</td></tr>"
            for name, rate in self._rates()
        )
        return (
            f"<p>{html.escape(self._headline())}</p>"
            f"<table><thead><tr><th></th><th>images/s</th></tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{'<br>'.join(map(html.escape, self._advised()))}</p>"
        )

    def _headline(self) -> str:
        found = self.measured
        first = f" ({found.restart:.0%} for first batches)"
        return f"bound by {self.bound}: {found.waiting:.0%} of the time is waiting for data" + (
            first if found.restart >= RESTART_COUNTS else ""
        )

    def _rates(self) -> list[tuple[str, float]]:
        found = self.measured
        rates = {
            "training": found.training,
            "model alone": found.model,
            "model alone, batch on the device": found.model_on_device,
            "pipeline alone": found.pipeline,
            "  read and decode": found.decode,
            "  read": found.read,
            **{f"with {change.name}": change.images_s for change in self.changes},
        }
        return [(name, rate) for name, rate in rates.items() if rate is not None]

    def _advised(self) -> list[str]:
        figures = []
        if self.gain >= _IN_TIMES:
            figures.append(f"{self.gain:.1f} times as fast")
        elif self.gain > 1:
            figures.append(f"{self.gain - 1:.0%} faster")
        if self.saved >= _SAVING_COUNTS:
            figures.append(f"{self.saved:.0%} less processor time")
        return [f"do this: {self.advice}", *([f"tried: {', '.join(figures)}"] if figures else [])]
