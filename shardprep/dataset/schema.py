"""The schema: the features of every example of a dataset.

The shipped schema files (`schemas/*.json`) are templates: a build fills in the shape and encoding
of the image and the class names, and writes the result as `schema.json` next to the shards.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from shardprep.dataset import documents, example
from shardprep.dataset.documents import Document, SparseDocument
from shardprep.dataset.kinds import KINDS, KindName
from shardprep.errors import SchemaError
from shardprep.image.annotation_types import Skeleton
from shardprep.storage.regular_file import read_named

Value: TypeAlias = (
    "bytes | float | tuple[int, ...] | tuple[float, ...] | tuple[bytes, ...] | array[float]"
)

Encoding = Literal["jpeg", "png", "raw", "any"]
"""How images are stored: as JPEG, as PNG, as plain uint8 bytes, or as JPEG or PNG ("any")."""
MAX_SIDE = 65_500
"""Maximum height or width of an image in pixels: JPEG's own limit."""
IMAGE, FILENAME, HEIGHT, WIDTH = "image", "image/filename", "image/height", "image/width"
IMAGES, NUM_IMAGES = "images", "num_images"
"""The images of a stack, which replace `image`, and their number."""
LABEL, LABELS, TARGET, TEXT = "label", "labels", "target", "text"
TARGETS, TEXTS = "targets", "texts"
CLASS_PREFIX = "label/"
"""Prefix of the names of features of kind `label` in a dataset with several class targets."""
ROWS = "rows/"
"""Prefix of the names of features of kind `rows`; each feature has a column of a table."""
UNLABELLED = -1
OBJECTS = "objects"
"""TFDS's name for the objects of an example; names of their features start with `objects/`."""
BOX, BOX_LABEL, CROWD, OBJECT_MASK = (
    f"{OBJECTS}/{name}" for name in ("bbox", "label", "is_crowd", "mask")
)
MASK = "segmentation_mask"
TARGET_IMAGE = "target_image"
KEYPOINTS, KEYPOINTS_VISIBLE = f"{OBJECTS}/keypoints", f"{OBJECTS}/keypoints/visible"
POINTS, POINTS_VISIBLE = "points", "points/visible"
TargetKind = Literal[
    "class", "multilabel", "regression", "text", "vector", "soft", "classes", "texts", "none"
]
TARGET_FEATURES = {
    "class": LABEL,
    "multilabel": LABELS,
    "regression": TARGET,
    "text": TEXT,
    "vector": TARGETS,
    "soft": TARGETS,
    "classes": TARGETS,
    "texts": TEXTS,
}
"""Kind of target → its feature. `classes` has `label/NAME`, and `targets` for number columns."""


class Provided(NamedTuple):
    """A feature that a build can fill."""

    kind: KindName
    key: str = ""
    """Key of the feature in a reader's target dict; "" if it is not part of the target."""
    dtype: str = ""
    """Type of the stored values; "" for the type of the kind."""

    @property
    def form(self) -> tuple[KindName, str]:
        """The kind and the type of the stored values."""
        return self.kind, self.dtype or KINDS[self.kind].dtype


PROVIDED = {
    IMAGE: Provided("image"),
    IMAGES: Provided("image"),
    FILENAME: Provided("text"),
    HEIGHT: Provided("scalar", dtype="int64"),
    WIDTH: Provided("scalar", dtype="int64"),
    BOX: Provided("bbox", "boxes"),
    BOX_LABEL: Provided("label", "labels"),
    CROWD: Provided("flag", "crowds"),
    OBJECT_MASK: Provided("mask", "masks"),
    KEYPOINTS: Provided("keypoints", "keypoints"),
    KEYPOINTS_VISIBLE: Provided("visibility", "keypoints_visible"),
    MASK: Provided("mask", "segmentation_mask"),
    POINTS: Provided("keypoints", "points"),
    POINTS_VISIBLE: Provided("visibility", "points_visible"),
    TARGET_IMAGE: Provided("image", "target_image"),
    LABEL: Provided("label", "label"),
    LABELS: Provided("labels", "label"),
    TARGET: Provided("scalar", "target"),
    TEXT: Provided("text", "text"),
    TARGETS: Provided("vector", "targets"),
    TEXTS: Provided("texts", "texts"),
}
"""Feature name → properties of each feature that a build can fill; a schema selects some."""
ANNOTATIONS = tuple(
    name
    for name, one in PROVIDED.items()
    if one.key and name not in (*TARGET_FEATURES.values(), TARGET_IMAGE)
)
"""Features of boxes, masks and keypoints."""
OF_OBJECTS = tuple(name for name in ANNOTATIONS if name.startswith(f"{OBJECTS}/"))
ATTRIBUTES = {
    name: name.removeprefix(f"{OBJECTS}/")
    for name in OF_OBJECTS
    if name not in (BOX, BOX_LABEL, OBJECT_MASK, KEYPOINTS, KEYPOINTS_VISIBLE)
}
"""Feature → the name of the attribute of objects that it stores."""
MASKS = tuple(name for name in ANNOTATIONS if PROVIDED[name].kind == "mask")
ALL_POINTS = {KEYPOINTS: KEYPOINTS_VISIBLE, POINTS: POINTS_VISIBLE}
"""Feature of keypoints → the feature of their visibility."""
MOST_POINTS = 1000
"""Maximum number of keypoints of an object or image."""
MOST_BYTE_CLASSES = 254
"""Maximum number of classes of an 8-bit mask; its largest value marks ignored pixels."""

_NAMED = (BOX_LABEL, MASK, TARGETS)
"""Features that may have `labels`, in addition to `label/NAME`."""
_FURTHER = [("scalar", "float32"), ("scalar", "int64"), ("text", "bytes")]
MISSING: dict[str, int | float | str] = {"int64": -1, "float32": math.nan, "bytes": ""}
"""dtype → value of an empty cell of a column, and of the padding of rows."""
PRESENT = "/present"
"""Suffix of the feature that is 0 for empty cells of a whole-number column, otherwise 1."""
_Place = Annotated[int, Field(ge=0, lt=MOST_POINTS)]
_Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class Feature(SparseDocument):
    """One named value of every example, or of each of its objects."""

    sparse_keys: ClassVar[frozenset[str]] = frozenset(
        {"repeated", "labels", "is_deep", "channels", "soft", "points", "edges", "mirrored"}
    )

    kind: KindName
    dtype: Literal["bytes", "int64", "float32"]
    """Type of the values in `tf.train.Example`."""
    shape: tuple[_Side | None, ...] = ()
    """Shape of an image or mask: height, width (pixels), channels; null if images differ. For
    `texts`: the largest number of texts of an image. Empty for other kinds."""
    encoding: Encoding | None = None
    """Encoding of an image or mask; null for other kinds."""
    doc: str = ""
    repeated: bool = False
    """True if an example has one value for each object or each image of a stack, in order."""
    labels: tuple[str, ...] = ()
    """Class names of objects, of mask values or of a feature `label/NAME`, or names of the numbers
    of a vector; `Schema.labels` has the class names of images."""
    is_deep: bool = False
    """True if the images of a stack, or target images, are grey PNG files of 16 bits."""
    channels: tuple[str, ...] = ()
    """Names of the images of a stack, in order; empty if stacks are series."""
    soft: bool = False
    """True if the numbers of a vector are probabilities of classes, with sum 1."""
    points: tuple[str, ...] = Field(default=(), max_length=MOST_POINTS)
    """Names of the keypoints, in order."""
    edges: tuple[tuple[_Place, _Place], ...] = ()
    """Pairs of keypoints to connect in drawings."""
    mirrored: tuple[_Place, ...] = ()
    """Index of the keypoint that replaces each keypoint in a mirrored image; empty if none does."""

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the value of an example, or of each of its objects; () for a scalar."""
        texts = (*self.shape, None)[0] or 0
        lengths = {"points": len(self.points), "labels": len(self.labels), "texts": texts}
        shape = KINDS[self.kind].shape
        return tuple([lengths[one] if isinstance(one, str) else one for one in shape])

    @property
    def num_values(self) -> int:
        """Number of values of an example, or of each of its objects; for `texts`, the maximum."""
        return math.prod(self.value_shape)

    @property
    def pixel_dtype(self) -> Literal["uint8", "uint16"]:
        return "uint16" if self.is_deep or len(self.labels) > MOST_BYTE_CLASSES else "uint8"

    @property
    def ignored(self) -> int:
        """Value of mask pixels without a class: the largest of their type."""
        return 255 if self.pixel_dtype == "uint8" else 65_535


def _allowed(name: str, pictures: str) -> list[tuple[str, str]]:
    if name.startswith(CLASS_PREFIX):
        return [PROVIDED[LABEL].form]
    if name.startswith(ROWS):
        return [*(("rows", dtype) for dtype in MISSING), *_FURTHER]
    if name == IMAGES != pictures:
        return _FURTHER  # a column of a dataset of an earlier version
    return [PROVIDED[name].form] if name in PROVIDED else _FURTHER


def _problems(features: Mapping[str, Feature]) -> Iterator[str]:
    pictures = IMAGE if IMAGE in features else IMAGES
    if pictures not in features:
        yield f"has no feature {IMAGE!r}"
    for name, feature in features.items():
        own = _allowed(name, pictures)
        is_of_object = name.partition("/")[0] == OBJECTS
        is_repeated = is_of_object or name == IMAGES == pictures
        may_repeat = name == MASK and pictures == IMAGES
        if (feature.kind, feature.dtype) not in own:
            kind, dtype = own[0]
            yield f"features.{name}: must be of kind {kind!r}, dtype {dtype!r}"
        elif is_of_object and name not in PROVIDED:
            yield f"features.{name}: objects have no such feature"
        elif feature.repeated != is_repeated and not may_repeat:
            yield f"features.{name}.repeated: must be {str(is_repeated).lower()}"
        elif feature.labels and not (name in _NAMED or name.startswith(CLASS_PREFIX)):
            yield f"features.{name}.labels: only classes, masks and vectors have names of their own"
        elif KINDS[feature.kind].moves == "pixels":
            yield from _picture_problems(name, feature, is_image=name == pictures)
        yield from _skeleton_problems(name, feature)


def _picture_problems(name: str, feature: Feature, *, is_image: bool) -> Iterator[str]:
    channels = 1 if feature.kind == "mask" or feature.is_deep else 3
    if len(feature.shape) != 3 or feature.shape[2] != channels:
        yield f"features.{name}.shape: must be height, width, {channels}"
    elif feature.encoding != "png" and (feature.is_deep or not is_image):
        yield f"features.{name}.encoding: must be png"
    elif feature.is_deep and name == IMAGE:
        yield f"features.{name}.is_deep: only stacks and target images have 16 bits"


def _skeleton_problems(name: str, feature: Feature) -> Iterator[str]:
    places = [*range(len(feature.points))]
    if feature.mirrored and sorted(feature.mirrored) != places:
        yield f"features.{name}.mirrored: must name each keypoint once"
    if not {*chain(*feature.edges)} <= {*places}:
        yield f"features.{name}.edges: must be pairs of indices of keypoints"


class Schema(Document):
    """The features of every example of a dataset, and the names of its classes."""

    format_version: Literal[1] = 1
    name: str
    doc: str = ""
    features: dict[str, Feature] = Field(min_length=1)
    labels: tuple[str, ...] = ()
    """Class names of images; a label is an index into them, or −1 for an unlabelled image."""

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        if problems := "; ".join(_problems(self.features)):
            raise ValueError(problems)
        return self

    @property
    def image_name(self) -> str:
        """`IMAGE`, or `IMAGES` in a dataset of stacks."""
        return IMAGE if IMAGE in self.features else IMAGES

    @property
    def image(self) -> Feature:
        return self.features[self.image_name]

    @property
    def is_stack(self) -> bool:
        return IMAGE not in self.features

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of every image in pixels, or None if images differ."""
        height, width = self.image.shape[:2]
        return None if height is None or width is None else (height, width)

    @property
    def target(self) -> str | None:
        return next((name for name in TARGET_FEATURES.values() if name in self.features), None)

    @property
    def class_features(self) -> tuple[str, ...]:
        """Names of the features `label/NAME`, sorted."""
        return tuple(sorted(name for name in self.features if name.startswith(CLASS_PREFIX)))

    @property
    def has_target(self) -> bool:
        return self.target is not None or bool(self.class_features)

    @property
    def target_lists(self) -> tuple[str, ...]:
        """Names of the features whose values are lists in the item table."""
        return (*({TARGETS, TEXTS} & self.features.keys()), *self.class_features)

    @property
    def supervised(self) -> str | None:
        """TFDS's name of the supervised feature: objects, mask, points, target image or target."""
        if BOX in self.features:
            return OBJECTS
        names = (MASK, POINTS, TARGET_IMAGE)
        return next((name for name in names if name in self.features), self.target)

    @property
    def annotations(self) -> dict[str, Feature]:
        names = (*ANNOTATIONS, TARGET_IMAGE)
        return {name: self.features[name] for name in names if name in self.features}

    @property
    def annotation_labels(self) -> tuple[str, ...]:
        """Class names of objects, otherwise of the values of masks, otherwise ()."""
        return next((one.labels for one in self.annotations.values() if one.labels), ())

    @property
    def rows(self) -> dict[str, Feature]:
        return {name: one for name, one in self.features.items() if one.kind == "rows"}

    @property
    def columns(self) -> dict[str, str]:
        """Name → dtype of the features that hold a table cell or a property of the source file."""
        named = {
            name: dtype
            for name, dtype in self.dtypes.items()
            if name not in PROVIDED and not name.startswith((CLASS_PREFIX, ROWS))
        }
        return {
            name: dtype
            for name, dtype in named.items()
            if not (name.endswith(PRESENT) and name.removesuffix(PRESENT) in named)
        }

    @property
    def dtypes(self) -> dict[str, str]:
        return {name: feature.dtype for name, feature in self.features.items()}

    def filled(
        self,
        size: tuple[int, int] | None,
        encoding: Encoding,
        labels: tuple[str, ...],
        columns: Mapping[str, str],
        annotations: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        targets: Mapping[str, Feature] = MappingProxyType({}),
    ) -> Schema:
        """Return a copy of this template, filled in for one dataset.

        `size` is height and width, or None if images differ. `columns` maps names of further
        features to dtypes. `annotations` maps the wanted features of `ANNOTATIONS` to their class
        names, or to () for features without class names. `targets` are the features of a target
        with several values, by name.
        """
        shape = size or (None, None)
        image = self.image.model_copy(update={"shape": (*shape, 3), "encoding": encoding})
        known = self.features
        if annotations.keys() - known.keys():  # reading other schema files is slow
            known = {**_annotation_features(), **known}
        annotated = {
            name: known[name].model_copy(
                update={"labels": names, **({"shape": (*shape, 1)} if name in MASKS else {})}
            )
            for name, names in annotations.items()
        }
        own = {name: one for name, one in self.features.items() if name not in ANNOTATIONS}
        features = {**own, self.image_name: image, **targets, **annotated}
        filled = self.model_copy(update={"features": features, "labels": labels})
        return filled.with_columns(columns)

    def with_columns(self, columns: Mapping[str, str]) -> Schema:
        """Return a copy with a feature for each column; `columns` maps names to dtypes."""
        further = {
            name: Feature(kind=_kind(name, dtype), dtype=dtype)  # type: ignore[arg-type]
            for name, dtype in columns.items()
        }
        return self.model_copy(update={"features": {**self.features, **further}})

    def with_keypoints(self, skeletons: Mapping[str, Skeleton]) -> Schema:
        """Return a copy whose keypoint features have the skeletons given by feature name."""
        changed = {}
        for name, (points, edges, mirrored) in skeletons.items():
            more = {"edges": edges, "mirrored": mirrored} if name in ALL_POINTS else {}
            changed[name] = self.features[name].model_copy(update={"points": points, **more})
        return self.model_copy(update={"features": {**self.features, **changed}})

    def with_stacks(
        self, channels: tuple[str, ...], *, is_deep: bool, masks_repeat: bool = False
    ) -> Schema:
        """Return a copy with `images` instead of `image`; `masks_repeat`: a mask for each image."""
        form = {
            "repeated": True,
            "doc": "The images of the sample, in order.",
            "shape": (*self.image.shape[:2], 1 if is_deep else 3),
            "is_deep": is_deep,
            "channels": channels,
        }
        known = {
            IMAGES if name == self.image_name else name: one for name, one in self.features.items()
        }
        known[IMAGES] = self.image.model_copy(update=form)
        if masks_repeat:
            known[MASK] = known[MASK].model_copy(update={"repeated": True})
        return self.model_copy(update={"features": known})

    def with_images(self, size: tuple[int, int] | None, encoding: Encoding | None) -> Schema:
        """Return a copy for images and masks of height and width `size`; None for any size."""
        shape = size or (None, None)
        changed = {
            name: one.model_copy(update={"shape": (*shape, *one.shape[2:])})
            for name, one in self.features.items()
            if KINDS[one.kind].moves == "pixels"
        }
        image = changed[self.image_name].model_copy(update={"encoding": encoding})
        changed[self.image_name] = image
        return self.model_copy(update={"features": {**self.features, **changed}})

    def unnamed(self) -> Schema:
        """Return a copy without class names and without the maximum number of texts."""
        features = {
            name: one.model_copy(update={"labels": (), "shape": () if name == TEXTS else one.shape})
            for name, one in self.features.items()
        }
        return self.model_copy(update={"features": features, "labels": ()})

    def encode(self, values: Mapping[str, Value]) -> bytes:
        """Return a serialized Example of `values`, which must have every feature of the schema.

        Other values are ignored. OverflowError if a float is too large for float32.
        """
        lists: dict[str, example.Values] = {}
        of_empty = {}
        for name, feature in self.features.items():
            value = values[name]
            lists[name] = several = value if isinstance(value, tuple | array) else (value,)  # type: ignore[assignment]
            if not several:
                of_empty[name] = feature.dtype
        return example.encode(lists, of_empty)

    def dumps(self) -> str:
        return self.model_dump_json(indent=2) + "\n"


def _kind(name: str, dtype: str) -> str:
    return "rows" if name.startswith(ROWS) else "text" if dtype == "bytes" else "scalar"


def _annotation_features() -> dict[str, Feature]:
    templates = [load_schema(name) for name in ("instances", "keypoints", "segmentation", "points")]
    return {name: one for schema in templates for name, one in schema.annotations.items()}


def shipped_schemas() -> dict[str, Path]:
    """Return the paths of the shipped schema files by schema name, sorted."""
    inside, beside = (Path(__file__).parents[level] / "schemas" for level in (1, 2))
    folder = inside if inside.is_dir() else beside  # in a wheel, in a checkout
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_schema(name_or_path: str) -> Schema:
    """Return a shipped schema by its name, or the schema in a JSON file.

    SchemaError if the file is missing or invalid, or has a feature that a build cannot fill.
    """
    shipped = shipped_schemas()
    try:
        data = read_named(
            shipped.get(name_or_path, Path(name_or_path)), documents.MAX_DOCUMENT_BYTES
        )
    except OSError as error:
        raise SchemaError(
            name_or_path,
            "is neither a schema file that can be read nor a shipped schema",
            f"give a JSON file or one of {', '.join(shipped)}",
        ) from error
    schema = parse_schema(data, name_or_path)
    if lacking := [name for name in schema.features if name not in PROVIDED]:
        raise SchemaError(
            name_or_path,
            "; ".join(f"features.{name!r}: a build has no values for it" for name in lacking),
            f"use only features of {', '.join(sorted(PROVIDED))}",
        )
    return schema


def parse_schema(data: bytes | str, where: str, hint: str = "correct this file") -> Schema:
    """Return the schema in a JSON text; SchemaError with `where` and `hint` if it is invalid."""
    try:
        return documents.parse_document(Schema, data)
    except documents.DocumentError as error:
        raise SchemaError(where, str(error), error.hint or hint) from error
