"""Arguments of commands: find the recipe, the source and the dataset, and check numbers.

Modules of the writer are imported inside functions, because most commands only read datasets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from shardprep.errors import (
    TABLE_OPTIONS,
    DatasetError,
    OptionError,
    OptionName,
    RecipeError,
    ShardprepError,
    some_of,
)
from shardprep.progress import Watch
from shardprep.recipe.document import RECIPE_FILE
from shardprep.recipe.options import RUN_OPTIONS, Option
from shardprep.recipe.values import read_number
from shardprep.storage.store import TIMEOUT_VARIABLE

if TYPE_CHECKING:
    from shardprep.dataset.locate import DatasetFiles
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.reader.selection.selection import Selection
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.recipe.recipe import Recipe
    from shardprep.source.kaggle.ref import KaggleRef
    from shardprep.writer.plan.shard_plan import Part
    from shardprep.writer.workspace.states import Workspace

_Number = TypeVar("_Number", int, float)
_DATASETS = Path("tfrecords")


def recipe_of(flags: dict[str, Any]) -> Recipe:
    """Return the recipe of `flags`, completed by ./shardprep.toml if it is for the same source.

    Without a source in `flags`, the source of ./shardprep.toml is used, otherwise the folder of the
    images in `items`. If only `flags` have `items`, ./shardprep.toml is ignored. RecipeError if no
    source is given.
    """
    from shardprep.recipe.recipe import make_recipe

    keys = _keys_here()
    if "items" in flags and "items" not in keys:
        keys = {}  # its rules contradict the table
    if "items" in flags and "source" not in {**keys, **flags}:
        from shardprep.catalog.given_items import source_of

        flags = {**flags, "source": source_of(str(flags["items"]))}
    if "source" in flags and flags["source"] != keys.get("source"):
        return make_recipe({}, "shardprep build", flags)
    if "source" in keys:
        return make_recipe(keys, RECIPE_FILE, flags)
    raise RecipeError(
        "shardprep build",
        "no source is given",
        "give a folder, an archive or a slug (shardprep build kaggle:dogs-vs-cats), put "
        f"source = … into ./{RECIPE_FILE} (shardprep init writes it), or write a sample with "
        "shardprep sample",
    )


def with_files(flags: dict[str, Any]) -> dict[str, Any]:
    """Return `flags` with files instead of table objects, such as data frames.

    An exclude list may be any iterable of ids, and a class map a dict. If the labels are an ordered
    Categorical of pandas, its order becomes `classes`, unless a class map renames them.
    """
    made: dict[str, Any] = {}
    for key, value in flags.items():
        if key not in TABLE_OPTIONS or isinstance(value, str):
            continue
        from shardprep.catalog.items_file import are_rows, kept, order_of_labels

        if key == "join":
            is_single = not isinstance(value, list | tuple) or are_rows(value)
            made[key] = tuple(kept(one, key) for one in ([value] if is_single else value))
        else:
            start = "csv:" if key in ("labels", "relabel", "predictions") else ""
            made[key] = start + kept(value, key)
        is_open = key == "labels" and flags.keys().isdisjoint(("classes", "class_map"))
        if is_open and (order := order_of_labels(value)):
            made["classes"] = order
    return flags | made


@contextmanager
def blaming(flags: Collection[str]) -> Iterator[None]:
    """Name ./shardprep.toml in errors about options that the file sets and `flags` does not set."""
    try:
        yield
    except ShardprepError as error:
        name = error.place.name if isinstance(error.place, OptionName) else ""
        if name and name not in flags and name in _keys_here():
            error.blame(RECIPE_FILE)
        raise


def recipe_notice(flags: Mapping[str, Any]) -> str:
    """Return a notice on whether ./shardprep.toml is used, if that is not obvious; otherwise ""."""
    keys = _keys_here()
    if "items" in flags and keys and "items" not in keys:
        return f"warning: {RECIPE_FILE} is not used, because it does not set items"
    is_for_it = "source" in flags and keys.get("source") == flags["source"]
    return f"options are read from {RECIPE_FILE}, which is for this source" if is_for_it else ""


def _keys_here() -> dict[str, Any]:
    from shardprep.recipe.document import read_recipe

    return read_recipe(Path(RECIPE_FILE)) if Path(RECIPE_FILE).is_file() else {}


def local_source(source: str, watch: Watch, *, refresh: bool) -> str:
    """Return the source; for a Kaggle slug, the local path of its data, downloaded if needed.

    RecipeError with `refresh` if the source is not on Kaggle, SourceError if the download fails.
    """
    from shardprep.source.kaggle.ref import is_ref, parse_ref

    if not is_ref(source):
        if refresh:
            what = f"only a source on Kaggle can be downloaded again, not {source}"
            raise RecipeError(OptionName("refresh"), what, "leave this option out")
        return source
    place, _ = downloaded(parse_ref(source), watch, refresh=refresh)
    return str(place)


def downloaded(
    ref: KaggleRef, watch: Watch, *, to: Path | None = None, refresh: bool
) -> tuple[Path, bool]:
    """Download `ref` unless Kaggle has mounted it; return the path, and whether it is mounted.

    With `to` or `refresh`, mounted data is downloaded too and counts as not mounted.
    """
    from shardprep.source.kaggle import download

    folder = download.mounted(ref) if to is None and not refresh else None
    if folder is None:
        return download.download(ref, to=to, refresh=refresh, watcher=watch), False
    pinned = f"; its version is unknown, {ref.version} was asked for" if ref.version else ""
    watch.notice(f"{ref} is read in place from {folder}: nothing is downloaded{pinned}")
    return folder, True


def number(name: str, value: object, option: Option, kind: type[_Number]) -> _Number:
    """Return an option's value as a number; OptionError if it is not a number or out of bounds."""
    try:
        given = "" if isinstance(value, bool) else value
        result: Any = option.read(given) if option.read else given
        result = read_number(result, kind, option.least, option.most)
    except ValueError:
        allowed = option.numbers(kind)
        raise OptionError.of(OptionName(name), value, allowed) from None
    return result  # type: ignore[no-any-return]


def num_workers(workers: int | None) -> int:
    """Return `workers`, or for None the number of usable cores; OptionError if out of bounds."""
    if workers is None:
        from shardprep.machine import usable_cores

        return usable_cores()
    return number("workers", workers, RUN_OPTIONS["workers"], int)


@contextmanager
def answering(store_timeout: float | None) -> Iterator[None]:
    """Set the storage timeout in seconds, also for child processes; None leaves it unchanged."""
    if store_timeout is None:
        yield
        return
    before = os.environ.get(TIMEOUT_VARIABLE)
    os.environ[TIMEOUT_VARIABLE] = (
        f"{number('store_timeout', store_timeout, RUN_OPTIONS['store_timeout'], float):g}"
    )
    try:
        yield
    finally:
        if before is None:
            del os.environ[TIMEOUT_VARIABLE]
        else:
            os.environ[TIMEOUT_VARIABLE] = before


def part_of(text: str) -> Part:
    """Return the part of a build for a text such as "3/16"; RecipeError if the text is invalid."""
    from shardprep.writer.plan.shard_plan import Part

    match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text)
    part = Part(int(match[1]), int(match[2])) if match else Part(0, 0)
    if not 1 <= part.number <= part.count:
        what = f"{text!r} is not I/N, such as 3/16"
        raise RecipeError(OptionName("part"), what, "count the parts from 1 to N")
    return part


def unfinished(dataset: str | Path | None) -> Workspace:
    """Return the workspace of a dataset, finished or not; DatasetError unless exactly one exists.

    None means the dataset of ./shardprep.toml; without that file, the only unfinished build in
    `tfrecords`, or the only dataset if no build is unfinished.
    """
    from shardprep.writer.workspace import states
    from shardprep.writer.workspace.states import find_workspace, refuse_other_parts, workspace_of

    recipe = _recipe_here() if dataset is None else None
    if recipe is None:
        return find_workspace(_datasets() if dataset is None else str(dataset))
    workspace = workspace_of(recipe)
    if not states.is_begun(workspace):
        refuse_other_parts(recipe, workspace)
    return workspace


def repair_source(location: str, source: str | None) -> str:
    """Return `source`, or the source of this dataset in ./shardprep.toml, or raise RecipeError."""
    from shardprep.recipe.recipe import make_recipe

    if source is None and "source" in _keys_here():
        from shardprep.writer.workspace.states import workspace_of

        recipe = make_recipe(_keys_here(), RECIPE_FILE)
        is_same = _is_same(workspace_of(recipe).location, location)
        source = recipe.source if is_same else None
    if source is None:
        what = f"the source of {location} is unknown"
        hint = f"add {OptionName('source')} with the folder or archive, or kaggle:SLUG"
        raise RecipeError(OptionName("repair"), what, hint)
    return source


def _is_same(one: str, two: str) -> bool:
    from shardprep.storage.url import is_url

    if is_url(one) or is_url(two):
        return one == two
    return Path(one).resolve() == Path(two).resolve()


def only_archive() -> str:
    """Return the name of the only archive in the current folder, or raise RecipeError."""
    from shardprep.source.names import is_archive_name

    files = sorted(path.name for path in Path().iterdir() if path.is_file())
    names = [name for name in files if is_archive_name(name)]
    if len(names) == 1:
        return names[0]
    what = "no archive is in this folder"
    if names:
        what = f"several archives are in this folder: {some_of(names)}"
    raise RecipeError("shardprep init", what, "name the source: shardprep init photos.zip")


def dataset_at(dataset: str | Path | None) -> OpenDataset:
    """Open a dataset; for None, the dataset of ./shardprep.toml or the only one in `tfrecords`."""
    from shardprep.dataset.open_dataset import open_dataset

    return open_dataset(files_at(dataset))


def selected(dataset: OpenDataset, split: AnySplit | None) -> Selection | None:
    """Return the records of a split as a selection, or None without a split."""
    if split is None:
        return None
    from shardprep.reader.selection.split_argument import as_selection

    return as_selection(dataset.manifest, split)


def files_at(dataset: str | Path | None, *, damaged: bool = False) -> DatasetFiles:
    """Return a dataset's files, found as in `dataset_at`; `damaged` allows a missing manifest."""
    from shardprep.dataset.locate import locate

    recipe = _recipe_here() if dataset is None else None
    if recipe is not None:
        return locate(f"{recipe.out}/{recipe.dataset_name}", damaged=damaged)
    return locate(_datasets() if dataset is None else dataset, damaged=damaged)


def _recipe_here() -> Recipe | None:
    from shardprep.recipe.recipe import make_recipe

    return make_recipe(_keys_here(), RECIPE_FILE) if Path(RECIPE_FILE).is_file() else None


def _datasets() -> str:
    if not _DATASETS.is_dir():
        what = "no dataset is named, and the default folder does not exist"
        raise DatasetError(str(_DATASETS), what, "name the folder of a dataset")
    return str(_DATASETS)
