"""docs/cli.md, made of the commands themselves: `python -m tests.documents.cli_page` writes it."""

from __future__ import annotations

import inspect
import re
from typing import Any

import typer

from shardprep.cli.app import program
from tests.support.paths import DATA, ROOT

PAGE = ROOT / "docs" / "cli.md"
_HEAD = (DATA / "cli_head.md").read_text(encoding="utf-8")


def page_text() -> str:
    root: Any = typer.main.get_command(program())
    parts = [_HEAD, "## shardprep\n", *_tables(root)]
    for name, command in root.commands.items():
        arguments = [_name(one) for one in command.params if one.param_type_name == "argument"]
        parts += [
            f"## shardprep {name}\n",
            f"`{' '.join(['shardprep', name, '[OPTIONS]', *arguments])}`\n",
            f"{inspect.cleandoc(command.help)}\n",
            *_tables(command),
            f"```console\n{_examples(command.epilog)}\n```\n",
        ]
    return "\n".join(parts)


def _tables(command: Any) -> list[str]:
    panels: dict[str, list[str]] = {}
    for one in command.params:
        is_argument = one.param_type_name == "argument"
        panel = "Arguments" if is_argument else getattr(one, "rich_help_panel", None) or "Options"
        names = _name(one) if is_argument else ", ".join((*one.opts, *one.secondary_opts))
        value = "" if is_argument or not one.metavar else f" {one.metavar}"
        panels.setdefault(panel, []).append(f"| {_code(names + value)} | {_plain(one.help)} |")
    return ["\n".join((f"| {panel} | |", "|---|---|", *rows, "")) for panel, rows in panels.items()]


def _name(argument: Any) -> str:
    name = argument.name.upper()
    return name if argument.required else f"[{name}]"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    text = re.sub(r"\[/?dim\]", "", text.replace("\\[", "["))
    text = re.sub(r"\[default: (.*)\]$", r"Default: \1.", text)
    return re.sub(r"([<>|*_])", r"\\\1", text)


def _examples(epilog: str) -> str:
    return "\n".join(f"$ {line}" for line in epilog.split("\n\n")[1:])


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
