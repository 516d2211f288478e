"""The table of the states of a build: every transition that runs make is in it, and no other."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset.remote_files import DRAFT_PREFIX
from shardprep.writer.workspace.local import LocalWorkspace
from tests.support.builders import tree, write_folder
from tests.writer.meetings import STATE, WHERE, Recipe
from tests.writer.two_runs import opened

Files = Mapping[str, bytes]
Moments = list[tuple[str, Files]]
"""Each state that a run goes through, with the files at its end."""

MANIFEST = f"{WHERE}/manifest.json"
BUILD = f"{STATE}/.build.json"

STATES = ("absent", "begun", "writing", "documented", "sealed", "in force", "published")
"""States of a build. docs/architecture.md lists the files of each state."""
TRANSITIONS = {
    "begin": {
        (before, "begun") for before in ("absent", "published", "writing", "documented", "sealed")
    },
    "take back": {("begun", "absent"), ("begun", "published")},
    "write": {("begun", "writing")},
    "complete": {("writing", "documented")},
    "seal": {("documented", "sealed")},
    "publish": {("sealed", "published")},
}
"""Operation → its transitions (before, after). Replacing a dataset or build needs --overwrite."""
IN_STORE = {
    "seal": {("documented", "sealed"), ("documented", "in force")},
    "publish": {("sealed", "in force"), ("in force", "published")},
}
"""Operation → its transitions in object storage, where they differ."""

_number = count()


def state_of(files: Files, there: Files) -> str:
    """Return the state that files are in, in a run that has found others `there`."""
    replaced = there.get(MANIFEST)
    if files.get(BUILD) != there.get(BUILD):  # leftovers of another build do not count
        files = {
            name: data
            for name, data in files.items()
            if there.get(name) != data or name == MANIFEST
        }
    drafts = [name for name in files if name.startswith(f"{WHERE}/{DRAFT_PREFIX}")]
    left = [name for name in files if name.startswith(f"{STATE}/")]
    if (manifest := files.get(MANIFEST)) not in (None, replaced):
        return "in force" if drafts or left else "published"
    build = json.loads(files.get(BUILD, b"null"))
    draft = f"{WHERE}/{DRAFT_PREFIX}{build and build.get('token')}"
    if f"{STATE}/manifest.json" in files or f"{draft}/manifest.json" in files:
        return "sealed"
    if build is None:
        return "absent" if manifest is None else "published"
    own = [*drafts, *left, *([] if manifest else files)]
    if not any("/.parts/" in name and "tfrecord" in name for name in left):
        return "begun"
    return "documented" if any("/index/" in name for name in own) else "writing"


def note(found: Moments, files: Files, there: Files) -> str:
    state = state_of(files, there)
    if found and found[-1][0] == state:
        found.pop()
    found.append((state, files))
    return state


def in_store(there: Files, run: Callable[[], object], fate: str = "") -> Moments:
    """Return the moments of a run over objects. `fate` is applied when the build has begun."""
    found: Moments = []
    name = f"run {next(_number)}"  # tokens follow from it
    with opened(there, {name: run}) as world:
        while world.waiting():
            state = note(found, dict(world.objects), there)
            struck, fate = (fate, "") if state == "begun" else ("", fate)
            world.step(name, struck)
        note(found, dict(world.objects), there)
        outcome = world.runners[name].outcome
        assert not isinstance(outcome, Exception), outcome
    return found


@contextlib.contextmanager
def watched(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` after each change of a file, and after a change that empties a folder."""
    paused: list[bool] = []

    def looking(change: Any, *, at_once: bool = False) -> Any:
        def act(*arguments: Any, **options: Any) -> Any:
            paused.append(at_once)
            try:
                answer = change(*arguments, **options)
            finally:
                paused.pop()
            if not any(paused):
                look()
            return answer

        return act

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "link", "unlink"):
            patch.setattr(os, name, looking(getattr(os, name)))
        for name in ("start", "discard"):
            change = getattr(LocalWorkspace, name)
            patch.setattr(LocalWorkspace, name, looking(change, at_once=True))
        patch.setattr(shutil, "rmtree", looking(shutil.rmtree, at_once=True))
        yield


def on_disk(folder: Path, there: Files, run: Callable[[], object], fate: str = "") -> Moments:
    """Return the moments of a run over files; it may be interrupted when the build has begun."""
    shutil.rmtree(folder, ignore_errors=True)
    write_folder(folder.parent, there)
    found: Moments = []

    def look() -> None:
        nonlocal fate
        files = {f"sets/{name}": data for name, data in tree(folder).items() if ".old/" not in name}
        if MANIFEST in there and MANIFEST not in files:
            return  # between the two renames
        was_begun = found[-1:] and found[-1][0] == "begun"
        if note(found, files, there) == "begun" and was_begun and fate:
            fate = ""
            raise KeyboardInterrupt

    with watched(look):
        look()
        with contextlib.suppress(KeyboardInterrupt):
            run()
        look()
    return found


@pytest.mark.parametrize("storage", ["disk", "store"])
def test_runs_make_the_transitions_of_the_table_and_no_others(storage: str, tmp_path: Path) -> None:
    folder = tmp_path / "sets"

    def recipe(**keys: Any) -> Recipe:
        return Recipe(**({"out": str(folder)} if storage == "disk" else {}), **keys)

    def moments(there: Files, run: Callable[[], object], fate: str = "") -> Moments:
        return (
            in_store(there, run, fate) if storage == "store" else on_disk(folder, there, run, fate)
        )

    new, old, raw, parts = recipe(), recipe(format="png"), recipe(format="raw"), recipe(shards=2)
    first = moments({}, old.build)
    published = first[-1][1]
    over = moments(published, new.overwrite)
    found = [first, over]
    for state, files in (*first, *over):
        if state in ("writing", "documented", "sealed"):
            found.append(moments(files, raw.overwrite)[:2])
    found += [moments(there, new.overwrite, "interrupt") for there in ({}, published)]
    there: Files = {}
    for run in (parts.part(1), parts.part(2), parts.finalize):
        found.append(moments(there, run))
        there = found[-1][-1][1]
    pairs = {(one[0], two[0]) for run in found for one, two in pairwise(run)}
    table = TRANSITIONS | (IN_STORE if storage == "store" else {})
    assert pairs == {pair for some in table.values() for pair in some}


def test_each_state_is_entered_and_left() -> None:
    pairs = {pair for table in (TRANSITIONS, IN_STORE) for some in table.values() for pair in some}
    assert {before for before, _ in pairs} == {after for _, after in pairs} == {*STATES}


def test_the_page_on_architecture_has_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    for name in STATES:
        left = {by: table for by, table in TRANSITIONS.items() if any(a == name for a, _ in table)}
        left |= {by: table for by, table in IN_STORE.items() if any(a == name for a, _ in table)}
        row = rf"^\| {name} \| .+ \| .+ \| {', '.join(left)} \|$"
        assert re.search(row, page, re.MULTILINE)
