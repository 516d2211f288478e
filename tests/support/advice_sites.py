"""Texts of the package that name an option for the user to type, found in its code."""

import ast
import functools
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.support.paths import ROOT

_OPTION = re.compile(r"--(?:[a-z]|…)")
_SUBJECT = re.compile(r"^--[a-z-]+(?: [a-z]+)?: ")
"""Start of a note on an option that the user gave: it is no advice."""
_VALUE = re.compile(
    r" (?:[^a-z(…]\S*|(?:auto|none|coco|yolo|vector|soft|class|classes|multilabel|texts?|row|near"
    r"|background|train|skip|objects)\b)"
)
"""Start of a text after an option that is a value of it: a placeholder, a number or a word."""
_GAP = "…"
_ANY = r"[\s\S]*?"


class Site(NamedTuple):
    """A text in the code: a string or an f-string, with "…" for what is filled in."""

    place: str
    text: str

    def in_message(self) -> re.Pattern[str]:
        """Return the pattern of the text in a message."""
        parts = [re.escape(part) for part in self.text.strip().split(_GAP)]
        return re.compile(_ANY.join(parts) + (r"(?:'[^']*'|\S*)" if parts[-1] == "" else ""))


@functools.cache
def sites() -> list[Site]:
    """Return all texts of the package with an option in them, outside of docstrings."""
    found = []
    for path in sorted((ROOT / "shardprep").rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        if "--" in code or "OptionName" in code:  # most modules have neither, and parsing is slow
            place = path.relative_to(ROOT).as_posix()
            texts = _texts(ast.parse(code))
            found += [Site(place, text) for text in texts if _names_option(text)]
    return found


def values_beside_options() -> Iterator[str]:
    """Yield the place of each value that an f-string writes after an option, not as its value.

    Python would show it as `boxes coco`, not as `boxes="coco"`.
    """
    for path in sorted((ROOT / "shardprep").rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        if "OptionName" in code:
            yield from (f"{path.name}: {one}" for one in _bare_values(ast.parse(code)))


def _bare_values(tree: ast.Module) -> Iterator[str]:
    names = _options_by_name(ast.walk(tree))
    for text in ast.walk(tree):
        parts = text.values if isinstance(text, ast.JoinedStr) else []
        for part, after in itertools.pairwise(parts):
            option = _part(part, names) if isinstance(part, ast.FormattedValue) else ""
            value = _VALUE.match(str(getattr(after, "value", "")))
            if value and re.fullmatch("--[a-z…-]+", option):
                yield f"{option}{value[0]}"


def _names_option(text: str) -> bool:
    return bool(_OPTION.search(_SUBJECT.sub("", text)))


def _texts(tree: ast.Module) -> Iterator[str]:
    yield from _texts_in(tree, _options_by_name(tree.body))


def _texts_in(node: ast.AST, names: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        names = names | _options_by_name(ast.walk(node))
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(node, ast.Expr)
        if isinstance(child, ast.JoinedStr):
            yield "".join(_part(value, names) for value in child.values)
        elif (
            isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and _spelled(child)
        ):
            yield _spelled(child)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            if not is_docstring:
                yield child.value
        else:
            yield from _texts_in(child, names)


def _part(value: ast.expr, names: dict[str, str]) -> str:
    if isinstance(value, ast.Constant):
        return str(value.value)
    inner = value.value if isinstance(value, ast.FormattedValue) else value
    if isinstance(inner, ast.Name):
        return names.get(inner.id, _GAP)
    return _spelled(inner) or _GAP


def _spelled(node: ast.AST) -> str:
    """Return the option as the command line spells it, or "" for another expression."""
    if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "OptionName"):
        return ""
    name, *value = (one.value if isinstance(one, ast.Constant) else _GAP for one in node.args)
    words = (str(one) if _GAP in str(one) else shlex.quote(str(one)) for one in value)
    return " ".join([f"--{str(name).replace('_', '-')}", *words])


def _options_by_name(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the variables of a module or a function that hold the name of an option."""
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                is_tuple = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = (
                    zip(target.elts, node.value.elts, strict=False)  # type: ignore[attr-defined]
                    if is_tuple
                    else [(target, node.value)]
                )
                found |= {
                    one.id: spelled
                    for one, value in pairs
                    if isinstance(one, ast.Name) and (spelled := _spelled(value))
                }
    return found
