"""The garbage collector is as the program has left it, whoever asks for a plan or a build."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from shardprep.cli.app import program
from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan.source_plan import make_plan
from tests.support.builders import Quiet, animals, build, write, zip_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write(tmp_path / "pets.zip", zip_bytes(animals(6)))


USES: dict[str, Callable[[Path, Path], object]] = {
    "make_plan": lambda source, work: make_plan(
        make_recipe({"source": str(source)}, "test"), work, Quiet()
    ),
    "--dry-run": lambda source, _: CliRunner().invoke(
        program(), ["build", str(source), "--dry-run"], catch_exceptions=False
    ),
    "build": lambda source, work: build(source, work / "out", size="8x8"),
}


@pytest.mark.parametrize("use", USES)
def test_a_collector_stays_on_and_frozen_objects_stay_so_and_no_others(
    source: Path, tmp_path: Path, use: str
) -> None:
    """The suite has frozen what it imported."""
    frozen = gc.get_freeze_count()
    USES[use](source, tmp_path)
    assert gc.isenabled()
    assert 0 < gc.get_freeze_count() <= frozen  # dead ones are gone
    assert gc.get_freeze_count() > frozen - 1000


def test_nothing_is_frozen_where_the_program_has_frozen_nothing(
    source: Path, tmp_path: Path
) -> None:
    gc.unfreeze()
    try:
        USES["build"](source, tmp_path)
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()


def test_a_plan_holds_few_objects_that_a_collection_looks_at(source: Path, tmp_path: Path) -> None:
    recipe = make_recipe({"source": str(source)}, "test")
    make_plan(recipe, tmp_path, Quiet())  # imports and caches of the first use
    many = write(
        tmp_path / "many.zip", zip_bytes({f"{i}.jpg": b"\xff\xd8\xff" for i in range(500)})
    )
    gc.collect()
    before = len(gc.get_objects())
    plan = make_plan(make_recipe({"source": str(many)}, "test"), tmp_path, Quiet())
    assert plan.num_items == 500
    assert len(gc.get_objects()) - before < 200


def test_a_collector_that_is_off_stays_off(source: Path, tmp_path: Path) -> None:
    gc.disable()
    try:
        with pytest.raises(SourceError):
            build(source, tmp_path / "out", labels="csv:none.csv")
        assert not gc.isenabled()
    finally:
        gc.enable()
