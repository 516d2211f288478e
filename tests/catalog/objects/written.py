"""The same boxes in each format.

A set is the key of each image, and the class and the two corners (x, y, x, y in pixels) of its
objects. Images have 30 rows of 40 pixels. `names` are all classes in order; `size` is the height
and width that documents state.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from tests.catalog.builders import thing, xml

WIDTH, HEIGHT = 40, 30
Sets = Mapping[str, Sequence[tuple[str, Sequence[float]]]]
Size = tuple[int, int] | None


def coco_document(sets: Sets, names: Sequence[str], size: Size = None) -> dict[str, Any]:
    sides = {} if size is None else {"height": size[0], "width": size[1]}
    things = [
        {"image_id": key, "category_id": 10 * names.index(name), "bbox": [x, y, v - x, w - y]}
        for key, rows in sets.items()
        for name, (x, y, v, w) in rows
    ]
    return {
        "categories": [{"id": 10 * i, "name": name} for i, name in enumerate(names)],
        "annotations": things,
        "images": [{"id": key, "file_name": f"{key}.png", **sides} for key in sets],
    }


def coco(sets: Sets, names: Sequence[str], size: Size = None) -> dict[str, str]:
    document = coco_document(sets, names, size)
    indent = len(document["annotations"]) % 3 or None
    return {"ann/all.json": json.dumps(document, indent=indent, ensure_ascii=False)}


def voc(sets: Sets, _: Sequence[str], size: Size = None) -> dict[str, str]:
    sides = "" if size is None else f"{size[0]} {size[1]}"
    return {
        f"ann/{key}.xml": xml(
            *(thing(escape(name), *map(repr, box)) for name, box in rows),
            filename=f"{key}.png",
            size=sides,
        )
        for key, rows in sets.items()
    }


def yolo_line(number: int, box: Sequence[float]) -> str:
    x, y, v, w = box
    middle = f"{(x + v) / 2 / WIDTH!r} {(y + w) / 2 / HEIGHT!r}"
    return f"{number} {middle} {(v - x) / WIDTH!r} {(w - y) / HEIGHT!r}"


def yolo(sets: Sets, names: Sequence[str], _: Size = None) -> dict[str, str]:
    lines = {key: [yolo_line(names.index(n), box) for n, box in rows] for key, rows in sets.items()}
    texts = {f"labels/{key}.txt": "\n".join(several) for key, several in lines.items()}
    return {"data.yaml": json.dumps({"names": names}, ensure_ascii=False), **texts}


def table(sets: Sets, _: Sequence[str], size: Size = None) -> dict[str, str]:
    text = io.StringIO()
    rows = csv.writer(text)
    sides = size or ()
    header = ["ymax", "class", "id", "xmin", "xmax", "ymin"]
    rows.writerow([*header, *(("height", "width") if sides else ())])
    for key, several in sets.items():
        if not several:
            rows.writerow(["", "", f"{key}.png", "", "", "", *sides])
        for name, (x, y, v, w) in several:
            rows.writerow([repr(w), name, f"{key}.png", *map(repr, (x, v, y)), *sides])
    return {"t.csv": text.getvalue()}


def labelme(sets: Sets, _: Sequence[str], size: Size = None) -> dict[str, str]:
    sides = {} if size is None else {"imageHeight": size[0], "imageWidth": size[1]}
    texts = {}
    for key, rows in sets.items():
        shapes = [
            {"label": name, "shape_type": "rectangle", "points": [[v, y], [x, w]]}
            for name, (x, y, v, w) in rows
        ]
        document = {"imagePath": f"{key}.png", "shapes": shapes, **sides}
        texts[f"ann/{key}.json"] = json.dumps(document, ensure_ascii=False)
    return texts


def via(sets: Sets, _: Sequence[str], __: Size = None) -> dict[str, str]:
    entries = {}
    for key, rows in sets.items():
        regions = []
        for name, (x, y, v, w) in rows:
            corners = {"all_points_x": [x, v, v, x], "all_points_y": [y, y, w, w]}
            shape = {"shape_attributes": {"name": "polygon", **corners}}
            regions.append({**shape, "region_attributes": {"kind": name}})
        entries[key] = {"filename": f"{key}.png", "regions": regions}
    return {"via.json": json.dumps(entries)}


WRITERS: dict[str, Callable[[Sets, Sequence[str], Size], dict[str, str]]] = {
    "coco:ann/all.json": coco,
    "voc": voc,
    "yolo": yolo,
    "csv:t.csv:id:xmin,xmax,ymin,ymax:class": table,
    "labelme": labelme,
    "via:via.json": via,
}
"""Value of `--boxes` → writer of its documents."""
