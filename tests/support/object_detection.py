"""TFRecords with the keys of TensorFlow's Object Detection API, written by TensorFlow."""

from pathlib import Path
from typing import Any

from shardprep.dataset.open_dataset import open_dataset
from shardprep.dataset.schema import BOX, BOX_LABEL, CROWD, LABEL
from tests.writer.records import records

_CORNERS = ("ymin", "xmin", "ymax", "xmax")


def write_records(dataset: Path, folder: Path) -> Path:
    """Write the images, classes and objects of a dataset, a file for each split; return `folder`.

    Classes count from 1, and -1 has no label.
    """
    import tensorflow as tf

    opened = open_dataset(dataset)
    features = opened.schema.features
    splits = {row["key"]: row["split"] for row in opened.item_rows(["key", "split"]).to_pylist()}
    folder.mkdir()
    files = {
        split: tf.io.TFRecordWriter(str(folder / f"pets-{split}.tfrecord-00000-of-00001"))
        for split in opened.manifest.splits
    }
    for key, stored in records(dataset).items():
        values: dict[str, list[Any]] = {
            "image/encoded": stored["image"],
            "image/filename": [key.encode()],
            "image/source_id": [key.encode()],
        }
        if LABEL in features:
            values |= _classes("image/class", stored[LABEL], opened.schema.labels)
        if BOX_LABEL in features:
            named = features[BOX_LABEL].labels
            values |= _classes("image/object/class", stored[BOX_LABEL], named)
            values |= {
                f"image/object/bbox/{corner}": list(stored[BOX][i::4])
                for i, corner in enumerate(_CORNERS)
            }
            values["image/object/is_crowd"] = list(stored.get(CROWD, [0] * len(stored[BOX_LABEL])))
        made = {name: _feature(tf.train, some) for name, some in values.items()}
        example = tf.train.Example(features=tf.train.Features(feature=made))
        files[splits[key]].write(example.SerializeToString())
    for file in files.values():
        file.close()
    return folder


def _classes(prefix: str, stored: list[int], names: tuple[str, ...]) -> dict[str, list[Any]]:
    labels = [label for label in stored if label >= 0]
    return {
        f"{prefix}/label": [label + 1 for label in labels],
        f"{prefix}/text": [names[label].encode() for label in labels],
    }


def _feature(train: Any, values: list[Any]) -> Any:
    if any(isinstance(value, bytes) for value in values):
        return train.Feature(bytes_list=train.BytesList(value=values))
    if any(isinstance(value, float) for value in values):
        return train.Feature(float_list=train.FloatList(value=values))
    return train.Feature(int64_list=train.Int64List(value=values))
