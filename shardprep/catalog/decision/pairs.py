"""Find pairs of images, by names and pixels: the same scene in two folders or with two affixes."""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from shardprep.catalog.names import stem
from shardprep.catalog.objects.mask_values import Seen, look
from shardprep.image.decode import open_image
from shardprep.source.members import Member, Members
from shardprep.source.string_column import Texts, booleans

Rows = NDArray[np.int64]
"""Positions in the members of a source."""
_T = TypeVar("_T")
MOST_PAIRS = 8
_MOST_PICTURES = 64
_MOST_BYTES = 1 << 26
MOST_PIXELS = 1 << 26
_MOST_NAMES = 64
_MOST_FOUND = 1 << 18
_SIDE = 24
_FEW_COLOURS = 64
_HUES = 4
"""Maximum mean difference of the channels of a grey picture; above 0 because of JPEG."""
_SIZES = 0.03
"""Maximum relative difference of the aspect ratios of a pair."""
_CLEAR, _LIKELY, _CONTRAST = 0.95, 0.5, 0.2
"""Minimum correlation of a pair; `_LIKELY` is enough if other pairs are lower by `_CONTRAST`."""
_FIRST_FEW, _MOST_TWINS = 3, 4
_SIGN = re.compile("[-_. /]")
_LETTERS_AT_END = re.compile(r"[^\W\d_]+$")


class Small(NamedTuple):
    """A picture reduced to a small grey image, for comparison."""

    size: tuple[int, int]
    grey: NDArray[np.float64]
    """Standardised grey levels, float64[_SIDE * _SIDE]; 0 if all pixels are equal."""
    is_mask: bool
    """Whether the picture has few colours."""
    has_hues: bool
    """Whether the picture is not grey."""
    is_deep: bool
    """Whether the picture is grey with more than 8 bits."""
    crc32: int


@dataclass(slots=True)
class Pictures:
    """Reads and caches pictures, at most `_MOST_PICTURES` during one decision."""

    _small: dict[str, Small | None] = field(default_factory=dict)
    _values: dict[str, Seen | None] = field(default_factory=dict)

    def of(self, member: Member) -> Small | None:
        """Return a reduced picture; None if it is damaged, too large or beyond the limit."""
        return self._once(self._small, member, _small)

    def values(self, member: Member) -> Seen | None:
        """Return the values of a mask or the colours of a picture; None in the cases of `of`."""
        return self._once(self._values, member, lambda one: look(one, MOST_PIXELS))

    def are_masks(self, members: Iterable[Member]) -> bool:
        """Return whether all images look like masks: one channel, and few values."""
        seen = [self.values(one) for one in members]
        return bool(seen) and all(one is not None and one.is_mask for one in seen)

    def _once(
        self, known: dict[str, _T | None], member: Member, read: Callable[[Member], _T | None]
    ) -> _T | None:
        key, every = member.key, self._small.keys() | self._values.keys()
        if key not in known and (key in every or len(every) < _MOST_PICTURES):
            try:
                known[key] = read(member) if member.extent.num_bytes <= _MOST_BYTES else None
            except Exception:  # decoders raise anything
                known[key] = None
        return known.get(key)


def _small(member: Member) -> Small | None:
    data = member.extent.read()
    image = open_image(data)
    size = image.size
    if size[0] * size[1] > MOST_PIXELS:
        return None
    image.draft(None, (4 * _SIDE, 4 * _SIDE))
    is_deep = image.mode.startswith(("I", "F"))
    if is_deep:
        values = np.asarray(image, np.float64)
        image = Image.fromarray((values / max(1.0, float(values.max())) * 255).astype(np.uint8))
    colours = image.convert("RGB")
    is_mask = not is_deep and colours.getcolors(_FEW_COLOURS) is not None
    small = colours.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    grey = np.asarray(small, np.float64).reshape(-1)
    spread = float(grey.std())
    hues = np.ptp(np.asarray(colours.resize((_SIDE, _SIDE)), np.int16), axis=2)
    has_hues = float(hues.mean()) > _HUES
    values = (grey - grey.mean()) / (spread or 1.0)
    return Small(size, values, is_mask, has_hues, is_deep, zlib.crc32(data))


class Likeness(NamedTuple):
    """Result of the comparison of pairs of pictures."""

    num_pairs: int = 0
    is_same: bool = False
    """Whether the pairs show the same scenes and are not all copies."""
    are_masks: bool = False
    """Whether most first pictures have few values."""
    has_hues: bool = False
    """Whether most first pictures are not grey."""
    has_masks: bool = False
    """Whether most second pictures have few values."""
    is_deep: bool = False
    """Whether most second pictures are grey with more than 8 bits."""


def likeness(pairs: Sequence[tuple[Member, Member]], pictures: Pictures) -> Likeness:
    """Return the result of comparing pairs, without pairs whose sizes are not proportional."""
    seen: list[tuple[Small, Small]] = []
    for i, (one, other) in enumerate(pairs):
        first, second = pictures.of(one), pictures.of(other)
        if first is not None and second is not None and _are_proportional(first.size, second.size):
            seen.append((first, second))
        is_enough = i + 1 == _FIRST_FEW
        if is_enough and not (seen and (_are_same(seen) or any(b.is_mask for _, b in seen))):
            break
    if not seen or 4 * len(seen) < 3 * min(len(pairs), _FIRST_FEW):
        return Likeness()
    most = 0.5 * len(seen)
    are_masks, have_masks = (sum(pair[i].is_mask for pair in seen) > most for i in (0, 1))
    are_deep = sum(second.is_deep for _, second in seen) > most
    have_hues = sum(first.has_hues for first, _ in seen) > most
    return Likeness(len(seen), _are_same(seen), are_masks, have_hues, have_masks, are_deep)


def _are_proportional(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two sizes are equal or proportional; a side may be rounded by a pixel."""
    (width, height), (other_width, other_height) = one, other
    ratio = width * other_height / (height * other_width)
    rounded = 1 / min(width, height, other_width, other_height)
    return abs(ratio - 1) <= _SIZES + rounded


def _are_same(pairs: Sequence[tuple[Small, Small]]) -> bool:
    """Return whether pairs correlate clearly, or better than other pairs; False for copies."""
    matrix = np.abs(np.stack([a.grey for a, _ in pairs]) @ np.stack([b.grey for _, b in pairs]).T)
    matrix /= _SIDE * _SIDE
    own = float(np.median(np.diag(matrix)))
    is_copy = all(a.crc32 == b.crc32 for a, b in pairs)
    others = matrix[~np.eye(len(pairs), dtype=bool)]
    contrast = own - float(np.median(others)) if len(pairs) > 1 else 0.0
    return not is_copy and (own >= _CLEAR or (own >= _LIKELY and contrast >= _CONTRAST))


def twin_folders(
    keys: Iterable[str], members: Members, pictures: Pictures
) -> tuple[str, str] | None:
    """Return the names of two sibling folders whose equally named pictures show the same scenes.

    Only a few siblings are compared: many are samples, such as patients, and not kinds of pictures.
    """
    below = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    for key in keys:
        folder, _, name = key.rpartition("/")
        below[folder.rpartition("/")[0]][folder].add(name)
    for several in [x for x in below.values() if 1 < len(x) <= _MOST_TWINS][:_FIRST_FEW]:
        for one, other in itertools.combinations(sorted(several), 2):
            names = sorted(several[one] & several[other])
            names = names[:: len(names) // MOST_PAIRS + 1]
            if len(names) < _FIRST_FEW:
                continue
            wanted = {f"{folder}/{name}" for folder in (one, other) for name in names}
            of_key = {x: members[row] for row, x in enumerate(members.keys) if x in wanted}
            pairs = [(of_key[f"{one}/{name}"], of_key[f"{other}/{name}"]) for name in names]
            if likeness(pairs, pictures).is_same:
                return one.rpartition("/")[2], other.rpartition("/")[2]
    return None


class Affixes(NamedTuple):
    """The common start and end of all names of a kind of picture."""

    start: str
    end: str

    def id_of(self, name: str) -> str:
        return name[len(self.start) : len(name) - len(self.end)]


def affixes(names: Sequence[str]) -> Affixes:
    """Return the common start and end of stems: whole words, without digits next to the ids."""
    several, names = len(names) > 1, [*dict.fromkeys(names)]
    if several and len(names) == 1:  # one file with this name in each folder
        return Affixes(names[0], "")
    start = common_start(names) if several else ""
    rest = [name[len(start) :] for name in names]
    if start[-1:].isalpha() and any(one[:1].isalpha() for one in rest):
        start = _LETTERS_AT_END.sub("", start)
    start = start.rstrip("0123456789")
    rest = [name[len(start) :][::-1] for name in names]
    end = common_start(rest)[::-1] if several else ""
    before = [one[len(end) : len(end) + 1] for one in rest]
    if end[:1].isalpha() and any(one.isalpha() for one in before):
        end = _LETTERS_AT_END.sub("", end[::-1])[::-1]
    return Affixes(start, end.lstrip("0123456789"))


def common_start(names: Sequence[str]) -> str:
    """Return the longest common prefix."""
    columns = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in columns)


class Relation(NamedTuple):
    """How names of inputs contain the id of their target, with a sample of the pairs."""

    target: Affixes
    input: Affixes
    rests: tuple[str, ...]
    """Texts between target id and common end in names of inputs; () if no name has the id."""
    pairs: tuple[tuple[int, int], ...]
    """Row of the target and row of the input, for each sampled pair."""
    ends: tuple[str, ...] = ()
    """Texts after the input's whole name in names of targets; () if inputs have the ids."""

    @property
    def has_whole_names(self) -> bool:
        """Whether the names of one kind of picture start the names of the other."""
        return self.target.start == self.input.start and not (self.target.end and self.input.end)


def either_way(members: Members, targets: Rows, inputs: Rows) -> Relation | None:
    """Return the relation of two kinds of pictures, or None; either may have the longer names."""
    if relation := related(members, targets, inputs):
        return relation
    other = related(members, inputs, targets)
    if other is None or any(other.target.end + other.input.end) or not all(other.rests):
        return None
    if other.target.start != other.input.start:
        return None
    pairs = tuple((target, own) for own, target in other.pairs)
    return Relation(other.input, other.target, (), pairs, other.rests)


def related(members: Members, targets: Rows, inputs: Rows) -> Relation | None:
    """Return the relation of the names of two kinds of pictures; None if they do not pair."""
    keys = members.keys
    own, other = (affixes([stem(keys[i]) for i in spread(rows)]) for rows in (targets, inputs))
    are_inputs = np.zeros(len(keys), bool)
    are_inputs[inputs] = True
    pairs: list[tuple[int, int]] = []
    rests: set[str] = set()
    sample = spread(targets, MOST_PAIRS)
    for row in sample:
        found = _inputs(keys, are_inputs, other, (own.id_of(stem(keys[row])), keys[row]))
        rests.update(found.values())
        pairs += [(row, place) for place in [*found][:1]]
        if row == sample[1] and not pairs:
            return None
    if 4 * len(pairs) < 3 * len(sample):
        return None
    return Relation(own, other, tuple(sorted(rests)), tuple(pairs))


def one_in_each(members: Members, targets: Rows, inputs: Rows) -> Relation | None:
    """Return the relation of the only target in each folder to the inputs next to it; or None."""
    keys = members.keys
    target_of = {keys[row].rpartition("/")[0]: row for row in targets.tolist()}
    found = [(target_of.get(keys[x].rpartition("/")[0]), x) for x in spread(inputs, MOST_PAIRS)]
    pairs = tuple((target, row) for target, row in found if target is not None)
    end = affixes([stem(keys[row]) for row in spread(targets)]).end
    is_fit = end and 2 < len(target_of) == len(targets) and len(pairs) == len(found)
    return Relation(Affixes("", end), Affixes("", ""), (), pairs) if is_fit else None


def spread(rows: Rows, number: int = _MOST_NAMES) -> list[int]:
    """Return at most `number` of the rows, evenly spaced."""
    places: Rows = rows[np.linspace(0, len(rows) - 1, min(number, len(rows))).astype(np.int64)]
    return [*map(int, places)]


def _inputs(
    keys: Texts, are_inputs: NDArray[np.bool_], kind: Affixes, target: tuple[str, str]
) -> Mapping[int, str]:
    """Return row of each input named by the id of a target → text after the id in its name.

    Only inputs whose folders share the most words with the target's folders are returned; of these,
    only inputs without a text after the id, if there are any.
    """
    id_, key = target
    start = f"{kind.start}{id_}"
    has_start = booleans(pc.match_substring(keys.array, f"/{start}"))
    has_start |= booleans(pc.starts_with(keys.array, start))
    rows = np.flatnonzero(has_start & are_inputs)[:_MOST_FOUND]
    if id_[-1:].isdigit():  # skip rows with a longer number, which are most of them
        ends = rf"(^|/){re.escape(start)}([^0-9/][^/]*)?$"
        rows = rows[keys.take(rows).matching(ends)]
    boundary = r"\d" if id_[-1:].isdigit() else "(?!x[0-9])[^\\W\\d_]" if id_ else "(?!)"
    fits = re.compile(rf"{re.escape(start)}(?!{boundary})(.*){re.escape(kind.end)}").fullmatch
    found = {row: match[1] for row in rows.tolist() if (match := fits(stem(keys[row])))}
    folders = Counter(_SIGN.split(key.rpartition("/")[0]))
    paths = {row: Counter(_SIGN.split(keys[row].rpartition("/")[0])) for row in found}
    near = {row: (words & folders).total() for row, words in paths.items()}
    nearest = max(near.values(), default=0)
    found = {row: rest for row, rest in found.items() if near[row] == nearest}
    return {row: rest for row, rest in found.items() if not rest} or found
