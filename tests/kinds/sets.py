"""A small set for each kind of feature: its source, its flags, and the values that it must give.

The values are made by NumPy from the number of the image, independently of the package, and so are
the values that a window or a mirror leaves: pixels are sliced, places are shifted.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from tests.support.builders import encoded, pixels

Array = np.ndarray[Any, Any]
Values = dict[str, Any]
"""Key in the target → value."""

NUMBER, HEIGHT, WIDTH = 5, 20, 28
LEFT = (WIDTH - HEIGHT) // 2
"""First column of the square in the middle of an image."""
COMPLETE = {"size": f"{WIDTH}x{HEIGHT}", "format": "png", "labels": "none", "shards": 1}


def name_of(number: int) -> str:
    return f"im/{number}.png"


def picture(number: int) -> Array:
    return pixels(HEIGHT, WIDTH, seed=number)


def as_png(values: Array) -> bytes:
    return encoded(Image.fromarray(values), "PNG")


@dataclass(frozen=True)
class Kind:
    """One way to annotate the images 0 to `NUMBER` - 1."""

    values: Callable[[int], Values]
    """Number → values of the whole image. Numbers beyond `NUMBER` are other annotations."""
    files: Callable[[Mapping[int, int]], dict[str, bytes]]
    """Number of an image → number of its annotation; the files of the source beside the images."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    image: Callable[[int], Array] = picture
    images: Callable[[int], dict[str, bytes]] = lambda n: {name_of(n): as_png(picture(n))}
    name: Callable[[int], str] = name_of
    takes: tuple[str, ...] = ("folder", "parquet", "webdataset")
    """The layouts of `export` that store it."""

    def source(self, changed: Mapping[int, int] | None = None) -> dict[str, bytes]:
        """Return the files of the source, with other annotations of the `changed` images."""
        numbers = {n: n for n in range(NUMBER)} | dict(changed or {})
        images: dict[str, bytes] = {}
        for number in range(NUMBER):
            images |= self.images(number)
        return {**images, **self.files(numbers)}


def _table(columns: str, row: Callable[[int], list[str]]) -> Any:
    """Return the function of a table with a line, or several, for each image."""

    def files(numbers: Mapping[int, int]) -> dict[str, bytes]:
        lines = [f"{n},{line}" for n, of in numbers.items() for line in row(of)]
        return {"t.csv": "\n".join([f"id,{columns}", *lines, ""]).encode()}

    return files


def _rectangle(number: int, i: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom in pixels, all inside the square in the middle."""
    left, top = LEFT + 1 + (number + 3 * i) % 8, 2 + (2 * number + i) % 7
    return left, top, left + 5 + i, top + 4 + number % 5


def _places(number: int, i: int) -> list[tuple[int, int, int]]:
    """Return x, y in pixels and visibility of two keypoints; some are not labelled."""
    left, top, right, bottom = _rectangle(number, i)
    return [(left, top, 2), (right, bottom, 1) if (number + i) % 3 else (0, 0, 0)]


def _count(number: int) -> int:
    return (number + 1) % 3


def _boxes(number: int) -> Array:
    rows = [_rectangle(number, i) for i in range(_count(number))]
    sides = np.array(rows, np.float32).reshape(-1, 4)[:, [1, 0, 3, 2]]
    return sides / np.array([HEIGHT, WIDTH, HEIGHT, WIDTH], np.float32)


def _masks(number: int) -> Array:
    masks = np.zeros((_count(number), HEIGHT, WIDTH), np.uint8)
    for i, mask in enumerate(masks):
        left, top, right, bottom = _rectangle(number, i)
        mask[top:bottom, left:right] = 1
    return masks


def _relative(places: Any) -> tuple[Array, Array]:
    """Return y, x as shares, float32[…, 2], and the visibility."""
    every = np.array(places, np.float32).reshape(-1, 2, 3)
    shares = every[..., [1, 0]] / np.array([HEIGHT, WIDTH], np.float32)
    return shares, every[..., 2].astype(np.int64)


def _objects(number: int, *, masks: bool = False, keypoints: bool = False) -> Values:
    count = _count(number)
    values: Values = {
        "boxes": _boxes(number),
        "labels": np.array([(number + i) % 2 for i in range(count)], np.int64),
        "crowds": np.zeros(count, bool),
    }
    if masks:
        values["masks"] = _masks(number)
    if keypoints:
        places = [_places(number, i) for i in range(count)]
        values["keypoints"], values["keypoints_visible"] = _relative(places)
    return values


def _coco(numbers: Mapping[int, int]) -> dict[str, bytes]:
    entries: list[dict[str, Any]] = []
    for image, number in numbers.items():
        for i in range(_count(number)):
            left, top, right, bottom = _rectangle(number, i)
            ring = [left, top, right, top, right, bottom, left, bottom]
            entries.append({
                "id": len(entries) + 1, "image_id": image, "category_id": 1 + (number + i) % 2,
                "bbox": [left, top, right - left, bottom - top], "segmentation": [ring],
                "iscrowd": 0, "keypoints": [one for place in _places(number, i) for one in place],
            })  # fmt: skip
    images = [{"id": n, "file_name": name_of(n), "width": WIDTH, "height": HEIGHT} for n in numbers]
    categories = [
        {"id": i, "name": name, "keypoints": ["nose", "tail"]} for i, name in ((1, "a"), (2, "b"))
    ]
    document = {"images": images, "annotations": entries, "categories": categories}
    return {"all.json": json.dumps(document).encode()}


def _classes(number: int) -> Array:
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[number : number + 6, 3 : 20 - number] = 1
    mask[-3:] = 2
    return mask


def _pictures(folder: str, make: Callable[[int], Array]) -> Any:
    return lambda numbers: {f"{folder}/{n}.png": as_png(make(of)) for n, of in numbers.items()}


def _target_image(number: int) -> Array:
    return pixels(HEIGHT, WIDTH, seed=100 + number)


def _two_points(number: int) -> list[tuple[int, int, int]]:
    return [(LEFT + 2 + number, 3, 2), (LEFT + 9, 5 + number, 2)]


def _points(number: int) -> Values:
    shares, visible = _relative([_two_points(number)])
    return {"points": shares[0], "points_visible": visible[0]}


def _slices(number: int) -> Array:
    return np.array([picture(10 * number + i) for i in range(1 + number % 3)])


def _stack(number: int) -> dict[str, bytes]:
    return {f"s/{number}/{i}.png": as_png(one) for i, one in enumerate(_slices(number))}


def _numbers(number: int) -> list[float]:
    return [number / 4, float("nan") if number == 2 else -1.5 * number]


def _words(number: int) -> list[str]:
    return [f"a dog, {number}", "it runs"][: 1 + number % 2]


_STACK: dict[str, Any] = {
    "image": _slices, "images": _stack, "name": lambda n: f"s/{n}", "takes": ("folder",),
}  # fmt: skip

KINDS: dict[str, Kind] = {
    "a class": Kind(
        lambda n: {"label": np.int64(n % 2)},
        _table("label", lambda n: [("cat", "dog")[n % 2]]),
        {"labels": "csv:t.csv:id:label"},
    ),
    "several classes": Kind(
        lambda n: {"label": np.array([1, n % 2, n > 2], np.float32)},
        _table("label", lambda n: [" ".join(["a", *["b"] * (n % 2), *["c"] * (n > 2)])]),
        {"labels": "csv:t.csv:id:label", "target": "multilabel"},
    ),
    "a number": Kind(
        lambda n: {"target": np.float32(n * 1.25)},
        _table("y", lambda n: [str(n * 1.25)]),
        {"labels": "csv:t.csv:id:y", "target": "regression"},
    ),
    "a text": Kind(
        lambda n: {"text": f"No. {n}"},
        _table("text", lambda n: [f"No. {n}"]),
        {"labels": "csv:t.csv:id:text", "target": "text"},
    ),
    "several numbers": Kind(
        lambda n: {"targets": np.array(_numbers(n), np.float32)},
        _table("x,y", lambda n: [",".join("" if math.isnan(v) else str(v) for v in _numbers(n))]),
        {"labels": "csv:t.csv:id:x,y", "target": "vector"},
    ),
    "classes by name": Kind(
        lambda n: {"kind": np.int64(n % 2), "view": np.int64((n + 1) % 3)},
        _table("kind,view", lambda n: [f"{'ab'[n % 2]},{'fgh'[(n + 1) % 3]}"]),
        {"labels": "csv:t.csv:id:kind,view", "target": "classes"},
    ),
    "several texts": Kind(
        lambda n: {"texts": np.array(_words(n), object)},
        _table("text", lambda n: [f'"{one}"' for one in _words(n)]),
        {"labels": "csv:t.csv:id:text", "target": "texts"},
    ),
    "rows of a table": Kind(
        lambda n: {
            "rows/p": np.arange(n % 3 + 1, dtype=np.float32) / 2,
            "rows/q": np.array([f"q{n}"] * (n % 3 + 1), object),
        },
        _table("p,q", lambda n: [f"{i / 2},q{n}" for i in range(n % 3 + 1)]),
        {"rows": "csv:t.csv:id:p,q"},
    ),
    "boxes": Kind(_objects, _coco, {"boxes": "coco"}),
    "masks of objects": Kind(
        lambda n: _objects(n, masks=True),
        _coco,
        {"boxes": "coco", "masks": "coco", "instances": True},
    ),
    "keypoints of objects": Kind(
        lambda n: _objects(n, keypoints=True), _coco, {"boxes": "coco", "points": "coco"}
    ),
    "a mask of classes": Kind(
        lambda n: {"segmentation_mask": _classes(n)[..., np.newaxis]},
        _pictures("mask", _classes),
        {"masks": "mask/{name}", "mask_values": "0=no,1=yes,2=end"},
    ),
    "keypoints of the image": Kind(
        _points,
        _table(
            "a_x,a_y,b_x,b_y",
            lambda n: [",".join(str(v) for x, y, _ in _two_points(n) for v in (x, y))],
        ),
        {"points": "csv:t.csv:id:a_x,a_y,b_x,b_y"},
    ),
    "a target image": Kind(
        lambda n: {"target_image": _target_image(n)},
        _pictures("gt", _target_image),
        {"target_image": "gt/{name}"},
        takes=("folder",),
    ),
    "a stack": Kind(
        lambda n: {"label": np.int64(n % 2)},
        _table("label", lambda n: [("cat", "dog")[n % 2]]),
        {"stack": "s/{id}/*.png", "labels": "csv:t.csv:id:label"},
        **_STACK,
    ),
    "a stack with masks": Kind(
        lambda n: {"segmentation_mask": np.array([_classes(n)] * len(_slices(n)))[..., np.newaxis]},
        lambda numbers: {
            f"m/{n}/{i}.png": as_png(_classes(of))
            for n, of in numbers.items()
            for i in range(len(_slices(n)))
        },
        {"stack": "s/{id}/*.png", "masks": "m/{id}/*.png", "mask_values": "0=no,1=yes,2=end"},
        **_STACK,
    ),
}  # fmt: skip


def in_the_middle(values: Values) -> Values:
    """Return values as the square in the middle of the image shows them; no object leaves it."""

    def places(value: Array) -> Array:
        moved = value * np.float32(WIDTH / HEIGHT) - np.float32(LEFT / HEIGHT)
        return np.where(np.arange(value.shape[-1]) % 2, moved, value)

    return _moved(values, places, lambda one, axis: one.take(range(LEFT, LEFT + HEIGHT), axis))


def mirrored(values: Values) -> Values:
    """Return the values of the mirrored image. No keypoint takes the place of another one."""

    def places(value: Array) -> Array:
        if value.shape[-1] == 4:
            return np.stack([value[:, 0], 1 - value[:, 3], value[:, 2], 1 - value[:, 1]], -1)
        return np.where(np.arange(2) % 2, 1 - value, value)

    return _moved(values, places, np.flip)


def _moved(
    values: Values, places: Callable[[Array], Array], columns: Callable[[Array, int], Array]
) -> Values:
    moved = dict(values)
    for key, value in values.items():
        if key in ("image", "masks", "segmentation_mask", "target_image"):
            moved[key] = columns(value, 2 if key == "masks" else value.ndim - 2)
        elif key == "boxes":
            moved[key] = places(value)
        elif key in ("keypoints", "points"):  # those that are not labelled have no place
            is_labelled = values[f"{key}_visible"] > 0
            moved[key] = places(value) * is_labelled[..., np.newaxis]
    return moved
