"""Datasets that earlier versions built are read by this one: readers, verify, diff, repack."""

import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardprep
from shardprep import reader
from shardprep.dataset.manifest import load_manifest
from shardprep.errors import DatasetError
from shardprep.recipe.recipe import stored_recipe
from tests.support.command import run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

HERE = Path(__file__).parent
PICTURES = ("image", "images", "segmentation_mask", "target_image")
ARCHIVES = sorted(HERE.glob("*.tar.xz"))
UNFINISHED = "unfinished"


def _content(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return sorted({name.partition("/")[0] for name in tar.getnames()})


CONTENT = {path: _content(path) for path in ARCHIVES}
SETS = [
    pytest.param(path, name, id=f"{path.name.partition('.')[0]}-{name}")
    for path, names in CONTENT.items()
    for name in names
    if name != UNFINISHED
]


@pytest.fixture(name="frozen", scope="session")
def _frozen(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """Return the unpacked folder of each archive; read only."""
    found = {}
    for path in ARCHIVES:
        found[path] = tmp_path_factory.mktemp("frozen")
        _unpack(path, found[path])
    return found


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


@pytest.fixture(name="dataset")
def _dataset(frozen: dict[Path, Path], archive: Path, name: str) -> Path:
    return frozen[archive] / name


def examples(dataset: Path, split: str) -> list[dict[str, Any]]:
    """Return the features of each record in file order, as TensorFlow parses them."""
    tf = pytest.importorskip("tensorflow")
    found = []
    for shard in sorted(dataset.glob(f"*-{split}.tfrecord-*")):
        for data in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            features = tf.train.Example.FromString(data).features.feature
            found.append({key: _values(one) for key, one in features.items()})
    return found


def _values(feature: Any) -> list[Any]:
    return list(getattr(feature, feature.WhichOneof("kind") or "int64_list").value)


def pixels_of(data: bytes, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return the pixels of a stored image as TensorFlow decodes them."""
    tf = pytest.importorskip("tensorflow")
    if data.startswith(b"\xff\xd8"):
        return np.asarray(tf.io.decode_jpeg(data, 3, dct_method="INTEGER_ACCURATE"))
    if data.startswith(b"\x89P"):
        return np.asarray(tf.io.decode_png(data, shape[-1], dtype))
    return np.frombuffer(data, np.uint8).reshape(shape)


@pytest.mark.parametrize(("archive", "name"), SETS)
def test_tfds_and_both_readers_read_the_records_that_tensorflow_reads(dataset: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    facts, builder = shardprep.inspect(dataset), tfds.builder_from_directory(dataset)
    assert builder.info.splits.keys() == facts.manifest.splits.keys()
    for split, info in builder.info.splits.items():
        expected = examples(dataset, split)
        assert len([*builder.as_dataset(split=split)]) == info.num_examples == len(expected)
        by_number = reader.Dataset(dataset, split, as_supervised=False)
        by_graph = list(
            reader.load(
                dataset, split, batch_size=None, shuffle=False, as_supervised=False
            ).as_numpy_iterator()
        )
        assert len(by_number) == len(by_graph) == len(expected)
        for record, item, element in zip(expected, by_number, by_graph, strict=True):
            for found in (item, element):
                _check(found, record)


def _check(found: dict[str, Any], record: dict[str, Any]) -> None:
    for name, values in record.items():
        one = found[name]
        if name in PICTURES:
            pixels = one if name == "images" or len(values) > 1 else [one]
            for stored, seen in zip(values, pixels, strict=True):
                # JPEGs are decoded by libraries that round differently.
                apart = seen.astype(int) - pixels_of(stored, seen.shape, seen.dtype)
                assert np.abs(apart).max() <= (name == "image"), name
        elif name == "labels":
            assert np.flatnonzero(one).tolist() == values
        elif name != "objects/mask":
            wanted = [_text(value) for value in values]
            if np.asarray(one).dtype.kind in "fb":  # records have doubles, and 0 and 1 for flags
                wanted = np.array(wanted, np.asarray(one).dtype).tolist()
            flat = [_text(value) for value in np.ravel(one).tolist()]
            if name == "texts":
                flat = [value for value in flat if value]  # padded with ""
            assert repr(flat) == repr(wanted), name  # NaN is equal to NaN


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize(("archive", "name"), SETS)
def test_the_commands_read_it(dataset: Path) -> None:
    assert shardprep.verify(dataset, decode=True).problems == ()
    assert shardprep.diff(dataset, dataset).is_equal
    assert (
        shardprep.report(dataset).num_records
        == shardprep.inspect(dataset).manifest.totals.num_written
    )


@pytest.mark.parametrize(("archive", "name"), SETS)
def test_the_recorded_recipe_is_equal_and_repack_keeps_the_items(
    dataset: Path, tmp_path: Path
) -> None:
    """Options that are newer than the dataset do not count if they have their default."""
    options = load_manifest(dataset).fingerprint.options
    assert stored_recipe({**options, "source": "x.zip"}).fingerprint_options() == options
    packed = shardprep.repack(dataset, out=tmp_path / "out", name="packed", shards=1)
    assert shardprep.verify(packed.path, decode=True).problems == ()
    changes = shardprep.diff(dataset, packed.path)
    assert (changes.num_same, changes.changes.num_rows) == (changes.num_before, 0)


@pytest.mark.parametrize(
    "archive", [path for path, names in CONTENT.items() if "multilabel" in names]
)
def test_a_repack_adds_the_columns_that_only_records_had(
    archive: Path, frozen: dict[Path, Path], tmp_path: Path
) -> None:
    old = frozen[archive] / "multilabel"
    with pytest.raises(DatasetError, match=r"no column 'age': an earlier .* repack` adds"):
        reader.select(old, "train", where="age > 3")
    packed = shardprep.repack(old, out=tmp_path / "out", name="packed", shards=1)
    stored = {
        str(one["image/filename"]): one
        for one in reader.Dataset(old, "train+test", as_supervised=False)
    }
    for row in reader.table(packed.path).to_pylist():
        one = stored[row["key"]]
        assert row["note"] == (str(one["note"]) or None)
        assert row["age"] == (int(one["age"]) if one.get("age/present", 1) else None)
    some = reader.select(packed.path, "train", where="age is not None")
    assert len(some) > 0


@pytest.mark.parametrize(
    "archive",
    [path for path, names in CONTENT.items() if UNFINISHED in names],
    ids=lambda path: path.name.partition(".")[0],
)
def test_an_unfinished_build_goes_on_or_says_in_one_line_why_not(
    archive: Path, tmp_path: Path
) -> None:
    _unpack(archive, tmp_path)
    place = tmp_path / "unfinished"
    options = ("--shards", "4", "--max-rejected", "0.5", "--out", "half", "--part", "2/2")
    went_on = run("build", "half.zip", *options, cwd=place)
    if went_on.returncode == 0:
        assert run("finalize", "half/half", cwd=place).returncode == 0
        assert shardprep.verify(place / "half", decode=True).problems == ()
        return
    assert went_on.returncode == 1
    assert len(went_on.stderr.splitlines()) == 1
    assert re.search(
        r"begun with other .*shardprep \(0\.1\.0, now .*remove the folder", went_on.stderr
    )
