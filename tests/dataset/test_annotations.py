"""Boxes and masks in a dataset: TensorFlow Datasets opens them, and the documents count them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardprep.dataset import example
from shardprep.dataset.folder import ITEMS_FILE, read_schema
from shardprep.dataset.item_table import (
    ANNOTATION_COLUMNS,
    COLUMNS,
    read_items,
    rows_by_shard,
    with_status,
)
from shardprep.dataset.manifest import (
    Manifest,
    MaskCounts,
    ObjectCounts,
    load_manifest,
    parse_manifest,
)
from shardprep.dataset.schema import (
    ANNOTATIONS,
    BOX,
    BOX_LABEL,
    MASK,
    OBJECT_MASK,
    POINTS,
    POINTS_VISIBLE,
)
from shardprep.dataset.tally import AnnotationTally
from shardprep.dataset.tfrecord import read_records
from shardprep.errors import DatasetError
from shardprep.verifier.documents import _table_problems
from tests.dataset.resigned import changed, resigned
from tests.support import builders
from tests.support.annotated import (
    ANNOTATED_COLUMNS,
    CLASSES,
    HEIGHT,
    MARKED,
    MASK_CLASSES,
    WIDTH,
    Marked,
    annotated,
)

KINDS: dict[str, tuple[str, ...]] = {
    "boxes": (BOX, BOX_LABEL),
    "masks": (MASK,),
    "all": ANNOTATIONS,
}


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with every feature; nobody may change it."""
    return annotated(tmp_path_factory.mktemp("whole"), *ANNOTATIONS)


def payloads(folder: Path) -> Iterator[bytes]:
    for path in sorted(folder.glob("*.tfrecord*")):
        with path.open("rb") as file:
            yield from (record.payload for record in read_records(file, path.name))


def expected(one: Marked) -> dict[str, Any]:
    """Return what TFDS has for an image."""
    return {
        "bbox": np.reshape(one.boxes, (-1, 4)).tolist(),
        "label": list(one.labels),
        "is_crowd": [bool(label) for label in one.labels],
        "mask": [mask[..., None].tolist() for mask in one.masks()],
        "keypoints": np.reshape(one.keypoints, (-1, 3, 2)).tolist(),
        "keypoints/visible": [[2, 1, 0] for _ in one.labels],
    }


# --- TensorFlow Datasets ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tfds_opens_boxes_and_masks(tmp_path: Path, kind: str) -> None:
    """With class names, the supervised feature, and images without an object."""
    import tensorflow_datasets as tfds

    features = KINDS[kind]
    builder = tfds.builder_from_directory(str(annotated(tmp_path, *features)))
    info = builder.info.features
    target = MASK if kind == "masks" else "objects"
    assert builder.info.supervised_keys == ("image", target)
    keys = {name.removeprefix("objects/") for name in features if name.startswith("objects/")}
    if keys:
        assert info["objects"]["label"].names == list(CLASSES)
        assert info["objects"]["bbox"].bbox_format.value == "REL_YXYX"
    if MASK in features:
        assert info[MASK].names == list(MASK_CLASSES)
    found = set()
    for split in ("train", "test"):
        for row in builder.as_dataset(split=split).as_numpy_iterator():
            key = row["image/filename"].decode()
            found.add(key)
            objects = {name: value.tolist() for name, value in row.get("objects", {}).items()}
            want = expected(MARKED[key])
            assert objects == {name: want[name] for name in keys}
            if POINTS in features:
                assert row[POINTS].tolist() == [[0.5, 0.25], [0, 0]]
                assert row[POINTS_VISIBLE].tolist() == [2, 0]
            if MASK in features:
                assert (row[MASK][..., 0] == MARKED[key].classes()).all()
    assert found == {*MARKED}
    image, value = next(iter(builder.as_dataset("test", as_supervised=True).as_numpy_iterator()))
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert isinstance(value, dict) == (target == "objects")


def test_the_numpy_parser_of_tfds_parses_every_record(whole: Path, tmp_path: Path) -> None:
    """It raises for a list without a type: of objects, and of an image without a class."""
    import tensorflow_datasets as tfds

    features = tfds.builder_from_directory(str(whole)).info.features
    for payload in payloads(whole):
        row = features.deserialize_example_np(payload)
        want = expected(MARKED[row["image/filename"].decode()])
        assert {name: np.asarray(one).tolist() for name, one in row["objects"].items()} == want
    keys = ("train/0.png", "train/1.png", "test/2.png")
    members = {key: builders.png(seed=i) for i, key in enumerate(keys)}
    members["t.csv"] = b"id,tags\n0,a b\n1,b\n"
    source = builders.write_folder(tmp_path / "tags", members)
    tags = builders.build(
        source, tmp_path / "out", labels="csv:t.csv:id:tags", target="multilabel", separator=" "
    )
    features = tfds.builder_from_directory(str(tags.path)).info.features
    found = [features.deserialize_example_np(one)["labels"] for one in payloads(tags.path)]
    assert sorted(np.asarray(one).tolist() for one in found) == [[], [0, 1], [1]]


def test_plain_tensorflow_parses_every_record(whole: Path) -> None:
    import tensorflow as tf

    spec = {
        "image/filename": tf.io.FixedLenFeature([], tf.string),
        BOX: tf.io.RaggedFeature(tf.float32),
        BOX_LABEL: tf.io.RaggedFeature(tf.int64),
        OBJECT_MASK: tf.io.RaggedFeature(tf.string),
        MASK: tf.io.FixedLenFeature([], tf.string),
    }
    for payload in payloads(whole):
        row = {n: v.numpy() for n, v in tf.io.parse_single_example(payload, spec).items()}
        one = MARKED[row["image/filename"].decode()]
        assert row[BOX].tolist() == list(one.boxes)
        assert row[BOX_LABEL].tolist() == list(one.labels)
        assert len(row[OBJECT_MASK]) == len(one.labels)
        assert (tf.io.decode_png(row[MASK]).numpy()[..., 0] == one.classes()).all()


def test_classes_of_images_and_of_objects_are_separate(tmp_path: Path) -> None:
    import tensorflow_datasets as tfds

    marked = {f"{name}/{i}.png": MARKED["train/a.png"] for name in ("day", "night") for i in "ab"}
    folder = annotated(tmp_path, BOX, BOX_LABEL, marked=marked, labels="folder")
    info = tfds.builder_from_directory(str(folder)).info
    assert info.features["label"].names == ["day", "night"]
    assert info.features["objects"]["label"].names == list(CLASSES)
    manifest = load_manifest(folder)
    assert manifest.labels.names == ("day", "night")
    assert list(manifest.annotations["train"].objects.objects) == list(CLASSES)  # type: ignore[union-attr]


# --- documents ----------------------------------------------------------------------------------


def test_the_manifest_counts_objects_and_pixels(whole: Path) -> None:
    for split, counts in load_manifest(whole).annotations.items():
        ones = [one for key, one in MARKED.items() if key.startswith(split)]
        dropped = [reason for one in ones for reason, n in one.dropped.items() for _ in range(n)]
        assert counts.num_clipped == sum(one.num_clipped for one in ones)
        assert counts.dropped == {reason: dropped.count(reason) for reason in sorted({*dropped})}
        labels = [label for one in ones for label in one.labels]
        assert counts.objects == ObjectCounts(
            num_objects=len(labels),
            num_background=sum(not one.labels for one in ones),
            objects={name: labels.count(i) for i, name in enumerate(CLASSES)},
            images={name: sum(i in one.labels for one in ones) for i, name in enumerate(CLASSES)},
        )
        masks = np.stack([one.classes() for one in ones])
        is_of = {name: masks == i for i, name in enumerate(MASK_CLASSES)}
        assert counts.masks == MaskCounts(
            pixels={name: int(there.sum()) for name, there in is_of.items()},
            images={name: int(there.any(axis=(1, 2)).sum()) for name, there in is_of.items()},
            num_ignored=len(ones) * WIDTH,
            num_uniform=sum(len({*one.classes()[:-1].ravel()}) == 1 for one in ones),
        )


def test_padding_is_no_value_of_a_mask_except_in_manifests_of_1_0_0(whole: Path) -> None:
    manifest, schema = load_manifest(whole), read_schema(whole)
    tally = AnnotationTally()
    tally.add(with_status(read_items(whole / ITEMS_FILE), "written"))
    now, old = tally.counts(schema).masks, tally.counts(schema, is_strict=True).masks
    assert now is not None
    assert old == now.model_copy(update={"num_uniform": 0})
    assert now.num_uniform
    document = manifest.model_dump(mode="json")
    for one in document["annotations"].values():
        one["masks"]["num_uniform"] = 0
    resealed = Manifest.model_validate(document)
    rows = read_items(whole / ITEMS_FILE)
    for before in (manifest, resealed):
        assert not [*_table_problems(before, schema, rows, rows_by_shard(rows))]


def test_tallies_add_up_however_rows_are_cut(whole: Path) -> None:
    rows = with_status(read_items(whole / ITEMS_FILE), "written")
    together, apart = AnnotationTally(), AnnotationTally()
    together.add(rows)
    for number in range(len(rows)):
        apart.add(rows.slice(number, 1))
    assert apart == together


def test_a_dataset_without_boxes_and_masks_has_no_annotation_counts(tmp_path: Path) -> None:
    source = builders.write_folder(tmp_path / "pets", builders.animals(4))
    folder = builders.build(source, tmp_path / "out", size="16x16").path
    assert "annotations" not in json.loads((folder / "manifest.json").read_text())
    assert read_items(folder / ITEMS_FILE).schema.names == COLUMNS.names


def test_the_item_table_counts_objects_by_image(whole: Path) -> None:
    table = read_items(whole / ITEMS_FILE)
    assert table.schema.names == ANNOTATED_COLUMNS.names
    rows = {row["key"]: row for row in table.select(["key", *ANNOTATION_COLUMNS.names]).to_pylist()}
    assert rows["train/a.png"]["num_objects"] == 2
    assert rows["train/a.png"]["num_clipped"] == 1
    assert dict(rows["train/a.png"]["dropped"]) == {"zero size": 2}
    assert rows["train/d.png"]["object_labels"] == [0, 0, 1]
    assert read_items(whole / ITEMS_FILE, ["key"]).schema.names == ["key"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (".train.objects.num_objects", 5, "num_objects is 5, not 7"),
        (".train.objects.num_background", 6, "6 images of 'background'"),
        (".train.masks.images.red", 6, "6 images of 'red', but its split has 5"),
        (".train.num_clipped", -1, "annotations.train.num_clipped: "),
        (".train", None, "annotations.train: "),
        ("", lambda splits: {"train": splits["train"]}, "annotations have other splits than"),
    ],
)
def test_a_manifest_with_impossible_counts_is_refused(
    whole: Path, path: str, value: Any, said: str
) -> None:
    """Its own hash is right."""
    document = json.loads((whole / "manifest.json").read_text())
    with pytest.raises(DatasetError, match=re.escape(said)):
        parse_manifest(resigned(changed(document, f"annotations{path}", value)), "it")


def test_empty_lists_without_a_type_are_read(whole: Path) -> None:
    """Datasets of earlier versions have them where an image has no class."""
    payload = next(iter(payloads(whole)))
    features = {**example.decode(payload), BOX_LABEL: []}
    assert example.decode(example.encode(features)) == features
