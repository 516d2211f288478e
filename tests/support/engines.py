"""An engine that gives chunks to any runner, such as one in this process."""

from __future__ import annotations

import contextlib
from itertools import chain, islice
from typing import TYPE_CHECKING

from shardprep.writer.engine.job import of_shards, write_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from shardprep.writer.encode.chunk import ChunkTask, EncodedChunk
    from shardprep.writer.engine.job import Encoder, Engine, Progress, ShardJob
    from shardprep.writer.engine.worker_process import WorkerLimits
    from shardprep.writer.plan.shard_plan import ShardPlan

    ChunkRunner = Callable[
        [Encoder, Iterable[ChunkTask], int, WorkerLimits], Generator[EncodedChunk]
    ]


def by_chunks(run: ChunkRunner) -> Engine:
    """Return the engine that writes shards here, one after the other, from chunks of a runner."""

    def engine(job: ShardJob, shards: Sequence[ShardPlan], num_workers: int) -> Generator[Progress]:
        tasks = (task for shard in shards for task in job.tasks(shard))
        first = list(islice(tasks, num_workers))  # workers without a task are not started
        with contextlib.closing(
            run(job.encoder, chain(first, tasks), max(1, len(first)), job.limits)
        ) as found:
            yield from write_chunks(job, of_shards(shards, found))

    return engine
