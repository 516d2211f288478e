"""Groups of exact copies (equal original bytes), near copies and images of the same scene."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardprep.errors import counted
from shardprep.image.near_candidates import turned_back
from shardprep.image.near_pairs import changes, joined, near_groups, shown_part
from shardprep.reporter.findings.finding import Finding, Severity, leaving_out
from shardprep.reporter.record_columns import Contents, Ints

if TYPE_CHECKING:
    from shardprep.reporter.pixels import ScanResult

Kind = Literal["exact", "near", "scene"]
_WORDS = {
    "exact": "a copy, byte for byte,",
    "near": "a near copy",
    "scene": "another picture of the scene",
}
_TITLES = {
    "exact": "copies, byte for byte",
    "near": "near copies",
    "scene": "images of the same scene",
}
_SEVERITIES: dict[str, Severity] = {
    "leaks": "serious",
    "near-leaks": "serious",
    "scene-leaks": "warning",
    "duplicates": "warning",
    "near-duplicates": "warning",
    "same-scene": "note",
}


Part = tuple[float, ...]


class _Link(NamedTuple):
    """Difference of an image from the first image of its group; fields as in `Copies`."""

    change: str = ""
    turn: int = 0
    of_first: Part | None = None
    """Part of the first image that the other image shows; None if it shows the whole image."""
    of_other: Part | None = None


@dataclass(frozen=True, slots=True)
class Copies:
    """A group of images that are copies of each other, or that show one scene."""

    kind: Kind
    numbers: tuple[int, ...]
    """Record numbers: first the record that `--dedup` keeps, then the others in ascending order."""
    changes: tuple[str, ...]
    """How each image differs from the first image, in words; "" without a difference."""
    turns: tuple[int, ...]
    """Turn that aligns each image with the first image, as in `near_candidates.turned`."""
    parts: tuple[tuple[Part, ...], ...]
    """Parts of each image that cropped copies show: x, y, width and height as shares."""
    splits: tuple[str, ...]
    is_conflict: bool

    @property
    def is_leak(self) -> bool:
        return len(self.splits) > 1

    @property
    def finding(self) -> str:
        """Name of the finding about this group, a key of `_SEVERITIES`."""
        name = "leaks" if self.is_leak else "duplicates"
        if self.kind == "scene":
            return "scene-leaks" if self.is_leak else "same-scene"
        return name if self.kind == "exact" else f"near-{name}"

    @property
    def title(self) -> str:
        kind = _TITLES[self.kind]
        conflict = "; their targets differ" if self.is_conflict else ""
        sign = "✖ leak: " if self.is_leak else ""
        return f"{sign}{len(self.numbers):,} {kind}, in {' and '.join(self.splits)}{conflict}"

    def change(self, place: int) -> str:
        return f" · {self.changes[place]}" if self.changes[place] else ""


def exact_copies(contents: Contents) -> tuple[Copies, ...]:
    """Return the groups of images whose originals have equal bytes, by lowest record number."""
    codes = contents.original_codes
    known = np.flatnonzero(codes >= 0)
    return tuple(_copies(contents, "exact", one) for one in _groups(known, codes[known]))


def near_copies(contents: Contents, measured: ScanResult) -> Iterator[Copies]:
    """Yield the groups of near copies, then of images of one scene, each by lowest record number.

    Leaves out near-copy groups that have only exact copies, and scenes that have only near copies.
    """
    numbers, pairs = measured.numbers, measured.pairs
    ends = numbers[np.stack([pairs["inner"], pairs["outer"]], axis=1)].tolist()
    places = {(inner, outer): place for place, (inner, outer) in enumerate(ends)}

    def link(first: int, other: int) -> _Link:
        from_inner = (first, other) in places
        place = places.get((first, other) if from_inner else (other, first))
        if place is None:
            return _Link()
        text = changes(measured.measures, pairs[place], from_inner=from_inner)
        part, turn = shown_part(measured.measures, pairs[place]), int(pairs[place]["turn"])
        if from_inner:
            return _Link(text, turned_back(turn), None, part)
        return _Link(text, turn, part, None)

    copies = near_groups(len(numbers), pairs[pairs["is_copy"]])
    kinds: tuple[tuple[Kind, Ints, Ints], ...] = (
        ("near", copies, contents.original_codes[numbers]),
        ("scene", near_groups(len(numbers), pairs), copies),
    )
    for kind, codes, parts in kinds:
        for group in _groups(np.arange(len(codes)), codes):
            if parts[group].min() < parts[group].max() or parts[group].min() < 0:
                yield _copies(contents, kind, numbers[group].tolist(), link)


def _groups(numbers: Ints, codes: Ints) -> Iterator[list[int]]:
    """Yield groups of two or more `numbers` with equal `codes`, ordered by lowest number."""
    order = np.lexsort((numbers, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    counts = np.diff(starts, append=len(order))
    several = np.flatnonzero(counts > 1)
    for place in several[np.argsort(numbers[order[starts[several]]])].tolist():
        yield numbers[order[starts[place] : starts[place] + counts[place]]].tolist()


def _copies(
    contents: Contents,
    kind: Kind,
    numbers: Sequence[int],
    link: Callable[[int, int], _Link] = lambda *_: _Link(),
) -> Copies:
    first = contents.kept_of(numbers)
    order = sorted(numbers, key=lambda number: (number != first, number))
    splits = np.unique(contents.split[list(numbers)]).tolist()
    targets = contents.target_codes[list(numbers)]
    links = [link(first, number) for number in order]
    of_first = tuple(link.of_first for link in links if link.of_first)
    of_others = [(link.of_other,) if link.of_other else () for link in links[1:]]
    return Copies(
        kind,
        tuple(order),
        tuple(link.change for link in links),
        tuple(link.turn for link in links),
        (of_first, *of_others),
        tuple(contents.splits[one] for one in splits),
        is_conflict=len(np.unique(targets[targets >= 0])) > 1,
    )


def copy_findings(
    contents: Contents, copies: Sequence[Copies], num_measured: int
) -> Iterator[Finding]:
    """Yield the findings about copies. `num_measured` is the number of decoded images."""
    left_out: dict[Kind, tuple[str, Sequence[int]]] = {
        "exact": ("--dedup", _left_out(contents, [one for one in copies if one.kind == "exact"])),
        "near": (
            "--dedup near",
            _left_out(contents, [one for one in copies if one.kind != "scene"]),
        ),
    }
    for name, severity in _SEVERITIES.items():
        groups = [one for one in copies if one.finding == name]
        if not groups:
            continue
        kind, is_leak = groups[0].kind, groups[0].is_leak
        out = [number for one in groups for number in one.numbers[1:]]
        where = "the same split"
        if is_leak:
            counts = Counter(" and ".join(one.splits) for one in groups)
            shown = (f"{counted(n, 'group')} in {names}" for names, n in counts.items())
            where = f"another split: {', '.join(shown)}"
        verb = "is" if len(out) == 1 else "are each"
        what = f"{counted(len(out), 'image')} {verb} {_WORDS[kind]} of one in {where}"
        of_all = len(contents) if kind == "exact" else num_measured
        # With a sample, the option would remove near copies that the report has not seen.
        is_whole = of_all >= len(contents)
        yield leaving_out(
            Finding(name, severity, len(out), of_all, what),
            contents,
            out,
            left_out.get(kind) if is_whole else None,
        )
    conflicts = [one for one in copies if one.is_conflict and one.kind != "scene"]
    members = sorted({number for one in conflicts for number in one.numbers})
    labelled = [number for number in members if contents.target_codes[number] >= 0]
    if labelled:
        what = (
            f"{counted(len(labelled), 'image')} are copies or near copies of one with another "
            "target: at least one of each group is labelled wrongly"
        )
        of_all = max(len(contents), num_measured)
        conflict = Finding("label-conflicts", "serious", len(labelled), of_all, what)
        yield leaving_out(conflict, contents, labelled)


def _left_out(contents: Contents, copies: Sequence[Copies]) -> list[int]:
    """Return the records that `--dedup` leaves out. Groups that share a record are merged first."""
    pairs = [(one.numbers[0], other) for one in copies for other in one.numbers[1:]]
    numbers = np.arange(len(contents))
    groups = _groups(numbers, joined(numbers, np.array(pairs, np.int64).reshape(-1, 2)))
    return [one for group in groups for one in {*group} - {contents.kept_of(group)}]
