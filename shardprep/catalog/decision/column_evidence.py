"""Find columns of a table that may be labels, and the options that store them."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardprep.catalog.decision.box_documents import numbered_boxes
from shardprep.catalog.decision.split_evidence import title_of_splits
from shardprep.catalog.decision.view import Options
from shardprep.catalog.labels import (
    LABEL_COLUMNS,
    NO_LABEL_COLUMNS,
    are_classes,
    flag_columns,
    have_several,
    plain_title,
)
from shardprep.catalog.names import document_split, words_of
from shardprep.catalog.tables.key_index import SUBMISSION, KeyIndex
from shardprep.catalog.tables.long_rows import OF_TEXTS
from shardprep.catalog.tables.row_matching import TableMatch, match_ids
from shardprep.catalog.tables.table import Table
from shardprep.catalog.target_proposals import counts_rows, is_id, target_proposals
from shardprep.catalog.target_values import as_number
from shardprep.errors import RecipeError, SourceError, counted
from shardprep.recipe.rules import parse_label_rule
from shardprep.source.string_column import Texts

SHARED, CERTAIN, STRONG, LIKELY, WEAK = 5, 4, 3, 2, 1
"""Strength of label columns, in order: columns of a sample submission; the only column or a usual
title; a word in the title, or flags; cells like classes; cells like ids, measures or texts."""
_LABELS = frozenset((
    "label", "labels", "class", "classes", "category", "categories", "target", "targets", "genre",
    "genres", "tag", "tags", "diagnosis", "diagnostic", "disease", "diseases", "species", "breed",
    "finding", "findings", "attribute", "attributes", "emotion", "grade", "mos", "rating", "risk",
    "score", "sentiment", "severity",
))  # fmt: skip
_SETS = frozenset(("tags", "labels", "classes", "genres", "findings", "attributes", "categories"))
_ABOUT = frozenset((
    "id", "ids", "uid", "uuid", "patient", "subject", "study", "series", "site", "hospital", "age",
    "sex", "gender", "date", "time", "timestamp", "year", "month", "day", "device", "machine",
    "camera", "view", "projection", "position", "laterality", "side", "width", "height", "size",
    "bytes", "md5", "sha", "sha1", "sha256", "hash", "checksum", "url", "link", "path", "file",
    "filename", "lat", "lon", "latitude", "longitude", "altitude", "index", "idx", "row", "number",
    "source", "license", "author", "credit", "fold", "split", "x", "y", "w", "h", "xmin", "ymin",
    "xmax", "ymax", "eye", "area", "spacing", "region", "country", "state", "location", "mask",
    "image", "key", "imgid", "imageid", "sentid", "sentids", "z",
))  # fmt: skip
_OF_SEARCHES = frozenset(("sim", "similarity", "confidence", "conf", "retrieval"))
"""Words in titles of numbers that say how an image was found, such as `sim_score`."""
_IDENTITY = re.compile(
    "(individual|identity|landmark|product|hotel|vehicle|whale|celebrity)([ _]?(id|name))?",
    re.IGNORECASE,
)
"""Matches titles of columns with the identity to recognise, such as `individual_id`."""
_VALUES = frozenset(("price", "prices", "cost"))
"""Words in titles of numbers that are usually the target, unlike lengths or sizes."""
_OF_OBJECTS = re.compile(r"image/object/|objects?\.")
"""Matches the start of the title of an object column in TFRecords and Parquet."""
_BOXES = re.compile(r"(\S*[^\d\s.]\S*( -?[\d.]+){4,5} ?){1,9999}")
"""Matches a cell of boxes: a label and four or five numbers for each box."""
_CORNERS = re.compile(r"(?:(?:^|; ?)-?[\d.]+(?: -?[\d.]+){3})+")
"""Matches a cell of boxes of four numbers each: `9 20 22 34;30 8 41 19`."""
_CAPTIONS = re.compile(r'\["[^"]* [^"]* ')
"""Matches the start of a cell with a JSON list of texts."""
_WORD = re.compile(r"(?<![a-z])(words?|text|line|plate)[-_ ]*\d+\.", re.IGNORECASE)
"""Matches the name of an image that shows a word or a line of text."""
_OF_SETS = re.compile(r"(^|/)_classes\.csv$")
"""Matches the name of Roboflow's table of several classes for an image."""
_SEPARATORS = ("|", ";", ",", " ")
_MANY_VALUES, _MANY_ROWS, _FEW = 20, 20, 5
_SAMPLE, _MANY_COLUMNS, _MANY_IMAGES = 100, 7, 1_000
_LONG, _SENTENCE, _MOSTLY, _NEARLY = 16, 48, 0.5, 0.9
_LEAST_ALONE = 10
"""Minimum number of images to read labels that are nearly all different as texts."""


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """Columns that may label the images, and the options that may store them."""

    match: TableMatch
    titles: tuple[str, ...]
    strength: int
    options: tuple[Options, ...]
    why: str


def label_each(index: KeyIndex, tables: Sequence[Table]) -> bool:
    """Return whether a table labels every image, each in a row of its own."""
    for table in tables[:_FEW]:
        with contextlib.suppress(SourceError):
            match = match_ids(index, table)
            if (match.row_of >= 0).all() and len(np.unique(match.row_of)) == len(match.row_of):
                return any(one.strength > LIKELY for one in found_columns(match, index, tables))
    return False


def found_columns(
    match: TableMatch, index: KeyIndex, tables: Sequence[Table], titles: Sequence[str] = ()
) -> list[LabelColumns]:
    """Return candidates for labels among `titles`, or all columns: single columns and groups."""
    table = match.table
    titles = [one for one in titles or table.header if not is_id(match, one) and ":" not in one]
    titles = [one for one in titles if one and "," not in one and not _OF_OBJECTS.match(one)]
    titles = [one for one in titles if not table.has_twins(one)]
    cells = {one: table.cells(table.column(one)) for one in titles}
    files = [one for one in titles if _are_files(index, one, cells[one][:_SAMPLE])]
    titles = [one for one in titles if one not in files and not counts_rows(match, one)]
    shown = {
        title: set(other.cells(i).coded().values)
        for other in tables
        if SUBMISSION.search(other.name)
        for i, title in enumerate(other.header)
        if title in titles and (i or len(cells[title].coded().values) < len(table.rows))
    }
    last = {one: one.lower().rpartition(".")[2] for one in titles}  # a title may be a JSON path
    lost = {*filter(lambda one: last[one] in NO_LABEL_COLUMNS, titles), title_of_splits(table)}
    titles = [one for one in titles if one in shown or one not in lost]
    found = list(_groups(match, index, tables, titles, shown))
    if match.id_column == table.header[0] and (several := numbered_boxes(table)):
        options: list[Options] = [{"boxes": rule} for rule in several]
        options += [{"labels": table.label_rule("1", ("2",))}] if len(several) > 1 else []
        return [LabelColumns(match, (), SHARED, tuple(options), "numbers of boxes in 4 columns")]
    together = {title for one in found if one.strength > LIKELY for title in one.titles}
    has_flags = any(one.strength == STRONG and len(one.titles) > 1 for one in found)
    together = set() if len(shown) == 1 else together
    together |= {str(one.options[0].get("pivot")) for one in found if one.options}
    usual = _usual_titles(table, titles)
    for title in titles:
        counts = {name: n for name, n in cells[title].coded().counts().items() if name}
        if len(counts) < 2 or title in together or _are_row_numbers(title, counts):
            continue
        kinds, is_likely = _kinds(match, title, counts, shown.get(title, set()))
        words = {*words_of(title)}
        is_likely |= not _VALUES.isdisjoint(words) and "target" in kinds[0]
        strength = LIKELY if is_likely and not is_about(title) else WEAK
        if has_flags and not is_about(title) and has_words(match, title, 3):
            strength = STRONG
        is_text = words & OF_TEXTS and "target" in kinds[0] and not is_about(title)
        if (words & _LABELS and not words & _OF_SEARCHES) or is_text or "boxes" in kinds[0]:
            strength = STRONG
        is_open = kinds == [{}] and None in map(as_number, counts) and title not in usual
        is_open &= len(titles) == 1 or not are_classes(len(counts), sum(counts.values()))
        if table.name.endswith(".txt") and is_open:
            are_words = _WORD.search(index.keys[0]) is not None
            kinds = [*([] if are_words else kinds), {"target": "text"}]  # or as often as classes
        if kinds == [{}] and _has_others_in_test(table, cells[title]):
            kinds = [{"target": "text"}, {}]
        is_alone = len(titles) == 1 and not (table.is_own and is_about(title))
        is_other = title in usual[1:] and not _are_alike(cells[title], cells[usual[0]])
        is_identity = _IDENTITY.fullmatch(title) and len(counts) < sum(counts.values())
        if title in usual[:1] or is_other or is_alone or is_identity:
            strength = CERTAIN
        if [*shown] == [title] and title.lower() != "id":
            strength = SHARED
        found.append(_columns(match, (title,), strength, kinds))
    found = [*_numbers_together(match, found), *(one for one in found if one.options)]
    found = _named(match, found)
    return [*found, *_classes_together(match, found)]


def _usual_titles(table: Table, titles: Sequence[str]) -> list[str]:
    """Return the usual titles of labels, the most usual first.

    `y` has the labels in arrays, but in tables only if it numbers the ids of classes.
    """
    usual = [one for name in LABEL_COLUMNS for one in titles if plain_title(one) == name]
    single = [one for one in titles if one.lower() in ("x", "y")]
    if len(single) != 1 or single[0].lower() == "x":
        return usual
    cells = [table.cells(table.column(one)) for one in (*single, *usual[:1])]
    if usual and usual[0].lower().endswith("id") and _are_alike(*cells):
        return [*single, *usual]
    return [*usual, *single] if table.is_own else usual


def _classes_together(match: TableMatch, found: Sequence[LabelColumns]) -> Iterator[LabelColumns]:
    """Yield several strong columns of one class each as several classes of an image."""
    single = [one for one in found if one.strength == STRONG and len(one.titles) == 1]
    titles = tuple(one.titles[0] for one in single if one.options[0].keys() == {"labels"})
    if len(titles) > 1:
        yield _columns(match, titles, STRONG, [{"target": "classes"}])


def _numbers_together(match: TableMatch, found: Sequence[LabelColumns]) -> Iterator[LabelColumns]:
    """Yield several strong columns of numbers as a vector, and many weak ones also as points."""
    strong = [one for one in found if one.strength == STRONG and len(one.titles) == 1]
    titles = [
        x.titles[0] for x in strong if x.options and x.options[0].get("target") == "regression"
    ]
    if len(titles) > 1:
        yield _columns(match, tuple(titles), STRONG, [{"target": "vector"}])
    plain = [one.titles[0] for one in found if len(one.titles) == 1 and one.strength < STRONG]
    cells = {one: match.table.cells(match.table.column(one))[:_SAMPLE] for one in plain}
    plain = [one for one in plain if None not in map(as_number, cells[one])]
    if len(plain) > _MANY_COLUMNS:
        several = _columns(match, tuple(plain), STRONG, [{"target": "vector"}])
        points = f"csv:{match.table.files}:{match.id_column}:{','.join(plain)}"
        pairs: list[Options] = [] if len(plain) % 2 else [{"labels": "auto", "points": points}]
        yield replace(several, options=(*pairs, *several.options))


def _are_files(index: KeyIndex, title: str, cells: Texts) -> bool:
    """Return True if most cells name images or are URLs; plain numbers may be classes instead."""
    if not is_about(title) and all(map(str.isdecimal, cells)):
        return False
    if 2 * sum(cell.startswith(("http://", "https://")) for cell in cells) > len(cells):
        return True
    known = cells.coded().values
    are_different = 2 * len(known) > len(cells) or any("." in one for one in known)
    return are_different and 2 * index.num_found(cells) > len(cells)


def _are_row_numbers(title: str, counts: Mapping[str, int]) -> bool:
    """Return True if a column without a title counts the rows from 0 or 1."""
    first = int("0" not in counts)
    own = {*map(str, range(first, first + len(counts)))}
    is_once = sum(counts.values()) == len(counts) > _FEW
    return title.isdecimal() and is_once and counts.keys() == own


def _are_alike(cells: Texts, others: Texts) -> bool:
    pairs = {*zip(cells, others, strict=True)}
    return len(pairs) == len({*cells}) == len({*others})


def _has_others_in_test(table: Table, cells: Texts) -> bool:
    """Return whether most texts in rows of the test split occur in no other row."""
    is_test = table.parts_of_rows().fit(lambda name: document_split(name) == "test")
    if is_test.all() or not is_test.any():
        return False
    parts = (cells.where(fits).coded().values for fits in (is_test, ~is_test))
    test, others = ({*values} - {""} for values in parts)
    is_text = any(as_number(one) is None for one in test)
    return bool(others) and is_text and 2 * len(test - others) > len(test)


def _columns(
    match: TableMatch, titles: tuple[str, ...], strength: int, kinds: Sequence[Options]
) -> LabelColumns:
    rule = match.table.label_rule(match.id_column, titles)
    number = int((match.row_of >= 0).sum())
    columns = f"column {titles[0]!r}" if len(titles) == 1 else f"{len(titles)} columns"
    why = f"{columns} for {number:,} of {counted(len(match.row_of), 'image')}"
    try:
        is_meant = parse_label_rule(rule).table.label_columns == titles
    except RecipeError:
        is_meant = False
    options = tuple({"labels": rule, **one} for one in kinds) if is_meant else ()
    return LabelColumns(match, titles, strength, options, why)


def _groups(
    match: TableMatch,
    index: KeyIndex,
    tables: Sequence[Table],
    titles: Sequence[str],
    shown: Mapping[str, set[str]],
) -> Iterator[LabelColumns]:
    """Yield groups of columns that form one target, such as flags or columns of a submission."""
    flags = tuple(one for one in flag_columns(match) if one in titles)
    if len(flags) > 1:
        is_all = len(flags) == len([one for one in titles if not is_about(one)])
        rest = [one for one in titles if one not in flags and not _LABELS.isdisjoint(words_of(one))]
        texts = {x for one in rest for x in match.table.cells(match.table.column(one))[:_SAMPLE]}
        rest = [] if len(texts) < 2 or any(x in text for x in flags for text in texts) else rest
        strength = STRONG if is_all or (len(flags) > 2 and not rest) else LIKELY
        strength = SHARED if {*flags} == {*shown} else strength
        yield _columns(match, flags, strength, _flag_kinds(match, flags, tables))
        several = [_without_summaries(match, flags), _of_images(match, flags, index)]
        for apart in filter(None, several if strength != SHARED else ()):
            yield _columns(match, apart, strength, _flag_kinds(match, apart, tables))
    for rule in target_proposals(match, tables, titles):
        columns = rule.label_columns
        if columns == flags or (len(columns) == 1 and not rule.pivot):
            continue
        strength = SHARED if {*columns} == {*shown} else STRONG if rule.pivot else WEAK
        own = {"pivot": rule.pivot, "target": rule.target.replace("auto", "")}
        kind = {key: value for key, value in own.items() if value}
        yield _columns(match, columns, strength, [kind])


def _are_set(match: TableMatch, flags: Sequence[str]) -> NDArray[np.bool_]:
    """Return which flags are above 0, bool[flags, images in the table]."""
    of_table = match.row_of >= 0
    columns = [match.cells(one) for one in flags]
    are_set = ([*((as_number(x) or 0) > 0 for x in one.values), False] for one in columns)
    pairs = zip(are_set, columns, strict=True)
    return np.array([np.array(own)[one.codes[of_table]] for own, one in pairs])


def _without_summaries(match: TableMatch, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags without a summary (set if any other flag is set) and its negation; or ()."""
    rows = _are_set(match, flags)
    some = rows[:, :_MANY_IMAGES]  # rejects most: each flag must imply the summary or negate it
    for row, own in zip(rows, some, strict=True):
        if not (~(some & ~own).any(axis=1) | (some != own).all(axis=1)).all():
            continue
        rest = (rows != row).any(axis=1) & (rows == row).any(axis=1)
        if (rows[rest].any(axis=0) == row).all() and rest.sum() >= _FEW and not row.all():
            return tuple(one for one, is_kept in zip(flags, rest.tolist(), strict=True) if is_kept)
    return ()


def _of_images(match: TableMatch, flags: tuple[str, ...], index: KeyIndex) -> tuple[str, ...]:
    """Return the flags that vary within folders, if the other flags vary only between folders."""
    folders = index.keys.folders.codes[match.row_of >= 0]
    order = np.argsort(folders, kind="stable")
    rows, is_next = _are_set(match, flags)[:, order], np.diff(folders[order]) == 0
    differ = rows[:, 1:] != rows[:, :-1]
    within = (differ & is_next).any(axis=1)
    is_fit = 2 * is_next.sum() >= len(order) and differ[~within].any()
    return tuple(itertools.compress(flags, within)) if is_fit and not within.all() else ()


def has_words(match: TableMatch, title: str, least: int = 2) -> bool:
    """Return True if a column has `least` or more words, each in several rows, and no number."""
    counts = match.table.cells(match.table.column(title)).coded().counts()
    are_words = all(one and as_number(one) is None for one in counts)
    return are_words and len(counts) >= least and are_classes(len(counts), sum(counts.values()))


def _flag_kinds(match: TableMatch, flags: Sequence[str], tables: Sequence[Table]) -> list[Options]:
    """Return the options for columns of 1 and 0: several classes per image, or one class each."""
    sums = _are_set(match, flags).sum(axis=0)
    if (sums != 1).any() or _OF_SETS.search(match.table.files):
        return [{}]
    for other in tables:
        if SUBMISSION.search(other.name) and {*flags} <= {*other.header} and len(other.rows):
            row = dict(zip(other.header, other.rows[0], strict=True))
            total = sum(as_number(row[one]) or 0 for one in flags)
            return [{"target": "class"}] if abs(total - 1) < 1e-2 else [{}]
    number = len(sums) * (2 if len(flags) > _FEW else 1)  # many flags: a second 1 is more likely
    return [{"target": "class"}] if number > _MANY_ROWS else [{}, {"target": "class"}]


def _kinds(
    match: TableMatch, title: str, counts: Mapping[str, int], shown: set[str]
) -> tuple[list[Options], bool]:
    """Return the options that may store a column, and whether its cells look like labels."""
    is_set = have_several(match.key_of, match.table.cells(match.table.column(title)).coded())
    numbers = [one for cell in counts if (one := as_number(cell)) is not None]
    if len(numbers) == len(counts) and not is_set:
        return _number_kinds(title, numbers, sum(counts.values()), shown)
    if all(map(_CAPTIONS.match, counts)):
        return [{"target": "texts"}], True
    if len(numbers) < len(counts) and not is_set and (boxes := _boxes(match, title, counts)):
        return [{"labels": "auto", **boxes}], True
    return _text_kinds(title, counts, is_set=is_set)


def _boxes(match: TableMatch, title: str, counts: Mapping[str, int]) -> Options:
    """Return the options for cells of boxes, or {}. One other value may mean an empty list."""
    rule = f"csv:{match.table.files}:{match.id_column}:{title}"
    if all(map(_BOXES.fullmatch, counts)):
        return {"boxes": rule}
    boxes = [cell for cell in counts if _CORNERS.fullmatch(cell)]
    others = counts.keys() - {*boxes}
    numbers = [[*map(float, part.split())] for cell in boxes for part in cell.split(";")]
    are_corners = all(left < right and top < bottom for left, top, right, bottom in numbers)
    if len(boxes) < _FEW or len(others) > 1 or len(numbers) == len(boxes) or not are_corners:
        return {}  # four numbers, once in each cell, may be a vector
    rule = rule.removesuffix(title) + f"xyxy({title})"
    return {"boxes": rule, **({"null": (*others,)} if others else {})}


def _number_kinds(
    title: str, numbers: Sequence[float], total: int, shown: set[str]
) -> tuple[list[Options], bool]:
    of_submission = [as_number(one) or 0 for one in shown]
    is_measured = any(one != int(one) for one in numbers)
    if is_measured or any(one > 1 and one != int(one) for one in of_submission):
        return [{"target": "regression"}], False
    are_sparse = max(numbers) - min(numbers) >= 2 * len(numbers)  # no numbers of classes
    are_measures = are_sparse and not are_classes(len(numbers), total)
    are_many = are_measures or len(numbers) > _MANY_VALUES
    if are_many and not (_LABELS | {"id"}).intersection(words_of(title)):
        return [{"target": "regression"}, {}], False
    return [{}], are_classes(len(numbers), total)


def _text_kinds(
    title: str, counts: Mapping[str, int], *, is_set: bool
) -> tuple[list[Options], bool]:
    total, number = sum(counts.values()), len(counts)
    is_text = not OF_TEXTS.isdisjoint(words_of(title))
    is_class = not _LABELS.isdisjoint(words_of(title))  # as in image/class/text
    texts: Options = {"target": "texts" if is_set else "text"}
    length = sum(map(len, counts)) / number
    num_sentences = sum(cell.endswith(".") and " " in cell for cell in counts)
    are_sentences = length > _SENTENCE and 2 * num_sentences > number
    has_sets = not (is_set or are_sentences or _SETS.isdisjoint(words_of(title)))
    if has_sets and _have_words(counts):
        return [{"separator": " "}, texts if number >= _NEARLY * total else {}], True
    separator = _separator(counts)
    is_list = separator in ("|", ";") and not is_set  # no text has them between recurring parts
    are_many = number >= _NEARLY * total and length > _LONG and not is_list
    if (is_text and 2 * number > total) or are_many or (are_sentences and not is_set):
        return [texts], is_text
    if is_set:  # also if a row is wrong
        kinds = [texts] if is_text else [{"target": "multilabel"}, texts]
        return kinds, are_classes(number, total)
    if separator:
        return [{"separator": separator}], True
    are_long = length > _SENTENCE and 2 * number >= total
    num_once = sum(one == 1 for one in counts.values())
    is_rare = total > _FEW and 2 * num_once > number and 3 * number > total
    are_alone = number >= _NEARLY * total and total >= _LEAST_ALONE
    if are_long or (is_rare and (are_alone or not is_class)):
        are_phrases = number >= _NEARLY * total and 2 * sum(" " in x for x in counts) > number
        return [texts] if are_phrases else [texts, {}], True
    return [{}, texts] if is_text and not is_class else [{}], are_classes(number, total)


def _have_words(cells: Mapping[str, int]) -> bool:
    """Return whether cells are sets of recurring words, without a word twice in a cell."""
    several = [cell.split() for cell in cells]
    number = len({word for words in several for word in words})
    are_sets = all(len({*words}) == len(words) for words in several)
    return are_sets and max(map(len, several)) > 2 and sum(map(len, several)) >= 2 * number


def _separator(cells: Mapping[str, int]) -> str:
    """Return the separator of classes in cells, which must recur in other cells; or ""."""
    for separator in _SEPARATORS:
        parts = [[part.strip() for part in cell.split(separator) if part.strip()] for cell in cells]
        several = {part for one in parts if len(one) > 1 for part in one}
        alone = {one[0] for one in parts if len(one) == 1}
        if several and len(several & alone) >= _MOSTLY * len(several):
            return separator
        if several and separator != " " and len(cells) > 2 * len(several | alone):
            return separator
    return ""


def _named(match: TableMatch, found: Sequence[LabelColumns]) -> list[LabelColumns]:
    """Return the columns, except class numbers if another column has a name for each number."""
    single = {one.titles[0]: one for one in found if len(one.titles) == 1}
    cells = {title: match.cells(title) for title in single}
    known = {title: own.counts() for title, own in cells.items()}
    texts = {title for title, own in known.items() if any(as_number(one) is None for one in own)}
    lost = dict[str, str]()
    for title, own in cells.items():
        is_submitted = single[title].strength == SHARED  # by its own name, a number
        if is_submitted or not all(as_number(one) is not None for one in known[title] if one):
            continue
        for other in (one for one in cells if one in texts and one not in {title, *lost}):
            names, num_values = cells[other], len(known[other])
            is_title = not {*_LABELS, "name"}.isdisjoint(words_of(other))
            are_many = _FEW <= 2 * num_values <= len(names) and not is_about(other)
            pairs = {*zip(own, names, strict=True)} if is_title or are_many else ()
            if pairs and len(pairs) == len(known[title]) == num_values:
                lost[title] = other
    for number, name in lost.items():
        strength = max(single[number].strength, single[name].strength)
        single[name] = replace(single[name], strength=strength)
    several = [one for one in found if len(one.titles) > 1]
    return [*several, *(one for title, one in single.items() if title not in lost)]


def may_be_target(one: LabelColumns) -> bool:
    """Return whether columns may be a target of numbers or texts, though not of classes."""
    words = {word for title in one.titles for word in words_of(title)}
    is_about_images = not (_ABOUT - {"age"}).isdisjoint(words)
    return one.strength == WEAK and "target" in one.options[0] and not is_about_images


def is_about(title: str) -> bool:
    """Return whether the title of a column means metadata, such as an id, a size or a place.

    "image" with another word does not: `image_human` is about the content.
    """
    words = {*words_of(title)}
    return not _ABOUT.isdisjoint(words - {"image"} or words)
