"""Pairs of runs of the writer that share a place in object storage, and their checks.

The gate plays some of the orders, `make soak` many more.

The runs are real runs of the program. Only listing, decoding and encoding of images, which use no
store, are done once for all schedules.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from unittest import mock

from shardprep.dataset.manifest import MANIFEST_FILE, Fingerprint
from shardprep.errors import ShardprepError
from shardprep.progress import Watch
from shardprep.recipe.recipe import make_recipe
from shardprep.writer import build
from shardprep.writer.build import RecipeImages, build_part
from shardprep.writer.engine.job import ItemCounts, OnProgress, ShardJob, Workers
from shardprep.writer.finalize import BuildResult, finalize_dataset
from shardprep.writer.plan.build_plan import BuildPlan
from shardprep.writer.plan.fingerprint import make_fingerprint
from shardprep.writer.plan.shard_plan import Part, ShardPlan
from shardprep.writer.run import make_dataset
from shardprep.writer.shard import ShardHead
from shardprep.writer.workspace.states import workspace_of
from tests.support.builders import Quiet, animals, write, zip_bytes
from tests.writer.two_runs import Killed, Objects, Scenario, World, opened

WHERE = "sets/pets/1.0.0"
STATE = f"{WHERE}.incomplete"
MOST_STEPS = 90
"""Steps after which every run is over that nobody disturbs."""
FATES = ("", "kill", "interrupt")
"""Fates of the first run in random orders; "" for none."""
STRIDE = 17
"""The suite plays one pause in this many steps."""


class Recipe:
    """A build of two photos, any number of times."""

    work = "encoding"

    def __init__(self, **keys: Any) -> None:
        self._keys = keys
        self._chunks: dict[str, list[Any]] = {}

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="equal-builds-")

    @cached_property
    def recipe(self) -> Any:
        source = write(Path(self._folder.name) / "pets.zip", zip_bytes(animals(2)))
        given = {"source": str(source), "out": "s3://bucket/sets", "size": "8x8", "shards": 1}
        return make_recipe({**given, **self._keys}, "test")

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return make_fingerprint(self.recipe)

    @cached_property
    def _images(self) -> RecipeImages:
        return RecipeImages(self.recipe, self.fingerprint, Workers(self._engine, 1))

    @cached_property
    def _plan(self) -> BuildPlan:
        return self._images.plan(Path(self._folder.name), Quiet())

    # --- what `BuildImages` promises ---

    def plan(self, scratch: Path, watcher: Watch) -> BuildPlan:
        del scratch, watcher
        return self._plan

    def outline(self, plan: BuildPlan, num_parts: int) -> Any:
        return self._images.outline(plan, num_parts)

    def write(self, *arguments: Any) -> None:
        self._images.write(*arguments)

    def check(self) -> None: ...

    def _engine(
        self, job: ShardJob, shards: Sequence[ShardPlan], _: int, on_progress: OnProgress
    ) -> None:
        for shard in shards:
            writer = job.writer(ShardHead(shard.name, shard.split, len(shard.items)))
            tasks = list(job.tasks(shard))
            if shard.name not in self._chunks:
                self._chunks[shard.name] = [job.encoder(task, lambda: None) for task in tasks]
            for task, chunk in zip(tasks, self._chunks[shard.name], strict=True):
                writer.append(task.items, chunk)
            writer.commit()
            on_progress(ItemCounts(len(shard.items)))

    # --- commands ---

    def build(self) -> object:
        return self._to_dataset(overwrite=False)

    def overwrite(self) -> object:
        """Build the dataset and replace what exists."""
        return self._to_dataset(overwrite=True)

    def _to_dataset(self, *, overwrite: bool) -> BuildResult:
        return make_dataset(workspace_of(self.recipe), self, Quiet(), overwrite=overwrite)

    def part(self, number: int) -> Callable[[], object]:
        def work() -> object:
            with mock.patch.object(build, "RecipeImages", return_value=self):
                return build_part(self.recipe, Part(number, 2), Workers(self._engine, 1), Quiet())

        return work

    def finalize(self) -> object:
        return finalize_dataset(workspace_of(self.recipe), num_threads=1)


def after(there: Objects, *runs: Callable[[], object], steps: int | None = None) -> Objects:
    """Return the objects after some runs, one after the other; the last is killed after `steps`."""
    for number, work in enumerate(runs, 1):
        with opened(there, {f"before {len(there)} {number}": work}) as world:
            (name,) = world.runners
            while world.waiting() and (number < len(runs) or world.num_steps != steps):
                world.step(name)
            outcome = world.runners[name].outcome
            assert world.waiting() or not isinstance(outcome, BaseException), repr(outcome)
            there = dict(world.objects)
    return there


def files_of(objects: Objects) -> dict[str, bytes]:
    """Return the files of the dataset as a reader finds them; {} without a dataset."""
    root = {key.removeprefix(f"{WHERE}/"): data for key, data in objects.items() if WHERE in key}
    manifest = root.get(MANIFEST_FILE)
    if manifest is None:
        return {}
    for name in [name for name in root if name.startswith(".draft-")]:
        prefix, _, file = name.partition("/")
        if root.get(f"{prefix}/{MANIFEST_FILE}") == manifest:
            root[file] = root[name]
    return root


@dataclass(frozen=True)
class Meeting:
    """Two runs that meet somewhere."""

    there: Objects
    runs: Mapping[str, Callable[[], object]]
    wholes: Sequence[Objects]
    """Datasets that may be there at any moment, each with all its objects."""
    ends: Objects | None
    """All objects when two equal runs are over; None where the runs differ."""
    is_prompt: bool = False
    """As in `World`."""

    def scenario(self) -> Scenario:
        return Scenario(self.there, self.runs, self.check, self.check_moment, self.is_prompt)

    def check_moment(self, objects: Objects) -> None:
        """Check that a finished dataset is there, if one was, and that it is whole."""
        found = files_of(objects)
        if not found:
            assert not files_of(self.there), "a finished dataset was removed"
            return
        whole = [files_of(one) for one in self.wholes]
        fits = [one for one in whole if one.items() <= found.items()]
        assert fits, "the dataset is not whole"

    def check(self, world: World) -> None:
        ends = {name: runner.outcome for name, runner in world.runners.items()}
        lost = {name for name, end in ends.items() if isinstance(end, Killed | KeyboardInterrupt)}
        errors = {name: end for name, end in ends.items() if isinstance(end, BaseException)}
        assert all(
            isinstance(one, ShardprepError) for name, one in errors.items() if name not in lost
        )
        if self.ends is None:
            self._check_unequal(world.objects, errors)
            return
        assert errors.keys() == lost, "one of two equal runs has failed"
        if lost:
            left = after(world.objects, self.runs[next(iter(lost))])
            assert left == self.ends, "the same command does not bring the same dataset"
        else:
            assert world.objects == self.ends, sorted(world.objects.keys() ^ self.ends.keys())

    def _check_unequal(self, objects: Objects, errors: Mapping[str, BaseException]) -> None:
        if len(errors) < len(self.runs):
            assert files_of(objects), "a run ended well, and no dataset is there"


def meetings() -> dict[str, Callable[[], Meeting]]:
    new, old, raw, parts = Recipe(), Recipe(format="png"), Recipe(format="raw"), Recipe(shards=2)

    @cache
    def whole(recipe: Recipe) -> Objects:
        return after({}, recipe.build)

    def equal(there: Objects, recipe: Recipe, one: str, two: str = "", *others: Recipe) -> Meeting:
        commands = {"build": recipe.build, "overwrite": recipe.overwrite,
                    "finalize": recipe.finalize, "part": recipe.part(1)}  # fmt: skip
        runs = {"a": commands[one], "b": commands[two or one]}
        return Meeting(there, runs, [*map(whole, (recipe, *others))], whole(recipe))

    def unequal(there: Objects, one: Callable[[], object], two: Callable[[], object]) -> Meeting:
        # A store cannot withhold what was sent before another build took over.
        wholes = [*map(whole, (new, old, raw))]
        return Meeting(there, {"a": one, "b": two}, wholes, None, is_prompt=True)

    shard = "pets-train.tfrecord-0000"
    left = {
        f"{WHERE}/{shard}7-of-00009": b"of a dead build",
        f"{WHERE}/{shard}0-of-00001": b"of a dead build",
        f"{WHERE}/.draft-12345/{shard}0-of-00001": b"of a dead build",
        f"{STATE}/.parts/{shard}0-of-00001.parquet": b"of a dead build",
    }
    return {
        "nothing": lambda: equal({}, new, "build"),
        "leftovers": lambda: equal(left, new, "build"),
        "the same, dead": lambda: equal(after({}, new.build, steps=24), new, "build"),
        "over a dataset": lambda: equal(whole(old), new, "overwrite", "", old),
        "over the same dataset": lambda: equal(whole(new), new, "overwrite"),
        "over another, dead": lambda: equal(after({}, old.build, steps=24), new, "overwrite"),
        "over a dataset and another, dead": lambda: equal(
            after(whole(raw), old.overwrite, steps=24), new, "overwrite", "", raw
        ),
        "in force, dead": lambda: equal(
            after(whole(old), new.overwrite, steps=50), new, "overwrite", "", old
        ),
        "in force, dead, nothing asked": lambda: equal(
            after(whole(old), new.overwrite, steps=50), new, "build", "", old
        ),
        "over a dataset and beside it": lambda: equal(whole(new), new, "overwrite", "build"),
        "parts, finalized": lambda: equal(
            after({}, parts.part(1), parts.part(2)), parts, "finalize"
        ),
        "parts, one again": lambda: equal(
            after({}, parts.part(1), parts.part(2)), parts, "part", "finalize"
        ),
        "parts, the last and a build": lambda: equal(
            after({}, parts.part(2)), parts, "part", "build"
        ),
        "others": lambda: unequal({}, new.build, old.build),
        "others, one over it": lambda: unequal({}, new.build, old.overwrite),
        "others, both over it": lambda: unequal({}, new.overwrite, old.overwrite),
        "others, both over a dataset": lambda: unequal(whole(raw), new.overwrite, old.overwrite),
        "others, both over one of them": lambda: unequal(whole(new), new.overwrite, old.overwrite),
    }


def num_orders() -> int:
    """Return how many orders of requests the gate plays."""
    return len(meetings()) * (MOST_STEPS // STRIDE + len(FATES))
