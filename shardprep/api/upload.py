"""`shardprep.upload`: upload a dataset to Kaggle, and check the uploaded copy."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
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
    """Upload a dataset to Kaggle, as a new dataset or a new version of an existing one.

    The dataset is verified first. If the upload is interrupted, the same call continues it; files
    that Kaggle already has are not sent again.

    Raises:
        DatasetError: the dataset does not exist, is in object storage, or has problems.
        RecipeError: Kaggle does not allow the name, title or licence, or they contradict the
            existing dataset.
        SourceError: Kaggle refuses the upload, or its copy differs. The error says what to do.
        BusyError: another process uploads to the same dataset.

    """
    from shardprep.dataset.folder import inventory
    from shardprep.source.kaggle import upload as kaggle
    from shardprep.source.kaggle.ref import parse_ref
    from shardprep.source.kaggle.upload_metadata import Publication, check_publication
    from shardprep.storage.regular_file import sha256_of

    start_s = time.monotonic()
    ref, opened = parse_ref(slug), _opened(dataset)
    folder, manifest = opened.folder("shardprep upload"), opened.manifest
    paths = sorted(inventory(manifest, opened.schema))
    sizes = {path: (folder / path).stat().st_size for path in paths if (folder / path).is_file()}
    notes = message if message is not None else f"{manifest.name} {manifest.version}"
    wanted = Publication(folder, sizes, ref, notes, title=title, license=license, is_public=public)
    check_publication(wanted)
    with watched(progress) as watch:
        _verify(opened, watch)
        hashes = {name: shard.sha256 for name, shard in manifest.shards.items()}
        hashes |= {name: sha256_of(folder / name) for name in paths if name not in hashes}
        done = kaggle.upload(wanted, hashes, check=check, watcher=watch)
    return Upload(
        path=folder,
        slug=f"{ref}/{done.version}",
        page=ref.page,
        **done._asdict(),
        num_files=len(paths),
        num_bytes=wanted.num_bytes,
        elapsed_s=time.monotonic() - start_s,
    )


def _opened(dataset: str | Path) -> OpenDataset:
    """Open a local dataset; raise DatasetError for a dataset in object storage."""
    from shardprep.dataset.open_dataset import open_dataset

    if is_url(str(dataset)):
        hint = f"shardprep fetch {dataset}, then upload the copy"
        raise DatasetError(str(dataset), "is in object storage, but an upload needs files", hint)
    return open_dataset(dataset)


def _verify(dataset: OpenDataset, watch: Watch) -> None:
    """Read every byte of a dataset; raise DatasetError if it has problems."""
    from shardprep.verifier.dataset import verify_dataset

    result = verify_dataset(
        dataset.files, decode=False, num_workers=num_workers(None), watcher=watch
    )
    watch.finish()
    if result.problems:
        named = some_of([f"{problem.file}: {problem.what}" for problem in result.problems], 2)
        hint = f"shardprep verify {dataset} lists them, and --repair repairs them"
        raise DatasetError(str(dataset), f"has problems, so it is not uploaded: {named}", hint)
