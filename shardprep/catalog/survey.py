"""The survey of a source for `shardprep init`, and the recipe that it suggests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from shardprep.catalog.candidates import (
    Candidate,
    part_candidates,
    path_candidates,
    stack_candidates,
    table_candidates,
)
from shardprep.catalog.decision.decide import decide
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.label_rules import label_keys
from shardprep.catalog.labels import ENOUGH
from shardprep.catalog.names import folder_splits
from shardprep.catalog.objects.detect import annotation_findings, find_signs, usual
from shardprep.catalog.objects.formats.annotated_source import Sign
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.mask_files import masks_beside
from shardprep.catalog.source_images import list_images, no_image
from shardprep.catalog.stacks import stack_patterns
from shardprep.catalog.tables.key_index import KeyIndex
from shardprep.catalog.tables.row_matching import match_table, united
from shardprep.catalog.tables.table import Table
from shardprep.catalog.targets import TargetSpec, make_targets
from shardprep.dataset.card import Card
from shardprep.dataset.schema import TargetKind
from shardprep.errors import Choice, OptionName, QuestionError, SourceError, counted, printable
from shardprep.recipe.document import key_lines, toml_value
from shardprep.recipe.recipe import make_recipe
from shardprep.recipe.rules import TABLE_SUFFIXES, LabelRule
from shardprep.source.byte_range import ZipExtent
from shardprep.source.members import Member, Members
from shardprep.storage.space import megabytes

_MOST_COLUMNS = 12
_OF_TABLE = {"labels", "pivot", "target"}
_ANNOTATIONS = {"boxes", "masks", "points"}
_PARTS = _ANNOTATIONS | {"labels", "stack", "target_image", "rows"}
"""Options that say what an image gets."""
_LOOKED_AT, _LARGE = 8, 50_000_000
"""Number of images whose size is read, and pixels of images to cut into tiles."""


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """A CSV or TSV, and the images that it names."""

    name: str
    num_rows: int
    columns: tuple[str, ...]
    id_column: str
    """The column that holds names of images, or ""."""
    num_matched: int
    """Number of images that have a row."""
    problem: str = ""
    """Reason why its rows cannot be matched to images, or ""."""


@dataclass(frozen=True, slots=True, repr=False)
class Survey(Card):
    """The content of a source."""

    source: str
    num_images: int
    num_bytes: int
    """Size of all images, in bytes."""
    suffixes: dict[str, int]
    splits: dict[str, int]
    """Number of images by split, from the names of folders."""
    tables: tuple[TableSurvey, ...]
    rules: tuple[Candidate, ...]
    """The ways to label the source, or a part of it."""
    chosen: str
    """The rule that `auto` uses."""
    annotations: tuple[Sign, ...]
    """Detected boxes and masks, first the ones that the recipe uses."""
    stacks: tuple[str, ...]
    """Values of `--stack` that fit the names of the images."""
    findings: tuple[str, ...]
    """Remarks, one line each."""
    decided: dict[str, Any]
    """Key of a recipe → value that the source decides."""
    is_export: bool
    """True if `shardprep export` wrote the source."""
    choices: tuple[Choice, ...]
    """The readings of the source that fit, if the user must choose one."""
    proposals: dict[str, tuple[str, ...]]
    """Option of a file of arrays → its possible values; the recipe takes the first one."""
    target: TargetKind
    classes: dict[str, int]
    """Number of images by class, in label order."""
    others: dict[str, int]
    """Number of members that are neither images nor tables, by suffix."""
    skipped: dict[str, int]
    """Number of skipped members by reason."""
    follow_links: bool
    """True if links that lead outside were followed."""
    num_doubles: int
    """Number of images in zips with the same size and CRC-32 as another."""

    @property
    def taken(self) -> Sign | None:
        """The boxes or masks that the recipe uses, or None if it uses none."""
        is_open = self.chosen == "none" and not self.is_settled
        return self.annotations[0] if self.annotations and is_open else None

    @property
    def is_annotated(self) -> bool:
        """Whether the recipe stores boxes, masks or keypoints."""
        return self.taken is not None or not _ANNOTATIONS.isdisjoint(self.decided)

    @property
    def is_settled(self) -> bool:
        """Whether it is decided what an image gets, or the user must choose."""
        return bool(self.choices) or not _PARTS.isdisjoint(self.decided)

    @property
    def proposed(self) -> Candidate | None:
        """The table of several targets that the recipe uses if no rule was certain, or None."""
        if self.chosen != "none" or self.taken is not None or self.stacks or self.is_settled:
            return None
        for one in self.rules:
            is_whole = one.num_labelled >= ENOUGH * one.num_images
            if one.unit == "target" and is_whole and one.keys.keys() <= _OF_TABLE:
                return one
        return None

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "source": self.source,
            "images": self.num_images,
            "size": megabytes(self.num_bytes),
            "formats": self.suffixes,
            "splits": self.splits,
            "decided": Reading(self.decided, "").flags,
            "choose": [f"{one.flags} ({one.why})" for one in self.choices],
            "labels by": self.chosen if self.taken is None else "",
            "classes": self.classes,
            "stacks": self.stacks,
            "annotations": [sign.flag for sign in self.annotations],
            "tables": {table.name: counted(table.num_rows, "row") for table in self.tables},
            "others": self.others,
            "skipped": self.skipped,
            "twice": self.num_doubles,
            "options": [
                f"--{key.replace('_', '-')} {one[0]}" for key, one in self.proposals.items()
            ],
            "notes": self.findings,
        }
        return {title: value for title, value in found.items() if value}


def survey_source(
    source: Path | str,
    work_dir: Path,
    notice: Callable[[str], None],
    *,
    follow_links: bool = False,
) -> Survey:
    """Return the survey of a source; see `list_images` for arguments and errors."""
    recipe = make_recipe({"source": str(source), "follow_links": follow_links}, "init")
    listing = list_images(recipe, work_dir, notice, proposes=True)
    if not listing.images:
        raise no_image(str(source), listing)
    view, choices = View(recipe, listing), list[Choice]()
    try:
        view = decide(view)
    except QuestionError as error:
        choices += error.choices
    listing, documents = view.listing, view.documents
    recipe, keys = view.recipe, view.beside.images.keys
    index = KeyIndex(keys)
    several = documents.tables
    tables = united(index, several)
    is_alone = bool(choices or recipe.is_annotated or recipe.target_image)
    rule = LabelRule("none") if is_alone else recipe.label_rule
    chosen = label_keys(index, rule, tables if rule.kind == "auto" else documents.label_tables())
    unclear = [] if chosen.unclear is None else [str(chosen.unclear)]
    rules = stack_candidates(keys, several) + path_candidates(index)
    rules += [one for table in tables for one in table_candidates(index, table, several)]
    if chosen.rule == "none":
        rules += part_candidates(keys, tables)
    signs = find_signs(index, documents, listing.images)
    recognised = [] if signs else annotation_findings(keys, documents)
    ordered = tuple(sorted(signs, key=lambda one: one not in usual(signs)))
    is_settled = bool(choices or not _PARTS.isdisjoint(view.decided))
    taken = {ordered[0].key: ordered[0].option} if signs and chosen.rule == "none" else {}
    recipe = recipe if is_settled else recipe.with_rules(**taken)
    images = [member.key for member in masks_beside(recipe, listing.images, documents).images]
    spec = TargetSpec(kind="auto" if chosen.match else "class")
    targets = make_targets(keys, chosen.names, spec, chosen.table_names, chosen.cells)
    counts: Counter[int] = Counter()
    for value in targets.values:
        counts.update(value if isinstance(value, tuple) else [value] if type(value) is int else [])
    zipped = [m.extent for m in listing.images if isinstance(m.extent, ZipExtent)]
    return Survey(
        source=str(source),
        num_images=len(keys),
        num_bytes=sum(member.extent.num_bytes for member in listing.images),
        suffixes=_suffixes(listing.images),
        splits=dict(Counter(split or "train" for split in folder_splits(images))),
        tables=tuple(_table(index, table) for table in tables),
        rules=tuple(rules),
        chosen=chosen.rule,
        annotations=ordered,
        stacks=tuple(stack_patterns(listing.images.keys, tables)),
        decided={key: getattr(view.recipe, key) for key in sorted(view.decided)},
        is_export=bool(documents.export_layout),
        choices=tuple(choices),
        findings=(
            *listing.notes,
            *view.notes,
            *unclear,
            *chosen.findings,
            *recognised,
            *_large(listing.images),
        ),
        proposals=listing.proposals,
        target=targets.kind,
        classes={name: counts[i] for i, name in enumerate(targets.names)},
        others=_suffixes([m for m in listing.others if not m.key.lower().endswith(TABLE_SUFFIXES)]),
        skipped=dict(Counter(one.reason for one in listing.skipped)),
        follow_links=follow_links,
        num_doubles=len(zipped) - len({(one.num_bytes, one.crc32) for one in zipped}),
    )


def recipe_text(survey: Survey) -> str:
    """Return the recipe that a survey suggests: the text of a `shardprep.toml` with comments."""
    given = ", ".join(f"{count:,} {split}" for split, count in survey.splits.items())
    ratios, how = _proposed_cut(survey.splits)
    lines = [
        "# What `shardprep build` makes. A flag on the command line wins over this file;",
        "# `shardprep build --help` lists them; all that are not of one run alone are keys here.",
        "",
        f"# {counted(survey.num_images, 'image')}, {survey.num_bytes / 1e6:,.1f} MB.",
        f"source = {toml_value(survey.source)}",
        "",
        *([*key_lines("follow_links", value=True), ""] if survey.follow_links else []),
        *_array_lines(survey),
        *_size_lines(survey),
        "",
        *(line for one in survey.stacks for line in key_lines("stack", one, is_set=False)),
        *(['# With stack, masks = "auto".'] if survey.stacks and survey.annotations else []),
        *_decided_lines(survey),
        *_annotation_lines(survey),
        *(_label_lines(survey) if survey.taken is None else []),
        "",
        f"# Folders give {given}; this would cut {how}:",
        f"# split = {toml_value(ratios)}",
        "",
        *key_lines("shards", 20, is_set=False),
    ]
    if survey.num_doubles:
        lines += ["", f"# Twice there: {counted(survey.num_doubles, 'image')}."]
        lines += key_lines("dedup", value=True, is_set=False)
    # Comments may contain names of files; strings are already escaped.
    return "\n".join(map(printable, lines)) + "\n"


def _size_lines(survey: Survey) -> list[str]:
    if survey.is_export:  # its images have the size and the encoding that its user chose
        return [*key_lines("size", "none"), *key_lines("format", "keep")]
    fit = "pad" if survey.is_annotated else "crop"
    return [*key_lines("size", "224x224"), *key_lines("fit", fit)]


def _proposed_cut(splits: Collection[str]) -> tuple[str, str]:
    if {*splits} == {"train"}:
        return "train=0.8,validation=0.1,test=0.1", "them"
    if "train" not in splits:
        return "train=0.8,validation=0.1,test=0.1", "them anew"
    if "validation" not in splits:
        return "validation=0.1", "a validation split from train and keep test whole"
    if "test" not in splits:
        return "test=0.1", "a test split from train and keep validation whole"
    return "validation=0.1", "train and validation anew and keep test whole"


def _array_lines(survey: Survey) -> list[str]:
    lines = []
    for key, (value, *others) in survey.proposals.items():
        lines += key_lines(key, value)
        lines += [f"# {key} = {toml_value(other)}" for other in others]
    return [*lines, ""] if lines else []


def _decided_lines(survey: Survey) -> list[str]:
    lines = ["# What the source decides."] if survey.decided else []
    signs = {one.option: one for one in survey.annotations if one.key == "boxes"}
    for key, value in survey.decided.items():
        lines.append(f"{key} = {toml_value(value)}")
        sign = signs.get(value) if key == "boxes" else None
        if sign and sign.has_points and "points" not in survey.decided:
            lines.append(f"points = {toml_value(value)}")
        if sign and sign.has_unlisted and "unlisted" not in survey.decided:
            lines.append('unlisted = "background"')
    if survey.choices:
        lines += ["# Several readings of the source fit. Choose one: take # from its lines."]
    for one in survey.choices:
        lines += [f"# {one.why}", *(f"#     {example}" for example in one.examples)]
        lines += [f"# {key} = {toml_value(value)}" for key, value in one.options.items()]
    return [*lines, ""] if lines else []


def _annotation_lines(survey: Survey) -> list[str]:
    lines: list[str] = []
    for sign in survey.annotations:
        if sign is survey.taken:
            lines += ["# Boxes, masks or keypoints that are stored.", f"# {sign.how}"]
            lines += [f"{sign.key} = {toml_value(sign.option)}"]
            if sign.key == "masks":
                lines += key_lines("instances", value=True, is_set=sign.instances)
            if sign.option in ("jsonl", "labelme", "via"):
                lines += ["# Or masks:", f'# masks = "{sign.option}"', "# instances = true"]
            if sign.has_points:
                lines += [f"points = {toml_value(sign.option)}"]
            if sign.has_unlisted:
                lines += [f"# {counted(sign.num_unlisted, 'image')} without a file: no objects."]
                lines += ['unlisted = "background"']
        else:
            lead = "instead of labels" if survey.taken is None else "instead of these, or with them"
            lines += [f"# There are {sign.key}, {lead}: {sign.how}"]
            lines += [f"# {sign.key} = {toml_value(sign.option)}"]
            lines += ["# instances = true"] if sign.instances else []
            lines += [f"# points = {toml_value(sign.option)}"] if sign.has_points else []
    return [*lines, ""] if lines and survey.taken is None else lines


def _label_lines(survey: Survey) -> list[str]:
    lines = ["# Where labels are found."]
    taken: dict[str, str | tuple[str, ...]] = {"labels": survey.chosen}
    if survey.is_settled:
        lines, taken = [], {}
    elif survey.proposed is not None:
        lines = [
            "# A table has several numbers or classes for each image. Check that these are right."
        ]
        taken = survey.proposed.keys
    elif survey.chosen == "none" and survey.rules:
        lines = ["# No rule was certain. Choose one of the others below, if one is right."]
    elif survey.chosen == "none":
        lines = [
            "# No labels were found: folder, prefix, regex:PATTERN or csv:FILE:ID:LABEL would",
            "# say where they are.",
        ]
    if survey.classes:
        names = list(survey.classes)
        shown = ", ".join(names[:6]) + (f", … {len(names):,} classes" if names[6:] else "")
        lines.append(f"# {' '.join(shown.split())}")
    lines += [f"{key} = {toml_value(value)}" for key, value in taken.items()]
    if survey.target not in ("class", "none"):
        lines.append(f"target = {toml_value(survey.target)}")
    others = [rule for rule in survey.rules if rule.keys != taken]
    if others:
        lines.append("# Other ways to label them, instead of these lines:")
    for rule in others:
        pairs = [f"# {key} = {toml_value(value)}" for key, value in rule.keys.items()]
        lines += [*pairs[:-1], f"{pairs[-1]}  # {rule.counts}"]
    lines += [f"# Note: {' '.join(line.split())}." for line in survey.findings]
    return lines


def _table(index: KeyIndex, table: Table) -> TableSurvey:
    facts = table.name, len(table.rows), table.header[:_MOST_COLUMNS]
    try:
        match = match_table(index, table)
    except SourceError as error:
        return TableSurvey(*facts, "", 0, error.what)
    return TableSurvey(*facts, match.id_column, int((match.row_of >= 0).sum()))


def _large(members: Members) -> list[str]:
    """Return a remark if images are so large that they are usually cut into tiles."""
    some = members[:: -(-len(members) // _LOOKED_AT)]
    sizes = [size for one in some if (size := image_size(one.extent))]
    height, width = max(sizes, key=math.prod, default=(0, 0))
    large = f"an image has {width}x{height} pixels; {OptionName('tile')} 512 would cut it"
    return [large] if height * width >= _LARGE else []


def _suffixes(members: Sequence[Member]) -> dict[str, int]:
    counts = Counter(PurePosixPath(m.key).suffix.lower() or "no suffix" for m in members)
    return dict(counts.most_common())
