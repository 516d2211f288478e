"""Start times: whole processes that do little, as multiples of `python -c 'import numpy'`.

The time of a command includes the interpreter, the imports and the parsing of options. The source
of the build is 20 photos. From the time of `load`, the time of a process that only imports
TensorFlow is subtracted.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import photos
from benchmarks.measure import Cost, Measure, Row, built, interleaved, run, shardprep
from benchmarks.table import alone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUILD = Measure("small build / `import numpy`", "<= 7.0")
INSPECT = Measure("`inspect` of 1,800 photos", "<= 4.0")
VERIFY = Measure("`verify` of 20 photos")
READER = Measure("`import shardprep.reader`")
DATASET = Measure("first batch of `Dataset`, 1,800 photos", "<= 4.5")
LOAD = Measure("the same of `load`, without TensorFlow")
MEASURES = (BUILD, INSPECT, VERIFY, READER, DATASET, LOAD)

_FEW = 20
_BATCH = "from shardprep import reader; next(iter(reader.{}))"


def rows(folder: Path, rounds: int, *, quick: bool) -> list[Row]:
    """Return the ratios of wall time."""
    few = photos.write_folder(folder / "few", _FEW)
    many = photos.write_folder(folder / "many", _FEW if quick else 1800)
    small, large = built(folder / "small", few), built(folder / "large", many, "--size", "224x224")

    def python(code: str) -> Cost:
        return run([sys.executable, "-c", code], folder)

    def build() -> Cost:
        shutil.rmtree(folder / "out", ignore_errors=True)
        return shardprep(folder, "build", few, "--out", folder / "out")

    dataset, load = f"Dataset({str(large)!r}).batches(64)", f"load({str(large)!r}, batch_size=64)"
    ways: dict[Measure, Callable[[], Cost]] = {
        BUILD: build,
        INSPECT: partial(shardprep, folder, "inspect", large),
        VERIFY: partial(shardprep, folder, "verify", small),
        READER: partial(python, "import shardprep.reader"),
        DATASET: partial(python, _BATCH.format(dataset)),
        LOAD: partial(python, _BATCH.format(load)),
    }
    named = {measure.name: way for measure, way in ways.items()}
    named |= {one: partial(python, f"import {one}") for one in ("numpy", "tensorflow")}
    cost = interleaved(named, rounds)
    base = cost["numpy"].wall_s
    taken = {measure: cost[measure.name].wall_s for measure in ways}
    taken[LOAD] -= cost["tensorflow"].wall_s
    return [
        measure.came_to(wall / base, f"{wall:.3f} / {base:.3f} s")
        for measure, wall in taken.items()
    ]


if __name__ == "__main__":
    alone(rows, __doc__)
