"""`shardprep export`: a dataset in the layout of another library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from shardprep.cli import options as o
from shardprep.cli.streams import bar, console, print_json
from shardprep.errors import counted
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.api.json_types import Exported

EPILOG = (
    "Examples:\n\nshardprep export --to webdataset\n\n"
    "shardprep export tfrecords/pets --to parquet --out pets_hub\n\n"
    "shardprep export s3://bucket/sets/pets --to folder"
)


def export(
    dataset: o.Dataset = None,
    *,
    to: Annotated[
        str, o.value("Layout: webdataset, parquet, folder, tfod, coco or yolo.", "LAYOUT")
    ],
    out: Annotated[
        Path | None,
        o.value(
            "Folder of the export.",
            "DIR",
            "exports/NAME-VERSION-LAYOUT",
            parser=local_path,
        ),
    ] = None,
    split: Annotated[
        str | None,
        o.value("Records to write, such as train[:10%]+validation.", "SPLIT", "all"),
    ] = None,
    overwrite: Annotated[
        bool,
        o.switch("--overwrite", "Replace an existing export when the new one is complete."),
    ] = False,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Write a dataset in the layout of another library; stored images are copied unchanged.

    webdataset: tars with image, class and JSON. parquet: files with a card for Hugging Face.
    folder: split/class/name.jpg, a table and COCO's JSON. tfod: TFRecords for TensorFlow's object
    detection. coco: images/ and annotations/ for pycocotools and torchvision. yolo: images/,
    labels/ and data.yaml for Ultralytics. Raw pixels become PNG. If an export is interrupted, the
    same command continues it.
    """
    from shardprep.api.export import export as export_dataset

    layout: Any = to  # any text of a shell
    with bar() as progress:
        done = export_dataset(
            dataset, to=layout, out=out, split=split, overwrite=overwrite, progress=progress
        )
    if as_json:
        print_json(done)
    else:
        _show(done)


def _show(done: Exported) -> None:
    from shardprep.cli.show.console import counts_line
    from shardprep.storage.space import megabytes

    console().notice(str(done.path))
    files = f"{counted(done.num_files, 'file')}, {megabytes(done.num_bytes)}"
    how = "is there already" if done.was_there else f"{done.elapsed_s:,.1f} s"
    console().notice(f"{counts_line(done.splits)}: {files}, {how}")
