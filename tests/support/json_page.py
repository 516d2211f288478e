"""docs/json.md, made of the types that the commands print with `--json`; output against them.

`python -m tests.support.json_page` writes the page anew.
"""

import ast
import inspect
import itertools
import json
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from shardprep.api.builds import Sample
from shardprep.api.json_types import (
    BuildJson,
    ErrorJson,
    FetchJson,
    PartJson,
    PlanJson,
    ReportJson,
    VerifyJson,
    ViewJson,
)
from shardprep.api.transfers import Download, Upload
from shardprep.benchmark.result import Benchmark
from shardprep.catalog.survey import Survey
from shardprep.dataset.describe import Facts
from shardprep.dataset.diff import Difference
from shardprep.exporter.export import Exported
from shardprep.reporter.leaks import Overlap
from tests.support.paths import DATA, ROOT

PAGE = ROOT / "docs" / "json.md"
RESULTS: dict[str, tuple[type, ...]] = {
    "build": (BuildJson, PartJson, PlanJson),
    "finalize": (BuildJson,),
    "init": (Survey,),
    "inspect": (Facts,),
    "report": (ReportJson,),
    "view": (ViewJson,),
    "bench": (Benchmark,),
    "verify": (VerifyJson,),
    "leaks": (Overlap,),
    "diff": (Difference,),
    "repack": (BuildJson,),
    "export": (Exported,),
    "sample": (Sample,),
    "download": (Download,),
    "upload": (Upload,),
    "fetch": (FetchJson,),
}
"""By command, in the order of `--help`; those of `build`: a whole one, `--part`, `--dry-run`."""
_WAYS = {
    "PartJson": "`shardprep build --part I/N`",
    "PlanJson": "`shardprep build --dry-run`",
}
_PLAIN = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "any",
    Path: "string",
}
_HEAD, _ERRORS = re.split("\n(?=## )", (DATA / "json_head.md").read_text(encoding="utf-8"))


def page_text() -> str:
    parts = [_HEAD]
    named: list[Any] = []
    for command, results in RESULTS.items():
        for result in results:
            title = _WAYS.get(result.__name__, f"`shardprep {command}`")
            if command == "finalize":
                parts.append(f"## {title}\n\nThe same keys as `shardprep build`.\n")
            else:
                parts.append(f"## {title}\n\n{_table(result, named)}")
    parts.append(f"{_ERRORS}\n{_table(ErrorJson, named)}")
    parts.append("# Nested objects\n")
    done: list[Any] = []
    while rest := [one for one in named if one not in done]:
        done.append(rest[0])
        parts.append(f"## {_title(rest[0])}\n\n{_table(rest[0], named)}")
    return "\n".join(parts)


def _table(of: Any, named: list[Any]) -> str:
    docs = _docs(of)
    rows = []
    for key, hint in _keys(of).items():
        notes = getattr(hint, "__metadata__", ())
        note = "".join(one for one in notes if isinstance(one, str))
        doc = " ".join((docs.get(key) or note).split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {_kind(hint, named)} | {doc} |")
    about = inspect.getdoc(of) or ""
    return "\n".join([about.split("\n\n")[0], "", "| key | value | |", "|---|---|---|", *rows, ""])


def _keys(of: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(of, include_extras=True)
    return {
        key: hint
        for key, hint in hints.items()
        if key != "model_config" and typing.get_origin(hint) is not typing.ClassVar
    }


def _docs(of: Any) -> dict[str, str]:
    """Return the docstrings below the keys in the source, also those of base classes."""
    found: dict[str, str] = {}
    for one in reversed([of, *getattr(of, "__orig_bases__", ())]):
        module = sys.modules[one.__module__]
        tree = ast.parse(inspect.getsource(module))
        body = next(
            (n.body for n in tree.body if isinstance(n, ast.ClassDef) and n.name == one.__name__),
            [],
        )
        for line, below in itertools.pairwise(body):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[line.target.id] = str(below.value.value)
    return found


def _kind(hint: Any, named: list[Any]) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _kind(_printed(hint), named)
    if origin is Literal:
        return " · ".join(f"`{one}`" for one in inner)
    if origin is not None:
        words = [_kind(one, named) for one in inner if one is not Ellipsis]
        is_fixed = origin is tuple and Ellipsis not in inner
        return {
            dict: f"object: {words[-1]} by name",
            list: f"array of {words[0]}",
            tuple: f"{len(words)} of {words[0]}" if is_fixed else f"array of {words[0]}",
            types.UnionType: " or ".join(words),
            typing.Union: " or ".join(words),
        }.get(origin, words[0])
    if hint in _PLAIN:
        return _PLAIN[hint]
    named.append(hint)
    return f"[{_title(hint)}](#{_title(hint).lower()})"


def _printed(hint: Any) -> Any:
    """Return a type without annotations; for a table, the type of its rows."""
    bare, note, *_ = typing.get_args(hint)
    return note if bare is pa.Table else bare


def check(value: Any, hint: Any, at: str = "$") -> None:
    """Check that a JSON value matches a type, with exactly its keys."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        check(value, next(one for one in inner if (one is type(None)) == (value is None)), at)
    elif origin is typing.Annotated:
        check(value, _printed(hint), at)
    elif origin is typing.NotRequired:
        check(value, inner[0], at)
    elif origin is Literal:
        assert value in inner, at
    elif origin is dict:
        check_each(value, dict.fromkeys(value, inner[1]), at)
    elif origin in (tuple, list):
        assert isinstance(value, list), at
        is_fixed = origin is tuple and Ellipsis not in inner
        assert not is_fixed or len(value) == len(inner), at
        check_each(dict(enumerate(value)), dict.fromkeys(range(len(value)), inner[0]), at)
    elif hint in _PLAIN and hint is not Any:
        kinds = {float: (int, float), Path: (str,)}.get(hint, (hint,))
        assert type(value) in kinds, f"{at}: {value!r}"
    elif hint is not Any:
        hints = _keys(hint)
        needed = {k for k, h in hints.items() if typing.get_origin(h) is not typing.NotRequired}
        needed -= getattr(hint, "sparse_keys", frozenset())
        assert needed <= value.keys() <= hints.keys(), f"{at}: {needed ^ value.keys()}"
        check_each(value, hints, at)


def check_each(value: dict[Any, Any], hints: dict[Any, Any], at: str) -> None:
    for key, one in value.items():
        check(one, hints[key], f"{at}.{key}")


def printed(text: str, result: Any) -> Any:
    value = json.loads(text)
    check(value, result)
    return value


def _title(of: Any) -> str:
    return str(of.__name__).removesuffix("Json")


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
