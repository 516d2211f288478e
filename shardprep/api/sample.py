"""`shardprep.sample`: write a small archive to try shardprep with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardprep.dataset.card import Card
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import ARGUMENTS, Option
from shardprep.storage.url import local_path


@dataclass(frozen=True, slots=True, repr=False)
class Sample(Card):
    """A small archive to try shardprep with, and its recipe."""

    path: Path
    recipe: Path
    """The `shardprep.toml` next to it."""
    num_bytes: int


OPTIONS = {
    "directory": Option(
        "Folder for shapes.zip and shardprep.toml. Default: this folder.", ARGUMENTS
    ),
}


def sample(directory: str | Path = ".") -> Sample:
    """Write a small archive like those of Kaggle, and its recipe, to try shardprep offline.

    Raises:
        SourceError: a file of the same name has other contents, or the folder cannot be written.

    """
    from shardprep.api.sample_archive import write_sample

    archive = write_sample(local_path(directory))
    return Sample(archive, archive.with_name(RECIPE_FILE), archive.stat().st_size)
