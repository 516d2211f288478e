"""How many random cases a test tries: all in the gate, a fifth while one works.

Hypothesis's profile decides, which `tests/conftest.py` loads.
"""

import os
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st

_MANY = int(os.environ.get("SHARDPREP_FUZZ", "0"))
"""Cases of each kind of damage, for a long run: SHARDPREP_FUZZ=10000 pytest …/test_fuzz.py."""
_FULL, _QUICK = 100, 20
in_time = pytest.mark.timeout(0 if _MANY else 120)


def texts(max_size: int | None = None) -> st.SearchStrategy[str]:
    """Return a strategy of texts that UTF-8 can encode, faster than `st.text`."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=max_size)


def load_profile(*, quick: bool) -> None:
    """Set the number of cases of tests that are imported later."""
    # A busy machine is no fault of the program: there is no deadline.
    settings.register_profile("full", deadline=None, max_examples=_FULL)
    settings.register_profile("quick", deadline=None, max_examples=_QUICK)
    settings.load_profile("quick" if quick else "full")


def examples(number: int, **more: Any) -> settings:
    """Return settings with this number of cases."""
    return settings(
        max_examples=max(number * settings().max_examples // _FULL, 1), deadline=None, **more
    )


def fuzzed(number: int, **more: Any) -> settings:
    """Return settings of a fuzz test, with the same cases in every run."""
    if _MANY:
        return settings(max_examples=_MANY, deadline=None, database=None, derandomize=True, **more)
    return examples(number, database=None, derandomize=True, **more)


class Damage(NamedTuple):
    """A change of a file. Position and length are fractions of its size."""

    how: str
    at: float
    length: float
    other: float
    noise: bytes

    def done_to(self, data: bytes, donor: bytes) -> bytes:
        """Return the damaged file; `donor` is another file of the same kind."""
        start = int(self.at * len(data))
        stop = start + 1 + int(self.length**4 * len(data))  # mostly short
        to = int(self.other * len(data))
        match self.how:
            case "flip":
                flipped = bytes(byte ^ (1 << self.noise[0] % 8) for byte in data[start : start + 1])
                return data[:start] + flipped + data[start + 1 :]
            case "overwrite":
                return data[:start] + self.noise + data[start + len(self.noise) :]
            case "cut":
                return data[:start]
            case "delete":
                return data[:start] + data[stop:]
            case "repeat":
                return data[:to] + data[start:stop] + data[to:]
            case _:
                return data[:start] + donor[int(self.other * len(donor)) :]


_HOW = st.sampled_from(["flip", "flip", "overwrite", "cut", "delete", "repeat", "splice"])
_SHARE = st.floats(0, 1)
DAMAGES = st.lists(
    st.builds(Damage, _HOW, _SHARE, _SHARE, _SHARE, st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, donor: bytes, damages: list[Damage]) -> bytes:
    for damage in damages:
        data = damage.done_to(data, donor)
    return data


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit inverted."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def thorough(*values: Any) -> Any:
    """Return a case of a parametrised test that `--quick` leaves out."""
    return pytest.param(*values, marks=pytest.mark.thorough)
