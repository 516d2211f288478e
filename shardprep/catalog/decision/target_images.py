"""Find target images: pictures of the same scenes, by folders or by affixes of names."""

from __future__ import annotations

import glob
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from shardprep.catalog.decision.column_evidence import label_each
from shardprep.catalog.decision.pairs import (
    Likeness,
    Relation,
    affixes,
    common_start,
    either_way,
    likeness,
    one_in_each,
    spread,
)
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import are_classes
from shardprep.catalog.names import folder_splits, stem, words_of
from shardprep.catalog.objects.formats.annotated_source import ENOUGH
from shardprep.catalog.objects.mask_files import MaskFiles, pair_masks
from shardprep.errors import OptionError, OptionName, SourceError, counted
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.members import Member, Members
from shardprep.source.names import without_archive_suffix
from shardprep.source.string_column import booleans

_SPLITS = re.compile(
    "train(ing)?|tr|val(id(ate|ation)?)?|dev|test(ing)?|ts|eval(uation)?|set|data(set)?|images?|imgs?"
)
"""Matches words for splits, and words that any kind of picture may have in its name."""
_TARGETS = re.compile(
    "hr|hq|gts?|groundtruths?|ground|truths?|targets?|clean(ed)?|clear|sharp|high(res(olution)?)?"
    "|normal(light)?|colou?r(s|ed)?|free|depths?|disparit(y|ies)|disp|ref(erence)?s?"
    "|(no|un|non|de)(rain|haze|hazy|fog|snow|noise|blur|shadow)(y|ed|d)?|enhanced|expert|latent"
)
_INPUTS = re.compile(
    r"lr|lq|low(res(olution)?|light)?|x|bicubic|inputs?|ha[zs][ey]|fog(gy)?|smok[ey]|rain(y|s)?"
    r"|drops?|snow(y)?|blur(red|ry|y)?|defocus(ed)?|nois[ey]|gr[ae]y(scale)?|bw|dirty|dark|night"
    r"|degraded|distorted|corrupt(ed)?|compressed|damaged|raw|rgb|under(exposed)?|shadows?|photo"
    "|watermarked|composites?"
)
_GREY = re.compile("gr[ae]y(scale)?|bw")
_SENSORS = re.compile("visible|vis|infrared|ir|nir|thermal|optical|sar")
_DEPTHS = re.compile("depths?|disparit(y|ies)|disp")
_NOT = ("no", "non", "without", "free")
_MOST_FOLDERS = 4096
_MOST_DEPTH = 6
_MOST_NAMES = 64
_MOST_KINDS, _MANY_KINDS, _FEW_PAIRS, _FEWEST = 16, 6, 4, 3
_A_PAIR = 2
"""Number of folders that may be kinds of pictures, whatever their names are."""
_MOST_ROWS = 4096
_OPTION = OptionName("target_image")
Rows = NDArray[np.int64]


class _Kind(NamedTuple):
    """Files of one kind of picture: in folders of one kind, or with one affix in their names."""

    words: tuple[str, ...]
    rows: Rows
    folders: tuple[str, ...] = ()
    """Names of the folders; () for a kind by affix of names."""

    @property
    def glob(self) -> str:
        return _glob(self.folders)

    def excluded(self, members: Members) -> str:
        """Return the glob that excludes the files of the kind; "" if no glob does."""
        if any(self.folders) or not self.words:
            return f"{self.glob}/*" if any(self.folders) else ""
        end = affixes([stem(members.keys[row]) for row in spread(self.rows)]).end
        return f"*{glob.escape(end)}.*" if end.lower().endswith(self.words[-1]) else ""


class _Pair(NamedTuple):
    """A kind of picture that is paired with a target."""

    kind: _Kind
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
    for kinds in _sets_of_kinds(view.members):
        if readings := _readings(view, kinds):
            return (
                [] if label_each(view.index, view.tables) else [*readings, *_labelled(view, kinds)]
            )
    return _by_suffix(view.members)


def _labelled(view: View, kinds: Sequence[_Kind]) -> Iterator[Reading]:
    """Yield readings that exclude one kind of two, if tables or documents describe the other."""
    for kind in kinds if len(kinds) == _A_PAIR and all(one.folders for one in kinds) else ():
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


def _sets_of_kinds(members: Members) -> Iterator[list[_Kind]]:
    """Yield sets of possible kinds of pictures: by folders at each depth, then by affixes."""
    folders = members.keys.folders
    places = folders.firsts()
    paths = [*places.values()][:_MOST_FOLDERS]
    parts = [path.split("/") for path in paths]
    codes = folders.codes[[*places][:_MOST_FOLDERS]]
    seen: set[tuple[int, ...]] = set()
    for depth in [*range(_MOST_DEPTH), -1, -2]:
        names = [_part(one, depth) for one in parts]
        if len(set(names)) > _MOST_NAMES:
            continue
        words = {name: _words(name) for name in set(names)}
        numbers = {one: i for i, one in enumerate(dict.fromkeys(words[name] for name in names))}
        division = tuple(numbers[words[name]] for name in names)
        if not 2 <= len(numbers) <= _MOST_KINDS or division in seen:
            continue
        is_pair = len(numbers) == _A_PAIR and all(depth in (len(one) - 1, -1) for one in parts)
        if not (is_pair or any(_sides(numbers)) or _are_named(numbers)):
            continue  # A, B and C may be kinds of pictures, cat and dog may not
        seen.add(division)
        kinds = []
        for one, number in numbers.items():
            own = [i for i, at in enumerate(division) if at == number]
            rows = np.flatnonzero(np.isin(folders.codes, codes[own]))
            kinds.append(_Kind(one, rows, tuple(sorted({names[i] for i in own}))))
        yield kinds
    yield from _beside_others(members, paths, codes)
    yield from _by_affix(members[:_MOST_ROWS])


def _beside_others(
    members: Members, paths: Sequence[str], codes: NDArray[np.integer[Any]]
) -> Iterator[list[_Kind]]:
    """Yield [hr, x and y] for `a/hr`, `a/x`, `b/hr`, `b/y`: one name (hr) is in all folders."""
    below = defaultdict[str, dict[str, int]](dict)
    for path, code in zip(paths, codes.tolist(), strict=True):
        above, _, name = path.rpartition("/")
        below[above][name] = code
    pairs = [several for several in below.values() if len(several) == _A_PAIR]
    common = {*pairs[0]}.intersection(*pairs) if len(pairs) > 1 else set[str]()
    others = {name for several in pairs for name in several} - common
    if len(common) == 1 < len(others) <= _MOST_KINDS:
        yield [
            _Kind(tuple(word for one in own for word in _words(one)), np.flatnonzero(is_in), own)
            for own in (tuple(common), tuple(sorted(others)))
            for wanted in [[several[x] for several in pairs for x in own if x in several]]
            for is_in in [np.isin(members.keys.folders.codes, wanted)]
        ]


def _part(parts: Sequence[str], depth: int) -> str:
    return parts[depth] if -len(parts) <= depth < len(parts) else ""


def _words(name: str) -> tuple[str, ...]:
    words = words_of(without_archive_suffix(name))
    return tuple(word for word in words if not _SPLITS.fullmatch(word))


def _by_affix(members: Members) -> Iterator[list[_Kind]]:
    """Yield kinds by the last word of names, then by the first, if a word means targets or inputs.

    If names end in exactly two words, it is enough that each name occurs with both.
    """
    names = [stem(key) for key in members.keys]
    for pattern in (r"[^\W\d_]+$", r"^[^\W\d_]+(?=[\d_. -])"):
        of_word: defaultdict[str, list[int]] = defaultdict(list)
        for i, name in enumerate(names):
            match = re.search(pattern, name)
            of_word[match[0].lower() if match else ""].append(i)
            if len(of_word) > 4 * _MOST_KINDS:
                break
        else:
            several = {w: rows for w, rows in of_word.items() if len(rows) >= _FEWEST}
            is_known = any(side_of((word,)) for word in several)
            is_known |= pattern[-1] == "$" and len(several) == _A_PAIR and _pair_up(names, several)
            if is_known and 2 <= len(several) <= _MOST_KINDS:
                yield [_Kind((w,) if w else (), np.array(r)) for w, r in several.items()]


def _pair_up(names: Sequence[str], rows: Mapping[str, Sequence[int]]) -> bool:
    """Return whether each name occurs with both of two words at its end."""
    one, other = ({names[i][: -len(w)] for i in own if w} for w, own in rows.items())
    return bool(one) and one == other and {*map(len, (one, other))} == {*map(len, rows.values())}


def _by_suffix(members: Members) -> list[Reading]:
    """Return the readings of pairs in one folder that differ in the suffix: `1.jpg`, `1.png`."""
    of_path: defaultdict[str, set[str]] = defaultdict(set)
    keys = [*members.keys[:_MOST_ROWS]]
    for key in keys:
        path, _, suffix = key.rpartition(".")
        of_path[path].add(suffix)
    counts = Counter(frozenset(several) for several in of_path.values() if len(several) == 2)
    for suffixes, number in counts.most_common(1):
        if 4 * number >= len(keys) and number >= _FEWEST:
            why = f"{counted(number, 'pair')} of files that differ in the suffix"
            names = sorted(suffixes, reverse=True)
            pairs = [Reading({"target_image": f"{{dir}}/{{stem}}.{one}"}, why) for one in names]
            return [*pairs, Reading({"labels": "folder"}, "the files of a pair are two images")]
    return []


def side_of(words: Iterable[str]) -> int:
    """Return 1 for words of targets, -1 for words of inputs, 0 for other words."""
    words = [*words]
    is_not = any(word in _NOT for word in words)
    sides = [1 if _TARGETS.fullmatch(w) else -1 if _INPUTS.fullmatch(w) else 0 for w in words]
    if -1 in sides:
        return 1 if is_not else -1
    return max(sides, default=0)


def _sides(kinds: Iterable[Sequence[str]]) -> list[int]:
    """Return `side_of` of each kind, without the words that all kinds have."""
    several = [*kinds]
    common = set.intersection(*map(set, several))
    return [side_of(word for word in words if word not in common) for words in several]


def _are_sensors(kinds: Iterable[Sequence[str]]) -> bool:
    return all(_SENSORS.fullmatch(word) for words in kinds for word in words)


def _are_named(kinds: Iterable[Sequence[str]]) -> bool:
    are_letters = all(len(word) == 1 for words in kinds for word in words)
    return are_letters or _are_sensors(kinds)


def _readings(view: View, kinds: Sequence[_Kind]) -> list[Reading]:
    words = [kind.words for kind in kinds]
    sides = _sides(words)
    if not (any(sides) or _may_be_kinds(view, kinds)):
        return []
    are_inputs = {id(kind) for kind, side in zip(kinds, sides, strict=True) if side < 0}
    found: list[Reading] = []
    made: list[tuple[_Kind, Sequence[_Pair], Sequence[_Kind]]] = []
    for target, side in zip(kinds, sides, strict=True):
        if side < (1 in sides) or len(target.rows) < _FEWEST:
            continue
        rest = [kind for kind in kinds if kind is not target and len(kind.rows) >= _FEWEST]
        most = _FEW_PAIRS if len(rest) > _MANY_KINDS else None  # only some pictures are decoded
        pairs = [pair for kind in rest if (pair := _pair(view, target, kind, most))]
        if side == 0 and any(one.likeness.are_masks for one in pairs):
            continue
        named = [one for one in pairs if id(one.kind) in are_inputs and one.is_picture]
        needs_likeness = not (_are_sensors(words) or any(map(_DEPTHS.fullmatch, target.words)))
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
        if inputs and not (reading or found) and target.folders and len(kinds) == _A_PAIR:
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
                len(found) == len(kinds)
                and target.folders
                and not (any(sides) or _are_named(words))
            ):
                found.append(Reading({"labels": "folder"}, "the two folders are classes"))
    singles = (
        _reading(view, target, [one], [*out, *(x.kind for x in inputs if x is not one)])
        for target, inputs, out in made
        for one in inputs
        if 1 < len(found) == len(made) and len(inputs) > 1  # which are the targets
    )
    return [*found, *filter(None, singles)]


def _unpaired(view: View, target: _Kind, kind: _Kind, *, is_clear: bool) -> list[Reading]:
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


def _has_classes(view: View, target: _Kind) -> bool:
    """Return whether folders of target images may be classes: words without a number."""
    keys = view.members.keys.take(target.rows)
    last = {path.rpartition("/")[2] for path in keys.folders.firsts().values()}
    return len({_words(one) for one in last.difference(target.folders)} - {()}) > 1 and not any(
        re.search(r"\d", one) for one in last
    )


def _by_class(others: Sequence[_Kind]) -> Reading:
    out = tuple(f"{kind.glob}/*" for kind in others)
    options = {"labels": "folder", **({"exclude": out} if out else {})}
    return Reading(options, "the folders of the images may be classes")


def _may_be_kinds(view: View, kinds: Sequence[_Kind]) -> bool:
    if len(view.documents.members(".xml", ".txt", ".json")) >= _FEWEST:  # perhaps annotations
        return False
    are_affixes = not any(kind.folders for kind in kinds)
    return are_affixes or _are_named([kind.words for kind in kinds]) or _are_same(view, *kinds)


def _are_same(view: View, one: _Kind, other: _Kind) -> bool:
    """Return whether sampled pictures show the scenes of the same-named pictures of the other kind.

    The other name may be longer. This is a cheaper check than `either_way`.
    """
    members = view.members
    for rows, others in ((one.rows, other.rows), (other.rows, one.rows)):
        keys, pairs = members.keys.take(others), list[tuple[Member, Member]]()
        for row in spread(rows, _FEWEST):
            fits = booleans(pc.match_substring(keys.array, f"/{stem(members.keys[row])}"))
            found = others[fits][:_MOST_NAMES].tolist()
            own = Counter(members.keys[row].split("/"))
            found.sort(
                key=lambda at, own=own: -(own & Counter(members.keys[at].split("/"))).total()
            )
            pairs += [(members[row], members[at]) for at in found[:1]]
        if len(pairs) == _FEWEST and likeness(pairs, view.pictures).is_same:
            return True
    return False


def _pair(view: View, target: _Kind, kind: _Kind, most: int | None = None) -> _Pair | None:
    members = view.members
    relation = either_way(members, target.rows, kind.rows)
    if not (relation or target.folders or kind.folders):
        relation = one_in_each(members, target.rows, kind.rows)
    if relation is None:
        return None
    pairs = [(members[one], members[other]) for one, other in relation.pairs[:most]]
    return _Pair(kind, relation, likeness(pairs, view.pictures))


def _reading(
    view: View, target: _Kind, inputs: Sequence[_Pair], out: Sequence[_Kind]
) -> Reading | None:
    """Return the reading with these targets, or None if no pattern pairs them with the inputs."""
    exclude = tuple(kind.excluded(view.members) for kind in out)
    for pattern in _patterns(view.members, target, inputs):
        if proof := _proof(view, pattern, target, out, inputs):
            options = {"target_image": pattern, **({"exclude": exclude} if exclude else {})}
            return Reading(options, proof[0], all(kind.folders for kind in out), proof[1])
    return None


def _patterns(members: Members, target: _Kind, inputs: Sequence[_Pair]) -> Iterator[str]:
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
    if len(forms) <= _MOST_KINDS:
        yield f"{{stem:^{before}(.+)(?:{'|'.join(forms)})$}}"
    separators = {end[0] for end in ends if end}
    if len(separators) == 1:
        yield f"{{stem:^{before}(.+?){re.escape(separators.pop())}}}"


def _proof(
    view: View, pattern: str, target: _Kind, out: Sequence[_Kind], inputs: Sequence[_Pair]
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


def _glob(names: Sequence[str]) -> str:
    if len(names) == 1:
        return glob.escape(names[0])
    start = common_start(names)
    end = common_start([name[len(start) :][::-1] for name in names])[::-1]
    return f"{glob.escape(start)}*{glob.escape(end)}"
