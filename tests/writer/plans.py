"""Golden plans: sources of every kind, and a hash of the plan of each.

`python -m tests.writer.plans` writes `tests/writer/plans.json`; only a change that means to plan
otherwise may do that.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import shlex
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.made_zip import write_made_zip
from shardprep.catalog.items import Item
from shardprep.errors import ShardprepError, name_options_as_flags
from shardprep.image.annotation_types import IS_CROWD, Annotation
from shardprep.source.byte_range import PlainExtent, RefusedExtent, ZipExtent
from shardprep.writer.plan import near_copies, source_plan
from shardprep.writer.plan.build_plan import BuildPlan
from shardprep.writer.plan.shard_plan import Part, ShardPlan
from shardprep.writer.plan.source_plan import make_plan
from tests.support.annotated import outlined
from tests.support.builders import (
    animals,
    handing_over,
    in_process,
    png,
    tar_bytes,
    write,
    write_folder,
    zip_bytes,
)
from tests.support.command import invoke
from tests.support.layouts import LAYOUTS, write_source
from tests.support.paths import DATA

HASHES = Path(__file__).parents[1] / "writer" / "plans.json"
MANY = 70_000
"""Members of the sources that are a directory alone: more than a plan hashes at once."""


class Case(NamedTuple):
    """A source, and the flags that it is planned with."""

    write: Callable[[Path], str]
    flags: str
    needs: str = ""
    """A module without which it cannot be read."""


_PIXELS = [png(8, 8, seed) for seed in range(12)]


def _rich() -> dict[str, bytes]:
    """Return 48 images in folders of splits, classes and patients, and tables on them."""
    keys = [
        f"{split}/{name}/p{number % 7}_{number:02d}.png"
        for split, count in (("train", 9), ("val", 4), ("test", 3))
        for name in ("cat", "dog", "Été")
        for number in range(count)
    ]
    members = {key: _PIXELS[i % 12] for i, key in enumerate(keys)}
    rows = ["file,label,tags,age,ratio,note,patient,Usage"]
    for i, key in enumerate(keys[:-4]):
        age, ratio, note = "" if i % 9 == 4 else i % 80, f"{i / 7:.3f}", f' "n, {i % 5}"'
        tags = ("red blue", "blue", "red green", "green blue red")[i % 4]
        use = ("Public", "Private", "")[i % 3]
        name = key if i % 2 else key.rpartition(".")[0]
        rows.append(f"{name},c{i % 4},{tags},{age},{ratio},{note}, q{i % 6} ,{use}")
    members["table.csv"] = "\n".join([*rows, "train/cat/gone,c9,red,,,,,", ""]).encode()
    members["more.csv"] = "".join(f"q{i},{i % 2},0{i}\n" for i in range(6)).join(
        ("patient,sex,code\n", "")
    ).encode()  # fmt: skip
    members["hot.csv"] = "".join(
        f"{key},{i % 2},{(i + 1) % 2},{i % 3 // 2}\n" for i, key in enumerate(keys)
    ).join(("file,one,two,three\n", "")).encode()  # fmt: skip
    members["out.txt"] = "\n".join(keys[3:9]).encode()
    members["list_test.txt"] = "\n".join(keys[::5]).encode()
    members["list_train.txt"] = "\n".join(key for i, key in enumerate(keys) if i % 5).encode()
    members["notes/._junk.png"] = members["notes/read me.txt"] = b"nothing"
    return members


def _flat() -> dict[str, bytes]:
    """Return images of the same names in several folders, and a table of their paths."""
    keys = [f"{folder}/{number}.jpg" for folder in ("a/x", "a/y", "b/x") for number in range(8)]
    images = dict(zip(keys, animals(24).values(), strict=True))
    rows = "".join(f"{key if '/x' in key else key[2:]},{i % 3}\n" for i, key in enumerate(keys))
    return {**images, "labels.csv": f"id,target\n{rows}".encode()}


def _outlined() -> dict[str, bytes]:
    return outlined({f"images/{i}.png": png(60, 80, i) for i in range(14)})


def _yolo() -> dict[str, bytes]:
    found: dict[str, bytes] = {"data.yaml": b"names: [cell, dust]\n"}
    for i in range(10):
        split = "train" if i < 7 else "val"
        found[f"images/{split}/{i}.png"] = png(20, 20, i)
        lines = "".join(f"{j % 2} 0.5 0.{j + 3} 0.2 0.2\n" for j in range(i % 3))
        if i != 5:
            found[f"labels/{split}/{i}.txt"] = lines.encode()
    return found


def _voc() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for i in range(8):
        found[f"JPEGImages/{i}.png"] = png(20, 20, i)
        objects = "".join(
            f"<object><name>{'cell' if j else 'dust'}</name><bndbox><xmin>{j + 1}</xmin><ymin>2"
            "</ymin><xmax>12</xmax><ymax>15</ymax></bndbox></object>"
            for j in range(i % 3)
        )
        size = "<size><width>20</width><height>20</height><depth>3</depth></size>"
        text = f"<annotation><filename>{i}.png</filename>{size}{objects}</annotation>"
        found[f"Annotations/{i}.xml"] = text.encode()
    return found


def _nested() -> dict[str, bytes]:
    return {
        "train.zip": zip_bytes(animals(20, folder="")),
        "more/val.tar": tar_bytes(animals(6, folder="v/")),
        "test.tar.gz": tar_bytes(animals(4, folder="t/"), "gz"),
        "odd\\name/./1.png": _PIXELS[0],
        "empty.png": b"",
    }


def _zip(members: Callable[[], Mapping[str, bytes]]) -> Callable[[Path], str]:
    return lambda folder: write(folder / "set.zip", zip_bytes(members())).name


def _tar(folder: Path) -> str:
    return write(folder / "set.tar.gz", tar_bytes(_rich(), "gz")).name


def _folder(folder: Path) -> str:
    return write_folder(folder / "set", {**_rich(), **_nested()}).name


def _volumes(folder: Path) -> str:
    data = zip_bytes(animals(20))
    for i in range(3):
        write(folder / f"set.zip.{i + 1:03d}", data[i * 9000 : (i + 1) * 9000 if i < 2 else None])
    return "set.zip.001"


def _many(image_bytes: int) -> Callable[[Path], str]:
    return lambda folder: write_made_zip(folder / "many.zip", MANY, image_bytes).name


SOURCES: dict[str, Callable[[Path], str]] = {
    "zip": _zip(_rich),
    "folder": _folder,
    "tar": _tar,
    "volumes": _volumes,
    "nested": _zip(_nested),
    "flat": _zip(_flat),
    "outlined": _zip(_outlined),
    "yolo": _zip(_yolo),
    "voc": _zip(_voc),
    "many": _many(60),
    "many large": _many(600_000),
}
CASES = {
    layout.id: Case(functools.partial(write_source, layout), layout.flags, layout.needs)
    for layout in LAYOUTS
} | {
    name: Case(SOURCES[source], flags)
    for source, cases in tomllib.loads((DATA / "plans.toml").read_text("utf-8")).items()
    for name, flags in cases.items()
}

_NEWER = (
    "ids_are_values", "unmatched", "keypoints", "points", "has_relative_points", "lost_points",
)  # fmt: skip
"""Fields that facts have since the hashes were made, which count where they are filled."""


def planned(case: Case, folder: Path) -> BuildPlan | str:
    """Return the plan of a case, made in an empty folder, or the error that it ends with."""
    plans: list[BuildPlan] = []

    def kept(*arguments: Any) -> BuildPlan:
        plans.append(make_plan(*arguments))
        return plans[-1]

    arguments = ["build", case.write(folder), *shlex.split(case.flags), "--dry-run", "--json"]
    with (
        contextlib.chdir(folder),
        mock.patch.object(source_plan, "make_plan", kept),
        mock.patch.object(near_copies, "run_chunks", handing_over(in_process)),
        mock.patch.dict("os.environ", {"SHARDPREP_CACHE": str(folder / "cache")}),
    ):
        done = invoke(*arguments)
    if isinstance(done.exception, ShardprepError):
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return plans[0]


def digest(plan: BuildPlan | str, *, has_sizes: bool = False) -> str:
    """Return the hash of a plan and of one of its parts; the text of an error is its hash.

    Sizes and checksums of members depend on the versions of what has packed and drawn them; they
    count with `has_sizes`.
    """
    if isinstance(plan, str):
        return plan
    found = hashlib.sha256()
    for shard in (*plan.shards, *plan.of_part(Part(2, 3)).shards):
        _add_shard(found, shard, has_sizes=has_sizes)
    for one in plan.skipped:
        found.update(repr((one.key, one.reason, one.detail)).encode())
    facts = (
        plan.name, plan.schema.dumps(), plan.labels_from, plan.rows_without_image, plan.columns,
        plan.findings, plan.num_items, _plain(plan.annotations), plan.near_copies,
        plan.estimated_bytes if has_sizes else 0,
    )  # fmt: skip
    found.update(repr(facts).encode())
    return found.hexdigest()


def _add_shard(found: Any, shard: ShardPlan, *, has_sizes: bool) -> None:
    found.update(repr((shard.name, shard.split, len(shard.items))).encode())
    for item in shard.items:
        found.update(repr(_facts(item, has_sizes=has_sizes)).encode())


def _facts(item: Item, *, has_sizes: bool) -> tuple[object, ...]:
    beside = item.target, item.strata, item.group, item.columns, _plain(item.annotation)
    masks = [(mask.key, *_place(mask.extent, has_sizes=has_sizes)) for mask in item.companions]
    place = _place(item.extent, has_sizes=has_sizes)
    return item.key, *place, item.split, type(item.target).__name__, *beside, masks


def _place(extent: object, *, has_sizes: bool) -> tuple[object, ...]:
    """Return the place of the bytes of an item, without the folder that it is planned in."""
    assert isinstance(extent, PlainExtent | ZipExtent | RefusedExtent)
    if isinstance(extent, RefusedExtent):
        return "refused", *((extent.num_bytes, extent.reason) if has_sizes else ())
    numbers = tuple(extent[1:]) if has_sizes else ()
    return type(extent).__name__, Path(extent.file).name, numbers


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        names = [name for name in names if name not in _NEWER or _plain(getattr(value, name))]
        return type(value).__name__, *(_field(value, name) for name in names)
    if isinstance(value, dict):
        return [(_plain(key), _plain(one)) for key, one in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(_plain, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


def _field(value: Any, name: str) -> tuple[str, Any]:
    """Return a field; the attribute `is_crowd` was a field when the hashes were made."""
    found = getattr(value, name)
    if name == "attributes" and {*found} <= {IS_CROWD}:
        return "crowds", _plain(value.crowds if isinstance(value, Annotation) else bool(found))
    return name, _plain(found)


def hashes(*, has_sizes: bool = False) -> dict[str, str]:
    """Return the hash of the plan of each case that can be read here."""
    found = {}
    for name, case in CASES.items():
        if case.needs and importlib.util.find_spec(case.needs) is None:
            continue
        with TemporaryDirectory() as folder:
            sizes = has_sizes or name.startswith("many")
            found[name] = digest(planned(case, Path(folder)), has_sizes=sizes)
    return found


if __name__ == "__main__":
    name_options_as_flags()  # as in the tests
    HASHES.write_text(json.dumps(hashes(), indent=1) + "\n", encoding="utf-8")
