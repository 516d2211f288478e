"""The options of the commands: their page, their help, and completion by the shell."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from shardprep.cli.app import program
from tests.documents import cli_page, recipe_page
from tests.support.builders import animals, write, zip_bytes
from tests.support.command import error_of, ran, run, run_process

COMMANDS: dict[str, Any] = {"": typer.main.get_command(program())}
COMMANDS |= COMMANDS[""].commands


def shardprep(*arguments: str, cwd: Path, **variables: str) -> str:
    environment = {**os.environ, "HOME": str(cwd), **variables}
    return run_process(*arguments, cwd=cwd, check=True, env=environment).stdout


@pytest.mark.parametrize("page", [cli_page, recipe_page])
def test_the_pages_are_made_of_the_options(page: Any) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.page_text(), f"run: python -m {page.__name__}"


def test_every_option_has_a_help_that_is_a_sentence() -> None:
    for one in (one for command in COMMANDS.values() for one in command.params):
        text = one.help.split(" [dim]")[0]
        assert text[0].isupper(), text
        assert text.endswith((".", "…")), text
        assert text.split()[0] not in {"Of", "That", "Who", "What", "Which", "Where"}, text


def test_the_shell_completes_commands_and_options(tmp_path: Path) -> None:
    for words, wanted in (("shardprep bu", {"build"}), ("shardprep build --se", {"--seed"})):
        position = str(len(words.split()) - 1)
        found = shardprep(
            cwd=tmp_path, _SHARDPREP_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=position
        )
        assert wanted <= set(found.split()), words


def test_completion_is_installed_by_an_option(tmp_path: Path) -> None:
    said = shardprep(
        "--install-completion",
        "bash",
        cwd=tmp_path,
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
    )
    assert "bash completion installed" in said
    assert "shardprep" in (tmp_path / ".bashrc").read_text()


def test_a_no_flag_overrides_the_recipe(tmp_path: Path) -> None:
    members = {**animals(4), "copy.jpg": animals(4).popitem()[1]}
    write(tmp_path / "pets.zip", zip_bytes(members))
    write(tmp_path / "shardprep.toml", b'source = "pets.zip"\nlabels = "none"\ndedup = true\n')
    for flags, count in (((), 4), (("--no-dedup",), 5)):
        plan = run("build", "--dry-run", "--json", *flags, cwd=tmp_path)
        assert f'"train": {count}' in plan.stdout


@pytest.mark.parametrize(
    ("flags", "dedup"),
    [
        ("--dedup pets.zip", True),
        ("pets.zip --dedup", True),
        ("--no-dedup pets.zip", False),
        ("--dedup near pets.zip", "near"),
        ("pets.zip --dedup=near", "near"),
        ("--dedup near pets.zip --seed 3", "near"),
        ("pets.zip --dedup near --no-dedup", False),
        ("pets.zip --dedup near --dedup", True),
        ("--dedup -- near", True),
    ],
)
def test_a_switch_may_be_followed_by_its_word(flags: str, dedup: object) -> None:
    command = COMMANDS["build"]
    context = command.make_context("build", flags.split())
    assert context.params["dedup"] == dedup
    assert context.params["source"] == ("near" if "--" in flags.split() else "pets.zip")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_of_80_columns_and_no_type_of_python(
    tmp_path: Path, command: str
) -> None:
    """Help is the same after an option of the program, which creates all commands."""
    shown = ran(*command.split(), "--help", cwd=tmp_path)
    assert f"shardprep {command}" in shown.stdout.split("Example" if command else "Try it")[1]
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    assert not re.findall(r" <\w+>", shown.stdout)
    if command not in ("build", "report"):
        return
    assert shown.stdout == run("--quiet", command, "--help", cwd=tmp_path).stdout
    wrong = error_of(run(command, "--nonsense", cwd=tmp_path), 2)
    assert wrong == error_of(run("--quiet", command, "--nonsense", cwd=tmp_path), 2)


def test_paragraphs_of_help_fill_the_width_of_the_terminal(tmp_path: Path) -> None:
    shown = run("export", "--help", cwd=tmp_path)
    lines = [line.strip() for line in shown.stdout.partition("╭")[0].splitlines()]
    pairs = [(one, two) for one, two in itertools.pairwise(lines) if one and two]
    assert len(pairs) > 4
    assert all(len(f"{one} {two.split()[0]}") > 78 for one, two in pairs)


def test_the_help_of_build_has_only_what_most_builds_need_first(tmp_path: Path) -> None:
    shown = run("build", "--help", cwd=tmp_path).stdout
    assert re.findall(r"^│ (--[a-z-]+)", shown, re.MULTILINE) == [
        "--out", "--name", "--shards", "--size", "--labels", "--boxes", "--masks", "--split",
        "--group", "--exclude", "--workers", "--dry-run", "--help-all", "--help",
    ]  # fmt: skip
    assert "SOURCE" in shown


def test_all_help_of_build_has_every_option_under_its_heading(tmp_path: Path) -> None:
    done = ran("build", "--help-all", "pets.zip", cwd=tmp_path)
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    boxes = re.split(r"^╭─ (.+?) ─+╮$", done.stdout, flags=re.MULTILINE)
    found = dict(zip(boxes[1::2], boxes[2::2], strict=True))
    panels = cli_page.panels(COMMANDS["build"])
    assert found.keys() == panels.keys()
    for heading, parameters in panels.items():
        for name, _ in parameters:
            flag = name.split(",")[0].split()[0].strip("[]")
            assert re.search(rf"^│ +{flag}\b", found[heading], re.MULTILINE), flag
    assert "--max-ratio" in found["Limits"]
