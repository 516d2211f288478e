"""`shardprep init`: a source to a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardprep.cli import options as o
from shardprep.cli.streams import console, notice, print_json
from shardprep.errors import RecipeError

EPILOG = "Example:\n\nshardprep init dogs-vs-cats.zip && shardprep build"


def init(
    source: Annotated[
        str | None,
        typer.Argument(
            help="Folder, archive or kaggle:…. By default the one archive in this folder.",
            show_default=False,
        ),
    ] = None,
    follow_links: o.FollowLinks = False,
    overwrite: o.Overwrite = False,
    refresh: o.Refresh = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Look into a source, say what it holds, and write a shardprep.toml for it."""
    import tempfile
    from dataclasses import replace

    from shardprep.catalog.survey import recipe_text, survey_source
    from shardprep.cli.resolve import local_source, only_archive
    from shardprep.recipe.document import RECIPE_FILE
    from shardprep.storage.atomic_file import write_durably

    place = Path(RECIPE_FILE)
    if place.exists() and not overwrite:
        raise RecipeError(RECIPE_FILE, "is there already", "add --overwrite to replace it")
    archive = source or only_archive()
    notices = console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="shardprep-") as work:
        local = local_source(archive, notices, refresh=refresh)
        survey = survey_source(
            local,
            Path(work),
            lambda line: notice(notices, line),
            follow_links=follow_links,
        )
    survey = replace(survey, source=archive)
    write_durably(place, recipe_text(survey).encode())
    if as_json:
        print_json(survey)
        return
    from shardprep.cli.display.survey import print_survey

    print_survey(console(), survey)
    typer.echo(f"wrote {RECIPE_FILE}; next: shardprep build")
