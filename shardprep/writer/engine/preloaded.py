"""Import the modules of workers in the server that starts them.

A lack of memory is not an error here: the first worker that lacks a module reports it.
"""

import contextlib
from importlib import import_module

with contextlib.suppress(MemoryError, OSError):
    for _name in ("shardprep.writer.engine.worker_main", "shardprep.writer.chunk_encoder"):
        import_module(_name)
