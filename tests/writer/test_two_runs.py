"""Two runs at once over one place in object storage: every order of their requests ends well.

The gate plays some of the orders, `make soak` many more.
"""

from functools import cache

import pytest

from tests.writer.meetings import FATES, MOST_STEPS, STRIDE, Meeting, meetings
from tests.writer.two_runs import drawn_order, one_change

MEETINGS = meetings()


@cache
def met(name: str) -> Meeting:
    return MEETINGS[name]()


@pytest.mark.parametrize("name", MEETINGS)
def test_a_run_may_pause_at_any_request_until_another_run_has_ended(name: str) -> None:
    start = sum(name.encode()) % STRIDE
    for num_steps in range(start, MOST_STEPS, STRIDE):
        one_change(met(name).scenario(), "a", num_steps)


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("name", MEETINGS)
def test_two_runs_in_a_random_order_keep_the_dataset_whole(name: str, fate: str) -> None:
    """One of them may be killed or interrupted."""
    drawn_order(met(name).scenario(), FATES.index(fate), fate)
