"""The commands that copy: repack, export, download, upload and fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardprep.cli.streams import EXIT_PROBLEMS, console, picked, print_json
from shardprep.errors import counted, typed

if TYPE_CHECKING:
    from shardprep.api.json_types import Exported
    from shardprep.api.transfers import Download, Upload
    from shardprep.cli.options import Call
    from shardprep.dataset.fetch import Fetched


def repack(call: Call, *, as_json: bool) -> None:
    """Make a dataset from finished datasets: with other shards, size, labels or splits, or merged.

    Records are copied without decoding, unless --size, --fit, --format or --quality is given.
    Classes are merged by name. A key that several datasets have gets the name of its dataset as a
    prefix. Every checksum is compared. If the command is interrupted, the same command continues
    it.

    Examples:
        shardprep repack tfrecords/pets --shards 64 --version 1.0.1
        shardprep repack tfrecords/cats tfrecords/dogs --name pets
        shardprep repack tfrecords/pets --split 'train[:10%]' --name pets_small
        shardprep repack tfrecords/pets --size 112x112 --version 1.1.0
        shardprep repack tfrecords/pets --relabel csv:fixes.csv:key:label --version 1.1.0
        shardprep repack tfrecords/pets --out s3://bucket/sets
    """
    from shardprep.cli.summary import show_result
    from shardprep.writer.record_copier import share_heap

    share_heap()
    show_result(call(), as_json=as_json)


def export(done: Exported) -> None:
    """Write a dataset in the layout of another library; stored images are copied unchanged.

    webdataset: tars with image, class and JSON. parquet: files for Hugging Face, with a card and
    croissant.json. folder: split/class/name.jpg, a table and COCO's JSON. coco: images/ and
    annotations/ for pycocotools and torchvision. yolo: images/, labels/ and data.yaml for
    Ultralytics. Raw pixels become PNG. If an export is interrupted, the same command continues it.
    --croissant writes croissant.json into the folder of the dataset instead.

    Examples:
        shardprep export --to webdataset
        shardprep export tfrecords/pets --to parquet --out pets_hub
        shardprep export s3://bucket/sets/pets --to folder
        shardprep export tfrecords/pets --croissant
    """
    from shardprep.cli.console import counts_line
    from shardprep.storage.space import megabytes

    console().notice(str(done.path))
    files = f"{counted(done.num_files, 'file')}, {megabytes(done.num_bytes)}"
    how = "already exists" if done.was_there else f"{done.elapsed_s:,.1f} s"
    console().notice(f"{counts_line(done.splits)}: {files}, {how}")


def download(done: Download) -> None:
    """Download an archive from Kaggle, check every byte of it, and keep it.

    Data that Kaggle has mounted below /kaggle/input is not downloaded, unless you give --to or
    --refresh.

    Examples:
        shardprep download dogs-vs-cats
        shardprep download kaggle:owner/dataset --to archives
    """
    console().notice(str(done.path))


def upload(done: Upload) -> None:
    """Upload a dataset to Kaggle, as a new private dataset or a new version.

    The dataset is verified first, and compared with Kaggle's copy at the end. If the upload is
    interrupted, the same command continues it.

    Examples:
        shardprep upload tfrecords/pets kaggle:owner/pets-shards
        shardprep upload tfrecords/pets owner/pets-shards --public --license CC-BY-4.0
    """
    from shardprep.storage.space import megabytes

    console().notice(done.page)
    seen = {True: "private", False: "public", None: "visibility unknown"}[done.is_private]
    files = f"{counted(done.num_files, 'file')}, {megabytes(done.num_bytes)}"
    console().notice(
        f"version {done.version}, {seen}: {files}, {done.elapsed_s:,.0f} s; every byte is equal"
    )


def fetch(call: Call, *, as_json: bool) -> None:
    """Copy a dataset from object storage, and check every shard.

    If a copy exists, only missing and damaged files are downloaded. A damaged shard that has the
    right size is found only with --check. Exits with 3 if files are left out.

    Examples:
        shardprep fetch s3://bucket/dogs_vs_cats --to tfrecords
    """
    found = call()
    if as_json:
        from shardprep.api.json_types import FetchJson, LeftOutJson

        left_out = [picked(LeftOutJson, error) for error in found.left_out]
        print_json(picked(FetchJson, found, **{"from": found.address, "left_out": left_out}))
    else:
        _show_copy(found)
    if found.left_out:
        raise typer.Exit(EXIT_PROBLEMS)


def _show_copy(found: Fetched) -> None:
    from shardprep.storage.space import megabytes

    console().notice(str(found.path))
    how = f"{megabytes(found.num_new_bytes)} fetched"
    if found.was_there:
        how = "already exists" + (", repaired" if found.renewed else "")
    size = megabytes(found.num_bytes)
    console().notice(f"{counted(len(found.manifest.shards), 'shard')}, {size}: {how}")
    for name in found.renewed:
        console().notice(f"fetched again: {name}")
    for error in found.left_out:
        console().notice(f"left out: {error.where}: {error.what}")
    if found.left_out:
        console().notice(f"next: {typed('verify', found.path, '--repair --source …')}")
