"""The files with which TensorFlow Datasets opens a dataset folder.

Layout and keys as `tfds.builder_from_directory` of 4.9 reads them: proto-JSON of
tensorflow_datasets.DatasetInfo and .Feature. Unknown keys are a parse error there, and
`shardLengths` must be exact.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Feature, Schema

DOCUMENTS = ("dataset_info.json", "features.json")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def tfds_files(manifest: Manifest, schema: Schema) -> dict[str, str]:
    """Return the text of each file by its name."""
    files = {
        DOCUMENTS[0]: _dumps(_dataset_info(manifest, schema)),
        DOCUMENTS[1]: _dumps(_features(schema)),
    }
    for name, feature in schema.features.items():
        if feature.kind in ("label", "labels"):
            labels = "".join(f"{' '.join(label.split())}\n" for label in schema.labels)
            files[f"{name.replace('/', '.')}.labels.txt"] = labels
    return files


def _dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _dataset_info(manifest: Manifest, schema: Schema) -> dict[str, Any]:
    info: dict[str, Any] = {
        "name": manifest.name,
        "version": manifest.version,
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": name,
                "shardLengths": [str(shard.num_records) for shard in split.shards],
                "numBytes": str(split.num_bytes),
                "filepathTemplate": _TEMPLATE,
            }
            for name, split in manifest.splits.items()
        ],
    }
    if schema.target:
        items = [{"featureKey": "image"}, {"featureKey": schema.target}]
        info["supervisedKeys"] = {"tuple": {"items": items}}
    return info


def _features(schema: Schema) -> dict[str, Any]:
    features = {name: _feature(f, schema) for name, f in schema.features.items()}
    return _python("features_dict.FeaturesDict", featuresDict={"features": features})


def _feature(feature: Feature, schema: Schema) -> dict[str, Any]:
    if feature.kind == "image":
        return _image(feature)
    if feature.kind == "text":
        return _python("text_feature.Text", text={})
    if feature.kind == "scalar":
        tensor: dict[str, Any] = {"shape": {}, "dtype": feature.dtype, "encoding": "none"}
        return _python("scalar.Scalar", tensor=tensor)
    num_classes = {"numClasses": str(len(schema.labels))}
    label = _python("class_label_feature.ClassLabel", classLabel=num_classes)
    if feature.kind == "label":
        return label
    return _python("sequence_feature.Sequence", sequence={"feature": label, "length": "-1"})


def _image(feature: Feature) -> dict[str, Any]:
    shape = {"dimensions": ["-1" if side is None else str(side) for side in feature.shape]}
    if feature.encoding == "raw":
        tensor = {"shape": shape, "dtype": "uint8", "encoding": "bytes"}
        return _python("tensor_feature.Tensor", tensor=tensor)
    image: dict[str, Any] = {"shape": shape, "dtype": "uint8"}
    if feature.encoding != "any":
        image["encodingFormat"] = feature.encoding
    return _python("image_feature.Image", image=image)


def _python(name: str, **content: dict[str, Any]) -> dict[str, Any]:
    """Return a feature of the class of a name."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}
