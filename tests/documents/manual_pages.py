"""docs/man and docs/completions, made of the commands: `python -m tests.documents.manual_pages`.

The wheel installs both below `share/`, where `man` and the shells look for them.
"""

import inspect
import os
import subprocess
import sys
from typing import Any

from tests.documents.cli_page import examples, panels, parser, usage
from tests.support.paths import ROOT

MAN, COMPLETIONS = ROOT / "docs" / "man", ROOT / "docs" / "completions"
SHELLS = {"shardprep": "bash", "_shardprep": "zsh", "shardprep.fish": "fish"}
"""Name of the file that a shell looks for → the shell."""
_ABOUT = "Turn raw (Kaggle) images into TFRecord shards for training, with matching readers."


def pages() -> dict[str, str]:
    """Return each page in roff by its file name."""
    root = parser()
    commands = {name: inspect.cleandoc(one.help) for name, one in root.commands.items()}
    lines = [*_head("shardprep", _ABOUT), "shardprep COMMAND [OPTIONS]", ".SH COMMANDS"]
    for name, text in commands.items():
        lines += [".TP", rf"\fBshardprep\-{name}\fR(1)", _text(text.split("\n")[0])]
    found = {"shardprep.1": _page([*lines, *_options(root)])}
    for name, command in root.commands.items():
        first, *rest = commands[name].split("\n\n")
        lines = _head(f"shardprep-{name}", first)
        lines += [_text(usage(name, command)), ".SH DESCRIPTION", _text(first)]
        for paragraph in rest:
            lines += [".PP", _text(paragraph)]
        lines += [*_options(command), ".SH EXAMPLES", ".nf", *map(_text, examples(command)), ".fi"]
        found[f"shardprep-{name}.1"] = _page([*lines, ".SH SEE ALSO", r"\fBshardprep\fR(1)"])
    return found


def _head(title: str, about: str) -> list[str]:
    summary = " ".join(about.split()).rstrip(".")
    return [
        f'.TH {title.upper()} 1 "" shardprep "User Commands"',
        ".nh",  # no hyphens inside of options
        ".SH NAME",
        rf"{_text(title)} \- {_text(summary)}",
        ".SH SYNOPSIS",
    ]


def _options(command: Any) -> list[str]:
    lines = []
    for panel, parameters in panels(command).items():
        lines.append(f".SH {panel.upper()}")
        for name, text in parameters:
            lines += [".TP", rf"\fB{_text(name)}\fR", _text(text)]
    return lines


def _text(text: str) -> str:
    r"""Return text for roff, in which `\`, `-` and a dot at the start of a line are special."""
    lines = text.replace("\\", r"\e").replace("-", r"\-").splitlines()
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


def _page(lines: list[str]) -> str:
    return "\n".join([r".\" Written by python -m tests.documents.manual_pages", *lines, ""])


def completions() -> dict[str, str]:
    """Return the script of each shell by its file name, as the program prints it."""
    found = {}
    for name, shell in SHELLS.items():
        told = {**os.environ, "_SHARDPREP_COMPLETE": f"source_{shell}"}
        command = [sys.executable, "-m", "shardprep"]
        done = subprocess.run(command, env=told, capture_output=True, text=True, check=True)
        found[name] = f"{done.stdout.strip()}\n"  # zsh looks at the first line
    return found


if __name__ == "__main__":
    for folder, files in ((MAN, pages()), (COMPLETIONS, completions())):
        folder.mkdir(exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
