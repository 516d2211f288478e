"""Targets of several values as text, for pages, lists and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from shardprep.dataset.item_table import TARGET_COLUMNS
from shardprep.dataset.schema import CLASS_PREFIX, TARGETS, Schema


def target_text(
    schema: Schema,
    numbers: Sequence[float | None] | None,
    classes: Sequence[int] | None,
    texts: Sequence[str] | None,
) -> str | None:
    """Return "name=value, …" or the texts, or None if the image has no target."""
    parts: list[str] = []
    if numbers:
        names = schema.features[TARGETS].labels
        words = ("none" if one is None else str(one) for one in numbers)
        parts += [f"{name}={word}" for name, word in zip(names, words, strict=False)]
    for name, label in zip(schema.class_features, classes or (), strict=False):
        labels = schema.features[name].labels
        word = labels[label] if 0 <= label < len(labels) else "none"
        parts.append(f"{name.removeprefix(CLASS_PREFIX)}={word}")
    parts += [" | ".join(texts)] if texts else []
    return ", ".join(parts) or None


def target_texts(schema: Schema, rows: pa.Table) -> pa.Array:
    """Return the target of each row as text; null if it has none, or has one value only."""
    if not schema.target_lists:
        return pa.nulls(len(rows), pa.string())
    columns = (rows[name].to_pylist() for name in TARGET_COLUMNS.names)
    return pa.array([target_text(schema, *one) for one in zip(*columns, strict=True)], pa.string())
