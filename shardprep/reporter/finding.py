"""One finding on a dataset, and the rank of all kinds: what harms a result most comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from shardprep.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

MEANINGS = {
    "leaks": "copies, byte for byte, in more than one split",
    "near-leaks": "near copies in more than one split",
    "damaged-records": "records whose image cannot be decoded",
    "label-conflicts": "copies and near copies whose targets differ",
    "missing-classes": "classes without an image in train",
    "missing-object-classes": "classes of objects or masks that train has none of",
    "rejected": "images that the build left out for what their bytes are",
    "unlabelled": "images of train without a target",
    "not-used": "images that the source gives no target or no split",
    "damaged": "images that were damaged or cut and are written all the same",
    "duplicates": "copies, byte for byte, inside of a split",
    "near-duplicates": "near copies inside of a split",
    "imbalance": "classes of very different size",
    "class-property": "classes that brightness, size or the like tells apart",
    "drift": "splits that differ in classes, brightness, size or the like",
    "dropped-objects": "images with objects that the build left out",
    "unmatched-objects": "annotated objects of images that the dataset does not have",
    "unlisted-images": "images that no annotation lists, taken as images without objects",
    "duplicate-boxes": "images with two boxes of a class that are nearly the same",
    "tiny-boxes": "images with boxes of less than 8 × 8 stored pixels",
    "uniform-masks": "images whose mask is of one value, ignored pixels apart",
    "ignored-pixels": "images most of whose pixels belong to no class",
    "dark": "images with nothing bright in them",
    "light": "images with nothing dark in them",
    "flat": "images of few grey levels: blank, or nearly so",
    "blurry": "images without fine detail",
    "grey": "grey images in a set of coloured ones",
    "odd-aspect": "originals with one side more than three times the other",
    "enlarged": "originals smaller than the stored image",
}
"""Name of each kind of finding → its meaning; in the order in which findings are shown."""
WITHOUT_KEYS = (
    "missing-classes", "missing-object-classes", "imbalance", "class-property", "drift",
    "unmatched-objects", "unlisted-images",
)  # fmt: skip
"""Kinds that are not about single images of the dataset, and so have no list of images."""
OF_PIXELS = (
    "near-leaks", "damaged-records", "near-duplicates", "duplicate-boxes", "tiny-boxes", "dark",
    "light", "flat", "blurry", "grey",
)  # fmt: skip
"""Kinds that only a pass over the pixels tells."""
OF_BOXES = ("duplicate-boxes", "tiny-boxes")
OF_MASKS = ("uniform-masks", "ignored-pixels")
OF_ANNOTATIONS = (
    "missing-object-classes", "dropped-objects", "unmatched-objects", "unlisted-images",
    *OF_BOXES, *OF_MASKS,
)  # fmt: skip
"""Kinds that only datasets with boxes or masks can have."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of thing that was found, and the images that it is about."""

    name: str
    """Kind, as `--list` takes it."""
    severity: Severity
    """`serious`: a result measured on this set may be wrong; `warning`: training may suffer."""
    num_found: int
    """Images, or classes, splits or objects where it is about those."""
    num_looked_at: int
    """Images, inputs, classes, splits or objects that could have been it."""
    what: str
    """The finding in a sentence."""
    keys: tuple[str, ...] = ()
    """Keys of the images to leave out so that it is gone: of copies, all but one of each group."""
    flag: str = ""
    """Option of `shardprep build` that answers it; "" for none."""
    num_dropped: int = 0
    """Images of this dataset that the option would leave out."""


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order in which they are shown."""
    names = list(MEANINGS)
    return tuple(
        sorted(findings, key=lambda one: (SEVERITIES.index(one.severity), names.index(one.name)))
    )


def excluding(name: str) -> str:
    """Return the option that leaves out what `shardprep report --list NAME` prints."""
    return f"--exclude-list {name}.csv"


def images(number: int) -> str:
    """Return "1 image" or "2,000 images"."""
    return counted(number, "image")
