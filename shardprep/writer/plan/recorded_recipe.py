"""The recipe that a manifest records, without which nothing new fits what is there."""

from __future__ import annotations

from shardprep.dataset.manifest import Manifest
from shardprep.errors import DatasetError, RecipeError
from shardprep.recipe.recipe import Recipe, stored_recipe


def recorded_recipe(manifest: Manifest, source: str, out: str) -> Recipe:
    """Return the recipe by which a dataset was built, for a source and a folder of today.

    Raises:
        DatasetError: this version does not know all of its keys.

    """
    keys = {"source": source, "out": out, "name": manifest.name, "version": manifest.version}
    try:
        return stored_recipe({**manifest.fingerprint.options, **keys, "max_rejected": 1.0})
    except RecipeError as error:
        raise DatasetError(
            manifest.name, "was built by another version, with other options", "build it again"
        ) from error
