"""Divide the files of each folder into kinds, whose names end alike, such as _mask."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardprep.catalog.decision.pairs import affixes
from shardprep.catalog.names import MASK_ENDING, stem
from shardprep.source.members import Members

_MOST_NAMES, _MOST_FOLDERS = 4_096, 512
NUM_PROBES = 8
_MOST_ENDINGS = 6
_USUAL = 0.1
"""Minimum share of the files in a folder whose names end alike, to make them a kind."""
_KIND = re.compile(
    r"[-_. ](inst(ance)?s?|sem(antic)?|panoptic|binary|colou?rs?|train)$", re.IGNORECASE
)
"""Matches a word that belongs to a longer ending: `_inst_label` is another ending than `_label`."""
_ENDING = re.compile(
    r"([-_. ](rgb|gt|images?|imgs?|masks?))?[-_. ](?=\d*[^\W\d_])[^\W_]+$|(?<=\d)[a-z]$"
)
_TAIL = re.compile(r"([-_]\d+)+$")
"""Matches numbers after the name of an image: `_03_01` in `96_03_01`."""
_WORD = re.compile(r"[-_. ][^\W\d_]+$")
_MOST_WORDS, _FEW, _A_PAIR = 3, 3, 2
_SIGN = re.compile("[-_. ]")
_TWO_WORDS = re.compile(r"[-_. ][^\W_]+[-_. ]")


class Kind(NamedTuple):
    """The files of a folder whose names end alike."""

    folder: str
    ending: str
    rows: dict[str, int]
    """Stem → position of the file in the members; at most a few thousand files of a folder."""
    suffix: str = ""
    """Suffix if files of the folder differ only in the suffix, such as `1.png` and `1.jpg`."""

    @property
    def bases(self) -> dict[str, int]:
        """Name of a file without the ending and a number after it → position of the file."""
        return {base_of(name, self.ending): row for name, row in self.rows.items()}

    @property
    def has_number(self) -> bool:
        """Whether a number follows the ending of a name, such as `_mask` in `1_mask_2`."""
        return bool(self.ending) and any(not name.endswith(self.ending) for name in self.rows)


def find_kinds(members: Members) -> list[Kind]:
    """Return the kinds of files by folder; of many folders or files, only some are read."""
    folders = members.keys.folders
    order = np.argsort(folders.codes, kind="stable")
    starts = np.flatnonzero(np.diff(folders.codes[order], prepend=-2))
    runs = [*itertools.pairwise([*starts.tolist(), len(order)])]
    runs.sort(key=lambda run: folders.values[int(folders.codes[order[run[0]]])])
    if len(runs) > _MOST_FOLDERS:
        half = _MOST_FOLDERS // 2
        runs = runs[:half] + runs[-half:]
    number = max(NUM_PROBES, _MOST_NAMES // max(1, len(runs)))
    found: list[Kind] = []
    several, everywhere = list[tuple[str, dict[str, int], dict[str, str], str]](), Counter[str]()
    for start, stop in runs:
        rows = order[start : min(stop, start + number)]
        keys = list(members.keys.take(rows))
        for suffix, names in _by_suffix(dict(zip(keys, rows.tolist(), strict=True))):
            end_of = {name: _ending(name) for name in names}
            several.append((keys[0].rpartition("/")[0], names, end_of, suffix))
            everywhere.update(filter(None, end_of.values()))
    stems = {name for _, names, _, _ in several for name in names}
    for folder, names, end_of, suffix in several:
        counts = Counter(filter(None, end_of.values()))
        bases = {name.removesuffix(end) for name, end in end_of.items()}
        are_single = len(names) == 1 or (len(names) == len(counts) <= _FEW and bases <= stems)
        for end, total in [(one, everywhere[one]) for one in counts]:
            if total > 1 and (_TWO_WORDS.match(end) or (are_single and total > _FEW)):
                counts[end] += 1  # one file in each of several folders is enough
        least = max(2, _USUAL * len(names))
        ends = {end for end, n in counts.most_common(_MOST_ENDINGS) if n >= least}
        of_end: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, row in names.items():
            of_end[end_of[name] if end_of[name] in ends else ""][name] = row
        found += [Kind(folder, end, own, suffix) for end, own in _by_word(of_end, everywhere)]
    return _with_longer_endings(found)


def _by_suffix(rows: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield (suffix, stem → row) for two suffixes that share most stems, otherwise ("", all)."""
    of_suffix = defaultdict[str, dict[str, int]](dict)
    for key, row in rows.items():
        of_suffix[Path(key).suffix][stem(key)] = row
    every = {name: row for several in of_suffix.values() for name, row in several.items()}
    if len(of_suffix) == _A_PAIR and 3 * len(every) <= 2 * len(rows):
        yield from of_suffix.items()
    else:
        yield "", every


def _with_longer_endings(kinds: Sequence[Kind]) -> list[Kind]:
    """Return the kinds, with endings extended to the common end if only then names fit others."""
    names = {name for kind in kinds for name in kind.rows}
    found = list[Kind]()
    for kind in kinds:
        end = affixes([*kind.rows]).end if kind.ending and len(kind.rows) > 1 else ""
        sign = _SIGN.search(end)  # `).jpg___fuse` is the common end of 1 (1).jpg___fuse.png
        end = end[sign.start() :] if sign else ""
        is_longer = end.endswith(kind.ending) and end != kind.ending
        longer = kind._replace(ending=end)
        own, others = (names.intersection(one.bases) for one in (kind, longer))
        found.append(longer if is_longer and not own and others else kind)
    return found


def _by_word(
    of_end: Mapping[str, dict[str, int]], endings: Collection[str]
) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield (ending, stem → row). Endings of masks are extended by a word before them: `_red_mask`.

    They are not extended if all these words also occur as `endings` of pictures.
    """
    for end, own in of_end.items():
        of_word: defaultdict[str, dict[str, int]] = defaultdict(dict)
        if MASK_ENDING.fullmatch(end):
            for name, row in own.items():
                match = _WORD.search(base_of(name, end))
                of_word[match[0] if match else ""][name] = row
        is_clear = 1 < len(of_word) <= _MOST_WORDS and min(map(len, of_word.values())) > 1
        if is_clear and "" not in of_word and not of_word.keys() <= {*endings}:
            yield from ((f"{word}{end}", several) for word, several in of_word.items())
        else:
            yield end, own


def _ending(name: str) -> str:
    if (match := MASK_ENDING.search(name)) and match.start() and match[1].lower() != "l":
        kind = _KIND.search(name[: match.start()])
        return name[kind.start() :] if kind and kind.start() else match[1]
    match = _ENDING.search(name)
    return match[0] if match and match.start() else ""


def base_of(name: str, ending: str) -> str:
    """Return a name without its ending and a number after it."""
    return name[: name.rindex(ending)] if ending and ending in name else name


def named_alike(kinds: Sequence[Kind]) -> list[Kind]:
    """Return the kinds that share at least a quarter of their sampled names with another kind."""
    with_name: defaultdict[str, list[int]] = defaultdict(list)
    forms = [
        ([*kind.rows], [*kind.bases], [_TAIL.sub("", name) for name in kind.rows]) for kind in kinds
    ]
    for number, lists in enumerate(forms):
        for name in dict.fromkeys(itertools.chain(*lists)):
            if len(with_name[name]) < 2:  # another one is enough
                with_name[name].append(number)
    found = []
    for number, (kind, lists) in enumerate(zip(kinds, forms, strict=True)):
        for names in lists:
            probes = names[:: max(1, len(names) // NUM_PROBES)][:NUM_PROBES]
            num_alike = sum(with_name[name] != [number] for name in probes)
            if 4 * num_alike >= len(probes):
                found.append(kind)
                break
    return found
