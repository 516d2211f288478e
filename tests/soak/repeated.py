"""Trials that the suite makes some of, all of them: the first part of `make soak`.

python -m tests.soak.repeated           faults of the disk, orders of two runs,
                                        datasets signed anew, training on clusters that change,
                                        mutated files of images and arrays
python -m tests.soak.repeated NAME ...  all orders of these meetings of two runs: some hours
"""

import hashlib
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.exporter.faulty import kill_exports
from tests.support.annotated import annotated
from tests.support.builders import animals, write, zip_bytes
from tests.support.processes import skip_fsync
from tests.writer.faulty import LEAST, run_plan
from tests.writer.meetings import FATES, MOST_STEPS, meetings
from tests.writer.two_runs import all_orders, drawn_order, one_change

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_NUM_DRAWN = 40


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def faults(folder: Path) -> None:
    source = write(folder / "pets.zip", zip_bytes(animals(8)))
    for plan, least in LEAST.items():
        place = folder / plan
        place.mkdir()
        made = run_plan(plan, source, place, 1)
        assert made >= least or "disk" in plan, f"{plan}: {made} of {least}"
        _say(f"{plan}: {made} faults")  # none where no disk of its own may be mounted
    (folder / "exports").mkdir()
    tried = kill_exports(annotated(folder / "marked"), folder / "exports", 1)
    _say(f"killed exports: {tried}")


def orders(folder: Path) -> None:
    """Play each single pause of both runs of each meeting, and random orders."""
    del folder
    for name, make in meetings().items():
        meeting = make()
        for run in meeting.runs:
            for num_steps in range(MOST_STEPS):
                one_change(meeting.scenario(), run, num_steps)
        for fate in FATES:
            for seed in range(_NUM_DRAWN):
                drawn_order(meeting.scenario(), seed, fate)
        _say(f"two runs, {name}: ended well")


def every_order(name: str) -> None:
    for fates in ((), (("a", "kill"), ("a", "interrupt"))):
        number = all_orders(meetings()[name]().scenario(), fates)
        _say(f"{name}: {number:,} schedules with {fates or 'no fault'}")


def signed_datasets(folder: Path) -> None:
    from tests.dataset.signed_mutations import KINDS, NUM_SOAK, bases, ends, mutated

    os.environ["SHARDPREP_CACHE"] = str(folder / "cache")
    sets, total = bases(folder / "bases"), Counter[str]()
    for seed in range(NUM_SOAK):
        base, work = sets[seed // len(KINDS) % len(sets)], folder / str(seed)
        work.mkdir()
        found = ends(mutated(base, seed).write(work / "set"), base.folder, work)
        total.update(end for _, end in found)
        shutil.rmtree(work)
    ended = ", ".join(f"{number:,} with {end}" for end, number in total.items())
    _say(f"{NUM_SOAK} datasets signed anew: {ended}")


def training_runs(folder: Path) -> None:
    """Compare plans of clusters that change with one host, and print the SHA-256 of all streams."""
    from tests.reader.clusters import NUM_READ_SOAK, NUM_SOAK, datasets, planned, read

    places = datasets(folder)
    for name, number, play in (
        ("plans", NUM_SOAK, planned),
        ("plans that are read", NUM_READ_SOAK, lambda seed: read(seed, places)),
    ):
        alone, together = hashlib.sha256(), hashlib.sha256()
        for seed in range(number):
            streams = play(seed)
            alone.update(streams.alone)
            together.update(streams.together)
            assert alone.digest() == together.digest(), f"{name}: {seed}"
        _say(f"{number:,} {name}: nothing lost or doubled, SHA-256 {together.hexdigest()}")


def mutated_files(folder: Path) -> None:
    from tests.catalog.mutated_documents import try_out
    from tests.catalog.mutated_files import NUM_FILES, NUM_SOAK, mutated, survey

    tally = try_out(range(NUM_FILES, NUM_SOAK), folder, mutated, survey)
    assert not tally.faults, tally.faults
    _say(f"mutated files: {tally.built:,} built, {tally.refused:,} refused in one line")


def main(names: list[str]) -> int:
    """Return 1 if a part failed. Its files are then kept."""
    skip_fsync()
    for name in names:
        every_order(name)
    parts: list[Callable[[Path], None]] = (
        [] if names else [faults, orders, signed_datasets, training_runs, mutated_files]
    )
    failed = 0
    for part in parts:
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        try:
            part(folder)
        except Exception:
            failed += 1
            sys.stderr.write(f"{part.__name__}, in {folder}:\n{traceback.format_exc()}"[:4000])
        else:
            shutil.rmtree(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
