"""The decision how to read a source: one stage after the other, each on what the last one left.

A stage looks at the evidence for one part: which files are masks or targets of others, which are
copies, what the splits are, what the labels are. If one reading fits, it is used and noted. If
several do, nothing is built: the error shows each as flags, with the parts that follow from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardprep.catalog.decision.annotation_evidence import annotation_readings
from shardprep.catalog.decision.view import Options, Reading, Stage, View
from shardprep.errors import OptionName, QuestionError, RecipeError, SourceError, counted

STAGES: tuple[Stage, ...] = (annotation_readings,)
"""In order: what is an image, then which split it is in, then what its label is."""
_MOST_READINGS = 6


def decide(view: View) -> View:
    """Return the view with all that the evidence decides; QuestionError if several readings fit."""
    for stage in STAGES:
        readings = stage(view)
        if len(readings) > 1:
            raise _question(view, _followed(view, readings))
        for reading in readings:
            view = view.read_as(reading)
    return view


def _followed(view: View, readings: Sequence[Reading]) -> list[Reading]:
    """Return the readings, each with the options that are decided if it is used."""
    found: list[Reading] = []
    for reading in readings:
        own = view.read_as(reading)
        try:
            found.append(Reading(_options(decide(own)), reading.why))
        except QuestionError as error:
            found += (Reading(one, f"{reading.why}; {why}") for one, why in error.readings)
        except (SourceError, RecipeError):  # it fits no image, or contradicts itself
            continue
    return found[:_MOST_READINGS]


def _options(view: View) -> Options:
    return {key: getattr(view.recipe, key) for key in sorted(view.decided, key=_ORDER.index)}


_ORDER = (
    "root", "include", "exclude", "images", "stack", "labels", "join", "pivot", "target",
    "separator", "rows", "header", "boxes", "masks", "instances", "points", "unlisted",
    "target_image", "split", "group",
)  # fmt: skip


def _question(view: View, readings: Sequence[Reading]) -> QuestionError:
    what = f"{counted(len(readings), 'reading')} of the source fit"
    hint = ", or ".join(f"{one.flags} ({one.why})" for one in readings)
    pairs = [(one.options, one.why) for one in readings]
    return QuestionError(OptionName("labels", view.recipe.labels), what, hint, readings=pairs)
