"""Sources whose objects, masks or documents lead to advice, and what a build must find then."""

import json

import numpy as np
from PIL import Image

from tests.catalog.advice_rows import (
    ABC,
    CATS,
    CORNERS,
    EVERY,
    LEFT_OUT,
    SAID,
    Own,
    Row,
    boxes,
    classes,
    coco,
    keypoints,
    keys,
    objects,
    pics,
    points,
    table,
)
from tests.catalog.advice_rows import ROWS as OF_LABELS
from tests.catalog.builders import grey, images, masked
from tests.support.builders import encoded, jpeg, zip_bytes


def pages(number: int) -> bytes:
    """Return a TIFF of so many pages."""
    page = Image.new("L", (8, 8))
    return encoded(page, "TIFF", save_all=True, append_images=[page] * (number - 1))


def labelme(kind: str, *points: list[float], name: str = "cat") -> bytes:
    shape = {"label": name, "shape_type": kind, "points": points}
    document = {"version": "5", "shapes": [shape], "imageHeight": 48, "imageWidth": 64}
    return json.dumps(document | {"imagePath": "", "flags": {}}).encode()


def _coloured(*colours: tuple[int, int, int]) -> bytes:
    row = np.array([colours[i * len(colours) // 8] for i in range(8)], np.uint8)
    return encoded(Image.fromarray(np.tile(row, (8, 1, 1))), "PNG")


_POLYGON = ([10.0, 10.0], [30.0, 10.0], [30.0, 30.0], [10.0, 30.0], [9.0, 20.0])
_LABELME = {f"{n[0]}.json": labelme("polygon", *_POLYGON) for n in ABC}
_POINT = {f"{n[0]}.json": labelme("point", [11.0, 12.0]) for n in ABC}
_POSE = b"0 .5 .5 .25 .25 .25 .5 2\n"
_NAMED = {"data.yaml": b"names: [cat]\nkpt_shape: [1, 3]\n"}
_TEXTS = {f"{n[0]}.txt": b"0 .5 .5 .25 .25\n" for n in ABC}
_LIKELY = b"0 .5 .5 .5 .6 .25 .5 .5 .6 .6 .7\n0 .4 .5 .2 .2 .35 .5 .45 .45 .4 .4\n"
_GT = {f"{d}/x{i}y.png": grey(0, 255) for d in ("img", "GT") for i in range(4)}
_NUMBERED = {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)} | {
    f"masks/{i}.png": grey(*range(8 + i * 20, 0, -1)) for i in range(4)
}
_WIDE = {f"masks/{i}.png": grey(0, 300, 4000, 4000, mode="I;16") for i in range(4)}

OF_OBJECTS = [
    Row(
        "--images … --include … stores all of … as a stack",
        images("a.jpg", "b.jpg", "c.jpg") | {"my v.tif": pages(3)},
        {"labels": "none"},
        {"images": SAID, "include": SAID},
        lambda made: made.items.members.num_files.tolist(),
        [3],
    ),
    Row(
        "--exclude …",
        images("a.jpg", "b.jpg", "c.jpg") | {"v.tif": pages(3)},
        {"labels": "none", "images": ("v.tif",)},
        {"exclude": SAID},
        keys,
        ["v.tif"],
    ),
    Row(
        "--exclude …",
        _GT,
        {"boxes": "none"},
        {"exclude": SAID},
        keys,
        [f"img/x{i}y.png" for i in range(4)],
    ),
    Row(
        "--masks … stores them, … leaves them out",
        _GT,
        {"boxes": "none"},
        {"masks": SAID},
        keys,
        [f"img/x{i}y.png" for i in range(4)],
    ),
    Row(
        "…, with outlines; --boxes … stores boxes alone",
        pics(*ABC) | _LABELME,
        {},
        {"boxes": SAID},
        lambda made: (classes(made), made.annotations and made.annotations.spec.masks),
        (("cat",), "none"),
    ),
    Row(
        "--masks … --instances",
        pics(*ABC)
        | {
            "coco.json": coco(
                CATS, *EVERY, segmentation=[[10, 10, *[30, 10, 30, 30, 20, 35], 10, 30]]
            )
        },
        {},
        {"masks": SAID, "instances": True},
        lambda made: (classes(made), made.annotations and made.annotations.spec.masks),
        (("cat",), "instances"),
    ),
    Row(
        "say where they are with --…",
        pics(*ABC) | {"t.csv": table("id,p,q,r,s", *(f"{n},10,10,30,30" for n in ABC))},
        {"boxes": "auto"},
        {"boxes": Own("csv:t.csv:id:xyxy(p,q,r,s)")},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "… of LabelMe: not stored without --points ……",
        pics(*ABC) | _POINT,
        {"boxes": "labelme", "unlisted": "background"},
        {"points": "labelme", "boxes": LEFT_OUT},
        points,
        {name: [[11, 12, 2]] for name in ABC},
    ),
    Row(
        "leave out one of them, with --exclude or --root",
        {f"{d}/{n}": data for d in ("x", "y") for n, data in pics(*ABC).items()}
        | {"coco.json": coco(CATS, *EVERY)},
        {"boxes": "coco"},
        {"exclude": Own(("y/*",))},
        boxes,
        {f"x/{name}": CORNERS for name in ABC},
    ),
    Row(
        "leave out one of them, with --exclude or --root",
        {f"{d}/{n}": data for d in ("x", "y") for n, data in pics(*ABC).items()}
        | {"coco.json": coco(CATS, *EVERY)},
        {"boxes": "coco"},
        {"root": Own("y")},
        boxes,
        {f"y/{name}": CORNERS for name in ABC},
    ),
    Row(
        "name the columns: --… …",
        pics("a.jpg") | {"t.csv": table("id,p,q", "a,11,12")},
        {"points": "csv:t.csv"},
        {"points": Own("csv:t.csv:id:p,q")},
        lambda made: [
            item.annotation and item.annotation.points is not None for item in made.items
        ],
        [True],
    ),
    Row(
        "save this file again with LabelMe, or leave it out: --exclude …",
        pics("a.jpg", "b.jpg")
        | {"a.json": b'{"shapes": [], "imagePath": 1', "b.json": labelme("point", [3, 4])},
        {"points": "labelme", "labels": "none"},
        {"exclude": Own(("a.json",))},
        keys,
        ["b.jpg"],
    ),
    Row(
        "--join … --columns …",
        pics("a.jpg", "b.jpg") | {"t.csv": table("id,x,y,z", "a,11,12,7", "b,9,8,6")},
        {"points": "csv:t.csv:id", "labels": "none"},
        {"columns": SAID, "join": SAID},
        lambda made: {item.key: item.columns for item in made.items},
        {"a.jpg": (7,), "b.jpg": (6,)},
    ),
    Row(
        "run lengths are read down each column: …; --rle row reads rows",
        {"a.jpg": jpeg(8, 8), "t.csv": table("id,rle", "a,1 3 9 3")},
        {"masks": "rle:t.csv:id:rle"},
        {"rle": "row"},
        lambda made: [
            item.annotation and getattr(item.annotation.outlines[0], "order", "")
            for item in made.items
        ],
        ["row"],
    ),
    Row(
        "leave one document out: --exclude …",
        {f"x/images/{n}": data for n, data in pics(*ABC).items()}
        | {f"{d}/labels/{n[0]}.txt": b"0 .5 .5 .25 .25\n" for d in "xy" for n in ABC}
        | {"x/labels/classes.txt": b"cat\n"},
        {"boxes": "yolo"},
        {"exclude": SAID},
        objects,
        {f"x/images/{name}": ("cat",) for name in ABC},
    ),
    Row(
        "…; --points yolo stores both",
        pics("a.jpg") | {"a.txt": _POSE, **_NAMED},
        {"boxes": "yolo"},
        {"points": "yolo"},
        keypoints,
        {"a.jpg": [[[0.25, 0.5, 2]]]},
    ),
    Row(
        "… may be poses without flags, and are read as polygons; --points yolo reads them as poses",
        pics("a.jpg") | {"a.txt": _LIKELY},
        {"boxes": "yolo"},
        {"points": "yolo"},
        lambda made: np.asarray(keypoints(made)["a.jpg"]).shape[:2],
        (2, 3),
    ),
    Row(
        "; --classes … keeps the numbers",
        pics("a.jpg") | {"a.txt": b"0 .5 .5 .25 .25\n2 .5 .5 .5 .5\n"},
        {"boxes": "yolo"},
        {"classes": Own("0,1,2")},
        classes,
        ("0", "1", "2"),
    ),
    Row(
        "name one: --… …",
        pics(*ABC) | _TEXTS | {"x/classes.txt": b"cat\n", "y/classes.txt": b"dog\n"},
        {"boxes": "yolo"},
        {"boxes": SAID},
        objects,
        dict.fromkeys(ABC, ("cat",)),
    ),
    Row(
        "name a class background with --mask-values or --classes",
        masked(4, 0, 1, 2),
        {"masks": "masks/{stem}.png", "unlisted": "background", "mask_values": "0=ignore,1=x,2=y"},
        {"mask_values": Own("0=background,1=x,2=y")},
        classes,
        ("background", "x", "y"),
    ),
    Row(
        "masks: …? --instances keeps the objects apart",
        _NUMBERED,
        {"masks": "masks/{stem}.png"},
        {"instances": True},
        lambda made: made.annotations and made.annotations.spec.masks,
        "instances",
    ),
    Row(
        "--mask-values …",
        masked(4, 0, 1, 3) | {"my config.yaml": b"classes:\n  0: road\n  1: sky\n  3: car\n"},
        {"masks": "masks/{stem}.png"},
        {"mask_values": SAID},
        classes,
        ("road", "sky", "car"),
    ),
    Row(
        "name all classes, or leave the files of others out with --exclude",
        {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)}
        | {f"masks/{c}/{i}.png": grey(0, 255) for c in "ab" for i in range(4)},
        {"masks": "masks/{class}/{stem}.png", "classes": ("a",)},
        {"exclude": Own(("masks/b/*",))},
        classes,
        ("background", "a"),
    ),
    Row(
        "say what each colour means, as in --mask-values … or a file",
        {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)}
        | {f"masks/{i}.png": _coloured((255, 0, 9), (0, 0, 0)) for i in range(4)},
        {"masks": "masks/{stem}.png"},
        {"mask_values": Own("#000000=background,#ff0009=pet")},
        classes,
        ("background", "pet"),
    ),
    Row(
        "give --mask-values 0=background,255=object to reject such masks",
        {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)}
        | {f"masks/{i}.png": grey(0, 255, 7 if i == 1 else 0) for i in range(4)},
        {"masks": "masks/{stem}.png", "max_rejected": "50%"},
        {"mask_values": Own("0=background,255=object")},
        classes,
        ("background", "object"),
    ),
    Row(
        "name the values with --mask-values, or add --instances for object numbers",
        {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)} | _WIDE,
        {"masks": "masks/{stem}.png"},
        {"mask_values": Own("0=background,300=x,4000=y")},
        classes,
        ("background", "x", "y"),
    ),
    Row(
        "name the values with --mask-values, or add --instances for object numbers",
        {f"images/{i}.jpg": jpeg(8, 8, seed=i) for i in range(4)} | _WIDE,
        {"masks": "masks/{stem}.png"},
        {"instances": True},
        lambda made: made.annotations and made.annotations.spec.masks,
        "instances",
    ),
    Row(
        "raise --… if you trust the source",
        {"a.zip": zip_bytes(pics(*ABC))},
        {"labels": "none", "max_unpacked": "1000"},
        {"max_unpacked": Own("1MB")},
        lambda made: len(made.items),
        6,
    ),
]

ROWS = [*OF_LABELS, *OF_OBJECTS]
