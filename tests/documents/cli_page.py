"""docs/cli.md, made of the commands themselves: `python -m tests.documents.cli_page` writes it."""

import functools
import inspect
import re
from typing import Any

import typer

from shardprep.cli.app import program
from tests.support.paths import DATA, ROOT

PAGE = ROOT / "docs" / "cli.md"
_HEAD = (DATA / "cli_head.md").read_text(encoding="utf-8")


def page_text() -> str:
    root = parser()
    parts = [_HEAD, "## shardprep\n", *_tables(root)]
    for name, command in root.commands.items():
        parts += [
            f"## shardprep {name}\n",
            f"`{usage(name, command)}`\n",
            f"{inspect.cleandoc(command.help)}\n",
            *_tables(command),
            "\n".join(("```console", *(f"$ {line}" for line in examples(command)), "```\n")),
        ]
    return "\n".join(parts)


@functools.cache
def parser() -> Any:
    """Return the command line's own parser, with its commands in `commands`."""
    return typer.main.get_command(program())


def usage(name: str, command: Any) -> str:
    arguments = [_name(one) for one in command.params if one.param_type_name == "argument"]
    return " ".join(("shardprep", name, "[OPTIONS]", *arguments))


def examples(command: Any) -> list[str]:
    return command.epilog.split("\n\n")[1:]  # type: ignore[no-any-return]


def panels(command: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the parameters of a command by panel: names with the value, and the help."""
    found: dict[str, list[tuple[str, str]]] = {}
    for one in command.params:
        is_argument = one.param_type_name == "argument"
        panel = "Arguments" if is_argument else getattr(one, "rich_help_panel", None) or "Options"
        names = _name(one) if is_argument else ", ".join((*one.opts, *one.secondary_opts))
        value = "" if is_argument or not one.metavar else f" {one.metavar}"
        text = re.sub(r"\[/?dim\]", "", one.help.replace("\\[", "["))
        text = re.sub(r"\[default: (.*)\]$", r"Default: \1.", text)
        found.setdefault(panel, []).append((names + value, text))
    return found


def _tables(command: Any) -> list[str]:
    tables = []
    for panel, parameters in panels(command).items():
        rows = [f"| {_code(name)} | {_plain(text)} |" for name, text in parameters]
        tables.append("\n".join((f"| {panel} | |", "|---|---|", *rows, "")))
    return tables


def _name(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    return re.sub(r"([<>|*_])", r"\\\1", text)


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
