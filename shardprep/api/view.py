"""`shardprep.view`: a dataset in a browser of this machine."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at, local_source, number
from shardprep.api.watched import watched
from shardprep.errors import RecipeError, SourceError
from shardprep.recipe.options import DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from shardprep.api.progress import Show, Watch
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reporter.viewer.routes import Originals
    from shardprep.reporter.viewer.viewer import Viewer

_MOST_ORIGINAL = 256 << 20
"""Bytes of an original that is shown."""
_HOSTED = {"KAGGLE_KERNEL_RUN_TYPE": "Kaggle", "COLAB_RELEASE_TAG": "Colab"}
"""Environment variable of a machine whose ports reach nobody → its name."""


OPTIONS = {
    "dataset": DATASET,
    "source": Option(
        "Source of the dataset, or the folder of build --save-rejected, to show originals and "
        "rejected images too.",
        metavar="SOURCE",
    ),
    "port": Option(
        "Port of the server, which listens on this machine only; 0 for any free port.",
        metavar="N",
        shown="0",
        most=65_535,
    ),
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def view(
    dataset: str | Path | None = None,
    *,
    source: str | Path | None = None,
    port: int | None = None,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Viewer:
    """Return a viewer that serves a dataset to browsers of this machine, until it is closed.

    Raises:
        DatasetError: there is no such dataset, or a document of it is missing or damaged.
        RecipeError: the port is taken, or nobody would reach it.
        SourceError: the source is missing or damaged.

    """
    from shardprep.reporter.viewer.viewer import serve

    for variable, host in _HOSTED.items():
        if os.environ.get(variable):
            what = f"no port of a {host} notebook reaches your browser"
            hint = "shardprep report writes a page with pictures, to open here or to download"
            raise RecipeError("shardprep view", what, hint)
    free_or_asked = 0 if port is None else number("port", port, OPTIONS["port"], int)
    with ExitStack() as ending, watched(progress) as watch:
        ending.enter_context(answering(store_timeout))
        found = dataset_at(dataset)
        originals = None
        if source is not None:
            originals = _originals(str(source), found, ending, watch)
        return serve(found, free_or_asked, originals, ending)


def _originals(source: str, dataset: OpenDataset, ending: ExitStack, watch: Watch) -> Originals:
    """Return what gives originals: of a folder of rejected images, else of the source."""
    # Whoever looks at a dataset alone does not wait for what lists a source.
    from shardprep.recipe.recipe import outputs
    from shardprep.source.byte_range import MemberError
    from shardprep.source.listing import list_source
    from shardprep.writer.plan.plan import recorded_recipe
    from shardprep.writer.save_rejected import LIST_FILE, read_copy

    if not is_url(source) and (Path(source) / LIST_FILE).is_file():
        return partial(read_copy, Path(source))
    recipe = recorded_recipe(dataset.manifest, local_source(source, watch, refresh=False), "-")
    work = ending.enter_context(tempfile.TemporaryDirectory(prefix="shardprep-"))
    listing = list_source(
        recipe.source,
        Path(work),
        watch.notice,
        zip_encoding=recipe.zip_encoding or None,
        limits=recipe.source_limits,
        leave_out=outputs(recipe),
    )
    extents = {member.key: member.extent for member in listing.images}

    def original(key: str, kind: str) -> bytes:
        del kind
        try:
            extent = extents[key]
            if extent.num_bytes > _MOST_ORIGINAL:
                raise MemberError(f"has {extent.num_bytes:,} bytes, too many to show")
            return extent.read()
        except KeyError:
            raise SourceError(key, "the source has no such image") from None
        except MemberError as error:
            raise SourceError(key, str(error)) from error

    return original
