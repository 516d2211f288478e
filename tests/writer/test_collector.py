"""A plan or a build leaves the state of the garbage collector unchanged."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from shardprep.errors import SourceError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan.source_plan import make_plan
from tests.support.builders import Quiet, animals, build, write, zip_bytes
from tests.support.command import invoke


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    return write(tmp_path / "pets.zip", zip_bytes(animals(6)))


USES: dict[str, Callable[[Path, Path], object]] = {
    "make_plan": lambda source, work: make_plan(
        make_recipe({"source": str(source)}, "test"), work, Quiet()
    ),
    "--dry-run": lambda source, _: invoke(
        "build", str(source), "--dry-run", catch_exceptions=False
    ),
    "build": lambda source, work: build(source, work / "out", size="8x8"),
}


@pytest.mark.parametrize("use", USES)
def test_the_collector_stays_enabled_and_frozen_objects_stay_frozen(
    source: Path, tmp_path: Path, use: str
) -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    USES[use](source, tmp_path)
    assert gc.isenabled()
    assert 0 < gc.get_freeze_count() <= frozen  # dead ones are gone
    assert gc.get_freeze_count() > frozen - 1000


def test_a_build_freezes_nothing_and_leaves_a_disabled_collector_off(
    source: Path, tmp_path: Path
) -> None:
    gc.unfreeze()
    gc.disable()
    try:
        USES["build"](source, tmp_path)
        assert gc.get_freeze_count() == 0
        with pytest.raises(SourceError):
            build(source, tmp_path / "none", labels="csv:none.csv")
        assert not gc.isenabled()
    finally:
        gc.enable()
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
