"""Decide how to read a source, in stages; each stage works on the result of the stage before.

A stage looks at the evidence for one part: which files are masks or targets of others, which are
copies, what the splits are, what the labels are. If one reading fits, it is used and noted. If
several fit, QuestionError shows each as flags, together with the decisions of the later stages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from shardprep.catalog.decision.annotation_evidence import annotation_readings, unclear_objects
from shardprep.catalog.decision.array_evidence import array_readings
from shardprep.catalog.decision.copies import copies, parts, variants
from shardprep.catalog.decision.folder_evidence import class_pictures, loose_images, stray_pictures
from shardprep.catalog.decision.mask_evidence import mask_files
from shardprep.catalog.decision.name_evidence import labels_by_names
from shardprep.catalog.decision.sample_folders import samples
from shardprep.catalog.decision.split_evidence import (
    LEFT_OUT,
    listed_splits,
    numbered_splits,
    splits,
    splits_by_tables,
)
from shardprep.catalog.decision.table_evidence import by_tables, labels_of_few, unlabelled_tests
from shardprep.catalog.decision.target_images import target_images
from shardprep.catalog.decision.unpaired_masks import mask_pictures
from shardprep.catalog.decision.unread_documents import unread_documents, unread_tables
from shardprep.catalog.decision.view import Options, Reading, Stage, View
from shardprep.errors import Choice, OptionName, QuestionError, RecipeError, SourceError, some_of

STAGES: tuple[Stage, ...] = (
    copies, class_pictures, stray_pictures, loose_images, mask_files, target_images, variants,
    annotation_readings, samples, mask_pictures, splits, unclear_objects, by_tables,
    labels_by_names, splits_by_tables, unlabelled_tests, unread_documents, labels_of_few,
    unread_tables,
)  # fmt: skip
"""The stages in order: first which files are images, then their splits, then their labels."""
_MOST_CHOICES, _LEAST_CHOICES = 6, 4
_SELECTION = {"root", "include"}
_OF_MASKS = ("masks", "instances", "mask_values", "exclude")
_ORDER = (
    "root", "include", "exclude", "dedup", "images", "stack", "header", "null", "labels", "join",
    "pivot", "target", "separator", "rows", "boxes", "masks", "mask_values", "instances", "points",
    "unlisted", "target_image", "split", "group",
)  # fmt: skip
"""Options that stages set, in the order of their display."""


def decide(view: View) -> View:
    """Return the view with all decisions of the evidence; QuestionError if several readings fit.

    If the recipe states labels or annotations, only lists of splits are searched. In a source with
    stacks, only exports of shardprep and masks in arrays are recognised.
    """
    if not view.recipe.may_be_annotated:
        return view if view.recipe.items else _with_splits(view)
    if options := view.documents.export_options():
        own = {k: one for k, one in options.items() if k == "exclude" or view.is_open(k)}
        return view.read_as(Reading(own, _of_export(view)))
    if readings := array_readings(view):  # only their flags open these files: no stage can follow
        raise _question(view, [_choice(one.options, one.why) for one in readings])
    if view.listing.images.are_stacks.any():  # stages that need `stack` open see no stack
        return view
    try:
        return _decided(view, STAGES)
    except QuestionError as error:
        raise _question(view, _with_parts(view, error.choices)) from None


def asked_masks(view: View) -> View:
    """Return the view with masks that `--masks auto` finds; QuestionError if several fit."""
    recipe = view.recipe
    own = view.of(recipe.with_rules(boxes="", masks="", points="", labels="none"))
    is_said = recipe.instances or recipe.mask_values or recipe.classes
    found = dict[str, Reading]()
    for one in mask_files(own):
        options = {key: value for key, value in one.options.items() if key in _OF_MASKS}
        if is_said:
            options.pop("instances", None)
        if "masks" in options:
            reading = Reading(options, one.why)
            found.setdefault(reading.flags, reading)
    if len(found) > 1:
        choices = [Choice(one.options, flags, one.why) for flags, one in found.items()]
        raise QuestionError.of(OptionName("masks", "auto"), choices)
    return view.read_as(*found.values()) if found else view


def _with_splits(view: View) -> View:
    """Return the view with splits that lists state; if several readings fit, only with a note."""
    found = [one for one in listed_splits(view) if one.options.keys() <= {"split"}]
    stated = [one for one in found if one.options]
    if len(stated) > 1 or not all(x.is_certain and not x.why.endswith(LEFT_OUT) for x in stated):
        shown = " or ".join(f"{one.flags} ({one.why})" for one in stated)
        stated = [Reading({}, f"all images are in train; there may be splits: {shown}")]
    elif not stated and view.is_open("split", "join"):
        numbered = next(numbered_splits(view), None)
        if numbered and numbered.is_certain and not view.index.splits.are_there.any():
            stated = [numbered]
    for reading in (*(one for one in found if not one.options), *stated):
        view = view.read_as(reading)
    return view


def _with_parts(view: View, choices: Sequence[Choice]) -> Sequence[Choice]:
    """Return the choices, and after the first few, choices that use only one folder."""
    known = {glob for one in choices for glob in one.options.get("exclude", ())}
    several = [] if any("root" in one.options for one in choices) else parts(view)
    if not known.isdisjoint(glob for one in several for glob in one.options.get("exclude", ())):
        return choices
    own = _followed(view, several, (STAGES[0], *STAGES))  # each folder goes through all stages
    number = max(_LEAST_CHOICES, _MOST_CHOICES - len(own))
    return [*choices[:number], *own, *choices[number:]][:_MOST_CHOICES]


def _of_export(view: View) -> str:
    lost = view.documents.export_facts.get("not_built_again")
    more = f"; not read: {some_of([*map(str, lost)])}" if isinstance(lost, list) else ""
    return f"export.json says how to read the export{more}"


def _decided(view: View, stages: Sequence[Stage]) -> View:
    for number, stage in enumerate(stages, 1):
        readings = stage(view)
        is_asked = not all(one.is_certain for one in readings)
        if len(readings) > 1 or is_asked:
            choices = _followed(view, readings, stages[number - 1 :])
            if len(choices) > 1 or (choices and is_asked):
                raise _question(view, choices)
            readings = [Reading(one.options, one.why) for one in choices]
        for reading in readings:
            view = view.read_as(reading)
    return view


def _followed(view: View, readings: Sequence[Reading], stages: Sequence[Stage]) -> list[Choice]:
    """Return the choices for each reading, with the options that later stages decide after it.

    `stages[0]` gave the readings. It is repeated for a reading that only selects images.
    """
    several: list[list[Choice]] = []
    for reading in readings:
        is_selection = bool(reading.options) and reading.options.keys() <= _SELECTION
        further = stages if is_selection else stages[1:]
        try:
            own = _decided(view.read_as(reading), further)
            decided = sorted(own.decided, key=_ORDER.index)
            options = {key: getattr(own.recipe, key) for key in decided}
            if not (options and reading.options):  # a choice needs at least one option
                options = {"labels": own.automatic.rule, **options}
            several.append([_choice(options, reading.why)])
        except QuestionError as error:
            choices = (one._replace(why=f"{reading.why}; {one.why}") for one in error.choices)
            several.append([*choices])
        except (SourceError, RecipeError):  # it fits no image, or contradicts itself
            continue
    in_turn = itertools.zip_longest(*several)  # the first choice of each reading, then the second
    found = [one for choices in in_turn for one in choices if one is not None]
    by_flags = {one.flags: one for one in reversed(found)}
    return [one for one in found if by_flags[one.flags] is one][:_MOST_CHOICES]


def _question(view: View, choices: Sequence[Choice]) -> QuestionError:
    return QuestionError.of(OptionName("labels", view.recipe.labels), choices)


def _choice(options: Options, why: str) -> Choice:
    return Choice(options, Reading(options, why).flags, why)
