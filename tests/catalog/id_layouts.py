"""Layouts of images and tables, and an independent resolution of the ids in the tables.

`python -m tests.catalog.id_layouts 10000` tries the layouts 0 to 9,999 and prints the counts. The
resolution is written from the rule and shares no code with the package: an id means an image (a) in
the folder of its table, (b) within the split that a column, the table's name or its folder states,
(c) in the whole source if exactly one image fits. Otherwise the build must end in one line.

Every row has a label of its own, so that the catalog shows which image each row reached.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shardprep.catalog.catalog import make_catalog
from shardprep.errors import ShardprepError
from shardprep.recipe.recipe import make_recipe
from tests.support.builders import png, write_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardprep.catalog.catalog import Catalog

USES = ("labels", "auto", "boxes", "rows", "relabel")
SPLITS = {"train": ("train", "training"), "validation": ("val", "valid"), "test": ("test", "test")}
"""Split → names of its folder. Other groups, a and b, are folders that state no split."""
_STYLES = ("{}/{}", "{}/images/{}", "images/{}/{}", "data/{}/{}", "{}_images/{}")
_MISSING = ""
"""Stands for the image of a row whose image is not in the source."""
_IMAGE = png(8, 8)


class Row(NamedTuple):
    """One row of a table."""

    id: str
    label: str
    split: str = ""
    """Cell of the column `split`, or "" without that column."""
    intended: str = _MISSING
    """Key of the image that the author of the layout means."""


@dataclass(frozen=True)
class IdTable:
    """A table, and the split that its name or its folder states."""

    path: str
    split: str | None
    rows: tuple[Row, ...]

    def text(self, use: str) -> bytes:
        has_splits = any(row.split for row in self.rows)
        values = {"boxes": "x,y,w,h,label", "rows": "value"}.get(use, "label")
        lead = "1,1,3,3," if use == "boxes" else ""
        lines = [f"id,{values}" + ",split" * has_splits]
        lines += [f"{row.id},{lead}{row.label}" + f",{row.split}" * has_splits for row in self.rows]
        return "\n".join(lines).encode()


@dataclass(frozen=True)
class Layout:
    """Images with their splits, tables, and the option that reads the tables."""

    images: dict[str, str | None]
    tables: tuple[IdTable, ...]
    use: str
    files: str
    """The tables as the option names them."""

    def members(self) -> dict[str, bytes]:
        members = dict.fromkeys(self.images, _IMAGE)
        members |= {one.path: one.text(self.use) for one in self.tables}
        if self.use == "relabel":
            base = "".join(f"{key},base{i % 2}\n" for i, key in enumerate(self.images))
            members["base.csv"] = f"key,kind\n{base}".encode()
        return members

    def options(self) -> dict[str, Any]:
        labels = [row.label for one in self.tables for row in one.rows]
        of_use: dict[str, dict[str, Any]] = {
            "labels": {"labels": f"csv:{self.files}:id:label"},
            "auto": {"labels": "auto"},
            "boxes": {"labels": "none", "boxes": f"csv:{self.files}:id:x,y,w,h:label"},
            "rows": {"labels": "none", "rows": f"csv:{self.files}:id:value"},
            "relabel": {
                "labels": "csv:base.csv:key:kind",
                "relabel": f"csv:{self.files}:id:label",
                "classes": ("base0", "base1", *labels),
            },
        }
        return {"max_dropped": 1.0, **of_use[self.use]}

    def __str__(self) -> str:
        lines = [f"{self.options()}", *(f"  {key}" for key in self.images)]
        lines += [f"  {one.path}: {one.text(self.use).decode()!r}" for one in self.tables]
        return "\n".join(lines)


# The generator


@dataclass(frozen=True)
class _Group:
    """A folder of images: a split, or a part of the source that is no split."""

    split: str | None
    folder: str
    word: str
    names: tuple[str, ...]

    def key(self, name: str) -> str:
        return f"{self.folder}/{name}".lstrip("/")


def make_layout(draw: random.Random) -> Layout:
    """Return a random layout."""
    use = draw.choice(USES)
    groups = _groups(draw, use)
    images = {one.key(name): one.split for one in groups for name in one.names}
    number = draw.randint(1, 3)
    is_each = number == len(groups) and draw.random() < 0.8
    style = draw.choice(("top", "named", "inside", "meta", "below"))
    form = draw.choice(_FORMS)
    tables: list[IdTable] = []
    for i in range(number):
        own = [groups[i]] if is_each else draw.choice((groups, [draw.choice(groups)]))
        if draw.random() < 0.2:
            style, form = (
                draw.choice(("top", "named", "inside", "meta", "below")),
                draw.choice(_FORMS),
            )
        path, split = _place(draw, style, own, i)
        if path not in {one.path for one in tables}:
            tables.append(_table(draw, (path, split), own, form, groups, len(tables)))
    if use == "auto":
        tables = [_with_classes(one, groups) for one in tables]
    pattern = _pattern(tables) if draw.random() < 0.5 else ""
    files = pattern or ",".join(one.path for one in tables)
    return Layout(images, tuple(tables), use, files)


def _groups(draw: random.Random, use: str) -> list[_Group]:
    number = draw.randint(1, 3)
    names = draw.choice(("equal", "disjoint", "shifted"))
    has_splits = use == "auto" or draw.random() < 0.8
    words = draw.sample([*SPLITS], number) if has_splits else ["a", "b", "c"][:number]
    style = draw.choice(_STYLES if has_splits else _STYLES[:4])
    if number == 1 and draw.random() < 0.3:
        style, words = "photos", ["all"]
    size, endings = draw.randint(2, 5), draw.choice(((".png",), (".png",), (".png", ".jpg")))
    groups = []
    for i, word in enumerate(words):
        start = {"equal": 0, "disjoint": 100 * i, "shifted": 2 * i}[names]
        ending = endings[i % len(endings)]
        own = tuple(f"{start + n:03}{ending}" for n in range(size))
        split = word if word in SPLITS else None
        folder = draw.choice(SPLITS[word]) if split else word
        path = "photos" if style == "photos" else style.format(folder, "x").rpartition("/")[0]
        groups.append(_Group(split, path, folder, own))
    return groups


def _place(
    draw: random.Random, style: str, own: Sequence[_Group], number: int
) -> tuple[str, str | None]:
    """Return the path of a table of these groups, and the split that the path states."""
    of = own[0] if len(own) == 1 else None
    if of is not None and style == "inside":
        folder = draw.choice((of.folder, of.folder.rpartition("/")[0]))
        folder = folder if of.word in folder else of.folder
        return f"{folder}/labels.csv", of.split
    if of is not None and of.split and style != "top":
        name = draw.choice(("{}.csv", "{}_labels.csv", "labels_{}.csv")).format(of.word)
        path = {"named": name, "meta": f"meta/{name}"}.get(style, f"notes/{of.word}/labels.csv")
        return path, of.split
    return ("meta/" if style == "meta" else "") + f"labels{'abc'[number]}.csv", None


_FORMS = ("stem", "name", "key", "path", "longer", "windows", "address", "split", "column")


def _id(form: str, group: _Group, name: str) -> str:
    key = group.key(name)
    forms = {
        "name": name,
        "key": key,
        "path": "/".join(key.split("/")[-2:]).rpartition(".")[0],
        "longer": f"/kaggle/input/set/{key}",
        "windows": "..\\work\\" + key.replace("/", "\\"),
        "address": f"gs://bucket/set/{key}",
        "split": f"{group.word}/{name}",
    }
    return forms.get(form, name.rpartition(".")[0])


def _table(
    draw: random.Random,
    place: tuple[str, str | None],
    own: Sequence[_Group],
    form: str,
    groups: Sequence[_Group],
    number: int,
) -> IdTable:
    rows: list[Row] = []
    has_column = form == "column" and all(one.split for one in own)
    share = draw.choice((1.0, 1.0, 0.7))
    for group in own:
        named = [name for name in group.names if draw.random() < share] or [group.names[0]]
        strange = [n for one in groups for n in one.names if n not in group.names] + ["909.png"]
        lost = draw.sample(strange, min(len(strange), 2)) if draw.random() < 0.25 else []
        for name in [*named, *lost]:
            key = group.key(name) if name in group.names else _MISSING
            label = f"t{number}r{len(rows)}"
            cell = group.word if has_column else ""
            rows.append(Row(_id(form, group, name), label, cell, key))
    draw.shuffle(rows)
    return IdTable(*place, tuple(rows))


def _with_classes(table: IdTable, groups: Sequence[_Group]) -> IdTable:
    """Return the table with few classes; images of equal names never have the same class."""
    order = {one.key(name): (i, name) for i, one in enumerate(groups) for name in one.names}
    rows = []
    for row in table.rows:
        group, name = order.get(row.intended, (0, "000."))
        label = f"c{(int(name.partition('.')[0]) + group) % 3}"
        rows.append(row._replace(label=label if row.intended else "c9"))
    return IdTable(table.path, table.split, tuple(rows))


def _pattern(tables: Sequence[IdTable]) -> str:
    """Return the paths of the tables with `{split}` for their splits, or ""."""
    made = set()
    for one in tables:
        words = [word for names in SPLITS.values() for word in names if word in one.path]
        made.add(one.path.replace(max(words, key=len), "{split}") if words else "")
    return made.pop() if len(made) == 1 and len(tables) > 1 else ""


# The resolution


@dataclass
class Meaning:
    """The images that a row may mean."""

    images: frozenset[str]
    """Keys, and `_MISSING`; empty if only an error is right."""
    rivals: tuple[str, ...] = ()
    """Images between which nothing decides."""


class _Fit(NamedTuple):
    keys: list[str]
    dropped: list[str]
    """First folders of the id, which no key has."""


def _fit(keys: Sequence[str], text: str) -> _Fit:
    parts = [
        part
        for part in text.replace("\\", "/").split("/")
        if part not in ("", ".", "..") and not part.endswith(":")
    ]
    for start in range(len(parts)):
        end = "/" + "/".join(parts[start:])
        found = [key for key in keys if f"/{key}".endswith(end)]
        found = found or [key for key in keys if f"/{key}".rpartition(".")[0].endswith(end)]
        if found:
            return _Fit(found, parts[:start])
    return _Fit([], parts)


def _named_split(folders: Sequence[str]) -> str | None:
    for folder in folders:
        for split, words in SPLITS.items():
            if folder.lower() in words:
                return split
    return None


class _Found(NamedTuple):
    keys: list[str]
    """The nearest images of the row's split or of no split; those of other splits if none is."""
    level: int
    """Folders to go up from the table to these images; −1 if they are of other splits."""
    split: str | None
    is_in_id: bool
    """Whether the id itself names the split, in a folder that no key has."""
    fits: list[str]
    num_dropped: int


def meanings(layout: Layout) -> dict[tuple[int, int], Meaning]:
    """Return what each row means, by the numbers of its table and of the row."""
    made: dict[tuple[int, int], Meaning] = {}
    for number, table in enumerate(layout.tables):
        found = [_found(layout, table, row) for row in table.rows]
        least = min((one.num_dropped for one in found if one.fits), default=0)
        for i, (row, one) in enumerate(zip(table.rows, found, strict=True)):
            homes = [other for other in found if other.split == one.split and other.level >= 0]
            nearest = min((other.level for other in homes), default=0)
            has_twins = any(len(other.fits) > len(other.keys) for other in homes)
            made[number, i] = _meaning(one, nearest, has_twins=has_twins, has_home=bool(homes))
            if one.num_dropped > least:  # the other ids of the table have their folders
                made[number, i] = Meaning(frozenset([_MISSING]))
            if layout.use == "relabel" and row.id in layout.images:
                made[number, i] = Meaning(frozenset([row.id]))
    return made


def _found(layout: Layout, table: IdTable, row: Row) -> _Found:
    fits, dropped = _fit([*layout.images], row.id)
    in_id = _named_split(dropped)
    split = in_id or (_named_split([row.split]) if row.split else table.split)
    folders = table.path.split("/")[:-1]
    for level in range(len(folders) + 1):
        above = "/".join(folders[: len(folders) - level])
        below = [key for key in fits if not above or key.startswith(f"{above}/")]
        own = [key for key in below if split is None or layout.images[key] == split]
        own = own or [key for key in below if layout.images[key] is None]
        if own:
            return _Found(own, level, split, in_id is not None, fits, len(dropped))
    return _Found(fits, -1, split, in_id is not None, fits, len(dropped))


def _meaning(one: _Found, nearest: int, *, has_twins: bool, has_home: bool) -> Meaning:
    if not one.keys:
        return Meaning(frozenset([_MISSING]))
    if one.level >= 0:
        if one.level > nearest and has_twins:  # the image near the table is missing
            return Meaning(frozenset([_MISSING]))
        if len(one.keys) > 1:
            return Meaning(frozenset(), tuple(one.keys))
        return Meaning(frozenset(one.keys))
    if one.is_in_id or has_twins or len(one.keys) > 1:  # never an image of another split
        return Meaning(frozenset([_MISSING]))
    return Meaning(frozenset([*one.keys, _MISSING] if has_home else one.keys))


# The comparison


@dataclass
class Tally:
    """What became of layouts."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.faults += other.faults


def try_layout(layout: Layout, folder: Path) -> Tally:
    """Return how a build of the layout ends; `folder` must be empty."""
    tally = Tally()
    meant = meanings(layout)
    source = write_folder(folder / "source", layout.members())
    try:
        recipe = make_recipe({"source": str(source), **layout.options()}, "test")
        made = make_catalog(recipe, folder / "work", lambda _: None)
    except ShardprepError as error:
        kind, fault = _refused(layout, meant, error)
        tally.counts.update({"refused": 1, kind: 1})
        if fault:
            tally.faults.append(f"{fault}: {error}\n{layout}")
        return tally
    faults = [*_compared(layout, meant, made)]
    tally.counts.update({"built": 1, **Counter(kind for kind, _ in faults)})
    if faults:
        lines = "\n".join(f"{kind}: {what}" for kind, what in faults[:4])
        tally.faults.append(f"{lines}\n{layout}\n  {made.labels_from}; {made.findings}")
    return tally


def _refused(
    layout: Layout, meant: dict[tuple[int, int], Meaning], error: ShardprepError
) -> tuple[str, str]:
    """Return whether the error is needed, and what is wrong with it or ""."""
    text = str(error)
    if "\n" in text or not error.hint:
        return "bad line", "not one line that says what to do"
    rivals = [one.rivals for one in meant.values() if one.rivals]
    if "fits several images" in text and sum(key in text for key in layout.images) < 2:
        return "bad line", "two images are not shown"
    reached = Counter(key for one in meant.values() if len(one.images) == 1 for key in one.images)
    reached.pop(_MISSING, None)
    is_twice = layout.use in ("labels", "relabel") and any(n > 1 for n in reached.values())
    is_open = any(len(one.images) > 1 for one in meant.values())
    has_none = any(
        all(meant[number, i].images == {_MISSING} for i in range(len(one.rows)))
        for number, one in enumerate(layout.tables)
    )
    if rivals or is_twice or is_open or has_none:
        return "refused as it must or may be", ""
    return "refused without need", ""


def _reached(layout: Layout, made: Catalog) -> dict[str, list[str]]:
    """Return the labels, boxes or rows of each image that is stored."""
    if layout.use == "boxes":
        names = made.annotations.names if made.annotations else ()
        return {
            item.key: [names[i] for i in item.annotation.labels] if item.annotation else []
            for item in made.items
        }
    if layout.use == "rows":
        place = [one.name for one in made.columns].index("rows/value")
        return {
            item.key: [
                one.decode() if isinstance(one, bytes) else str(one)
                for one in item.columns[place]  # type: ignore[union-attr]
            ]
            for item in made.items
        }
    return {
        item.key: [] if item.target is None else [made.label_names[item.label]]
        for item in made.items
    }


def _compared(
    layout: Layout, meant: dict[tuple[int, int], Meaning], made: Catalog
) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each fault: a wrong label, or a row or image in no count."""
    reached = _reached(layout, made)
    skipped = {one.key for one in made.skipped}
    for key in layout.images:
        if (key in reached) == (key in skipped):
            yield "silent loss", f"{key} is both or neither of stored and skipped"
    for item in made.items:
        if item.split != (layout.images[item.key] or "train"):
            yield "wrong split", f"{item.key} is in {item.split}"
    if layout.use == "auto":
        yield from _compared_classes(layout, meant, made, reached)
        return
    image_of = {label: key for key, labels in reached.items() for label in labels}
    lost = Counter(made.rows_without_image)
    if made.annotations is not None:
        lost.update(made.annotations.without_image)
    for (number, i), one in meant.items():
        row = layout.tables[number].rows[i]
        image = image_of.get(row.label, _MISSING)
        if image not in one.images:
            rivals = f", or an error between {one.rivals}" if one.rivals else ""
            wanted = " or ".join(key or "no image" for key in one.images)
            kind = "wrong label" if image or rivals else "missed row"
            yield kind, f"row {row} reached {image or 'no image'}, not {wanted}{rivals}"
        elif not image and not any(name in lost for name in (row.id, _plain(row.id))):
            yield "silent loss", f"row {row} is in no count"


def _plain(text: str) -> str:
    return text.replace("\\", "/")


def _compared_classes(
    layout: Layout,
    meant: dict[tuple[int, int], Meaning],
    made: Catalog,
    reached: dict[str, list[str]],
) -> Iterator[tuple[str, str]]:
    """Yield the faults of `auto`, which may pass over a table if it says so."""
    allowed: dict[str, set[str]] = {key: set() for key in layout.images}
    said = " ".join([made.labels_from, *made.findings])
    for (number, i), one in meant.items():
        table = layout.tables[number]
        for key in one.images | {*one.rivals}:
            if key:
                allowed[key].add(table.rows[i].label)
        (key,) = one.images if len(one.images) == 1 else (_MISSING,)
        if key and not reached.get(key) and table.path not in said:
            yield "silent loss", f"{table.path} labels {key}, and nothing says that it is not used"
    for key, labels in reached.items():
        for label in labels:
            if label not in allowed[key]:
                yield "wrong label", f"{key} is {label}, not {sorted(allowed[key])}"


def try_number(number: int, seed: int = 0) -> Tally:
    """Return how the layout of this number ends."""
    with tempfile.TemporaryDirectory() as folder:
        return try_layout(make_layout(random.Random(f"{seed} {number}")), Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.catalog.id_layouts", description=__doc__)
    parser.add_argument("number", type=int, nargs="?", default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=5, help="faults to print")
    given = parser.parse_args()
    start, tally = time.monotonic(), Tally()
    with multiprocessing.Pool() as pool:
        some = pool.imap(partial(try_number, seed=given.seed), range(given.number), chunksize=20)
        for one in some:
            tally.add(one)
    for text in tally.faults[: given.show]:
        sys.stdout.write(text + "\n\n")
    for kind, count in tally.counts.most_common():
        sys.stdout.write(f"{count:>8,} {kind}\n")
    took = time.monotonic() - start
    sys.stdout.write(f"{given.number:,} layouts, {len(tally.faults):,} with faults, {took:.0f} s\n")


if __name__ == "__main__":
    main()
