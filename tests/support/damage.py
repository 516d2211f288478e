"""Damage of a file: changes at random, which fit any file."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st


class Damage(NamedTuple):
    """One change of a file; places and lengths are shares of it, so that they fit any file."""

    how: str
    at: float
    length: float
    other: float
    noise: bytes

    def done_to(self, data: bytes, donor: bytes) -> bytes:
        """Return the damaged file; `donor` is another of its kind."""
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
    """Return the file after each of the damages."""
    for damage in damages:
        data = damage.done_to(data, donor)
    return data


def flipped(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit the other way round."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
