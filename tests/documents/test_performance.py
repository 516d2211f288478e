"""docs/performance.md: a row for all that is declared, and tables that can be replaced alone."""

import math
import re
from pathlib import Path

import pytest

from benchmarks.build import NOTEBOOK, POOL
from benchmarks.document import DOCUMENT, GROUPS, declared, measured, written
from benchmarks.measure import Cost, Measure, Row, interleaved
from benchmarks.parent import MEASURES as OF_PARENT
from benchmarks.parent import scaling
from benchmarks.table import block, replaced, table

TEXT = DOCUMENT.read_text()


def made(group: str, value: float) -> list[Row]:
    return [measure.came_to(value, f"made for {group}") for measure in declared(group)]


def names(text: str) -> list[str]:
    return [cell for cell in re.findall(r"^\| (.*?) \|", text, re.MULTILINE) if cell != "measure"]


@pytest.mark.parametrize("group", GROUPS)
def test_the_document_has_a_row_for_every_measure(group: str) -> None:
    assert names(block(TEXT, group)) == [measure.name for measure in declared(group)]


def test_every_missed_bar_is_explained() -> None:
    missed = re.findall(r"^\| .*? \| \*\*([\d.,]+).*?\*\* \|", TEXT, re.MULTILINE)
    why = TEXT.partition("## Where a bar is missed")[2]
    assert [value for value in missed if value not in why] == []


def test_figures_in_the_readme_equal_the_tables() -> None:
    readme = " ".join(Path(DOCUMENT.parents[1], "README.md").read_text().split())
    for measure, words in ((POOL, "process pool around Pillow"), (NOTEBOOK, "notebook's loop")):
        row = re.search(rf"^\| {re.escape(measure.name)} \| ([\d.]+) \|", TEXT, re.MULTILINE)
        assert row is not None
        assert f"{float(row[1]):.1f} times as fast as a {words}" in readme


def test_every_script_is_a_group() -> None:
    scripts = Path(DOCUMENT.parents[1], "benchmarks").glob("*.py")
    assert {path.stem for path in scripts if "\nMEASURES" in path.read_text()} == set(GROUPS)


@pytest.mark.parametrize("group", [pytest.param("plan", marks=pytest.mark.thorough), "resample"])
def test_a_run_gives_a_row_for_every_measure(group: str) -> None:
    rows = measured(group, 1, quick=True)
    assert [row.measure for row in rows] == list(declared(group))
    assert all(row.value > 0 and row.detail for row in rows)


def test_all_groups_are_written_where_they_belong() -> None:
    text = TEXT
    for group in GROUPS:
        text = written(text, group, made(group, 1.5))
    for group in GROUPS:
        rows = [line for line in block(text, group).splitlines() if f"made for {group}" in line]
        assert names("\n".join(rows)) == [measure.name for measure in declared(group)]
        assert "Pillow" in block(text, group).splitlines()[-1]


def test_writing_one_group_leaves_the_others_unchanged() -> None:
    before = written(written(TEXT, "build", made("build", 1)), "verify", made("verify", 1))
    after = written(before, "build", made("build", 777))
    assert block(after, "verify") == block(before, "verify")
    assert "777" in block(after, "build")
    assert replaced(after, "build", block(before, "build")) == before


def test_a_document_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- build -->"):
        written("# Performance\n", "build", made("build", 1))


@pytest.mark.parametrize(
    ("bar", "holding", "missing"),
    [(">= 2.2", 2.2, 2.19), ("<= 8 %", 8, 8.01), ("< 20 s", 19.9, 20)],
)
def test_a_value_on_the_wrong_side_of_its_bar_is_bold(
    bar: str, holding: float, missing: float
) -> None:
    measure = Measure("one", bar, "s")
    assert "**" not in table([measure.came_to(holding)])
    assert f"| **{measure.came_to(missing).shown}** |" in table([measure.came_to(missing)])


def test_a_missing_value_is_a_dash() -> None:
    assert "| one | – | – | cannot |" in table([Measure("one").came_to(math.nan, "cannot")])


def test_every_round_runs_all_ways_and_medians_count() -> None:
    order: list[str] = []
    seconds = {"a": iter((1.0, 9.0, 2.0)), "b": iter((5.0, 4.0, 6.0))}

    def way(name: str) -> Cost:
        order.append(name)
        wall = next(seconds[name])
        return Cost(wall, wall / 2)

    found = interleaved({"a": lambda: way("a"), "b": lambda: way("b")}, 3)
    assert "".join(order) == "ababab"
    assert found == {"a": Cost(2, 1), "b": Cost(5, 2.5)}


def test_scaling_follows_from_the_parent_s_part() -> None:
    values = (5.0, 6.0, 50.0, 1000.0, 15_000.0)
    text = scaling([one.came_to(value) for one, value in zip(OF_PARENT, values, strict=True)])
    assert "**20 workers**" in text  # 1000 / 50
    assert "20,000 images/s" in text  # 1 s / 50 µs
    assert "300 MB/s" in text  # 20,000 × 15,000 bytes
