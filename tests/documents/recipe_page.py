"""docs/recipe.md, made of the options of a build: `python -m tests.documents.recipe_page`."""

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from shardprep.cli.app import program
from shardprep.recipe.document import toml_value
from shardprep.recipe.keywords import RecipeKeywords
from shardprep.recipe.options import BUILD_DEFAULTS, BUILD_OPTIONS
from tests.support.paths import DATA, ROOT

PAGE = ROOT / "docs" / "recipe.md"
_NAMES = {str: "string", int: "integer", float: "number", bool: "true or false"}


def page_text() -> str:
    root: Any = typer.main.get_command(program())
    flags = {one.name: (*one.opts, *one.secondary_opts) for one in root.commands["build"].params}
    hints = {
        "source": str,
        "out": str,
        **get_type_hints(RecipeKeywords),
        **dict.fromkeys(("items", "labels", "relabel", "exclude_list", "class_map"), str),
        "join": str | list[str],
    }
    panels: dict[str, list[str]] = {}
    for key, option in BUILD_OPTIONS.items():
        flag = "SOURCE" if key == "source" else f"`{', '.join(flags[key])}`"
        row = f"| `{key}` | {'; '.join(_types(hints[key]))} | {_default(key)} | {flag} |"
        panels.setdefault(option.panel.replace("Arguments", "Source"), []).append(row)
    head = (DATA / "recipe_head.md").read_text(encoding="utf-8")
    tables = (
        "\n".join((f"## {panel}\n", "| key | type | default | flag |", "|---|---|---|---|", *rows))
        for panel, rows in panels.items()
    )
    return head + "\n" + "\n\n".join(tables) + "\n"


def _types(hint: Any) -> list[str]:
    """Return the names of the types that a key of the file may have."""
    if hint in _NAMES:
        return [_NAMES[hint]]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return [" ".join(f"`{value}`" for value in parts)]
    if origin in {Union, types.UnionType}:
        names = [name for part in parts if part is not types.NoneType for name in _types(part)]
        return list(dict.fromkeys(names))
    if origin is dict:
        return ["table of numbers"]
    return [f"list of {_NAMES[parts[0]]}s"]


def _default(key: str) -> str:
    default, shown = BUILD_DEFAULTS.get(key), BUILD_OPTIONS[key].shown
    if shown:
        return shown
    return "none" if default in {"", (), None} else f"`{toml_value(default)}`"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
