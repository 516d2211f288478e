"""Datasets that a stranger has changed and signed anew: a result or one line, for every command.

`make soak` tries many more.
"""

import resource
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from tests.dataset.resigned import Signed
from tests.dataset.signed_mutations import (
    KINDS,
    LINE,
    NUM_GATE,
    READERS,
    RESULT,
    bases,
    ends,
    mutated,
)

MOST_MEGABYTES = 600
"""Memory that all cases together may add to the process, TensorFlow included."""


@pytest.fixture(name="sets", scope="module")
def _sets(tmp_path_factory: pytest.TempPathFactory) -> list[Signed]:
    return bases(tmp_path_factory.mktemp("sets"))


def test_a_dataset_that_is_signed_anew_without_a_change_is_read_by_all(
    sets: list[Signed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    whole = sets[0]
    found = ends(whole.write(tmp_path / "signed"), whole.folder, tmp_path)
    assert {name for (name, end) in found if end == RESULT} >= {*READERS} - {"inspect --boxes"}


@pytest.mark.timeout(300)
def test_whatever_is_changed_ends_with_a_result_or_one_line(
    sets: list[Signed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six neighbours of every fifth seed have each kind of change and each dataset."""
    monkeypatch.setenv("SHARDPREP_CACHE", str(tmp_path / "cache"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    total: Counter[str] = Counter()
    for seed in range(0, 5 * NUM_GATE * settings().max_examples // 100, 5):
        base, work = sets[seed // len(KINDS) % len(sets)], tmp_path / str(seed)
        work.mkdir()
        found = ends(mutated(base, seed).write(work / "set"), base.folder, work)
        assert {name for name, _ in found} == {*READERS}
        total.update(end for _, end in found)
    assert total[RESULT], total
    assert total[LINE], total
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10) - before < MOST_MEGABYTES
