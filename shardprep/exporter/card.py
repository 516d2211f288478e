"""The card of a dataset: README.md with the YAML that Hugging Face's hub and `datasets` read.

https://huggingface.co/docs/hub/datasets-cards
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from shardprep.dataset.schema import BOX, LABEL, LABELS, MASK, OBJECT_MASK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardprep.dataset.manifest import Manifest
    from shardprep.dataset.schema import Schema

CARD_FILE = "README.md"
_LICENCE = "# license:  # which of https://huggingface.co/docs/hub/repositories-licenses is it?\n"
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_LARGEST = "1M<n<10M"


def card(
    manifest: Manifest, schema: Schema, features: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """Return the card.

    Args:
        manifest: the dataset's.
        schema: the dataset's.
        features: as the JSON of `datasets` has them.
        sizes: bytes of the files of each split.

    """
    num_records = sum(split.num_records for split in manifest.splits.values())
    facts = {
        "pretty_name": manifest.name,
        **({"task_categories": tasks} if (tasks := _tasks(schema)) else {}),
        "size_categories": [next((n for most, n in _SIZES if num_records < most), _LARGEST)],
        "dataset_info": {
            "features": [{"name": name, **_plain(one)} for name, one in features.items()],
            "splits": [
                {"name": name, "num_bytes": sizes[name], "num_examples": split.num_records}
                for name, split in manifest.splits.items()
            ],
            "download_size": sum(sizes.values()),
            "dataset_size": sum(sizes.values()),
        },
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": name, "path": f"data/{name}-*.parquet"} for name in manifest.splits
                ],
            }
        ],
    }
    head = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)
    rows = "".join(f"| {n} | {one.num_records:,} |\n" for n, one in manifest.splits.items())
    return (
        f"---\n{_LICENCE}{head}---\n\n# {manifest.name} {manifest.version}\n\n"
        f"| split | images |\n|---|---|\n{rows}\n"
        "```python\nfrom datasets import load_dataset\n\n"
        'dataset = load_dataset("path/to/this/folder")\n```\n\n'
        "Exported by shardprep; images are the bytes that its shards hold.\n"
    )


def _tasks(schema: Schema) -> list[str]:
    """Return the hub's names of the tasks that a dataset is for."""
    found = []
    if schema.target in (LABEL, LABELS):
        found.append("image-classification")
    if BOX in schema.features:
        found.append("object-detection")
    if MASK in schema.features or OBJECT_MASK in schema.features:
        found.append("image-segmentation")
    return found


def _plain(feature: Any) -> dict[str, Any]:
    """Return a feature as the YAML of a card has it."""
    if isinstance(feature, list):
        inner = _plain(feature[0])
        short = next(iter(inner.values())) if list(inner) in (["dtype"], ["struct"]) else inner
        return {"list": short}
    kind = feature.get("_type")
    if kind is None:
        return {"struct": [{"name": name, **_plain(one)} for name, one in feature.items()]}
    if kind == "ClassLabel":
        names = {str(i): name for i, name in enumerate(feature["names"])}
        return {"dtype": {"class_label": {"names": names}}}
    return {"dtype": "image" if kind == "Image" else feature["dtype"]}
