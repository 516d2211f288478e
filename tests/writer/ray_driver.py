"""Builds on Ray with faults: python -m tests.writer.ray_driver ADDRESS FOLDER.

One process runs all builds, because a start is slow. It prints their errors as a JSON object.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from shardprep.errors import BuildError
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.build import build_dataset
from shardprep.writer.engine.job import Engine, ShardJob, Workers
from shardprep.writer.engine.ray_cluster import connected
from shardprep.writer.plan.fingerprint import versions
from tests.support.builders import Deadly, Quiet

KEYS: dict[str, Any] = {
    "shards": 4,
    "size": "32x32",
    "labels": "prefix",
    "boxes": "coco",
    "masks": "coco",
    "instances": True,
}
DEADLY = "train/dog.7.jpg"


@dataclass(frozen=True)
class WithADeadlyImage:
    """Runs an engine with an encoder that one image ends, with all of its process."""

    engine: Engine

    def __call__(self, job: ShardJob, *rest: Any) -> None:
        deadly = replace(job, encoder=Deadly(job.encoder, DEADLY))  # type: ignore[arg-type]
        self.engine(deadly, *rest)


def built(folder: Path, out: str, engine: Engine) -> str:
    keys = {"source": str(folder / "pets.zip"), "out": str(folder / out), **KEYS}
    try:
        # A task at a time has several shards.
        build_dataset(make_recipe(keys, "test"), Workers(engine, 1), Quiet())
    except BuildError as error:
        return str(error)
    return ""


def asked_a_worker_that_dies(mark: Path) -> str:
    """Ask each node a question; the first worker that hears it is killed. Return the error."""
    from shardprep.writer.engine import ray_engine
    from shardprep.writer.engine.ray_cluster import nodes

    def question(mark: str) -> str:
        import os
        import signal

        try:
            os.mkdir(mark)  # noqa: PTH102 - one of several workers makes it
        except FileExistsError:
            return ""
        os.kill(os.getpid(), signal.SIGKILL)
        return "is not dead"

    try:
        ray_engine._check(ray_engine._ask(nodes(), question, str(mark)))
    except BuildError as error:
        return str(error)
    return "" if mark.exists() else "nobody died"


def main(address: str, folder: Path) -> None:
    with connected(address):
        from shardprep.writer.engine import ray_cluster, ray_engine
        from shardprep.writer.engine.ray_engine import by_shards

        found = {
            "as ever": built(folder, "ray", by_shards),
            "a deadly image": built(folder, "ray-deadly", WithADeadlyImage(by_shards)),
        }
        other = {**versions(), "libjpeg_turbo": "9.9.9"}
        with mock.patch.object(ray_cluster, "versions", return_value=other):
            found["another libjpeg"] = built(folder, "other", by_shards)
        with mock.patch.object(ray_engine, "version", return_value="9.9.9"):
            found["another shardprep"] = built(folder, "other", by_shards)
        found["a worker that dies"] = asked_a_worker_that_dies(folder / "died")
    print(json.dumps(found))  # noqa: T201 - the report


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
