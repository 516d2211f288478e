"""shardprep: raw Kaggle images in, training-ready TFRecord shards and a matching reader out.

archives of raw images → a catalog of items → a plan of shards → chunks of encoded examples, in
parallel → shards of records → a manifest; the reader needs nothing but the folder.

    cli/        the command line: what is asked for, and what is printed
    api/        each command as a function: `shardprep.build` and the others
    verifier/   is a dataset what its manifest says; repair
    reporter/   findings and pictures of a dataset, as one page
    exporter/   dataset → the layouts of other libraries
    benchmark/  the pipelines that `shardprep bench` compares
    writer/     recipe → dataset: plan, chunk, shard, workspace, engine
    catalog/    members and tables → labelled items
    reader/     dataset → batches, with TensorFlow (`tf/`) and without (`arrays/`)
    recipe/     every option of a build once
    source/     folders, archives, addresses, Kaggle → members
    dataset/    the format on disk
    image/      bytes → pixels → bytes
    storage/    files and objects: complete or absent
    errors, machine, profiling, progress

A room imports only rooms below it in this list. Three rules hold them together: a bad image is a
value and a broken run is an exception; a shard under its final name is complete; equal recipes give
equal bytes. docs/architecture.md shows the ways and states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardprep.errors import (
    BuildError,
    BusyError,
    DatasetError,
    InternalError,
    RecipeError,
    RecordError,
    SchemaError,
    ShardprepError,
    SourceError,
    StorageError,
)

if TYPE_CHECKING:
    from shardprep import reader
    from shardprep.api.bench import bench
    from shardprep.api.build import build
    from shardprep.api.diff import diff
    from shardprep.api.download import download
    from shardprep.api.export import export
    from shardprep.api.fetch import fetch
    from shardprep.api.finalize import finalize
    from shardprep.api.init import init
    from shardprep.api.inspect import inspect
    from shardprep.api.progress import Progress
    from shardprep.api.repack import repack
    from shardprep.api.report import report
    from shardprep.api.sample import sample
    from shardprep.api.upload import upload
    from shardprep.api.verify import repair, verify
    from shardprep.api.view import view
    from shardprep.writer.finalize import TooManyRejectedError

    __version__: str

__all__ = [
    "BuildError",
    "BusyError",
    "DatasetError",
    "InternalError",
    "Progress",
    "RecipeError",
    "RecordError",
    "SchemaError",
    "ShardprepError",
    "SourceError",
    "StorageError",
    "TooManyRejectedError",
    "__version__",
    "bench",
    "build",
    "diff",
    "download",
    "export",
    "fetch",
    "finalize",
    "init",
    "inspect",
    "reader",
    "repack",
    "repair",
    "report",
    "sample",
    "upload",
    "verify",
    "view",
]
_VALUES = {
    "Progress": "shardprep.api.progress",
    "TooManyRejectedError": "shardprep.writer.finalize",
}
"""Name of what is no function → its module."""


def __getattr__(name: str) -> Any:
    """Import what is asked for: a program that only reads pays for nothing else."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("shardprep")
    else:
        from importlib import import_module

        if name == "reader":
            return import_module("shardprep.reader")
        if name in _VALUES:
            found = getattr(import_module(_VALUES[name]), name)
        else:
            module = import_module(f"shardprep.api.{'verify' if name == 'repair' else name}")
            found = import_module("shardprep.api.python_api").in_python(getattr(module, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
