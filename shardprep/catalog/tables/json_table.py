"""Read the rows of a table in JSON: objects in a list, by key, or in a list of a document."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardprep.errors import SourceError, use_one_of
from shardprep.storage.text_file import decoded

KEY = "key"
"""Column for the keys of a JSON object that has an object for each key."""


def json_rows(
    data: bytes,
    name: str,
    columns: Sequence[str] = (),
    *,
    is_of_image: bool = False,
    cells: Collection[str] = (),
) -> list[dict[str, str]]:
    """Return the rows of a list of JSON objects, of JSON lines, or of a document with lists.

    An object with an object for each key has a row for each, with the key in the column `key`. A
    document of COCO has a row for each annotation, with the keys of its image and the name of its
    category as `category`. Without `columns`, other documents have the columns of the longest list,
    such as `images.filename`. With `is_of_image`, the document describes one image. Lists and
    objects are left out unless a column is a path into them, such as `points.x`: then each object
    in the list `points` is a row. Lists in the columns `cells` stay cells, as JSON. An object of
    flags, such as `{"cat": true, "dog": false}`, becomes one cell with the names that are true.
    SourceError for other JSON.
    """
    columns = [*filter(None, columns)]
    try:
        if name.lower().endswith(".jsonl"):
            document: Any = [json.loads(line) for line in decoded(data).split("\n") if line.strip()]
        else:
            document = json.loads(decoded(data))
        if isinstance(document, dict) and not is_of_image:
            if "annotations" in document:
                document = _of_coco(document)
            elif rows := keyed_rows(document):
                document = rows
            elif not any(one.partition(".")[0] in document for one in columns):
                paths = [*_longest_list(document)]  # KeyError without a list
                columns = columns or paths
        found = _rows_of(document, name, columns, {""}, cells)
        if columns and not (is_of_image or any(found)) and (paths := [*_paths(document, "")]):
            raise SourceError(name, f"has no column {columns[0]!r}", use_one_of(columns[0], paths))
        return found
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        what = "is neither a list of JSON objects nor an object of objects nor a COCO document"
        forms = '[{"id": "a", "label": "cat"}, …] or {"a": {"label": "cat"}, …}'
        raise SourceError(name, what, f"name a CSV, or a JSON such as {forms}") from error


def keyed_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each value with its key if all are objects that share a field; otherwise []."""
    values = [*document.values()]
    are_objects = bool(values) and all(isinstance(one, dict) for one in values)
    if not (are_objects and set.intersection(*map(set, values))):
        return []
    title = {} if any(KEY in one for one in values) else {KEY}
    return [dict.fromkeys(title, key) | one for key, one in document.items()]


def _rows_of(
    value: Any,
    name: str,
    columns: Sequence[str],
    lists: set[str],
    cells: Collection[str],
    path: str = "",
) -> list[dict[str, str]]:
    if path and value and any(column.startswith(f"{path}.") for column in columns):
        value = _numbered(value)
    if isinstance(value, list):
        if other := [one for one in lists if not (_leads(one, path) or _leads(path, one))]:
            what = f"the columns are of two lists, {other[0]!r} and {path!r}"
            raise SourceError(name, what, "name only columns of one list")
        lists.add(path)
        rows = [_numbered(one) if path else one for one in value]
        return [row for one in rows for row in _rows_of(one, name, columns, lists, cells, path)]
    if not isinstance(value, dict):
        if not path:
            raise TypeError
        return [{path: _cell(value)}]
    own, rows = dict[str, str](), [dict[str, str]()]
    for key, one in value.items():
        inner = f"{path}.{key}" if path else key
        if (cell := _whole(one, inner, columns, cells)) is not None:
            own[inner] = cell
        elif any(_leads(inner, column) for column in columns):
            more = _rows_of(one, name, columns, lists, cells, inner)
            rows = [row | other for row in rows for other in more]
    if len(rows) != 1:  # all values of a document in each of its rows need much memory
        own = {column: own[column] for column in columns if column in own}
    return [own | row for row in rows]


def _whole(value: Any, path: str, columns: Sequence[str], cells: Collection[str]) -> str | None:
    """Return the cell of a value whose parts are not columns; otherwise None."""
    if not isinstance(value, dict | list):
        return _cell(value)
    if isinstance(value, list):
        return json.dumps(value) if path in cells else None
    are_flags = {*map(type, value.values())} == {bool}
    if are_flags and not any(column.startswith(f"{path}.") for column in columns):
        return ",".join(name for name, is_set in value.items() if is_set)
    return None


def _numbered(value: Any) -> Any:
    """Return a list of numbers or texts (x, y of a point) as an object with keys 0, 1, …."""
    is_point = isinstance(value, list) and not any(isinstance(one, dict | list) for one in value)
    return {str(i): one for i, one in enumerate(value)} if is_point else value


def _longest_list(document: dict[str, Any]) -> Iterator[str]:
    """Return the paths of values in the first entry of the longest list; KeyError without lists."""
    lists = {key: one for key, one in document.items() if isinstance(one, list) and one}
    key = max(lists, key=lambda key: len(lists[key]), default="")
    return _paths(document[key][0], key)


def _paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        value = value[0] if value and isinstance(value[0], dict) else None
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _paths(one, f"{path}.{key}".lstrip("."))
    elif value is not None:
        yield path


def _leads(path: str, inner: str) -> bool:
    return not path or f"{inner}.".startswith(f"{path}.")


def _of_coco(document: dict[str, Any]) -> list[dict[str, Any]]:
    images = {image["id"]: image for image in document["images"]}
    names = {one["id"]: one["name"] for one in document.get("categories", ())}
    return [
        {
            **{key: value for key, value in one.items() if key != "id"},
            **images.get(one["image_id"], {}),
            "category": names.get(one.get("category_id"), ""),
        }
        for one in document["annotations"]
    ]


def _cell(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()
