"""The functions that copy: export, download, upload and fetch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from shardprep.api.arguments import answering, dataset_at, downloaded, num_workers, number, selected
from shardprep.api.display import watched
from shardprep.dataset.card import Card
from shardprep.errors import DatasetError, OptionName, RecipeError, some_of
from shardprep.progress import Show, Watch
from shardprep.recipe.options import ARGUMENTS, DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import ObjectUrl, is_url, local_path

if TYPE_CHECKING:
    from shardprep.dataset.fetch import Fetched
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.exporter.export import Exported
    from shardprep.reader.selection.split_argument import AnySplit


@dataclass(frozen=True, slots=True, repr=False)
class Download(Card):
    """An archive from Kaggle."""

    path: Path
    """The archive, or the folder where Kaggle has mounted its content."""
    num_bytes: int
    """Size of the archive in bytes; 0 for a mounted folder."""
    is_mounted: bool = False
    """True if Kaggle has mounted the content, so that nothing was downloaded."""


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
    is_private: bool | None
    """True if only the owner and collaborators can see it; null if Kaggle does not say."""
    num_files: int
    """Number of files of the dataset."""
    num_bytes: int
    """Size of all files."""
    elapsed_s: float
    """Wall time of this run."""


OPTIONS: dict[str, dict[str, Option]] = {
    "export": {
        "dataset": DATASET,
        "to": Option("Layout: webdataset, parquet, folder, coco or yolo.", metavar="LAYOUT"),
        "croissant": Option(
            "Instead of an export, write croissant.json into the dataset's folder."
        ),
        "out": Option("Folder of the export.", metavar="DIR", shown="exports/NAME-VERSION-LAYOUT"),
        "split": Option(
            "Records to write, such as train[:10%]+validation.", metavar="SPLIT", shown="all"
        ),
        "overwrite": Option("Replace an existing export when the new one is complete."),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
    "download": {
        "slug": Option(
            "COMPETITION, OWNER/DATASET, OWNER/DATASET/VERSION, or the address of its page.",
            ARGUMENTS,
        ),
        "to": Option("Folder for the archive.", metavar="DIR", shown="cache"),
        "refresh": RUN_OPTIONS["refresh"],
    },
    "upload": {
        "dataset": Option("Folder of the dataset or a folder above it.", ARGUMENTS),
        "slug": Option("OWNER/NAME on Kaggle, or the address of its page.", ARGUMENTS),
        "license": Option(
            "Licence of a new dataset, with Kaggle's name, such as CC-BY-4.0.",
            metavar="NAME",
            shown="unknown, for a private dataset",
        ),
        "message": Option(
            "Notes of a new version.", metavar="TEXT", shown="name and version of the dataset"
        ),
        "public": Option("Make the dataset public; a new one needs a licence."),
    },
    "fetch": {
        "url": Option(
            "Address of the dataset or an address above it: s3://, gs:// or az://.", ARGUMENTS
        ),
        "to": Option("Folder of datasets.", metavar="DIR"),
        "check": Option("Hash every file of an existing copy."),
        "damaged": Option("Leave out damaged and missing files, and name them."),
        "threads": Option(
            "Number of shards to download at a time.", metavar="N", least=1, most=1_000
        ),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
}


def export(
    dataset: str | Path | None = None,
    *,
    to: Literal["webdataset", "parquet", "folder", "coco", "yolo"] | None = None,
    croissant: bool = False,
    out: str | Path | None = None,
    split: AnySplit | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Exported:
    """Write a dataset in the layout of another library; stored images are copied unchanged.

    If an export is interrupted, the same call continues it. `croissant` describes the dataset in
    its own folder instead.

    Raises:
        DatasetError: the dataset or the split does not exist, or a file is missing or damaged.
        RecipeError: the layout is unknown, or does not fit the dataset.
        BuildError: the target folder contains something else, or another export writes to it.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.exporter.croissant import write_croissant
    from shardprep.exporter.export import Chosen, export_dataset

    if croissant == (to is not None):
        what = "takes a layout or croissant, not both" if croissant else "no layout is given"
        hint = f"give either {OptionName('to')} or {OptionName('croissant')}"
        raise RecipeError("shardprep export", what, hint)
    if croissant and (out is not None or split is not None):
        what = "describes the whole dataset, in its own folder"
        hint = f"leave out {OptionName('out')} and {OptionName('split')}"
        raise RecipeError(OptionName("croissant"), what, hint)
    start_s = time.monotonic()
    folder = None if out is None else local_path(out)
    with answering(store_timeout), watched(progress) as watch:
        opened = dataset_at(dataset)
        if to is None:
            result = write_croissant(opened, overwrite=overwrite)
        else:
            wanted = selected(opened, split)
            chosen = None if wanted is None else Chosen(wanted.name, wanted.numbers)
            result = export_dataset(
                opened, to, folder, watcher=watch, chosen=chosen, overwrite=overwrite
            )
    return replace(result, elapsed_s=time.monotonic() - start_s)


def download(
    slug: str,
    *,
    to: str | Path | None = None,
    refresh: bool = False,
    progress: Show | bool = False,
) -> Download:
    """Download an archive from Kaggle, check every byte, and keep it in the cache or in `to`.

    Data that Kaggle has mounted is not downloaded, unless `to` or `refresh` is given.

    Raises:
        SourceError: the archive cannot be downloaded. The error says why and what to do.
    """
    from shardprep.source.kaggle.ref import parse_ref

    folder = None if to is None else local_path(to)
    ref = parse_ref(slug)
    with watched(progress) as watch:
        path, is_mounted = downloaded(ref, watch, to=folder, refresh=refresh)
    return Download(path, 0 if is_mounted else path.stat().st_size, is_mounted)


def upload(
    dataset: str | Path,
    slug: str,
    *,
    license: str | None = None,  # noqa: A002 - the option's name, as Kaggle calls it
    message: str | None = None,
    public: bool = False,
    progress: Show | bool = False,
) -> Upload:
    """Upload a dataset to Kaggle as a new dataset, or as a new version if Kaggle has the dataset.

    The dataset is verified first. At the end, Kaggle's copy is downloaded and every byte is
    compared. If the upload is interrupted, the same call continues it.

    Raises:
        DatasetError: the dataset does not exist, is in object storage, or has problems.
        RecipeError: the name is invalid, a licence is missing, or `public` contradicts the existing
            dataset.
        SourceError: Kaggle refuses the upload, or its copy differs. The error says what to do.
        BusyError: another process uploads to the same dataset.
    """
    from shardprep.dataset.folder import inventory
    from shardprep.source.kaggle.ref import parse_ref
    from shardprep.source.kaggle.upload import Uploader, check_target
    from shardprep.storage.regular_file import sha256_of

    start_s = time.monotonic()
    ref, opened = parse_ref(slug), _opened(dataset)
    folder, manifest = opened.folder("shardprep upload"), opened.manifest
    paths = sorted(inventory(manifest, opened.schema))
    check_target(ref)
    with watched(progress) as watch:
        _verify(opened, watch)
        hashes = {name: shard.sha256 for name, shard in manifest.shards.items()}
        hashes |= {name: sha256_of(folder / name) for name in paths if name not in hashes}
        notes = message if message is not None else f"{manifest.name} {manifest.version}"
        num_bytes = sum((folder / path).stat().st_size for path in paths)
        done = Uploader(ref, folder, num_bytes, hashes, license, notes, public, watch).upload()
    return Upload(
        path=folder,
        slug=f"{ref}/{done.version}",
        page=ref.page,
        version=done.version,
        is_private=done.is_private,
        num_files=len(paths),
        num_bytes=num_bytes,
        elapsed_s=time.monotonic() - start_s,
    )


def _opened(dataset: str | Path) -> OpenDataset:
    from shardprep.dataset.open_dataset import open_dataset

    if is_url(str(dataset)):
        hint = f"shardprep fetch {dataset}, then upload the copy"
        raise DatasetError(str(dataset), "is in object storage, but an upload needs files", hint)
    return open_dataset(dataset)


def _verify(dataset: OpenDataset, watch: Watch) -> None:
    from shardprep.verifier.dataset import verify_dataset

    result = verify_dataset(
        dataset.files, decode=False, num_workers=num_workers(None), watcher=watch
    )
    watch.finish()
    if result.problems:
        named = some_of([f"{problem.file}: {problem.what}" for problem in result.problems], 2)
        hint = f"shardprep verify {dataset} lists them, and --repair --source SOURCE repairs them"
        raise DatasetError(str(dataset), f"has problems, so it is not uploaded: {named}", hint)


def fetch(
    url: str,
    *,
    to: str | Path = "tfrecords",
    check: bool = False,
    damaged: bool = False,
    threads: int = 8,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> Fetched:
    """Copy a dataset from object storage, and check every shard.

    If a copy exists, only missing and damaged files are downloaded. A damaged shard that has the
    right size is found only with `check`.

    Raises:
        DatasetError: the dataset does not exist, or one of its files is damaged.
        BuildError: the target folder contains another dataset, the disk has too little space, or
            another fetch writes to the folder.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.dataset.fetch import fetch_dataset
    from shardprep.dataset.locate import locate

    num = number("threads", threads, OPTIONS["fetch"]["threads"], int)
    folder = local_path(to)
    with answering(store_timeout), watched(progress) as watch:
        remote = locate(ObjectUrl.parse(url))
        return fetch_dataset(
            remote, folder, num_threads=num, watcher=watch, check=check, damaged=damaged
        )
