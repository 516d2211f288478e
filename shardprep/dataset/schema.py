"""The schema: the features of every example, for writer, dataset and reader alike.

A schema file (`schemas/*.json`) names the features of every example. The shipped ones are
templates: a build fills in the shape and encoding of the image and the class names, and writes
the result as `schema.json` beside the shards.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from shardprep.dataset import example, grammar
from shardprep.dataset.grammar import Document
from shardprep.errors import SchemaError
from shardprep.image.spec import Encoding
from shardprep.storage.regular_file import read_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_SIDE = 65_500
"""Height or width of an image in pixels: JPEG's own limit."""
IMAGE, FILENAME, HEIGHT, WIDTH = "image", "image/filename", "image/height", "image/width"
LABEL, LABELS, TARGET, TEXT = "label", "labels", "target", "text"
TargetKind = Literal["class", "multilabel", "regression", "text", "none"]
"""Kind of target of an image: one class, several, a number, a text, or none."""
TARGET_FEATURES = {"class": LABEL, "multilabel": LABELS, "regression": TARGET, "text": TEXT}
"""Kind of target → the feature that holds it."""
PROVIDED = {
    IMAGE: ("image", "bytes"),
    LABEL: ("label", "int64"),
    LABELS: ("labels", "int64"),
    TARGET: ("scalar", "float32"),
    TEXT: ("text", "bytes"),
    FILENAME: ("text", "bytes"),
    HEIGHT: ("scalar", "int64"),
    WIDTH: ("scalar", "int64"),
}
"""Kind and dtype of the features that a build has values for; a schema picks from them."""

_FURTHER = [("scalar", "float32"), ("scalar", "int64"), ("text", "bytes")]
"""Kind and dtype that a feature of another name may have: a column of a table."""
_Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class Feature(Document):
    """One named value of every example."""

    kind: Literal["image", "label", "labels", "text", "scalar"]
    """Meaning: encoded pixels, one or any number of class indices, UTF-8 text, a number."""
    dtype: Literal["bytes", "int64", "float32"]
    """Type of the values in `tf.train.Example`."""
    shape: tuple[_Side | None, ...] = ()
    """Shape of an image: height, width (pixels), channels; None where images differ; else ()."""
    encoding: Encoding | None = None
    """Encoding of an image; None for other kinds."""
    doc: str = ""


def _problems(features: Mapping[str, Feature]) -> Iterator[str]:
    """Yield the features whose shape, kind or dtype readers could not take."""
    image = features.get(IMAGE)
    if image is None:
        yield f"has no feature {IMAGE!r}"
    elif image.kind != "image" or len(image.shape) != 3 or image.shape[2] != 3:
        yield f"features.{IMAGE}.shape: must be height, width, 3 of an image"
    for name, feature in features.items():
        own = [PROVIDED[name]] if name in PROVIDED else _FURTHER
        if (feature.kind, feature.dtype) not in own:
            kind, dtype = own[0]
            yield f"features.{name}: must be of kind {kind!r}, dtype {dtype!r}"


class Schema(Document):
    """The features of every example of a dataset, and the names of its classes."""

    format_version: Literal[1] = 1
    name: str
    doc: str = ""
    features: dict[str, Feature] = Field(min_length=1)
    labels: tuple[str, ...] = ()
    """Class names; a label is an index into them, −1 where an example has none."""

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        if problems := "; ".join(_problems(self.features)):
            raise ValueError(problems)
        return self

    @property
    def image(self) -> Feature:
        """The feature of the image."""
        return self.features[IMAGE]

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width in pixels that all images share, None where they differ."""
        height, width = self.image.shape[:2]
        return None if height is None or width is None else (height, width)

    @property
    def target(self) -> str | None:
        """Name of the target feature, None where there is none."""
        return next((name for name in TARGET_FEATURES.values() if name in self.features), None)

    def filled(
        self,
        size: tuple[int, int] | None,
        encoding: Encoding,
        labels: tuple[str, ...],
        columns: Mapping[str, str],
    ) -> Schema:
        """Return this schema for one dataset.

        `size` is height, width, or None where it varies; `columns` are further features by dtype.
        """
        shape = (*(size or (None, None)), 3)
        image = self.image.model_copy(update={"shape": shape, "encoding": encoding})
        further = {
            name: Feature(kind="text" if dtype == "bytes" else "scalar", dtype=dtype)  # type: ignore[arg-type]
            for name, dtype in columns.items()
        }
        features = {**self.features, IMAGE: image, **further}
        return self.model_copy(update={"features": features, "labels": labels})

    def encode(self, values: Mapping[str, bytes | float | tuple[int, ...]]) -> bytes:
        """Return the serialized Example of one item; `values` may hold more than the schema."""
        picked = {name: values[name] for name in self.features}
        return example.encode({n: v if isinstance(v, tuple) else (v,) for n, v in picked.items()})  # type: ignore[misc]

    def dumps(self) -> str:
        """Return the schema as the text of a JSON file."""
        return self.model_dump_json(indent=2) + "\n"


def shipped_schemas() -> dict[str, Path]:
    """Return the files of the schemas that come with the package, by name, sorted."""
    inside, beside = (Path(__file__).parents[level] / "schemas" for level in (1, 2))
    folder = inside if inside.is_dir() else beside  # in a wheel, in a checkout
    return {path.stem: path for path in sorted(folder.glob("*.json"))}


def load_schema(name_or_path: str) -> Schema:
    """Return a shipped schema by its name, or the schema in a JSON file.

    SchemaError for no such schema, or for a file that breaks rules; all of them are named.
    """
    shipped = shipped_schemas()
    try:
        data = read_named(shipped.get(name_or_path, Path(name_or_path)), grammar.MAX_DOCUMENT_BYTES)
    except OSError as error:
        raise SchemaError(
            name_or_path,
            "is neither a schema file that can be read nor a shipped schema",
            f"shipped are {', '.join(shipped)}",
        ) from error
    schema = parse_schema(data, name_or_path)
    if lacking := [name for name in schema.features if name not in PROVIDED]:
        raise SchemaError(
            name_or_path,
            "; ".join(f"features.{name!r}: a build has no values for it" for name in lacking),
            f"there are values for {', '.join(sorted(PROVIDED))}",
        )
    return schema


def parse_schema(data: bytes | str, where: str) -> Schema:
    """Return the schema in a document that errors call `where`; SchemaError where it is none."""
    try:
        return grammar.parse_document(Schema, data)
    except grammar.DocumentError as error:
        raise SchemaError(where, str(error)) from error
