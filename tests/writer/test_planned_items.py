"""The items of a plan as a table: built from it, copies of all known sets have the same plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

import shardprep
from shardprep.catalog.items import Item
from shardprep.dataset.schema import Schema
from shardprep.errors import RecipeError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.plan.build_plan import BuildPlan
from shardprep.writer.plan.planned_items import write_items
from shardprep.writer.plan.source_plan import make_plan
from tests.support.builders import Quiet, jpeg, write, zip_bytes
from tests.support.corpus import Row, rows, without_choices
from tests.writer.records import records

_IN_TABLE = frozenset((
    "labels", "pivot", "relabel", "join", "split", "group", "boxes", "masks", "points", "stack",
    "target_image", "include", "exclude", "root", "exclude_list", "class_map", "separator", "dedup",
    "unlisted", "header", "null", "rows",
))  # fmt: skip
"""Options whose result the table states."""
_OTHER = {"rsna-2024-lumbar": "a class that only rows without an image have is not in the table"}
_WITHOUT_CHANNELS = "google-research-identify"
"""Only a pattern of --stack names channels, not the table."""


def _start(row: Row, starts: str) -> bool:
    return row.name.startswith(tuple(starts.split()))


def _plan(source: Path, folder: Path, options: Mapping[str, Any]) -> BuildPlan:
    folder.mkdir()
    keys = {"source": str(source), "out": str(folder / "out"), "max_dropped": 1.0}
    return make_plan(make_recipe({**keys, **options}, "test"), folder, Quiet())


def _facts(item: Item) -> tuple[Any, ...]:
    """Return what decides the record of an item; coordinates to a ten-thousandth."""
    facts: tuple[Any, ...] = ()
    if (one := item.annotation) is not None:
        points = [None if a is None else a.tolist() for a in (one.keypoints, one.points)]
        crowds, boxes = any(one.crowds) and one.crowds, np.round(np.nan_to_num(one.boxes), 4)
        facts = (boxes.tolist(), one.labels, crowds, len(one.outlines), points, one.is_relative)
    masks = [file.key for file in item.companions]
    return item.split, repr(item.target), repr(item.columns), masks, facts


def _unnamed(schema: Schema) -> Schema:
    images = schema.image.model_copy(update={"channels": ()})
    return schema.model_copy(update={"features": {**schema.features, schema.image_name: images}})


def _items(plan: BuildPlan) -> dict[str, tuple[Any, ...]]:
    return {item.key: (shard.name, *_facts(item)) for shard in plan.shards for item in shard.items}


TWINS = [row for row in rows() if row.family in ("kaggle", "competitions") and not row.cannot]


@pytest.mark.parametrize("row", TWINS, ids=lambda row: row.id)
def test_the_table_of_a_plan_gives_the_same_plan(row: Row, tmp_path: Path) -> None:
    if any(_start(row, start) for start in _OTHER):
        pytest.skip("docs/items.md says what a table does not state")
    source = row.write_source(tmp_path)
    options = without_choices(row.flags)
    plan = _plan(source, tmp_path / "rules", options)
    table = tmp_path / "items.parquet"
    write_items(plan, table)
    kept = {key: value for key, value in options.items() if key not in _IN_TABLE}
    names = () if plan.annotations is None else plan.annotations.names
    kept["classes"] = plan.schema.labels if plan.schema.labels and not names else names
    splits = {shard.split for shard in plan.shards}
    if splits - {"train", "validation", "test"}:
        kept["split"] = f"column:split:{','.join(f'{one}={one}' for one in sorted(splits))}"
    again = _plan(source, tmp_path / "table", {**kept, "items": str(table)})
    assert _items(again) == _items(plan)
    assert again.schema == (
        _unnamed(plan.schema) if _start(row, _WITHOUT_CHANNELS) else plan.schema
    )


def test_a_csv_states_the_same_as_a_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    members = {f"{'ab'[i % 2]}/{i}.jpg": jpeg(seed=i) for i in range(6)}
    write(tmp_path / "set.zip", zip_bytes(members))
    rules = shardprep.build("set.zip", "rules", labels="folder", size=16, workers=1)
    for file in ("items.csv", "items.parquet"):
        shardprep.build("set.zip", labels="folder", dry_run=True, items_out=file)
        table = shardprep.build("set.zip", file[:7], items=file, size=16, workers=1)
        assert records(table.path) == records(rules.path)
    read = pyarrow.csv.read_csv("items.csv").to_pydict()
    assert read == {"image": sorted(members), "split": ["train"] * 6, "label": [*"aaabbb"]}


def test_a_table_is_written_only_of_a_plan(tmp_path: Path) -> None:
    write(tmp_path / "set.zip", zip_bytes({"a/1.jpg": jpeg(), "b/2.jpg": jpeg(seed=1)}))
    source = str(tmp_path / "set.zip")
    with pytest.raises(RecipeError, match=r"is for a plan, not for a build; add --?dry.run"):
        shardprep.build(source, tmp_path / "out", items_out=tmp_path / "items.csv")
    with pytest.raises(RecipeError, match=r"neither \.csv nor \.parquet"):
        shardprep.build(source, dry_run=True, items_out=tmp_path / "items.txt")
