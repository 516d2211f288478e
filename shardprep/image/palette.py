"""The colours of classes, the same in every picture and page."""

from __future__ import annotations

import colorsys
import math

Colour = tuple[int, int, int]
INK = (20, 20, 20)
"""Colour of text, and of mask pixels whose value is not a class."""
_COLOURS = (
    *("e6194b", "3cb44b", "4363d8", "ffe119", "f58231", "911eb4", "42d4f4", "f032e6", "bfef45"),
    *("469990", "9a6324", "fabed4", "800000", "aaffc3", "808000", "dcbeff", "000075", "ffd8b1"),
)
"""Colours of the first classes in hexadecimal RGB, from Sasha Trubetskoy's list."""
_SHADES = ((0, 0.0), (255, 0.45), (0, 0.4), (255, 0.7), (0, 0.65))
"""Grey level that a colour is mixed with, and the share of that level, for each shade."""
_GOLDEN = (math.sqrt(5) - 1) / 2
"""Turn of the colour wheel between later classes; the golden ratio keeps neighbours apart."""


def class_colour(label: int) -> Colour:
    """Return the RGB colour of a class, the same in every picture and page."""
    if 0 <= label < len(_COLOURS):
        found = bytes.fromhex(_COLOURS[label])
        return found[0], found[1], found[2]
    red, green, blue = colorsys.hsv_to_rgb((label * _GOLDEN) % 1.0, 0.9 - 0.25 * (label % 2), 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def shade(colour: Colour, number: int) -> Colour:
    """Return a lighter or darker shade of a colour; shade 0 is the colour itself."""
    level, share = _SHADES[number % len(_SHADES)]
    red, green, blue = (round(part * (1 - share) + level * share) for part in colour)
    return red, green, blue
