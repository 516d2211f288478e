"""Find target images: pictures of the same scenes, by folders or by affixes of names."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from shardprep.catalog.decision.column_evidence import label_each
from shardprep.catalog.decision.pairs import (
    Likeness,
    Relation,
    common_start,
    either_way,
    likeness,
    one_in_each,
    spread,
)
from shardprep.catalog.decision.picture_kinds import (
    A_PAIR,
    FEWEST,
    MOST_KINDS,
    MOST_NAMES,
    MOST_ROWS,
    PictureKind,
    are_named,
    are_sensors,
    kind_words,
    sets_of_kinds,
    side_of,
    sides_of,
)
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import are_classes, are_numbered
from shardprep.catalog.names import folder_splits, stem
from shardprep.catalog.objects.formats.annotated_source import ENOUGH
from shardprep.catalog.objects.mask_files import MaskFiles, pair_masks
from shardprep.errors import OptionError, OptionName, SourceError, counted
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.members import Member, Members
from shardprep.source.string_column import booleans

_GREY = re.compile("gr[ae]y(scale)?|bw")
_DEPTHS = re.compile("depths?|disparit(y|ies)|disp")
_MANY_KINDS, _FEW_PAIRS = 6, 4
_OPTION = OptionName("target_image")


class _Pair(NamedTuple):
    """A kind of picture that is paired with a target."""

    kind: PictureKind
    relation: Relation
    likeness: Likeness

    @property
    def is_picture(self) -> bool:
        words, seen = self.kind.words, self.likeness
        is_raw = seen.has_hues and side_of(words) < 0 and not any(map(_DEPTHS.fullmatch, words))
        return not (seen.has_masks or (seen.is_deep and not is_raw))


def target_images(view: View) -> Sequence[Reading]:
    """Return the readings with target images; several if either kind may be the target."""
    options = ("labels", "target_image", "masks", "boxes", "points", "stack", "images")
    if not view.is_open(*options):
        return []
    for kinds in sets_of_kinds(view.members):
        if readings := _readings(view, kinds):
            is_table = label_each(view.index, view.tables)
            return [] if is_table else [*readings, *_labelled(view, kinds)]
    return _by_suffix(view.members)


def _labelled(view: View, kinds: Sequence[PictureKind]) -> Iterator[Reading]:
    """Yield readings that exclude one kind of two, if tables or documents describe the other."""
    for kind in kinds if len(kinds) == A_PAIR and all(one.folders for one in kinds) else ():
        out = {"exclude": (f"{kind.glob}/*",)}
        try:
            rest = view.read_as(Reading(out, ""))
            labels = rest.automatic
        except SourceError:  # no image is left
            continue
        values = {*labels.names.counts()} if labels.rule.startswith("csv") else set[str]()
        are_files = any(len(view.index.find(str(one))) for one in values)
        if any(sign.key == "boxes" for sign in rest.signs):
            yield Reading(out, "boxes of documents, without target images")
        elif values and not are_files and are_classes(len(values), len(labels.names)):
            yield Reading(out, "labels of a table, without target images")


def _by_suffix(members: Members) -> list[Reading]:
    """Return the readings of pairs in one folder that differ in the suffix: `1.jpg`, `1.png`."""
    of_path: defaultdict[str, set[str]] = defaultdict(set)
    keys = [*members.keys[:MOST_ROWS]]
    for key in keys:
        path, _, suffix = key.rpartition(".")
        if "/" not in suffix:  # a row of an array file has none
            of_path[path].add(suffix)
    counts = Counter(frozenset(several) for several in of_path.values() if len(several) == 2)
    for suffixes, number in counts.most_common(1):
        if 4 * number >= len(keys) and number >= FEWEST:
            why = f"{counted(number, 'pair')} of files that differ in the suffix"
            names = sorted(suffixes, reverse=True)
            pairs = [Reading({"target_image": f"{{dir}}/{{stem}}.{one}"}, why) for one in names]
            return [*pairs, Reading({"labels": "folder"}, "the files of a pair are two images")]
    return []


def _readings(view: View, kinds: Sequence[PictureKind]) -> list[Reading]:
    words = [kind.words for kind in kinds]
    sides = sides_of(words)
    if not (any(sides) or _may_be_kinds(view, kinds)):
        return []
    are_inputs = {id(kind) for kind, side in zip(kinds, sides, strict=True) if side < 0}
    found: list[Reading] = []
    made: list[tuple[PictureKind, Sequence[_Pair], Sequence[PictureKind]]] = []
    for target, side in zip(kinds, sides, strict=True):
        if side < (1 in sides) or len(target.rows) < FEWEST:
            continue
        rest = [kind for kind in kinds if kind is not target and len(kind.rows) >= FEWEST]
        most = _FEW_PAIRS if len(rest) > _MANY_KINDS else None  # only some pictures are decoded
        pairs = [pair for kind in rest if (pair := _pair(view, target, kind, most))]
        if side == 0 and any(one.likeness.are_masks for one in pairs):
            continue
        named = [one for one in pairs if id(one.kind) in are_inputs and one.is_picture]
        needs_likeness = not (are_sensors(words) or any(map(_DEPTHS.fullmatch, target.words)))
        inputs = [
            one
            for one in named or pairs
            if one.is_picture
            and (one.likeness.is_same or (one.likeness.num_pairs and not needs_likeness))
        ]
        known = {word for one in inputs for word in one.kind.words}
        mixed = [x for x in kinds if x.words and known.issuperset(x.words)]  # `low_snow`
        used = {id(target), *(id(one.kind) for one in inputs), *map(id, mixed)}
        out = [kind for kind in kinds if id(kind) not in used and kind.excluded(view.members)]
        reading = _reading(view, target, inputs, out) if inputs else None
        if inputs and not (reading or found) and target.folders and len(kinds) == A_PAIR:
            return _unpaired(view, target, inputs[0].kind, is_clear=side > 0)
        if reading:
            found.append(reading)
            made.append((target, inputs, out))
            others = [one.kind for one in pairs if one.kind.folders]
            by_class = [_by_class(others)] if _has_classes(view, target) else []
            has_cuts = any(one.is_picture for one in pairs if one not in inputs)
            are_grey = all(any(map(_GREY.fullmatch, one.kind.words)) for one in inputs)
            if by_class and has_cuts and are_grey:
                return by_class  # the inputs are variants of the classes: grey, and cut out
            found += by_class
            if all(one.likeness.has_hues and not one.likeness.is_same for one in inputs):
                found.append(Reading({"labels": "folder"}, "the scenes of their pictures differ"))
            elif (
                len(found) == len(kinds) and target.folders and not (any(sides) or are_named(words))
            ):
                found.append(Reading({"labels": "folder"}, "the two folders are classes"))
    singles = (
        _reading(view, target, [one], [*out, *(x.kind for x in inputs if x is not one)])
        for target, inputs, out in made
        for one in inputs
        if 1 < len(found) == len(made) and len(inputs) > 1  # which are the targets
    )
    return [*found, *filter(None, singles)]


def _unpaired(
    view: View, target: PictureKind, kind: PictureKind, *, is_clear: bool
) -> list[Reading]:
    """Return the readings if no pattern finds the targets, such as several targets for one input.

    Unless `is_clear`, inputs are tried as targets. If no pattern pairs them, targets are left out.
    """
    pair = None if is_clear else _pair(view, kind, target)
    reading = _reading(view, kind, [pair], []) if pair and pair.is_picture else None
    out, why = (f"{target.glob}/*",), f"{target.glob} has the scenes and names of the other folders"
    readings = [reading] if reading else [*_among_others(view, Reading({"exclude": out}, why))]
    if not readings:
        readings = [Reading({"exclude": out, "labels": "none"}, f"{why}; no pattern pairs them")]
    return [*readings, Reading({"labels": "folder"}, "the folders are classes")]


def _among_others(view: View, apart: Reading) -> Iterator[Reading]:
    """Yield readings of target images among the pictures that `apart` does not exclude."""
    for one in target_images(view.read_as(apart)):
        if "target_image" in one.options:
            out = (*apart.options["exclude"], *one.options.get("exclude", ()))
            yield Reading({**one.options, "exclude": out}, f"{apart.why}; {one.why}")


def _has_classes(view: View, target: PictureKind) -> bool:
    """Return whether folders of target images may be classes: words without a number, or 0 to 9."""
    keys = view.members.keys.take(target.rows)
    last = {path.rpartition("/")[2] for path in keys.folders.firsts().values()}
    rest = last.difference(target.folders)
    are_words = not any(re.search(r"\d", one) for one in last)
    are_named = are_words and len({kind_words(one) for one in rest} - {()}) > 1
    return are_named or (1 < len(rest) <= len(keys) // 2 and are_numbered(rest))


def _by_class(others: Sequence[PictureKind]) -> Reading:
    out = tuple(f"{kind.glob}/*" for kind in others)
    options = {"labels": "folder", **({"exclude": out} if out else {})}
    return Reading(options, "the folders of the images may be classes")


def _may_be_kinds(view: View, kinds: Sequence[PictureKind]) -> bool:
    if len(view.documents.members(".xml", ".txt", ".json")) >= FEWEST:  # perhaps annotations
        return False
    are_affixes = not any(kind.folders for kind in kinds)
    return are_affixes or are_named([kind.words for kind in kinds]) or _are_same(view, *kinds)


def _are_same(view: View, one: PictureKind, other: PictureKind) -> bool:
    """Return whether sampled pictures show the scenes of the same-named pictures of the other kind.

    The other name may be longer. This is a cheaper check than `either_way`.
    """
    members = view.members
    for rows, others in ((one.rows, other.rows), (other.rows, one.rows)):
        keys, pairs = members.keys.take(others), list[tuple[Member, Member]]()
        for row in spread(rows, FEWEST):
            fits = booleans(pc.match_substring(keys.array, f"/{stem(members.keys[row])}"))
            found = others[fits][:MOST_NAMES].tolist()
            own = Counter(members.keys[row].split("/"))
            found.sort(
                key=lambda at, own=own: -(own & Counter(members.keys[at].split("/"))).total()
            )
            pairs += [(members[row], members[at]) for at in found[:1]]
        if len(pairs) == FEWEST and likeness(pairs, view.pictures).is_same:
            return True
    return False


def _pair(
    view: View, target: PictureKind, kind: PictureKind, most: int | None = None
) -> _Pair | None:
    members = view.members
    relation = either_way(members, target.rows, kind.rows)
    if not (relation or target.folders or kind.folders):
        relation = one_in_each(members, target.rows, kind.rows)
    if relation is None:
        return None
    pairs = [(members[one], members[other]) for one, other in relation.pairs[:most]]
    return _Pair(kind, relation, likeness(pairs, view.pictures))


def _reading(
    view: View, target: PictureKind, inputs: Sequence[_Pair], out: Sequence[PictureKind]
) -> Reading | None:
    """Return the reading with these targets, or None if no pattern pairs them with the inputs."""
    exclude = tuple(kind.excluded(view.members) for kind in out)
    for pattern in _patterns(view.members, target, inputs):
        if proof := _proof(view, pattern, target, out, inputs):
            options = {"target_image": pattern, **({"exclude": exclude} if exclude else {})}
            return Reading(options, proof[0], all(kind.folders for kind in out), proof[1])
    return None


def _patterns(members: Members, target: PictureKind, inputs: Sequence[_Pair]) -> Iterator[str]:
    relation = inputs[0].relation
    keys = [members.keys[row] for row, _ in relation.pairs]
    ends = {key[key.rfind(".") :] for key in keys}
    end = ends.pop() if len(ends) == 1 else ".*"
    own = relation.target
    if not (relation.rests or relation.ends):
        yield f"{{folder}}/*{own.end}{end}"
        return
    if relation.ends:
        yield f"{target.glob}/{{stem}}{common_start(relation.ends)}*{end}"
        return
    names = [f"{{dir}}/{own.start}{end}"] if own.start == stem(keys[0]) else []
    if all(one.relation.input == own and set(one.relation.rests) == {""} for one in inputs):
        of_inputs = [members.keys[row] for one in inputs for _, row in one.relation.pairs]
        if target.folders and {key[key.rfind(".") :] for key in of_inputs} == {end}:
            names.append("{name}")
        names.append(f"{{stem}}{end}")
    if not (target.folders or own.start or own.end):  # the ids have a form that inputs lack
        names += [f"{{stem:{form}}}{end}" for form in (r"\d+", "[^_]+", "[^-]+")]
    names += [f"{own.start}{text}{own.end}{end}" for text in _fields(inputs)]
    for name in names:
        if not target.folders:
            yield name
            continue
        place = target.glob
        for between in ("", "**/", "{folder}/", "**/{folder}/"):
            yield f"{place}/{between}{name}"


def _fields(inputs: Sequence[_Pair]) -> Iterator[str]:
    """Yield pattern fields that cut the id of a target from the names of its inputs."""
    relations = [one.relation for one in inputs]
    starts = {one.input.start for one in relations}
    ends = {f"{rest}{one.input.end}" for one in relations for rest in one.rests}
    start = starts.pop() if len(starts) == 1 else None
    lengths = {len(end) for end in ends}
    if start is not None and len(lengths) == 1:
        cut = f"-{lengths.pop()}" if any(ends) else ""
        at = len(start) or ""
        yield f"{{stem[{at}:{cut}]}}" if start or cut else "{stem}"
    forms = sorted({re.sub(r"\d+", lambda _: r"\d+", re.escape(end)) for end in ends})
    before = "|".join(map(re.escape, sorted({one.input.start for one in relations})))
    before = f"(?:{before})" if before else ""
    if len(forms) <= MOST_KINDS:
        yield f"{{stem:^{before}(.+)(?:{'|'.join(forms)})$}}"
    separators = {end[0] for end in ends if end}
    if len(separators) == 1:
        yield f"{{stem:^{before}(.+?){re.escape(separators.pop())}}}"


def _proof(
    view: View,
    pattern: str,
    target: PictureKind,
    out: Sequence[PictureKind],
    inputs: Sequence[_Pair],
) -> tuple[str, MaskFiles | None] | None:
    """Return the evidence in words and the pairs, or None unless a pattern pairs nearly all files.

    The pairs are None in the result if some pictures are left out.
    """
    members = view.members
    is_out = np.zeros(len(members), bool)
    for kind in out:
        is_out[kind.rows] = True
    keys = [*members.keys.where(~is_out)]
    try:
        files = pair_masks(keys, parse_mask_pattern(pattern, _OPTION))
    except (SourceError, OptionError):
        return None
    used, of_image = files.keys, files.of_image
    rest = [key for key in keys if key not in used]
    splits = folder_splits(rest)
    test = [key for key, split in zip(rest, splits, strict=True) if split == "test"]
    if out and test and of_image.keys().isdisjoint(test):
        return None  # their targets may be among the pictures that are left out
    train = [key for key, split in zip(rest, splits, strict=True) if split != "test"] or rest
    paired = used.difference(files.without_image)
    seen = [pair for one in inputs for pair in one.relation.pairs]
    are_right = all(of_image.get(members.keys[i]) == [members.keys[at]] for at, i in seen)
    if not are_right or len(paired) < ENOUGH * len(used):
        return None
    if target.folders and len(used) < ENOUGH * len(target.rows):
        return None
    if sum(key in of_image for key in train) < ENOUGH * len(train):
        return None
    num_pairs = sum(one.likeness.num_pairs for one in inputs)
    number = counted(len(of_image), "image")
    what = f"{len(paired):,} target images of {number} by their names"
    is_whole = len(keys) == len(view.listing.images)
    why = f"{what}; {counted(num_pairs, 'pair')} of pictures compared"
    return why, files if is_whole else None
