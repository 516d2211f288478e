"""Conditions on the columns of the item table, for `where` of `reader.select`.

A condition is a dict, an expression of pyarrow, or a text such as `fold != 3 and sex == "f"`. A
text is parsed, not evaluated: it has comparisons of columns and values, joined by `and`, `or` and
`not`.
"""

from __future__ import annotations

import ast
import difflib
import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from shardprep.errors import DatasetError, shown

WHERE = "reader.select"
MAX_SHOWN = 80
"""Maximum number of characters of a key, a condition or an error of pyarrow in an error."""
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|`([^`]+)`""")
"""A text in quotes, or the name of a column in backticks."""
_FORM = "a condition is such as: fold != 3 and (sex == 'f' or `two words` is None)"


class Condition(NamedTuple):
    """A parsed condition on the rows of the item table."""

    expression: pc.Expression
    columns: list[str]
    """Columns of the item table that it uses."""
    text: str

    @classmethod
    def of(cls, where: Any, columns: pa.Schema) -> Self:
        """Return the condition of an argument `where`. DatasetError if it is not valid."""
        types = {
            one.name: one.type.value_type if pa.types.is_dictionary(one.type) else one.type
            for one in columns
        }
        if isinstance(where, dict):
            text = ", ".join(f"{name}={value!r}" for name, value in where.items())
            return cls(_of_dict(where, types, text), [*where], text)
        text = str(where)
        if isinstance(where, str):
            parsed = _Text(text, types)
            return cls(parsed.expression, [*parsed.used], text)
        # An expression may use the columns whose names its text contains.
        return cls(where, [name for name in types if name in text], text)


def refused(text: str, what: str, hint: str) -> DatasetError:
    """Return the error for the condition `text`: the problem and a hint."""
    return DatasetError(WHERE, f"where={shown(text, MAX_SHOWN)}: {what}", hint)


def _of_dict(where: Mapping[str, Any], types: Mapping[str, pa.DataType], text: str) -> Any:
    # pyarrow raises an error if a value has another type than its column.
    parts = []
    for name, value in where.items():
        is_one = isinstance(value, (str, bytes)) or not hasattr(value, "__iter__")
        try:
            values = pa.array([value] if is_one else list(value), types.get(name))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise refused(text, str(error).splitlines()[0], _there(types)) from None
        parts.append(pc.field(name).isin(values))
    return functools.reduce(operator.and_, parts)


def _there(types: Mapping[str, pa.DataType]) -> str:
    return f"its items have {', '.join(types)}"


class _Text:
    """Parses a text into an expression; `used` has its columns in the order of the text."""

    def __init__(self, text: str, types: Mapping[str, pa.DataType]) -> None:
        self._text, self._types = text, types
        self._quoted: dict[str, str] = {}
        self.used: dict[str, None] = {}
        plain = _QUOTED.sub(self._plain, " ".join(text.split("\n"))).strip()
        try:
            self.expression = self._condition(ast.parse(plain, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise refused(text, "is not a condition", _FORM) from None

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
        if not isinstance(node, ast.Compare):
            raise self._refused(node, "is not a comparison")
        left = [node.left, *node.comparators[:-1]]
        parts = map(self._comparison, node.ops, left, node.comparators)
        return functools.reduce(operator.and_, parts)

    def _comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Any:
        name, other = self._column(left), self._column(right)
        column = name or other
        if column is None:
            raise self._refused(left, "is compared, but is not a column", _there(self._types))
        if isinstance(op, ast.In | ast.NotIn):
            if name is None or not isinstance(right, ast.Tuple | ast.List | ast.Set):
                hint = f"give several: {column} in (1, 2)"
                raise self._refused(right, "is not a list of values", hint)
            values = [self._value(one, column) for one in right.elts]
            kind = self._types[column] if {*values} <= {None} else None  # else of the values
            found = pc.field(name).isin(pa.array(values, kind))
            return found if isinstance(op, ast.In) else ~found & ~pc.field(name).is_null()
        sides = [
            pc.field(own) if own else self._value(node, column)
            for own, node in ((name, left), (other, right))
        ]
        is_none = any(side is None for side in sides)
        if is_none and isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq):
            is_null = pc.field(column).is_null()
            return is_null if isinstance(op, ast.Is | ast.Eq) else ~is_null
        if is_none or type(op) not in _COMPARE:
            hint = f"use == or !=, or {column} is None"
            raise self._refused(right, "cannot be compared this way", hint)
        return _COMPARE[type(op)](*sides)

    def _column(self, node: ast.expr) -> str | None:
        """Return the column that a node names, None for a value. Other names are errors."""
        if not isinstance(node, ast.Name | ast.Attribute | ast.BinOp):
            return None
        name = ast.unparse(node).replace(" / ", "/")  # such as Roi.X1 and dicom/PatientAge
        name = self._quoted.get(name, name)
        if name not in self._types:
            near = difflib.get_close_matches(name, self._types, 1)
            meant = f"is {near[0]} meant? " if near else "a text needs quotes; "
            raise refused(
                self._text, f"items have no column {name}", f"{meant}{_there(self._types)}"
            )
        if pa.types.is_nested(self._types[name]):
            hint = "select by label= or an expression of pyarrow"
            raise refused(self._text, f"column {name} has lists", hint)
        self.used[name] = None
        return name

    def _value(self, node: ast.expr, column: str) -> Any:
        try:
            value = ast.literal_eval(node)
            pa.scalar(value)
        except (ValueError, TypeError, OverflowError, pa.ArrowException):
            raise self._refused(node, "is not a value") from None
        is_text = pa.types.is_string(self._types[column])
        fits = isinstance(value, str if is_text else int | float)
        if value is None or (fits and not isinstance(value, bool)):
            return value
        if column == "label":
            hint = "label= of reader.select takes names of classes"
            raise self._refused(node, "is not the number of a class", hint)
        what = f"is not a {'text' if is_text else 'number'} like the values of column {column}"
        hint = f"write it as a text: {str(value)!r}" if is_text else "write it without quotes"
        raise self._refused(node, what, hint)

    def _refused(self, node: ast.expr, what: str, hint: str = _FORM) -> DatasetError:
        part = ast.unparse(node)
        for stand, name in self._quoted.items():
            part = part.replace(stand, f"`{name}`")
        return refused(self._text, f"{shown(part, MAX_SHOWN)} {what}", hint)
