"""The corpus of public layouts: `tests/layouts/*.toml`, read; a file is a family of layouts.

A row has a name, its origin, the flags that build it right (or in `cannot` why no flags can), and a
tree. A line of the tree is `PATTERN : CONTENT -> FACT`. The pattern is as in bash (`{1..3}`,
`{a,b}`). The content is, "scene" by default,

* a kind of `tests.support.scenes`, and the path of the picture whose scene it shows;
* `voc IMAGE CLASSES`, `labelme IMAGE CLASSES`, `yolo NUMBERS` or `coco IMAGES CLASSES`;
* `| line | line`, a text: after `* ` with all braces side by side, after `+ ` as in bash; `@hex`;
* `sample`: a record of several files, which is no file itself.

The fact says what a person wants of each of these files: a record `SPLIT LABEL`, or parts such as
`train; mask masks/a.png`. Without a fact, a file is no record; `?` is for one that may be a record
without target. In a fact and a content, braces give a word for each file in turn. `$stem`, `$name`,
`$dir`, `$folder`, `$up` (the folder above it) and `$1` (a word of the stem) are those of the file;
`$stem[:4]` is a part.

The layouts of `tests/data/layouts.toml` and of `tests.support.competitions` are rows, too. What a
person wants of them is what their flags store, less the flags that are a choice.
"""

import functools
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.builders import write, write_folder, zip_bytes
from tests.support.competitions.page import COMPETITIONS
from tests.support.layouts import LAYOUTS, Members, contents, expanded, packed
from tests.support.paths import ROOT
from tests.support.scenes import KINDS, Size, picture, scene

FOLDER = ROOT / "tests" / "layouts"
Fact = dict[str, str]
"""Split of a record, and its label, mask and so on."""
_FIELD = re.compile(r"\$(stem|name|folder|up|dir|\d)(?:\[(-?\d*):(-?\d*)\])?")
_UNSEEN = frozenset(("columns", "rows", "depth", "depth_range", "format", "group", "size", "fit"))
_UNSEEN |= {"window", "dedup", "quality", "max_rejected", "min_visible"}
_CHOICES = frozenset(("tile", "overlap", "class_map", "classes", "exclude_list"))
"""Options that nothing in a source decides: those of `_UNSEEN` do not change a fact."""
_RATIOS = re.compile(r"\w+=[\d.]")


@dataclass(frozen=True, slots=True)
class Row:
    family: str
    name: str
    origin: str
    flags: str
    members: Callable[[], Members]
    facts: dict[str, Fact] | None = None
    """What a person wants; None for what the flags store."""
    free: frozenset[str] = frozenset()
    """Files that may be records without a target."""
    cannot: str = ""
    """Why no flags build the row right."""
    source: str = ""
    """Name of the source; with a final "/" a folder."""

    @property
    def id(self) -> str:
        return f"{self.family}/{self.name}"

    def write_source(self, folder: Path) -> Path:
        name = self.source or f"{re.sub(r'[^a-z0-9]+', '-', self.name.lower())}.zip"
        if name.endswith("/"):
            return write_folder(folder / name.rstrip("/"), self.members())
        return write(folder / name, zip_bytes(self.members(), method=0))


def options_of(flags: str) -> dict[str, Any]:
    """Return key of a recipe → its value, or its values if the flag is repeated."""
    found: dict[str, Any] = {}
    words = shlex.split(re.sub(r"(--[\w-]+)=", r"\1 ", flags))
    for name, value in itertools.pairwise([*words, "--"]):
        if name.startswith("--"):
            key = name.removeprefix("--").replace("-", "_")
            read = not key.startswith("no_") if value.startswith("--") else value
            found.setdefault(key.removeprefix("no_"), []).append(read)
    return {key: one[0] if len(one) == 1 else one for key, one in found.items()}


def without_choices(flags: str) -> dict[str, Any]:
    """Return the options of the flags without those that are a choice and change facts."""
    found = {k: v for k, v in options_of(flags).items() if k not in _CHOICES}
    return {k: v for k, v in found.items() if k != "split" or not _RATIOS.match(v)}


def evident(flags: str) -> dict[str, Any]:
    """Return the options of the flags that the files of a source can show."""
    return {k: v for k, v in without_choices(flags).items() if k not in _UNSEEN}


@functools.cache
def rows() -> tuple[Row, ...]:
    files = {path.stem: tomllib.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.toml")}
    own = [_row(name, one) for name in sorted(files) for one in files[name].get("row", ())]
    wishes = files["references"]["flags"]
    return (*own, *_of_layouts(wishes), *_of_competitions())


def _of_layouts(wishes: Mapping[str, str]) -> Iterator[Row]:
    for layout in LAYOUTS:
        # A list that only excludes images is of the user, and no part of the download.
        beside = {} if "--exclude-list" in layout.flags else contents(layout.beside)
        name = f"{layout.row:02d}-{re.sub(r'[ ()]+', '-', layout.name).rstrip('-')}"
        source = layout.source if layout.source.endswith("/") else ""
        flags, made = wishes.get(name, layout.flags), layout.members
        members = functools.cache(lambda made=made, beside=beside: {**made(), **beside})
        yield Row("kaggle", name, layout.special, flags, members, source=source)


def _of_competitions() -> Iterator[Row]:
    for twin in COMPETITIONS:
        flags = functools.reduce(
            lambda text, one: text.replace(*one), twin.small.items(), twin.flags
        )
        yield Row("competitions", twin.slug, twin.special, flags, functools.cache(twin.members))


def _row(family: str, data: dict[str, Any]) -> Row:
    width, _, height = data.pop("size", "").partition("x")
    size = (int(width), int(height)) if width else None
    files, facts, free = dict[str, str](), dict[str, Fact](), set[str]()
    for line in data.pop("tree").strip().splitlines():
        file, _, fact = line.partition(" -> ")
        pattern, _, content = file.partition(" : ")
        names = expanded(pattern)
        is_text = content.startswith(("|", "@", "coco"))
        each = [content] * len(names) if is_text else _in_turn(content or "scene", len(names))
        of_names = zip(names, each, _in_turn(fact, len(names)), strict=True)
        for name, text, own in of_names:
            files |= {} if content == "sample" else {name: _filled(text, name)}
            facts |= {name: _fact(_filled(own, name))} if own not in ("", "?") else {}
            free |= {name} if own == "?" else set()

    @functools.cache
    def members() -> Members:
        return packed({name: _content(name, content, size) for name, content in files.items()})

    more = {"flags": "", **data}
    return Row(family, members=members, facts=facts, free=frozenset(free), **more)


def _fact(text: str) -> Fact:
    first, *parts = text.split("; ")
    split, _, label = first.partition(" ")
    fact = {"split": split, **({"label": label} if label else {})}
    for what, _, value in (part.partition(" ") for part in parts):
        is_set = what in ("labels", "boxes", "shapes", "mask")
        fact[what] = ",".join(sorted(value.split(","))) if is_set else value
    return fact


def _in_turn(text: str, number: int) -> list[str]:
    """Return `number` texts; the words in each brace are used in turn."""
    parts = map(expanded, re.split(r"(\{[^{}]*\})", text))
    columns = zip(*map(itertools.cycle, parts), strict=False)
    return ["".join(one) for one in itertools.islice(columns, number)]


def _filled(text: str, name: str) -> str:
    above, _, file = name.rpartition("/")
    stem = file.rpartition(".")[0] or file
    *_, up, folder = ["", "", *above.split("/")]
    fields = {"stem": stem, "name": file, "dir": above, "folder": folder, "up": up}
    words = enumerate(re.split("[-_. ]", stem), start=1)
    fields |= {str(number): word for number, word in words}

    def value(match: re.Match[str]) -> str:
        field, start, stop = match.groups()
        return fields[field][int(start or 0) : int(stop) if stop else None]

    return _FIELD.sub(value, text)


def _content(name: str, content: str, size: Size | None) -> bytes:
    kind, _, rest = content.partition(" ")
    if kind in KINDS or kind == "view":
        return picture(kind, name, rest or name, size)
    if kind == "|":
        return "".join(f"{line}\n" for line in _lines(rest)).encode()
    if kind.startswith("@"):
        return contents({name: content})[name]
    image, _, classes = rest.rpartition(" ")
    return _DOCUMENTS[kind](image, classes.split(","), size).encode()


def _lines(text: str) -> Iterator[str]:
    for line in text.split(" | "):
        groups = [expanded(one) for one in re.findall(r"\{[^{}]*\}", line)]
        if line.startswith("* "):
            yield from _in_turn(line[2:], max(map(len, groups)))
        else:
            yield from expanded(line[2:]) if line.startswith("+ ") else (line,)


def _objects(
    image: str, classes: Sequence[str], size: Size | None
) -> list[tuple[str, int, int, int, int]]:
    """Return class, left, top, right, bottom of the objects of a document."""
    width, height = scene(image, size)[0].size
    lefts = [(4 + 5 * i, 3 + 4 * i) for i in range(len(classes))]
    pairs = zip(classes, lefts, strict=True)
    return [(name, x, y, x + width // 3, y + height // 3) for name, (x, y) in pairs]


def _voc(image: str, classes: Sequence[str], size: Size | None) -> str:
    width, height = scene(image, size)[0].size
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x}</xmin><ymin>{y}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, x, y, right, bottom in _objects(image, classes, size)
    )
    sizes = f"<width>{width}</width><height>{height}</height><depth>3</depth>"
    file = f"<filename>{image.rpartition('/')[2]}</filename>"
    return f"<annotation>{file}<size>{sizes}</size>{objects}</annotation>"


def _labelme(image: str, classes: Sequence[str], size: Size | None) -> str:
    width, height = scene(image, size)[0].size
    shapes = [
        {"label": name, "points": [[x, y], [right, y], [right, bottom]], "shape_type": "polygon"}
        for name, x, y, right, bottom in _objects(image, classes, size)
    ]
    about = {"version": "5.0.1", "flags": {}, "imagePath": image.rpartition("/")[2]}
    return json.dumps({**about, "shapes": shapes, "imageHeight": height, "imageWidth": width})


def _yolo(_: str, classes: Sequence[str], size: Size | None) -> str:
    del size
    return "".join(f"{one} {0.3 + i / 10} 0.4 0.2 0.3\n" for i, one in enumerate(classes))


def _coco(
    pattern: str, classes: Sequence[str], size: Size | None, *, has_outlines: bool = False
) -> str:
    images, annotations = [], []
    for i, name in enumerate(expanded(pattern)):
        width, height = scene(name, size)[0].size
        ((_, x, y, right, bottom),) = _objects(name, ("",), size)
        own = {"id": i, "file_name": name.rpartition("/")[2], "width": width, "height": height}
        images.append(own)
        outline = [x, y, right, y, right, bottom, x, bottom]
        outline += [x, (y + bottom) // 2] if has_outlines else []
        box = {"bbox": [x, y, right - x, bottom - y], "segmentation": [outline], "iscrowd": 0}
        area = (right - x) * (bottom - y)
        category = i % len(classes)
        annotations.append({"id": i, "image_id": i, "category_id": category, "area": area, **box})
    categories = [{"id": i, "name": name} for i, name in enumerate(classes)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


_DOCUMENTS: dict[str, Callable[[str, Sequence[str], Size | None], str]] = {
    "voc": _voc, "labelme": _labelme, "yolo": _yolo, "coco": _coco,
    "coco-outlines": functools.partial(_coco, has_outlines=True),
}  # fmt: skip
