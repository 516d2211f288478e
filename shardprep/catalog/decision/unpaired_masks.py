"""Find pictures that may be masks although no pattern of `mask_evidence` pairs them."""

from __future__ import annotations

import contextlib
import glob
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from shardprep.catalog.decision.file_kinds import NUM_PROBES, find_kinds
from shardprep.catalog.decision.mask_sets import MaskSet, is_named_as_masks
from shardprep.catalog.decision.view import Reading, View
from shardprep.catalog.labels import ENOUGH
from shardprep.catalog.names import find_masks, given_split, stem
from shardprep.catalog.objects.formats.panoptic import panoptic_signs
from shardprep.catalog.objects.mask_files import pair_masks
from shardprep.catalog.objects.mask_values import unnamed
from shardprep.catalog.patterns import matched
from shardprep.errors import OptionError, SourceError, counted
from shardprep.recipe.object_rules import parse_mask_pattern

_MOST_KINDS, _MOST_WORDS = 16, 2


def mask_pictures(view: View) -> Sequence[Reading]:
    """Return readings of some kinds of pictures: as masks, left out, or as images.

    A kind is a folder or an ending of names; folders that differ only in numbers are one kind.
    Returns [] unless each kind clearly looks like masks or like images.
    """
    if not view.is_open("labels", "boxes", "masks", "target_image", "stack", "points"):
        return []
    every = find_kinds(view.members)
    above = defaultdict[str, set[str]](set)
    for *_, upper, last in (["", *kind.folder.split("/")] for kind in every):
        above[last].add(upper)  # `camera/front` and `label/front` differ in the upper name
    depth = 1 + all(any(map(is_named_as_masks, x)) and len(x) > 1 for x in above.values())
    name_of = {one.folder: glob.escape(f"/{one.folder}".split("/")[-depth]) for one in every}
    names = {name_of[kind.folder] for kind in every if not kind.ending}
    numbered = Counter(re.sub(r"\d+", "*", name) for name in names)
    kinds = defaultdict[str, list[int]](list)
    for kind in every:
        name = name_of[kind.folder]
        wide = re.sub(r"\d+", "*", name)
        own = MaskSet("", kind.ending, [kind]).glob if kind.ending else f"{name}/*"
        own = f"{wide}/*" if numbered[wide] > 1 and not kind.ending else own
        if not kind.ending and any(one.folder.startswith(f"{kind.folder}/") for one in every):
            continue  # any glob for these files would also fit the folders next to them
        kinds[own] += list(kind.rows.values())
    if not 1 < len(kinds) <= _MOST_KINDS:
        return []
    seen = {
        own: [view.pictures.values(view.members[row]) for row in (rows[0], rows[len(rows) // 2])]
        for own, rows in kinds.items()
    }
    of_masks, lasts = find_masks(view.members.keys), {x.folder.rpartition("/")[2] for x in every}
    classes = [x for x in lasts - of_masks.no_classes if not given_split([x])]
    words = {*of_masks.num_masks} if len(classes) < 2 else set[str]()  # not `label`, `text`
    named = {x for x, rows in kinds.items() if words & {*view.members.keys[rows[0]].split("/")}}
    are_masks = {x: [bool(one and one.may_be_mask) for one in two] for x, two in seen.items()}
    masks = [own for own, two in are_masks.items() if all(two) or own in named]
    others = [own for own, two in are_masks.items() if not any(two) and own not in named]
    if (
        not (masks and others)
        or len(masks) + len(others) < len(kinds)
        or panoptic_signs(view.index, view.documents, view.candidates)
    ):
        return []
    number = sum(len(kinds[own]) for own in masks)
    why = f"{counted(number, 'picture')} such as {view.members.keys[kinds[masks[0]][0]]}"
    photos = {stem(view.members.keys[row]) for own in others for row in kinds[own]}
    are_blurred = any(x and x.colours and x.is_lossy for own in masks for x in seen[own])
    what = "masks of colours, which JPEG blurs" if are_blurred else "masks"
    return [
        *(
            one
            for own in ([] if are_blurred else masks)
            for one in _with_word(view, kinds[own], photos, depth - 1)
        ),
        Reading({"exclude": tuple(masks)}, f"{why} may be {what}; they are left out"),
        Reading({}, f"{why} are images"),
    ]


def _with_word(view: View, rows: Sequence[int], photos: set[str], depth: int) -> Iterator[Reading]:
    """Yield readings of masks with a word inside the image's name: mask `um_road_01` of `um_01`.

    The image may have another word instead: mask `1_mask_08` of image `1_sat_08`. `photos` are
    stems of images. Between a mask and its folder of masks are `depth` folders, as for images.
    """
    keys = [view.members.keys[row] for row in rows]
    suffixes = {PurePosixPath(key).suffix for key in keys}
    folders = {f"/{key}".split("/")[-2 - depth] for key in keys}
    place = "/".join([*folders, *["{folder}"] * depth, ""]).lstrip("/")
    parts = {part for name in photos for part in re.split("[_-]", name)[1:-1] if part.isalpha()}
    parts = parts if len(parts) <= _MOST_KINDS else set()
    words = Counter(one for key in keys for one in _words_within(stem(key), photos, parts))
    usual = [one for one, number in words.items() if number >= NUM_PROBES // 2][:_MOST_WORDS]
    for sign, word, before, after in usual if len(folders) == len(suffixes) == 1 else ():
        part = f"[^{sign}]+"
        first, last = (sign.join([part] * number) for number in (before, after))
        name = f"{{stem:^({first}){sign}}}{sign}{word}{sign}{{stem:{sign}({last})$}}"
        pattern = f"{place}{name}{''.join(suffixes)}"
        others = tuple(f"*{sign}{one[1]}{sign}*" for one in usual if one[1] != word)
        some = [view.members[row] for row in rows[:: len(rows) // NUM_PROBES + 1]]
        seen = [*map(view.pictures.values, some)]
        colours = {colour for one in seen if one is not None for colour in one.colours}
        with contextlib.suppress(SourceError, OptionError):
            every = list(view.members.keys)
            out = itertools.compress(every, matched(every, others, "exclude"))
            files = pair_masks(every, parse_mask_pattern(pattern), {*out})
            if len(files.without_image) <= (1 - ENOUGH) * len(files.keys):
                options: dict[str, Any] = {"exclude": others} if others else {}
                options |= {"mask_values": unnamed(colours)} if colours else {}
                why = f"{counted(len(files.keys), 'mask')} with {word!r} within their names"
                yield Reading({**options, "masks": pattern}, why)


def _words_within(
    name: str, photos: set[str], words: Collection[str]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield (separator, word, number of parts before and after it) for words in a mask name.

    Without the word, or with one of `words` instead, the name is in `photos`.
    """
    for sign in "_-":
        parts = name.split(sign)
        for at in range(1, len(parts) - 1):
            around = [*parts[:at], *parts[at + 1 :]]
            others = (sign.join([*parts[:at], word, *parts[at + 1 :]]) for word in words)
            if parts[at].isalpha() and not photos.isdisjoint([sign.join(around), *others]):
                yield sign, parts[at], at, len(parts) - at - 1
