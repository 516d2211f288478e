"""One record against its schema and its row. Pure: bytes in, faults out, as (kind, what) pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep import example
from shardprep.catalog.catalog import UNLABELLED
from shardprep.errors import RecordError
from shardprep.schema import FILENAME, HEIGHT, IMAGE, WIDTH
from shardprep.verify.layout import read_plain
from shardprep.verify.pixels import fault_inside, fault_outside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardprep.schema import Feature, Schema
    from shardprep.verify.layout import Features
    from shardprep.verify.problem import Kind
    from shardprep.verify.rows import Rows

_TYPES = {"bytes": bytes, "int64": int, "float32": float}


class Fault(NamedTuple):
    """What is wrong with a record."""

    kind: Kind
    what: str


@dataclass(frozen=True, slots=True)
class ExampleCheck:
    """How the records of a dataset are judged."""

    schema: Schema | None
    """None: each must be an Example, whatever it holds."""
    decode: bool
    """Whether to decode the images as well."""

    def read(self, payload: bytes) -> Features | Fault:
        """Return the features of a record, or that it has none."""
        features = read_plain(payload)
        if features is not None:
            return features
        try:
            return example.decode(payload)
        except RecordError as error:
            return Fault("example", error.what)

    def faults(self, features: Features, rows: Rows | None, record: int | None) -> list[Fault]:
        """Return what is wrong with the features of the record of that number, all of it."""
        if self.schema is None:
            return []
        found: list[Fault] = []
        sound: dict[str, object] = {}
        for name, feature in self.schema.features.items():
            values = features.get(name)
            if values is None:
                found.append(Fault("example", f"has no feature {name!r}"))
            elif fault := _fault(values, feature, len(self.schema.labels)):
                found.append(Fault(fault.kind, f"{name}: {fault.what}"))
            else:
                sound[name] = values if feature.kind == "labels" else values[0]
        if len(features) > len(self.schema.features):
            found.extend(
                Fault("example", f"has a feature {name!r} that the schema does not name")
                for name in features
                if name not in self.schema.features
            )
        found.extend(self._image_faults(sound))
        if rows is not None and record is not None and record < len(rows.keys):
            found.extend(_row_faults(sound, self.schema.target, rows, record))
        return found

    def _image_faults(self, sound: Mapping[str, object]) -> list[Fault]:
        found: list[Fault] = []
        image = self.schema.image  # type: ignore[union-attr] # asked only where there is one
        height, width = sound.get(HEIGHT), sound.get(WIDTH)
        for name, side, wanted in (
            (HEIGHT, height, image.shape[0]),
            (WIDTH, width, image.shape[1]),
        ):
            if isinstance(side, int) and (side < 1 or wanted not in (None, side)):
                found.append(
                    Fault("example", f"{name}: is {side}, the schema says {wanted or '1 or more'}")
                )
        size = (height, width) if isinstance(height, int) and isinstance(width, int) else None
        data = sound.get(IMAGE)
        if isinstance(data, bytes):
            what = fault_outside(data, image, size)
            if not what and self.decode:
                what = fault_inside(data, image, size)
            if what:
                found.append(Fault("image", f"the image {what}"))
        return found


def key_of(features: Features) -> str:
    """Return the key that a record carries, "" where it carries none."""
    for value in features.get(FILENAME, ()):
        if isinstance(value, bytes):
            return value.decode(errors="replace")
    return ""


def _fault(values: Sequence[Any], feature: Feature, num_classes: int) -> Fault | None:
    """Return what is wrong with the values of one feature."""
    kind = _TYPES[feature.dtype]
    if any(type(value) is not kind for value in values):
        what = f"holds {type(values[0]).__name__}, the schema says {feature.dtype}"
        return Fault("example", what)
    if feature.kind == "labels":
        if values != sorted(set(values)):
            return Fault("example", f"{values} is not ascending")
    elif len(values) != 1:
        return Fault("example", f"has {len(values)} values, not 1")
    if feature.kind == "text":
        try:
            values[0].decode()
        except UnicodeDecodeError:
            return Fault("example", f"{values[0][:40]!r} is not UTF-8")
    if feature.kind in ("label", "labels"):
        lowest = UNLABELLED if feature.kind == "label" else 0
        wrong = [value for value in values if not lowest <= value < num_classes]
        if wrong:
            return Fault("label", f"{wrong[0]} is no class, there are {num_classes:,}")
    return None


def _row_faults(
    sound: Mapping[str, object], target: str | None, rows: Rows, record: int
) -> list[Fault]:
    """Return where a record and its row in `items.parquet` differ."""
    found = []
    key = sound.get(FILENAME)
    if isinstance(key, bytes) and key.decode() != rows.keys[record]:
        found.append(
            Fault("items", f"is of {key.decode()!r}, items.parquet says {rows.keys[record]!r}")
        )
    if target in sound and rows.targets:
        here, there = sound[target], rows.targets[record]
        if here != there and not (_is_nan(here) and _is_nan(there)):
            found.append(Fault("items", f"{target}: is {here!r}, items.parquet says {there!r}"))
    return found


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
