"""Catalogs of small sources: their members, and what is read of them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from shardprep.catalog.catalog import Catalog, make_catalog
from shardprep.catalog.items import Item
from shardprep.catalog.objects.combine import AnnotationFacts
from shardprep.catalog.survey import Survey, survey_source
from shardprep.catalog.tables.table import Table, parse_table
from shardprep.dataset.schema import UNLABELLED
from shardprep.errors import Choice, QuestionError
from shardprep.image.annotation_types import Annotation
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import encoded, jpeg, write_folder


def catalog(
    folder: Path, members: Mapping[str, bytes], labels: str = "auto", **keys: Any
) -> Catalog:
    """Return the catalog of a folder of the members."""
    source = write_folder(folder / "source", members)
    recipe = make_recipe({"source": str(source), "labels": labels, **keys}, "test")
    return make_catalog(recipe, folder / "work", lambda _: None)


def choices(folder: Path, members: Mapping[str, bytes], **keys: Any) -> list[Choice]:
    """Return the readings that a question about a source shows."""
    with pytest.raises(QuestionError) as error:
        catalog(folder, members, **keys)
    return [*error.value.choices]


def asked(folder: Path, members: Mapping[str, bytes], **keys: Any) -> list[str]:
    """Return the flags of the readings that a question about a source shows."""
    return [one.flags for one in choices(folder, members, **keys)]


JPEG = jpeg(8, 8)


def images(*keys: str) -> dict[str, bytes]:
    """Return an image for each key."""
    return dict.fromkeys(keys, JPEG)


def table(text: str, name: str = "labels.csv") -> Table:
    """Return the table in a text."""
    return parse_table(text.encode(), name)


def table_of(ids: Iterable[str], name: str = "labels.csv") -> Table:
    """Return a table that calls the ids cat and dog in turn."""
    rows = [f"{id_},{('cat', 'dog')[i % 2]}" for i, id_ in enumerate(ids)]
    return table("\n".join(["id,label", *rows]), name)


def lettered(letters: str, ids: Iterable[Any] = range(6), head: str = "id,label") -> bytes:
    """Return a table that gives ids these letters in turn."""
    rows = (f"{one},{letters[i % len(letters)]}" for i, one in enumerate(ids))
    return "\n".join([head, *rows]).encode()


def facts_of(made: Catalog) -> AnnotationFacts:
    """Return the facts about the boxes and masks of a catalog, which must have some."""
    assert made.annotations is not None
    return made.annotations


def objects_of(item: Item) -> Annotation:
    """Return the objects of an item, which must be listed."""
    assert item.annotation is not None, item.key
    return item.annotation


class Found(NamedTuple):
    """Split and class name of one item, as a catalog has them."""

    split: str
    label: str | None


def found(catalog: Catalog) -> dict[str, Found]:
    """Return split and class name of every item."""
    names = {UNLABELLED: None, **dict(enumerate(catalog.label_names))}
    return {item.key: Found(item.split, names[item.label]) for item in catalog.items}


def reasons(catalog: Catalog) -> dict[str, str]:
    """Return why members are skipped."""
    return {skipped.key: skipped.reason for skipped in catalog.skipped}


VOC = (
    b"<annotation><filename>x.jpg</filename><size><width>64</width><height>48</height></size>"
    b"<object><name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax>"
    b"</bndbox></object></annotation>"
)


def masked(number: int, *values: int, mask: str = "masks/{}.png") -> dict[str, bytes]:
    """Return images with a mask each, whose columns have these values."""
    members = {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(number)}
    return members | {mask.format(i): grey(*values) for i in range(number)}


def detection(number: int = 6) -> dict[str, bytes]:
    """Return images with a box each."""
    members = {f"images/{i}.jpg": jpeg(48, 64, seed=i) for i in range(number)}
    return members | {f"annotations/{i}.xml": VOC for i in range(number)}


def segmentation(number: int = 6, folder: str = "masks", name: str = "{}.png") -> dict[str, bytes]:
    """Return images with a mask each."""
    return masked(number, 0, 255, mask=f"{folder}/{name}")


def survey(folder: Path, members: dict[str, bytes]) -> Survey:
    """Return the survey of a folder of the members."""
    source = write_folder(folder / "source", members)
    return survey_source(source, folder / "work", lambda _: None)


def grey(*values: int, form: str = "PNG", mode: str = "L", **options: Any) -> bytes:
    """Return a mask whose pixels have these values, a column each."""
    dtype = np.uint16 if mode == "I;16" else np.uint8
    image = Image.fromarray(np.tile(np.array(values, dtype), (8, 1)))
    if mode == "P":
        image = image.convert("L")
        image.putpalette(list(range(256)) * 3)
    return encoded(image, form, **options)


def thing(name: str, *sides: object, order: str = "xmin ymin xmax ymax", more: str = "") -> str:
    tags = "".join(f"<{t}>{v}</{t}>" for t, v in zip(order.split(), sides, strict=True))
    return f"<object><name>{name}</name>{more}<bndbox>{tags}</bndbox></object>"


def xml(*things: str, filename: str = "x.jpg", size: str = "30 40") -> str:
    height, _, width = size.partition(" ")
    sides = f"<size><width>{width}</width><height>{height}</height></size>" if size else ""
    return f"<annotation><filename>{filename}</filename>{sides}{''.join(things)}</annotation>"
