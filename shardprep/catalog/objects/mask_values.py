"""Meaning of the values in mask files, stated by `--mask-values` or detected from the masks."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from shardprep.catalog.objects.formats.yolo_names import NameFile
from shardprep.catalog.objects.object_table import ONE_CLASS
from shardprep.catalog.tables.long_rows import check_widths
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.errors import OptionError, OptionName, RecipeError, SourceError, some_of
from shardprep.image.masks import MaskError, decode_mask, value_counts
from shardprep.recipe.rules import parse_pairs
from shardprep.source.byte_range import MemberError
from shardprep.source.members import Member, StackExtent
from shardprep.storage.text_file import CsvRows, decoded

_MASK_VALUES, _INSTANCES = OptionName("mask_values"), OptionName("instances")
Colour = tuple[int, int, int]
NONE = -1
BACKGROUND = "background"
_NO_VALUE, _NO_WIDE_VALUE = 255, 65_535
"""Values that mean "no class" in masks of class indices, in 8 and in 16 bits."""
_BACKGROUNDS = re.compile(r"_?back[-_ ]?ground_?|bg", re.IGNORECASE)
_IGNORED = re.compile(r"_?_?ignored?_?_?", re.IGNORECASE)
_BINARY = ({0, 1}, {0, 255}, {0, 65_535})
"""Sets of values in masks that only separate objects from background."""
_SAMPLE = 64
_DARK, _LIGHT, _BLURRED = 32, 223, 0.01
"""Limits of black and white in JPEG masks, and maximum share of pixels between these limits."""
_LEVEL = 0.02
"""Minimum share of the blocks of a JPEG mask that makes a dark value the value of an area."""
_MOST_CLASSES = 1024
"""Maximum number of detected classes; larger values are object ids, or depths."""
_MOST_VALUES = 64
_PIXELS_OF_COLOUR = 8
"""Minimum pixels per colour of a mask, because a tiny photo has few colours, too."""
_PIXELS_FIRST = 1 << 12
"""Number of pixels to count colours in first, because most photos exceed the limit there."""
_SHOWN_COLOURS = 8
_NAME_FILE = re.compile(
    r"(^|/)[^/]*(\.ya?ml|(class|label|palette|names|codes)[^/]*\.(csv|txt))$", re.IGNORECASE
)
_MOST_NAME_BYTES = 64 << 10
_MOST_NAME_FILES = 16
_NUM_THREADS = 2
_LINES = "write each line as name,r,g,b or value,name or name:r,g,b"
_COLOUR = re.compile(r"#([0-9a-fA-F]{6})|(\d{1,3})[ ,]+(\d{1,3})[ ,]+(\d{1,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskValues:
    """The classes of mask files, and the pixel value of each class."""

    names: tuple[str, ...]
    values: Mapping[int, int] | Mapping[Colour, int] | None = None
    """Pixel value or colour → class index or `NONE`; None if values are the class indices."""
    is_binary: bool = False
    how: str = ""
    present: list[tuple[int, ...]] = field(default_factory=list)
    """Class indices in each mask; [] if not known."""
    findings: tuple[str, ...] = ()

    @property
    def background(self) -> int:
        """Class index of the background, or `NONE` if no class has a name for background."""
        found = (i for i, name in enumerate(self.names) if _BACKGROUNDS.fullmatch(name))
        return next(found, NONE)

    def renamed(self, names: Mapping[str, str], classes: Sequence[str]) -> MaskValues:
        """Return a copy with names mapped by `names`, and only the classes in `classes`, if any.

        Masks without class names get `classes` as names. SourceError if no class is in `classes`.
        """
        called = [names.get(name, name) for name in self.names]
        if self.is_binary and len(classes) == 1:
            classes = (BACKGROUND, *classes)
        is_unnamed = self.is_unnamed and called == list(self.names)
        if classes and len(classes) >= len(called) and is_unnamed:
            called = list(classes)[: len(called)]
        elif classes and self.is_binary and len(classes) == len(called):
            called = list(classes)
        ordered = tuple(classes) or tuple(dict.fromkeys(called))
        if called == list(ordered[: len(called)]):
            return replace(self, names=ordered)
        place = {name: i for i, name in enumerate(ordered)}
        if not place.keys() & set(called):
            what = f"none of {some_of(ordered)} is a class of the masks"
            raise SourceError(OptionName("classes"), what, f"use one of {some_of(called, 10)}")
        number = [place.get(name, NONE) for name in called]
        old = {i: i for i in range(len(called))} if self.values is None else self.values
        new: dict[Any, int] = {} if self.values else {_NO_VALUE: NONE}
        new |= {value: NONE if at == NONE else number[at] for value, at in old.items()}
        lost = [name for name in called if name not in place]
        line = f"masks of {some_of(lost)} are ignored: not among {OptionName('classes')}"
        present = [tuple(sorted({number[i] for i in one} - {NONE})) for one in self.present]
        findings = (*self.findings, *([line] if lost else []))
        return replace(self, names=ordered, values=new, present=present, findings=findings)

    def stored(self, ignore: int) -> Mapping[Any, int] | None:
        """Return `values` with `ignore` instead of `NONE`, in the form of `AnnotationSpec`."""
        if self.values is None:
            return None
        return {value: ignore if at == NONE else at for value, at in self.values.items()}

    @property
    def is_unnamed(self) -> bool:
        return self.values is None and self.names == tuple(map(str, range(len(self.names))))


def given_values(text: str, read: Callable[[str], bytes]) -> MaskValues:
    """Return the meaning of values that `--mask-values` states, as pairs or in a file.

    The file is a CSV of name, r, g, b or of value, name; a text with lines name:r,g,b; or a YAML
    with `names` or `classes` as a list or map. Values that are called "ignore" have no class.
    OptionError or SourceError for other forms.
    """
    findings: list[str] = []
    pairs: Sequence[tuple[int | Colour, str]]
    if "=" in text:
        each = (parse_pairs(part, _MASK_VALUES) for part in text.split(","))
        pairs = [(_value(value), name) for one in each for value, name in one.items()]
        how = str(_MASK_VALUES)
    elif not re.search(r"\.\w+$", text) and re.search("[:,]", text):
        what = f"{text!r} is neither pairs of a value and a name nor a file"
        raise OptionError(_MASK_VALUES, what, "write 0=background,1=cat or name a file")
    else:
        data, how = read(text), text
        if text.lower().endswith((".yaml", ".yml")):
            pairs = [*NameFile(text, data, ("names", "classes")).names.items()]
        else:
            pairs = _parsed(decoded(data), text)
    names = tuple(dict.fromkeys(name for _, name in pairs if not _IGNORED.fullmatch(name)))
    if not names:
        raise SourceError(how, "names no class", "write 0=background,1=object")
    place = {name: i for i, name in enumerate(names)}
    values: dict[Any, int] = {}
    for value, name in pairs:
        if value in values:
            findings.append(f"{how}: {value} means two classes; {name} is left out")
        values.setdefault(value, place.get(name, NONE))
    if len({isinstance(value, tuple) for value in values}) > 1:
        raise SourceError(how, "mixes values and colours", "use only values or only colours")
    return MaskValues(names=names, values=values, how=how, findings=tuple(findings))


NUMBERED = "values are 1 to n in each mask, and n differs: numbers of objects"
UNSURE = 2
"""Maximum result of `are_numbers` at which the values may also be classes."""
_MOST_ODD = 0.1
_MOST_CLASSES_IN_TURN = 2
"""Values 1 to n in masks are classes if n is at most this (1 an organ, 2 its tumour)."""


def are_numbers(masks: Iterable[Collection[int]]) -> int:
    """Return how many different n occur if each mask has the values 1 to n, otherwise 0.

    The result is also 0 for a single n, or if no n is above 2: such values may be classes.
    """
    highest: set[int] = set()
    for mask in masks:
        number = _highest_number(mask)
        if number is None:
            return 0
        highest |= {number} - {0}
    is_fit = len(highest) > 1 and max(highest) > _MOST_CLASSES_IN_TURN
    return len(highest) * is_fit


def _highest_number(mask: Collection[int]) -> int | None:
    """Return n if a mask has the values 1 to n, and perhaps 0 and "no class"; otherwise None."""
    values = sorted(set(mask) - {0})
    if values and values[-1] in (_NO_VALUE, _NO_WIDE_VALUE) and values[-1] != len(values):
        values.pop()
    if values and values[-1] != len(values):
        return None
    return len(values)


def hold_numbers(masks: Iterable[Seen | None], documents: Documents) -> int:
    """Return the result of `are_numbers` for sampled masks, although a few masks may not fit.

    0 if a mask has colours or is a JPEG, or if a document names the values as classes. Up to a
    tenth of the masks may lack the number of a hidden object; then the result is at most `UNSURE`.
    """
    seen, num_odd = [], 0
    for one in masks:
        if one is None:
            continue
        if one.colours or one.is_lossy:
            return 0
        seen += [] if (is_odd := _highest_number(one.values) is None) else [one.values]
        num_odd += is_odd
    number = are_numbers(seen) if num_odd <= _MOST_ODD * len(seen) else 0
    number = min(number, UNSURE) if num_odd else number
    present = frozenset[int]().union(*seen) - {_NO_VALUE, _NO_WIDE_VALUE}
    return 0 if number and naming_files(present, documents) else number


def unnamed(colours: Collection[Colour]) -> str:
    """Return the value of `--mask-values` that names each colour by its own code."""
    texts = [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in sorted(colours)]
    return ",".join(f"{text}={text[1:]}" for text in texts)


def naming_files(present: Collection[int | Colour], documents: Documents) -> list[str]:
    """Return keys of the documents that name all these values or colours, for `--mask-values`."""
    members = documents.members(".yaml", ".yml", ".csv", ".txt")
    likely = [one for one in members if _NAME_FILE.search(one.key)]
    small = [one.key for one in likely if one.extent.num_bytes <= _MOST_NAME_BYTES]
    found = list[str]()
    for key in small[:_MOST_NAME_FILES]:
        with contextlib.suppress(SourceError, RecipeError):  # not a table, or an ambiguous name
            found += (
                [key] if {*present} <= {*(given_values(key, documents.read).values or ())} else []
            )
    return found


def _value(text: str) -> int | Colour:
    if match := _COLOUR.fullmatch(text.strip()):
        red, green, blue = bytes.fromhex(match[1]) if match[1] else map(int, match.groups()[1:])
        if max(red, green, blue) <= 255:
            return red, green, blue
    elif re.fullmatch(r"\d{1,5}", text.strip()) and int(text) <= 65_535:
        return int(text)
    what = f"{text!r} is neither a pixel value nor a colour such as #ff0000"
    raise OptionError(_MASK_VALUES, what, "write 1=pet,2=background,255=ignore")


def _parsed(text: str, file: str) -> list[tuple[int | Colour, str]]:
    """Return values and names in a class_dict.csv, a labelmap.txt or a CSV of value and name."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    by_colon = [line.split(":") for line in lines]
    if all(len(parts) > 1 and _COLOUR.fullmatch(parts[1].strip()) for parts in by_colon):
        return [(_value(parts[1]), parts[0].strip()) for parts in by_colon]
    rows = CsvRows(f"{line}\n" for line in lines)
    cells = [[cell.strip() for cell in row] for row in rows if len(row) > 1]
    if rows.faults:
        raise SourceError(file, next(iter(rows.faults.values())), "close the quote")
    check_widths(cells, file)
    found: list[tuple[int | Colour, str]] = []
    for row in cells:
        numbers = [i for i, cell in enumerate(row) if re.fullmatch(r"\d{1,5}", cell)]
        texts = [cell for i, cell in enumerate(row) if i not in numbers and cell]
        if len(numbers) >= 3 and texts:
            found.append((_value(",".join(row[i] for i in numbers[-3:])), texts[0]))
        elif len(numbers) == 1 and texts:
            found.append((_value(row[numbers[0]]), texts[0]))
        elif found:  # earlier lines are a header
            raise SourceError(file, f"{','.join(row)!r} is not a mask value with a name", _LINES)
    if not found:
        raise SourceError(file, "names no values of masks", _LINES)
    return found


class Seen(NamedTuple):
    """The values or colours in a possible mask file."""

    values: frozenset[int]
    colours: frozenset[Colour] = frozenset()
    """Colours of a mask of colours, at most `_MOST_VALUES` + 1 of them."""
    is_blurred: bool = False
    """True if all pixels are black or white, except for blur by JPEG."""
    is_lossy: bool = False
    has_levels: bool = False
    """True if `is_blurred`, but dark areas have several values, as class indices in a JPEG have."""
    num_pixels: int = 0

    @property
    def is_mask(self) -> bool:
        """Whether the file looks like a mask: one channel with few values."""
        return not self.colours and (self.is_blurred or len(self.values) <= _MOST_VALUES)

    @property
    def may_be_mask(self) -> bool:
        return self.is_mask or self.has_few_colours

    @property
    def has_few_colours(self) -> bool:
        return 0 < len(self.colours) <= min(_MOST_VALUES, self.num_pixels // _PIXELS_OF_COLOUR)


def detected_values(
    masks: Sequence[Member], max_pixels: int, *, instances: bool = False
) -> MaskValues:
    """Return the meaning of values, detected from the masks; SourceError if it is unclear.

    If a sample of up to 64 masks is black and white, all are binary. Otherwise, values are object
    numbers with `instances`, else class indices; all masks are then read to find the highest index.
    """
    step = max(1, -(-len(masks) // _SAMPLE))
    sample = {m.key: seen for m in masks[::step] if (seen := look(m, max_pixels)) is not None}
    if not sample:
        what = "cannot be decoded, like every other mask that was looked at"
        raise SourceError(masks[0].key, what, "copy the masks again")
    for key, seen in sample.items():
        if seen.colours and seen.is_lossy:
            what = "is a mask of colours in JPEG, which blurs them"
            raise SourceError(key, what, "export the masks as PNG")
        if seen.colours:
            colours = [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in sorted(seen.colours)]
            colours = colours[:_SHOWN_COLOURS]
            what = f"is a mask of colours, such as {some_of(colours, 3)}"
            flag = OptionName("mask_values", f"{colours[0]}=NAME")
            hint = f"say what each colour means, as in {flag} or a file"
            raise SourceError(key, what, hint)
    values = frozenset[int]().union(*(seen.values for seen in sample.values()))
    lossy = [key for key, seen in sample.items() if seen.is_lossy]
    found = frozenset[int]().union(*(sample[key].values for key in lossy)) or {0}
    # Otherwise, these are JPEGs of small class indices, perhaps with 255 for no class.
    is_clear = found == {0} or max(found) >= _LIGHT
    is_clear &= sum(seen.has_levels for seen in sample.values()) <= _MOST_ODD * len(sample)
    binary = not lossy and any(values <= pair for pair in _BINARY)
    are_blurred = all(seen.is_blurred or seen.values <= {0, 255} for seen in sample.values())
    if binary or (are_blurred and is_clear):
        how = f"black and white, as {len(sample):,} of them show"
        only = f"all masks that were looked at ({len(sample):,}) have one value: {min(values)}"
        findings = (only,) * (len(values) == 1)
        both = BACKGROUND, ONE_CLASS
        return MaskValues(names=both, is_binary=True, how=how, findings=findings)
    if lossy:
        what = "is a JPEG, which changes the values of a mask"
        raise SourceError(lossy[0], what, "export the masks as PNG; a converted JPEG stays wrong")
    if instances:
        return MaskValues(names=(ONE_CLASS,), how="numbers of objects")
    _check_white(sample)
    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        all_seen = list(pool.map(lambda mask: look(mask, max_pixels), masks))
    found = frozenset[int]().union(*(seen.values for seen in all_seen if seen))
    is_wide = any(_NO_VALUE < value < _NO_WIDE_VALUE for value in found)
    nothing = {_NO_WIDE_VALUE if is_wide else _NO_VALUE}
    present = [tuple(sorted(seen.values - nothing)) if seen else () for seen in all_seen]
    highest = max((one[-1] for one in present if one), default=0)
    if highest >= _MOST_CLASSES:
        what = f"masks have values up to {highest:,}, too high for class indices"
        hint = f"name the values with {_MASK_VALUES}, or add {_INSTANCES} for object numbers"
        raise SourceError(OptionName("masks"), what, hint)
    names = tuple(map(str, range(highest + 1)))
    return MaskValues(names=names, how=f"class indices 0 to {highest:,}", present=present)


def _check_white(sample: Mapping[str, Seen]) -> None:
    """Raise SourceError if most masks are black and white: 255 may be an object, or no class."""
    drawn = {key: seen.values for key, seen in sample.items() if seen.values != {0}}
    others = {key: values for key, values in drawn.items() if not values <= {0, _NO_VALUE}}
    if others and 2 * len(others) < len(drawn):
        key, values = next(iter(others.items()))
        number = f"{len(drawn) - len(others):,} of {len(drawn):,}"
        what = f"has the values {some_of([*map(str, sorted(values))], 4)}"
        what += f", but {number} masks are white on black"
        flag = OptionName("mask_values", "0=background,255=object")
        hint = f"give {flag} to reject such masks"
        raise SourceError(key, what, f"{hint}, or name each value if 255 is not a class")


def look(mask: Member, max_pixels: int) -> Seen | None:
    """Return the values of a mask, or of the first mask of a stack; None if it is damaged."""
    extent = mask.extent.members[0].extent if isinstance(mask.extent, StackExtent) else mask.extent
    try:
        pixels, is_lossy, _ = decode_mask(extent.read(), max_pixels)
    except (MemberError, MaskError, MemoryError):
        return None
    if pixels.ndim == 3:
        rows = pixels.reshape(-1, 3)
        codes = _codes(rows[:: max(1, len(rows) // _PIXELS_FIRST)])
        if len(codes) <= _MOST_VALUES:
            codes = _codes(rows)
        colours = ((code >> 16, code >> 8 & 255, code & 255) for code in codes.tolist())
        some = frozenset(itertools.islice(colours, _MOST_VALUES + 1))
        return Seen(frozenset(), some, is_lossy=is_lossy, num_pixels=len(rows))
    counts = value_counts(pixels)
    is_blurred = is_lossy and int(counts[_DARK:_LIGHT].sum()) <= _BLURRED * pixels.size
    return Seen(
        frozenset(np.flatnonzero(counts).tolist()),
        is_blurred=is_blurred,
        is_lossy=is_lossy,
        has_levels=is_blurred and _has_dark_levels(pixels),
    )


def _has_dark_levels(pixels: Any) -> bool:
    """Return whether dark areas of a JPEG have several values, as those of class indices.

    Blur changes blocks of 8x8 pixels at edges, so an area has blocks of a single value. A value
    counts if two hundredths of all blocks have it: more than blur that was encoded twice.
    """
    height, width = (side // 8 for side in pixels.shape)
    blocks = pixels[: height * 8, : width * 8].reshape(height, 8, width, 8)
    lowest = blocks.min(axis=(1, 3))
    is_level = (lowest == blocks.max(axis=(1, 3))) & (lowest < _DARK)
    counts = np.bincount(lowest[is_level], minlength=_DARK)
    return int(np.count_nonzero(counts > _LEVEL * lowest.size)) > 1


def _codes(colours: Any) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return the distinct colours in uint8[n, 3], each as red << 16 | green << 8 | blue."""
    codes = colours.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    # Without counts, NumPy would import its masked arrays, which is slow.
    return np.unique(codes, return_counts=True)[0]
