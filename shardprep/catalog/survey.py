"""Survey a source for `shardprep init`, and write the recipe that the survey suggests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from shardprep.catalog.candidates import candidates
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.given_items import with_items
from shardprep.catalog.labels import Labelling
from shardprep.catalog.names import find_masks, folder_splits, given_split
from shardprep.catalog.objects.detect import mask_findings
from shardprep.catalog.objects.formats.annotated_source import Sign
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.source_images import list_images, no_image, source_images
from shardprep.catalog.stacks import stack_patterns
from shardprep.catalog.tables.key_index import KeyIndex, unused_entries
from shardprep.catalog.tables.row_matching import match_table
from shardprep.catalog.tables.table import Table
from shardprep.catalog.targets import TargetSpec, make_targets
from shardprep.dataset.card import Card
from shardprep.dataset.schema import TARGETS, TargetKind
from shardprep.errors import Choice, OptionName, QuestionError, SourceError, counted, printable
from shardprep.recipe.document import key_lines, toml_value
from shardprep.recipe.options import BUILD_DEFAULTS
from shardprep.recipe.recipe import make_recipe
from shardprep.recipe.rules import TABLE_SUFFIXES
from shardprep.source.byte_range import ZipExtent
from shardprep.source.members import Member, Members
from shardprep.source.string_column import Coded
from shardprep.storage.space import megabytes

_MOST_COLUMNS = 12
_ANNOTATIONS = {"boxes", "masks", "points"}
_PARTS = _ANNOTATIONS | {"labels", "stack", "target_image", "rows"}
"""Options that decide the target or the annotations of images."""
_LOOKED_AT, _LARGE = 8, 50_000_000
"""Number of images whose size is read; minimum pixels of an image for which tiles are proposed."""


@dataclass(frozen=True, slots=True)
class TableSurvey:
    """Summary of a CSV or TSV, and of the images that its rows name."""

    name: str
    num_rows: int
    columns: tuple[str, ...]
    id_column: str
    """The column with names of images, or ""."""
    num_matched: int
    """Number of images that have a row."""
    problem: str = ""
    """Reason why rows cannot be matched to images, or ""."""


@dataclass(frozen=True, slots=True, repr=False)
class Survey(Card):
    """Facts about the content of a source, and the decisions on how to read it."""

    source: str
    num_images: int
    num_bytes: int
    suffixes: dict[str, int]
    splits: dict[str, int]
    """Split stated by folders, or by the table of items → number of images."""
    tables: tuple[TableSurvey, ...]
    rules: tuple[Choice, ...]
    """Other readings of the source or of a part of it."""
    chosen: str
    """Labelling rule that `auto` chooses."""
    annotations: tuple[Sign, ...]
    """Boxes, outlines and points that documents and tables state."""
    findings: tuple[str, ...]
    decided: dict[str, Any]
    """Option → value that was decided from the source."""
    is_export: bool
    """True if `shardprep export` wrote the source."""
    choices: tuple[Choice, ...]
    """Readings that fit the source, if the user must choose; otherwise ()."""
    proposals: dict[str, tuple[str, ...]]
    """Option for array files → its possible values; the suggested recipe has the first value."""
    target: TargetKind
    classes: dict[str, int]
    """Class → number of images, in label order."""
    others: dict[str, int]
    """Suffix → number of members that are neither images nor tables."""
    skipped: dict[str, int]
    """Reason → number of skipped members."""
    given: dict[str, Any]
    """Option for reading the source, such as `follow_links` → value, if not the default."""
    num_doubles: int
    """Number of images in zips with size and CRC-32 of an earlier image."""

    @property
    def is_settled(self) -> bool:
        """Whether targets or annotations are decided, or the user must choose."""
        return bool(self.choices) or not _PARTS.isdisjoint(self.decided)

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "source": self.source,
            "images": self.num_images,
            "size": megabytes(self.num_bytes),
            "formats": self.suffixes,
            "splits": self.splits,
            "decided": Reading(self.decided, "").flags,
            "choose": [f"{one.flags} ({one.why})" for one in self.choices],
            "labels by": self.chosen,
            "classes": self.classes,
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
    items: str = "",
    **given: Any,
) -> Survey:
    """Return the survey of a source; SourceError without images.

    For arguments and errors see `list_images`. With `items`, only this table labels and annotates.
    `given` has options for reading the source.
    """
    recipe = make_recipe({}, "init", {"source": str(source), "items": items, **given})
    listing = list_images(recipe, work_dir, notice, proposes=not items)
    if not listing.images:
        raise no_image(str(source), listing)
    own = recipe
    if items:
        recipe, listing = with_items(recipe, listing)
    view, choices, unclear = View(recipe, listing), tuple[Choice, ...](), list[str]()
    labelling: Labelling | None = None
    try:
        wanted = source_images(recipe, listing)
        view, labelling = wanted.view, wanted.labelling
    except QuestionError as error:
        choices = tuple(error.choices)
    except SourceError as error:
        unclear.append(str(error))
    if items and listing.columns is not None:
        lost = match_table(view.index, listing.columns).rows_without_image
        unclear += unused_entries(items, lost, len(listing.columns.rows), view.index.keys)
    labelling = labelling or Labelling(Coded.constant(None, len(view.index.keys)), "")
    recipe, listing = view.recipe, view.listing
    values = {one.name: getattr(recipe, one.name) for one in fields(recipe) if one.compare}
    decided = {name: one for name, one in values.items() if one != getattr(own, name)}
    decided |= {"items": items} if items else {}
    signs = [] if items else view.all_signs
    readings = [Reading(sign.options, sign.how) for sign in signs]
    readings += [] if items else [*_stacks(view), *candidates(view)]
    offered = [one.flags for one in choices] + [Reading(decided, "").flags]
    offered.append(Reading({"labels": labelling.rule}, "").flags)
    rules = {one.flags: Choice(one.options, one.flags, one.why) for one in readings}
    keys = view.beside.images.keys
    splits = Counter(split or "train" for split in folder_splits(keys))
    if listing.columns is not None and "split" in decided:
        cells = listing.columns.cells(listing.columns.column("split")).coded().counts()
        splits = Counter({given_split([cell]) or cell: count for cell, count in cells.items()})
    kind = "class" if recipe.target == "auto" and labelling.match is None else recipe.target
    spec = TargetSpec(kind=kind, separator=recipe.separator)
    facts = labelling.names, spec, labelling.table_names, labelling.cells
    targets = make_targets(view.index.keys, *facts)
    if TARGETS in targets.features and targets.kind == "classes":  # both numbers and classes
        decided["target"] = "auto"
    counts: Counter[int] = Counter()
    for value in targets.values:
        counts.update(value if isinstance(value, tuple) else [value] if type(value) is int else [])
    zipped = [m.extent for m in listing.images if isinstance(m.extent, ZipExtent)]
    return Survey(
        source=str(source),
        num_images=len(keys),
        num_bytes=sum(member.extent.num_bytes for member in listing.images),
        suffixes=_suffixes(listing.images),
        splits=dict(splits),
        tables=tuple(_table(view.index, table) for table in view.tables),
        rules=tuple(one for flags, one in rules.items() if flags not in offered),
        chosen=labelling.rule,
        annotations=tuple(signs),
        decided=decided,
        is_export=bool(view.documents.export_layout),
        choices=choices,
        findings=(
            *listing.notes,
            *view.notes,
            *unclear,
            *labelling.findings,
            *labelling.remarks,
            *view.index.remarks,
            *([] if choices or recipe.is_annotated else mask_findings(keys)),
            *_large(listing.images),
        ),
        proposals=listing.proposals,
        target=targets.kind,
        classes={name: counts[i] for i, name in enumerate(targets.names)},
        others=_suffixes([m for m in listing.others if not m.key.lower().endswith(TABLE_SUFFIXES)]),
        skipped=dict(Counter(one.reason for one in listing.skipped)),
        given={k: values[k] for k in given if values[k] != BUILD_DEFAULTS[k]},
        num_doubles=len(zipped) - len({(one.num_bytes, one.crc32) for one in zipped}),
    )


def recipe_text(survey: Survey) -> str:
    """Return the recipe that a survey suggests: the text of a `shardprep.toml` with comments."""
    given = ", ".join(f"{count:,} {split}" for split, count in survey.splits.items())
    giver = "The table gives" if "items" in survey.decided else "Folders give"
    ratios, how = _proposed_cut(survey.splits)
    lines = [
        "# What `shardprep build` makes. A flag on the command line wins over this file;",
        "# `shardprep build --help-all` lists them. All except 'This run' are keys of this file.",
        "",
        f"# {counted(survey.num_images, 'image')}, {megabytes(survey.num_bytes)}.",
        f"source = {toml_value(survey.source)}",
        "",
        *(line for key, value in survey.given.items() for line in (*key_lines(key, value), "")),
        *_array_lines(survey),
        *_size_lines(survey),
        "",
        *_decided_lines(survey),
        *_label_lines(survey),
        *_other_lines(survey),
        "",
        f"# {giver} {given}; this would cut {how}:",
        f"# split = {toml_value(ratios)}",
        "",
        *key_lines("shards", 20, is_set=False),
    ]
    if survey.num_doubles:
        copies = counted(survey.num_doubles, "image", "is a copy", "are copies")
        lines += ["", f"# {copies} of others."]
        lines += key_lines("dedup", value=True, is_set=False)
    # Comments may contain names of files; strings are already escaped.
    return "\n".join(map(printable, lines)) + "\n"


def _size_lines(survey: Survey) -> list[str]:
    if survey.is_export:  # its images have the size and the encoding that its user chose
        return [*key_lines("size", "none"), *key_lines("format", "keep")]
    fit = "crop" if _ANNOTATIONS.isdisjoint(survey.decided) else "pad"
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
    if items := survey.decided.get("items"):
        stated = [key for key in survey.decided if key != "items"]
        lines = [*key_lines("items", items), f"# It states {', '.join(stated) or 'images alone'}."]
        return [*lines, ""]
    signs = {one.option: one for one in survey.annotations if one.key == "boxes"}
    for key, value in survey.decided.items():
        lines.append(f"{key} = {toml_value(value)}")
        sign = signs.get(value) if key == "boxes" else None
        if sign and sign.has_unlisted and "unlisted" not in survey.decided:
            lines.append('unlisted = "background"')
    if survey.choices:
        lines += ["# Several readings of the source fit. Choose one: take # from its lines."]
    for one in survey.choices:
        lines += [f"# {one.why}", *(f"#     {example}" for example in one.examples)]
        lines += [f"# {key} = {toml_value(value)}" for key, value in one.options.items()]
    return [*lines, ""] if lines else []


def _label_lines(survey: Survey) -> list[str]:
    lines = [] if survey.is_settled else [f"labels = {toml_value(survey.chosen)}"]
    if survey.classes:
        names = list(survey.classes)
        shown = ", ".join(names[:6]) + (f", … {len(names):,} classes" if names[6:] else "")
        lines.insert(0, f"# {' '.join(shown.split())}")
    elif lines and survey.rules:
        lines.insert(0, "# No rule was certain. Choose one of the others below, if one is right.")
    elif lines:
        lines = [
            "# No labels were found: folder, prefix, regex:PATTERN or csv:FILE:ID:LABEL would",
            "# say where they are.",
            *lines,
        ]
    if survey.target not in ("class", "none") and "target" not in survey.decided:
        lines.append(f"target = {toml_value(survey.target)}")
    return lines


def _other_lines(survey: Survey) -> list[str]:
    lines = ["# Other ways to read them, instead of these lines:"] if survey.rules else []
    for one in survey.rules:
        *pairs, last = (f"# {key} = {toml_value(value)}" for key, value in one.options.items())
        lines += [*pairs, f"{last}  # {one.why}"]
    return [*lines, *(f"# Note: {' '.join(line.split())}." for line in survey.findings)]


def _stacks(view: View) -> list[Reading]:
    patterns = stack_patterns(view.listing.images.keys, view.documents.tables)
    masks = {"masks": "auto"} if find_masks(view.listing.images.keys).num_masks else {}
    return [Reading({"stack": one, **masks}, "samples of several images") for one in patterns]


def _table(index: KeyIndex, table: Table) -> TableSurvey:
    facts = table.name, len(table.rows), table.header[:_MOST_COLUMNS]
    try:
        match = match_table(index, table)
    except SourceError as error:
        return TableSurvey(*facts, "", 0, error.what)
    return TableSurvey(*facts, match.id_column, int((match.row_of >= 0).sum()))


def _large(members: Members) -> list[str]:
    """Return a remark if an image is so large that it is usually cut into tiles."""
    some = members[:: -(-len(members) // _LOOKED_AT)]
    sizes = [size for one in some if (size := image_size(one.extent))]
    height, width = max(sizes, key=math.prod, default=(0, 0))
    large = f"an image has {width}x{height} pixels; {OptionName('tile', '512')} would cut it"
    return [large] if height * width >= _LARGE else []


def _suffixes(members: Sequence[Member]) -> dict[str, int]:
    counts = Counter(PurePosixPath(m.key).suffix.lower() or "no suffix" for m in members)
    return dict(counts.most_common())
