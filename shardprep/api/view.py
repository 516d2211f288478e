"""`shardprep.view`: show a dataset in a browser of this machine."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at, local_source, number
from shardprep.api.progress import Show, Watch
from shardprep.api.watched import watched
from shardprep.errors import RecipeError, SourceError
from shardprep.recipe.options import DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reporter.viewer.routes import Originals
    from shardprep.reporter.viewer.viewer import Viewer

_MOST_ORIGINAL = 256 << 20
"""Maximum size in bytes of an original that is shown."""
_HOSTED = {"KAGGLE_KERNEL_RUN_TYPE": "Kaggle", "COLAB_RELEASE_TAG": "Colab"}
"""Environment variable of a hosted notebook, whose ports browsers cannot reach → its name."""

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
    """Return a viewer that serves a dataset to browsers of this machine until it is closed.

    Raises:
        DatasetError: the dataset does not exist, or one of its documents is missing or damaged.
        RecipeError: the port is in use, or this is a hosted notebook, whose ports browsers cannot
            reach.
        SourceError: the source is missing or damaged.
        StorageError: object storage does not answer, or refuses a request.

    """
    from shardprep.reporter.viewer.viewer import serve

    for variable, host in _HOSTED.items():
        if os.environ.get(variable):
            what = f"your browser cannot reach the ports of a {host} notebook"
            hint = "use shardprep report, which writes a page with pictures"
            raise RecipeError("shardprep view", what, hint)
    free_or_asked = 0 if port is None else number("port", port, OPTIONS["port"], int)
    with ExitStack() as ending, watched(progress) as watch:
        ending.enter_context(answering(store_timeout))
        opened = dataset_at(dataset)
        originals = None
        if source is not None:
            originals = _originals(str(source), opened, ending, watch)
        return serve(opened, free_or_asked, originals, ending)


def _originals(source: str, dataset: OpenDataset, ending: ExitStack, watch: Watch) -> Originals:
    """Return a function that reads originals from a folder of rejected images or from a source."""
    # Imported here because a view without a source does not need them.
    from shardprep.recipe.recipe import outputs
    from shardprep.source.byte_range import MemberError
    from shardprep.source.listing import list_source
    from shardprep.writer.originals import LIST_FILE, read_copy
    from shardprep.writer.plan.plan import recorded_recipe

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
                raise MemberError(f"has {extent.num_bytes:,} bytes, too large to show")
            return extent.read()
        except KeyError:
            raise SourceError(key, "is not in the source") from None
        except MemberError as error:
            raise SourceError(key, str(error)) from error

    return original
