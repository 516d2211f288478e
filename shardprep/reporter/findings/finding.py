"""The `Finding` type, and the names, meanings and order of all kinds of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from shardprep.reporter.record_columns import Contents

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

MEANINGS = {
    "leaks": "copies, byte for byte, in more than one split",
    "near-leaks": "near copies in more than one split",
    "scene-leaks": "images of the same scene in more than one split",
    "damaged-records": "records whose image cannot be decoded",
    "label-conflicts": "copies and near copies with different targets",
    "wrong-labels": "images whose label is probably wrong, by the predictions of a model",
    "missing-classes": "classes without an image in train",
    "missing-object-classes": "classes of objects or masks that are missing in train",
    "rejected": "images that the build rejected because of their bytes",
    "unlabelled": "images of train without a target",
    "not-used": "images without a target or a split in the source",
    "damaged": "damaged or truncated images that were stored anyway",
    "duplicates": "copies, byte for byte, inside a split",
    "near-duplicates": "near copies inside a split",
    "same-scene": "images of the same scene inside a split",
    "imbalance": "classes of very different size",
    "class-property": "classes that brightness, size or a similar property separates",
    "drift": "splits that differ in classes, brightness, size or similar properties",
    "dropped-objects": "images with objects that the build left out",
    "lost-keypoints": "images with keypoints that the build left out",
    "unmatched-objects": "annotated objects of images that the dataset does not have",
    "unlisted-images": "images that no annotation lists, stored as images without objects",
    "duplicate-boxes": "images with two nearly equal boxes of one class",
    "tiny-boxes": "images with boxes of less than 8 × 8 stored pixels",
    "uniform-masks": "images whose mask has a single value, ignored pixels excepted",
    "ignored-pixels": "images whose pixels mostly have no class",
    "dark": "images that are dark everywhere",
    "light": "images that are bright everywhere",
    "flat": "images with few grey levels: blank or nearly blank",
    "blurry": "images without fine detail",
    "grey": "grey images in a dataset of coloured images",
    "odd-aspect": "originals with one side more than three times the other",
    "enlarged": "originals with fewer pixels than the stored image",
}
"""Name of each kind of finding → its meaning, in display order: most harmful first."""
WITHOUT_KEYS = (
    "missing-classes", "missing-object-classes", "imbalance", "class-property", "drift",
    "unmatched-objects", "unlisted-images",
)  # fmt: skip
OF_PIXELS = (
    "near-leaks", "scene-leaks", "damaged-records", "near-duplicates", "same-scene",
    "duplicate-boxes", "tiny-boxes", "dark", "light", "flat", "blurry", "grey",
)  # fmt: skip
"""Kinds that need a pass over the pixels."""
OF_BOXES = ("duplicate-boxes", "tiny-boxes")
OF_MASKS = ("uniform-masks", "ignored-pixels")
OF_POINTS = ("lost-keypoints",)
OF_ANNOTATIONS = (
    "missing-object-classes", "dropped-objects", "unmatched-objects", "unlisted-images",
    *OF_BOXES, *OF_MASKS, *OF_POINTS,
)  # fmt: skip
"""Kinds that only datasets with boxes, masks or keypoints can have."""

_PROPERTY = 1 / 3
"""Share of images from which a note is a property of the dataset and not a defect."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of finding, with the images that it concerns."""

    name: str
    """Name of the finding, a value of `--list`."""
    severity: Severity
    """`serious`: a result measured on this set may be wrong; `warning`: training may suffer;
    `note`: may be intended."""
    num_found: int
    """Number of images (or classes, splits or objects) found."""
    num_looked_at: int
    """Number of images (or inputs, classes, splits or objects) that were checked."""
    what: str
    """The finding in a sentence."""
    keys: tuple[str, ...] = ()
    """Keys of the images to leave out to resolve the finding. One image of each group of copies is
    not listed, nor are unlabelled images outside train, because a submission needs them."""
    flag: str = ""
    """Option of `shardprep build` that resolves the finding; "" if no option does."""
    num_dropped: int = 0
    """Number of images of this dataset that the option would leave out."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Number of images that the option would leave out, by split."""


def leaving_out(
    finding: Finding,
    contents: Contents,
    numbers: Sequence[int],
    option: tuple[str, Sequence[int]] | None = None,
) -> Finding:
    """Return the finding with the keys of records to leave out, and an option that does so.

    Unlabelled images outside train are counted, but not listed. `option` is a build option with the
    records that it leaves out; for None, or if it leaves out such an image, `--exclude-list` is
    named. A finding that holds for a third of the images has no option.
    """
    listed = [number for number in numbers if not contents.is_spared[number]]
    finding = replace(finding, keys=contents.keys_of(listed))
    if _is_of_the_set(finding):
        return finding
    flag, out = excluding(finding.name), listed
    if option is not None and not contents.is_spared[[*option[1]]].any():
        flag, out = option[0], [*option[1]]
    what, num_spared = finding.what, len(numbers) - len(listed)
    if num_spared:
        which = f"{num_spared:,} are unlabelled images"
        if num_spared == 1:
            which = "1 is an unlabelled image"
        spared = {contents.splits[contents.split[one]] for one in {*numbers} - {*listed}}
        what += f"; {which} of {' and '.join(sorted(spared))}, which --list does not print"
    dropped = Counter(contents.splits[one] for one in contents.split[out].tolist())
    return replace(
        finding,
        what=what,
        flag=flag if out else "",
        num_dropped=len(out),
        dropped={name: dropped[name] for name in contents.splits if name in dropped},
    )


def _is_of_the_set(finding: Finding) -> bool:
    return finding.severity == "note" and finding.num_found >= _PROPERTY * finding.num_looked_at


def of_the_set(finding: Finding) -> Finding:
    """Return the finding. If a note is about a third of the images or more, say so in `what`."""
    if not _is_of_the_set(finding):
        return finding
    what = f"{finding.what}: a third or more, so it is a property of this set"
    return replace(finding, what=what)


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings sorted by severity, then in the order of `MEANINGS`."""
    names = list(MEANINGS)

    def rank(finding: Finding) -> tuple[int, int]:
        return SEVERITIES.index(finding.severity), names.index(finding.name)

    return tuple(sorted(findings, key=rank))


def excluding(name: str) -> str:
    """Return the build option that leaves out the keys of `shardprep report --list NAME`."""
    return f"--exclude-list {name}.csv"
