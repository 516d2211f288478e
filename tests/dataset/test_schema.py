"""Schemas, their errors, and datasets that TensorFlow Datasets opens by them."""

import hashlib
import io
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from shardprep.dataset import example
from shardprep.dataset.folder import index_name
from shardprep.dataset.schema import PROVIDED, Schema, load_schema, parse_schema, shipped_schemas
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import SchemaError
from shardprep.writer.finalize import BuildResult
from tests.support import builders
from tests.support.paths import DATA

CLASSIFICATION = load_schema("classification")
VALUES: dict[str, bytes | float | tuple[Any, ...]] = {
    "image": b"pixels",
    "label": 1,
    "labels": (0, 2),
    "target": 0.5,
    "text": b"a cat",
    "targets": (0.5, -1.0),
    "texts": (b"a cat", b"a pet"),
    "image/filename": b"train/cat.0.jpg",
    "image/height": 2,
    "image/width": 3,
    "something/else": 4,
    "objects/bbox": (0.0, 0.25, 0.5, 1.0),
    "objects/label": (1,),
    "objects/is_crowd": (0,),
    "objects/mask": (b"a PNG",),
    "segmentation_mask": b"a PNG",
    "objects/keypoints": (0.25, 0.5),
    "objects/keypoints/visible": (2,),
    "points": (0.25, 0.5),
    "points/visible": (1,),
}


def changed(path: str, value: Any, schema: Schema = CLASSIFICATION, **more: Any) -> str:
    """Return a schema as text, with the values at dotted paths set."""
    document = json.loads(schema.dumps())
    for dotted, one in {path: value, **more}.items():
        *above, last = dotted.split(".")
        place = document
        for key in above:
            place = place[key]
        place[last] = one
    return json.dumps(document)


# --- the schema ---------------------------------------------------------------------------------


def test_a_schema_is_shipped_for_every_kind_of_target() -> None:
    targets = {
        "classes": None,
        "classification": "label",
        "detection": "objects",
        "instances": "objects",
        "keypoints": "objects",
        "multilabel": "labels",
        "points": "points",
        "regression": "target",
        "segmentation": "segmentation_mask",
        "soft": "targets",
        "text": "text",
        "texts": "texts",
        "unlabelled": None,
        "vector": "targets",
    }
    assert list(shipped_schemas()) == list(targets)
    assert {name: load_schema(name).supervised for name in targets} == targets


@pytest.mark.parametrize("name", shipped_schemas())
def test_a_shipped_schema_is_documented_provided_and_equal_after_a_round_trip(name: str) -> None:
    schema = load_schema(name)
    assert all(feature.doc for feature in schema.features.values())
    assert schema.features.keys() <= PROVIDED.keys()
    labels, columns = ("cat", "Hund", "猫", 'quo"ted'), {"age": "float32", "note": "bytes"}
    assert schema.name == name
    for one in (
        schema,
        schema.filled((24, 32), "raw", labels, {}),
        schema.filled(None, "jpeg", labels, columns),
    ):
        assert parse_schema(one.dumps(), "it") == one


def test_filling_sets_size_encoding_and_labels_and_leaves_the_template() -> None:
    before = CLASSIFICATION.dumps()
    varying = CLASSIFICATION.filled(None, "jpeg", (), {})
    assert (varying.image.shape, varying.image_size) == ((None, None, 3), None)
    schema = CLASSIFICATION.filled((24, 32), "png", ("cat", "dog"), {})
    assert (schema.image.shape, schema.image.encoding) == ((24, 32, 3), "png")
    assert (schema.image_size, schema.labels) == ((24, 32), ("cat", "dog"))
    assert schema.features.keys() == CLASSIFICATION.features.keys()
    assert CLASSIFICATION.dumps() == before


def test_columns_become_features_by_their_dtype() -> None:
    columns = {"age": "float32", "size": "int64", "note": "bytes"}
    features = CLASSIFICATION.filled(None, "jpeg", (), columns).features
    assert features.keys() == CLASSIFICATION.features.keys() | columns.keys()
    assert {name: (features[name].kind, features[name].dtype) for name in columns} == {
        "age": ("scalar", "float32"),
        "size": ("scalar", "int64"),
        "note": ("text", "bytes"),
    }


def test_boxes_and_masks_are_added_to_a_schema_with_names_of_their_own() -> None:
    """Classes of images, of objects and of pixels are three lists."""
    added: dict[str, tuple[str, ...]] = {
        "objects/bbox": (),
        "objects/label": ("wheel", "door"),
        "segmentation_mask": ("road", "sky", "car"),
    }
    schema = CLASSIFICATION.filled((24, 32), "jpeg", ("day", "night"), {"age": "float32"}, added)
    assert schema.features.keys() == CLASSIFICATION.features.keys() | added.keys() | {"age"}
    assert list(schema.annotations) == list(added)
    assert schema.labels == ("day", "night")
    assert {name: one.labels for name, one in schema.annotations.items()} == added
    assert schema.features["segmentation_mask"].shape == (24, 32, 1)
    assert (schema.target, schema.supervised) == ("label", "objects")
    assert parse_schema(schema.dumps(), "it") == schema


def test_features_without_values_in_the_source_are_left_out() -> None:
    """Some sources do not mark crowds."""
    schema = load_schema("instances").filled(
        None, "jpeg", (), {}, {"objects/bbox": (), "objects/label": ("cat",)}
    )
    assert list(schema.annotations) == ["objects/bbox", "objects/label"]


def test_a_schema_without_boxes_and_masks_is_written_as_it_always_was() -> None:
    for name in ("classification", "multilabel"):
        document = json.loads(load_schema(name).filled(None, "jpeg", ("cat",), {}).dumps())
        keys = {"kind", "dtype", "shape", "encoding", "doc"}
        assert {frozenset(feature) for feature in document["features"].values()} == {
            frozenset(keys)
        }


@pytest.mark.parametrize(
    ("number", "dtype", "ignored"), [(2, "uint8", 255), (254, "uint8", 255), (255, "uint16", 65535)]
)
def test_a_mask_has_16_bits_where_8_do_not_hold_its_classes(
    number: int, dtype: str, ignored: int
) -> None:
    names = tuple(map(str, range(number)))
    schema = load_schema("segmentation").filled(None, "jpeg", (), {}, {"segmentation_mask": names})
    mask = schema.features["segmentation_mask"]
    assert (mask.pixel_dtype, mask.ignored) == (dtype, ignored)


@pytest.mark.parametrize("name", shipped_schemas())
def test_an_example_holds_just_the_features_of_the_schema(name: str) -> None:
    schema = load_schema(name)
    values = {name: VALUES[name] for name in schema.features}
    expected = {name: list(v) if isinstance(v, tuple) else [v] for name, v in values.items()}
    assert example.decode(schema.encode(VALUES)) == expected
    if "labels" in values:
        assert example.decode(schema.encode({**VALUES, "labels": ()}))["labels"] == []


def test_the_schema_of_a_build_is_the_one_it_was_written_by(tmp_path: Path) -> None:
    source = builders.write_folder(tmp_path / "pets", builders.animals(2))
    result = builders.build(source, tmp_path / "out", size="16x12")
    schema = load_schema(str(result.path / "schema.json"))
    assert schema == CLASSIFICATION.filled((12, 16), "jpeg", ("cat", "dog"), {})


# --- its errors ---------------------------------------------------------------------------------

SCALAR, TEXT = {"kind": "scalar", "dtype": "float32"}, {"kind": "text", "dtype": "bytes"}


BAD = tomllib.loads((DATA / "schemas.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        *BAD["texts"],
        *(
            (changed(path, value, load_schema(name)), said)
            for name in ("classification", "instances")
            for path, value, said in BAD[name]
        ),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused_by_the_name_of_the_field(
    tmp_path: Path, text: str, names: str
) -> None:
    path = builders.write(tmp_path / "mine.json", text.encode("latin-1"))
    with pytest.raises(SchemaError) as caught:
        load_schema(str(path))
    line = str(caught.value)
    assert names in line
    assert line.startswith(f"{path}: ")
    assert ": : " not in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "faults",
    [
        {
            "labels": (3, "labels: "),
            "features.label.dtype": ("int32", "features.label.dtype: "),
            "features.image.kind": (None, "features.image.kind: "),
        },
        {
            "features.image/depth": (SCALAR, "'image/depth'"),
            "features.image/date": (TEXT, ", ".join(sorted(PROVIDED))),
            "features.image/hour": (TEXT, "'image/hour'"),
        },
        {
            "features.label.kind": ("text", "features.label"),
            "features.image/height.dtype": ("bytes", "features.image/height"),
            "features.depth": (
                {"kind": "image", "dtype": "bytes", "shape": [1, 1, 3]}, "features.depth"
            ),
        },
    ],
    ids=["rules", "features without values", "kinds"],
)  # fmt: skip
def test_several_faults_are_named_at_once(tmp_path: Path, faults: dict[str, Any]) -> None:
    first, *_ = faults
    values = {path: value for path, (value, _) in faults.items()}
    text = changed(first, values.pop(first), **values)
    with pytest.raises(SchemaError) as caught:
        load_schema(str(builders.write(tmp_path / "mine.json", text.encode())))
    for _, said in faults.values():
        assert said in str(caught.value)


@pytest.mark.parametrize("name", ["", "nothing", "no/such/file.json", "/"])
def test_the_error_of_an_unknown_schema_lists_the_shipped_schemas(name: str) -> None:
    with pytest.raises(SchemaError, match="a JSON file or one of classes, classification, "):
        load_schema(name)


# --- TensorFlow Datasets ------------------------------------------------------------------------

NAMES = ("cat", "dog")
PETS = {
    **builders.animals(7, folder="größe 1/train/"),
    "größe 1/train/dog.9.png": builders.png(seed=9),
    "größe 1/test/1.jpg": builders.jpeg(seed=10),
    "größe 1/test/2.png": builders.png(seed=11),
}
ROWS: dict[str, tuple[str, float, str, str, int]] = {
    "a": ("cat dog", 1.5, "eins, zwei", "cat", 3),
    "b": ("dog", 2, "größe", "dog", 4),
    "c": ("bird", -(2.0**70), "x", "cat", 5),
    "d": ("cat bird", 0.25, "vier", "dog", -6),
}
TABLE = "id,tags,age,note,kind,size\n" + "".join(
    f'{key},{tags},{age},"{note}",{kind},{size}\n'
    for key, (tags, age, note, kind, size) in ROWS.items()
)
WITH_TABLE = {
    **{f"train/{name}.jpg": builders.jpeg(seed=seed) for seed, name in enumerate("abcd")},
    "test/e.jpg": builders.jpeg(seed=8),
    "labels.csv": TABLE.encode(),
}
SMALL: dict[str, Any] = {"size": "16x12"}
BUILDS: dict[str, tuple[dict[str, bytes], dict[str, Any]]] = {
    "jpeg": (PETS, SMALL),
    "unlabelled png": (PETS, {**SMALL, "format": "png", "labels": "none"}),
    "raw": (PETS, {**SMALL, "format": "raw"}),
    "keep": (PETS, {"format": "keep"}),
    "within, sharded": (PETS, {**SMALL, "fit": "within", "shards": 3}),
    "multilabel": (
        WITH_TABLE,
        {**SMALL, "labels": "csv:labels.csv:id:tags", "target": "multilabel"},
    ),
    "regression": (
        WITH_TABLE,
        {**SMALL, "labels": "csv:labels.csv:id:age", "target": "regression"},
    ),
    "text": (WITH_TABLE, {**SMALL, "labels": "csv:labels.csv:id:note", "target": "text"}),
    "columns": (
        WITH_TABLE,
        {**SMALL, "labels": "csv:labels.csv:id:kind", "columns": "age,note,size"},
    ),
}
TARGETS: dict[str, dict[str, dict[str, Any]]] = {
    "jpeg": {
        stem: {"label": NAMES.index(stem[:3]) if stem[:3] in NAMES else -1}
        for stem in (Path(key).stem for key in PETS)
    },
    "multilabel": {
        key: {"labels": sorted(("bird", "cat", "dog").index(tag) for tag in tags.split())}
        for key, (tags, *_) in ROWS.items()
    }
    | {"e": {"labels": []}},
    "regression": {key: {"target": age} for key, (_, age, *_) in ROWS.items()}
    | {"e": {"target": None}},
    "text": {key: {"text": note} for key, (_, _, note, *_) in ROWS.items()} | {"e": {"text": ""}},
    "columns": {
        key: {"label": NAMES.index(kind), "age": age, "note": note, "size": size}
        for key, (_, age, note, kind, size) in ROWS.items()
    }
    | {"e": {"label": -1, "age": None, "note": ""}},
}
"""Build → stem of the file name → expected values; None is NaN."""
SUPERVISED: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "multilabel": ("labels", ("bird", "cat", "dog")),
    "regression": ("target", ()),
    "text": ("text", ()),
    "unlabelled png": (None, ()),
}
"""Build → supervised feature and class names; others have `label` and `NAMES`."""


def make(name: str, folder: Path) -> BuildResult:
    members, keys = BUILDS[name]
    source = builders.write_folder(folder / "source", members)
    return builders.build(source, folder / "out", name="pets", **keys)


Row = dict[str, Any]
"""An example in plain Python: an image is its shape and its bytes, a text is str, NaN is None."""


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if value.ndim == 3:
        return value.shape, value.tobytes()
    return None if value.dtype.kind == "f" and value != value else value.tolist()  # noqa: PLR0124


def by_filename(records: Iterable[dict[str, Any]]) -> list[Row]:
    rows = [{name: plain(value) for name, value in record.items()} for record in records]
    return sorted(rows, key=lambda row: str(row["image/filename"]))


def as_written(result: BuildResult, split: str) -> list[Row]:
    """Return a split as TensorFlow parses it by `schema.json`, without shardprep."""
    import tensorflow as tf

    document = json.loads((result.path / "schema.json").read_text())
    dtypes = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
    spec = {
        name: tf.io.RaggedFeature(tf.int64)
        if name == "labels"
        else tf.io.FixedLenFeature([], dtypes[feature["dtype"]])
        for name, feature in document["features"].items()
    }
    records = []
    shards = [str(path) for path in sorted(result.path.glob(f"pets-{split}.tfrecord*"))]
    for data in tf.data.TFRecordDataset(shards):
        parsed = tf.io.parse_single_example(data, spec)
        shape = (int(parsed["image/height"]), int(parsed["image/width"]), 3)
        if document["features"]["image"]["encoding"] == "raw":
            parsed["image"] = tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), shape)
        else:
            parsed["image"] = tf.io.decode_image(parsed["image"], channels=3)
        assert parsed["image"].shape == shape
        records.append({name: value.numpy() for name, value in parsed.items()})
    return by_filename(records)


@pytest.mark.parametrize("name", BUILDS)
def test_tfds_and_plain_tensorflow_read_the_same_features(tmp_path: Path, name: str) -> None:
    import tensorflow_datasets as tfds

    built = make(name, tmp_path)
    text = (built.path / "schema.json").read_text()
    assert parse_schema(text, "it").dumps() == text
    schema, splits = json.loads(text), built.manifest.splits
    builder = tfds.builder_from_directory(str(built.path))
    info, features = builder.info, tfds.features.FeaturesDict.from_config(str(built.path))
    assert features.keys() == info.features.keys() == schema["features"].keys()
    assert list(features["image"].shape) == schema["features"]["image"]["shape"]
    assert {name: split.num_examples for name, split in info.splits.items()} == {
        name: split.num_records for name, split in splits.items()
    }
    assert info.dataset_size == built.manifest.totals.num_bytes
    target, classes = SUPERVISED.get(name, ("label", NAMES))
    assert info.supervised_keys == (None if target is None else ("image", target))
    if classes:
        feature = info.features[target]
        assert tuple(getattr(feature, "feature", feature).names) == classes
    for split, facts in splits.items():
        rows = as_written(built, split)
        assert len(rows) == facts.num_records > 0
        assert by_filename(builder.as_dataset(split=split).as_numpy_iterator()) == rows
        for row in rows if name in TARGETS else ():
            expected = TARGETS[name][Path(row["image/filename"]).stem]
            assert {key: row[key] for key in expected} == expected


def test_tfds_loads_by_name_and_slices_a_split_by_records(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    built = make("within, sharded", tmp_path)
    splits = ["train", "train[:3]", "train[3:]"]
    whole, *parts = (
        list(one.as_numpy_iterator())
        for one in tfds.load("pets", data_dir=str(built.path.parents[1]), split=splits)
    )
    assert len(parts[0]) == 3
    assert by_filename(whole) == by_filename(parts[0] + parts[1]) == as_written(built, "train")


@pytest.mark.parametrize("odd", ["two words", "größe", "a,b"])
def test_an_odd_class_name_moves_no_other_in_tfds(tmp_path: Path, odd: str) -> None:
    import tensorflow_datasets as tfds

    members = {f"{i}.png": builders.png(seed=i) for i in range(4)}
    rows = "".join(f'{i},"{(odd, "zebra")[i % 2]}"\n' for i in range(4))
    members["labels.csv"] = f"id,label\n{rows}".encode()
    source = builders.write_folder(tmp_path / "source", members)
    result = builders.build(source, tmp_path / "out", name="pets", **SMALL)
    assert result.manifest.labels.names == (odd, "zebra")
    names = tfds.builder_from_directory(str(result.path)).info.features["label"].names
    assert names == [odd, "zebra"]


# --- a shard and its index ----------------------------------------------------------------------


def test_the_manifest_and_the_index_measure_a_shard(tmp_path: Path) -> None:
    members = {f"{name}/{i}.png": builders.png(4, 4, i) for name in "ab" for i in range(2)}
    source = builders.write_folder(tmp_path / "source", members)
    result = builders.build(source, tmp_path / "out", name="tiny", size="4x4", format="raw")
    (shard,) = result.manifest.splits["train"].shards
    data = (result.path / shard.name).read_bytes()
    places = [[one.offset, one.length] for one in read_records(io.BytesIO(data), shard.name)]
    assert (shard.num_records, shard.num_bytes) == (len(places), len(data)) == (4, len(data))
    assert shard.sha256 == hashlib.sha256(data).hexdigest()
    index = (result.path / index_name(shard.name)).read_text()
    assert [[int(number) for number in line.split()] for line in index.splitlines()] == places
