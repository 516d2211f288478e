"""What every kind of feature promises: it is built, read, moved, verified, exported and compared.

A further kind needs a row in `sets`, and no test of its own for what all kinds have in common.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardprep
from shardprep import reader
from shardprep.dataset.folder import read_schema
from shardprep.dataset.item_table import read_items
from shardprep.errors import RecipeError
from shardprep.verifier.examples import ExampleCheck
from tests.kinds.sets import COMPLETE, HEIGHT, KINDS, NUMBER, Kind, Values, in_the_middle, mirrored
from tests.support.builders import build, in_workers, tree, write_folder
from tests.writer.records import records

Built = Callable[[str], Path]
PADDING = {
    "image": 0, "boxes": -1, "labels": -1, "crowds": 0, "masks": 0, "keypoints": -1,
    "keypoints_visible": 0, "segmentation_mask": 255, "rows/p": np.nan, "rows/q": "", "texts": "",
}  # fmt: skip
"""Key → its value in the rows after those of an image."""
_PLACES = ("offset", "length", "mask_key")
each_kind = pytest.mark.parametrize("name", KINDS)
MOVED = [
    name
    for name, kind in KINDS.items()
    if kind.values(0).keys() & {"boxes", "points", "segmentation_mask", "target_image"}
]
"""Kinds whose values follow the pixels."""


@pytest.fixture(name="built", scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return what builds the set of a kind once; nobody changes it."""
    made: dict[str, Path] = {}

    def built(name: str) -> Path:
        if name not in made:
            made[name] = make(KINDS[name], tmp_path_factory.mktemp("kind"))
        return made[name]

    return built


def make(kind: Kind, folder: Path, changed: dict[int, int] | None = None, **keys: Any) -> Path:
    source = write_folder(folder / "source", kind.source(changed))
    return build(source, folder / "out", name="set", **{**COMPLETE, **kind.flags, **keys}).path


def expected(kind: Kind, key: str) -> Values:
    number = next(n for n in range(NUMBER) if kind.name(n) == key)
    return {"image": kind.image(number), **kind.values(number)}


def by_key(element: Any, kind: Kind) -> Values:
    """Return an element as values by key: image, and the target or the parts of the target."""
    image, target = element if isinstance(element, tuple) else (element, {})
    parts = target if isinstance(target, dict) else {next(iter(kind.values(0))): target}
    return {"image": image, **parts}


def check_rows(
    batch: Values, wanted: list[Values], what: object = "", *, padded: bool = True
) -> None:
    """Compare a batch with the values of its images; only rows of `padded` ones may be longer."""
    assert batch.keys() == wanted[0].keys(), what
    for key, column in batch.items():
        assert len(column) == len(wanted)
        for row, values in zip(column, wanted, strict=True):
            check_value(key, row, values[key], what, padded=padded)


def check_value(
    key: str, value: Any, wanted: Any, what: object = "", *, padded: bool = True
) -> None:
    value, wanted = texts(np.asarray(value)), np.asarray(wanted)
    assert value.dtype == wanted.dtype, (key, what)
    if wanted.ndim:
        rest = value[len(wanted) :]
        padding = np.full(rest.shape, PADDING.get(key, 0), rest.dtype)
        assert same(rest, padding), (key, what)
        assert padded or key == "texts" or not len(rest), (key, what)
        value = value[: len(wanted)]
    assert value.shape == wanted.shape, (key, what)
    assert same(value, wanted), (key, what)


def texts(value: Any) -> Any:
    if value.dtype.kind not in "OSU":
        return value
    listed = [one.decode() if isinstance(one, bytes) else str(one) for one in value.ravel()]
    return np.array(listed, object if value.ndim else None).reshape(value.shape)


def same(one: Any, two: Any) -> bool:
    if one.dtype.kind == "f":
        return np.allclose(one, two, atol=1e-6, equal_nan=True)
    return bool(np.array_equal(one, two))


def keys_of(path: Path) -> list[str]:
    return [item["image/filename"] for item in reader.Dataset(path, as_supervised=False)]


@each_kind
def test_both_readers_give_the_values_of_the_source(name: str, built: Built) -> None:
    kind, path = KINDS[name], built(name)
    keys = keys_of(path)
    assert sorted(keys) == sorted(map(kind.name, range(NUMBER)))
    wanted = [expected(kind, key) for key in keys]
    for item, values in zip(reader.Dataset(path), wanted, strict=True):
        found = by_key(item, kind)
        assert found.keys() == values.keys()
        for key, value in found.items():
            check_value(key, value, values[key], "item", padded=False)
    whole: dict[str, Any] = {"batch_size": NUMBER, "shuffle": False}
    (arrays,) = reader.Dataset(path).batches(**whole)
    check_rows(by_key(arrays, kind), wanted, "arrays")
    (lists,) = reader.Dataset(path).batches(ragged=True, **whole)
    check_rows(by_key(lists, kind), wanted, "lists", padded=False)
    for cache in (False, "memory"):
        (loaded,) = reader.load(path, cache=cache, **whole).as_numpy_iterator()
        check_rows(by_key(loaded, kind), wanted, f"load with cache={cache}")


@each_kind
def test_a_crop_and_a_flip_move_what_belongs_to_the_pixels(name: str, built: Built) -> None:
    kind, path = KINDS[name], built(name)
    wanted = [expected(kind, key) for key in keys_of(path)]
    crop: dict[str, Any] = {"batch_size": NUMBER, "shuffle": False, "center_crop": (HEIGHT, HEIGHT)}
    moved = [in_the_middle(values) for values in wanted]
    (arrays,) = reader.Dataset(path).batches(**crop)
    check_rows(by_key(arrays, kind), moved, "arrays")
    (loaded,) = reader.load(path, **crop).as_numpy_iterator()
    check_rows(by_key(loaded, kind), moved, "load")
    if "stack" in kind.flags:
        return
    flip = reader.augment.Flip(1.0, mirrored=(0, 1), mirrored_points=(0, 1))
    (batch,) = reader.load(path, batch_size=NUMBER, shuffle=False)
    flipped = by_key(flip(*batch, seed=(1, 2)), kind)
    check_rows(flipped, [mirrored(values) for values in wanted], "flip")


@pytest.mark.thorough
@each_kind
def test_tfds_reads_the_values_of_the_source(name: str, built: Built) -> None:
    import tensorflow_datasets as tfds

    kind, path = KINDS[name], built(name)
    split = tfds.builder_from_directory(str(path)).as_dataset(split="train")
    keys = {"boxes": "bbox", "labels": "label", "crowds": "is_crowd", "masks": "mask"}
    for example in split.as_numpy_iterator():
        wanted = expected(kind, example["image/filename"].decode())
        check_value("image", example.get("image", example.get("images")), wanted.pop("image"))
        for key, value in wanted.items():
            if key == "label" and value.ndim:  # TFDS has the classes, not a flag for each
                assert example["labels"].tolist() == np.flatnonzero(value).tolist()
                continue
            of = key.replace("_visible", "/visible")
            parts = {**example, **example.get("objects", {})}
            found = parts[next(one for one in (keys.get(of, of), f"label/{of}") if one in parts)]
            check_value(key, found[..., 0] if key == "masks" else found, value)


@each_kind
def test_verify_finds_each_value_that_is_lost(name: str, built: Built) -> None:
    path = built(name)
    assert shardprep.verify(path, decode=True, workers=1).problems == ()
    schema = read_schema(path)
    check = ExampleCheck(schema, decode=True)
    record = max(records(path).values(), key=lambda one: sum(map(len, one.values())))
    assert [*check.faults(record, None, 0)] == []
    for feature, one in schema.features.items():
        if one.kind in ("labels", "texts") or len(schema.rows) == 1:
            continue  # any number of values is right
        lost = {**record, feature: record[feature][:-1]}
        assert [*check.faults(lost, None, 0)], f"{feature} without its last value"


@each_kind
def test_reuse_and_repack_keep_the_records(name: str, built: Built, tmp_path: Path) -> None:
    kind, path = KINDS[name], built(name)
    again = make(kind, tmp_path / "again", reuse=path, engine=in_workers)
    one, two = tree(again), tree(path)
    assert one.pop("manifest.json") != two.pop("manifest.json")  # it names source and parent
    assert one == two
    packed = shardprep.repack(path, tmp_path / "packed", shards=2).path
    both = [repr(sorted(records(one).items())) for one in (packed, path)]  # NaN differs from NaN
    assert both[0] == both[1]
    assert shardprep.verify(packed, workers=1).problems == ()


def without_places(table: pa.Table) -> pa.Table:
    """Return an item table without lengths: a float can differ in its last bit."""
    return table.drop_columns([one for one in _PLACES if one in table.column_names])


@pytest.mark.parametrize(
    ("name", "fit"), [*((name, "crop") for name in KINDS), *((name, "pad") for name in MOVED)]
)
def test_repack_gives_another_size_as_a_build_from_the_source_does(
    name: str, fit: str, built: Built, tmp_path: Path
) -> None:
    """The stored images are the PNG files of the source, so nothing is lost on the way."""
    kind, path = KINDS[name], built(name)
    form: dict[str, Any] = {"size": "15x12", "fit": fit}
    fresh = make(kind, tmp_path, engine=in_workers, **form)
    packed = shardprep.repack(path, tmp_path / "packed", workers=1, **form).path
    one, two = records(fresh), records(packed)
    assert one.keys() == two.keys()
    for key, features in one.items():
        assert features.keys() == two[key].keys()
        for feature, values in features.items():
            found = two[key][feature]
            assert (
                found == pytest.approx(values, abs=1e-6, nan_ok=True)
                if (values and isinstance(values[0], float))
                else found == values
            ), feature
    assert read_schema(packed) == read_schema(fresh)
    tables = (read_items(folder / "items.parquet") for folder in (fresh, packed))
    assert len({repr(without_places(table).to_pylist()) for table in tables}) == 1
    assert shardprep.verify(packed, decode=True, workers=1).problems == ()
    changes = shardprep.diff(path, packed).num_changes
    assert {name for name, number in changes.items() if number} <= {
        *("record", "objects", "mask", "feature")
    }


@each_kind
def test_diff_names_the_image_whose_values_changed(name: str, built: Built, tmp_path: Path) -> None:
    kind = KINDS[name]
    changed = make(kind, tmp_path, {1: NUMBER + 1}, reuse=built(name))
    found = shardprep.diff(built(name), changed)
    assert (found.num_same, found.num_before) == (NUMBER - 1, NUMBER)
    assert {one.key for kind_of in found.num_changes for one in found.some(kind_of, 9)} == {
        kind.name(1)
    }
    own = {one: repr(records(one)[kind.name(2)]) for one in (changed, built(name))}
    assert len({*own.values()}) == 1


@each_kind
def test_an_export_has_every_record_or_is_refused(name: str, built: Built, tmp_path: Path) -> None:
    kind, path = KINDS[name], built(name)
    for layout in ("folder", "parquet", "webdataset"):
        if layout in kind.takes:
            made = shardprep.export(path, to=layout, out=tmp_path / layout)
            assert sum(made.splits.values()) == NUMBER
        else:
            with pytest.raises(RecipeError, match="use folder"):
                shardprep.export(path, to=layout, out=tmp_path / layout)
    shardprep.report(path, output=tmp_path / "report.html")
    assert "findings" in (tmp_path / "report.html").read_text()
