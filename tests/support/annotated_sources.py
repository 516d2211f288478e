"""Sources with annotations, made of bytes or taken from real archives, and what is read of them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from shardprep.catalog.objects.known_formats import read_boxes, recognise
from shardprep.catalog.tables.metadata_files import Documents
from shardprep.catalog.tables.row_matching import KeyIndex
from shardprep.recipe.recipe import make_recipe
from shardprep.source.listing import list_source
from tests.support.builders import png, write, zip_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.catalog.objects.parsed import Found
    from shardprep.image.annotation_types import Annotation
    from shardprep.source.byte_range import Extent

PIXELS = png(30, 40)
Rows = list[tuple[str, tuple[float, ...]]]


@dataclass(frozen=True)
class Source:
    """The listing of a source, as a catalog has it."""

    index: KeyIndex
    documents: Documents
    extents: list[Extent]

    def read(self, option: str, *, outlines: bool = False) -> Found:
        return read_boxes(
            option, self.index, self.documents, extents=self.extents, outlines=outlines
        )

    def signs(self) -> list[str]:
        return [sign.option for sign in recognise(self.index, self.documents)]

    def of(self, found: Found, key: str) -> Annotation:
        """Return the annotation of an image, which must have one."""
        annotation = found.annotations[list(self.index.keys).index(key)]
        assert annotation is not None, key
        return annotation

    def rows(self, found: Found) -> dict[str, Rows]:
        """Return class name and box of each object by key, for images that are listed."""
        return {
            key: [
                (found.names[label], tuple(box))
                for label, box in zip(one.labels, one.boxes.tolist(), strict=True)
            ]
            for key, one in zip(self.index.keys, found.annotations, strict=True)
            if one is not None
        }


def opened(path: Path, only: str = "", **keys: Any) -> Source:
    """Return the listing of an archive or folder; images below a folder alone if one is given."""
    with TemporaryDirectory() as work:
        listing = list_source(path, Path(work), print)
    images = [member for member in listing.images if member.key.startswith(only)]
    recipe = make_recipe({"source": str(path), **keys}, "test")
    index = KeyIndex([member.key for member in images])
    return Source(index, Documents(listing.others, recipe), [m.extent for m in images])


def source(folder: Path, documents: Mapping[str, str | bytes], *images: str, **keys: Any) -> Source:
    """Return a source of such documents, and of images of 40×30 pixels with such keys."""
    texts = {k: t.encode() if isinstance(t, str) else t for k, t in documents.items()}
    path = write(folder / "set.zip", zip_bytes({**dict.fromkeys(images, PIXELS), **texts}))
    return opened(path, **keys)


def outlined(images: Mapping[str, bytes], seed: int = 14) -> dict[str, bytes]:
    """Return images, and a COCO document with up to five outlines of each."""
    draw = np.random.default_rng(seed)
    entries: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for number, (key, data) in enumerate(images.items()):
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
        entries.append({"id": number, "file_name": key, "width": width, "height": height})
        for i in range(number % 6):
            x, y = int(draw.integers(0, width - 8)), int(draw.integers(0, height - 8))
            w, h = int(draw.integers(4, width - x)), int(draw.integers(4, height - y))
            ring = [x, y, x + w, y, x + w, y + h, x, y + h]
            one = {"bbox": [x, y, w, h], "segmentation": [ring], "category_id": 1 + i % 2}
            found.append({"id": len(found), "image_id": number, "iscrowd": 0, **one})
    classes = [{"id": 1, "name": "cell"}, {"id": 2, "name": "dust"}]
    document = {"images": entries, "annotations": found, "categories": classes}
    return {**images, "annotations.json": json.dumps(document).encode()}
