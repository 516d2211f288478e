"""The garbage collector is as the program has left it, whoever asks for a plan or a build."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from shardprep.cli.app import program
from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.source_plan import frozen_plan, make_plan
from tests.support.builders import Quiet, animals, build, write, zip_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _none_frozen() -> Iterator[None]:
    """Take back what the suite has frozen when it was collected."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write(tmp_path / "pets.zip", zip_bytes(animals(6)))


@pytest.fixture(name="frozen")
def _frozen() -> Iterator[int]:
    gc.freeze()
    yield gc.get_freeze_count()
    gc.unfreeze()


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
def test_nothing_stays_frozen(source: Path, tmp_path: Path, use: str) -> None:
    USES[use](source, tmp_path)
    assert gc.get_freeze_count() == 0
    assert gc.isenabled()


@pytest.mark.parametrize("use", USES)
def test_objects_that_the_program_has_frozen_stay_so(
    source: Path, tmp_path: Path, frozen: int, use: str
) -> None:
    USES[use](source, tmp_path)
    assert 0 < gc.get_freeze_count() <= frozen  # those that died meanwhile are gone
    assert gc.get_freeze_count() > frozen - 1000


def test_a_plan_is_frozen_while_it_is_used(source: Path, tmp_path: Path) -> None:
    recipe = make_recipe({"source": str(source)}, "test")
    with frozen_plan(recipe, tmp_path, Quiet()) as plan:
        assert gc.get_freeze_count() > plan.num_items == 6
    assert gc.get_freeze_count() == 0


def test_a_collector_that_is_off_stays_off(source: Path, tmp_path: Path) -> None:
    gc.disable()
    try:
        with pytest.raises(SourceError):
            build(source, tmp_path / "out", labels="csv:none.csv")
        assert not gc.isenabled()
    finally:
        gc.enable()
