"""`shardprep.init`: write a recipe for a source."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, local_source, only_archive
from shardprep.api.progress import Show
from shardprep.api.watched import watched
from shardprep.errors import OptionName, RecipeError
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import ARGUMENTS, BUILD_OPTIONS, RUN_OPTIONS, Option

if TYPE_CHECKING:
    from shardprep.catalog.survey import Survey

OPTIONS = {
    "source": Option(
        "Folder, archive or kaggle:… Default: the only archive in this folder.", ARGUMENTS
    ),
    "follow_links": BUILD_OPTIONS["follow_links"],
    "overwrite": RUN_OPTIONS["overwrite"],
    "refresh": RUN_OPTIONS["refresh"],
    "store_timeout": RUN_OPTIONS["store_timeout"],
}


def init(
    source: str | Path | None = None,
    *,
    follow_links: bool = False,
    overwrite: bool = False,
    refresh: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Survey:
    """Examine a source, write a ./shardprep.toml for it, and return a summary of its content.

    Raises:
        RecipeError: ./shardprep.toml exists, or no source is given and the current folder does not
            contain exactly one archive.
        SourceError: the source cannot be read, or has no images.

    """
    from shardprep.catalog.survey import recipe_text, survey_source
    from shardprep.storage.atomic_file import write_durably

    place = Path(RECIPE_FILE)
    if place.exists() and not overwrite:
        raise RecipeError(
            RECIPE_FILE, "already exists", f"add {OptionName('overwrite')} to replace it"
        )
    archive = only_archive() if source is None else str(source)
    with (
        answering(store_timeout),
        watched(progress) as watch,
        tempfile.TemporaryDirectory(prefix="shardprep-") as work,
    ):
        local = local_source(archive, watch, refresh=refresh)
        survey = survey_source(local, Path(work), watch.notice, follow_links=follow_links)
    survey = replace(survey, source=archive)
    write_durably(place, recipe_text(survey).encode())
    return survey
