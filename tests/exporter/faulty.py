"""Exports killed just before one of their changes of the disk, each in a forked child."""

import itertools
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from shardprep.dataset.open_dataset import open_dataset
from shardprep.exporter.export import LAYOUTS, export_dataset
from tests.support.builders import Told, tree
from tests.writer.faulty import forked, kill_at_change


def killed(source: Path, place: Path, layout: str, numbers: Iterable[int]) -> int:
    """Kill exports before these changes, every second one while replacing another export.

    Return the number of kills.
    """

    def export(out: Path, kind: str = layout) -> None:
        export_dataset(open_dataset(source), kind, out, watcher=Told(), overwrite=True)

    export(place / "whole")
    export(place / "other", next(one for one in LAYOUTS if one != layout))
    whole, old = tree(place / "whole"), tree(place / "other")
    top = place / "top"
    for tried, number in enumerate(numbers):
        replaces, out = tried % 2 == 1, top / "out"
        top.mkdir()
        if replaces:
            shutil.copytree(place / "other", out)

        def faulty(out: Path = out, number: int = number) -> None:
            kill_at_change(number, out)
            export(out)

        code = forked(faulty)
        if code == 0:
            return tried
        assert code == -signal.SIGKILL
        mine = {n: d for n, d in tree(out).items() if not n.startswith((".lock", ".replaced/"))}
        assert mine in ({}, whole, *([old] if replaces else [])), f"change {number}: {list(mine)}"
        if replaces and not mine:
            kept = tree(top / "out.incomplete" / ".replaced")
            assert kept == old, "what is replaced stays until then"
        export(out)
        assert tree(top) == {f"out/{name}": data for name, data in whole.items()}, number
        shutil.rmtree(top)
    raise AssertionError


def kill_exports(dataset: Path, folder: Path, step: int) -> dict[str, int]:
    """Kill exports in each layout before every `step`-th change; return the number of kills.

    Each layout starts at another change, as layouts share most of them.
    """
    tried = {}
    for first, layout in enumerate(LAYOUTS):
        (folder / layout).mkdir()
        numbers = itertools.count(1 + first % step, step)
        twice = (number for number in numbers for _ in range(2))
        tried[layout] = killed(dataset, folder / layout, layout, twice)
    return tried
