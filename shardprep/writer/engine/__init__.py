"""The engine of a build: processes of this machine write its shards.

`job` describes what to write, `pool` runs the workers, and `worker_main` runs in them. Their
number does not affect the bytes. How parent and worker work together:

- The worker sends b"" when it is up. The parent sends one `ChunkOrder` at a time: a chunk to
  encode, and for an owned shard its head. The worker answers each order once: with `ChunkResult`
  and the records, which the parent writes, or with `ShardProgress` if the worker has written the
  chunk to its own shard.
- An owned shard belongs to one worker, which writes, hashes and commits the file; no record passes
  through the parent. After the last chunk, the worker commits in a thread while it encodes the next
  shard, and sends `ShardCommitted` in the order of its shards. `LogLine` may be sent at any time.
- The chunks of a shared shard go to any worker, and the parent writes them in order.
- A worker that lacks memory exits with `STARVED`, and SIGALRM ends a worker whose item takes too
  long. Both count as deaths. Any other exception is sent as the answer and ends the build.
- When a worker dies, the parent starts another one. The temporary files of its uncommitted shards
  are removed, their progress is taken back, and they are shared from then on. The chunk that the
  worker was encoding is *suspect*: its items are tried one by one, and an item that ends the worker
  again is rejected. After SIGKILL, which means a lack of memory, an item has four more tries.
"""

PRELOADED = ["shardprep.writer.engine.preloaded"]
"""Modules that the fork server imports before it forks workers."""
