"""`shardprep.repack`: the records of datasets in other shards, merged, or some of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shardprep.api.arguments import answering, dataset_at
from shardprep.api.progress import watched
from shardprep.dataset.open_dataset import OpenDataset
from shardprep.errors import RecipeError
from shardprep.reader.selection.split_argument import as_selection
from shardprep.recipe.recipe import make_recipe
from shardprep.writer.repack import open_parent, repack_dataset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardprep.api.progress import Show
    from shardprep.dataset.manifest import Manifest
    from shardprep.reader.array_types import Ints
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.writer.finalize import BuildResult


def repack(
    datasets: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    *,
    shards: int | None = None,
    name: str | None = None,
    version: str | None = None,
    split: AnySplit | None = None,
    seed: int | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Make one dataset of the records of others, in other shards; nothing is decoded.

    Classes are united by name, and keys that several datasets have get the name of theirs before
    them. What was interrupted goes on where it stopped when it is called again.

    Args:
        datasets: folders or addresses of one or several, or of folders above them; None: what
            ./shardprep.toml builds, else the one dataset under ./tfrecords.
        out: folder or address of datasets; None: tfrecords.
        shards: number of shards of the largest split; None: by size, about 128 MiB each.
        name: of the new dataset; None: that of all the datasets.
        version: of the new dataset; None: 1.0.0.
        split: records to take of each dataset, such as "train[:10%]+validation", or a Selection
            of the only one; None: all, with the inputs that were left out.
        seed: of the order; None: that of the first dataset.
        overwrite: replace another dataset, once the new one is complete.
        store_timeout: seconds that object storage may be silent.
        progress: takes each `Progress`; True shows them.

    Raises:
        RecipeError: an option is malformed, or images of the datasets were fitted in other ways.
        SchemaError: the datasets have other features.
        DatasetError: there is no such dataset or split, or a file of one is missing or damaged.
        RecordError: a record is damaged.
        BuildError: something else is there, or another process is at work.

    """
    is_one = datasets is None or isinstance(datasets, str | Path)
    wanted: list[str | Path | None] = [datasets] if is_one else [*datasets]  # type: ignore[list-item, misc]
    if not wanted:
        raise RecipeError("shardprep repack", "no dataset is named", "name one or several")
    with answering(store_timeout), watched(progress) as watch:
        found = [dataset_at(one) for one in wanted]
        parents = [open_parent(one, _numbers(one, split)) for one in found]
        manifests = [one.manifest for one in parents]
        options = {
            "out": None if out is None else str(out),
            "shards": shards,
            "name": _name(manifests) if name is None else name,
            "version": version,
            "seed": manifests[0].seed if seed is None else seed,
        }
        given = {key: value for key, value in options.items() if value is not None}
        recipe = make_recipe(
            {"source": "-", "max_rejected": 1.0, "max_dropped": 1.0}, "shardprep repack", given
        )
        return repack_dataset(parents, recipe, watch, overwrite=overwrite)


def _name(manifests: Sequence[Manifest]) -> str:
    """Return the name that all datasets have."""
    names = dict.fromkeys(one.name for one in manifests)
    if len(names) > 1:
        what = f"{' and '.join(names)} become one dataset"
        raise RecipeError("--name", what, "give its name")
    return manifests[0].name


def _numbers(dataset: OpenDataset, split: AnySplit | None) -> Ints | None:
    """Return the numbers of the records of a split, None for all."""
    return None if split is None else as_selection(dataset.manifest, split).numbers
