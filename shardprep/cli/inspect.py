"""`shardprep inspect`: what a dataset holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardprep.cli import options as o
from shardprep.cli.streams import console, print_json
from shardprep.errors import RecipeError
from shardprep.storage.url import local_path

if TYPE_CHECKING:
    from shardprep.dataset.remote import RemoteDataset
    from shardprep.dataset.schema import Schema

EPILOG = (
    "Examples:\n\nshardprep inspect\n\nshardprep inspect tfrecords/dogs_vs_cats --json\n\n"
    "shardprep inspect tfrecords/bccd --boxes sheet.png"
)
_NUM_PICTURES = 24


def inspect(
    dataset: o.Dataset = None,
    boxes: Annotated[
        Path | None,
        o.value(
            "Draw boxes and masks of some images, from all over the dataset, into this PNG.",
            "FILE",
            parser=local_path,
        ),
    ] = None,
    store_timeout: o.StoreTimeout = None,
    as_json: o.Json = False,
) -> None:
    """Show what a dataset holds.

    Reads its manifest and item table; of shards only the boxes, where there are some.
    """
    from shardprep.cli.resolve import dataset_at
    from shardprep.dataset.describe import read_facts
    from shardprep.dataset.folder import ITEMS_FILE, SCHEMA_FILE
    from shardprep.dataset.remote import documents_of

    found = dataset_at(dataset)
    documents = documents_of(found, (SCHEMA_FILE, ITEMS_FILE))
    facts = read_facts(documents, str(found), has_shards=isinstance(found, Path))
    if boxes is not None:
        _draw(found, facts.schema, boxes)
    if as_json:
        print_json(facts)
        return
    from shardprep.cli.display.summary import print_facts

    print_facts(console(), facts)


def _draw(found: Path | RemoteDataset, schema: Schema, path: Path) -> None:
    """Write the contact sheet of a dataset."""
    from shardprep.dataset.pictures import contact_sheet
    from shardprep.storage.atomic_file import write_durably

    if not schema.annotations:
        raise RecipeError("--boxes", f"{found} has neither boxes nor masks", "leave it out")
    if path.suffix.lower() != ".png":
        raise RecipeError("--boxes", f"{path} is no name of a PNG", f"{path.stem}.png is one")
    sheet = contact_sheet(found, schema, _NUM_PICTURES)
    try:
        write_durably(path, sheet)
    except OSError as error:
        what = f"cannot be written ({error.strerror or error})"
        raise RecipeError(str(path), what, "name another file") from error
    console(stderr=True).notice(f"drawn: {path}")
