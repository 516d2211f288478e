"""Two runs at once over one place in object storage: every order of their requests ends well.

The gate plays a part of the orders; `python -m tests.writer.meetings` more, or all of them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.writer.meetings import FATES, MOST_STEPS, NUM_DRAWN, STRIDE, meetings
from tests.writer.two_runs import drawn_order, one_change

if TYPE_CHECKING:
    from tests.writer.meetings import Meeting

MEETINGS = meetings()


@cache
def met(name: str) -> Meeting:
    return MEETINGS[name]()


@pytest.mark.parametrize("name", MEETINGS)
def test_a_run_that_pauses_anywhere_while_another_is_over_ends_well(name: str) -> None:
    start = sum(name.encode()) % STRIDE
    for num_steps in range(start, MOST_STEPS, STRIDE):
        one_change(met(name).scenario(), "a", num_steps)


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("name", MEETINGS)
def test_two_runs_in_any_order_end_well_though_one_is_ended(name: str, fate: str) -> None:
    """At each moment a finished dataset is there, if one was, and it is whole."""
    for seed in range(NUM_DRAWN):
        drawn_order(met(name).scenario(), seed, fate)
