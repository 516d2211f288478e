"""Find sets of mask files by names and pixels, and patterns that pair masks with images.

Names come first: the files of a folder whose names end alike are one kind, and only kinds that
share names with another kind are used. Then a few files are decoded: masks have few values or
colours, images do not. A pattern uses the parts of mask paths that paths of images lack. It is
accepted if nine tenths of its masks get an image.
"""

from __future__ import annotations

import glob
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import commonpath

from shardprep.catalog.decision.file_kinds import NUM_PROBES, Kind, base_of
from shardprep.catalog.decision.pairs import Pictures, affixes, twin_folders
from shardprep.catalog.labels import ENOUGH
from shardprep.catalog.names import words_of
from shardprep.catalog.objects.formats.box_format import image_size
from shardprep.catalog.objects.mask_files import MaskFiles, SeveralImagesError, pair_masks
from shardprep.catalog.objects.mask_values import Colour
from shardprep.catalog.patterns import matched
from shardprep.errors import OptionError, SourceError
from shardprep.recipe.object_rules import parse_mask_pattern
from shardprep.source.members import Members

_AT_EACH_END = 6
"""Number of groups of kinds to decode from each end of their list."""
_HALF = 0.5
"""Minimum share of masks with an image, if the masks are in a folder and named like images."""
_OF_MASKS = re.compile(
    r"masks?\b|annots?\b|\b(anns?|lab|labels?|annotations?|anno|segs?|segmentations?|gts?|groundtruths?"
    r"|ground truths?|manual|targets?|saliency|trimaps?|parsing|mattes?|ids)\b"
)
"""Words of mask folders and mask names, in lower case with spaces between."""
_DRAWN = re.compile(r"\b(vi[sz](uali[sz]ations?)?|(overla(y|id)|preview|collage|colou?r)s?|rgb)\b")
"""Matches words for pictures that are made to be viewed, such as overlays."""
_NUMBER = re.compile(r"\d+")
SPLIT_WORD = re.compile(
    r"(?<![A-Za-z])(?:train(?:ing)?|tr|val(?:id(?:ation)?)?|dev|test(?:ing)?|te|ts|eval)(?![a-z])",
    re.IGNORECASE,
)


_Key = tuple[str, str, bool, str]
"""Key of a set: glob of its folder, ending, whether its masks have colours, suffix."""


@dataclass(slots=True)
class MaskSet:
    """Kinds of masks in folders that belong together, such as a folder of each split."""

    folder: str
    """Name or glob of the folder; "" if the masks are next to their images."""
    ending: str
    kinds: list[Kind]
    colours: set[Colour] = field(default_factory=set)
    is_drawn: bool = False
    """Whether these pictures are made to be viewed, such as overlays that repeat other masks."""
    pattern: str = ""
    files: MaskFiles = field(default_factory=lambda: MaskFiles({}, []))
    suffix: str = ""
    """Suffix of the masks if nothing else distinguishes them from images next to them."""
    rivals: tuple[str, str] | None = None
    """Names of two folders whose images the masks fit equally, or that show the same scenes."""
    num_numbers: int = 0
    """Number of different object numbers in the masks; 0 if their values seem to be classes."""

    @property
    def names(self) -> set[str]:
        return {name for kind in self.kinds for name in kind.bases}

    def holds(self, kind: Kind) -> bool:
        return kind.folder.rpartition("/")[2] == self.folder

    @property
    def has_word(self) -> bool:
        """Whether all folders or file names contain a word for masks."""
        return all(map(_may_be_masks, self.kinds))

    @property
    def glob(self) -> str:
        """The glob that excludes these files."""
        own = "*" if any(kind.has_number for kind in self.kinds) else ""
        end = f"{glob.escape(self.ending)}{own}{self.suffix or '.*'}"
        return f"{self.folder}/*" if self.folder else f"*{end}"


def _may_be_masks(kind: Kind) -> bool:
    return is_named_as_masks(f"{kind.folder} {kind.ending}")


def mask_sets(
    kinds: Sequence[Kind], members: Members, pictures_of: Pictures
) -> tuple[list[MaskSet], list[Kind]]:
    """Return the sets of masks, and the kinds of other pictures, after decoding a sample."""
    masks, pictures = _looked_into(kinds, members, pictures_of)
    in_use = {part for kind in pictures for part in kind.folder.split("/")}
    mixed = {kind.folder for kind in pictures}
    photos = {name for kind in pictures for name in kind.rows}
    suffixes = {Path(key).suffix for kind in pictures for key in _keys(kind, members)}
    drawn = [one for one in pictures if _DRAWN.search(" ".join(words_of(one.folder)))]
    drawn = drawn if len(drawn) < len(pictures) else []  # otherwise `rgb/` has the images
    found: dict[_Key, MaskSet] = {}
    for kind, colours in [*masks, *((one, set[Colour]()) for one in drawn)]:
        is_drawn = any(kind is one for one in drawn)
        own = kind.folder.split("/")
        if is_drawn:
            own = [part for part in own if _DRAWN.search(" ".join(words_of(part)))]
        else:
            own = [part for part in own if part not in in_use and kind.folder not in mixed]
            of_image = [at for at, part in enumerate(own, 1) if part in photos]
            own = own[max(of_image, default=0) :] or own  # below a folder of one image
        part, text = _place(own, in_use)
        if not (part or kind.ending or kind.suffix not in ("", *suffixes)):
            continue  # neither folder, ending nor suffix distinguishes masks from pictures
        num_equal = sum(name in photos for name in kind.rows)
        ending = "" if 2 * num_equal > len(kind.rows) else kind.ending
        suffix = "" if part or ending else kind.suffix
        own_set = MaskSet(part, ending, [], suffix=suffix)
        one = found.setdefault((text, ending, bool(colours), suffix), own_set)
        one.folder = part if one.folder == part else text
        one.is_drawn = is_drawn
        one.kinds.append(kind)
        one.colours |= colours
    _join_folders(found)
    _join_alike(found, pictures)
    sets = list(found.values())
    values = [one for one in sets if not (one.colours or one.is_drawn)]
    for one in sets:  # masks whose colours draw the values of other masks
        alike = [other for other in values if 2 * len(one.names & other.names) > len(one.names)]
        most = max((_num_values(other, members, pictures_of) for other in alike), default=0)
        one.is_drawn |= 0 < len(one.colours) <= most
    direct = {one.folder for one in sets if any(map(one.holds, one.kinds))}
    for one in sets:  # masks of one kind in a folder, and of others in the folders below it
        if one.folder in direct and not any(map(one.holds, one.kinds)):
            one.folder += "/*"
    of_drawn = {id(kind) for one in sets if one.is_drawn for kind in one.kinds}
    return sets, [one for one in pictures if id(one) not in of_drawn]


def _looked_into(
    kinds: Sequence[Kind], members: Members, pictures_of: Pictures
) -> tuple[list[tuple[Kind, set[Colour]]], list[Kind]]:
    """Return the kinds of masks, each with its colours, and the kinds of other pictures."""
    masks, pictures = list[tuple[Kind, set[Colour]]](), list[Kind]()
    for is_named in (True, False):
        groups = defaultdict[tuple[str, ...], list[Kind]](list)
        for kind in (one for one in kinds if _may_be_masks(one) is is_named):
            names = (SPLIT_WORD.sub("", name) for name in kind.folder.split("/"))
            groups["/".join(names), _NUMBER.sub("0", kind.ending), kind.suffix].append(kind)
        alike = [*groups.values()]
        middle = max(_AT_EACH_END, len(alike) - _AT_EACH_END)
        for group in alike[:_AT_EACH_END] + alike[middle:]:
            colours = _colours(group[0], members, pictures_of)
            if colours is None:
                pictures += group
            else:
                masks += [(kind, colours) for kind in group]
    if not pictures and (flat := _flat_pictures(masks)):
        return [one for one in masks if one[0] not in flat], flat
    return masks, pictures


def _flat_pictures(masks: Sequence[tuple[Kind, set[Colour]]]) -> list[Kind]:
    """Return the kinds of few colours or values if all others are grey and named as masks."""
    flat = [kind for kind, _ in masks if not _may_be_masks(kind)]
    grey = [kind for kind, colours in masks if not colours and _may_be_masks(kind)]
    are_viewed = any(_DRAWN.search(" ".join(words_of(one.folder))) for one in flat)
    return flat if grey and len(flat) + len(grey) == len(masks) and not are_viewed else []


def _place(own: Sequence[str], in_use: Collection[str]) -> tuple[str, str]:
    """Return the name of the folder that only masks have, and its glob for all splits.

    The result is a path if its first part begins with the name of an image folder: `01_GT/SEG`.
    """
    upper = _of_every_split(own[0], in_use) if len(own) > 1 else ""
    if upper.startswith("*"):
        path = "/".join([upper, *own[1:]])
        return path, path
    part = max(reversed(own), key=is_named_as_masks, default="")
    return part, _of_every_split(part, in_use)


def _join_folders(found: dict[_Key, MaskSet]) -> None:
    """Merge each set into the set whose glob fits its folder: `Test_v2_GT` into `*_GT`."""
    for key, one in [*found.items()]:
        wider = (found[other] for other in found if other[1:] == key[1:] and other[0] != key[0])
        if (whole := next((w for w in wider if fnmatchcase(key[0], w.folder)), None)) is not None:
            whole.kinds += one.kinds
            whole.colours |= one.colours
            del found[key]


def _join_alike(found: dict[_Key, MaskSet], pictures: Sequence[Kind]) -> None:
    """Merge sets whose folders differ only in the number of an image folder or in a final s.

    The sets must belong to different images: `GT_01` and `GT_02`; `train/mask` and `test/masks`.
    """
    above = commonpath([kind.folder.rpartition("/")[0] for kind in pictures] or [""])
    paths = [kind.folder.removeprefix(above) for kind in pictures]
    numbers = {one for path in paths for one in _NUMBER.findall(path)}
    groups = defaultdict[tuple[bool, _Key], list[_Key]](list)
    shared = {
        key[0] for key in found if [*map(numbers.__contains__, _NUMBER.findall(key[0]))] == [True]
    }
    wide_of = {name: _NUMBER.sub("*", name) for name in shared}
    wide_of |= {key[0]: f"{key[0]}*" for key in found if f"{key[0]}*" in wide_of.values()}
    for key in found:
        is_numbered = key[0] in wide_of  # also `masks` next to `masks2`
        wide = wide_of.get(key[0], f"{key[0].removesuffix('s')}*")
        groups[is_numbered, (wide, *key[1:])].append(key)
    for (is_numbered, (wide, *_)), (first, *others) in groups.items():
        sets = [found[key] for key in (first, *others)]
        places = [{kind.folder.rpartition("/")[0] for kind in one.kinds} for one in sets]
        are_apart = is_numbered or len(set.union(*places)) == sum(map(len, places))
        if others and first[0] and are_apart:
            found[first].folder = wide
            for key in others:
                found[first].kinds += found[key].kinds
                found[first].colours |= found[key].colours
                del found[key]


def is_named_as_masks(text: str) -> bool:
    """Return whether a name has a word of masks."""
    return bool(_OF_MASKS.search(" ".join(words_of(text))))


def _of_every_split(part: str, in_use: Collection[str]) -> str:
    """Return the glob of a folder of masks for all splits: `*annot` for `trainannot`."""
    starts = [one for one in in_use if one and part != one and part.startswith(one)]
    if starts:
        return f"*{part.removeprefix(max(starts, key=len))}"
    return SPLIT_WORD.sub("*", part)


def _looked_at(kind: Kind) -> set[int]:
    rows = list(kind.rows.values())
    return {rows[0], rows[len(rows) // 2]}


def _colours(kind: Kind, members: Members, pictures: Pictures) -> set[Colour] | None:
    """Return the colours of a kind of masks, empty for grey masks; None for other pictures."""
    colours: set[Colour] = set()
    for row in _looked_at(kind):
        seen = pictures.values(members[row])
        if seen is None or not seen.may_be_mask:
            return None
        colours |= seen.colours
    return colours


def _num_values(one: MaskSet, members: Members, pictures: Pictures) -> int:
    seen = (pictures.values(members[row]) for kind in one.kinds for row in _looked_at(kind))
    return len({value for each in seen if each is not None for value in each.values})


def pair_set(
    one: MaskSet,
    pictures: Sequence[Kind],
    source: tuple[Members, Sequence[str]],
    others: Sequence[MaskSet],
    pictures_of: Pictures,
) -> None:
    """Set `pattern` and `files` of `one` if a pattern pairs masks, `rivals` if two folders fit."""
    members, keys = source
    ends = tuple(other.ending for other in others if other.ending not in ("", one.ending))
    shown = [key for kind in one.kinds for key in _keys(kind, members)]
    is_out = matched(keys, [other.glob for other in others], "exclude")
    no_images = {key for key, out in zip(keys, is_out, strict=True) if out}
    photos = {key for kind in pictures for key in _keys(kind, members)}
    for text in (*_below_images(one, pictures, shown), *_patterns(one, pictures, shown)):
        try:
            pattern = parse_mask_pattern(text)
        except OptionError:  # a folder has braces in its name
            continue
        fits = re.compile(pattern.expression, re.IGNORECASE).fullmatch
        if not all(map(fits, shown)) or any(map(fits, photos)):
            continue
        try:
            files = pair_masks(keys, pattern, no_images)
        except SeveralImagesError as error:
            paths = [key.split("/")[:-1] for key in error.images]
            differ = [pair for pair in zip(*paths, strict=False) if pair[0] != pair[1]]
            if len(differ) == 1 and len(paths[0]) == len(paths[1]):
                one.rivals = differ[0]
            continue
        except SourceError:
            continue
        num_paired = len(files.keys) - len(files.without_image)
        own = {kind.folder for kind in one.kinds}
        lost = [x for x in files.without_image if not one.suffix or x.rpartition("/")[0] in own]
        if one.ending or one.suffix:  # `_label` also fits `_inst_label`, `.png` fits `1_mask.png`
            lost = [x for x in lost if not x.rpartition(".")[0].endswith(ends)]
        enough = _HALF if one.has_word and "/{stem}." in text else ENOUGH
        is_enough = num_paired >= enough * (num_paired + len(lost))
        if is_enough and _are_alike(files, members, one):
            one.rivals = twin_folders(files.of_image, members, pictures_of)
            one.pattern, one.files = text, files
            return


def _keys(kind: Kind, members: Members) -> list[str]:
    return [members.keys[row] for row in list(kind.rows.values())[:NUM_PROBES]]


def _are_alike(files: MaskFiles, members: Members, one: MaskSet) -> bool:
    """Return whether names have a word for masks, or sampled masks have the sizes of images."""
    if one.has_word:
        return True
    pairs = list(files.of_image.items())
    wanted = dict(pairs[:: max(1, len(pairs) // NUM_PROBES)][:NUM_PROBES])
    names = {key for image, masks in wanted.items() for key in (image, *masks)}
    rows = [row for row, key in enumerate(members.keys) if key in names]
    sizes = {members.keys[row]: image_size(members[row].extent) for row in rows}
    return all(sizes[image] == sizes[mask] for image, masks in wanted.items() for mask in masks)


def _patterns(one: MaskSet, pictures: Sequence[Kind], masks: Sequence[str]) -> Iterator[str]:
    """Yield values of `--masks` that may fit, from the folder and what names share with images."""
    suffix = _suffix(masks)
    star = "*" if any(kind.has_number for kind in one.kinds) else ""
    parts = [kind.folder.split("/") for kind in one.kinds]
    depth, place = one.folder.count("/") + 1, re.escape(one.folder).replace(r"\*", ".*")
    is_last = all(re.fullmatch(place, "/".join(own[-depth:])) for own in parts)
    places = [f"{one.folder}/" if one.folder else ""]
    if one.folder and not is_last:
        places = [f"{one.folder}/{{folder}}/", f"{one.folder}/**/"]
    of_folders = [*_of_folders(one, pictures)] if "*" in one.folder and is_last else []
    own = [name for kind in one.kinds for name in kind.rows]
    bases = {name: base_of(name, one.ending) for name in own}
    ends = Counter({kind.ending: len(kind.rows) for kind in pictures})
    for end in ["", *(end for end, _ in ends.most_common() if end)]:
        names = {name for kind in pictures for name in kind.rows if name.endswith(end)}
        names = {name.removesuffix(end) for name in names}
        field_ = f"{{stem[:-{len(end)}]}}" if end else "{stem}"
        for affix in ("", one.ending + star) if one.ending else ("",):
            num_alike = sum((bases[name] if affix else name) in names for name in own)
            if 2 * num_alike > len(own):
                for place in (*places, *of_folders):
                    yield f"{place}{field_}{affix}{suffix}"
        if not end and (sign := _numbered(own, names)):
            yield from (f"{place}{{stem}}{sign}*{suffix}" for place in places)
        start, other = (affixes([*each]).start for each in (own, names or [""]))
        ids = {name.removeprefix(other) for name in names}
        if start and 2 * sum(name.removeprefix(start) in ids for name in own) > len(own):
            cut = f"-{len(end)}" if end else ""
            for place in (*(places if one.has_word else ()), *of_folders):
                yield f"{place}{start}{{stem[{len(other) or ''}:{cut}]}}{suffix}"
    if one.folder and is_last:
        yield f"{{id}}/{one.folder}/*{suffix}"


def _below_images(one: MaskSet, pictures: Sequence[Kind], masks: Sequence[str]) -> Iterator[str]:
    """Yield patterns for a folder of masks for each image: `masks/{stem}/*.png`."""
    photos = {name for kind in pictures for name in kind.rows}
    names = [kind.folder.rpartition("/")[2] for kind in one.kinds]
    if one.folder and photos.issuperset(names) and one.folder.rpartition("/")[2] not in names:
        for between in ("", "{folder}/", "**/"):
            yield f"{one.folder}/{between}{{stem}}/*{_suffix(masks)}"


def _suffix(keys: Sequence[str]) -> str:
    endings = {Path(key).suffix for key in keys}
    return endings.pop() if len(endings) == 1 else ".*"


def _numbered(names: Sequence[str], others: Collection[str]) -> str:
    """Return the separator if all names are a name in `others` and numbers: `96_03_01`; or ""."""
    for sign in "_-":
        starts = [name.partition(sign) for name in names]
        if all(one[0] in others and one[2].replace(sign, "").isdecimal() for one in starts):
            return sign
    return ""


def _of_folders(one: MaskSet, pictures: Sequence[Kind]) -> Iterator[str]:
    """Yield patterns of mask folders: `masks_{folder[7:]}/` if images are in `images_train`."""
    start, _, end = one.folder.partition("*")
    names = {kind.folder.rpartition("/")[2] for kind in pictures}
    depth = one.folder.count("/") + 1
    own = {"/".join(kind.folder.split("/")[-depth:]) for kind in one.kinds}
    if own <= {start + x + end for x in names}:
        yield f"{start}{{folder}}{end}/"
    for name, part in itertools.product(names, (SPLIT_WORD, _NUMBER)):
        if match := part.search(name):
            before, after = match.start(), len(name) - match.end()
            letters = f"{before or ''}:{-after if after else ''}"
            yield f"{start}{{folder{f'[{letters}]' if letters != ':' else ''}}}{end}/"
