"""What the arguments of a command mean: a recipe, a source on this machine, a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardprep.build import Part
from shardprep.errors import DatasetError, RecipeError
from shardprep.place import find_place, place_of
from shardprep.recipe import RECIPE_FILE, Recipe, make_recipe, read_recipe, share
from shardprep.remote import find
from shardprep.report.transfer import ByteProgress
from shardprep.source.kaggle.download import download
from shardprep.source.kaggle.ref import is_ref, parse_ref

if TYPE_CHECKING:
    from rich.console import Console

    from shardprep.place import Place
    from shardprep.remote import RemoteDataset

_DATASETS = Path("tfrecords")
_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".7z")


def recipe_of(flags: dict[str, Any]) -> Recipe:
    """Return the recipe of flags and of ./shardprep.toml, unless that is for another source.

    Raises:
        RecipeError: neither names a source, or a key cannot be used.

    """
    keys = _keys_here()
    if "source" in flags and not recipe_applies(flags["source"]):
        return make_recipe(flags, "shardprep build")
    if "source" in keys:
        return make_recipe({**keys, **flags}, RECIPE_FILE)
    raise RecipeError(
        "shardprep build",
        "no source is given",
        "give a folder, an archive or a slug (shardprep build kaggle:dogs-vs-cats), put "
        f"source = … into ./{RECIPE_FILE} (shardprep init writes it), or write a sample with "
        "shardprep sample",
    )


def recipe_applies(source: str) -> bool:
    """Tell whether ./shardprep.toml is for this source."""
    return bool(_keys_here().get("source") == source)


def _keys_here() -> dict[str, Any]:
    return read_recipe(Path(RECIPE_FILE)) if Path(RECIPE_FILE).is_file() else {}


def local_source(source: str, console: Console, *, refresh: bool) -> str:
    """Return a source that lies on this machine: itself, or the archive of a Kaggle slug."""
    return str(downloaded(source, None, console, refresh=refresh)) if is_ref(source) else source


def downloaded(slug: str, to: Path | None, console: Console, *, refresh: bool) -> Path:
    """Return the archive of a slug, downloaded to a folder or the cache unless it is there."""
    with ByteProgress(console) as progress:
        return download(parse_ref(slug), to=to, refresh=refresh, watcher=progress)


def part_of(text: str) -> Part:
    """Return the part that "3/16" means.

    Raises:
        RecipeError: it means none.

    """
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise RecipeError("--part", f"{text!r} is not I/N, such as 3/16", "count from 1 to N")
    return Part(int(number), int(count))


def rejected_share(text: str) -> float:
    """Return the share that `--max-rejected` means.

    Raises:
        RecipeError: it means none.

    """
    try:
        found = float(str(share(text)))
    except ValueError as error:
        raise RecipeError("--max-rejected", str(error)) from error
    if not 0 <= found <= 1:
        raise RecipeError("--max-rejected", f"{text} is not between 0% and 100%")
    return found


def unfinished(dataset: str | None) -> Place:
    """Return the place of a dataset, finished or not; None is what the recipe writes.

    Raises:
        DatasetError: there is none, or several.

    """
    if dataset is None and Path(RECIPE_FILE).is_file():
        recipe = make_recipe(read_recipe(Path(RECIPE_FILE)), RECIPE_FILE)
        return place_of(recipe.out, recipe.dataset_name, recipe.version)
    return find_place(dataset or str(_DATASETS))


def repair_source(folder: Path, source: str | None, console: Console) -> str:
    """Return where to rebuild a dataset from: as asked, else by a ./shardprep.toml that is for it.

    Raises:
        RecipeError: neither says it.

    """
    keys = _keys_here()
    if source is None and "source" in keys:
        recipe = make_recipe(keys, RECIPE_FILE)
        place = Path(recipe.out, recipe.dataset_name, recipe.version)
        source = recipe.source if place.resolve() == folder.resolve() else None
    if source is None:
        raise RecipeError(
            "--repair",
            f"nothing here says what {folder} was built from",
            "add --source with the folder, the archive or the slug",
        )
    return local_source(source, console, refresh=False)


def only_archive() -> str:
    """Return the one archive in this folder.

    Raises:
        RecipeError: there is none, or several.

    """
    files = sorted(path.name for path in Path().iterdir() if path.is_file())
    found = [name for name in files if name.lower().endswith(_ARCHIVE_SUFFIXES)]
    if len(found) == 1:
        return found[0]
    what = f"several archives are here: {', '.join(found[:4])}" if found else "no archive is here"
    raise RecipeError("shardprep init", what, "name one: shardprep init photos.zip")


def dataset_at(dataset: str | None, *, damaged: bool = False) -> Path | RemoteDataset:
    """Return the dataset that an argument means; None is what the recipe has written.

    Args:
        dataset: a folder or an address in object storage, of the dataset or of what it lies in.
        damaged: let one be found that has lost its manifest.

    Raises:
        DatasetError: there is no such dataset, or several.

    """
    if dataset is not None:
        return find(dataset, damaged=damaged)
    if Path(RECIPE_FILE).is_file():
        recipe = make_recipe(read_recipe(Path(RECIPE_FILE)), RECIPE_FILE)
        return find(f"{recipe.out}/{recipe.dataset_name}")
    if not _DATASETS.is_dir():
        raise DatasetError(
            str(_DATASETS), "no dataset is named, and there is no such folder here", "name a folder"
        )
    return find(_DATASETS)
