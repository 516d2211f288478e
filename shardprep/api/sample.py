"""`shardprep.sample`: something to try everything on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardprep.api.sample_archive import write_sample
from shardprep.dataset.card import Card
from shardprep.recipe.document import RECIPE_FILE
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class Sample(Card):
    """An archive to try everything on."""

    path: Path
    recipe: Path
    """The `shardprep.toml` next to it."""
    num_bytes: int


def sample(directory: str | Path = ".") -> Sample:
    """Write a small Kaggle-shaped archive to try everything on, without a network.

    Args:
        directory: a folder for shapes.zip and shardprep.toml, made if need be.

    Raises:
        SourceError: one of them is there already, or the folder cannot be written.

    """
    archive = write_sample(local_path(directory))
    return Sample(archive, archive.with_name(RECIPE_FILE), archive.stat().st_size)
