"""`shardprep.upload`: a dataset to Kaggle, and back for a check."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - the documents read the types
from typing import TYPE_CHECKING

from shardprep.api.arguments import num_workers
from shardprep.api.progress import Show, Watch
from shardprep.api.watched import watched
from shardprep.dataset.card import Card
from shardprep.errors import DatasetError, some_of
from shardprep.recipe.options import ARGUMENTS, Option
from shardprep.storage.url import is_url

if TYPE_CHECKING:
    from shardprep.dataset.open_dataset import OpenDataset


@dataclass(frozen=True, slots=True, repr=False)
class Upload(Card):
    """An uploaded dataset."""

    path: Path
    """Folder of the dataset on this machine."""
    slug: str
    """Reference to the version: kaggle:OWNER/NAME/VERSION."""
    page: str
    """Address of the dataset's page."""
    version: int
    """Number of the version on Kaggle, from 1."""
    was_there: bool
    """True if an earlier upload had created the version, so that nothing was sent."""
    is_checked: bool
    """True if the version was downloaded and every byte is equal."""
    is_private: bool | None
    """True if only the owner and collaborators can see it; null if Kaggle does not say."""
    num_files: int
    """Number of files of the dataset."""
    num_bytes: int
    """Size of all files."""
    elapsed_s: float
    """Wall time of this run."""


OPTIONS = {
    "dataset": Option("Folder of the dataset or a folder above it.", ARGUMENTS),
    "slug": Option("OWNER/NAME on Kaggle, or the address of its page.", ARGUMENTS),
    "title": Option(
        "Title of a new dataset, 6 to 50 characters.", metavar="TEXT", shown="the words of NAME"
    ),
    "license": Option(
        "Licence of a new dataset, with Kaggle's name, such as CC-BY-4.0.",
        metavar="NAME",
        shown="unknown, for a private dataset",
    ),
    "message": Option(
        "Notes of a new version.", metavar="TEXT", shown="name and version of the dataset"
    ),
    "public": Option("Make the dataset public; a new one needs --license."),
    "check": Option("Download the uploaded version and compare every byte."),
}


def upload(
    dataset: str | Path,
    slug: str,
    *,
    title: str | None = None,
    license: str | None = None,  # noqa: A002 - the option's name, as Kaggle calls it
    message: str | None = None,
    public: bool = False,
    check: bool = True,
    progress: Show | bool = False,
) -> Upload:
    """Upload a dataset to Kaggle, where it is a new dataset or a new version of one.

    The dataset is verified first. What was interrupted goes on where it stopped when it is called
    again, and what Kaggle has already is not sent twice.

    Raises:
        DatasetError: there is no such dataset, it is in object storage, or it does not verify.
        RecipeError: Kaggle takes no such name, title or licence, or has the dataset otherwise.
        SourceError: Kaggle does not take it, or gives back something else; says what to do.
        BusyError: another upload to the same dataset is at work.

    """
    from shardprep.dataset.folder import inventory
    from shardprep.source.kaggle import upload as kaggle
    from shardprep.source.kaggle.ref import parse_ref
    from shardprep.source.kaggle.upload_metadata import Publication, check_publication
    from shardprep.storage.regular_file import sha256_of

    start_s = time.monotonic()
    ref, opened = parse_ref(slug), _opened(dataset)
    found, manifest = opened.folder("shardprep upload"), opened.manifest
    paths = sorted(inventory(manifest, opened.schema))
    sizes = {path: (found / path).stat().st_size for path in paths if (found / path).is_file()}
    notes = message if message is not None else f"{manifest.name} {manifest.version}"
    wanted = Publication(found, sizes, ref, notes, title=title, license=license, is_public=public)
    check_publication(wanted)
    with watched(progress) as watch:
        _verify(opened, watch)
        hashes = {name: shard.sha256 for name, shard in manifest.shards.items()}
        hashes |= {name: sha256_of(found / name) for name in paths if name not in hashes}
        done = kaggle.upload(wanted, hashes, check=check, watcher=watch)
    return Upload(
        path=found,
        slug=f"{ref}/{done.version}",
        page=ref.page,
        **done._asdict(),
        num_files=len(paths),
        num_bytes=wanted.num_bytes,
        elapsed_s=time.monotonic() - start_s,
    )


def _opened(dataset: str | Path) -> OpenDataset:
    """Open a dataset; DatasetError for one that is in object storage."""
    from shardprep.dataset.open_dataset import open_dataset

    if is_url(str(dataset)):
        hint = f"shardprep fetch {dataset}, then upload the copy"
        raise DatasetError(str(dataset), "is in object storage, and an upload reads files", hint)
    return open_dataset(dataset)


def _verify(dataset: OpenDataset, watch: Watch) -> None:
    """Read every byte of a dataset; DatasetError where it has problems."""
    from shardprep.verifier.dataset import verify_dataset

    found = verify_dataset(
        dataset.files, decode=False, num_workers=num_workers(None), watcher=watch
    )
    watch.finish()
    if found.problems:
        named = some_of([f"{one.file}: {one.what}" for one in found.problems], 2)
        hint = f"shardprep verify {dataset} lists them, and --repair mends them"
        raise DatasetError(str(dataset), f"has problems, and is not uploaded: {named}", hint)
