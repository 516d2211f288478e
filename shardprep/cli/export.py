"""`shardprep export`: write a dataset in the layout of another library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardprep.cli.streams import console, print_json
from shardprep.errors import counted

if TYPE_CHECKING:
    from shardprep.api.json_types import Exported
    from shardprep.cli.options import Call

EPILOG = (
    "Examples:\n\nshardprep export --to webdataset\n\n"
    "shardprep export tfrecords/pets --to parquet --out pets_hub\n\n"
    "shardprep export s3://bucket/sets/pets --to folder"
)


def run(call: Call, *, as_json: bool) -> None:
    """Write a dataset in the layout of another library; stored images are copied unchanged.

    webdataset: tars with image, class and JSON. parquet: files with a card for Hugging Face.
    folder: split/class/name.jpg, a table and COCO's JSON. tfod: TFRecords for TensorFlow's object
    detection. coco: images/ and annotations/ for pycocotools and torchvision. yolo: images/,
    labels/ and data.yaml for Ultralytics. Raw pixels become PNG. If an export is interrupted, the
    same command continues it.
    """
    done = call()
    if as_json:
        print_json(done)
    else:
        _show(done)


def _show(done: Exported) -> None:
    from shardprep.cli.show.console import counts_line
    from shardprep.storage.space import megabytes

    console().notice(str(done.path))
    files = f"{counted(done.num_files, 'file')}, {megabytes(done.num_bytes)}"
    how = "already exists" if done.was_there else f"{done.elapsed_s:,.1f} s"
    console().notice(f"{counts_line(done.splits)}: {files}, {how}")
