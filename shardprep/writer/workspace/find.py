"""Find the workspace of a recipe, or of the build that a path or an address means."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardprep.dataset.folder import INCOMPLETE_SUFFIX
from shardprep.dataset.locate import VERSION_FOLDER, below, versions_below
from shardprep.errors import BuildError, DatasetError, OptionName, some_of
from shardprep.recipe.recipe import Recipe
from shardprep.storage.folder import LocalFolder, ObjectFolder
from shardprep.storage.url import ObjectUrl, parse_place
from shardprep.writer.plan.build_plan import read_outline
from shardprep.writer.workspace.local import LocalWorkspace
from shardprep.writer.workspace.remote import ObjectWorkspace
from shardprep.writer.workspace.states import Workspace


def workspace_of(recipe: Recipe) -> Workspace:
    """Return the workspace for the dataset of a recipe."""
    return _at(parse_place(recipe.out), (recipe.dataset_name, recipe.version))


def find_workspace(where: str) -> Workspace:
    """Return the workspace of a dataset, or of the only build or dataset below a folder.

    Unfinished builds have precedence. DatasetError unless exactly one exists.
    """
    root = parse_place(where)
    named = root.resolve() if root.name in ("", "..") and isinstance(root, Path) else root
    if VERSION_FOLDER.fullmatch(named.name):
        own = _at(named)
        folder = ObjectFolder(root) if isinstance(root, ObjectUrl) else LocalFolder(root)
        # Otherwise this is a folder of datasets whose name looks like a version.
        if own.stands() or own.state.names() or not folder.names():
            return own
    found = versions_below(root)
    unfinished = [one for one in found if one.is_unfinished]
    meant = [_at(root, one.names) for one in unfinished or found]
    if len(meant) == 1:
        return meant[0]
    if not meant:
        hint = f"give the folder or address that {OptionName('out')} was"
        raise DatasetError(where, "holds no dataset, finished or not", hint)
    what = "several unfinished builds" if unfinished else "no unfinished build, only"
    names = some_of([one.location for one in meant])
    raise DatasetError(where, f"holds {what}: {names}", "name one of them")


def refuse_other_parts(recipe: Recipe, asked: Workspace) -> None:
    """Raise DatasetError if `out` has an unfinished build in parts that is not `asked`."""
    root = parse_place(recipe.out)
    if isinstance(root, Path) and not root.is_dir():
        return
    places = [_at(root, one.names) for one in versions_below(root) if one.is_unfinished]
    others = [one.location for one in places if one != asked and _is_in_parts(one)]
    if others:
        raise DatasetError(
            asked.location,
            f"has no unfinished parts, but others are in {some_of(others)}",
            "run " + ", ".join(f"`shardprep finalize {one}`" for one in others[:4]),
        )


def _is_in_parts(workspace: Workspace) -> bool:
    try:
        outline = read_outline(workspace.state)
    except BuildError:
        return True  # `finalize` reports the damage
    return outline is not None and outline.num_parts > 1


def _at(root: Path | ObjectUrl, names: Sequence[str] = ()) -> Workspace:
    folder = below(root, names)
    if isinstance(folder, ObjectUrl):
        return ObjectWorkspace(folder._replace(key=folder.key.removesuffix(INCOMPLETE_SUFFIX)))
    if folder.parent.name in ("", ".."):  # the path alone does not name the dataset
        folder = folder.resolve()
    return LocalWorkspace(folder.with_name(folder.name.removesuffix(INCOMPLETE_SUFFIX)))
