"""What tests cost is counted, kept and shown."""

import time
from pathlib import Path

import pytest

from tests.support import costs
from tests.support.costs import Cost


def test_costs_of_earlier_runs_stay_until_a_test_runs_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "costs.json"
    assert costs.kept(path) == {}
    costs.keep({"a": Cost(1.0, 2.0), "b": Cost(3.0, 4.0)}, path)
    costs.keep({"b": Cost(5.0, 6.0)}, path)
    assert costs.kept(path) == {"a": Cost(1.0, 2.0), "b": Cost(5.0, 6.0)}
    assert [*path.parent.iterdir()] == [path]
    path.write_text("{")
    assert costs.kept(path) == {}


def test_a_test_costs_the_processor_time_since_the_test_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "_programs", [])
    meter = costs.Meter()
    meter.pytest_collection_finish()
    begin = time.process_time()
    while time.process_time() < begin + 0.05:
        pass
    costs.add_program(100.0)
    first, second = _reported(meter), _reported(meter)
    assert 100.05 <= first < 101.0
    assert 0.0 <= second < 1.0


def _reported(meter: costs.Meter) -> float:
    report = pytest.TestReport("a.py::test", ("a.py", 1, "test"), {}, "passed", None, "teardown")
    phase = meter.pytest_runtest_makereport()
    next(phase)
    with pytest.raises(StopIteration):
        phase.send(report)
    ((_, seconds),) = report.user_properties
    assert isinstance(seconds, float)
    return seconds


def test_the_table_has_the_highest_costs_and_their_sum() -> None:
    by_test = {f"a.py::test[{i}]": Cost(float(i), 1.0) for i in range(30)}
    lines = costs.table(costs.by_file({**by_test, "b.py::test": Cost(1000.0, 2.0)}))
    assert [line.split() for line in lines] == [
        ["1000.0", "2.0", "b.py"],
        ["435.0", "30.0", "a.py"],
        ["1435.0", "32.0", "all"],
    ]
    assert [line.split()[0] for line in costs.table(by_test)][:2] == ["29.0", "28.0"]
    assert len(costs.table(by_test)) == 26


def test_the_longest_tests_begin_and_the_others_keep_their_order(
    request: pytest.FixtureRequest,
) -> None:
    by_test = {f"a.py::test[{i}]": Cost(100.0 - i, float(i)) for i in range(30)}
    assert costs.longest(by_test) == [f"a.py::test[{i}]" for i in range(29, 4, -1)]
    own = [item for item in request.session.items if item.path == request.path]
    last, before = own[-1], [item.nodeid for item in own[:-1]]
    costs.begin_with(own, {last.nodeid, "gone.py::test"})
    assert [item.nodeid for item in own] == [last.nodeid, *before]
