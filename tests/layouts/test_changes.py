"""Other words for the same things never make a row wrong that is right."""

import zlib
from pathlib import Path

import pytest

from tests.layouts.changes import CHANGES
from tests.support.corpus import rows
from tests.support.first_contact import judged, stored_statuses, wanted_facts

_ROWS = {row.id: row for row in rows() if row.facts is not None}
_RIGHT = [name for name, status in stored_statuses().items() if status == "right" and name in _ROWS]
_SHARE = 100
"""One of so many pairs of a row and a change is tested; `--changed` tests all rows."""


def _pairs() -> list[tuple[str, str]]:
    pairs = ((change, name) for change in CHANGES for name in _RIGHT)
    return [one for one in pairs if zlib.crc32(" ".join(one).encode()) % _SHARE == 0]


@pytest.mark.parametrize(("change", "name"), _pairs())
def test_a_change_that_nobody_minds_makes_no_right_row_wrong(
    change: str, name: str, tmp_path: Path
) -> None:
    row = CHANGES[change](_ROWS[name])
    if row is None:
        pytest.skip("the row has nothing to change")
    source = row.write_source(tmp_path)
    status, detail = judged(row, source, *wanted_facts(row, source), enough="refused")
    assert status != "wrong", detail
