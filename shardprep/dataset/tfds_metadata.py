"""The files that let TensorFlow Datasets open a dataset folder.

The files are proto-JSON of tensorflow_datasets.DatasetInfo and .Feature, as TFDS 4.9 reads them in
`tfds.builder_from_directory`. TFDS refuses unknown keys and needs exact `shardLengths`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardprep.dataset.kinds import KINDS
from shardprep.dataset.schema import CLASS_PREFIX, MASK, OBJECTS, Feature, Schema

if TYPE_CHECKING:
    from shardprep.dataset.manifest import Manifest

DOCUMENTS = ("dataset_info.json", "features.json")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def tfds_files(manifest: Manifest, schema: Schema) -> dict[str, str]:
    """Return the texts of the files for TFDS, by file name."""
    files = {
        DOCUMENTS[0]: _dumps(_dataset_info(manifest, schema)),
        DOCUMENTS[1]: _dumps(_features(schema)),
    }
    for name, feature in schema.features.items():
        if feature.kind in ("label", "labels") or name == MASK:
            lines = (f"{' '.join(label.split())}\n" for label in _names(feature, schema))
            # TFDS joins nested names with "-", and writes "/" in a name as ".".
            plain = name.replace("/", "-" if feature.repeated else ".")
            files[f"{plain}.labels.txt"] = "".join(lines)
    return files


def _names(feature: Feature, schema: Schema) -> tuple[str, ...]:
    has_own = feature.repeated or feature.kind == "mask" or feature.labels
    return feature.labels if has_own else schema.labels


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
    if target := _supervised(schema):
        items = [{"featureKey": schema.image_name}, target]
        info["supervisedKeys"] = {"tuple": {"items": items}}
    return info


def _supervised(schema: Schema) -> dict[str, Any] | None:
    """Return TFDS's supervised target: a feature, or a dict of features for several classes."""
    classes = schema.class_features
    if not classes or schema.annotations:
        return {"featureKey": schema.supervised} if schema.supervised else None
    keys = {name.removeprefix(CLASS_PREFIX): {"featureKey": name} for name in classes}
    own = {schema.target: {"featureKey": schema.target}} if schema.target else {}
    return {"dict": {"dict": {**own, **keys}}}


def _features(schema: Schema) -> dict[str, Any]:
    features: dict[str, Any] = {}
    of_objects: dict[str, Any] = {}
    for name, feature in schema.features.items():
        one = _feature(feature, schema)
        parent, _, short = name.partition("/")
        if parent == OBJECTS:
            of_objects[short] = one
        else:
            features[name] = _sequence(one) if feature.repeated else one
    if of_objects:
        features[OBJECTS] = _sequence(_dict(of_objects))
    return _dict(features)


def _feature(feature: Feature, schema: Schema) -> dict[str, Any]:
    one = _value(feature, schema)
    return _sequence(one) if KINDS[feature.kind].is_list else one


def _value(feature: Feature, schema: Schema) -> dict[str, Any]:
    if KINDS[feature.kind].moves == "pixels":
        return _picture(feature)
    if feature.kind in ("label", "labels"):
        num_classes = {"numClasses": str(len(_names(feature, schema)))}
        return _python("class_label_feature.ClassLabel", classLabel=num_classes)
    if feature.dtype == "bytes":
        return _python("text_feature.Text", text={})
    if feature.kind == "bbox":
        shape = {"dimensions": ["4"]}
        box = {"shape": shape, "dtype": "float32", "bboxFormat": "REL_YXYX"}
        return _python("bounding_boxes.BBoxFeature", boundingBox=box)
    dtype, sides = KINDS[feature.kind].decoded or feature.dtype, [*map(str, feature.value_shape)]
    tensor = {"shape": {"dimensions": sides} if sides else {}, "dtype": dtype, "encoding": "none"}
    return _python("tensor_feature.Tensor" if sides else "scalar.Scalar", tensor=tensor)


def _picture(feature: Feature) -> dict[str, Any]:
    shape = {"dimensions": ["-1" if side is None else str(side) for side in feature.shape]}
    if feature.encoding == "raw":
        tensor = {"shape": shape, "dtype": "uint8", "encoding": "bytes"}
        return _python("tensor_feature.Tensor", tensor=tensor)
    image: dict[str, Any] = {"shape": shape, "dtype": feature.pixel_dtype}
    if feature.encoding != "any":
        image["encodingFormat"] = feature.encoding
    if feature.kind == "image" or feature.repeated:
        return _python("image_feature.Image", image=image)
    image |= {"useColormap": True, "label": {"numClasses": str(len(feature.labels))}}
    return _python("labeled_image.LabeledImage", image=image)


def _dict(features: dict[str, Any]) -> dict[str, Any]:
    return _python("features_dict.FeaturesDict", featuresDict={"features": features})


def _sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return _python("sequence_feature.Sequence", sequence={"feature": feature, "length": "-1"})


def _python(name: str, **content: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"tensorflow_datasets.core.features.{name}", **content}
