"""A short soak, in a store that fails: images are neither lost nor wrong."""

from pathlib import Path

import pytest

from tests.soak.record import RECORD, load
from tests.soak.source import Size, write_source
from tests.soak.truth import Tally, Truth
from tests.support.processes import run_program

NUM_IMAGES, NUM_PHOTOS, NUM_ATTACKS = 500, 10, 5


@pytest.mark.thorough
def test_builds_under_attack_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("moto.server")
    (tmp_path / "soak").mkdir()
    run_program(
        "import sys; from tests.soak.__main__ import main; assert main(sys.argv[1:]) == 0",
        "--images", NUM_IMAGES, "--photos", NUM_PHOTOS, "--attacks", NUM_ATTACKS, "--stop", 1,
        "--shards", 6, "--places", "store",
        "--folder", tmp_path / "soak", "--record", tmp_path / "record.json",
    )  # fmt: skip
    record = load(tmp_path / "record.json")
    assert not record.problems
    num_cut = NUM_IMAGES // 500
    (one,) = record.ordeals
    assert len(one.blows) == NUM_ATTACKS
    assert one.num_builds >= 1
    assert sum(one.requests.values()) >= 1
    assert one.num_rejected == num_cut
    assert one.num_written == NUM_IMAGES + NUM_PHOTOS - num_cut


def test_the_oracle_finds_lost_wrong_and_duplicate_records(tmp_path: Path) -> None:
    write_source(tmp_path / "soak.zip", Size(20, 3), seed=1)
    truth = Truth.of(tmp_path / "soak.zip")
    assert (len(truth.images), truth.num_others) == (23, 1)
    images = dict(truth.members())
    first, second, third, *_ = keys = [*truth.images]
    tally = Tally(truth)
    for key in (*keys[1:], third):
        tally.add(key, truth.images[key].label)
    assert tally.lost(set()) == sorted([first, third])
    assert tally.lost({first, second}) == sorted([second, third])
    tally.add_bytes(second, images[second])
    assert not tally.wrong
    tally.add(first, "another")
    tally.add_bytes(second, images[third])
    assert [line.partition(":")[0] for line in tally.wrong] == [first, second]


def test_the_published_record_has_no_problem() -> None:
    assert not load(RECORD).problems
