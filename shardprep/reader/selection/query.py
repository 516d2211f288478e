"""`reader.select`: the records of a split that fit conditions on their rows of the item table."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from shardprep.dataset.cells import from_cell
from shardprep.dataset.item_table import ANNOTATED_COLUMNS
from shardprep.dataset.manifest import Manifest
from shardprep.dataset.open_dataset import OpenDataset, open_dataset
from shardprep.errors import DatasetError, printable, shown, some_of
from shardprep.reader.config import warn
from shardprep.reader.selection.classes import ClassColumn
from shardprep.reader.selection.item_rows import ItemRows, rows_of
from shardprep.reader.selection.selection import Selection
from shardprep.reader.selection.split_argument import AnySplit
from shardprep.reader.validators import Kind, Location, text, validated
from shardprep.storage.regular_file import read_named
from shardprep.storage.text_file import CsvRows, decoded, text_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_WHERE = "reader.select"
_MOST_SHOWN = 80
"""Characters of a key, a condition or an error of pyarrow in one line."""
_MOST_NAMES = 10
"""Names of classes in one line."""
_PLACE = "place"
"""Column of the number of a row, which is none of the item table."""
_MOST_BYTES = 1 << 30
"""Bytes of a list of keys at most."""
_TABLES = (".csv", ".tsv")


def _several(one: type | tuple[type, ...]) -> Callable[[Any], Any]:
    """Return the check of a value of a type, or a collection of such."""

    def take(value: Any) -> tuple[Any, ...]:
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
            value = [value]
        found = tuple(getattr(each, "item", lambda each=each: each)() for each in value)
        if not all(isinstance(each, one) and not isinstance(each, bool) for each in found):
            raise TypeError
        return found

    return take


def _keys(value: Any) -> Any:
    if isinstance(value, (str, Path)):
        return Path(text(str(value))).expanduser()
    return _several(str)(value)


def _condition(value: Any) -> Any:
    if isinstance(value, Mapping) and value and all(isinstance(name, str) for name in value):
        return dict(value)
    if isinstance(value, pc.Expression):
        return value
    raise TypeError


Labels = Annotated[Any, Kind(_several((str, int)), ("the name of a class or a list of them",))]
Keys = Annotated[Any, Kind(_keys, ("a list of keys or the path of a file of them",))]
Condition = Annotated[
    Any, Kind(_condition, ("a dict of columns and values or a pyarrow.compute.Expression",))
]


@validated(_WHERE)
def select(
    path: Location,
    split: AnySplit | None = None,
    *,
    label: Labels | None = None,
    where: Condition | None = None,
    keys: Keys | None = None,
) -> Selection:
    """Return the records of a split that fit all conditions, by the item table; none is read.

    The result stands in place of a split: `reader.load(path, found)`. It may have no record, which
    is an error once it is to be read.

    Args:
        path: as of `reader.load`.
        split: as of `reader.load`; "train+validation" for both. A Selection for some of its
            records. None: "train", with an `Advice` where the dataset has other splits.
        label: name of a class, its number, or a list of these: images of one of the classes, of a
            multi-label set with at least one of them, of a set with boxes with such an object.
        where: conditions on the columns of `items.parquet`: a dict of column → value, values (a
            list: any of these) or None (where it is null), or an expression of pyarrow,
            `pyarrow.compute.field("original_width") >= 512`.
        keys: keys of images, or a file of them: a .csv or .tsv with the keys in its first column,
            as `shardprep report --list` prints it, else one a line. A file name, with or without
            its ending, means all keys with it. Those in other splits are passed over.

    Raises:
        DatasetError: there is no such dataset, split, class, column, key or file, or a column has
            no such values.

    """
    dataset = open_dataset(path)
    if split is None:
        split = "train"
        _tell_of_others(dataset.manifest)
    column = ClassColumn.of(dataset.schema)
    numbers = [] if label is None else _numbers_of_classes(str(dataset), column, label)
    rows = rows_of(dataset, split, [] if where is None else _columns(dataset, where))
    every = rows.selection()
    fits = np.ones(len(every), bool)
    said = []
    if label is not None and column is not None:
        fits &= np.isin(every.numbers, every.classes[np.isin(every.classes[:, 1], numbers), 0])
        said.append(f"label={', '.join(column.labels[one] for one in numbers)}")
    if where is not None:
        fits &= _fits(rows, where)
        said.append(shown(_said(where), _MOST_SHOWN))
    if keys is not None:
        fits &= np.isin(every.numbers, _numbers_of_keys(dataset, keys))
        said.append(f"keys of {keys.name}" if isinstance(keys, Path) else f"{len(keys):,} keys")
    name = f"{rows.split}: {'; '.join(said)}" if said else rows.split
    return every.at(fits, name)


def _tell_of_others(manifest: Manifest) -> None:
    """Warn where there are splits beside train, which are not looked into."""
    counts = {name: one.num_records for name, one in manifest.splits.items() if name != "train"}
    if any(counts.values()) and len(counts) < len(manifest.splits):
        others = ", ".join(f"{name} {number:,}" for name, number in counts.items())
        every = "+".join(manifest.splits)
        warn(f"{_WHERE} took split='train', not {others}; give split='train' or '{every}'")


def _numbers_of_classes(
    where: str, column: ClassColumn | None, label: Sequence[str | int]
) -> list[int]:
    """Return the numbers of classes; DatasetError where there is no such class."""
    if column is None:
        hint = "select by where or keys"
        raise DatasetError(where, "its images and objects have no classes", hint)
    numbers = []
    for one in label:
        if one not in column.labels and not (
            isinstance(one, int) and 0 <= one < len(column.labels)
        ):
            hint = f"it has {some_of(column.labels, _MOST_NAMES)}"
            raise DatasetError(where, f"has no class {one!r}", hint)
        numbers.append(one if isinstance(one, int) else column.labels.index(one))
    return numbers


def _columns(dataset: OpenDataset, where: Any) -> list[str]:
    """Return the columns that a condition may need; those of an expression are in its text."""
    return (
        [*where]
        if isinstance(where, dict)
        else [n for n in dataset.item_columns if n in str(where)]
    )


def _said(where: Any) -> str:
    if isinstance(where, dict):
        return ", ".join(f"{name}={value!r}" for name, value in where.items())
    return str(where)


def _fits(rows: ItemRows, where: Any) -> Any:
    """Return for each row whether a condition is true; null is not."""
    places = pa.array(np.arange(len(rows.numbers)))
    columns = {name: rows.table[name] for name in rows.table.column_names}
    table = pa.table({**columns, _PLACE: places})
    types = _types(rows.dataset)
    try:
        steps = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("filter", acero.FilterNodeOptions(_expression(where, types))),
            acero.Declaration("project", acero.ProjectNodeOptions([pc.field(_PLACE)])),
        ]
        # No threads of Arrow: see `item_table.read_items`.
        kept = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
    except (pa.ArrowException, ValueError, TypeError, NotImplementedError) as error:
        said = shown(str(error).splitlines()[0], _MOST_SHOWN)
        what = f"where={shown(_said(where), _MOST_SHOWN)}: {said}"
        raise DatasetError(_WHERE, what, f"its items have {', '.join(types)}") from None
    fits = np.zeros(len(table), bool)
    fits[kept.column(0).to_numpy()] = True
    return fits


def _expression(where: Any, types: Mapping[str, pa.DataType]) -> Any:
    """Return a condition as an expression; pyarrow raises where a column has no such values."""
    if not isinstance(where, dict):
        return where
    parts = []
    for name, value in where.items():
        is_one = isinstance(value, (str, bytes)) or not hasattr(value, "__iter__")
        values = pa.array([value] if is_one else list(value), types[name])
        parts.append(pc.field(name).isin(values))
    return functools.reduce(operator.and_, parts)


def _types(dataset: OpenDataset) -> dict[str, pa.DataType]:
    """Return the types of the values of the columns of the item table."""
    types = {name: ANNOTATED_COLUMNS.field(name).type for name in dataset.item_columns}
    return {
        name: one.value_type if pa.types.is_dictionary(one) else one for name, one in types.items()
    }


def _numbers_of_keys(dataset: OpenDataset, keys: Path | Sequence[str]) -> Any:
    """Return the numbers of the records with some keys; DatasetError where there is no such key."""
    wanted = _listed(keys) if isinstance(keys, Path) else keys
    known = dataset.record_rows(("key",))["key"].combine_chunks()
    numbers = pc.index_in(pa.array(wanted, pa.string()), known)
    found = numbers.drop_null().to_pylist()
    left = [one for one, number in zip(wanted, numbers, strict=True) if not number.is_valid]
    if left:
        by_name = _by_name(known.to_pylist(), left)
        found += [number for numbers in by_name.values() for number in numbers]
        left = [one for one in left if not by_name[one]]
    if left:  # of images that were not written there is no record, and that is no mistake
        by_name = _by_name(dataset.item_rows(("key",))["key"].to_pylist(), left)
        left = [one for one in left if not by_name[one]]
    if left and isinstance(keys, Path) and left[0] == wanted[0] and keys.suffix.lower() in _TABLES:
        del left[0]  # the names of its columns
    if left:
        what = (
            f"{len(left):,} of {len(wanted):,} keys are of no image: {shown(left[0], _MOST_SHOWN)}"
        )
        hint = f"a key is {shown(known[0].as_py(), _MOST_SHOWN)}" if len(known) else "it has none"
        raise DatasetError(str(keys) if isinstance(keys, Path) else str(dataset), what, hint)
    return np.array(found, np.int64)


def _by_name(keys: Sequence[str], texts: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the keys that each text means.

    It is a file name, with or without its ending, or a key with the escapes it is printed with.
    """
    found: dict[str, list[int]] = {text: [] for text in texts}
    has_escapes = any("\\" in text for text in texts)
    for number, key in enumerate(keys):
        name = key.rpartition("/")[2]
        stem = name.rpartition(".")[0] or name
        for one in {key, name, stem, printable(key) if has_escapes else key}:
            if one in found:
                found[one].append(number)
    return found


def _listed(file: Path) -> list[str]:
    """Return the keys in a file, as they stand there; DatasetError where it cannot be read."""
    try:
        data = read_named(file, _MOST_BYTES)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DatasetError(str(file), what, "give a .csv or .txt of keys") from None
    if file.suffix.lower() in _TABLES:
        rows = CsvRows(text_lines(data), "," if file.suffix.lower() == ".csv" else "	")
        found = [from_cell(row[0]) for row in rows if row]
        if what := rows.fault(0):
            raise DatasetError(str(file), what, "close the quote")
    else:
        found = [line.strip() for line in decoded(data).splitlines()]
    found = [one for one in found if one]
    if not found:
        raise DatasetError(str(file), "has no key", "write one a line")
    return found
