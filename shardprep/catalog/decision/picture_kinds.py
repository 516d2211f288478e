"""Divide pictures into kinds, by words in names of folders or files: inputs, targets and others."""

from __future__ import annotations

import glob
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.decision.pairs import affixes, common_start, spread
from shardprep.catalog.names import stem, words_of
from shardprep.source.members import Members
from shardprep.source.names import without_archive_suffix

_SPLITS = re.compile(
    "train(ing)?|tr|val(id(ate|ation)?)?|dev|test(ing)?|ts|eval(uation)?|set|data(set)?|images?|imgs?"
)
"""Matches words for splits, and words that any kind of picture may have in its name."""
_TARGETS = re.compile(
    "hr|hq|gts?|labels?|groundtruths?|ground|truths?|targets?|clean(ed)?|clear|sharp|high(res(olution)?)?"
    "|normal(light)?|colou?r(s|ed)?|free|depths?|disparit(y|ies)|disp|ref(erence)?s?"
    "|(no|un|non|de)(rain|haze|hazy|fog|snow|noise|blur|shadow)(y|ed|d)?|enhanced|expert|latent"
)
_INPUTS = re.compile(
    r"lr|lq|low(res(olution)?|light)?|x|bicubic|inputs?|ha[zs][ey]|fog(gy)?|smok[ey]|rain(y|s)?"
    r"|drops?|snow(y)?|blur(red|ry|y)?|defocus(ed)?|nois[ey]|gr[ae]y(scale)?|bw|dirty|dark|night"
    r"|degraded|distorted|corrupt(ed)?|compressed|damaged|raw|rgb|under(exposed)?|shadows?|photo"
    "|watermarked|composites?"
)
_SENSORS = re.compile("visible|vis|infrared|ir|nir|thermal|optical|sar")
_NOT = ("no", "non", "without", "free")
_MOST_FOLDERS = 4096
_MOST_DEPTH = 6
MOST_NAMES = 64
MOST_KINDS, FEWEST = 16, 3
A_PAIR = 2
"""Number of folders that may be kinds of pictures, whatever their names are."""
MOST_ROWS = 4096
Rows = NDArray[np.int64]


class PictureKind(NamedTuple):
    """Files of one kind of picture: in folders of one kind, or with one affix in their names."""

    words: tuple[str, ...]
    rows: Rows
    folders: tuple[str, ...] = ()
    """Names of the folders; () for a kind by affix of names."""

    @property
    def glob(self) -> str:
        if len(self.folders) == 1:
            return glob.escape(self.folders[0])
        start = common_start(self.folders)
        end = common_start([name[len(start) :][::-1] for name in self.folders])[::-1]
        return f"{glob.escape(start)}*{glob.escape(end)}"

    def excluded(self, members: Members) -> str:
        """Return the glob that excludes the files of the kind; "" if no glob does."""
        if any(self.folders) or not self.words:
            return f"{self.glob}/*" if any(self.folders) else ""
        end = affixes([stem(members.keys[row]) for row in spread(self.rows)]).end
        return f"*{glob.escape(end)}.*" if end.lower().endswith(self.words[-1]) else ""


def sets_of_kinds(members: Members) -> Iterator[list[PictureKind]]:
    """Yield sets of possible kinds of pictures: by folders at each depth, then by affixes."""
    folders = members.keys.folders
    places = folders.firsts()
    paths = [*places.values()][:_MOST_FOLDERS]
    parts = [path.split("/") for path in paths]
    codes = folders.codes[[*places][:_MOST_FOLDERS]]
    seen: set[tuple[int, ...]] = set()
    for depth in [*range(_MOST_DEPTH), -1, -2]:
        names = [_part(one, depth) for one in parts]
        if len(set(names)) > MOST_NAMES:
            continue
        words = {name: kind_words(name) for name in set(names)}
        numbers = {one: i for i, one in enumerate(dict.fromkeys(words[name] for name in names))}
        division = tuple(numbers[words[name]] for name in names)
        if not 2 <= len(numbers) <= MOST_KINDS or division in seen:
            continue
        is_pair = len(numbers) == A_PAIR and all(depth in (len(one) - 1, -1) for one in parts)
        if not (is_pair or any(sides_of(numbers)) or are_named(numbers)):
            continue  # A, B and C may be kinds of pictures, cat and dog may not
        seen.add(division)
        kinds = []
        for one, number in numbers.items():
            own = [i for i, at in enumerate(division) if at == number]
            rows = np.flatnonzero(np.isin(folders.codes, codes[own]))
            kinds.append(PictureKind(one, rows, tuple(sorted({names[i] for i in own}))))
        yield kinds
    yield from _beside_others(members, paths, codes)
    yield from _by_affix(members[:MOST_ROWS])


def _beside_others(
    members: Members, paths: Sequence[str], codes: NDArray[np.integer[Any]]
) -> Iterator[list[PictureKind]]:
    """Yield [hr, x and y] for `a/hr`, `a/x`, `b/hr`, `b/y`: one name (hr) is in all folders."""
    below = defaultdict[str, dict[str, int]](dict)
    for path, code in zip(paths, codes.tolist(), strict=True):
        above, _, name = path.rpartition("/")
        below[above][name] = code
    pairs = [several for several in below.values() if len(several) == A_PAIR]
    common = {*pairs[0]}.intersection(*pairs) if len(pairs) > 1 else set[str]()
    others = {name for several in pairs for name in several} - common
    if len(common) == 1 < len(others) <= MOST_KINDS:
        yield [
            PictureKind(
                tuple(word for one in own for word in kind_words(one)), np.flatnonzero(is_in), own
            )
            for own in (tuple(common), tuple(sorted(others)))
            for wanted in [[several[x] for several in pairs for x in own if x in several]]
            for is_in in [np.isin(members.keys.folders.codes, wanted)]
        ]


def _part(parts: Sequence[str], depth: int) -> str:
    return parts[depth] if -len(parts) <= depth < len(parts) else ""


def kind_words(name: str) -> tuple[str, ...]:
    """Return the words of a name, without words that any kind may have, such as splits."""
    words = words_of(without_archive_suffix(name))
    return tuple(word for word in words if not _SPLITS.fullmatch(word))


def _by_affix(members: Members) -> Iterator[list[PictureKind]]:
    """Yield kinds by the last word of names, then by the first, if a word means targets or inputs.

    If names end in exactly two words, it is enough that each name occurs with both.
    """
    names = [stem(key) for key in members.keys]
    lead = re.match(".*[-_. ]", common_start(names))
    names = [name[lead.end() if lead else 0 :] for name in names]
    for pattern in (r"[^\W\d_]+$", r"^[^\W\d_]+(?=[\d_. -])"):
        of_word: defaultdict[str, list[int]] = defaultdict(list)
        for i, name in enumerate(names):
            match = re.search(pattern, name)
            of_word[match[0].lower() if match else ""].append(i)
            if len(of_word) > 4 * MOST_KINDS:
                break
        else:
            several = {w: rows for w, rows in of_word.items() if len(rows) >= FEWEST}
            is_known = any(side_of((word,)) for word in several)
            is_known |= pattern[-1] == "$" and len(several) == A_PAIR and _pair_up(names, several)
            if is_known and 2 <= len(several) <= MOST_KINDS:
                yield [PictureKind((w,) if w else (), np.array(r)) for w, r in several.items()]


def _pair_up(names: Sequence[str], rows: Mapping[str, Sequence[int]]) -> bool:
    """Return whether each name occurs with both of two words at its end."""
    one, other = ({names[i][: -len(w)] for i in own if w} for w, own in rows.items())
    return bool(one) and one == other and {*map(len, (one, other))} == {*map(len, rows.values())}


def side_of(words: Iterable[str]) -> int:
    """Return 1 for words of targets, -1 for words of inputs, 0 for other words."""
    words = [*words]
    is_not = any(word in _NOT for word in words)
    sides = [1 if _TARGETS.fullmatch(w) else -1 if _INPUTS.fullmatch(w) else 0 for w in words]
    if -1 in sides:
        return 1 if is_not else -1
    return max(sides, default=0)


def sides_of(kinds: Iterable[Sequence[str]]) -> list[int]:
    """Return `side_of` of each kind, without the words that all kinds have."""
    several = [*kinds]
    common = set.intersection(*map(set, several))
    return [side_of(word for word in words if word not in common) for words in several]


def are_sensors(kinds: Iterable[Sequence[str]]) -> bool:
    """Return whether all words are kinds of sensors, such as visible and thermal."""
    return all(_SENSORS.fullmatch(word) for words in kinds for word in words)


def are_named(kinds: Iterable[Sequence[str]]) -> bool:
    """Return whether all words are single letters, such as A and B, or sensors."""
    are_letters = all(len(word) == 1 for words in kinds for word in words)
    return are_letters or are_sensors(kinds)
