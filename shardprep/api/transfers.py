"""The functions that copy: repack, export, download, upload and fetch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from shardprep.api.arguments import (
    answering,
    dataset_at,
    downloaded,
    num_workers,
    number,
    selected,
    with_files,
)
from shardprep.api.display import watched
from shardprep.dataset.card import Card
from shardprep.errors import DatasetError, OptionName, RecipeError, command_line, some_of
from shardprep.progress import Show, Watch
from shardprep.recipe.options import ARGUMENTS, BUILD_OPTIONS, DATASET, RUN_OPTIONS, Option
from shardprep.storage.url import ObjectUrl, is_url, local_path

if TYPE_CHECKING:
    from shardprep.dataset.fetch import Fetched
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.open_dataset import OpenDataset
    from shardprep.exporter.export import Exported
    from shardprep.reader.selection.split_argument import AnySplit
    from shardprep.recipe.keywords import Ids, Items, Texts
    from shardprep.writer.finalize import BuildResult


@dataclass(frozen=True, slots=True, repr=False)
class Download(Card):
    """Result of a download from Kaggle."""

    path: Path
    """The archive, or the folder where Kaggle has mounted its content."""
    num_bytes: int
    """Size of the archive in bytes; 0 for a mounted folder."""
    is_mounted: bool = False
    """True if Kaggle has mounted the content, so that nothing was downloaded."""


@dataclass(frozen=True, slots=True, repr=False)
class Upload(Card):
    """Result of an upload to Kaggle."""

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
    """Size of all files in bytes."""
    elapsed_s: float
    """Wall time of this run in seconds."""


_IMAGE_OPTIONS = ("size", "fit", "format", "quality")
_ITEM_OPTIONS = ("class_map", "relabel", "classes", "exclude_list", "group", "join", "columns")
"""Options of a build that change the items of a finished dataset, but not their images."""
_OF_STORED = {
    "size": "Size of stored images in pixels: WIDTHxHEIGHT, or N for a square.",
    "fit": "How images are fitted to that size: crop, pad, stretch or within (only shrinks).",
    "format": "Encoding of stored images: jpeg, png or raw (uint8).",
}
"""Help of options that have fewer values for a finished dataset."""
OPTIONS: dict[str, dict[str, Option]] = {
    "repack": {
        "datasets": Option(
            "Folders or addresses of one or several datasets, or a folder above them. Default: the "
            "dataset of ./shardprep.toml, otherwise the only dataset under ./tfrecords.",
            ARGUMENTS,
            is_repeated=True,
        ),
        "shards": replace(BUILD_OPTIONS["shards"], panel=""),
        "name": Option(
            "Name of the new dataset.", metavar="NAME", shown="the common name of the datasets"
        ),
        "version": Option("Version of the new dataset.", metavar="X.Y.Z", shown="1.0.0"),
        "out": replace(
            BUILD_OPTIONS["out"],
            panel="",
            shown="the folder of the first dataset, or tfrecords if that is remote or read-only",
        ),
        "split": Option(
            "Records to take from each dataset, such as train[:10%]+validation; or new splits, by "
            "a rule as in build: validation=0.1 (or other shares), column:NAME, list:… or roots:….",
            metavar="SPLIT",
            shown="all",
        ),
        "seed": Option("Random seed of the order.", metavar="N", shown="seed of the first dataset"),
        **{
            name: replace(
                BUILD_OPTIONS[name],
                help=_OF_STORED.get(name, BUILD_OPTIONS[name].help),
                panel="",
                shown="unchanged",
            )
            for name in (*_IMAGE_OPTIONS, *_ITEM_OPTIONS)
        },
        "workers": replace(RUN_OPTIONS["workers"], panel=""),
        "overwrite": Option("Replace an existing dataset when the new one is complete."),
        "store_timeout": RUN_OPTIONS["store_timeout"],
    },
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


def repack(
    datasets: str | Path | Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    *,
    shards: int | None = None,
    name: str | None = None,
    version: str | None = None,
    split: AnySplit | Mapping[str, float] | None = None,
    seed: int | None = None,
    size: str | int | tuple[int, int] | None = None,
    fit: Literal["crop", "pad", "stretch", "within"] | None = None,
    format: Literal["jpeg", "png", "raw"] | None = None,  # noqa: A002 - the option's name
    quality: int | None = None,
    class_map: str | Path | Mapping[str, str] | None = None,
    relabel: str | Items | None = None,
    classes: Texts | None = None,
    exclude_list: Ids | None = None,
    group: str | None = None,
    join: Texts | Items | Sequence[Items] | None = None,
    columns: Texts | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    store_timeout: float | None = None,
    progress: Show | bool = False,
) -> BuildResult:
    """Make a dataset from finished datasets: with other shards, size, labels or splits, or merged.

    Records are copied without decoding, unless options of images are given: `size`, `fit`, `format`
    or `quality`. Classes are merged by name. A key that several datasets have gets the name of its
    dataset as a prefix. Every checksum is compared. If the call is interrupted, the same call
    continues it.

    Raises:
        RecipeError: an option is malformed, or the images of the datasets were fitted differently.
        SchemaError: the datasets have different features, or cannot have what an option adds.
        SourceError: a table or list cannot be read, or fits no image.
        DatasetError: a dataset or the split does not exist, or a file is missing or damaged.
        RecordError: a record is damaged.
        BuildError: the target folder contains something else, or another process writes to it.
        StorageError: object storage does not answer, or refuses a request.
    """
    from shardprep.machine import check_address_space
    from shardprep.processes import start_server
    from shardprep.writer.engine import PRELOADED

    check_address_space()
    form = _given(size=size, fit=fit, format=format, quality=quality)
    lists = _given(class_map=class_map, relabel=relabel, exclude_list=exclude_list, join=join)
    rule = split if _is_rule(split) else None
    changes = lists | _given(classes=classes, group=group, columns=columns, split=rule)
    if form or (group or "").startswith("near"):
        start_server(PRELOADED)  # early: the server imports while this process imports and plans
    from shardprep.recipe.recipe import make_recipe
    from shardprep.writer.parents import open_parent
    from shardprep.writer.repack import encoding_of, recorded_options, repack_dataset
    from shardprep.writer.workspace.states import workspace_of

    is_one = datasets is None or isinstance(datasets, str | Path)
    wanted: list[str | Path | None] = [datasets] if is_one else [*datasets]  # type: ignore[list-item, misc]
    if not wanted:
        raise RecipeError("shardprep repack", "no dataset is named", "name at least one dataset")
    num = num_workers(workers)
    with answering(store_timeout), watched(progress) as watch:
        opened = [dataset_at(place) for place in wanted]
        taken = cast("AnySplit | None", None if "split" in changes else split)
        chosen = [selected(dataset, taken) for dataset in opened]
        parents = [
            open_parent(dataset, None if one is None else one.numbers)
            for dataset, one in zip(opened, chosen, strict=True)
        ]
        manifests = [parent.manifest for parent in parents]
        given = _given(
            out=_beside(opened[0]) if out is None else str(out),
            shards=shards,
            name=_name(manifests) if name is None else name,
            version=version,
            seed=manifests[0].seed if seed is None else seed,
            **form,
            **with_files(changes),
        )
        known = recorded_options(parents[0])
        if len(parents) > 1 or chosen[0] is not None or not (form or changes):
            known["shards"] = None  # chosen by the size of the records
        made = make_recipe({"source": str(opened[0]), **known}, "shardprep repack", given)
        if out is None:
            watch.notice(f"writing {workspace_of(made).location}")
        encoding = None
        if form:
            if "format" not in given and made.format != known.get("format", "jpeg"):
                others = some_of([str(OptionName(one)) for one in form])
                what = (
                    f"is {known['format']} in the dataset, but must be {made.format} for {others}"
                )
                hint = f"leave out {others}, or add {OptionName('format', made.format)}"
                raise RecipeError(OptionName("format"), what, hint)
            from shardprep.writer.engine.job import Workers
            from shardprep.writer.engine.pool import write_shards

            own = Workers(write_shards, num)
            encoding = encoding_of(parents, made, own, has_size="size" in form)
        return repack_dataset(
            parents, made, watch, overwrite=overwrite, encoding=encoding, num_workers=num
        )


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _beside(dataset: OpenDataset) -> str | None:
    """Return DIR of the dataset DIR/NAME/VERSION; None if it is remote, read-only or elsewhere."""
    place, manifest = str(dataset), dataset.manifest
    folder, usual = Path(place).absolute(), (manifest.name, manifest.version)
    out = folder.parent.parent
    if is_url(place) or folder.parts[-2:] != usual or not os.access(out, os.W_OK):
        return None
    return str(out.relative_to(Path.cwd()) if out.is_relative_to(Path.cwd()) else out)


def _is_rule(split: object) -> bool:
    """Return whether `split` is a rule for new splits, as opposed to records to take."""
    if isinstance(split, str):
        return "=" in split or split.startswith(("column:", "list:", "roots:"))
    return isinstance(split, Mapping)


def _name(manifests: Sequence[Manifest]) -> str:
    names = dict.fromkeys(manifest.name for manifest in manifests)
    if len(names) > 1:
        what = f"is needed to merge {' and '.join(names)}"
        raise RecipeError(OptionName("name"), what, "name the new dataset")
    return manifests[0].name


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

    With `croissant`, write croissant.json into the folder of the dataset instead. If an export is
    interrupted, the same call continues it.

    Raises:
        DatasetError: the dataset or the split does not exist, or a file is missing or damaged.
        RecordError: a record is damaged.
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
    slug: str, *, to: str | Path | None = None, refresh: bool = False, progress: Show | bool = False
) -> Download:
    """Download an archive from Kaggle, check every byte, and keep it in the cache or in `to`.

    Data that Kaggle has mounted is not downloaded, unless `to` or `refresh` is given.

    Raises:
        RecipeError: `slug` names neither a competition nor a dataset of Kaggle.
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
        hint = f"run {command_line('fetch', dataset)}, then upload the copy"
        raise DatasetError(str(dataset), "is in object storage, but an upload needs files", hint)
    return open_dataset(dataset)


def _verify(dataset: OpenDataset, watch: Watch) -> None:
    from shardprep.dataset.local_files import way_out
    from shardprep.verifier.dataset import verify_dataset

    result = verify_dataset(
        dataset.files, decode=False, num_workers=num_workers(None), watcher=watch
    )
    watch.finish()
    if result.problems:
        named = some_of([f"{problem.file}: {problem.what}" for problem in result.problems], 2)
        verify = command_line("verify", dataset)
        hint = f"{verify} lists them; {way_out(str(dataset))}"
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
        RecipeError: the address is invalid, or a number is out of bounds.
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
