"""The command line, run in this process without workers."""

import json
from typing import Any

import pytest

from shardprep.recipe.recipe import Recipe
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Workers
from shardprep.writer.finalize import BuildResult
from tests.support.builders import MANY_ITEMS, by_chunks, in_process
from tests.support.command import invoke


def encode_here(monkeypatch: pytest.MonkeyPatch, *, cuts_tiles: bool = False) -> None:
    """Let the command line encode in this process; worker processes cut tiles."""

    def quick(recipe: Recipe, _: Workers, watcher: Any, **more: Any) -> BuildResult:
        return build_dataset(
            recipe, Workers(by_chunks(in_process, num_items=MANY_ITEMS), 1), watcher, **more
        )

    monkeypatch.setattr("shardprep.writer.build.build_dataset", quick)
    if not cuts_tiles:
        monkeypatch.setattr("shardprep.processes.start_server", lambda *_: None)


def build_command(*arguments: str) -> dict[str, Any]:
    """Run `shardprep build --json`; return the object that it prints."""
    done = invoke("build", *arguments, "--json", catch_exceptions=False)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
