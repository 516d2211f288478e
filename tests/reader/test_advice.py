"""From measured times to a sentence: what bounds training, and which changes are tried."""

import re
import tomllib
from collections.abc import Sequence
from typing import Any

import pytest

from shardprep.reader.diagnosis.diagnosis import (
    Candidate,
    Change,
    Circumstances,
    Measured,
    Stopwatch,
    Times,
    candidates,
    conclude,
    epoch_of,
    restart_advice,
)
from tests.support.paths import DATA

# Times


def test_a_stopwatch_separates_restarts_waiting_and_working() -> None:
    now = [0.0]
    watch = Stopwatch(lambda: now[0])
    steps = []
    for asked, drawn, done, is_restart in (
        (0, 3, 4, True), (4, 4.5, 6, False), (10, 12, 13, True), (13, 13, 14, False)
    ):  # fmt: skip
        now[0] = asked
        watch.ask()
        now[0] = asked + 0.1
        watch.ask()  # it waits already
        now[0] = drawn
        watch.drawn(is_restart=is_restart)
        now[0] = done
        steps.append(watch.done())
    assert steps == [Times(3, 0, 1), Times(0, 0.5, 1.5), Times(2, 0, 1), Times(0, 0, 1)]
    times = sum(steps, Times())
    assert times == Times(restart_s=5, waiting_s=0.5, working_s=4.5)
    assert (times.stall, times.restart) == (0.55, 0.5)
    assert (Times().stall, Times().restart) == (0, 0)


def epoch(restart: float, waits: Sequence[float], work: float = 1.0) -> list[Times]:
    return [Times(restart, 0, work), *(Times(0, wait, work) for wait in waits)]


def test_the_mean_of_whole_epochs_counts_if_there_are_any() -> None:
    steps = [*epoch(9, [9, 9, 9, 9, 9])[2:], *epoch(4, [1, 0]), *epoch(2, [2, 1]), *epoch(7, [7])]
    assert epoch_of(steps, 3) == Times(restart_s=3, waiting_s=2, working_s=3)


def test_a_long_epoch_is_estimated_from_a_restart_and_its_typical_steps() -> None:
    """The first steps, which use batches made ahead, are not typical."""
    steps = [*epoch(30, [0] * 4 + [2] * 4), *epoch(20, [0] * 4 + [2] * 6)]
    assert epoch_of(steps, 1001) == Times(restart_s=25, waiting_s=2000, working_s=1001)
    assert epoch_of(steps, None) == Times(restart_s=0, waiting_s=2, working_s=1)
    assert epoch_of(steps[:1], None) == Times(restart_s=0, waiting_s=30, working_s=1)
    assert epoch_of(steps[1:3], 5) == Times(restart_s=0, waiting_s=0, working_s=5)


# Bounds and candidates


def measured(**figures: Any) -> Measured:
    usual: dict[str, Any] = {
        "waiting": 0.8, "restart": 0.0, "training": 100.0, "training_cpu_s": 0.02,
        "model": 1000.0, "model_cpu_s": 0.001, "model_on_device": None,
        "pipeline": 100.0, "decode": 110.0, "read": 5000.0,
    }  # fmt: skip
    return Measured(**{**usual, **figures})


def here(**facts: Any) -> Circumstances:
    usual: dict[str, Any] = {
        "num_steps": 50, "decoded_bytes": 150_528_000, "cache": "", "dtype": "uint8",
        "augments": False, "free_bytes": 1 << 34, "disk": "/tmp",
        "free_disk_bytes": 1 << 36,
    }  # fmt: skip
    return Circumstances(**{**usual, **facts})


IDLE = {"waiting": 0.02, "model": 102.0, "model_cpu_s": 0.019, "pipeline": 700.0}
VERDICTS = tomllib.loads((DATA / "verdicts.toml").read_text())


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == "none" else value for name, value in values.items()}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_stage_that_costs_most_bounds_and_changes_that_may_help_are_tried(case: str) -> None:
    row = VERDICTS[case]
    found, place = measured(**given(row["measured"])), here(**given(row["here"]))
    wanted = candidates(found, place)
    assert [one.trial for one in wanted] == row["tried"]
    said = conclude(found, place, [])
    assert said.bound == row["bound"]
    if found.model_on_device is None:
        assert not any("GPU" in one.advice or "accelerator" in one.advice for one in wanted)
    # Nothing was tried, so nothing is promised.
    assert (said.gain, said.saved) == (1.0, 0.0)
    assert str(said).endswith("; no change of reading helps")


# Advice


def change(name: str, images_s: float, cpu_s: float = 0.02) -> Change:
    options = {"repeat": True} if name == "repeat" else {"cache": name}
    return Change(name, options, images_s, cpu_s)


@pytest.mark.parametrize(
    ("tried", "advice", "gain", "saved"),
    [
        ([change("memory", 250), change("repeat", 120)], "memory", 2.5, 0.0),
        ([change("memory", 101), change("repeat", 103)], "repeat", 1.03, 0.0),
        ([change("memory", 104), change("repeat", 101)], None, 1.0, 0.0),
        ([change("memory", 98, 0.015), change("folder", 99, 0.017)], "memory", 1.0, 0.25),
        ([change("memory", 94, 0.001)], None, 1.0, 0.0),
        ([change("memory", 60)], None, 1.0, 0.0),
    ],
)
def test_the_best_change_that_was_tried_is_advised_with_its_own_figure(
    tried: list[Change], advice: str | None, gain: float, saved: float
) -> None:
    found = conclude(measured(), here(), tried)
    assert found.gain == pytest.approx(gain)
    assert found.saved == pytest.approx(saved)
    if advice is None:
        assert found.advice.startswith("nothing that was tried helps")
    else:
        assert found.advice == advice
    assert [one.images_s for one in found.changes] == sorted(
        (one.images_s for one in tried), reverse=True
    )


# The sentence

QUIET = "without other work on this machine, or use reader.StallMeter"


@pytest.mark.parametrize(
    ("figures", "tried", "unsure", "sentence"),
    [
        (
            {"model": 1445, "pipeline": 2000, "training": 819, "waiting": 0.15},
            [change("repeat", 917)],
            (),
            (
                "the model limits you: at most 1,445 images/s, you get 819; "
                "repeat gives about 12% more"
            ),
        ),
        (
            {"model": 300, "waiting": 0.7, "restart": 0.5, "pipeline": 200},
            [],
            (),
            (
                "restarts between epochs limit you: at most 200 images/s, you get 100; "
                "no change of reading helps"
            ),
        ),
        (
            {"read": 120.0, "pipeline": 110.0},
            [change("memory", 101, 0.01)],
            ("folder",),
            (
                "reading limits you: at most 110 images/s, you get 100; "
                "memory saves 50% of the processor time"
            ),
        ),
        (
            {},
            [change("memory", 99)],
            ("memory",),
            (
                "probably decoding limits you; not sure, because speeds vary by 30% between "
                f"measurements, you get about 100 images/s; repeat with seconds=30 {QUIET}"
            ),
        ),
        (
            {},
            [change("memory", 120)],
            None,
            (
                "probably decoding limits you; not sure, because speeds vary by 30% between "
                f"measurements, you get about 100 images/s; repeat with seconds=30 {QUIET}"
            ),
        ),
        (
            {"pipeline": 553, "training": 1794, "model": 4000},
            [],
            (),
            (
                "probably decoding limits you; not sure, because speeds vary by 224% between "
                f"measurements, you get about 1,794 images/s; repeat with seconds=30 {QUIET}"
            ),
        ),
        (
            {"pipeline": 2000, "training": 1050, "model": 1000, "waiting": 0.0},
            [],
            (),
            (
                "the model limits you: at most 1,050 images/s, you get 1,050; "
                "no change of reading helps"
            ),
        ),
    ],
)
def test_a_sentence_says_what_limits_and_what_a_change_gives(
    figures: dict[str, Any], tried: list[Change], unsure: Any, sentence: str
) -> None:
    spread = 0.0 if unsure == () else 0.3
    found = conclude(measured(**figures), here(), tried, unsure, spread=spread)
    assert str(found) == repr(found) == sentence
    assert found.is_sure == (not sentence.startswith("probably "))


@pytest.mark.parametrize("training", [50, 100, 104, 120, 1000, 5000])
def test_a_sentence_never_gives_a_bound_below_the_speed(training: int) -> None:
    sentence = str(conclude(measured(training=training), here(), [], ()))
    stated = re.search(r"at most ([\d,]+) images", sentence)
    assert stated is None or int(stated[1].replace(",", "")) >= training
    assert (stated is None) == (training > 120)
    assert re.search(f"you get (about )?{training:,}( images/s)?;", sentence)


def test_a_part_is_named_only_if_its_lead_is_larger_than_the_spread() -> None:
    """Here the pipeline is 8% slower than the model, and decoding costs 10% more than reading."""
    for figures, spread, is_sure in (
        ({"model": 108.0}, 0.05, True),
        ({"model": 108.0}, 0.1, False),
        ({"read": 208.0, "decode": 100.0}, 0.02, True),
        ({"read": 208.0, "decode": 100.0}, 0.1, False),
    ):
        found = conclude(measured(**figures), here(), [], spread=spread, longer_s=10)
        assert (found.is_sure, str(found).startswith("probably ")) == (is_sure, not is_sure)
        assert is_sure or str(found).endswith(f"; repeat with seconds=10 {QUIET}")


def test_a_part_that_leads_by_more_than_the_spread_is_named_although_rounds_disagree() -> None:
    for figures, tried, spread, is_sure in (
        ({"model": 18.7, "pipeline": 2084, "training": 24}, [change("memory", 26)], 1.18, True),
        ({"model": 1000, "pipeline": 2084, "training": 990}, [], 1.18, False),
        ({"waiting": 0.7, "restart": 0.5}, [], 0.1, False),
        ({}, [change("memory", 200)], 0.3, True),
    ):
        sentence = str(conclude(measured(**figures), here(), tried, None, spread=spread))
        assert sentence.startswith("probably ") != is_sure
        assert "  " not in str(conclude(measured(**figures), here(), tried, None, longer_s=0))


def test_a_candidate_names_what_to_pass_to_load() -> None:
    (repeat,) = candidates(measured(**IDLE, restart=0.3), here())
    assert repeat == Candidate("repeat", restart_advice(50), {"repeat": True})
    assert repeat.advice == "repeat=True in load, steps_per_epoch=50 in fit"
    (folder,) = candidates(measured(), here(free_bytes=1 << 20))
    assert folder.options == {"cache": "/tmp"}
    assert folder.advice == "cache='/tmp'"
