"""Conditions on the columns of the item table, for `where` of `reader.select`.

A condition is a dict, an expression of pyarrow, or a text such as `fold != 3 and sex == "f"`. A
text is parsed, not evaluated: it has comparisons of columns and values, joined by `and`, `or` and
`not`.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.dataset.item_table import LABEL_NAME, OWN
from shardprep.errors import DatasetError, nearest_name, shown, some_of, use_one_of

WHERE = "reader.select"
MAX_SHOWN = 80
"""Maximum number of characters of a text in an error."""
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_ORDER = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|`([^`]+)`""")
"""Pattern of a text in quotes, or of the name of a column in backticks."""
_SIGN = re.compile(r"(?<![=!<>])=(?!=)|[&|~]")
_MEANT = {"=": "==", "&": "and", "|": "or", "~": "not"}
"""A sign that conditions do not use → the operator to use instead."""
_EQUAL = ast.Eq | ast.NotEq
_FORM = "a condition is such as: fold != 3 and (sex == 'f' or `two words` is None)"


class Condition(NamedTuple):
    """A parsed condition on the rows of the item table."""

    expression: pc.Expression
    columns: list[str]
    """Columns of the item table that the condition uses."""
    text: str
    texts: Mapping[str, list[str | bool]]
    """Column of texts → the values that the condition compares with it."""

    @classmethod
    def of(cls, where: Any, columns: pa.Schema, classes: Sequence[str]) -> Self:
        """Parse `where`; DatasetError if it is invalid. `classes` make `label_name` a column."""
        types = {
            one.name: one.type.value_type if pa.types.is_dictionary(one.type) else one.type
            for one in columns
        }
        text = str(where)
        if isinstance(where, dict):
            text = ", ".join(f"{name}={value!r}" for name, value in where.items())
        elif not isinstance(where, str):
            # An expression may use the columns whose names its text contains.
            return cls(where, [name for name in types if name in text], text, {})
        types |= {LABEL_NAME: pa.string()} if classes else {}
        parser = _Parser(text, types, classes)
        return cls(parser.parse(where), [*({*parser.used} - {LABEL_NAME})], text, parser.texts)

    def check(self, cells: pa.Table, stored: Callable[[str], pa.ChunkedArray]) -> None:
        """Raise DatasetError if a value differs from the cells of its column in case or type.

        `stored` returns a column of all records. It is called only for values that `cells` lack.
        """
        for name, values in self.texts.items():
            found = {*cells[name].unique().to_pylist()}
            missing = [one for one in values if one not in found]
            known = dict.fromkeys(stored(name).drop_null().to_pylist() if missing else ())
            lower = {one.lower() for one in known}
            are_booleans = lower <= {"true", "false"}
            for value in (one for one in missing if known and one not in known):
                is_text, word = isinstance(value, str), str(value).lower()
                if (word in lower and is_text) or is_text == are_booleans:
                    near = some_of(sorted(known, key=lambda one: one.lower() != word))
                    what = f"no cell of {name} is {value!r}"
                    raise refused(self.text, what, f"use cells such as {near}")


def refused(text: str, what: str, hint: str) -> DatasetError:
    """Return the error for the condition `text`."""
    return DatasetError(WHERE, f"where={shown(text, MAX_SHOWN)}: {what}", hint)


def _column_hint(types: Mapping[str, pa.DataType]) -> str:
    return f"use one of the columns {', '.join(types)}"


class _Parser:
    def __init__(self, text: str, types: Mapping[str, pa.DataType], classes: Sequence[str]) -> None:
        self._text, self._types, self._classes = text, types, classes
        self._quoted: dict[str, str] = {}
        self.used: dict[str, None] = {}
        self.texts: dict[str, list[str | bool]] = {}

    def parse(self, where: Any) -> Any:
        try:
            return self._of_dict(where) if isinstance(where, dict) else self._of_text()
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            raise refused(self._text, "is not a condition", _FORM) from None

    def _of_dict(self, where: Mapping[str, Any]) -> Any:
        parts = []
        for name, value in where.items():
            is_one = isinstance(value, (str, bytes)) or not hasattr(value, "__iter__")
            values = [value] if is_one else list(value)
            plain = [one.item() if hasattr(one, "item") else one for one in values]
            cells: list[ast.expr] = [ast.Constant(one) for one in plain]
            parts.append(self._comparison(ast.In(), ast.Name(name), ast.List(cells)))
        return functools.reduce(operator.and_, parts)

    def _of_text(self) -> Any:
        plain = _QUOTED.sub(self._plain, " ".join(self._text.split("\n"))).strip()
        if sign := _SIGN.search(_QUOTED.sub("", plain)):
            raise refused(self._text, f"has {sign[0]}", f"write {_MEANT[sign[0]]}: {_FORM}")
        return self._condition(ast.parse(plain, mode="eval").body)

    def _plain(self, match: re.Match[str]) -> str:
        if match[2]:
            self._quoted[f"column_{len(self._quoted)}_in_backticks"] = match[2]
        return match[1] or [*self._quoted][-1]

    def _condition(self, node: ast.expr) -> Any:
        if isinstance(node, ast.BoolOp):
            join = operator.and_ if isinstance(node.op, ast.And) else operator.or_
            return functools.reduce(join, map(self._condition, node.values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self._condition(node.operand)
        name = self._column(node)
        if name is not None and pa.types.is_string(self._types[name]):
            return self._is_in(name, [True])
        if not isinstance(node, ast.Compare):
            raise self._refused(node, "is not a comparison")
        left = [node.left, *node.comparators[:-1]]
        parts = map(self._comparison, node.ops, left, node.comparators)
        return functools.reduce(operator.and_, parts)

    def _comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Any:
        name, other = self._column(left), self._column(right)
        column = name or other
        if column is None:
            raise self._refused(left, "is compared, but is not a column", _column_hint(self._types))
        if isinstance(op, ast.In | ast.NotIn):
            if name is None or not isinstance(right, ast.Tuple | ast.List | ast.Set):
                hint = f"give several values: {column} in (1, 2)"
                raise self._refused(right, "is not a list of values", hint)
            found = self._is_in(name, [self._value(one, column) for one in right.elts])
            return found if isinstance(op, ast.In) else ~found
        sides = [
            pc.field(own) if own else self._value(node, column, is_ordered=isinstance(op, _ORDER))
            for own, node in ((name, left), (other, right))
        ]
        given = [one for one in sides if not isinstance(one, pc.Expression)]
        is_none = given == [None]
        if given and isinstance(op, _EQUAL | ast.Is | ast.IsNot if is_none else _EQUAL):
            found = self._is_in(column, given)
            return found if isinstance(op, ast.Is | ast.Eq) else ~found
        is_other = is_none or column == LABEL_NAME or {*map(type, given)} == {bool}
        if is_other or type(op) not in _COMPARE:
            hint = f"use == or !=, or {column} is None"
            raise self._refused(right, "cannot be compared this way", hint)
        return _COMPARE[type(op)](*sides)

    def _column(self, node: ast.expr) -> str | None:
        """Return the column that a node names, or None for a value; an unknown name is an error."""
        if not isinstance(node, ast.Name | ast.Attribute | ast.BinOp):
            return None
        name = ast.unparse(node).replace(" / ", "/")  # such as Roi.X1 and dicom/PatientAge
        name = self._quoted.get(name, name)
        if name not in self._types:
            near = nearest_name(name, self._types)
            meant = f"is {near} meant? " if near else "put a text into quotes, or "
            hint = f"{meant}{_column_hint(self._types)}"
            raise refused(self._text, f"items have no column {name}", hint)
        if pa.types.is_nested(self._types[name]):
            hint = "select by label= or an expression of pyarrow"
            raise refused(self._text, f"column {name} has lists", hint)
        if name in OWN and f"column/{name}" in self._types:
            hint = f"write column/{name} for your table, or pc.field({name!r}) for items.parquet"
            raise refused(self._text, f"{name} is in your table and in items.parquet", hint)
        self.used[name] = None
        return name

    def _is_in(self, name: str, values: Sequence[Any]) -> Any:
        if name == LABEL_NAME:
            if unknown := [one for one in values if one not in (None, *self._classes)]:
                hint = use_one_of(unknown[0], self._classes)
                raise refused(self._text, f"has no class {unknown[0]!r}", hint)
            name = "label"
            values = [one if one is None else self._classes.index(one) for one in values]
        field = pc.field(name)
        if pa.types.is_string(self._types[name]):
            self.texts.setdefault(name, []).extend(one for one in values if one is not None)
            if any(isinstance(one, bool) for one in values):  # stored as "true" or "True"
                field = pc.utf8_lower(field)
                values = [None if one is None else str(one).lower() for one in values]
        kind = self._types[name] if {*values} <= {None} else None  # None: inferred
        found = field.isin(pa.array(values, kind))
        nothing = pc.scalar(pa.scalar(None, pa.bool_()))  # stays null in `not`
        return found if None in values else pc.if_else(field.is_null(), nothing, found)

    def _value(self, node: ast.expr, column: str, *, is_ordered: bool = False) -> Any:
        try:
            value = ast.literal_eval(node)
            pa.scalar(value)
        except (ValueError, TypeError, OverflowError, pa.ArrowException):
            raise self._refused(node, "is not a value") from None
        is_text = pa.types.is_string(self._types[column])
        fits = isinstance(value, str | bool if is_text else int | float)
        if value is None or (fits and (is_text or not isinstance(value, bool))):
            return value
        if column == "label":
            hint = f"label= of reader.select and {LABEL_NAME} take names of classes"
            raise self._refused(node, "is not the number of a class", hint)
        what = f"is not a {'text' if is_text else 'number'} like the values of column {column}"
        hint = f"write it as a text: {str(value)!r}" if is_text else "write it without quotes"
        if is_text and is_ordered:
            hint = "texts are compared by letters: store the column as numbers"
        raise self._refused(node, what, hint)

    def _refused(self, node: ast.expr, what: str, hint: str = _FORM) -> DatasetError:
        part = ast.unparse(node)
        for stand, name in self._quoted.items():
            part = part.replace(stand, f"`{name}`")
        return refused(self._text, f"{shown(part, MAX_SHOWN)} {what}", hint)
