"""Small sources that lead to advice, and what a build with its flags must find in them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardprep.catalog.catalog import Catalog
from shardprep.catalog.target_values import TargetValues
from tests.catalog.builders import VOC, images, masked
from tests.support.arrays import decoded, hdf5, npy, npz
from tests.support.builders import jpeg

SAID = "said"
"""The value of a flag is the one in the message."""
LEFT_OUT = "left out"
"""The message asks to leave the option out."""


@dataclass(frozen=True)
class Own:
    """A value that the user must know, where the message has none or a placeholder."""

    value: Any


@dataclass(frozen=True)
class Row:
    """A message and its flags: `right` is what `see` must find in the build with them."""

    says: str
    """The text in the code, with "…" for what is filled in."""
    members: Mapping[str, bytes]
    keys: Mapping[str, Any]
    """Options of the build that prints the message."""
    then: Mapping[str, Any]
    """Options of the next build: a value that the message states, SAID, LEFT_OUT or Own."""
    see: Callable[[Catalog], Any]
    right: Any
    id: str = field(default="", compare=False)


def ends(
    says: str,
    members: Mapping[str, bytes],
    keys: Mapping[str, Any],
    *several: tuple[Mapping[str, Any], Callable[[Catalog], Any], Any],
) -> list[Row]:
    """Return a row for each `then`, `see` and `right` of a message with several flags."""
    return [Row(says, members, keys, *one) for one in several]


def labels(made: Catalog) -> dict[str, Any]:
    """Return the label of each image: a class, several, or the target as it is."""
    return {item.key: _named(made, item.target) for item in made.items}


def _named(made: Catalog, target: Any) -> Any:
    if made.target_kind == "class":
        return None if target is None or target < 0 else made.label_names[target]
    if made.target_kind == "multilabel":
        return tuple(made.label_names[i] for i in target)
    if isinstance(target, TargetValues):
        return target.numbers or target.classes or target.texts
    return target


def splits(made: Catalog) -> dict[str, str]:
    return {item.key: item.split for item in made.items}


def keys(made: Catalog) -> list[str]:
    return [item.key for item in made.items]


def objects(made: Catalog) -> dict[str, Any]:
    """Return the classes of the objects of each image; None without annotation."""
    names = () if made.annotations is None else made.annotations.names
    return {
        item.key: item.annotation and tuple(names[i] for i in item.annotation.labels)
        for item in made.items
    }


def boxes(made: Catalog) -> dict[str, Any]:
    return {
        item.key: item.annotation and item.annotation.boxes.round(3).tolist() for item in made.items
    }


def keypoints(made: Catalog) -> dict[str, Any]:
    return {
        item.key: np.asarray(item.annotation and item.annotation.keypoints).tolist()
        for item in made.items
    }


def points(made: Catalog) -> dict[str, Any]:
    return {
        item.key: np.asarray(item.annotation and item.annotation.points).tolist()
        for item in made.items
    }


def stored(made: Catalog) -> dict[str, Any]:
    """Return the grey levels of the first row of each image that was made of an array."""
    return {item.key: decoded(item.extent.read())[0].tolist() for item in made.items}


def classes(made: Catalog) -> tuple[str, ...]:
    """Return the classes of the objects or masks."""
    return () if made.annotations is None else made.annotations.names


def features(made: Catalog) -> dict[str, tuple[Any, ...]]:
    """Return the values of the stored columns of each image."""
    return {item.key: item.columns for item in made.items}


def table(head: str, *rows: str) -> bytes:
    return "\n".join([head, *rows]).encode()


def pics(*names: str, height: int = 48, width: int = 64) -> dict[str, bytes]:
    return {name: jpeg(height, width, seed=i) for i, name in enumerate(names)}


ABC = tuple(f"{letter}.jpg" for letter in "abcdef")
CATS = dict(zip(ABC, ["cat", "dog"] * 3, strict=True))
FLOATS = np.linspace(0, 10, 128, dtype=np.float32).reshape(2, 8, 8)
YOLO = {f"labels/{name[0]}.txt": b"0 .5 .5 .25 .25\n" for name in ABC}
IN_FOLDER = {f"images/{name}": data for name, data in pics(*ABC).items()}


def voc(*names: str) -> dict[str, bytes]:
    return {f"{name.partition('.')[0]}.xml": VOC for name in names}


def coco(names: Mapping[str, str], *boxes: tuple[int, list[float]], **more: Any) -> bytes:
    """Return a document: names of files, and the image and corner and size of each object."""
    listed = [
        {"id": i, "file_name": name, "width": 64, "height": 48} for i, name in enumerate(names)
    ]
    things = [
        {"id": i, "image_id": image, "category_id": 1, "bbox": box, **more}
        for i, (image, box) in enumerate(boxes)
    ]
    kinds = [{"id": 1, "name": "cat"}]
    document = {"images": listed, "annotations": things, "categories": kinds}
    return json.dumps(document).encode()


BOX: list[float] = [10, 10, 20, 20]
EVERY = [(i, BOX) for i in range(len(ABC))]
OUTLINE = {"segmentation": [[10, 10, 30, 10, 30, 30, 10, 30]], "iscrowd": 0}
CORNERS = [[10, 10, 30, 30]]
_SPLIT = images(*(f"{'train' if i < 5 else 'test'}/{i}.jpg" for i in range(10)))

ROWS = [
    Row(
        "--exclude … leaves out one of them",
        images("train/a.jpg", "copy/train/a.jpg") | {"t.csv": b"id,label\na,cat\n"},
        {"labels": "csv:t.csv:id:label"},
        {"exclude": SAID},
        labels,
        {"train/a.jpg": "cat"},
    ),
    # --- files of arrays
    Row(
        "--images … adds its images",
        images("a.jpg", "b.jpg") | {"my more.h5": hdf5({"x": np.zeros((3, 8, 8, 3), np.uint8)})},
        {"labels": "none"},
        {"images": SAID},
        lambda made: len(made.items),
        5,
    ),
    Row(
        "raise --max-member-size if you trust the file",
        {"a.npy": npy(np.zeros((2, 64, 64, 3), np.uint8))},
        {"labels": "none", "max_member_size": "5000"},
        {"max_member_size": Own("1MB")},
        lambda made: len(made.items),
        2,
    ),
    Row(
        "--images '*.npy::THW' would store each of … arrays as a stack",
        {f"{i}.npy": npy(np.zeros((5, 8, 8), np.uint8)) for i in range(4)},
        {"labels": "none"},
        {"images": SAID},
        keys,
        [f"{i}.npy" for i in range(4)],
    ),
    Row(
        "give --depth-range MIN,MAX, or --depth-range auto for the range of each image",
        {"a.npy": npy(FLOATS[:1] * 99)},
        {"labels": "none"},
        {"depth_range": "auto"},
        lambda made: next(iter(stored(made).values()))[0],
        0,
    ),
    Row(
        "give --depth-range MIN,MAX, or --depth-range auto for the range of each image",
        {"a.npy": npy(np.array([[[0.0, 50.0, 1000.0, 1000.0]] * 4]))},
        {"labels": "none"},
        {"depth_range": Own("0,1000")},
        lambda made: next(iter(stored(made).values())),
        [0, 13, 255, 255],
    ),
    Row(
        "give the image size or the axes: --images …, or NCHW instead of the size",
        {"a.npy": npy(np.tile(np.arange(6, dtype=np.uint8), (3, 4)))},
        {"labels": "none", "images": ("a.npy",)},
        {"images": Own("a.npy::6x4")},
        lambda made: [*stored(made).values()],
        [[0, 1, 2, 3, 4, 5]] * 3,
    ),
    Row(
        "give --images …",
        {"a.npz": npz(x=np.full((2, 8, 8), 7, np.uint8), y=np.full((2, 8, 8), 9, np.uint8))},
        {"labels": "none"},
        {"images": SAID},
        lambda made: [*stored(made).values()],
        [[7] * 8] * 2,
    ),
    Row(
        " --depth-range auto",
        {"a.npz": npz(x=FLOATS * 99, y=FLOATS)},
        {"labels": "none"},
        {"images": SAID, "depth_range": "auto"},
        lambda made: len(made.items),
        2,
    ),
    # --- labels
    Row(
        "try --labels auto",
        {f"{CATS[name]}/{name}": data for name, data in pics(*ABC).items()},
        {"labels": r"regex:(?P<label>\d+)"},
        {"labels": "auto"},
        labels,
        {f"{CATS[name]}/{name}": CATS[name] for name in ABC},
    ),
    *ends(
        "use --labels … to leave these out, or --labels none to label no image",
        _SPLIT | {"t.csv": table("id,label", *(f"{i},{'xy'[i % 2]}" for i in range(8)))},
        {},
        (
            {"labels": SAID},
            labels,
            {name: "xy"[int(name[-5]) % 2] for name in _SPLIT if name[-5] < "8"},
        ),
        ({"labels": "none"}, labels, dict.fromkeys(_SPLIT)),
    ),
    Row(
        "… in no split: --split … puts them into train",
        images(*(f"{name}/{i}.jpg" for name in "ab" for i in range(4))),
        {"labels": "none", "split": "roots:test=b"},
        {"split": SAID},
        splits,
        {
            f"{name}/{i}.jpg": split
            for name, split in (("a", "train"), ("b", "test"))
            for i in range(4)
        },
    ),
    Row(
        "… of test without labels: the classes by … (…) are not in the other splits; --labels … "
        "uses them",
        images(
            *(f"train/{c}/{i}.jpg" for c in ("cat", "dog") for i in range(4)),
            *(f"test/ape/{i}.jpg" for i in range(4)),
        ),
        {},
        {"labels": SAID},
        lambda made: {key: label for key, label in labels(made).items() if key.startswith("test")},
        {f"test/ape/{i}.jpg": "ape" for i in range(4)},
    ),
    Row(
        "name the columns: --… …",
        images(*ABC) | {"t.csv": table("id,one,two", *(f"{n},{c},{c}" for n, c in CATS.items()))},
        {"labels": "csv:t.csv"},
        {"labels": Own("csv:t.csv:id:two")},
        labels,
        CATS,
    ),
    Row(
        "give one row for each image. Or keep several rows with --target multilabel (classes), "
        "--target texts (texts) or --pivot COLUMN (a row for each image and target)",
        images("a.jpg", "b.jpg")
        | {"t.csv": table("id,what,value", "a,x,1", "a,y,2", "b,x,3", "b,y,4")},
        {"labels": "csv:t.csv:id:value"},
        {"pivot": Own("what")},
        labels,
        {"a.jpg": (1.0, 2.0), "b.jpg": (3.0, 4.0)},
    ),
    Row(
        "give one row for each image. Or keep several rows with --target multilabel (classes), "
        "--target texts (texts) or --pivot COLUMN (a row for each image and target)",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,label", "a,x", "a,y", "b,x")},
        {"labels": "csv:t.csv:id:label"},
        {"target": "multilabel"},
        labels,
        {"a.jpg": ("x", "y"), "b.jpg": ("x",)},
    ),
    Row(
        "--target …",
        images(*ABC) | {"t.csv": table("id,x,y,z", *(f"{n},1,0,{i}" for i, n in enumerate(ABC)))},
        {"labels": "csv:t.csv:id:x,y,z"},
        {"target": Own("vector")},
        labels,
        {n: (1.0, 0.0, float(i)) for i, n in enumerate(ABC)},
    ),
    Row(
        "name one column: --labels csv:FILE:ID:VALUE",
        images("a.jpg", "b.jpg")
        | {"t.csv": table("id,what,value,more", "a,x,1,0", "a,y,2,0", "b,x,3,0", "b,y,4,0")},
        {"labels": "csv:t.csv:id:value,more", "pivot": "what"},
        {"labels": Own("csv:t.csv:id:value")},
        labels,
        {"a.jpg": (1.0, 2.0), "b.jpg": (3.0, 4.0)},
    ),
    Row(
        "use --labels csv:FILE:ID:VALUE",
        images("a.jpg", "b.jpg")
        | {"t.csv": table("id,what,value", "a,x,1", "a,y,2", "b,x,3", "b,y,4")},
        {"labels": "folder", "pivot": "what"},
        {"labels": Own("csv:t.csv:id:value")},
        labels,
        {"a.jpg": (1.0, 2.0), "b.jpg": (3.0, 4.0)},
    ),
    Row(
        "correct them, or state all classes: --classes …",
        {f"{CATS[name]}/{name}": data for name, data in pics(*ABC).items()}
        | {"fix.csv": table("key,label", "cat/a.jpg,big ape")},
        {"relabel": "csv:fix.csv"},
        {"classes": SAID},
        labels,
        {f"{CATS[name]}/{name}": CATS[name] for name in ABC} | {"cat/a.jpg": "big ape"},
    ),
    # --- targets
    *ends(
        "list the text in --null if it means a missing value, or use --target …",
        images(*ABC) | {"t.csv": table("id,age", "a,1.5", "b,2.5", "c,?", "d,4", "e,5", "f,6")},
        {"labels": "csv:t.csv:id:age", "target": "regression"},
        (
            {"null": Own("?")},
            lambda made: {key: label for key, label in labels(made).items() if label is not None},
            {"a.jpg": 1.5, "b.jpg": 2.5, "d.jpg": 4.0, "e.jpg": 5.0, "f.jpg": 6.0},
        ),
        ({"target": SAID}, lambda made: labels(made)["c.jpg"], "?"),
    ),
    *ends(
        "name this cell with --null, or use --target text",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,n", "a,1.5", "b,1e99")},
        {"labels": "csv:t.csv:id:n", "target": "regression"},
        ({"null": Own("1e99")}, lambda made: labels(made)["a.jpg"], 1.5),
        ({"target": "text"}, labels, {"a.jpg": "1.5", "b.jpg": "1e99"}),
    ),
    Row(
        "use --target vector",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,x,y", "a,1,-1", "b,2,3")},
        {"labels": "csv:t.csv:id:x,y", "target": "soft"},
        {"target": "vector"},
        labels,
        {"a.jpg": (1.0, -1.0), "b.jpg": (2.0, 3.0)},
    ),
    *ends(
        "…: only whole numbers, stored as numbers; --target classes stores class numbers, "
        "--target soft stores shares of votes",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,x,y", "a,1,7", "b,2,2")},
        {"labels": "csv:t.csv:id:x,y"},
        (
            {"target": "classes"},
            lambda made: (labels(made), [one.labels for one in made.target_features.values()]),
            ({"a.jpg": (0, 1), "b.jpg": (1, 0)}, [("1", "2"), ("2", "7")]),
        ),
        ({"target": "soft"}, labels, {"a.jpg": (0.125, 0.875), "b.jpg": (0.5, 0.5)}),
    ),
    Row(
        "…; --target vector stores them as plain numbers",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,x,y", "a,.25,.75", "b,.5,.5")},
        {"labels": "csv:t.csv:id:x,y"},
        {"target": "vector"},
        lambda made: (made.target_kind, labels(made)),
        ("vector", {"a.jpg": (0.25, 0.75), "b.jpg": (0.5, 0.5)}),
    ),
    Row(
        "--target vector or --target regression",
        images(*(f"{i}.jpg" for i in range(120)))
        | {"t.csv": table("id,label", *(f"{i},{i}" for i in range(120)))},
        {"labels": "csv:t.csv:id:label"},
        {"target": Own("regression")},
        labels,
        {f"{i}.jpg": float(i) for i in range(120)},
    ),
    Row(
        "name the columns: --labels csv:FILE:ID:A,B",
        images("x/a.jpg", "y/b.jpg") | {"t.csv": table("id,x,y", "a,1.5,2", "b,3,4")},
        {"labels": "folder", "target": "vector"},
        {"labels": Own("csv:t.csv:id:x,y")},
        labels,
        {"x/a.jpg": (1.5, 2.0), "y/b.jpg": (3.0, 4.0)},
    ),
    Row(
        "correct the source, or use --class-map",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,label", "a,x\ty", "b,z")},
        {"labels": "csv:t.csv:id:label"},
        {"class_map": Own("x\ty=x y")},
        labels,
        {"a.jpg": "x y", "b.jpg": "z"},
    ),
    Row(
        "use --target multilabel",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,x,y", "a,1,1", "b,0,1")},
        {"labels": "csv:t.csv:id:x,y", "target": "class"},
        {"target": "multilabel"},
        labels,
        {"a.jpg": ("x", "y"), "b.jpg": ("y",)},
    ),
    Row(
        'write lists as JSON, such as ["a", "b"], or give --target class',
        images("a.jpg", "b.jpg")
        | {"t.csv": table("id,label", "a,\"['x', 'y']\"", "b,\"['x', 'z']\"")},
        {"labels": "csv:t.csv:id:label"},
        {"target": "class"},
        labels,
        {"a.jpg": "['x', 'y']", "b.jpg": "['x', 'z']"},
    ),
    # --- tables, splits and groups
    Row(
        "use --labels csv:FILE",
        images("a.jpg", "b.jpg")
        | {"train.csv": table("id,label", "a,x"), "val.csv": table("id,label", "b,x")},
        {"labels": "none", "split": "tables"},
        {"labels": Own("csv:train.csv,val.csv")},
        splits,
        {"a.jpg": "train", "b.jpg": "validation"},
    ),
    Row(
        "use --join FILE",
        images(*ABC)
        | {"t.csv": table("id,fold", *(f"{n},{'train' if n < 'd' else 'val'}" for n in ABC))},
        {"labels": "none", "split": "column:fold"},
        {"join": Own(("t.csv",))},
        splits,
        {n: "train" if n < "d" else "validation" for n in ABC},
    ),
    Row(
        "use --join FILE, or --group regex:PATTERN",
        images(*ABC) | {"t.csv": table("id,who", *(f"{n},{n < 'd'}" for n in ABC))},
        {"labels": "none", "group": "who"},
        {"join": Own(("t.csv",))},
        lambda made: {item.key: item.group for item in made.items},
        {n: str(n < "d") for n in ABC},
    ),
    Row(
        "use --join FILE, or --group regex:PATTERN",
        images("p1_a.jpg", "p1_b.jpg", "p2_c.jpg"),
        {"labels": "none", "group": "who"},
        {"group": Own("regex:(p\\d)_")},
        lambda made: {item.key: item.group for item in made.items},
        {"p1_a.jpg": "p1", "p1_b.jpg": "p1", "p2_c.jpg": "p2"},
    ),
    Row(
        "…: --split … keeps each group in one split",
        images("train/p1_a.jpg", "val/p1_b.jpg", "train/p2_c.jpg", "val/p3_d.jpg"),
        {"labels": "none", "group": "regex:(p\\d)_"},
        {"split": "validation=0.5"},
        lambda made: [line for line in made.findings if "several of the given" in line],
        [],
    ),
    Row(
        "use --join FILE",
        images(*ABC) | {"t.csv": table("id,age", *(f"{n},{i}" for i, n in enumerate(ABC)))},
        {"labels": "none", "columns": ("age",)},
        {"join": Own(("t.csv",))},
        features,
        {n: (i,) for i, n in enumerate(ABC)},
    ),
    Row(
        "leave the column out, or name the cell with --null",
        images("a.jpg", "b.jpg") | {"t.csv": table("id,label,n", "a,x,1.5", "b,y,1e99")},
        {"labels": "csv:t.csv:id:label", "columns": ("n",)},
        {"null": Own("1e99")},
        lambda made: features(made)["a.jpg"],
        (1.5,),
    ),
    Row(
        "name the column that joins: --join …",
        images("a.jpg", "b.jpg")
        | {
            "t.csv": table("id,site,label", "a,s1,x", "b,s2,y"),
            "more.csv": table("site,label,city", "s1,q,Bern", "s2,q,Rome"),
        },
        {"labels": "csv:t.csv:id:label", "join": ("more.csv",), "columns": ("city",)},
        {"join": Own(("more.csv:site",))},
        features,
        {"a.jpg": ("Bern",), "b.jpg": ("Rome",)},
    ),
    Row(
        "give --… …",
        pics("a.jpg", "b.jpg")
        | {
            "t.csv": table("id,box", "a.jpg,10 10 30 30", "b.jpg,10 10 30 30"),
            "u.csv": table("id,label", "a.jpg,x", "b.jpg,y"),
        },
        {"boxes": "column:xyxy(box)"},
        {"boxes": Own("csv:t.csv:id:xyxy(box)")},
        boxes,
        {"a.jpg": CORNERS, "b.jpg": CORNERS},
    ),
    # --- boxes
    Row(
        "name the columns: --… …",
        pics("a.jpg") | {"t.csv": table("id,p,q,r,s", "a,10,10,20,20")},
        {"boxes": "csv:t.csv"},
        {"boxes": Own("csv:t.csv:id:xywh(p,q,r,s)")},
        boxes,
        {"a.jpg": CORNERS},
    ),
    Row(
        "…, or accept them with --max-clipped 1",
        pics("a.jpg", "b.jpg") | {"t.csv": table("id,x,y,w,h", "a,10,10,20,20", "b,50,10,40,20")},
        {"boxes": "csv:t.csv:id:x,y,w,h"},
        {"max_clipped": "1"},
        lambda made: boxes(made)["a.jpg"],
        CORNERS,
    ),
    Row(
        "--unlisted train takes them",
        IN_FOLDER
        | YOLO
        | {"train.txt": b"images/a.jpg\n", "data.yaml": b"names: [n]\ntrain: train.txt\n"},
        {"boxes": "yolo"},
        {"unlisted": "train"},
        splits,
        {f"images/{name}": "train" for name in ABC},
    ),
    Row(
        "; --unlisted background takes them",
        pics(*ABC) | voc(*ABC[:5]),
        {"boxes": "voc", "unlisted": "skip"},
        {"unlisted": "background"},
        objects,
        {name: ("cat",) if name < "f" else () for name in ABC},
    ),
    *ends(
        "use --unlisted background to store them without objects, or --unlisted skip to leave them "
        "out",
        pics(*ABC) | {f"{n[0]}.txt": YOLO[f"labels/{n[0]}.txt"] for n in ABC[:5]},
        {"boxes": "yolo"},
        ({"unlisted": "background"}, objects, {name: ("0",) if name < "f" else () for name in ABC}),
        ({"unlisted": Own("skip")}, keys, [*ABC[:5]]),
    ),
    Row(
        "… and --boxes … must name one document",
        pics(*ABC) | voc(*ABC) | {"coco.json": coco(CATS, *EVERY, **OUTLINE)},
        {"boxes": "voc", "masks": "coco", "instances": True},
        {"boxes": LEFT_OUT},
        objects,
        dict.fromkeys(ABC, ("cat",)),
    ),
    Row(
        "use --boxes …, or leave one of the two options out",
        pics(*ABC) | voc(*ABC) | {"coco.json": coco(CATS, *EVERY, **OUTLINE)},
        {"boxes": "voc", "masks": "coco", "instances": True},
        {"boxes": SAID},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "leave --boxes out: boxes come from that document",
        pics(*ABC)
        | voc(*ABC)
        | {"coco.json": coco(CATS, *EVERY, keypoints=[11, 12, 2], num_keypoints=1)},
        {"boxes": "voc", "points": "coco"},
        {"boxes": LEFT_OUT},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "leave --boxes out: boxes come from the masks",
        masked(6, 0, 1, 2, mask="masks/{}.png") | {f"images/{i}.xml": VOC for i in range(6)},
        {"boxes": "voc", "masks": "masks/{stem}.png", "instances": True},
        {"boxes": LEFT_OUT},
        lambda made: (
            made.annotations and (made.annotations.spec.boxes, made.annotations.spec.masks)
        ),
        (True, "instances"),
    ),
    Row(
        "say where they are with --masks",
        pics(*ABC) | {"coco.json": coco(CATS, *EVERY, **OUTLINE)},
        {"instances": True, "boxes": "coco"},
        {"masks": Own("coco")},
        lambda made: made.annotations and made.annotations.spec.masks,
        "instances",
    ),
    Row(
        "leave this option out, or name the files with --masks",
        masked(6, 0, 1) | {f"images/{i}.xml": VOC for i in range(6)},
        {"mask_values": "0=background,1=cat", "boxes": "voc"},
        {"masks": Own("masks/{stem}.png")},
        classes,
        ("background", "cat"),
    ),
    Row(
        "leave this option out, or add --boxes coco",
        pics(*ABC) | voc(*ABC) | {"coco.json": coco(CATS, *EVERY, iscrowd=1)},
        {"crowds": "objects", "boxes": "voc"},
        {"boxes": "coco"},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "leave this option out, or add --masks rle:FILE:ID:COLUMN",
        pics("a.jpg") | {"t.csv": table("id,rle", "a,1 3 49 3")},
        {"rle": "column", "masks": "coco"},
        {"masks": Own("rle:t.csv:id:rle")},
        classes,
        ("background", "object"),
    ),
    Row(
        "leave this option out: --boxes alone stores boxes",
        pics(*ABC) | {"coco.json": coco(CATS, *EVERY)},
        {"points": "coco", "boxes": "coco"},
        {"points": LEFT_OUT},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "leave --masks out: the source has only boxes",
        pics(*ABC) | {"coco.json": coco(CATS, *EVERY)},
        {"masks": "coco", "boxes": "coco"},
        {"masks": LEFT_OUT},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "--crowds objects stores them as other objects",
        pics(*ABC) | {"coco.json": coco(CATS, *EVERY, iscrowd=1)},
        {"boxes": "coco"},
        {"crowds": "objects"},
        lambda made: [item.annotation and item.annotation.crowds for item in made.items],
        [()] * 6,
    ),
    Row(
        "name the document to read: --… …",
        pics(*ABC) | {"coco.json": coco(CATS, *EVERY), "other.json": coco(CATS, *EVERY)},
        {"boxes": "coco"},
        {"boxes": SAID},
        boxes,
        dict.fromkeys(ABC, CORNERS),
    ),
    Row(
        "; --points coco stores them",
        pics(*ABC) | {"coco.json": coco(CATS, *EVERY, keypoints=[11, 12, 2], num_keypoints=1)},
        {"boxes": "coco"},
        {"points": "coco"},
        keypoints,
        {key: [[[11, 12, 2]]] for key in ABC},
    ),
]
