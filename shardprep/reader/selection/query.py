"""Queries of the item table: `reader.select`, `reader.table`, weights of classes and records."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from shardprep.dataset.card import from_cell
from shardprep.dataset.item_table import LABEL_NAME, LABEL_NAMES
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.dataset.schema import BOX_LABEL, LABEL, LABELS, MASK, Schema
from shardprep.errors import DatasetError, counted, printable, shown, use_one_of
from shardprep.reader.array_types import Floats, Ints
from shardprep.reader.config import warn
from shardprep.reader.order.epoch import WeightedDraws
from shardprep.reader.selection.condition import MAX_SHOWN, WHERE, Condition, refused
from shardprep.reader.selection.selection import Selection, sorted_unique
from shardprep.reader.selection.split_argument import AnySplit, numbers_of
from shardprep.reader.validators import (
    Count,
    Kind,
    Location,
    short_repr,
    text,
    validated,
    validated_fields,
)
from shardprep.storage.regular_file import read_named
from shardprep.storage.text_file import INDEX, CsvRows, decoded, text_lines

OBJECT_CLASSES = "object_labels"
"""Column with the list of the classes of all objects of a record."""
_COLUMN_OF = {LABEL: "label", LABELS: "labels", BOX_LABEL: OBJECT_CLASSES}
"""Feature with classes → its column in the item table."""
_PIXELS = "mask_pixels"
"""Column with the number of pixels of each value of a class mask."""
_MAX_NAMES = 10
"""Maximum number of class names in an error."""
_TARGETS = ("label", "labels", "target", "text")
_PLACES = ("status", "kind", "reason", "shard", "record", "offset", "length")
"""Columns that `reader.table` does not have."""
_ROW = "row"
"""Name of the column of row numbers, added to the columns of the item table."""
_MAX_KEYS_BYTES = 1 << 30
"""Maximum size of a file of keys, in bytes."""
_TABLES = (".csv", ".tsv")


class ClassColumn(NamedTuple):
    """The column of the item table with the classes of records, and the names of the classes."""

    name: str
    labels: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema) -> Self | None:
        """Return the column of the images, or else of the objects; None if neither has classes."""
        feature = next((one for one in _COLUMN_OF if one in schema.features), None)
        if feature is None:
            return None
        labels = schema.features[feature].labels if feature == BOX_LABEL else schema.labels
        return cls(_COLUMN_OF[feature], tuple(labels))

    @property
    def is_list(self) -> bool:
        """Whether a record may have several classes."""
        return self.name != _COLUMN_OF[LABEL]


def class_pairs(column: pa.ChunkedArray) -> Ints:
    """Return int64[pairs, 2]: row number and class. Sorted and unique; without null and −1."""
    if pa.types.is_list(column.type):
        rows = pc.list_parent_indices(column).to_numpy().astype(np.int64)
        labels = pc.list_flatten(column).to_numpy()
    else:
        labels = column.fill_null(-1).to_numpy()
        rows = np.arange(len(labels))
    rows, labels = rows[labels >= 0], labels[labels >= 0]
    number = int(labels.max(initial=0)) + 1
    pairs = sorted_unique(rows * number + labels)
    return np.stack(np.divmod(pairs, number), axis=1)


@dataclass(frozen=True, slots=True)
class ItemRows:
    """The rows of the item table for a split's records, in the order of the shards, each once."""

    dataset: OpenDataset
    split: str
    numbers: Ints
    """int64[records], number of each record in the dataset, increasing."""
    table: pa.Table
    """The requested columns, the column `label`, and the column with the classes."""

    @property
    def labels(self) -> Ints:
        """int64[records], class of each record, or −1 if the record has no class or several."""
        labels: Ints = self.table[LABEL].fill_null(-1).to_numpy()
        return labels

    def selection(self) -> Selection:
        column = ClassColumn.of(self.dataset.schema)
        classes = class_pairs(self.table[LABEL if column is None else column.name])
        classes[:, 0] = self.numbers[classes[:, 0]]
        fingerprint = self.dataset.manifest.sha256
        return Selection(self.split, fingerprint, self.numbers, self.labels, classes)


def rows_of(dataset: OpenDataset, split: AnySplit, columns: Sequence[str] = ()) -> ItemRows:
    """Return the rows of the records of a split. DatasetError if a column does not exist."""
    numbers = sorted_unique(numbers_of(dataset.manifest, split))
    column = ClassColumn.of(dataset.schema)
    table = dataset.record_rows((LABEL, *([column.name] if column else []), *columns))
    if len(numbers) != len(table) or (np.diff(numbers) != 1).any():
        table = table.take(pa.array(numbers))
    name = split.name if isinstance(split, Selection) else str(split)
    return ItemRows(dataset, name, numbers, table)


def _several(kind: type | tuple[type, ...]) -> Callable[[Any], Any]:
    def take(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            value = [value]
        values = tuple(item.item() if hasattr(item, "item") else item for item in value)
        if not all(isinstance(item, kind) and not isinstance(item, bool) for item in values):
            raise TypeError
        return values

    return take


def _keys(value: Any) -> Any:
    if isinstance(value, (str, Path)):
        return Path(text(str(value))).expanduser()
    return _several(str)(value)


def _condition(value: Any) -> Any:
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return dict(value)
    if isinstance(value, pc.Expression | str):
        return value
    raise TypeError


Labels = Annotated[Any, Kind(_several((str, int)), ("the name of a class or a list of names",))]
Keys = Annotated[Any, Kind(_keys, ("a list of keys or the path of a file of keys",))]
Where = Annotated[
    Any, Kind(_condition, ("a text, a dict of columns and values or a pyarrow.compute.Expression",))
]


@validated(WHERE)
def select(
    path: Location,
    split: AnySplit | None = None,
    *,
    label: Labels | None = None,
    where: Where | None = None,
    keys: Keys | None = None,
) -> Selection:
    """Return the records of a split that match all conditions. Reads only the item table.

    Pass the result instead of a split: `reader.load(path, selection)`. It may be empty; reading an
    empty selection is an error.

    Args:
        path: as in `reader.load`.
        split: as in `reader.load`; "train+validation" for both splits, a Selection for some of its
            records. None: "train", with an `Advice` if the dataset has other splits.
        label: name or number of a class, or a list of these. Matches images with at least one of
            the classes. If images have no classes in this dataset, the classes of objects count.
        where: a condition on columns of `items.parquet`, such as `fold != 3 and age is not None`:
            comparisons and `in (…)`, joined by `and`, `or` and `not`. An empty cell fulfils only
            `is None`. Or a dict of conditions that must all hold: column → value, list of allowed
            values, or None for null. Or an expression of pyarrow.
        keys: a list of keys of images, or the path of a file: a .csv or .tsv with the keys in its
            first column (the second after an index of pandas), as `shardprep report --list` prints
            it, or a text file with one key per line. A file name, with or without extension,
            matches all keys with that name. Keys in other splits are ignored.

    Raises:
        DatasetError: the dataset, split, class, column, key or file does not exist, or a value has
            another type than its column.
    """
    dataset = open_dataset(path)
    if split is None:
        split = "train"
        _warn_of_other_splits(dataset.manifest)
    column = ClassColumn.of(dataset.schema)
    classes = [] if label is None else _class_numbers(str(dataset), column, label)
    names = () if column is None or column.is_list else column.labels
    condition = None if where is None else Condition.of(where, dataset.item_columns, names)
    rows = rows_of(dataset, split, condition.columns if condition else [])
    every = rows.selection()
    matches = np.ones(len(every), bool)
    conditions = []
    if label is not None and column is not None:
        matches &= np.isin(every.numbers, every.classes[np.isin(every.classes[:, 1], classes), 0])
        conditions.append(f"label={', '.join(column.labels[number] for number in classes)}")
    if condition is not None:
        matches &= _matches(rows, condition)
        conditions.append(shown(condition.text, MAX_SHOWN))
    if keys is not None:
        matches &= np.isin(every.numbers, _numbers_of_keys(dataset, keys))
        conditions.append(
            f"keys of {keys.name}" if isinstance(keys, Path) else f"{counted(len(keys), 'key')}"
        )
    name = f"{rows.split}: {'; '.join(conditions)}" if conditions else rows.split
    return every.at(matches, name)


@validated("reader.table")
def table(path: Location, split: AnySplit | None = None) -> pa.Table:
    """Return a `pyarrow.Table` with a row for each record, without reading records.

    The columns are `key`, `split`, the target, `label_name` or `label_names` (names of the classes
    of the image or its objects), facts of the original image, counts of objects, and the stored
    columns of the user's tables; empty cells are null. Rows are in the order of `reader.Dataset`
    without shuffling. `reader.table(path).to_pandas()` is a data frame.

    Args:
        path: as in `reader.load`.
        split: as in `reader.load`, or a Selection. None: the records of all splits.

    Raises:
        DatasetError: the dataset or split does not exist.
    """
    dataset = open_dataset(path)
    others = {*_TARGETS} - {dataset.schema.target}
    names = [one for one in dataset.item_columns.names if one not in (*_PLACES, *others)]
    found = dataset.record_rows(names)
    if split is not None:
        found = found.take(pa.array(numbers_of(dataset.manifest, split)))
    for place, one in enumerate(found.schema):
        if pa.types.is_dictionary(one.type):
            found = found.set_column(place, one.name, found[one.name].cast(one.type.value_type))
    column = ClassColumn.of(dataset.schema)
    if column is None:
        return found
    if column.is_list:
        cells = found[column.name].to_pylist()
        named = [one and [column.labels[label] for label in one] for one in cells]
        title, values = LABEL_NAMES, pa.array(named, pa.list_(pa.string()))
    else:
        classes = pa.array(column.labels, pa.string())
        codes = found[column.name].fill_null(-1).to_numpy()
        title, values = LABEL_NAME, classes.take(pa.array(codes, mask=codes < 0))
    return found.add_column(found.column_names.index(column.name) + 1, title, values)


def _warn_of_other_splits(manifest: Manifest) -> None:
    counts = {name: one.num_records for name, one in manifest.splits.items() if name != "train"}
    if any(counts.values()) and len(counts) < len(manifest.splits):
        others = ", ".join(f"{name} {number:,}" for name, number in counts.items())
        every = "+".join(manifest.splits)
        warn(f"{WHERE} took split='train', not {others}; give split='train' or '{every}'")


def _class_numbers(where: str, column: ClassColumn | None, label: Sequence[str | int]) -> list[int]:
    if column is None:
        hint = "select by where or keys"
        raise DatasetError(where, "its images and objects have no classes", hint)
    numbers = []
    for given in label:
        is_number = isinstance(given, int) and 0 <= given < len(column.labels)
        if given not in column.labels and not is_number:
            hint = use_one_of(given, column.labels, _MAX_NAMES)
            raise DatasetError(where, f"has no class {given!r}", hint)
        numbers.append(given if isinstance(given, int) else column.labels.index(given))
    return numbers


def _matches(rows: ItemRows, condition: Condition) -> Any:
    """Return bool[rows], true where the condition is true; null counts as false."""
    condition.check(rows.table, lambda name: rows.dataset.record_rows((name,))[name])
    numbers = pa.array(np.arange(len(rows.numbers)))
    columns = {name: rows.table[name] for name in rows.table.column_names}
    table = pa.table({**columns, _ROW: numbers})
    try:
        steps = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("filter", acero.FilterNodeOptions(condition.expression)),
            acero.Declaration("project", acero.ProjectNodeOptions([pc.field(_ROW)])),
        ]
        # Without Arrow's threads, for the reason given in `item_table.bounded_table`.
        matching = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
        reason = shown(str(error).splitlines()[0], MAX_SHOWN)
        hint = f"use the columns {', '.join(rows.dataset.item_columns.names)}"
        raise refused(condition.text, reason, hint) from None
    matches = np.zeros(len(table), bool)
    matches[matching.column(0).to_numpy()] = True
    return matches


def _numbers_of_keys(dataset: OpenDataset, keys: Path | Sequence[str]) -> Any:
    """Return the numbers of the records with these keys; DatasetError if a key is unknown."""
    wanted = _read_keys(keys) if isinstance(keys, Path) else keys
    known = dataset.record_rows(("key",))["key"].combine_chunks()
    indices = pc.index_in(pa.array(wanted, pa.string()), known)
    numbers = indices.drop_null().to_pylist()
    unknown = [key for key, index in zip(wanted, indices, strict=True) if not index.is_valid]
    if unknown:
        by_name = _by_name(known.to_pylist(), unknown)
        numbers += [number for same_name in by_name.values() for number in same_name]
        unknown = [key for key in unknown if not by_name[key]]
    if unknown:  # keys of images that were not written are valid, and match no record
        by_name = _by_name(dataset.item_rows(("key",))["key"].to_pylist(), unknown)
        unknown = [key for key in unknown if not by_name[key]]
    is_table = isinstance(keys, Path) and keys.suffix.lower() in _TABLES
    if unknown and is_table and unknown[0] == wanted[0]:
        del unknown[0]  # the header of the column
    if unknown:
        first = shown(unknown[0], MAX_SHOWN)
        what = f"{len(unknown):,} of {counted(len(wanted), 'key')} match no image ({first})"
        hint = (
            f"use keys like {shown(known[0].as_py(), MAX_SHOWN)}"
            if len(known)
            else "select by where"
        )
        raise DatasetError(str(keys) if isinstance(keys, Path) else str(dataset), what, hint)
    return np.array(numbers, np.int64)


def _by_name(keys: Sequence[str], texts: Sequence[str]) -> dict[str, list[int]]:
    """Return text → indices of the `keys` that the text matches.

    A text is a key, a printed key with escapes, or the name of a file with or without extension.
    """
    matches: dict[str, list[int]] = {text: [] for text in texts}
    has_escapes = any("\\" in text for text in texts)
    for number, key in enumerate(keys):
        name = key.rpartition("/")[2]
        stem = name.rpartition(".")[0] or name
        for form in {key, name, stem, printable(key) if has_escapes else key}:
            if form in matches:
                matches[form].append(number)
    return matches


def _read_keys(file: Path) -> list[str]:
    try:
        data = read_named(file, _MAX_KEYS_BYTES)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DatasetError(str(file), what, "give a .csv or .txt of keys") from None
    if file.suffix.lower() in _TABLES:
        rows = CsvRows(text_lines(data), "," if file.suffix.lower() == ".csv" else "\t")
        every = [row for row in rows if row]
        at = int(len(every[0]) > 1 and INDEX.fullmatch(every[0][0]) is not None) if every else 0
        keys = [from_cell(row[at]) for row in every if len(row) > at]
        if what := rows.fault(0):
            raise DatasetError(str(file), what, "close the quote")
    else:
        keys = [line.strip() for line in decoded(data).splitlines()]
    keys = [key for key in keys if key]
    if not keys:
        raise DatasetError(str(file), "has no key", "write one key on each line")
    return keys


@validated_fields("reader.Weights")
@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How to draw the records of an epoch by weight: a value of the readers' option `weights`.

    `weights=values` is short for `weights=Weights(values)`.
    """

    values: Any
    """"balanced" draws each class equally often, as in `reader.load`. Or float[records]: the weight
    of each record, in the order of the split without shuffling. With replacement, a record with 2.0
    is drawn twice as often as a record with 1.0. A record with 0 is never drawn."""
    _: KW_ONLY
    replacement: bool = True
    """Whether a record may be drawn several times in an epoch."""
    num_samples: Count | None = None
    """Number of draws of an epoch, for all hosts together. None: the number of records of the
    split, or without replacement the number of its records with a weight above 0."""


def weighted_draws(where: str, weights: Any, numbers: Ints, dataset: OpenDataset) -> WeightedDraws:
    """Return the draws of an epoch from the records with these numbers, by their weights.

    `numbers` and an array of weights are in the order of the split. DatasetError if weights are
    invalid, or too few are above 0.
    """
    asked = weights if isinstance(weights, Weights) else Weights(weights)
    if isinstance(asked.values, str):
        if asked.values != "balanced":
            what = f"weights={asked.values!r} is not valid"
            raise DatasetError(where, what, "use 'balanced' or an array of numbers")
        values = _balanced(dataset, numbers)
    else:
        values = _checked(where, asked.values, len(numbers))
    num_positive = int(np.count_nonzero(values))
    num_all = asked.num_samples or (len(numbers) if asked.replacement else num_positive)
    if not asked.replacement and num_all > num_positive:
        have = counted(num_positive, "record", "has", "have")
        what = f"num_samples={num_all:,}, but {have} a weight above 0"
        raise DatasetError(where, what, "use a smaller num_samples, or replacement=True")
    return WeightedDraws(values, np.cumsum(values), asked.replacement, num_all)


@validated("reader.class_weights")
def class_weights(path: Location, split: AnySplit = "train") -> dict[int, float]:
    """Return the weight of each class number, for a loss; `class_weight` of `keras.Model.fit`.

    The weight is records / (classes × records of the class), so its mean over the records is 1.0.
    With class masks and no class of images, it is the same of pixels. Records and pixels without a
    class, and classes without any, are not counted. A class without any has weight 0.0. Records are
    not read, only their rows in the item table.

    Raises:
        DatasetError: the dataset or split does not exist, or neither images nor pixels have one
            class each.
    """
    dataset = open_dataset(path)
    schema = dataset.schema
    is_of_pixels = schema.target is None and MASK in schema.features
    rows = rows_of(dataset, split, [_PIXELS] if is_of_pixels else ())
    if is_of_pixels:
        of_class = functools.partial(pc.map_lookup, rows.table[_PIXELS], occurrence="first")
        sums = [pc.sum(of_class(number)) for number in range(len(schema.features[MASK].labels))]
        counts = np.array([one.as_py() or 0 for one in sums])
    else:
        labels = rows.labels if schema.target == LABEL else np.empty(0, np.int64)
        counts = np.bincount(labels[labels >= 0], minlength=len(schema.labels))
    if not counts.any():
        what = "its chosen images do not have one class each"
        is_several = ClassColumn.of(schema) is not None and schema.target != LABEL
        hint = 'draw by weights="balanced", or weight the losses yourself'
        raise DatasetError(str(dataset), what, hint if is_several else "weight the losses yourself")
    used = np.count_nonzero(counts)
    weights = np.divide(counts.sum(), used * counts, out=np.zeros(len(counts)), where=counts > 0)
    return dict(enumerate(weights.tolist()))


def _balanced(dataset: OpenDataset, numbers: Ints) -> Floats:
    # Proportional to the probability of a record if a class is drawn first, then one of its
    # records. 0 for a record without a class.
    column = ClassColumn.of(dataset.schema)
    table = dataset.record_rows((LABEL if column is None else column.name,))
    rows, labels = class_pairs(table.column(0)).T
    times = np.bincount(numbers, minlength=len(table))
    counts = np.bincount(labels, times[rows])
    if column is None or not counts.any():
        what = "weights by class need classes, but the chosen records have no class"
        of_pixels = "weight the loss of pixels by class_weights"
        other = of_pixels if MASK in dataset.schema.features else "choose labelled records"
        hint = f"{other}, or give an array with one weight for each record"
        raise DatasetError(str(dataset), what, hint)
    share = np.divide(1.0, counts, out=np.zeros(len(counts)), where=counts > 0)
    weights: Floats = np.bincount(rows, share[labels], minlength=len(table)).astype(np.float64)
    return weights[numbers]


def _checked(where: str, values: Sequence[float], num_records: int) -> Floats:
    try:
        weights = np.array(values, np.float64)
    except (TypeError, ValueError):
        what = f"weights={short_repr(values)} is not valid"
        raise DatasetError(where, what, "use 'balanced' or an array of numbers") from None
    if weights.shape != (num_records,):
        what = f"weights have the shape {weights.shape}, not ({num_records},)"
        raise DatasetError(where, what, "give one weight for each record of the split")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        what = "weights are below 0, infinite, NaN or all 0"
        raise DatasetError(where, what, "use finite numbers from 0, at least one of them above 0")
    return weights
