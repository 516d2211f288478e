"""shardprep: convert raw Kaggle images to TFRecord shards, and read them for training.

A build lists the members of the source archives, assigns labels and splits, plans the shards,
encodes the images in parallel, writes the shards, and publishes a manifest. The reader needs only
the dataset folder.

    cli/        the command line: options, output, exit codes
    api/        each command as a function: `shardprep.build` and the others
    verifier/   checks of a dataset against its manifest; repair
    reporter/   findings and pictures of a dataset as an HTML page; the viewer
    exporter/   dataset → the layouts of other libraries
    benchmark/  the pipelines that `shardprep bench` compares
    writer/     recipe → dataset: plan, chunk, shard, workspace, engine
    catalog/    members and tables → labelled items
    reader/     dataset → batches, with TensorFlow (`tf/`) and without (`arrays/`)
    recipe/     the options of a build and their rules
    source/     folders, archives, addresses, Kaggle → members
    dataset/    the format on disk
    image/      bytes → pixels → bytes
    storage/    local files and object storage: atomic writes
    errors, machine, processes, profiling, progress

A package imports only packages below it in this list. Three rules apply everywhere. A bad image is
a value, and a failed run is an exception. A shard under its final name is complete. The same source
and recipe give the same bytes. docs/architecture.md describes the data flow and the build states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardprep.errors import (
    BuildError,
    BusyError,
    DatasetError,
    InternalError,
    QuestionError,
    RecipeError,
    RecordError,
    SchemaError,
    ShardprepError,
    SourceError,
    StorageError,
)

if TYPE_CHECKING:
    from shardprep import reader
    from shardprep.api.builds import build, finalize, init, sample
    from shardprep.api.checks import diff, leaks, verify
    from shardprep.api.reports import bench, inspect, report, view
    from shardprep.api.transfers import download, export, fetch, repack, upload
    from shardprep.progress import Progress
    from shardprep.writer.finalize import TooManyRejectedError

    __version__: str

__all__ = [
    "BuildError",
    "BusyError",
    "DatasetError",
    "InternalError",
    "Progress",
    "QuestionError",
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
    "leaks",
    "reader",
    "repack",
    "report",
    "sample",
    "upload",
    "verify",
    "view",
]
_CLASS_MODULES = {
    "Progress": "shardprep.progress",
    "TooManyRejectedError": "shardprep.writer.finalize",
}


def __getattr__(name: str) -> Any:
    """Import and return a public name at its first use, so that `import shardprep` stays fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=None)
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("shardprep")
    else:
        from importlib import import_module

        if name == "reader":
            return import_module("shardprep.reader")
        if name in _CLASS_MODULES:
            value = getattr(import_module(_CLASS_MODULES[name]), name)
        else:
            from shardprep.api import COMMANDS

            command = getattr(import_module(f"shardprep.api.{COMMANDS[name]}"), name)
            value = import_module("shardprep.api.python_api").in_python(command)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
