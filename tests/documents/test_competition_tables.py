"""docs/competitions.md: its tables say of each image what the flags of the competition say."""

import contextlib
import functools
import zipfile
from pathlib import Path
from typing import Any

import pytest

import shardprep
from shardprep.api.builds import Plan
from shardprep.dataset.schema import ROWS
from tests.documents.page_code import examples
from tests.support.corpus import Row, rows, without_choices

pytest.importorskip("pandas")

_FLAGS = {row.name: row for row in rows() if row.family == "competitions"}
_TARGET_ROOT = "PA_Train_SatellitePatches_RGB/"
"""Part of the keys that the flag --root leaves out."""


def _facts(found: Plan) -> dict[str, Any]:
    schema = found.plan.schema
    names = {name: one.labels for name, one in schema.features.items() if one.labels}
    items = (item for shard in found.plan.shards for item in shard.items)
    names_of = found.plan.columns
    targets = {
        item.key.removeprefix(_TARGET_ROOT): (
            item.split,
            repr(item.target),
            [one.key for one in item.companions],
            {
                name: repr(value)
                for name, value in zip(names_of, item.columns, strict=True)
                if name.startswith(ROWS)
            },
        )
        for item in items
    }
    return {"labels": schema.labels, "names": names, "items": targets}


def _by_flags(row: Row, source: Path) -> Plan:
    return shardprep.build(source, dry_run=True, **without_choices(row.flags))


def test_a_table_of_the_page_states_what_the_flags_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = examples("competitions")
    names = {block.partition("# ")[2].partition(":")[0] for block in blocks}
    assert names == {name for name, row in _FLAGS.items() if len(row.flags) > 100}
    code: dict[str, Any] = {}
    planned = functools.partial(shardprep.build, dry_run=True)
    for block in blocks:
        name = block.partition("# ")[2].partition(":")[0]
        archive = _FLAGS[name].write_source(tmp_path)
        with zipfile.ZipFile(archive) as file:
            file.extractall(tmp_path / name)
        with contextlib.chdir(tmp_path), monkeypatch.context() as patch:
            expected = _facts(_by_flags(_FLAGS[name], tmp_path / name))
            patch.setattr(shardprep, "build", planned)
            block = block.replace("356x32", "16x8")  # noqa: PLW2901 - the size of frames in the copy
            exec(compile(block, name, "exec"), code)  # the test is of that code
        assert _facts(code["result"]) == expected, name
