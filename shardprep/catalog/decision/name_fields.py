"""Fields of names, such as the identity in `0002_c1s1_000451.jpg`, as patterns of labels."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardprep.catalog.label_rules import may_be_class
from shardprep.catalog.names import are_parts
from shardprep.errors import counted

_SIGNS = re.compile(r"([^A-Za-z0-9]+)")
_DATE = re.compile(r"(19|20)\d{2}([01]\d[0-3]\d\d*)?")
_CAMERA = re.compile(r"c(am)?\d+(s\d+)?")
_OBJECT = re.compile(r"(obj(ect)?|person|class|p?id)\d+", re.IGNORECASE)
_LABEL = re.compile("label|class(id)?", re.IGNORECASE)
_MOST_AFTER = 6
"""Maximum number of parts after the label in a pattern: three fields and their separators."""
_LONGEST_WORD = 40
_MOST_FIELDS, _A_PAIR, _A_FEW, _LARGEST = 5, 2, 3, 999
_FRACTION = re.compile(r"(?<![A-Za-z\d])([A-Za-z]+)[-_]\d+\.\d")
_MARK = re.compile("(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_MOSTLY = 0.9


class NameField(NamedTuple):
    """A field of names that varies, and its possible meanings."""

    regex: str
    why: str
    targets: tuple[str, ...] = ("auto",)
    """Values of `--target` that may store the field; () if none fits, but many values recur."""
    is_certain: bool = False
    """Whether the field names an object, or is before a camera, or after a word such as "label"."""


def name_fields(stems: Sequence[str], *, has_weak: bool = False) -> list[NameField]:
    """Return the first fields that may be labels; with `has_weak`, also fields without a target.

    If names have fractions, such as `L_0.906`, only these are returned.
    If most names have no common form, only these are tried: a code at the start or the end, the
    first digits of numbers, and a part between equally many separators.
    """
    if fractions := [*_fractions(stems)]:
        return fractions[:_MOST_FIELDS]
    forms = defaultdict[tuple[str, ...], list[list[str]]](list)
    for stem in stems:
        parts = _SIGNS.split(stem.removeprefix("-"))
        forms[tuple(map(form_of, parts))].append(parts)
    form, same = max(forms.items(), key=lambda pair: len(pair[1]), default=((), []))
    if len(form) < 3 or 2 * len(same) < len(stems):
        return [*_ends(stems)] or [*_first_digits(stems)] or [*_between_signs(stems)]
    sign = "-?" if any(stem.startswith("-") for stem in stems) else ""
    columns = [Counter(column) for column in zip(*same, strict=True)]
    found = [*_fields(sign, form, columns, len(same))]
    found = [x for x in found if x.targets] + [x for x in found if has_weak and not x.targets]
    others = ["".join(parts) for own, several in forms.items() if own != form for parts in several]
    found = [_up_to_end(one, map("".join, same), others) for one in found]
    found[1:1] = _all_but_last(same, columns)
    found = found or [*_of_two_forms(forms, len(stems))]
    return [one for one in found if one.is_certain][:1] or found[:_MOST_FIELDS]


def _of_two_forms(
    forms: Mapping[tuple[str, ...], Sequence[Sequence[str]]], number: int
) -> Iterator[NameField]:
    """Yield a field that has one word in short names and another word in long names.

    In `1_ACRIMA` and `2_g_ACRIMA`, the words are `ACRIMA` and `g`. The names must have two forms.
    """
    (short, one), *others = sorted(forms.items(), key=lambda pair: len(pair[0]))
    if len(others) == 1 and others[0][0][: len(short)] == short:
        for at, form in enumerate(short[:_MOST_AFTER]):
            words = {parts[at] for parts in (*one, *others[0][1])}
            is_pair = len(words) == len({parts[at] for parts in one}) + 1 == _A_PAIR
            if form == "a" and is_pair and max(map(len, words)) <= _LONGEST_WORD:
                before = "".join(map(_pattern, short[:at], map(set, zip(*one, strict=True))))
                label = f"(^|/){before}(?P<label>{'|'.join(sorted(words))})"
                why = f"{min(words)} or {max(words)} in {counted(number, 'name')}"
                yield NameField(label, why)
                return


def _fractions(stems: Sequence[str]) -> Iterator[NameField]:
    """Yield the fractions after a word that each name has once: `0.906` in `a_L_0.906_I_0.3`."""
    for word in dict.fromkeys(_FRACTION.findall(stems[0]) if stems else ()):
        pattern = rf"(?<![A-Za-z\d]){word}[-_](?P<label>\d+\.\d+)"
        found = [re.findall(pattern, f"/{one}") for one in stems]
        values = {value for several in found for value in several}
        if {*map(len, found)} == {1} and len(values) >= _A_FEW:
            why = f"{len(values):,} fractions such as {min(values)} after {word!r}"
            yield NameField(pattern, why, ("regression",))


def marked_numbers(stems: Sequence[str]) -> Iterator[NameField]:
    """Yield the numbers next to a letter in each name, such as ages or angles: `1_-15H`."""
    sign = "(?:(?<=[_/])-)?" if any(re.search(r"(^|_)-\d", stem) for stem in stems) else ""
    number = rf"(?P<label>{sign}\d+)"
    for mark in dict.fromkeys(_MARK.findall(stems[0]) if stems else ()):
        for pattern in (mark + number, f"{number}{mark}(?![A-Za-z])"):
            found = [[int(one["label"]) for one in re.finditer(pattern, f"/{x}")] for x in stems]
            values = {one for several in found for one in several}
            if {*map(len, found)} == {1} and len(values) >= _A_FEW and max(values) <= _LARGEST:
                why = f"{len(values):,} numbers such as {min(values)}, marked by {mark!r}"
                yield NameField(f"{pattern}[^/]*$", why, ("regression",))


def _up_to_end(one: NameField, names: Iterable[str], others: Sequence[str]) -> NameField:
    """Return the field, with the end of names in its pattern if it also fits starts of `others`."""
    whole = re.compile(f"{one.regex}$")
    is_start = any(re.search(one.regex, name) and not whole.search(name) for name in others)
    is_start &= all("." not in name and whole.search(name) for name in names)
    return one._replace(regex=rf"{one.regex}\.[^./]+$") if is_start else one


def _ends(stems: Sequence[str]) -> Iterator[NameField]:
    """Yield codes at the end or start of names without a common form: `5L` in `4a7c-91_5L`."""
    parts = [_SIGNS.split(stem) for stem in stems]
    for at, pattern in ((-1, r"[-_. ](?P<label>{})\.[^./]+$"), (0, "(^|/)(?P<label>{})[-_. ]")):
        counts = Counter(one[at] for one in parts)
        forms = {*map(form_of, counts)}
        is_code = {*"".join(forms)} == {*"0a"} and len(forms) == 1 < min(map(len, parts))
        if is_code and 1 < len(counts) <= len(stems) / 3 and not any(map(_is_no_label, counts)):
            label = pattern.format(_pattern(forms.pop(), {*counts}))
            why = f"{len(counts):,} values such as {min(counts)} in {counted(len(stems), 'name')}"
            yield NameField(label, why)


def _all_but_last(
    names: Sequence[Sequence[str]], columns: Sequence[Counter[str]]
) -> Iterator[NameField]:
    """Yield the fields before the last as one, if several vary: `3001 Brick 2x4` before `000L`."""
    heads = Counter("".join(parts[:-2]) for parts in names)
    num_varying = sum(len(values) > 1 for values in columns[:-2:2])
    if num_varying > 1 and 1 < len(heads) <= len(names) / 2 and len(columns[-2]) == 1:
        last = _pattern(form_of(names[0][-1]), {*columns[-1]})
        label = rf"(^|/)(?P<label>[^/]+){re.escape(min(columns[-2]))}{last}\.[^./]+$"
        why = f"{len(heads):,} values such as {min(heads)} in {counted(len(names), 'name')}"
        yield NameField(label, why)


def _between_signs(stems: Sequence[str]) -> Iterator[NameField]:
    """Yield the parts of names that all have a separator equally often; parts may be any text."""
    for sign in "_-":
        names = [stem.split(sign) for stem in stems]
        if {*map(len, names)} == {len(names[0])} and len(names[0]) > _A_FEW:
            columns = [Counter(column) for column in zip(*names, strict=True)]
            for at, values in enumerate(columns[:_MOST_FIELDS]):
                has_words = any(map(str.isalpha, "".join(values)))
                if has_words and 1 < len(values) <= len(stems) / 2:
                    before = rf"([^{sign}/]+{sign}){{{at}}}" if at else ""
                    why = f"{len(values):,} values such as {min(values)}"
                    label = rf"(^|/){before}(?P<label>[^{sign}/]+){sign}"
                    yield NameField(label, f"{why} in {counted(len(stems), 'name')}")


def _first_digits(stems: Sequence[str]) -> Iterator[NameField]:
    """Yield the first digits of numbers such as 0007001, if the other digits count from 0 or 1."""
    lengths = {*map(len, stems)}
    if len(lengths) != 1 or not all(one.isascii() and one.isdecimal() for one in stems):
        return
    (length,) = lengths
    for cut in range(length - 1, 0, -1):
        rests = defaultdict[str, set[int]](set)
        for stem in stems:
            rests[stem[:cut]].add(int(stem[cut:]))
        ((rest, num_alike),) = Counter(map(frozenset, rests.values())).most_common(1)
        are_counted = {*rest} in ({*range(len(rest))}, {*range(1, len(rest) + 1)})
        is_part = 1 < len(rest) < min(len(rests), 10 ** (length - cut) - 1)
        if are_counted and is_part and num_alike >= max(2, _MOSTLY * len(rests)):
            columns = enumerate(zip(*rests, strict=True))
            number = 1 + max(at for at, digits in columns if len({*digits}) > 1)
            label = rf"(^|/)(?P<label>\d{{{number}}})\d{{{length - number}}}\.[^./]+$"
            why = f"{len(rests):,} numbers such as {min(rests)[:number]}, {len(rest)} names each"
            yield NameField(label, why)
            return


def _fields(
    sign: str, form: Sequence[str], columns: Sequence[Counter[str]], number: int
) -> Iterator[NameField]:
    pieces = [*map(_pattern, form, map(set, columns))]
    is_alone = sum(len(values) > 1 for values in columns[::2]) == 1
    for i, values in enumerate(columns):
        if i % 2 or len(values) < 2 or are_parts(values) or any(map(_is_no_label, values)):
            continue
        before, after = "".join(pieces[:i]), "".join(pieces[i + 1 : i + 1 + _MOST_AFTER])
        label = f"{before}(?P<label>{pieces[i]})" if i else f"(?P<label>{sign}{pieces[i]})"
        with_digits = [j for j in range(i + 2, len(form), 2) if "0" in form[j]]
        num_digits = sum(form[j] == "0" and {*map(len, columns[j])} == {1} for j in with_digits)
        fits = {
            "regression": form[i] == "0" and {1} < {*map(len, values)} and num_digits > 1,
            "auto": len(values) * (2 if form[i] == "a" else 3) <= number,
            "text": i > 0 and form[i] == "a" and bool(with_digits),
        }
        targets = tuple(target for target, is_fit in fits.items() if is_fit)
        regex = f"(^|/){sign if i else ''}{label}{after}"
        if targets or 3 * sum(n > 1 for n in values.values()) >= len(values):
            is_certain = (
                all(map(_OBJECT.fullmatch, values))
                or (i == 0 and form[i] == "0" and all(map(_CAMERA.fullmatch, columns[2])))
                or (i > 0 and all(map(_LABEL.fullmatch, columns[i - 2])))
                or (is_alone and i > 0 and {*columns[i - 2]} == {"person"})
            )
            why = f"{len(values):,} values such as {min(values)} in {counted(number, 'name')}"
            yield NameField(regex, why, targets, is_certain)
        if form[i] in ("a0", "0a"):  # AN in AN1, AN2, or Full in 15Full, 16Full
            words = {value.strip("0123456789") for value in values}
            letters = "(?P<label>[A-Za-z]+)"
            own = rf"{letters}\d+" if form[i] == "a0" else rf"\d+{letters}"
            if 1 < len(words) <= number / 2 and 2 * len(words) <= len(values):
                rule = regex.replace(f"(?P<label>{pieces[i]})", own)
                yield NameField(rule, f"{len(words):,} letters such as {min(words)}")


def _is_no_label(value: str) -> bool:
    return bool(_DATE.fullmatch(value)) or (value.isalpha() and not may_be_class(value))


def form_of(part: str) -> str:
    """Return a text with each number replaced by 0 and each word by a; separators stay."""
    return re.sub(r"\d+", "0", re.sub("[A-Za-z]+", "a", part))


def _pattern(form: str, values: set[str]) -> str:
    texts = {re.sub(r"\d+", "0", one) for one in values}
    if len(texts) == 1:
        return re.escape(texts.pop()).replace("0", r"\d+")
    return form.replace("a", "[A-Za-z]+").replace("0", r"\d+")
