"""One schema for writer, dataset and reader; TensorFlow Datasets opens what it describes."""

from __future__ import annotations

import hashlib
import io
import json
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest

from shardprep.dataset import example
from shardprep.dataset.folder import index_name
from shardprep.dataset.schema import PROVIDED, load_schema, parse_schema, shipped_schemas
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import RecordError, SchemaError
from tests.support import builders

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from shardprep.dataset.manifest import Shard
    from shardprep.dataset.schema import Schema
    from shardprep.writer.finalize import BuildResult

CLASSIFICATION = load_schema("classification")
VALUES: dict[str, bytes | float | tuple[Any, ...]] = {
    "image": b"pixels",
    "label": 1,
    "labels": (0, 2),
    "target": 0.5,
    "text": b"a cat",
    "image/filename": b"train/cat.0.jpg",
    "image/height": 2,
    "image/width": 3,
    "something/else": 4,
    "objects/bbox": (0.0, 0.25, 0.5, 1.0),
    "objects/label": (1,),
    "objects/is_crowd": (0,),
    "objects/mask": (b"a PNG",),
    "segmentation_mask": b"a PNG",
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
        "classification": "label",
        "detection": "objects",
        "instances": "objects",
        "multilabel": "labels",
        "regression": "target",
        "segmentation": "segmentation_mask",
        "text": "text",
        "unlabelled": None,
    }
    assert list(shipped_schemas()) == list(targets)
    assert {name: load_schema(name).supervised for name in targets} == targets


@pytest.mark.parametrize("name", shipped_schemas())
def test_a_schema_survives_its_text(name: str) -> None:
    schema = load_schema(name)
    labels, columns = ("cat", "Hund", "猫", 'quo"ted'), {"age": "float32", "note": "bytes"}
    assert schema.name == name
    for one in (
        schema,
        schema.filled((24, 32), "raw", labels, {}),
        schema.filled(None, "jpeg", labels, columns),
    ):
        assert parse_schema(one.dumps(), "it") == one


@pytest.mark.parametrize("name", shipped_schemas())
def test_every_feature_of_a_shipped_schema_is_documented_and_provided(name: str) -> None:
    features = load_schema(name).features
    assert all(feature.doc for feature in features.values())
    assert features.keys() <= PROVIDED.keys()


def test_a_schema_is_loaded_from_a_file(tmp_path: Path) -> None:
    path = builders.write(tmp_path / "mine.json", changed("name", "mine").encode())
    assert load_schema(str(path)).name == "mine"


def test_filling_sets_size_encoding_and_labels_and_leaves_the_template() -> None:
    before = CLASSIFICATION.dumps()
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


def test_features_of_a_template_that_a_source_has_nothing_for_are_left_out() -> None:
    """Not every source says what is a crowd."""
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
    assert (mask.mask_dtype, mask.ignored) == (dtype, ignored)


def test_images_that_differ_in_size_have_none_in_the_schema() -> None:
    schema = CLASSIFICATION.filled(None, "jpeg", (), {})
    assert (schema.image.shape, schema.image_size) == ((None, None, 3), None)


@pytest.mark.parametrize("name", shipped_schemas())
def test_an_example_holds_just_the_features_of_the_schema(name: str) -> None:
    schema = load_schema(name)
    values = {name: VALUES[name] for name in schema.features}
    expected = {name: list(v) if isinstance(v, tuple) else [v] for name, v in values.items()}
    assert example.decode(schema.encode(VALUES)) == expected


def test_no_class_at_all_is_an_empty_list() -> None:
    data = load_schema("multilabel").encode({**VALUES, "labels": ()})
    assert example.decode(data)["labels"] == []


def test_the_schema_of_a_build_is_the_one_it_was_written_by(tmp_path: Path) -> None:
    source = builders.write_folder(tmp_path / "pets", builders.animals(2))
    result = builders.build(source, tmp_path / "out", size="16x12")
    schema = load_schema(str(result.path / "schema.json"))
    assert schema == CLASSIFICATION.filled((12, 16), "jpeg", ("cat", "dog"), {})


# --- its errors ---------------------------------------------------------------------------------

SCALAR, TEXT = {"kind": "scalar", "dtype": "float32"}, {"kind": "text", "dtype": "bytes"}
LABEL = {"kind": "label", "dtype": "int64"}


def of_objects(path: str, value: Any) -> str:
    """Return a schema of boxes and outlines with another value at a path of "objects/…"."""
    return changed(f"features.objects/{path}", value, load_schema("instances"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "is not JSON"),
        ("[]", "should be an object"),
        ("null", "should be an object"),
        ("{}", "features: Field required"),
        (changed("features", {}), "features: "),
        (changed("features.label.dtype", "int32"), "features.label.dtype: "),
        (changed("features.label.kind", "class"), "features.label.kind: "),
        (changed("features.image.encoding", "webp"), "features.image.encoding: "),
        (changed("features.image.shape", ["a", 1, 3]), "features.image.shape.0: "),
        (changed("features.image.shape", []), "features.image"),
        (changed("features.image.shape", [8, 8]), "features.image"),
        (changed("format_version", 2), "format_version: "),
        (changed("labels", "cat"), "labels: "),
        (changed("feature", {}), "feature: Extra inputs are not permitted"),
        (changed("features.image.size", 1), "features.image.size: Extra inputs are not permitted"),
        (changed("features.label.dtype", "bytes"), "features.label: must be of kind 'label'"),
        (changed("features.image.dtype", "int64"), "features.image: "),
        (changed("features", {"label": LABEL}), "has no feature 'image'"),
        (of_objects("bbox.repeated", value=False), "features.objects/bbox.repeated: must be true"),
        (changed("features.image/height.repeated", value=True), "height.repeated: must be false"),
        (of_objects("label.kind", "labels"), "must be of kind 'label'"),
        (of_objects("mask.shape", [8, 8, 3]), "height, width, 1 of a PNG"),
        (of_objects("mask.encoding", "jpeg"), "height, width, 1 of a PNG"),
        (of_objects("bbox.labels", ["a"]), "features.objects/bbox.labels: "),
        (of_objects("age", {**SCALAR, "repeated": True}), "objects have no such feature"),
        (changed("features.objects", SCALAR), "objects have no such feature"),
    ],
)
def test_a_schema_that_breaks_a_rule_is_refused_by_the_name_of_the_field(
    tmp_path: Path, text: str, names: str
) -> None:
    path = builders.write(tmp_path / "mine.json", text.encode())
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
def test_a_name_that_is_neither_shipped_nor_a_file_is_told_what_is_shipped(name: str) -> None:
    with pytest.raises(SchemaError, match="shipped are classification, detection, "):
        load_schema(name)


def test_a_schema_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = builders.write(tmp_path / "mine.json", b"\xff\xfe{}")
    with pytest.raises(SchemaError, match=r"mine\.json"):
        load_schema(str(path))


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
    "png": (PETS, {**SMALL, "format": "png"}),
    "raw": (PETS, {**SMALL, "format": "raw"}),
    "keep": (PETS, {"format": "keep"}),
    "within": (PETS, {**SMALL, "fit": "within"}),
    "sharded": (PETS, {**SMALL, "shards": 3}),
    "unlabelled": (PETS, {**SMALL, "labels": "none"}),
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
"""Build → name of the image → what the table says of it; None is NaN."""


def make(name: str, folder: Path) -> BuildResult:
    members, keys = BUILDS[name]
    source = builders.write_folder(folder / "source", members)
    return builders.build(source, folder / "out", name="pets", **keys)


@pytest.fixture(scope="module", params=BUILDS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """Return a build of labelled and unlabelled images, for each way to store them."""
    return make(request.param, tmp_path_factory.mktemp(request.param))


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
    """Read a split with nothing but TensorFlow and what design.md says."""
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


def as_tfds_reads(builder: Any, split: str) -> list[Row]:
    return by_filename(builder.as_dataset(split=split).as_numpy_iterator())


def test_tfds_reads_what_plain_tensorflow_reads(built: BuildResult) -> None:
    import tensorflow_datasets as tfds

    for name, split in built.manifest.splits.items():
        rows = as_written(built, name)
        assert len(rows) == split.num_records > 0
        assert as_tfds_reads(tfds.builder_from_directory(str(built.path)), name) == rows


def test_tfds_loads_by_name(built: BuildResult) -> None:
    import tensorflow_datasets as tfds

    dataset = tfds.load("pets", data_dir=str(built.path.parents[1]), split="train")
    assert by_filename(dataset.as_numpy_iterator()) == as_written(built, "train")


def test_tfds_knows_the_features_labels_and_counts(built: BuildResult) -> None:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(built.path))
    features = tfds.features.FeaturesDict.from_config(str(built.path))
    schema = json.loads((built.path / "schema.json").read_text())
    assert features.keys() == builder.info.features.keys() == schema["features"].keys()
    assert list(features["image"].shape) == schema["features"]["image"]["shape"]
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        name: split.num_records for name, split in built.manifest.splits.items()
    }
    assert builder.info.dataset_size == built.manifest.totals.num_bytes


def test_tfds_slices_a_split_by_records(built: BuildResult) -> None:
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(built.path))
    parts = [as_tfds_reads(builder, split) for split in ("train[:3]", "train[3:]")]
    assert len(parts[0]) == 3
    together = sorted(parts[0] + parts[1], key=lambda row: str(row["image/filename"]))
    assert together == as_written(built, "train")


def test_the_schema_of_a_dataset_can_be_read_back(built: BuildResult) -> None:
    text = (built.path / "schema.json").read_text()
    assert parse_schema(text, "it").dumps() == text


@pytest.mark.parametrize(
    ("name", "target", "labels"),
    [
        ("jpeg", "label", NAMES),
        ("multilabel", "labels", ("bird", "cat", "dog")),
        ("regression", "target", None),
        ("text", "text", None),
        ("unlabelled", None, None),
    ],
)
def test_tfds_knows_what_is_to_be_learnt(
    tmp_path: Path, name: str, target: str | None, labels: tuple[str, ...] | None
) -> None:
    import tensorflow_datasets as tfds

    info = tfds.builder_from_directory(str(make(name, tmp_path).path)).info
    assert info.supervised_keys == (None if target is None else ("image", target))
    if labels:
        feature = info.features[target]
        assert tuple(getattr(feature, "feature", feature).names) == labels


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


def test_labels_are_those_of_the_file_names_and_none_is_minus_one(tmp_path: Path) -> None:
    result = make("jpeg", tmp_path)
    labels = {row["image/filename"]: row["label"] for row in as_written(result, "train")}
    assert {row["label"] for row in as_written(result, "test")} == {-1}
    assert {NAMES[label] in filename for filename, label in labels.items()} == {True}


@pytest.mark.parametrize("name", TARGETS)
def test_targets_and_columns_are_those_of_the_table(tmp_path: Path, name: str) -> None:
    result = make(name, tmp_path)
    for split in result.manifest.splits:
        for row in as_written(result, split):
            expected = TARGETS[name][row["image/filename"][-5]]
            assert {key: row[key] for key in expected} == expected


# --- damage to a shard --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """Return a build of four images of 4x4 raw pixels."""
    folder = tmp_path_factory.mktemp("tiny")
    members = {f"{name}/{i}.png": builders.png(4, 4, i) for name in "ab" for i in range(2)}
    source = builders.write_folder(folder / "source", members)
    return builders.build(source, folder / "out", name="tiny", size="4x4", format="raw")


def only_shard(result: BuildResult) -> Shard:
    (shard,) = result.manifest.splits["train"].shards
    return shard


def num_readable(data: bytes) -> int | None:
    """Return the number of records in a shard, None where one is damaged."""
    try:
        return sum(1 for _ in read_records(io.BytesIO(data), "tiny"))
    except RecordError:
        return None


def test_the_manifest_measures_the_shard(tiny: BuildResult) -> None:
    shard = only_shard(tiny)
    data = (tiny.path / shard.name).read_bytes()
    assert shard.num_bytes == len(data)
    assert shard.sha256 == hashlib.sha256(data).hexdigest()
    assert shard.num_records == num_readable(data) == 4


def test_the_index_gives_the_place_of_every_record(tiny: BuildResult) -> None:
    shard = only_shard(tiny)
    places = [
        [int(number) for number in line.split()]
        for line in (tiny.path / index_name(shard.name)).read_text().splitlines()
    ]
    with (tiny.path / shard.name).open("rb") as file:
        assert places == [[r.offset, r.length] for r in read_records(file, shard.name)]


def test_every_flipped_bit_of_a_shard_is_caught_by_a_checksum(tiny: BuildResult) -> None:
    data = bytearray((tiny.path / only_shard(tiny).name).read_bytes())
    for bit in range(len(data) * 8):
        data[bit // 8] ^= 1 << bit % 8
        assert num_readable(bytes(data)) is None, f"bit {bit}"
        data[bit // 8] ^= 1 << bit % 8


def test_every_cut_of_a_shard_is_caught_by_a_checksum_or_by_the_count(tiny: BuildResult) -> None:
    shard = only_shard(tiny)
    data = (tiny.path / shard.name).read_bytes()
    records = read_records(io.BytesIO(data), "tiny")
    between = {0, *accumulate(record.length for record in records)}
    for size in range(len(data)):
        found = num_readable(data[:size])
        assert (found is not None) == (size in between), f"cut at {size}"
        assert found != shard.num_records, f"cut at {size}"


def test_tensorflow_cannot_see_a_shard_cut_between_records_but_the_manifest_can(
    tiny: BuildResult, tmp_path: Path
) -> None:
    import tensorflow as tf

    shard = only_shard(tiny)
    data = (tiny.path / shard.name).read_bytes()
    first = next(read_records(io.BytesIO(data), "tiny"))
    path = builders.write(tmp_path / "cut", data[: first.length])
    assert len(list(tf.data.TFRecordDataset(str(path)))) == 1 != shard.num_records
