"""Counts of objects and masks in the manifest, and how they are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from shardprep.dataset.documents import Count, Document
from shardprep.dataset.schema import BOX_LABEL, MASK, OBJECTS, Schema

if TYPE_CHECKING:
    import pyarrow as pa


NO_IMAGE, LEFT_OUT, ELSEWHERE = "no image", "image left out", "document of other images"
"""Reasons why an object belongs to no image of the dataset: its image is not in the source, the
recipe excludes the image, or the source has no image of the whole document."""


class ObjectCounts(Document):
    """The objects of one split."""

    num_objects: Count
    num_background: Count
    """Number of records without an object."""
    objects: dict[str, Count]
    """Objects by class name, in label order; classes without objects have 0."""
    images: dict[str, Count]
    """Records with an object of a class, by class name."""


class MaskCounts(Document):
    """The masks of one split."""

    pixels: dict[str, Count]
    """Pixels of stored masks by class name, in label order; classes without pixels have 0."""
    images: dict[str, Count]
    """Records with a pixel of a class, by class name."""
    num_ignored: Count
    """Number of pixels without a class."""
    num_uniform: Count
    """Masks whose pixels all have one value."""


class AnnotationCounts(Document):
    """The objects and masks of one split, and the reasons for dropped or clipped ones."""

    num_clipped: Count
    """Number of objects whose box was clipped at the edge of the image."""
    dropped: dict[str, Count]
    """Number of dropped objects by reason."""
    objects: ObjectCounts | None
    """Null without stored boxes."""
    masks: MaskCounts | None
    """Null without stored class masks."""


class Unmatched(Document):
    """Annotations without an image, and images without an annotation; over all splits."""

    objects: dict[str, Count]
    """Annotated objects that belong to no image of the dataset, by reason."""
    num_unlisted: Count
    """Images that no annotation lists and that were planned as images without objects."""


def unmatched_of(objects: Mapping[str, int], num_unlisted: int) -> Unmatched | None:
    """Return the counts, or None if all are 0."""
    if not objects and not num_unlisted:
        return None
    return Unmatched(objects=dict(sorted(objects.items())), num_unlisted=num_unlisted)


def united_unmatched(several: Iterable[Unmatched | None]) -> Unmatched | None:
    """Return the sums of the counts of several sources, or None without any."""
    known = [counts for counts in several if counts is not None]
    objects: Counter[str] = Counter()
    for counts in known:
        objects.update(counts.objects)
    return unmatched_of(objects, sum(counts.num_unlisted for counts in known))


@dataclass(slots=True)
class AnnotationTally:
    """Running counts of objects and masks in rows of the item table."""

    num_background: int = 0
    num_clipped: int = 0
    num_uniform: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    objects: Counter[int] = field(default_factory=Counter)
    """Objects by label, and records with the label."""
    object_images: Counter[int] = field(default_factory=Counter)
    pixels: Counter[int] = field(default_factory=Counter)
    """Pixels by value, and records with the value."""
    mask_images: Counter[int] = field(default_factory=Counter)

    def add(self, written: pa.Table) -> None:
        """Count rows of written items, from a table with `ANNOTATION_COLUMNS`."""
        self.num_clipped += sum(filter(None, written["num_clipped"].to_pylist()))
        for dropped in filter(None, written["dropped"].to_pylist()):
            self.dropped.update(dict(dropped))
        labels = [one or () for one in written["object_labels"].to_pylist()]
        self.num_background += sum(not one for one in labels)
        self.objects.update(chain.from_iterable(labels))
        self.object_images.update(chain.from_iterable(map(set, labels)))
        for pixels in filter(None, written["mask_pixels"].to_pylist()):
            values = dict(pixels)
            self.num_uniform += len(values) == 1
            self.pixels.update(values)
            self.mask_images.update(values.keys())

    def counts(self, schema: Schema) -> AnnotationCounts:
        """Return the counts of all rows so far, by class name."""
        features = schema.annotations
        objects, masks = None, None
        if any(one.repeated for one in features.values()):
            names = features[BOX_LABEL].labels if BOX_LABEL in features else ()
            objects = ObjectCounts(
                num_objects=self.objects.total(),
                num_background=self.num_background,
                objects=_named(self.objects, names),
                images=_named(self.object_images, names),
            )
        if MASK in features:
            names = features[MASK].labels
            masks = MaskCounts(
                pixels=_named(self.pixels, names),
                images=_named(self.mask_images, names),
                num_ignored=self.pixels[features[MASK].ignored],
                num_uniform=self.num_uniform,
            )
        return AnnotationCounts(
            num_clipped=self.num_clipped,
            dropped=dict(sorted(self.dropped.items())),
            objects=objects,
            masks=masks,
        )


def _named(counts: Mapping[int, int], names: tuple[str, ...]) -> dict[str, int]:
    return {name: counts.get(label, 0) for label, name in enumerate(names)}


def contradictions(
    annotations: Mapping[str, AnnotationCounts], num_records: Mapping[str, int], num_rescaled: int
) -> Iterator[str]:
    """Yield the contradictions in a manifest's counts, given the records of each split."""
    if num_rescaled > (total := sum(num_records.values())):
        yield f"num_rescaled is {num_rescaled:,}, of {total:,} images"
    if annotations and [*annotations] != [*num_records]:
        yield "annotations are not of the splits"
        return
    for split, counts in annotations.items():
        where, most = f"annotations.{split}", num_records[split]
        if objects := counts.objects:
            total = sum(objects.objects.values())
            if objects.objects and objects.num_objects != total:
                yield f"{where}.{OBJECTS}.num_objects is {objects.num_objects:,}, not {total:,}"
            images = {"background": objects.num_background, **objects.images}
            yield from _too_many(f"{where}.{OBJECTS}", images, most)
        if masks := counts.masks:
            images = {"one value": masks.num_uniform, **masks.images}
            yield from _too_many(f"{where}.masks", images, most)


def _too_many(where: str, images: Mapping[str, int], most: int) -> Iterator[str]:
    for name, count in images.items():
        if count > most:
            yield f"{where} has {count:,} images of {name!r}, its split {most:,}"
